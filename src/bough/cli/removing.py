"""`bough rm`, `restore`, `purge` and `gc`: the plan first, and --yes."""

from __future__ import annotations

import click

from ..core.times import span
from ..session import Session
from ..sessions import GRACE_MICROSECONDS, Sessions
from ..stores.store import SessionRow
from .here import Here, here
from .printing import as_json, clipped, confirmed, many, plain, say, say_json
from .progress import bar
from .reference import complete, find_whole

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
    rows = [row for session in found for row in _family(sessions, session.row, trashed=False)]
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
    rows = [row for session in found for row in _family(sessions, session.row, trashed=True)]
    _plan("is forgotten for good", rows)
    if with_forks:
        say("and every fork that stands on it, trashed or not")
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
    now = sessions.world.now()
    old = _trashed_before(sessions, now - span("--trashed-for", trashed_for)) if trashed_for else []
    idle = _idle_before(sessions, now - span("--idle-for", idle_for)) if idle_for else []
    loose = sessions.store.loose_blobs(now - GRACE_MICROSECONDS)
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
    trashed = [name for row in idle for name in sessions.delete(row.session_id)]
    dropped = sessions.gc()
    if is_json:
        say_json(dropped_blobs=dropped, purged=[row.session_id for row in old], trashed=trashed)
    else:
        click.echo(f"dropped {dropped} blobs, forgot {len(old)} sessions, put {len(trashed)} into the trash")
    return 0


def _named(place: Here, references: tuple[str, ...], *, trashed: bool = False) -> list[Session]:
    """Each once, however often it was named."""
    found = [find_whole(place, reference, trashed=trashed).session for reference in references]
    return list({session.session_id: session for session in found}.values())


def _family(sessions: Sessions, row: SessionRow, *, trashed: bool) -> list[SessionRow]:
    """It and the tasks it started, and theirs; a ring of parents is walked once."""
    found = {row.session_id: row}
    waiting = [row]
    while waiting:
        parent = waiting.pop()
        for child in sessions.every(parent_session=parent.session_id, relation="task", trashed=trashed):
            if child.session_id not in found:
                found[child.session_id] = child
                waiting.append(child)
    return list(found.values())


def _trashed_before(sessions: Sessions, before: int) -> list[SessionRow]:
    """Tasks go with the session that started them, if that is in the trash too."""
    rows = [row for row in sessions.every(trashed=True, limit=500) if (row.trashed_at or 0) < before]
    going = {row.session_id for row in rows}
    return [row for row in rows if not (row.relation == "task" and row.parent_session in going)]


def _idle_before(sessions: Sessions, before: int) -> list[SessionRow]:
    rows = sessions.every(children=False, limit=500)
    return [row for row in rows if row.updated_at < before and row.status != "running"]


def _plan(what: str, rows: list[SessionRow]) -> None:
    for row in rows[:20]:
        name = clipped(row.title or row.agent or "", 60)
        say(f"  {row.session_id}  {name}  ({many(row.turns, 'turn')}) {what}")
    if len(rows) > 20:
        say(f"  … and {len(rows) - 20} more")
