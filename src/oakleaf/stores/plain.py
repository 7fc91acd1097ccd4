"""The whole contract over seven maps: what the laws of `stores.base` mean, in plain code.

An author brings the maps, of any kind that has the methods of a dictionary, and transactions; the rest is here. The store in
memory is this store with dictionaries. Nothing has an index: what a database looks up is read from end to end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from threading import local
from typing import Any, Self, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.facts import StoredFact, encode_fact
from oakleaf.core.tree import Branch, Leaf, Range, lineage, reachable_seqs
from oakleaf.core.usage import Call, Totals, add, difference, total
from oakleaf.errors import (
    Fenced,
    IdTaken,
    InvalidPosition,
    MissingBlob,
    NotFound,
    NotTrashed,
    SessionTrashed,
    StoreDamaged,
)
from oakleaf.stores.base import (
    Change,
    CommitResult,
    ListedSession,
    NewSession,
    PurgeResult,
    QueuedInput,
    SessionDetail,
    SessionPage,
    SessionQuery,
    SessionRow,
    StoreBackend,
    StoredEntry,
    UnreferencedBlobs,
    is_callers_key,
    next_fence,
    page_of,
    repeat_of,
)
from oakleaf.stores.transfer import (
    BlobStream,
    ImportResult,
    SessionExports,
    SessionImporter,
    StoreExporter,
    blob_references,
)


class SessionRecord(Struct, frozen=True):
    """A session, except the journal, calls and entries."""

    number: int
    """Counts the sessions of a store. No other session ever has it, also after a purge."""
    row: SessionRow
    detail: SessionDetail
    active_at: int
    branches: tuple[int, ...] = ()
    calls: int = 0
    """The number of ledger rows."""
    inbox: tuple[QueuedInput, ...] = ()
    draft: tuple[Leaf, str] | None = None


class BranchRecord(Struct, frozen=True):
    branch: Branch
    """`tail` is the seq of the last entry."""
    number: int
    """The number of the session, also after its purge."""


class BlobRecord(Struct, frozen=True):
    blob: Blob
    at: int


V = TypeVar("V")
ALL = 2**32
"""More than the seq of any entry."""
Number = tuple[int, int]
"""A branch and a seq; a session's number and the number of a fact or call."""


class Tables(Struct):
    sessions: MutableMapping[str, SessionRecord]
    branches: MutableMapping[int, BranchRecord]
    entries: MutableMapping[Number, NewEntry]
    facts: MutableMapping[Number, StoredFact]
    calls: MutableMapping[Number, Call]
    blobs: MutableMapping[tuple[str, str], BlobRecord]
    """By space and hash."""
    counters: MutableMapping[str, int]
    """How many sessions and branches there ever were."""

    @classmethod
    def make(cls, table: Callable[[str, Any, Any], MutableMapping[Any, Any]]) -> Tables:
        """Make the maps: `table` gets the name of each map and the types of the keys and values.

        Keys are text, a number, or two of them; values can be encoded and decoded by msgspec.
        """
        return cls(
            table("sessions", str, SessionRecord),
            table("branches", int, BranchRecord),
            table("entries", Number, NewEntry),
            table("facts", Number, StoredFact),
            table("calls", Number, Call),
            table("blobs", tuple[str, str], BlobRecord),
            table("counters", str, int),
        )


class PlainStore(StoreBackend):
    def __init__(self, url: str, tables: Tables, *, space: str, owner: str | None) -> None:
        self.url, self.tables, self.space, self.owner = url, tables, space, owner
        self._thread = local()

    def for_tenant(self, space: str, owner: str | None = None) -> Self:
        other = copy(self)
        other.space, other.owner, other._thread = space, owner, local()
        return other

    def spaces(self) -> list[str] | None:
        if self.owner is not None:
            return None
        with self._transaction(writes=False) as tables:
            return sorted({record.row.space for record in tables.sessions.values()})

    @abstractmethod
    def transaction(self, *, writes: bool) -> AbstractContextManager[None]:
        """Exclude other writers meanwhile; keep all writes, or none after an error. Never nested."""

    @contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[Tables]:
        if getattr(self._thread, "is_inside", False):
            yield self.tables
            return
        with self.transaction(writes=writes):
            self._thread.is_inside = True
            try:
                yield self.tables
            except KeyError as error:
                raise StoreDamaged(self.url, f"the record {error} is missing") from error
            finally:
                self._thread.is_inside = False

    def _record(self, session_id: str) -> SessionRecord:
        record = self.tables.sessions.get(session_id)
        if record is None or record.row.space != self.space or self.owner not in (None, record.row.owner):
            raise NotFound(session_id)
        return record

    # -- creating and changing -----------------------------------------------------------------------

    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        with self._transaction() as tables:
            present = tables.sessions.get(new.row.session_id)
            if present is None:
                return self._insert(new), True
            if present.row.space != self.space:
                raise IdTaken(new.row.session_id)
            started = tables.facts[present.number, 1].leaf
            assert started is not None
            branches = {record.branch.branch: record.branch for record in self._tree(present)}
            seeds = map(self._entries, lineage(branches, started))
            new.check_same(present.row, [stored.entry.entry_id for part in seeds for stored in part])
            return present.row, False

    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        with self._transaction():
            query = SessionQuery(conversation_id=new.row.conversation_id, owner=new.row.owner)
            rows = (row for row in self.all_sessions(query) if row.relation in (None, "import"))
            latest = next(rows, None)
            return self.create(new) if latest is None else (latest, False)

    def _insert(self, new: NewSession) -> SessionRow:
        self._check_place(new.fork_point, new.fork_point)
        self._check_blobs(new.seeds, new.blobs)
        self._put_blobs(new.blobs, new.row.started_at)
        number = self._count("session")
        branch = self._insert_branch(new.row.session_id, number, new.fork_point)
        leaf = self._extend(branch, new.seeds)
        row = replace(new.row, leaf=leaf, facts=1)
        kind, body = encode_fact(new.fact)
        self.tables.facts[number, 1] = StoredFact(1, kind, new.key, row.started_at, body, leaf)
        record = SessionRecord(number, row, new.detail, row.updated_at, (leaf.branch,))
        self.tables.sessions[row.session_id] = record
        return row

    def commit(self, change: Change) -> CommitResult:
        with self._transaction() as tables:
            record = self._record(change.session_id)
            row = record.row
            earlier = change.check(row, lambda key: self._find_change(record, key))
            if earlier is not None:
                return earlier
            self._check_place(change.move_to, row.leaf)
            self._check_blobs(change.entries, change.blobs)
            self._put_blobs(change.blobs, change.at)
            leaf = row.leaf if change.move_to is None else change.move_to
            if change.entries:
                leaf = self._grow(record, leaf, change)
            count, totals = self._write_calls(record, change, leaf.branch)
            for fact in change.stored_facts(row.facts + 1, leaf):
                tables.facts[record.number, fact.number] = fact
            is_new = leaf.branch not in record.branches and bool(change.entries)
            ends_draft = change.move_to is not None or (change.entries and change.fence is not None)
            is_active = record.active_at < change.inactive_before
            state = record.detail.state if change.state is UNSET else change.state
            tables.sessions[change.session_id] = replace(
                record,
                row=change.row_after(row, leaf, totals),
                detail=replace(record.detail, state=state),
                active_at=change.activity if is_active else record.active_at,
                branches=(*record.branches, leaf.branch) if is_new else record.branches,
                calls=count,
                inbox=tuple(queued for queued in record.inbox if queued.number != change.inbox_number),
                draft=None if ends_draft else record.draft,
            )
            return CommitResult(leaf, row.facts + 1 + len(change.facts))

    def _find_change(self, record: SessionRecord, key: str) -> CommitResult | None:
        for number in range(record.row.facts, 0, -1):
            fact = self.tables.facts[record.number, number]
            if fact.key == key:
                return repeat_of(fact, record.row.leaf)
        return None

    def _grow(self, record: SessionRecord, leaf: Leaf, change: Change) -> Leaf:
        """Append to the branch of a leaf if the session owns the branch and the leaf is the tail; else to a new branch."""
        branch = self.tables.branches[leaf.branch]
        if change.move_to is not None or branch.number != record.number or branch.branch.tail != leaf.seq:
            branch = self._insert_branch(record.row.session_id, record.number, leaf)
        return self._extend(branch, change.entries)

    def _insert_branch(self, session_id: str | None, number: int, parent: Leaf | None) -> BranchRecord:
        own = self._count("branch")
        before, seq = (None, 0) if parent is None else (parent.branch, parent.seq)
        branch = BranchRecord(Branch(own, session_id, before, seq, tail=seq), number)
        self.tables.branches[own] = branch
        return branch

    def _extend(self, record: BranchRecord, entries: Sequence[NewEntry]) -> Leaf:
        branch = record.branch
        for entry in entries:
            if entry.references:
                present = [digest for digest in entry.references if (self.space, digest) in self.tables.blobs]
                entry = replace(entry, media=(*entry.media, *present), references=())
            if entry.media:
                entry = replace(entry, media=tuple(sorted({*entry.media})))
            self.tables.entries[branch.branch, entry.seq] = entry
        leaf = Leaf(branch.branch, entries[-1].seq if entries else branch.tail)
        self.tables.branches[leaf.branch] = replace(record, branch=replace(branch, tail=leaf.seq))
        return leaf

    def _write_calls(self, record: SessionRecord, change: Change, branch: int) -> tuple[int, Totals]:
        """Write the ledger rows of a change; return the session's number of rows, and the totals."""
        calls, count, totals = self.tables.calls, record.calls, record.row.totals
        for call in change.calls:
            place = self._find_call(record, call.call_id) if change.replaces_call else None
            before = Totals() if place is None else total([calls[record.number, place]])
            count += place is None
            calls[record.number, place or count] = replace(call, branch=branch)
            totals = add(totals, difference(total([call]), before))
        if change.drops_call is not None and (place := self._find_call(record, change.drops_call)):
            totals = difference(totals, total([calls[record.number, place]]))
            for later in range(place, count):
                calls[record.number, later] = calls[record.number, later + 1]
            del calls[record.number, count]
            count -= 1
        return count, totals

    def _find_call(self, record: SessionRecord, call_id: str) -> int | None:
        places = range(record.calls, 0, -1)
        return next((n for n in places if self.tables.calls[record.number, n].call_id == call_id), None)

    def _check_place(self, to: Leaf | None, present: Leaf | None) -> None:
        """`InvalidPosition` unless an entry is there, or a branch begins there."""
        if to is None or (to.branch, to.seq) in self.tables.entries:
            return
        branch = self.tables.branches.get(to.branch)
        if branch is None or branch.branch.parent_seq != to.seq:
            raise InvalidPosition(str(to), 0, (present or to).seq)

    def _check_blobs(self, entries: Iterable[NewEntry], blobs: Iterable[Blob]) -> None:
        """`MissingBlob` if an entry refers to a blob neither present nor new."""
        new = {blob.hash for blob in blobs}
        for digest in (digest for entry in entries for digest in entry.media):
            if digest not in new and (self.space, digest) not in self.tables.blobs:
                raise MissingBlob(digest)

    def _put_blobs(self, blobs: Iterable[Blob], at: int) -> None:
        for blob in blobs:
            present = self.tables.blobs.get((self.space, blob.hash), BlobRecord(blob, at))
            self.tables.blobs[self.space, blob.hash] = replace(present, at=max(present.at, at))

    def _count(self, counter: str) -> int:
        number = self.tables.counters.get(counter, 0) + 1
        self.tables.counters[counter] = number
        return number

    # -- running -------------------------------------------------------------------------------------

    def _update(self, record: SessionRecord, **columns: Any) -> None:
        """Replace columns of a session's row, without a fact."""
        row = replace(record.row, **columns)
        self.tables.sessions[row.session_id] = replace(record, row=row)

    def lease(
        self, session_id: str, holder: str, until: int, at: int, *, take_from: int | None = None
    ) -> int:
        with self._transaction():
            record = self._record(session_id)
            fence = next_fence(record.row, holder, at, take_from)
            self._update(record, holder=holder, lease_until=until, fence=fence)
            return fence

    def renew(self, session_id: str, fence: int, until: int) -> bool:
        with self._transaction():
            record = self._record(session_id)
            is_held = record.row.holder is not None and record.row.fence == fence
            if is_held:
                self._update(record, lease_until=until)
            return is_held

    def release(self, session_id: str, fence: int) -> None:
        with self._transaction():
            record = self._record(session_id)
            if record.row.fence == fence:
                self._update(record, holder=None, lease_until=None)

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        with self._transaction() as tables:
            record = self._record(session_id)
            if record.row.fence != fence:
                raise Fenced(session_id, fence, record.row.fence)
            tables.sessions[session_id] = replace(record, draft=(leaf, text))

    def draft(self, session_id: str) -> str | None:
        with self._transaction(writes=False) as tables:
            record = self._record(session_id)
            leaf, text = record.draft or (Leaf(0, 0), None)
            present = record.row.leaf
            if leaf.branch != present.branch:
                return None
            later = (tables.entries[leaf.branch, seq] for seq in range(leaf.seq + 1, present.seq + 1))
            return text if all(entry.kind == "note" for entry in later) else None

    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        with self._transaction() as tables:
            record = self._record(session_id)
            if record.row.trashed_at is not None:
                raise SessionTrashed(session_id)
            number = record.inbox[-1].number + 1 if record.inbox else 1
            inbox = (*record.inbox, QueuedInput(number, body, at))
            tables.sessions[session_id] = replace(record, inbox=inbox)
            return number

    def inbox(self, session_id: str, limit: int | None = None) -> list[QueuedInput]:
        with self._transaction(writes=False):
            return list(self._record(session_id).inbox[:limit])

    def put_blob(self, blob: Blob, at: int) -> None:
        with self._transaction():
            self._put_blobs((blob,), at)

    # -- reading -------------------------------------------------------------------------------------

    def session_with_detail(self, session_id: str) -> tuple[SessionRow, SessionDetail]:
        with self._transaction(writes=False):
            record = self._record(session_id)
            return record.row, record.detail

    def sessions(self, query: SessionQuery) -> SessionPage:
        with self._transaction(writes=False) as tables:
            return page_of(
                (
                    ListedSession(record.row, record.number, record.active_at)
                    for record in tables.sessions.values()
                    if record.row.space == self.space and self.owner in (None, record.row.owner)
                    if query.key is None
                    or (is_callers_key(query.key) and self._find_change(record, query.key))
                ),
                query,
            )

    def branches(self, session_id: str) -> list[Branch]:
        with self._transaction(writes=False):
            return [record.branch for record in self._tree(self._record(session_id))]

    def _tree(self, record: SessionRecord) -> list[BranchRecord]:
        """Return the session's own branches and the ancestors, oldest first."""
        found: dict[int, BranchRecord] = {}
        for number in record.branches:
            at: int | None = number
            while at is not None and at not in found:
                found[at] = self.tables.branches[at]
                at = found[at].branch.parent
        return [found[number] for number in sorted(found)]

    def entries(self, session_id: str, part: Range | None = None) -> list[StoredEntry]:
        with self._transaction(writes=False):
            record = self._record(session_id)
            if part is None:
                own = sorted(record.branches)
                return [stored for branch in own for stored in self._entries(Range(branch, 1, ALL))]
            tree = (branch.branch.branch for branch in self._tree(record))
            return self._entries(part) if part.branch in record.branches or part.branch in tree else []

    def _entries(self, part: Range) -> list[StoredEntry]:
        branch = self.tables.branches[part.branch].branch
        seqs = range(max(part.first, branch.parent_seq + 1), min(part.last, branch.tail) + 1)
        return [StoredEntry(part.branch, self.tables.entries[part.branch, seq]) for seq in seqs]

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[StoredFact]:
        with self._transaction(writes=False) as tables:
            record = self._record(session_id)
            last = record.row.facts if limit is None else min(record.row.facts, after + limit)
            return [tables.facts[record.number, number] for number in range(after + 1, last + 1)]

    def calls(self, session_id: str) -> list[Call]:
        with self._transaction(writes=False) as tables:
            return list(_numbered(tables.calls, self._record(session_id).number))

    def inherited_calls(self, session_id: str) -> list[Call]:
        with self._transaction(writes=False) as tables:
            _, *others = self._owners(self._record(session_id))
            return [call for number in others for call in _numbered(tables.calls, number)]

    def _owners(self, record: SessionRecord) -> list[int]:
        """Return the session's number, and the numbers of the owners of inherited branches, also purged ones."""
        others = {branch.number for branch in self._tree(record)} - {record.number}
        return [record.number, *sorted(others)]

    def blob(self, digest: str) -> Blob | None:
        with self._transaction(writes=False) as tables:
            found = tables.blobs.get((self.space, digest))
            return None if found is None else found.blob

    # -- deleting ------------------------------------------------------------------------------------

    def trash(self, session_id: str, at: int) -> list[str]:
        with self._transaction() as tables:
            is_present = self._record(session_id).row.trashed_at is None
            names = [*self._descendants(session_id, _is_task), session_id]
            for record in map(tables.sessions.__getitem__, names):
                if is_present and record.row.trashed_at is None:
                    self._update(record, trashed_at=at)
            return names

    def restore(self, session_id: str) -> list[str]:
        with self._transaction() as tables:
            at = self._record(session_id).row.trashed_at
            names = [*self._descendants(session_id, _is_task), session_id]
            for record in map(tables.sessions.__getitem__, names):
                if at is not None and record.row.trashed_at == at:
                    self._update(record, trashed_at=None)
            return names

    def purge(self, session_id: str, *, with_forks: bool = False, scrub: bool = True) -> PurgeResult:
        with self._transaction():
            if self._record(session_id).row.trashed_at is None:
                raise NotTrashed(session_id)
            goes_along = _is_any if with_forks else _is_trashed_task
            return self._purge([*self._descendants(session_id, goes_along), session_id])

    def _descendants(self, session_id: str, selects: Callable[[SessionRow], bool]) -> list[str]:
        """Return the selected descendants of a session, the deepest first."""
        records = sorted(self.tables.sessions.values(), key=lambda record: record.number)
        rows = [record.row for record in records if selects(record.row)]
        names = [session_id]
        for parent in names:  # grows meanwhile; a forged ring of parents ends
            children = (row.session_id for row in rows if row.parent_session == parent)
            names += [name for name in children if name not in names]
        return names[:0:-1]

    def _purge(self, names: list[str]) -> PurgeResult:
        tables = self.tables
        records = [tables.sessions[name] for name in names]
        for name in names:
            del tables.sessions[name]
        numbers = {record.number for record in records}
        branches = dict(tables.branches.items())
        candidates = self._unowned(branches, numbers)
        tree = {number: candidates[number].branch for number in candidates}
        hanging = (record.branch for number, record in branches.items() if number not in candidates)
        fork_points = [Leaf(b.parent, b.parent_seq) for b in hanging if b.parent is not None]
        keep = reachable_seqs(tree, [point for point in fork_points if point.branch in tree])
        blobs = {digest for record in records for digest in _queued_blobs(record)}
        deleted = 0
        for number, record in candidates.items():
            first = keep.get(number, record.branch.parent_seq) + 1
            for seq in range(first, record.branch.tail + 1):
                blobs.update(tables.entries[number, seq].media)
                del tables.entries[number, seq]
                deleted += 1
            del tables.branches[number]
            if number in keep:
                branch = replace(record.branch, session_id=None, tail=first - 1)
                tables.branches[number] = replace(record, branch=branch)
        for owner in numbers.union(record.number for record in candidates.values()):
            self._forget(owner, lambda place, owner=owner: _is_kept(place, keep, tree, owner in numbers))  # type: ignore[misc]
        remaining = sum(max(0, keep[n] - branch.parent_seq) for n, branch in tree.items() if n in keep)
        return PurgeResult(tuple(names), deleted, remaining, self._delete_blobs(self._unreferenced(blobs)))

    def _unowned(self, branches: dict[int, BranchRecord], numbers: set[int]) -> dict[int, BranchRecord]:
        """Return the branches of the sessions purged now, and the ancestors of sessions purged before."""
        live = {record.number for record in self.tables.sessions.values()}
        found = {number: record for number, record in branches.items() if record.number in numbers}
        for record in list(found.values()):
            parent = record.branch.parent
            while parent is not None and branches[parent].number not in live and parent not in found:
                found[parent] = branches[parent]
                parent = branches[parent].branch.parent
        return found

    def _forget(self, number: int, is_kept: Callable[[Leaf], bool]) -> None:
        """Delete the calls and the journal of a purged session, except the calls inherited by forks."""
        calls = list(_numbered(self.tables.calls, number))
        kept = [call for call in calls if is_kept(Leaf(call.branch, call.seq))]
        _renumber(self.tables.calls, number, len(calls), kept)
        _renumber(self.tables.facts, number, len(list(_numbered(self.tables.facts, number))), ())

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        with self._transaction(writes=False):
            found = [record.blob for _, record in self._unreferenced() if record.at < before]
            return UnreferencedBlobs(len(found), sum(len(blob.data) for blob in found))

    def delete_unreferenced_blobs(self, before: int) -> int:
        with self._transaction():
            return self._delete_blobs(pair for pair in self._unreferenced() if pair[1].at < before)

    def _unreferenced(self, digests: set[str] | None = None) -> list[tuple[str, BlobRecord]]:
        """Return the blobs of the space, or of `digests`, that no entry and no queued input uses."""
        used = {digest for entry in self.tables.entries.values() for digest in entry.media}
        used.update(digest for record in self.tables.sessions.values() for digest in _queued_blobs(record))
        return [
            (digest, record)
            for (space, digest), record in self.tables.blobs.items()
            if space == self.space and digest not in used and (digests is None or digest in digests)
        ]

    def _delete_blobs(self, blobs: Iterable[tuple[str, BlobRecord]]) -> int:
        names = [digest for digest, _ in blobs]
        for digest in names:
            del self.tables.blobs[self.space, digest]
        return len(names)

    # -- importing -----------------------------------------------------------------------------------

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        with self._transaction():
            return PlainImporter(self).import_all(exports, at)


class PlainImporter(SessionImporter):
    """Writes whole sessions into the maps. A session's key is its number."""

    def __init__(self, store: PlainStore) -> None:
        super().__init__(StoreExporter(store))
        self.store, self.tables = store, store.tables
        self.names: dict[int, str] = {}

    def _replace(self, key: int, **fields: Any) -> None:
        if key in self.names:  # not for what was inherited from a session that is absent
            name = self.names[key]
            self.tables.sessions[name] = replace(self.tables.sessions[name], **fields)

    def _record(self, key: int) -> SessionRecord:
        return self.tables.sessions[self.names[key]]

    def has_session(self, session_id: str) -> bool:
        return session_id in self.tables.sessions

    def insert_session(self, row: SessionRow, detail: SessionDetail) -> int:
        number = self.reserve_key()
        self.names[number] = row.session_id
        self.tables.sessions[row.session_id] = SessionRecord(number, row, detail, row.updated_at)
        return number

    def reserve_key(self) -> int:
        return self.store._count("session")

    def insert_branch(self, key: int, parent: Leaf | None) -> int:
        branch = self.store._insert_branch(self.names.get(key), key, parent).branch.branch
        if key in self.names:
            self._replace(key, branches=(*self._record(key).branches, branch))
        return branch

    def set_leaf(self, key: int, leaf: Leaf) -> None:
        self._replace(key, row=replace(self._record(key).row, leaf=leaf))

    def insert_entries(self, entries: Iterator[tuple[int, NewEntry]], owner: str | None) -> None:
        tails: dict[int, int] = {}
        for branch, entry in entries:
            self.tables.entries[branch, entry.seq] = replace(entry, media=())
            tails[branch] = entry.seq
        for number, tail in tails.items():
            record = self.tables.branches[number]
            self.tables.branches[number] = replace(record, branch=replace(record.branch, tail=tail))

    def insert_calls(self, key: int, calls: Iterable[Call], owner: str | None) -> None:
        count = active_at = 0
        for count, call in enumerate(calls, 1):
            self.tables.calls[key, count] = call
            active_at = max(active_at, call.at)
        if key in self.names:
            self._replace(key, calls=count, active_at=max(active_at, self._record(key).active_at))

    def insert_facts(self, key: int, facts: Iterable[StoredFact], owner: str | None) -> None:
        for number, fact in enumerate(facts, 1):
            self.tables.facts[key, number] = fact

    def insert_inbox(self, key: int, inputs: Iterable[QueuedInput], owner: str | None) -> None:
        self._replace(key, inbox=tuple(inputs))

    def has_blob(self, digest: str) -> bool:
        return (self.space, digest) in self.tables.blobs

    def insert_blob(self, blob: BlobStream, at: int) -> None:
        data = Blob(blob.hash, blob.mime, b"".join(blob.pieces))
        self.tables.blobs[self.space, blob.hash] = BlobRecord(data, at)

    def link_blobs(self, places: Iterable[tuple[int, int, str]]) -> None:
        for branch, seq, digest in places:
            if self.has_blob(digest):
                entry = self.tables.entries[branch, seq]
                self.tables.entries[branch, seq] = replace(entry, media=tuple(sorted({*entry.media, digest})))


def _numbered(table: MutableMapping[Number, V], number: int) -> Iterator[V]:
    """Yield the facts or calls of a session, numbered 1, 2, 3 …"""
    at = 1
    while (value := table.get((number, at))) is not None:
        yield value
        at += 1


def _renumber(table: MutableMapping[Number, V], number: int, count: int, values: Sequence[V]) -> None:
    """Replace all facts or calls of a session."""
    for at in range(1, count + 1):
        del table[number, at]
    for at, value in enumerate(values, 1):
        table[number, at] = value


def _is_any(row: SessionRow) -> bool:
    return True


def _is_task(row: SessionRow) -> bool:
    return row.relation == "task"


def _is_trashed_task(row: SessionRow) -> bool:
    return row.relation == "task" and row.trashed_at is not None


def _is_kept(place: Leaf, keep: Mapping[int, int], tree: Container[int], is_purged_now: bool) -> bool:
    """Whether a fork inherits a place. Of a session purged before, other forks may need branches outside this tree."""
    return (not is_purged_now and place.branch not in tree) or place.seq <= keep.get(place.branch, -1)


def _queued_blobs(record: SessionRecord) -> set[str]:
    """Return the digests of the blobs in queued inputs."""
    return {digest for queued in record.inbox for digest in blob_references("message", queued.body)}
