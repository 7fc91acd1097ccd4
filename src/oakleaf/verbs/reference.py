"""References: how a person, a request or a model names a session, and optionally an entry of it.

`ses_3f…`, a unique prefix with or without `ses_`, `latest`, a title or the first input that `oakleaf ls` shows, or a conversation id (a framework's thread). `@7` names
its entry 7, `@3:7` entry 7 of branch 3, whatever the session's leaf. Knows no files: the command line finds bundles itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.tree import Leaf
from oakleaf.errors import (
    InvalidArgument,
    InvalidPosition,
    InvalidReference,
    NotFound,
    OakleafError,
    SessionTrashed,
    StaleLeaf,
)
from oakleaf.ext import read, read_store, session_at
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionRow
from oakleaf.verbs.screen import clip

NEWEST = ("latest", "@", "")
"""Names of the newest session; the empty one is the name in `@7`."""
_SHOWN = 200
"""How many of the newest sessions are found by their first input, which no index has."""
_LISTED = 6
"""How many candidates of an ambiguous name are read: one more than are shown."""
_POSITION = re.compile(r"(\d{1,18}):(\d{1,18})$", re.ASCII)
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


def resolve(store: Store, reference: str, *, trashed: bool = False) -> Position:
    """Resolve a reference to a session of the store. A whole id names a session in the trash, too."""
    if not reference:
        raise InvalidReference("the reference is empty", "use latest, or an id from oakleaf ls")
    name, branch, seq = split(reference)
    if seq is not None and _is_name(store, name, reference, trashed=trashed):
        name, branch, seq = reference, None, None
    return position(store.session(_session_id(store, name, trashed=trashed)), name, branch, seq)


def position(
    session: Session, name: str, branch: int | None, seq: int | None, bundle: Path | None = None
) -> Position:
    """Return the position of an entry of a session; raise InvalidReference if the session has no such entry."""
    if seq is None:
        return Position(session, None, bundle)
    if branch is not None:
        return Position(session, _leaf_on_branch(session, name, branch, seq), bundle)
    try:
        return Position(session, read(session).leaf_at(seq), bundle)
    except InvalidPosition as error:
        raise InvalidReference(
            error.problem, f"oakleaf log {shlex.quote(name or 'latest')} lists them"
        ) from None


def stored(position: Position, *, trashed: bool = False) -> Position:
    """Return a position for a change; refuse a session in the trash, unless the trash was meant."""
    if not trashed and position.session.row.trashed_at is not None:
        raise SessionTrashed(position.session.session_id)
    return position


def after_turn(position: Position, field: str, number: int | None) -> Position:
    """Return the position of the last entry of a turn, which people number from 1; without a number the position given."""
    if number is None:
        return position
    if position.leaf is not None:
        raise InvalidArgument(
            field, number, f"no entry beside it, and the reference names entry {position.seq}"
        )
    reader = read(position.session)
    first = reader.turn_seq(number)
    later = (seq for seq in reader.inputs() if seq > first)
    return replace(position, leaf=reader.leaf_at(next(later, reader.leaf.seq + 1) - 1))


def at_leaf(session: Session, expected: str | None, key: str | None) -> Session:
    """Return the session; raise StaleLeaf if its leaf is not the expected one, unless the change under the key is made."""
    if expected is None or str(session.leaf) == expected:
        return session
    match = _POSITION.match(expected)
    if match is None:
        raise InvalidArgument("leaf", expected, "a position, such as 1:7")
    if read(session).find_change(key) is None:
        raise StaleLeaf(session.session_id, Leaf(*map(int, match.groups())), session.leaf)
    return session


def whole(position: Position, reference: str) -> Session:
    """Return the session; refuse `@7` where a whole session is meant."""
    if position.leaf is not None:
        name, quoted = split(reference)[0] or "latest", shlex.quote(reference)
        raise InvalidReference(
            f"{reference} names an entry, and a whole session is meant",
            f"use {name}. oakleaf rewind {quoted} moves the session back to that entry, oakleaf fork {quoted} "
            "starts a new session there",
        )
    return position.session


def split(reference: str) -> tuple[str, int | None, int | None]:
    """Return the name, branch and entry number."""
    match = _AT.match(reference)
    if match is None:
        return reference, None, None
    return match["name"], int(match["branch"]) if match["branch"] else None, int(match["seq"])


def is_session_name(store: Store, name: str, *, trashed: bool = False) -> bool:
    """Return whether a session has this name."""
    return name in NEWEST or _match(store, name, trashed=trashed) is not None


def _leaf_on_branch(session: Session, name: str, branch: int, seq: int) -> Leaf:
    owner = next((one for one in session.branches() if one.branch == branch), None)
    if owner is not None and owner.parent_seq < seq <= owner.tail:
        return Leaf(branch, seq)
    holds = "this session has no such branch"
    if owner is not None:
        holds = f"branch {branch} has entries {owner.parent_seq + 1} to {owner.tail}"
    raise InvalidReference(
        f"there is no entry {branch}:{seq}: {holds}",
        f"oakleaf log {shlex.quote(name or 'latest')} --all lists all entries",
    )


def _session_id(store: Store, name: str, *, trashed: bool) -> str:
    _check_text(name)
    if name in NEWEST:
        rows = store.sessions(include_children=False, trashed=trashed, limit=1).sessions
        if not rows and trashed:
            raise InvalidReference("the trash is empty", "oakleaf rm REFERENCE moves a session there")
        if not rows:
            raise InvalidReference("there is no session yet", "oakleaf chat starts one")
        return rows[0].session_id
    match = _match(store, name, trashed=trashed)
    if match is None and trashed:
        hint = "oakleaf ls is:trashed lists those that are there"
        if (active := _match(store, name, trashed=False)) is not None:
            hint = f"oakleaf rm {active} moves it there"
        raise InvalidReference(f"there is no session {name!r} in the trash", hint)
    if match is None:
        _refuse_entry(store, name)
        raise NotFound(name)
    return match


def _refuse_entry(store: Store, name: str) -> None:
    """Raise if `name` is that of a session, with what is no number of an entry behind the @."""
    session, at, entry = name.rpartition("@")
    if at and (session in NEWEST or _match(store, session, trashed=False) is not None):
        of = shlex.quote(session or "latest")
        raise InvalidReference(
            f"{entry!r} is not the number of an entry",
            f"{session}@7 names entry 7; oakleaf log {of} lists them",
        )


def _check_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidReference(
            "the reference is not UTF-8 text", "check your terminal's locale, or the file it comes from"
        ) from None


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
            raise InvalidReference(
                f"{name!r} is ambiguous", f"type more of the id:\n{_candidates(store, rows)}"
            )
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
    yield _with_heading(store, name, trashed=trashed)
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


def _with_heading(store: Store, name: str, *, trashed: bool) -> list[SessionRow]:
    """Return the sessions that `oakleaf ls` shows under this name, which it may have cut: a first input."""
    rows = store.sessions(trashed=trashed, include_children=False, limit=_SHOWN).sessions
    shown, start = store.headings(rows), name[:-1] if len(name) > 1 and name.endswith("…") else None
    same = [
        row
        for row in rows
        if (heading := shown[row.session_id]) == name or (start is not None and heading.startswith(start))
    ]
    return ([row for row in same if row.relation is None] or same)[:_LISTED]


def is_title(store: Store, text: str) -> bool:
    """Return whether a session has this text as its whole title."""
    return bool(_with_title(store, text, trashed=False))


def _candidates(store: Store, rows: list[SessionRow]) -> str:
    names = store.headings(rows[: _LISTED - 1])
    lines = [f"  {session_id}  {clip(name, 60)}" for session_id, name in names.items()]
    return "\n".join([*lines, *(["  …"] if len(rows) >= _LISTED else [])])
