"""Dumping and taking in, in memory: the plain form of what SQLite does in one transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock

from msgspec.structs import replace

from ...core.drafts import Blob, NewEntry
from ...core.tree import Branch, Leaf
from ...core.usage import Call
from ...errors import NotFound
from ..base import Fact, StoreBackend, StoredEntry
from ..message_limits import MessageLimit, limits_as_facts, select_inherited_limits
from ..transfer import (
    BlobReferences,
    BlobStream,
    ImportResult,
    SessionExport,
    SessionExports,
    hash_inherited,
    match_parent_branches,
    portable_row,
    refuse_different,
    renumber_branches,
    renumber_fact,
    select_inherited_calls,
    sessions_with_tasks,
)
from .session_data import SessionData


class MemoryDumping(StoreBackend):
    """The two verbs by which whole sessions leave and enter."""

    _lock: RLock
    _sessions: dict[str, SessionData]
    _branches: dict[int, Branch]
    _entries: dict[tuple[int, int], NewEntry]
    _blobs: dict[tuple[str, str], tuple[Blob, int]]
    _left: dict[str, list[Call]]
    _told_once: dict[str, list[Fact]]
    _numbers: dict[str, int]

    @abstractmethod
    def _kept(self, session_id: str) -> SessionData: ...

    @contextmanager
    def export_sessions(self, *session_ids: str, children: bool = False) -> Iterator[SessionExports]:
        with self._lock:  # values never change, so holding them is a snapshot; the lock need not outlive this
            names = sessions_with_tasks(session_ids, self._tasks) if children else session_ids
            dumps = [self._dumped(name)[0] for name in names]
            held = {digest: blob for (space, digest), (blob, _) in self._blobs.items() if space == self.space}
        yield SessionExports(dumps, lambda mimes: _pieces(held, mimes))

    def _tasks(self, session_id: str) -> list[tuple[int, str]]:
        rows = [kept.row for kept in self._sessions.values()]
        return [
            (row.started_at, row.session_id)
            for row in rows
            if row.parent_session == session_id and row.relation == "task" and row.space == self.space
            if self.owner in (None, row.owner)
        ]

    def _dumped(self, session_id: str) -> tuple[SessionExport, dict[int, int]]:
        kept = self._kept(session_id)
        branches, numbers = renumber_branches(self.branches(session_id), session_id, self.url)
        foreign = [branch for branch in branches if branch.session_id is None]
        below = self._below_of(foreign, numbers)
        stood, given = self._told(foreign, numbers), self._given_of(foreign, numbers)
        dump = SessionExport(
            row=portable_row(kept.row, numbers),
            detail=kept.detail,
            branches=branches,
            inherited_calls=tuple(below),
            inherited_limits=given,
            entries=self._told(branches, numbers),
            calls=[replace(call, branch=numbers[call.branch]) for call in kept.calls],
            facts=[renumber_fact(fact, numbers) for fact in kept.journal],
            inbox=list(kept.inbox),
            inherited_hash=lambda: hash_inherited(stood, below, given),
        )
        return dump, numbers

    def _told(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> list[StoredEntry]:
        own = {n: number for number, n in numbers.items()}
        return [
            StoredEntry(branch.branch, replace(self._entries[own[branch.branch], seq], media=()))
            for branch in branches
            for seq in range(branch.parent_seq + 1, branch.tail + 1)
        ]

    def _below_of(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> list[Call]:
        foreign = list(foreign)
        calls: list[Call] = []
        for name in self._owners(foreign, numbers):
            calls += self._sessions[name].calls if name in self._sessions else self._left[name]
        return select_inherited_calls(calls, foreign, numbers)

    def _given_of(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> tuple[MessageLimit, ...]:
        foreign = list(foreign)
        return select_inherited_limits(map(self._told_by, self._owners(foreign, numbers)), foreign, numbers)

    def _told_by(self, name: str) -> list[Fact]:
        return self._sessions[name].journal if name in self._sessions else self._told_once.get(name, [])

    def _owners(self, foreign: Iterable[Branch], numbers: Mapping[int, int]) -> list[str]:
        """Whose branches they are, or were."""
        own = {n: number for number, n in numbers.items()}
        names = dict.fromkeys(self._branches[own[branch.branch]].session_id for branch in foreign)
        return [name for name in names if name is not None]

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        with self._lock:
            names = ("_sessions", "_branches", "_entries", "_blobs", "_left", "_told_once", "_numbers")
            before = {name: dict(getattr(self, name)) for name in names}
            try:
                return TakingIn(self).all_of(exports, at)
            except BaseException:
                for name, content in before.items():  # in place: a store opened beside this one shares them
                    getattr(self, name).clear()
                    getattr(self, name).update(content)
                raise


class TakingIn:
    def __init__(self, store: MemoryDumping) -> None:
        self.store = store
        self.naming = BlobReferences()
        self.added: list[str] = []
        self.known: list[str] = []
        self.entries = 0

    def all_of(self, dumps: SessionExports, at: int) -> ImportResult:
        store = self.store
        for dump in dumps.sessions:
            mine = dump.row.owner if store.owner is None else store.owner
            self._take(replace(dump, row=replace(dump.row, space=store.space, owner=mine)))
        brought = 0
        for blob in dumps.blobs(self.naming.mimes):
            if (store.space, blob.hash) not in store._blobs:
                held = Blob(blob.hash, blob.mime, b"".join(blob.pieces))
                store._blobs[store.space, blob.hash] = (held, at)
                brought += 1
        self._tie()
        missing = sum((store.space, digest) not in store._blobs for digest in self.naming.mimes)
        return ImportResult(tuple(self.added), tuple(self.known), self.entries, brought, missing)

    def _tie(self) -> None:
        store = self.store
        for branch, seq, digest in self.naming.places:
            if (store.space, digest) in store._blobs:
                entry = store._entries[branch, seq]
                store._entries[branch, seq] = replace(entry, media=tuple(sorted({*entry.media, digest})))

    def _take(self, dump: SessionExport) -> None:
        name = dump.row.session_id
        if name not in self.store._sessions:
            self._write(dump)
            self.added.append(name)
            return
        refuse_different(dump, self.naming, self.store._dumped)
        self.known.append(name)

    def _write(self, dump: SessionExport) -> None:
        store, name = self.store, dump.row.session_id
        numbers = self._footing(dump)
        hung = set(numbers)
        foreign = [branch for branch in dump.branches if branch.session_id is None]
        if foreign and not hung:
            gone = f"gone {self._next('session')}"
            for branch in foreign:
                self._write_branch(gone, branch, numbers)
            store._left[gone] = [replace(call, branch=numbers[call.branch]) for call in dump.inherited_calls]
            store._told_once[gone] = list(
                limits_as_facts(replace(one, branch=numbers[one.branch]) for one in dump.inherited_limits)
            )
        no = self._next("session")
        for branch in dump.branches:
            if branch.session_id is not None:
                self._write_branch(name, branch, numbers)
        for stored in self.naming.entries(dump.entries, numbers):
            if stored.branch not in hung:
                store._entries[numbers[stored.branch], stored.entry.seq] = replace(stored.entry, media=())
                self.entries += 1
        row = replace(dump.row, leaf=Leaf(numbers[dump.row.leaf.branch], dump.row.leaf.seq))
        kept = SessionData(no, row, dump.detail)
        kept.calls = [replace(call, branch=numbers[call.branch]) for call in dump.calls]
        kept.journal = [renumber_fact(fact, numbers) for fact in dump.facts]
        kept.inbox = list(self.naming.inbox(dump.inbox))
        store._sessions[name] = kept

    def _footing(self, dump: SessionExport) -> dict[int, int]:
        """The branches of its parent it may hang on; empty if there are none."""
        parent = dump.row.parent_session
        if parent is None or dump.branches[0].session_id is not None:
            return {}
        try:
            branches = self.store.branches(parent)
        except NotFound:
            return {}
        return match_parent_branches(dump, branches, self._hash_of) or {}

    def _hash_of(self, line: tuple[Branch, ...], numbers: dict[int, int]) -> bytes:
        below, given = self.store._below_of(line, numbers), self.store._given_of(line, numbers)
        return hash_inherited(self.store._told(line, numbers), below, given)

    def _write_branch(self, name: str, branch: Branch, numbers: dict[int, int]) -> None:
        number = self._next("branch")
        parent = None if branch.parent is None else numbers[branch.parent]
        self.store._branches[number] = Branch(number, name, parent, branch.parent_seq)
        numbers[branch.branch] = number

    def _next(self, what: str) -> int:
        self.store._numbers[what] += 1
        return self.store._numbers[what]


def _pieces(held: Mapping[str, Blob], mimes: Mapping[str, str]) -> Iterator[BlobStream]:
    for digest in sorted(mimes):
        blob = held.get(digest)
        if blob is not None:
            yield BlobStream(digest, mimes[digest], len(blob.data), (blob.data,))
