"""A whole session on its way between stores: what is dumped, and what is done with it on both sides.

Knows how a session is told without its store: branches are numbered 1, 2, 3 … in the order they grew, the
lease is left out, a session that was running is interrupted. So equal sessions make equal dumps, whatever
store they lie in. Does not know files, formats or SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core.codec import decode
from ..core.media import MEDIA_MARK
from ..core.messages import Message
from ..core.tree import Branch, Leaf, reachable_seqs
from ..core.usage import Call
from ..errors import IdConflict, NotFound, StoreDamaged
from .base import Fact, QueuedInput, SessionDetail, SessionRow, StoredEntry
from .message_limits import MessageLimit

_REFERENCE = b"bough-blob:"
_REFERENCES = re.compile(rb'bough-blob:([0-9a-f]{64});([^;"\\]+);')
PLAIN_BYTES = "application/octet-stream"
PIECE_BYTES = 192 * 1024
"""Bytes of a blob that are handed on at once; 256 kB as base64."""


class SessionExport(Struct, frozen=True, kw_only=True):
    """One session. What streams is read once, in the order of the fields."""

    row: SessionRow
    """Its leaf is told by the numbers of this dump; of its space nothing is told."""
    detail: SessionDetail
    branches: tuple[Branch, ...]
    """First those it stands on (`session_id` None, `tail` as far as it stands on them), then its own."""
    inherited_calls: tuple[Call, ...]
    """The calls that the entries it stands on cost."""
    inherited_limits: tuple[MessageLimit, ...] = ()
    """How much the calls of turns that it stands on were given."""
    entries: Iterable[StoredEntry]
    calls: Iterable[Call]
    facts: Iterable[Fact]
    inbox: Iterable[QueuedInput]
    inherited_hash: Callable[[], bytes]
    """A hash of all it stands on: equal hashes, equal entries, calls below and what they were given."""


class BlobStream(Struct, frozen=True):
    """A blob that need not be in memory at once."""

    hash: str
    mime: str
    size: int
    pieces: Iterable[bytes]


class SessionExports(Struct, frozen=True):
    """Sessions of one moment, and the blobs they name. The sessions are read first."""

    sessions: Iterable[SessionExport]
    blobs: Callable[[Mapping[str, str]], Iterable[BlobStream]]
    """Those of the named blobs (digest → mime) that are there, by digest."""


class ImportResult(Struct, frozen=True):
    added: tuple[str, ...]
    """The sessions written now."""
    known: tuple[str, ...]
    """Those that were there before, with the same content."""
    entries: int
    blobs: int
    missing: int
    """Blobs that are named and were neither brought nor there."""


# -- telling a session without its store -----------------------------------------------------------------


def renumber_branches(
    found: Sequence[Branch], session_id: str, where: str
) -> tuple[tuple[Branch, ...], dict[int, int]]:
    """The branches of a session by the numbers of a dump, and those numbers by the store's own."""
    by_number = {branch.branch: branch for branch in found}
    own = [branch for branch in found if branch.session_id == session_id]
    reach = reachable_seqs(by_number, [Leaf(branch.branch, branch.tail) for branch in own])
    numbers = {number: n for n, number in enumerate(sorted(by_number), 1)}
    try:
        branches = tuple(
            Branch(
                numbers[branch.branch],
                session_id if branch.session_id == session_id else None,
                None if branch.parent is None else numbers[branch.parent],
                branch.parent_seq,
                branch.tail if branch.session_id == session_id else reach[branch.branch],
            )
            for branch in sorted(found, key=lambda branch: branch.branch)
        )
    except KeyError as error:
        raise StoreDamaged(where, f"branch {error} of session {session_id} is missing") from None
    return branches, numbers


def portable_row(row: SessionRow, numbers: Mapping[int, int]) -> SessionRow:
    """The row as a dump tells it: no lease, and nobody runs it any more."""
    return replace(
        row,
        leaf=Leaf(numbers.get(row.leaf.branch, 0), row.leaf.seq),
        status="interrupted" if row.status == "running" else row.status,
        fence=0,
        holder=None,
        lease_until=None,
        tags=dict(sorted(row.tags.items())),
    )


def renumber_fact(fact: Fact, numbers: Mapping[int, int]) -> Fact:
    """The fact with its places by other numbers. Only the first fact of a change, which has its key, has a place."""
    data = fact.data
    if fact.key is not None and next(iter(data), None) == "branch":
        data = {**data, "branch": numbers[data["branch"]]}
    if fact.kind == "moved" and "from" in data:
        branch, seq = data["from"]
        data = {**data, "from": [numbers[branch], seq]}
    return fact if data is fact.data else Fact(fact.number, fact.kind, fact.key, data, fact.at)


def select_inherited_calls(
    calls: Iterable[Call], branches: Iterable[Branch], numbers: Mapping[int, int]
) -> list[Call]:
    """Of other sessions' calls those that belong to what is stood on, in an order that needs no store."""
    reach = {branch.branch: branch.tail for branch in branches if branch.session_id is None}
    found = []
    for call in calls:
        number = numbers.get(call.branch, 0)
        if _seq_of(call) <= reach.get(number, -1):
            found.append(replace(call, branch=number))
    return sorted(found, key=lambda call: (call.branch, _seq_of(call), call.at, call.call_id))


def _seq_of(call: Call) -> int:
    return call.after_seq if call.answer_seq is None else call.answer_seq


def hash_inherited(
    entries: Iterable[StoredEntry], below: Sequence[Call], given: Sequence[MessageLimit]
) -> bytes:
    """The hash behind `Dump.stands_on`; the entries are those of the branches it does not own."""
    found = sha256()
    for stored in entries:
        found.update(msgspec.msgpack.encode(_told(stored)))
    found.update(msgspec.msgpack.encode((below, given)))
    return found.digest()


def _told(stored: StoredEntry) -> StoredEntry:
    """An entry as far as it is compared: evidence is not, and blobs follow from the body."""
    return StoredEntry(stored.branch, replace(stored.entry, evidence=None, media=()))


# -- comparing and taking in -----------------------------------------------------------------------------


def is_same_session(here: SessionExport, coming: SessionExport) -> bool:
    """Whether two dumps tell the same session. Reads both to the end, or to the first difference."""
    row = replace(coming.row, space=here.row.space)
    if (here.row, here.detail, here.branches) != (row, coming.detail, coming.branches):
        return False
    pairs: list[tuple[Iterable[Any], Iterable[Any]]] = [
        (map(_told, here.entries), map(_told, coming.entries)),
        (here.calls, coming.calls),
        (map(msgspec.json.encode, here.facts), map(msgspec.json.encode, coming.facts)),
        (here.inbox, coming.inbox),
    ]
    return all(one == other for ours, theirs in pairs for one, other in zip_longest(ours, theirs))


def match_parent_branches(
    coming: SessionExport,
    parents: Sequence[Branch],
    hash_of: Callable[[tuple[Branch, ...], dict[int, int]], bytes],
) -> dict[int, int] | None:
    """Where in a parent's tree a session may hang: its numbers to the store's. None: nowhere is it the same.

    `parents` are the branches the parent owns or stands on; `hash_of` what a line of them holds.
    """
    line = [branch for branch in coming.branches if branch.session_id is None]
    by_number = {branch.branch: branch for branch in parents}
    for top in parents:
        found = _line(by_number, top)
        if len(found) != len(line) or top.tail < line[-1].tail:
            continue
        if [b.parent_seq for b in found] != [b.parent_seq for b in line]:
            continue
        numbers = {here.branch: there.branch for here, there in zip(found, line, strict=True)}
        if hash_of(tuple(line), numbers) == coming.inherited_hash():
            return {there: here for here, there in numbers.items()}
    return None


def _line(branches: Mapping[int, Branch], top: Branch) -> list[Branch]:
    found = [top]
    while found[-1].parent is not None and found[-1].parent < found[-1].branch:
        found.append(branches[found[-1].parent])
    return found[::-1]


def blob_references(kind: str, body: bytes) -> dict[str, str]:
    """The blobs an entry points to, each with the mime type it says: a function of its bytes."""
    found: dict[str, str] = {}
    if MEDIA_MARK not in body and _REFERENCE not in body:
        return found
    if MEDIA_MARK in body and kind == "message":
        payload = decode(kind, body)
        assert isinstance(payload, Message)
        found = {media.hash: media.mime for media in reversed(list(payload.media))}
    if _REFERENCE in body:
        for digest, mime in _REFERENCES.findall(body):
            found.setdefault(digest.decode(), mime.decode())
    return {
        digest: PLAIN_BYTES if "\0" in mime else mime for digest, mime in found.items() if "\0" not in digest
    }


class BlobReferences:
    """Notes, while entries go by, which blobs they name and where."""

    def __init__(self) -> None:
        self.mimes: dict[str, str] = {}
        self.places: list[tuple[int, int, str]] = []
        """(branch of the store, seq, digest), to be tied once the blobs are there."""

    def add(self, kind: str, body: bytes) -> dict[str, str]:
        found = blob_references(kind, body)
        for digest, mime in found.items():
            self.mimes.setdefault(digest, mime)
        return found

    def entries(self, entries: Iterable[StoredEntry], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        for stored in entries:
            for digest in self.add(stored.entry.kind, stored.entry.body):
                self.places.append((numbers[stored.branch], stored.entry.seq, digest))
            yield stored

    def inbox(self, inbox: Iterable[QueuedInput]) -> Iterator[QueuedInput]:
        for queued in inbox:
            self.add("message", queued.body)
            yield queued


def sessions_with_tasks(
    roots: Sequence[str], children: Callable[[str], Iterable[tuple[int, str]]]
) -> list[str]:
    """Sessions and their tasks, each before its own; siblings by (start, id), so that no store's order matters."""
    found: dict[str, None] = {}
    waiting = list(reversed(roots))
    while waiting:
        name = waiting.pop()
        if name not in found:  # a ring of parents is walked once
            found[name] = None
            waiting.extend(child for _, child in sorted(children(name), reverse=True))
    return list(found)


def refuse_different(
    coming: SessionExport,
    naming: BlobReferences,
    dumped: Callable[[str], tuple[SessionExport, Mapping[int, int]]],
) -> None:
    """`IdConflict` if what has its id here is another session, or another tenant's, of whom nothing is told."""
    name = coming.row.session_id
    try:
        here, numbers = dumped(name)
    except NotFound:
        raise IdConflict(name) from None
    own = {n: number for number, n in numbers.items()}
    told = replace(coming, entries=naming.entries(coming.entries, own), inbox=naming.inbox(coming.inbox))
    if not is_same_session(here, told):
        raise IdConflict(name)
