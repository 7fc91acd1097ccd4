"""References: how the command line names a session, and optionally an entry of it.

`ses_3f…`, a unique prefix with or without `ses_`, `latest`, a title, a conversation id (a framework's thread), or a bundle
file. `@7` names its entry 7, `@3:7` entry 7 of branch 3, whatever the session's leaf.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from oakleaf import Cut
from oakleaf.cli.option_group import complete_file
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import clip
from oakleaf.cli.store_option import StoreLocation
from oakleaf.cli.text_argument import check_utf8
from oakleaf.core.tree import Leaf
from oakleaf.errors import InvalidPosition, NotFound, OakleafError, SessionTrashed
from oakleaf.ext import read, read_store, session_at
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionRow

NEWEST = ("latest", "@", "")
"""Names of the newest session; the empty one is the name in `@7`."""
_LISTED = 6
"""How many candidates of an ambiguous name are read: one more than are shown."""
_AT = re.compile(r"^(?P<name>.*)@(?:(?P<branch>\d+):)?(?P<seq>\d+)$", re.DOTALL)


class Position(Struct, frozen=True):
    session: Session
    leaf: Leaf | None
    """The entry named with @; None means the session's own leaf."""
    bundle: Path | None = None
    """The file that the session was read from; None if it is in the store."""

    @property
    def seq(self) -> int | None:
        return None if self.leaf is None else self.leaf.seq

    def session_at(self) -> Session:
        """Return a session handle at this position. The stored leaf does not move."""
        if self.leaf is None:
            return self.session
        return session_at(self.session, self.leaf)

    @property
    def is_on_path(self) -> bool:
        """Whether this position is on the path to the session's leaf."""
        session, leaf = self.session, self.leaf
        return leaf is None or (leaf.seq <= session.leaf.seq and read(session).leaf_at(leaf.seq) == leaf)

    def move_leaf(self, summary: str | None = None) -> Cut:
        """Move the session's leaf here: back along the path, or to another branch."""
        assert self.leaf is not None
        if self.is_on_path:
            return self.session.rewind(self.leaf.seq, summary=summary)
        if summary is not None:
            raise CommandError(
                "--summary only applies when rewinding on the same branch; omit it to switch branches"
            )
        return Cut(self.session.checkout(self.leaf).seq, self.leaf.seq)


def resolve(location: StoreLocation, reference: str, *, trashed: bool = False) -> Position:
    """Resolve a reference to a session of this store or of a bundle file. A whole id names a session in the trash, too."""
    name, branch, seq = _split_reference(reference)
    bundle, _ = bundle_file(location, reference, trashed=trashed)
    if bundle is not None:
        store = location.open_memory()
        session = store.session(store.import_bundle(bundle).session_id)
    else:
        store = location.open()
        if seq is not None and _is_name(store, name, reference, trashed=trashed):
            name, branch, seq = reference, None, None
        session = store.session(_session_id(store, name, trashed=trashed))
    if seq is None:
        return Position(session, None, bundle)
    if branch is not None:
        return Position(session, _leaf_on_branch(session, name, branch, seq), bundle)
    try:
        return Position(session, read(session).leaf_at(seq), bundle)
    except InvalidPosition as error:
        quoted = shlex.quote(name or "latest")
        raise CommandError(f"{error.problem}; oakleaf log {quoted} lists them") from None


def resolve_stored(location: StoreLocation, reference: str, *, trashed: bool = False) -> Position:
    """Resolve a reference for a command that writes: a bundle file is refused, since the change would be lost, and so is a
    session in the trash."""
    bundle, _ = bundle_file(location, reference, trashed=trashed)
    if bundle is not None:
        raise CommandError(
            f"{reference} is a bundle file; import it first: oakleaf import {shlex.quote(str(bundle))}"
        )
    position = resolve(location, reference, trashed=trashed)
    if not trashed and position.session.row.trashed_at is not None:
        raise SessionTrashed(position.session.session_id)
    return position


def resolve_session(location: StoreLocation, reference: str) -> Session:
    """Resolve a reference for a command that takes whole sessions: `@7` is refused."""
    return _whole(resolve(location, reference), reference)


def resolve_stored_session(location: StoreLocation, reference: str, *, trashed: bool = False) -> Session:
    """Resolve a reference to a whole session of this store."""
    return _whole(resolve_stored(location, reference, trashed=trashed), reference)


def _whole(position: Position, reference: str) -> Session:
    if position.leaf is not None:
        name, quoted = _split_reference(reference)[0] or "latest", shlex.quote(reference)
        raise CommandError(
            f"{reference} names an entry, but this command takes a whole session; use {name}. "
            f"oakleaf rewind {quoted} moves the session back to that entry, oakleaf fork {quoted} starts a new session there"
        )
    return position.session


def _split_reference(reference: str) -> tuple[str, int | None, int | None]:
    """Return the name, branch and entry number."""
    match = _AT.match(reference)
    if match is None:
        return reference, None, None
    return match["name"], int(match["branch"]) if match["branch"] else None, int(match["seq"])


def bundle_file(
    location: StoreLocation, reference: str, *, trashed: bool = False
) -> tuple[Path | None, int | None]:
    """Return the bundle file a reference names, if any, and the entry number. A bare word names a session first."""
    if not reference:
        raise CommandError("the reference is empty; use latest, or an id from oakleaf ls")
    name, _, seq = _split_reference(reference)
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
    return location.exists and _match(location.open(), name, trashed=trashed) is not None


def _leaf_on_branch(session: Session, name: str, branch: int, seq: int) -> Leaf:
    owner = next((one for one in session.branches() if one.branch == branch), None)
    if owner is not None and owner.parent_seq < seq <= owner.tail:
        return Leaf(branch, seq)
    holds = "this session has no such branch"
    if owner is not None:
        holds = f"branch {branch} has entries {owner.parent_seq + 1} to {owner.tail}"
    raise CommandError(
        f"there is no entry {branch}:{seq}: {holds}; oakleaf log {shlex.quote(name or 'latest')} --all lists all entries"
    )


def _session_id(store: Store, name: str, *, trashed: bool) -> str:
    check_utf8(name, "the reference")
    if name in NEWEST:
        rows = store.sessions(include_children=False, trashed=trashed, limit=1).sessions
        if not rows and trashed:
            raise CommandError("the trash is empty; oakleaf rm REFERENCE moves a session there")
        if not rows:
            raise CommandError("there is no session yet; oakleaf chat starts one")
        return rows[0].session_id
    match = _match(store, name, trashed=trashed)
    if match is None and trashed:
        hint = "oakleaf ls --trashed lists those that are there"
        if (active := _match(store, name, trashed=False)) is not None:
            hint = f"oakleaf rm {active} moves it there"
        raise CommandError(f"there is no session {name!r} in the trash; {hint}")
    if match is None:
        raise NotFound(name)
    return match


def _is_name(store: Store, name: str, reference: str, *, trashed: bool) -> bool:
    """Return whether `reference`, which ends in @7, is a whole name, and `name` at most the beginning of one."""

    def is_id(text: str) -> bool:
        rows = store.sessions(conversation_id=text, trashed=trashed, limit=1).sessions
        return bool(rows or _with_id(store, text, trashed=trashed))

    if name in NEWEST:
        return False
    if is_id(reference):
        return not is_id(name)
    # Titles have no index: they are looked for only if `name` is nothing else.
    return _match(store, name, trashed=trashed) is None and bool(
        _with_title(store, reference, trashed=trashed)
    )


def _match(store: Store, name: str, *, trashed: bool) -> str | None:
    """Return the id of the session with this id, prefix, title or conversation; refuse an ambiguous name."""
    for rows in _matches(store, name, trashed=trashed):
        if len(rows) == 1:
            return rows[0].session_id
        if rows:
            raise CommandError(f"{name!r} is ambiguous; type more of the id:\n{_candidates(store, rows)}")
    return None


def _matches(store: Store, name: str, *, trashed: bool) -> Iterator[list[SessionRow]]:
    """Yield the sessions that each kind of name finds."""

    def listed(**query: Any) -> list[SessionRow]:
        return store.sessions(trashed=trashed, order="created", limit=_LISTED, **query).sessions

    yield _with_id(store, name, trashed=trashed) or listed(id_prefix=name)
    # A conversation is its newest session, as for `Store.latest`. Here, because threads are often called 1, 2, 3.
    yield listed(conversation_id=name, include_children=False)[:1]
    yield _with_id(store, f"ses_{name}", trashed=trashed) or listed(id_prefix=f"ses_{name}")
    yield _with_title(store, name, trashed=trashed) or listed(title=name)
    if not trashed:
        yield _with_id(store, name, trashed=True)


def _with_id(store: Store, session_id: str, *, trashed: bool) -> list[SessionRow]:
    """Return the session with exactly this id, however many ids begin with it."""
    try:
        row = read_store(store).find_session(session_id)
    except OakleafError:  # no id at all
        return []
    return [row] if row is not None and (row.trashed_at is not None) == trashed else []


def _with_title(store: Store, title: str, *, trashed: bool) -> list[SessionRow]:
    """Return sessions with this title; those that others were forked from alone, if there are any: forks have it too."""
    rows = store.all_sessions(title=title, include_children=False, trashed=trashed)
    first: list[SessionRow] = []
    for row in rows:
        if row.relation is None:
            return [row, *islice((one for one in rows if one.relation is None), _LISTED - 1)]
        first = [*first, row][:_LISTED]
    return first


def is_title(store: Store, text: str) -> bool:
    """Return whether a session has this text as its whole title."""
    return bool(_with_title(store, text, trashed=False))


def _candidates(store: Store, rows: list[SessionRow]) -> str:
    names = store.headings(rows[: _LISTED - 1])
    lines = [f"  {session_id}  {clip(name, 60)}" for session_id, name in names.items()]
    return "\n".join([*lines, *(["  …"] if len(rows) >= _LISTED else [])])


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
    """Return the sessions to offer: the newest, and behind them older ones whose id begins like this."""
    rows = list(store.sessions(trashed=trashed, limit=200).sessions)
    if incomplete:
        known = {row.session_id for row in rows}
        older = store.sessions(trashed=trashed, id_prefix=incomplete, order="created", limit=200).sessions
        rows += [row for row in older if row.session_id not in known]
    return rows


reference = click.argument("reference", default="latest", shell_complete=complete)
required_reference = click.argument("reference", shell_complete=complete)
