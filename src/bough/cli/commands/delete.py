"""`bough rm`, `restore`, `purge` and `gc`: the plan first, and --yes."""

from __future__ import annotations

import click

from ...core.time_text import parse_duration
from ...error_messages import tell
from ...errors import SessionRunning
from ...session import Session
from ...store import GRACE_MICROSECONDS, Store
from ...stores.base import SessionRow
from ..reference import complete, find_kept_whole
from ..rendering.output import as_json, clipped, confirmed, many, plain, say, say_json
from ..rendering.progress import bar
from ..store_option import Here, here

yes = click.option("-y", "--yes", is_flag=True, help="Do it; without it a person is asked.")
some = click.argument("references", nargs=-1, required=True, metavar="REFERENCE…", shell_complete=complete)


@click.command()
@some
@yes
@as_json
@here
def rm(place: Here, references: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Put a session and its children into the trash.

    bough restore brings it back; bough purge forgets it for good.
    """
    found = _named(place, references)
    sessions = place.sessions()
    rows = [row for session in found for row in sessions.family(session.session_id)]
    sessions.raise_if_running(rows)
    _plan("goes into the trash", rows)
    if not confirmed("Into the trash?", yes=yes):
        return 1
    gone = [name for session in found for name in sessions.delete(session.session_id)]
    if is_json:
        say_json(trashed=gone)
    else:
        names = " ".join(session.session_id for session in found)
        say(f"{len(gone)} in the trash; bough restore {names} brings back what was put there")
    return 0


@click.command()
@some
@as_json
@here
def restore(place: Here, references: tuple[str, ...], is_json: bool) -> None:
    """Bring a session back from the trash, with its children."""
    found = _named(place, references, trashed=True)
    sessions = place.sessions()
    back = [name for session in found for name in sessions.restore(session.session_id)]
    if is_json:
        say_json(restored=back)
    else:
        click.echo("\n".join(back))


@click.command()
@some
@click.option("--with-forks", is_flag=True, help="Forks of it too: when its bytes must go now.")
@yes
@as_json
@here
def purge(place: Here, references: tuple[str, ...], with_forks: bool, yes: bool, is_json: bool) -> int:
    """Forget a trashed session for good.

    No byte of it is left in the file, its log, its index or its blobs. What a surviving fork stands on stays until
    the fork goes.
    """
    found = _named(place, references, trashed=True)
    sessions = place.sessions()
    rows = [row for session in found for row in sessions.family(session.session_id, forks=with_forks)]
    sessions.raise_if_running(rows)
    _plan("is forgotten for good", rows)
    if not confirmed("For good?", yes=yes):
        return 1
    purged = [sessions.purge(session.session_id, with_forks=with_forks) for session in found]
    if is_json:
        say_json(purged=plain(purged))
        return 0
    for one in purged:
        kept = f"; {one.kept_entries} entries stay until the forks on them go" if one.kept_entries else ""
        blobs = many(one.blobs, "blob")
        click.echo(f"forgot {many(len(one.sessions), 'session')}, {one.entries:,} entries, {blobs}{kept}")
        if not one.scrubbed:
            say("another program reads the file: its write-ahead log is cleaned by the next purge or gc")
    return 0


@click.command()
@click.option(
    "--trashed-for", metavar="TIME", help="Policy: purge what has lain in the trash so long, such as 30d."
)
@click.option(
    "--idle-for", metavar="TIME", help="Policy: trash sessions that were idle so long, such as 180d."
)
@yes
@as_json
@here
def gc(place: Here, trashed_for: str | None, idle_for: str | None, yes: bool, is_json: bool) -> int:
    """Drop blobs nobody points to, and what a policy names.

    Without a policy nothing is ever deleted by age.
    """
    sessions = place.sessions()
    now = sessions.runtime.now()
    old = _trashed_before(sessions, now - parse_duration("--trashed-for", trashed_for)) if trashed_for else []
    idle = _idle_before(sessions, now - parse_duration("--idle-for", idle_for)) if idle_for else []
    loose = sessions.backend.unreferenced_blobs(now - GRACE_MICROSECONDS)
    if not old and not idle and not loose.blobs:
        say_json(dropped_blobs=0, purged=[], trashed=[]) if is_json else say("nothing to do")
        return 0
    say(f"{loose.blobs} blobs that no entry points to, {loose.bytes:,} bytes, are dropped")
    _plan("is forgotten for good", old)
    _plan("goes into the trash", idle)
    if not confirmed("Go on?", yes=yes):
        return 1
    with bar("gc", unit="sessions") as step:
        for done, row in enumerate(old, 1):
            sessions.purge(row.session_id)
            step(done, len(old))
    trashed = [name for row in idle for name in _trashed(sessions, row)]
    dropped = sessions.gc()
    if is_json:
        say_json(dropped_blobs=dropped, purged=[row.session_id for row in old], trashed=trashed)
    else:
        click.echo(f"dropped {dropped} blobs, forgot {len(old)} sessions, put {len(trashed)} into the trash")
    return 0


def _named(place: Here, references: tuple[str, ...], *, trashed: bool = False) -> list[Session]:
    """Each once, however often it was named."""
    found = [find_kept_whole(place, reference, trashed=trashed).session for reference in references]
    return list({session.session_id: session for session in found}.values())


def _trashed_before(sessions: Store, before: int) -> list[SessionRow]:
    """Tasks go with the session that started them, if that is in the trash too."""
    rows = [row for row in sessions.all_sessions(trashed=True, limit=500) if (row.trashed_at or 0) < before]
    going = {row.session_id for row in rows}
    return [row for row in rows if not (row.relation == "task" and row.parent_session in going)]


def _idle_before(sessions: Store, before: int) -> list[SessionRow]:
    rows = sessions.all_sessions(include_children=False, limit=500)
    return [row for row in rows if row.updated_at < before and row.status != "running"]


def _trashed(sessions: Store, row: SessionRow) -> list[str]:
    try:
        return sessions.delete(row.session_id)
    except SessionRunning as error:  # it, or a task of it, since the plan was made
        say(f"{row.session_id} is left alone: {tell(error).what}")
        return []


def _plan(what: str, rows: list[SessionRow]) -> None:
    for row in rows[:20]:
        words = (
            row.session_id,
            clipped(row.title or row.agent or "", 60),
            f"({many(row.turns, 'turn')}) {what}",
        )
        say("  " + "  ".join(filter(None, words)))
    if len(rows) > 20:
        say(f"  … and {len(rows) - 20} more")
