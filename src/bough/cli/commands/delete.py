"""`bough rm`, `restore`, `purge` and `gc`: the plan first, and --yes."""

from __future__ import annotations

import click

from ...core.time_text import parse_duration
from ...errors import SessionRunning
from ...session import Session
from ...store import GRACE_MICROSECONDS, Store
from ...stores.base import SessionRow
from ..reference import complete, resolve_stored_session
from ..rendering.output import (
    clip,
    confirm_plan,
    json_option,
    notify,
    plural,
    print_json,
    progress_bar,
    to_json_value,
)
from ..store_option import StoreLocation, pass_location

yes = click.option("-y", "--yes", is_flag=True, help="Do it; without it a person is asked.")
some = click.argument("references", nargs=-1, required=True, metavar="REFERENCE…", shell_complete=complete)


@click.command()
@some
@yes
@json_option
@pass_location
def rm(location: StoreLocation, references: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Put a session and its children into the trash.

    bough restore brings it back; bough purge forgets it for good.
    """
    found = _sessions(location, references)
    store = location.open()
    rows = [row for session in found for row in store.family(session.session_id)]
    store.raise_if_running(rows)
    _plan("goes into the trash", rows)
    if not confirm_plan("Into the trash?", yes=yes):
        return 1
    gone = [name for session in found for name in store.delete(session.session_id)]
    if is_json:
        print_json(trashed=gone)
    else:
        names = " ".join(session.session_id for session in found)
        notify(f"{len(gone)} in the trash; bough restore {names} brings back what was put there")
    return 0


@click.command()
@some
@json_option
@pass_location
def restore(location: StoreLocation, references: tuple[str, ...], is_json: bool) -> None:
    """Bring a session back from the trash, with its children."""
    found = _sessions(location, references, trashed=True)
    store = location.open()
    back = [name for session in found for name in store.restore(session.session_id)]
    if is_json:
        print_json(restored=back)
    else:
        click.echo("\n".join(back))


@click.command()
@some
@click.option("--with-forks", is_flag=True, help="Forks of it too: when its bytes must go now.")
@yes
@json_option
@pass_location
def purge(
    location: StoreLocation, references: tuple[str, ...], with_forks: bool, yes: bool, is_json: bool
) -> int:
    """Forget a trashed session for good.

    No byte of it is left in the file, its log, its index or its blobs. What a surviving fork stands on stays until
    the fork goes.
    """
    found = _sessions(location, references, trashed=True)
    store = location.open()
    rows = [row for session in found for row in store.family(session.session_id, forks=with_forks)]
    store.raise_if_running(rows)
    _plan("is forgotten for good", rows)
    if not confirm_plan("For good?", yes=yes):
        return 1
    purged = [store.purge(session.session_id, with_forks=with_forks) for session in found]
    if is_json:
        print_json(purged=to_json_value(purged))
        return 0
    for one in purged:
        kept = f"; {one.kept_entries} entries stay until the forks on them go" if one.kept_entries else ""
        blobs = plural(one.blobs, "blob")
        click.echo(f"forgot {plural(len(one.sessions), 'session')}, {one.entries:,} entries, {blobs}{kept}")
        if not one.scrubbed:
            notify("another program reads the file: its write-ahead log is cleaned by the next purge or gc")
    return 0


@click.command()
@click.option(
    "--trashed-for", metavar="TIME", help="Policy: purge what has lain in the trash so long, such as 30d."
)
@click.option(
    "--idle-for", metavar="TIME", help="Policy: trash sessions that were idle so long, such as 180d."
)
@yes
@json_option
@pass_location
def gc(
    location: StoreLocation, trashed_for: str | None, idle_for: str | None, yes: bool, is_json: bool
) -> int:
    """Drop blobs nobody points to, and what a policy names.

    Without a policy nothing is ever deleted by age.
    """
    store = location.open()
    now = store.runtime.now()
    old = _trashed_before(store, now - parse_duration("--trashed-for", trashed_for)) if trashed_for else []
    idle = _idle_before(store, now - parse_duration("--idle-for", idle_for)) if idle_for else []
    loose = store.backend.unreferenced_blobs(now - GRACE_MICROSECONDS)
    if not old and not idle and not loose.blobs:
        print_json(dropped_blobs=0, purged=[], trashed=[]) if is_json else notify("nothing to do")
        return 0
    notify(f"{loose.blobs} blobs that no entry points to, {loose.bytes:,} bytes, are dropped")
    _plan("is forgotten for good", old)
    _plan("goes into the trash", idle)
    if not confirm_plan("Go on?", yes=yes):
        return 1
    with progress_bar("gc", unit="sessions") as step:
        for done, row in enumerate(old, 1):
            store.purge(row.session_id)
            step(done, len(old))
    trashed = [name for row in idle for name in _move_to_trash(store, row)]
    dropped = store.gc()
    if is_json:
        print_json(dropped_blobs=dropped, purged=[row.session_id for row in old], trashed=trashed)
    else:
        click.echo(f"dropped {dropped} blobs, forgot {len(old)} sessions, put {len(trashed)} into the trash")
    return 0


def _sessions(
    location: StoreLocation, references: tuple[str, ...], *, trashed: bool = False
) -> list[Session]:
    """Each once, however often it was named."""
    found = [resolve_stored_session(location, reference, trashed=trashed).session for reference in references]
    return list({session.session_id: session for session in found}.values())


def _trashed_before(store: Store, before: int) -> list[SessionRow]:
    """Tasks go with the session that started them, if that is in the trash too."""
    rows = [row for row in store.all_sessions(trashed=True, limit=500) if (row.trashed_at or 0) < before]
    going = {row.session_id for row in rows}
    return [row for row in rows if not (row.relation == "task" and row.parent_session in going)]


def _idle_before(store: Store, before: int) -> list[SessionRow]:
    rows = store.all_sessions(include_children=False, limit=500)
    return [row for row in rows if row.updated_at < before and row.status != "running"]


def _move_to_trash(store: Store, row: SessionRow) -> list[str]:
    try:
        return store.delete(row.session_id)
    except SessionRunning as error:  # it, or a task of it, since the plan was made
        notify(f"{row.session_id} is left alone: {error.problem}")
        return []


def _plan(what: str, rows: list[SessionRow]) -> None:
    for row in rows[:20]:
        words = (
            row.session_id,
            clip(row.title or row.agent or "", 60),
            f"({plural(row.turns, 'turn')}) {what}",
        )
        notify("  " + "  ".join(filter(None, words)))
    if len(rows) > 20:
        notify(f"  … and {len(rows) - 20} more")
