"""Whole sessions on their way between stores: the values that cross, and the steps that every store shares.

An export is independent of its store: branches are numbered 1, 2, 3 … in the order they grew, the lease is left
out, and a running session becomes interrupted. So equal sessions make equal exports in every store. Does not know
files, formats or SQL.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.codec import decode, to_json
from oakleaf.core.drafts import NewEntry
from oakleaf.core.entries import Settings
from oakleaf.core.facts import Moved, StoredFact, kind_of
from oakleaf.core.media import MEDIA_MARK
from oakleaf.core.messages import Message
from oakleaf.core.tool_definitions import MIME as TOOLS_MIME
from oakleaf.core.tree import Branch, Leaf, Range, reachable_seqs
from oakleaf.core.usage import Call
from oakleaf.errors import IdConflict, NotFound, StoreDamaged
from oakleaf.stores.values import QueuedInput, SessionDetail, SessionQuery, SessionRow, StoredEntry

if TYPE_CHECKING:
    from oakleaf.stores.base import StoreBackend

_REFERENCE = b"oakleaf-blob:"
_REFERENCES = re.compile(rb'oakleaf-blob:([0-9a-f]{64});([^;"\\]+);')
PLAIN_BYTES = "application/octet-stream"
PIECE_BYTES = 192 * 1024
"""Bytes of a blob per read; 256 kB as base64."""
MOVED = kind_of(Moved)
PAGE_ROWS = 500
"""Entries or facts per read."""


class SessionExport(Struct, frozen=True, kw_only=True):
    """A session as an export. The iterables stream: read each once, in the order of the fields."""

    row: SessionRow
    """The leaf uses the branch numbers of the export; the space is not part of the export."""
    detail: SessionDetail
    branches: tuple[Branch, ...]
    """First the inherited branches (`session_id` is None, `tail` is the last inherited seq), then the session's own."""
    inherited_calls: tuple[Call, ...]
    """The calls behind the inherited entries."""
    entries: Iterable[StoredEntry]
    calls: Iterable[Call]
    facts: Iterable[StoredFact]
    inbox: Iterable[QueuedInput]
    inherited_hash: Callable[[], bytes]
    """A hash over the inherited entries and calls."""


class BlobStream(Struct, frozen=True):
    """A blob whose bytes need not be in memory at once."""

    hash: str
    mime: str
    size: int
    pieces: Iterable[bytes]


class SessionExports(Struct, frozen=True):
    """Sessions of a snapshot, and their blobs. Read the sessions first."""

    sessions: Iterable[SessionExport]
    blobs: Callable[[Mapping[str, str]], Iterable[BlobStream]]
    """Return the present blobs among the named ones (digest → mime), by digest."""


class ImportResult(Struct, frozen=True):
    added: tuple[str, ...]
    """The sessions written now."""
    known: tuple[str, ...]
    """The sessions present before, with the same content."""
    entries: int
    blobs: int
    missing: int
    """Blobs in use, but neither imported nor present."""


# -- making a session independent of its store -----------------------------------------------------------


def renumber_branches(
    branches: Sequence[Branch], session_id: str, url: str
) -> tuple[tuple[Branch, ...], dict[int, int]]:
    """Return a session's branches in an export's numbers, and a map from the store's numbers to the export's."""
    by_number = {branch.branch: branch for branch in branches}
    own = [branch for branch in branches if branch.session_id == session_id]
    last_seqs = reachable_seqs(by_number, [Leaf(branch.branch, branch.tail) for branch in own])
    numbers = {own_number: number for number, own_number in enumerate(sorted(by_number), 1)}
    try:
        renumbered = tuple(
            Branch(
                numbers[branch.branch],
                session_id if branch.session_id == session_id else None,
                None if branch.parent is None else numbers[branch.parent],
                branch.parent_seq,
                branch.tail if branch.session_id == session_id else last_seqs[branch.branch],
            )
            for branch in sorted(branches, key=lambda branch: branch.branch)
        )
    except KeyError as error:
        raise StoreDamaged(url, f"branch {error} of session {session_id} is missing") from None
    return renumbered, numbers


def portable_row(row: SessionRow, numbers: Mapping[int, int]) -> SessionRow:
    """Return the row for an export: without a lease, and not running."""
    return replace(
        row,
        leaf=Leaf(numbers.get(row.leaf.branch, 0), row.leaf.seq),
        status="interrupted" if row.status == "running" else row.status,
        fence=0,
        holder=None,
        lease_until=None,
        tags=dict(sorted(row.tags.items())),
    )


def renumber_fact(fact: StoredFact, numbers: Mapping[int, int]) -> StoredFact:
    """Return the fact with other branch numbers, and with all fields of a newer format."""
    if fact.leaf is not None:
        fact = replace(fact, leaf=Leaf(numbers[fact.leaf.branch], fact.leaf.seq))
    if fact.kind == MOVED:
        values = fact.data
        branch, seq = values["from"]
        fact = replace(fact, body=to_json({**values, "from": [numbers[branch], seq]}, "a fact"))
    return fact


def select_inherited_calls(
    calls: Iterable[Call], branches: Iterable[Branch], numbers: Mapping[int, int]
) -> list[Call]:
    """Return the calls of inherited entries among other sessions' calls, in an order independent of the store."""
    last_seqs = {branch.branch: branch.tail for branch in branches if branch.session_id is None}
    inherited = []
    for call in calls:
        number = numbers.get(call.branch, 0)
        if call.seq <= last_seqs.get(number, -1):
            inherited.append(replace(call, branch=number))
    return sorted(inherited, key=lambda call: (call.branch, call.seq, call.at, call.call_id))


def _renumber_calls(calls: Iterable[Call], numbers: Mapping[int, int]) -> Iterator[Call]:
    return (replace(call, branch=numbers[call.branch]) for call in calls)


def hash_inherited(entries: Iterable[StoredEntry], calls: Sequence[Call]) -> bytes:
    """Return the hash behind `SessionExport.inherited_hash`; `entries` are the entries of inherited branches."""
    digest = sha256()
    for stored in entries:
        digest.update(msgspec.msgpack.encode(_comparable(stored)))
    digest.update(msgspec.msgpack.encode(calls))
    return digest.digest()


def _comparable(stored: StoredEntry) -> StoredEntry:
    """Leave out of an entry the parts not compared: evidence, and the blobs, which follow from the body."""
    return StoredEntry(stored.branch, replace(stored.entry, evidence=None, media=()))


def _comparable_fact(fact: StoredFact) -> tuple[StoredFact, Any]:
    return replace(fact, body=b""), fact.data


def _comparable_input(queued: QueuedInput) -> QueuedInput:
    return replace(queued, is_imported=False)


# -- comparing -------------------------------------------------------------------------------------------


def is_same_session(present: SessionExport, incoming: SessionExport) -> bool:
    """Whether two exports hold the same session. Reads both to the end, or to the first difference."""
    row = replace(incoming.row, space=present.row.space, imported_facts=present.row.imported_facts)
    if (present.row, present.detail, present.branches) != (row, incoming.detail, incoming.branches):
        return False
    pairs: list[tuple[Iterable[Any], Iterable[Any]]] = [
        (map(_comparable, present.entries), map(_comparable, incoming.entries)),
        (present.calls, incoming.calls),
        (map(_comparable_fact, present.facts), map(_comparable_fact, incoming.facts)),
        (map(_comparable_input, present.inbox), map(_comparable_input, incoming.inbox)),
    ]
    return all(one == other for ours, theirs in pairs for one, other in zip_longest(ours, theirs))


def _line(branches: Mapping[int, Branch], top: Branch) -> list[Branch]:
    """Return the ancestors of a branch, root first, then the branch."""
    line = [top]
    while line[-1].parent is not None and line[-1].parent < line[-1].branch:
        line.append(branches[line[-1].parent])
    return line[::-1]


def sessions_with_tasks(roots: Sequence[str], tasks: Callable[[str], Iterable[tuple[int, str]]]) -> list[str]:
    """Return sessions and their tasks, parents first; siblings by (start, id), independent of the store's order."""
    session_ids: dict[str, None] = {}
    waiting = list(reversed(roots))
    while waiting:
        session_id = waiting.pop()
        if session_id not in session_ids:  # a cycle of parents is walked once
            session_ids[session_id] = None
            waiting.extend(task for _, task in sorted(tasks(session_id), reverse=True))
    return list(session_ids)


# -- blobs -----------------------------------------------------------------------------------------------


def blob_references(kind: str, body: bytes) -> dict[str, str]:
    """Return the blobs referred to by an entry, each with the stated mime type: a pure function of the bytes."""
    mimes: dict[str, str] = {}
    if kind == "settings":
        settings = decode(kind, body)
        assert isinstance(settings, Settings)
        tools = settings.tool_definitions
        return {} if tools is None or "\0" in tools.hash else {tools.hash: TOOLS_MIME}
    if MEDIA_MARK not in body and _REFERENCE not in body:
        return mimes
    if MEDIA_MARK in body and kind == "message":
        payload = decode(kind, body)
        assert isinstance(payload, Message)
        mimes = {media.hash: media.mime for media in reversed(list(payload.media))}
    if _REFERENCE in body:
        for digest, mime in _REFERENCES.findall(body):
            mimes.setdefault(digest.decode(), mime.decode())
    return {
        digest: PLAIN_BYTES if "\0" in mime else mime for digest, mime in mimes.items() if "\0" not in digest
    }


class BlobReferences:
    """Collects the blobs, and the places of their use, while entries stream by."""

    def __init__(self) -> None:
        self.mimes: dict[str, str] = {}
        self.definitions: set[str] = set()
        """The blobs with definitions of tools: a bundle holds the definitions even without media."""
        self.places: list[tuple[int, int, str]] = []
        """(branch of the store, seq, digest), to be linked once the blobs are present."""

    def add(self, kind: str, body: bytes) -> dict[str, str]:
        mimes = blob_references(kind, body)
        for digest, mime in mimes.items():
            self.mimes.setdefault(digest, mime)
        if kind == "settings":
            self.definitions.update(mimes)
        return mimes

    def entries(self, entries: Iterable[StoredEntry], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        for stored in entries:
            for digest in self.add(stored.entry.kind, stored.entry.body):
                self.places.append((numbers[stored.branch], stored.entry.seq, digest))
            yield stored

    def inbox(self, inbox: Iterable[QueuedInput]) -> Iterator[QueuedInput]:
        for queued in inbox:
            self.add("message", queued.body)
            yield queued


# -- reading whole sessions out of a store ---------------------------------------------------------------


class SessionExporter(ABC):
    """Reads whole sessions of a store. A `key` names a session within its store; each exporter has its own type of key."""

    def __init__(self, space: str, owner: str | None, url: str) -> None:
        self.space, self.owner, self.url = space, owner, url

    @abstractmethod
    def find(self, session_id: str) -> tuple[Any, SessionRow]:
        """Return the session's key and row; `NotFound` if the session is absent or another tenant's."""

    @abstractmethod
    def detail(self, key: Any) -> SessionDetail: ...

    @abstractmethod
    def branch_tree(self, session_id: str, key: Any) -> list[Branch]:
        """Return the session's own branches and the ancestors."""

    @abstractmethod
    def tasks(self, session_id: str) -> Iterable[tuple[int, str]]:
        """Return start time and id of each task of a session."""

    @abstractmethod
    def calls(self, key: Any) -> Iterable[Call]: ...

    @abstractmethod
    def facts(self, key: Any) -> Iterable[StoredFact]: ...

    @abstractmethod
    def inbox(self, key: Any) -> Iterable[QueuedInput]: ...

    @abstractmethod
    def blob(self, digest: str) -> tuple[int, Iterable[bytes]] | None:
        """Return the size of a blob and the bytes in pieces."""

    @abstractmethod
    def _entries(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        """Return the entries of branches of an export; `numbers` are theirs by the store's own."""

    @abstractmethod
    def _inherited_calls(self, branches: Sequence[Branch], numbers: Mapping[int, int]) -> tuple[Call, ...]:
        """Return the calls behind the entries of inherited branches."""

    def export_all(self, session_ids: Sequence[str], *, children: bool) -> SessionExports:
        for session_id in session_ids:
            self.find(session_id)
        names = sessions_with_tasks(session_ids, self.tasks) if children else session_ids
        return SessionExports((self.export(name)[0] for name in names), self.blobs)

    def export(self, session_id: str) -> tuple[SessionExport, dict[int, int]]:
        """Return the session, and the export's branch numbers by the store's own."""
        key, row = self.find(session_id)
        branches, numbers = renumber_branches(self.branch_tree(session_id, key), session_id, self.url)
        inherited = [branch for branch in branches if branch.session_id is None]
        calls = self._inherited_calls(inherited, numbers)
        export = SessionExport(
            row=portable_row(row, numbers),
            detail=self.detail(key),
            branches=branches,
            inherited_calls=calls,
            entries=self._entries(branches, numbers),
            calls=self._calls(key, numbers),
            facts=self._facts(key, numbers),
            inbox=self.inbox(key),
            inherited_hash=lambda: hash_inherited(self._entries(inherited, numbers), calls),
        )
        return export, numbers

    def hash_branches(self, branches: Sequence[Branch], numbers: Mapping[int, int]) -> bytes:
        """Return the hash of the content of branches, in an export's numbers."""
        return hash_inherited(self._entries(branches, numbers), self._inherited_calls(branches, numbers))

    def blobs(self, mimes: Mapping[str, str]) -> Iterator[BlobStream]:
        for digest in sorted(mimes):
            blob = self.blob(digest)
            if blob is not None:
                yield BlobStream(digest, mimes[digest], *blob)

    def _calls(self, key: Any, numbers: Mapping[int, int]) -> Iterator[Call]:
        for call in self.calls(key):
            if call.branch not in numbers:
                why = f"call {call.call_id} was made on branch {call.branch}, which is missing"
                raise StoreDamaged(self.url, why)
            yield replace(call, branch=numbers[call.branch])

    def _facts(self, key: Any, numbers: Mapping[int, int]) -> Iterator[StoredFact]:
        for fact in self.facts(key):
            try:
                yield renumber_fact(fact, numbers)
            except (KeyError, TypeError, ValueError) as error:
                why = f"fact {fact.number} names a branch that is missing ({error})"
                raise StoreDamaged(self.url, why) from None


class SessionSnapshot(Struct, frozen=True):
    """The changeable part of a session, at a moment."""

    row: SessionRow
    detail: SessionDetail
    branches: list[Branch]
    calls: list[Call]
    inbox: list[QueuedInput]


class StoreExporter(SessionExporter):
    """Reads whole sessions by the methods of any store. A session's key is its snapshot.

    Nothing is locked meanwhile. Entries and facts never change, so a later read finds the snapshot's entries and facts.
    """

    def __init__(self, store: StoreBackend) -> None:
        super().__init__(store.space, store.owner, store.url)
        self.store = store
        self._heirs: dict[int, str] = {}
        """By branch: the last owner or heir that was read."""

    def find(self, session_id: str) -> tuple[SessionSnapshot, SessionRow]:
        store = self.store
        while True:
            row, detail = store.session_with_detail(session_id)
            rest = store.branches(session_id), store.calls(session_id), store.inbox(session_id)
            if store.session(session_id).facts == row.facts:  # every change adds a fact
                return SessionSnapshot(row, detail, *rest), row

    def detail(self, key: SessionSnapshot) -> SessionDetail:
        return key.detail

    def branch_tree(self, session_id: str, key: SessionSnapshot) -> list[Branch]:
        self._heirs |= dict.fromkeys((branch.branch for branch in key.branches), session_id)
        return key.branches

    def tasks(self, session_id: str) -> Iterator[tuple[int, str]]:
        for trashed in (False, True):
            query = SessionQuery(parent_session=session_id, relation="task", trashed=trashed)
            yield from ((row.started_at, row.session_id) for row in self.store.all_sessions(query))

    def calls(self, key: SessionSnapshot) -> list[Call]:
        return key.calls

    def facts(self, key: SessionSnapshot) -> Iterator[StoredFact]:
        for after in range(0, key.row.facts, PAGE_ROWS):
            limit = min(PAGE_ROWS, key.row.facts - after)
            yield from self.store.journal(key.row.session_id, after, limit)

    def inbox(self, key: SessionSnapshot) -> list[QueuedInput]:
        return key.inbox

    def blob(self, digest: str) -> tuple[int, Iterable[bytes]] | None:
        blob = self.store.blob(digest)
        return None if blob is None else (len(blob.data), (blob.data,))

    def _entries(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        own_numbers = {number: own for own, number in numbers.items()}
        heirs = {branch.branch: self._heirs[own_numbers[branch.branch]] for branch in branches}

        def read(branch: Branch, first: int) -> list[StoredEntry]:
            part = Range(own_numbers[branch.branch], first, min(branch.tail, first + PAGE_ROWS - 1))
            return self.store.entries(heirs[branch.branch], part)

        return (
            StoredEntry(branch.branch, replace(stored.entry, media=()))
            for branch in branches
            for first in range(branch.parent_seq + 1, branch.tail + 1, PAGE_ROWS)
            for stored in read(branch, first)
        )

    def _inherited_calls(self, branches: Sequence[Branch], numbers: Mapping[int, int]) -> tuple[Call, ...]:
        if not branches:
            return ()
        own_numbers = {number: own for own, number in numbers.items()}
        heir = self._heirs[own_numbers[branches[0].branch]]  # of all of them: they are one tree
        calls = (*self.store.inherited_calls(heir), *self.store.calls(heir))
        return tuple(select_inherited_calls(calls, branches, numbers))


# -- writing whole sessions into a store -----------------------------------------------------------------


class SessionImporter(ABC):
    """Writes whole sessions in a single transaction of a store, under the store's own numbers.

    A session present with the same content is left alone. A session whose id holds other content is refused, with the
    whole import. A fork is attached to a parent that is present with the inherited content; else the inherited
    content is written as branches without an owner, as after a purge.
    """

    def __init__(self, exporter: SessionExporter) -> None:
        self.exporter, self.space, self.owner = exporter, exporter.space, exporter.owner
        self.references = BlobReferences()
        self.added: list[str] = []
        self.known: list[str] = []
        self.entries = 0

    @abstractmethod
    def has_session(self, session_id: str) -> bool:
        """Whether any tenant has a session of the id."""

    @abstractmethod
    def insert_session(self, row: SessionRow, detail: SessionDetail) -> Any:
        """Insert a session, for `set_leaf` to complete; return the key."""

    @abstractmethod
    def reserve_key(self) -> Any:
        """Return a key that no session has or will have."""

    @abstractmethod
    def insert_branch(self, key: Any, parent: Leaf | None) -> int: ...

    @abstractmethod
    def set_leaf(self, key: Any, leaf: Leaf) -> None: ...

    @abstractmethod
    def insert_entries(self, entries: Iterator[tuple[int, NewEntry]], owner: str | None) -> None:
        """Insert entries, each with its branch and without blobs; `link_blobs` adds the blobs."""

    @abstractmethod
    def insert_calls(self, key: Any, calls: Iterable[Call], owner: str | None) -> None: ...

    @abstractmethod
    def insert_facts(self, key: Any, facts: Iterable[StoredFact], owner: str | None) -> None: ...

    @abstractmethod
    def insert_inbox(self, key: Any, inputs: Iterable[QueuedInput], owner: str | None) -> None: ...

    @abstractmethod
    def has_blob(self, digest: str) -> bool: ...

    @abstractmethod
    def insert_blob(self, blob: BlobStream, at: int) -> None: ...

    @abstractmethod
    def link_blobs(self, places: Iterable[tuple[int, int, str]]) -> None:
        """Note for (branch, seq, digest) that the entry uses the blob, if the blob is present."""

    def import_all(self, exports: SessionExports, at: int) -> ImportResult:
        for export in exports.sessions:
            owner = export.row.owner if self.owner is None else self.owner
            self._import(replace(export, row=replace(export.row, space=self.space, owner=owner)))
        blobs = 0
        for blob in exports.blobs(self.references.mimes):
            if not self.has_blob(blob.hash):
                self.insert_blob(blob, at)
                blobs += 1
        self.link_blobs(self.references.places)
        missing = sum(not self.has_blob(digest) for digest in self.references.mimes)
        return ImportResult(tuple(self.added), tuple(self.known), self.entries, blobs, missing)

    def _import(self, export: SessionExport) -> None:
        session_id = export.row.session_id
        if self.has_session(session_id):
            self._refuse_different(export)
            self.known.append(session_id)
        else:
            self.write(export)
            self.added.append(session_id)

    def _refuse_different(self, incoming: SessionExport) -> None:
        """`IdConflict` if the id holds another session here, or another tenant's: nothing of a tenant may be revealed."""
        session_id = incoming.row.session_id
        try:
            present, numbers = self.exporter.export(session_id)
        except NotFound:
            raise IdConflict(session_id) from None
        own_numbers = {number: own for own, number in numbers.items()}
        entries = self.references.entries(incoming.entries, own_numbers)
        inbox = self.references.inbox(incoming.inbox)
        if not is_same_session(present, replace(incoming, entries=entries, inbox=inbox)):
            raise IdConflict(session_id)

    def write(self, export: SessionExport) -> None:
        owner, numbers = export.row.owner, self._parent_branches(export)
        shared = set(numbers)
        if not shared:
            self._write_inherited(export, numbers)
        key = self.insert_session(export.row, export.detail)
        self._write_branches(key, [b for b in export.branches if b.session_id is not None], numbers)
        self.set_leaf(key, Leaf(numbers[export.row.leaf.branch], export.row.leaf.seq))
        self.insert_entries(self._new_entries(export.entries, numbers, shared), owner)
        self.insert_calls(key, _renumber_calls(export.calls, numbers), owner)
        self.insert_facts(key, (renumber_fact(fact, numbers) for fact in export.facts), owner)
        self.insert_inbox(key, self.references.inbox(export.inbox), owner)

    def _parent_branches(self, export: SessionExport) -> dict[int, int]:
        """Return the parent's branches with the content of the inherited branches, by the export's numbers; else empty."""
        parent = export.row.parent_session
        inherited = [branch for branch in export.branches if branch.session_id is None]
        if parent is None or not inherited:
            return {}
        try:
            key, _ = self.exporter.find(parent)
        except NotFound:
            return {}
        branches = {branch.branch: branch for branch in self.exporter.branch_tree(parent, key)}
        for top in branches.values():
            line = _line(branches, top)
            if len(line) != len(inherited) or top.tail < inherited[-1].tail:
                continue
            if [branch.parent_seq for branch in line] != [branch.parent_seq for branch in inherited]:
                continue
            numbers = {ours.branch: theirs.branch for ours, theirs in zip(line, inherited, strict=True)}
            if self.exporter.hash_branches(inherited, numbers) == export.inherited_hash():
                return {theirs: ours for ours, theirs in numbers.items()}
        return {}

    def _write_inherited(self, export: SessionExport, numbers: dict[int, int]) -> None:
        """Write the inherited branches as if the owner had been purged."""
        inherited = [branch for branch in export.branches if branch.session_id is None]
        if inherited:
            key, owner = self.reserve_key(), export.row.owner
            self._write_branches(key, inherited, numbers)
            self.insert_calls(key, _renumber_calls(export.inherited_calls, numbers), owner)

    def _write_branches(self, key: Any, branches: Iterable[Branch], numbers: dict[int, int]) -> None:
        for branch in branches:
            parent = None if branch.parent is None else Leaf(numbers[branch.parent], branch.parent_seq)
            numbers[branch.branch] = self.insert_branch(key, parent)

    def _new_entries(
        self, entries: Iterable[StoredEntry], numbers: Mapping[int, int], shared: set[int]
    ) -> Iterator[tuple[int, NewEntry]]:
        for stored in self.references.entries(entries, numbers):
            if stored.branch not in shared:
                self.entries += 1
                yield numbers[stored.branch], stored.entry
