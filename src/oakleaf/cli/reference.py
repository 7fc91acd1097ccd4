"""References at the command line: those of every surface, and bundle files. Completes them for the shell."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from oakleaf.cli.option_group import complete_file
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.store_option import StoreLocation
from oakleaf.errors import OakleafError
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionRow
from oakleaf.verbs import reference as references
from oakleaf.verbs.reference import NEWEST, Position
from oakleaf.verbs.reference import is_title as is_title
from oakleaf.verbs.screen import clip


def resolve(location: StoreLocation, reference: str, *, trashed: bool = False) -> Position:
    """Resolve a reference to a session of the store or of a bundle file. A whole id names a session in the
    trash, too.
    """
    bundle, _ = bundle_file(location, reference, trashed=trashed)
    if bundle is None:
        return references.resolve(location.open(), reference, trashed=trashed)
    store = location.open_memory()
    session = store.session(store.import_bundle(bundle).session_id)
    return references.position(session, *references.split(reference), bundle=bundle)


def resolve_stored(location: StoreLocation, reference: str, *, trashed: bool = False) -> Position:
    """Resolve a reference for a writing command: refuse a bundle file, as the change would be lost, and a
    session in the trash.
    """
    bundle, _ = bundle_file(location, reference, trashed=trashed)
    if bundle is not None:
        raise CommandError(
            f"{reference} is a bundle file; import it first: oakleaf import {shlex.quote(str(bundle))}"
        )
    return references.stored(resolve(location, reference, trashed=trashed), trashed=trashed)


def resolve_stored_session(location: StoreLocation, reference: str, *, trashed: bool = False) -> Session:
    """Resolve a reference to a whole session of the store."""
    return references.whole(resolve_stored(location, reference, trashed=trashed), reference)


def bundle_file(
    location: StoreLocation, reference: str, *, trashed: bool = False
) -> tuple[Path | None, int | None]:
    """Return the bundle file a reference names, if any, and the entry number. A bare word names a session first."""
    name, _, seq = references.split(reference)
    place = Path(name)
    if name.endswith(".oakleaf") and not place.exists():
        raise CommandError(f"there is no file {name}")
    if not name or not place.is_file():
        return None, seq
    is_path = name.endswith(".oakleaf") or "/" in name
    return (place if is_path or not _is_session_name(location, name, trashed=trashed) else None), seq


def _is_session_name(location: StoreLocation, name: str, *, trashed: bool) -> bool:
    if name in NEWEST:
        return True
    return location.exists and references.is_session_name(location.open(), name, trashed=trashed)


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete ids and one-word titles, last active first. Longer titles appear as the help text of their id."""
    return _complete(ctx, param, incomplete, trashed=False)


def complete_trashed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same for the sessions in the trash."""
    return _complete(ctx, param, incomplete, trashed=True)


def _complete(
    ctx: click.Context, param: click.Parameter, incomplete: str, *, trashed: bool
) -> list[CompletionItem]:
    typed = ctx.find_root().params  # the command is not run, so nothing has made a location of it
    try:
        location = StoreLocation(typed.get("store"), typed.get("space") or "default", typed.get("owner"))
        location.register_key_file(typed.get("key_file"))
        rows = _completed_rows(location.open(), incomplete, trashed=trashed) if location.exists else ()
    except (OakleafError, CommandError, OSError):  # a message would garble the line being typed
        return []
    named: list[tuple[str, str | None]] = [("latest", None)] if rows else []
    named += [(row.session_id, row.title) for row in rows]
    named += [(row.title, None) for row in rows if row.title and row.title.split() == [row.title]]
    items = [
        CompletionItem(name, help=clip(title or "", 40) or None)
        for name, title in named
        if name.startswith(incomplete)
    ]
    return items or ([] if trashed else complete_file(ctx, param, incomplete))  # a bundle


def _completed_rows(store: Store, incomplete: str, *, trashed: bool) -> list[SessionRow]:
    """Return the sessions to offer: the newest, then older sessions with a matching id."""
    rows = list(store.sessions(trashed=trashed, limit=200).sessions)
    if incomplete:
        known = {row.session_id for row in rows}
        older = store.sessions(trashed=trashed, id_prefix=incomplete, order="created", limit=200).sessions
        rows += [row for row in older if row.session_id not in known]
    return rows


reference = click.argument("reference", default="latest", shell_complete=complete)
required_reference = click.argument("reference", shell_complete=complete)
