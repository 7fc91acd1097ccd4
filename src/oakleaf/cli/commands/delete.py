"""`oakleaf rm`, `restore`, `purge` and `gc`. Each prints its plan and asks, unless you pass --yes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import click
from msgspec.structs import replace

from oakleaf import plugins
from oakleaf.cli.reference import complete, complete_trashed, resolve_stored_session
from oakleaf.cli.rendering.output import (
    clip,
    confirm_plan,
    echo,
    json_option,
    notify,
    plural,
    print_json,
    progress_bar,
    safe,
    yes_option,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.time_text import parse_duration
from oakleaf.errors import OakleafError, SessionRunning
from oakleaf.ext import read_store
from oakleaf.ingest.importers import find_importer
from oakleaf.session import Session
from oakleaf.store import GRACE_MICROSECONDS, Store
from oakleaf.stores.base import SessionRow

references_argument = partial(click.argument, "references", nargs=-1, required=True, metavar="REFERENCE…")


@click.command()
@references_argument(shell_complete=complete)
@yes_option
@json_option
@pass_location
def rm(location: StoreLocation, references: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Move a session and its tasks to the trash.

    oakleaf restore brings them back; oakleaf purge deletes them permanently.
    """
    selected = _sessions(location, references)
    store = location.open()
    rows = [row for session in selected for row in store.family(session.session_id)]
    store.raise_if_running(rows)
    _plan(store, "moves to the trash", rows)
    if not confirm_plan("Move to the trash?", yes=yes):
        return 1
    trashed = [name for session in selected for name in store.delete(session.session_id)]
    if is_json:
        print_json(trashed=trashed)
    else:
        names = " ".join(session.session_id for session in selected)
        notify(f"moved {plural(len(trashed), 'session')} to the trash; undo with: oakleaf restore {names}")
    return 0


@click.command()
@references_argument(shell_complete=complete_trashed)
@json_option
@pass_location
def restore(location: StoreLocation, references: tuple[str, ...], is_json: bool) -> None:
    """Restore a session from the trash, with its tasks."""
    selected = _sessions(location, references, trashed=True)
    store = location.open()
    restored = [name for session in selected for name in store.restore(session.session_id)]
    if is_json:
        print_json(restored=restored)
    else:
        echo("\n".join(restored))


@click.command()
@references_argument(shell_complete=complete_trashed)
@click.option(
    "--with-forks", is_flag=True, help="Delete its forks and replays too, which repeat parts of it."
)
@yes_option
@json_option
@pass_location
def purge(
    location: StoreLocation, references: tuple[str, ...], with_forks: bool, yes: bool, is_json: bool
) -> int:
    """Delete a trashed session permanently.

    Nothing of it remains in the file, its write-ahead log, the search index or the attachments. Its forks and replays
    are separate sessions and stay; entries that a fork shares remain until the fork is purged. Lab runs that quote it
    stay, too. The files it was imported from are not touched, so the next import adds it again.
    """
    selected = _sessions(location, references, trashed=True)
    store = location.open()
    rows = [row for session in selected for row in store.family(session.session_id, forks=with_forks)]
    store.raise_if_running(rows)
    _plan(store, "is deleted permanently", rows)
    surviving = _surviving_sessions(store, rows)
    _plan_surviving(store, surviving, "" if with_forks else "; --with-forks deletes forks and replays too")
    imported = _import_tools(rows)
    _plan_imported(imported)
    _plan_rewrite(location)
    if not confirm_plan("Delete permanently?", yes=yes):
        return 1
    purged = [
        store.purge(session.session_id, with_forks=with_forks, scrub=session is selected[-1])
        for session in selected
    ]
    purged = [replace(one, scrubbed=purged[-1].scrubbed) for one in purged]
    if is_json:
        print_json(purged=purged, surviving=[row.session_id for row, _ in surviving], imported_from=imported)
        return 0
    for one in purged:
        remaining = (
            f"; {one.kept_entries} entries remain until their forks are purged" if one.kept_entries else ""
        )
        blobs = plural(one.blobs, "attachment")
        echo(f"deleted {plural(len(one.sessions), 'session')}, {one.entries:,} entries, {blobs}{remaining}")
    if not purged[-1].scrubbed:
        notify(
            "another process is reading the file, so its write-ahead log is cleaned by the next purge or gc"
        )
    return 0


@click.command()
@click.option(
    "--trashed-for", metavar="TIME", help="Purge sessions that were in the trash this long, such as 30d."
)
@click.option(
    "--idle-for", metavar="TIME", help="Move sessions to the trash that were idle this long, such as 180d."
)
@yes_option
@json_option
@pass_location
def gc(
    location: StoreLocation, trashed_for: str | None, idle_for: str | None, yes: bool, is_json: bool
) -> int:
    """Delete unreferenced attachments and, if you ask, old sessions.

    Without --trashed-for and --idle-for no session is touched.
    """
    store = location.open()
    now = read_store(store).now()
    old = _trashed_before(store, now - parse_duration("--trashed-for", trashed_for)) if trashed_for else []
    idle = _idle_before(store, now - parse_duration("--idle-for", idle_for)) if idle_for else []
    unreferenced = read_store(store).unreferenced_blobs(now - GRACE_MICROSECONDS)
    if not old and not idle and not unreferenced.blobs:
        print_json(dropped_blobs=0, purged=[], trashed=[]) if is_json else notify("nothing to do")
        return 0
    notify(
        f"  {plural(unreferenced.blobs, 'unreferenced attachment')} ({unreferenced.bytes:,} bytes) will be deleted"
    )
    _plan(store, "is deleted permanently", old)
    families = [row for one in old for row in store.family(one.session_id)]
    _plan_surviving(store, _surviving_sessions(store, families))
    _plan_imported(_import_tools(families))
    if old:
        _plan_rewrite(location)
    _plan(store, "moves to the trash", idle)
    if not confirm_plan("Continue?", yes=yes):
        return 1
    with progress_bar("gc", unit="sessions") as step:
        for done, row in enumerate(old, 1):
            store.purge(row.session_id, scrub=done == len(old))
            step(done, len(old))
    trashed = [name for row in idle for name in _move_to_trash(store, row)]
    dropped = store.gc()
    if is_json:
        print_json(dropped_blobs=dropped, purged=[row.session_id for row in old], trashed=trashed)
    else:
        echo(
            f"deleted {plural(dropped, 'attachment')} and {plural(len(old), 'session')}, moved {plural(len(trashed), 'session')} to the trash"
        )
    return 0


def _sessions(
    location: StoreLocation, references: tuple[str, ...], *, trashed: bool = False
) -> list[Session]:
    """Resolve the references to sessions, without duplicates."""
    sessions = [resolve_stored_session(location, reference, trashed=trashed) for reference in references]
    return list({session.session_id: session for session in sessions}.values())


def _trashed_before(store: Store, before: int) -> list[SessionRow]:
    """Return the sessions trashed before, without tasks whose parent is among them: those are purged with it."""
    rows = [row for row in store.all_sessions(trashed=True, limit=500) if (row.trashed_at or 0) < before]
    ids = {row.session_id for row in rows}
    return [row for row in rows if not (row.relation == "task" and row.parent_session in ids)]


def _idle_before(store: Store, before: int) -> list[SessionRow]:
    rows = store.all_sessions(include_children=False, limit=500)
    return [row for row in rows if row.updated_at < before and row.status != "running"]


def _move_to_trash(store: Store, row: SessionRow) -> list[str]:
    try:
        return store.delete(row.session_id)
    except SessionRunning as error:  # it, or one of its tasks, started since the plan was made
        notify(f"{row.session_id} skipped: {error.problem}")
        return []


def _surviving_sessions(store: Store, rows: list[SessionRow]) -> list[tuple[SessionRow, str]]:
    """Return the sessions that repeat parts of these and are not among them, each with what it is."""
    purged = {row.session_id for row in rows}
    family = [one for row in rows for one in store.family(row.session_id, forks=True)]
    repeating = {row.session_id: (row, str(row.relation)) for row in family}
    for provider in {one.module.partition(".")[0]: one for one in plugins.providers()}.values():
        try:
            repeating |= _quoting_sessions(provider, store, purged)
        except Exception as error:  # noqa: BLE001  # a plugin may raise anything
            notify(f"  {provider} cannot say which of its sessions repeat parts of it: {safe(str(error))}")
    return [survivor for session_id, survivor in repeating.items() if session_id not in purged]


def _quoting_sessions(
    provider: plugins.Provider, store: Store, session_ids: set[str]
) -> dict[str, tuple[SessionRow, str]]:
    """Ask a plugin for its sessions that quote these: `quoting_sessions` of its module `plugin` knows them."""
    module = plugins.summary_module(provider.group, provider.name)
    quoting = getattr(module, "quoting_sessions", lambda store, session_ids: ())
    return {row.session_id: (row, str(kind)) for row, kind in quoting(store, session_ids)}


def _import_tools(rows: list[SessionRow]) -> dict[str, str]:
    """Return the tools that sessions were imported from, by session id."""
    return {row.session_id: row.tags["imported_from"] for row in rows if "imported_from" in row.tags}


def _plan(store: Store, what: str, rows: list[SessionRow]) -> None:
    _plan_lines(store, [(row, f"({plural(row.turns, 'turn')}) {what}") for row in rows])


def _plan_surviving(store: Store, rows: list[tuple[SessionRow, str]], remedy: str = "") -> None:
    _plan_lines(store, [(row, f"({kind}) stays and repeats parts of it") for row, kind in rows])
    if rows:
        notify(f"  purge apart what repeats parts of what is deleted: {plural(len(rows), 'session')}{remedy}")


def _plan_imported(imported: dict[str, str]) -> None:
    for tool, count in Counter(imported.values()).items():
        path = _default_path(tool)
        notify(
            f"  {plural(count, 'session')} imported from {tool}, which keeps its own: the next import, or a watcher, adds again "
            f"what is still in {path or 'the source'}"
        )


def _default_path(tool: str) -> str | None:
    """Return where a tool keeps its sessions; None if no reader of the tool is installed to say so."""
    try:
        return find_importer(tool).default_path
    except OakleafError:
        return None


def _plan_rewrite(location: StoreLocation) -> None:
    """Say that the file is rewritten: a large one takes seconds, in which other programs can read it and not write."""
    if location.is_file:
        megabytes = Path(location.url).stat().st_size / 1e6
        notify(
            f"  the file ({megabytes:,.1f} MB) is rewritten, so that no byte is left; other writers wait meanwhile"
        )


def _plan_lines(store: Store, lines: list[tuple[SessionRow, str]]) -> None:
    names = store.headings([row for row, _ in lines[:20]])
    for row, what in lines[:20]:
        notify(f"  {row.session_id}  {clip(names[row.session_id], 60)}  {what}")
    if len(lines) > 20:
        notify(f"  … and {len(lines) - 20} more")
