"""The store in memory: a real store for tests and throw-away agents, and the reference for the others.

Written to be simple, not fast: dictionaries, one lock, no index. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock

from msgspec import UNSET
from msgspec.structs import replace

from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.entries import Entry
from oakleaf.core.search import Search
from oakleaf.core.tree import Branch, Leaf, Range, contains_leaf, lineage, reachable_seqs, window
from oakleaf.core.usage import Call, add, difference, total
from oakleaf.errors import (
    Fenced,
    IdTaken,
    InvalidPosition,
    MissingBlob,
    NotTrashed,
    SessionTrashed,
    StaleLeaf,
)
from oakleaf.stores.base import (
    Change,
    CommitResult,
    Fact,
    NewSession,
    PathSnapshot,
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
)
from oakleaf.stores.memory.purge import delete_blobs, descendants, purge, unreferenced
from oakleaf.stores.memory.search import MemorySearch
from oakleaf.stores.memory.tables import SessionData, Tables, matches
from oakleaf.stores.memory.transfer import MemoryExporter, MemoryImporter
from oakleaf.stores.search import IndexProgress, SearchPage
from oakleaf.stores.transfer import ImportResult, SessionExports


class MemoryStore(StoreBackend):
    def __init__(self, *, space: str = "default", owner: str | None = None) -> None:
        self.url, self.space, self.owner = "memory:", space, owner
        self.tables = Tables()
        self._lock = RLock()

    def for_tenant(self, space: str, owner: str | None = None) -> MemoryStore:
        """Return a store of the same sessions, opened for another space or owner."""
        other = MemoryStore(space=space, owner=owner)
        other.tables, other._lock = self.tables, self._lock
        return other

    def close(self) -> None:
        """Do nothing: the store is freed with its last reference."""

    def _data(self, session_id: str) -> SessionData:
        return self.tables.find(session_id, self.space, self.owner)

    # -- writing -----------------------------------------------------------------------------------

    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        with self._lock:
            present = self.tables.sessions.get(new.row.session_id)
            if present is None:
                return self._insert(new), True
            row = present.row
            if row.space != self.space:
                raise IdTaken(row.session_id)
            seeds = self._stored(row.leaf, 1, present.journal[0].data["last"])
            new.check_same(row, [seed.entry.entry_id for seed in seeds])
            return row, False

    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        with self._lock:
            query = SessionQuery(conversation_id=new.row.conversation_id, owner=new.row.owner)
            rows = (row for row in self.all_sessions(query) if row.relation in (None, "import"))
            latest = next(rows, None)
            return self.create(new) if latest is None else (latest, False)

    def _insert(self, new: NewSession) -> SessionRow:
        self._check_place(new.fork_point, new.fork_point)
        self._check_blobs(new.seeds, new.blobs)
        branch = self.tables.insert_branch(new.row.session_id, new.fork_point)
        self._put_blobs(new.blobs, new.row.started_at)
        self.tables.insert_entries(self.space, branch, new.seeds)
        seq = new.seeds[-1].seq if new.seeds else new.fork_point.seq if new.fork_point else 0
        row = replace(new.row, leaf=Leaf(branch, seq), facts=1)
        data: dict[str, object] = {"branch": branch, "last": seq, **new.origin}
        started = Fact(1, "started", new.key, data, row.started_at)
        number = self.tables.next_number("session")
        self.tables.sessions[row.session_id] = SessionData(number, row, new.detail, row.updated_at, [started])
        return row

    def commit(self, change: Change) -> CommitResult:
        with self._lock:
            data = self._data(change.session_id)
            row = data.row
            if is_callers_key(change.key) and (earlier := _find_change(data, change.key)) is not None:
                return earlier
            if row.trashed_at is not None:
                raise SessionTrashed(change.session_id)
            if change.fence is not None and change.fence != row.fence:
                raise Fenced(change.session_id, change.fence, row.fence)
            if change.after is not None and change.after != row.leaf:
                return self._find_committed(data, change)
            change.refuse_if_held(row.holder, row.lease_until)
            self._check_blobs(change.entries, change.blobs)
            self._check_place(change.move_to, row.leaf)
            self._put_blobs(change.blobs, change.at)
            if change.move_to is not None or (change.entries and change.fence is not None):
                self.tables.drafts.pop(change.session_id, None)
            leaf = row.leaf if change.move_to is None else change.move_to
            if change.entries:
                leaf = self._grow(row, leaf, change.entries, has_moved=change.move_to is not None)
            return self._apply(data, change, leaf)

    def _find_committed(self, data: SessionData, change: Change) -> CommitResult:
        """Return the outcome of a change that was committed before, by its key."""
        assert change.after is not None
        earlier = _find_change(data, change.key)
        if earlier is None:
            row = data.row
            change.refuse_if_held(row.holder, row.lease_until)
            raise StaleLeaf(change.session_id, change.after, row.leaf)
        return earlier

    def find_change(self, session_id: str, key: str) -> CommitResult | None:
        with self._lock:
            return _find_change(self._data(session_id), key)

    def _apply(self, data: SessionData, change: Change, leaf: Leaf) -> CommitResult:
        totals = data.row.totals
        data.inbox = [queued for queued in data.inbox if queued.number != change.inbox_number]
        for call in change.calls:
            call = replace(call, branch=leaf.branch)
            started: list[int] = []
            if change.replaces_call:
                started = [i for i, old in enumerate(data.calls) if old.call_id == call.call_id]
            growth = total([call])
            if started:
                growth = difference(growth, total([data.calls[started[-1]]]))
                data.calls[started[-1]] = call
            else:
                data.calls.append(call)
            totals = add(totals, growth)
        if change.drops_call is not None:
            for call in [call for call in data.calls if call.call_id == change.drops_call]:
                data.calls.remove(call)
                totals = difference(totals, total([call]))
        content = change.data
        if change.entries:
            content = {"branch": leaf.branch, "first": change.entries[0].seq, "last": leaf.seq, **content}
        elif change.after is not None:
            content = {"branch": leaf.branch, "last": leaf.seq, **content}
        facts = [(change.kind, change.key, content), *((fact.kind, None, fact.data) for fact in change.facts)]
        for kind, key, content in facts:
            data.journal.append(Fact(len(data.journal) + 1, kind, key, content, change.at))
        data.row = replace(
            data.row,
            leaf=leaf,
            totals=totals,
            turns=data.row.turns + change.inherited_turns + change.inputs,
            facts=len(data.journal),
            updated_at=change.at,
            tags=_merge_tags(data.row.tags, change.tags) if change.tags else data.row.tags,
            **change.columns,
        )
        if data.active_at < change.inactive_before:
            data.active_at = change.activity
        if change.state is not UNSET:
            data.detail = replace(data.detail, state=change.state)
        return CommitResult(leaf, len(data.journal))

    def _grow(self, row: SessionRow, parent: Leaf, entries: Sequence[NewEntry], *, has_moved: bool) -> Leaf:
        branch = parent.branch
        is_tail = (branch, parent.seq + 1) not in self.tables.entries
        if has_moved or self.tables.branches[branch].session_id != row.session_id or not is_tail:
            branch = self.tables.insert_branch(row.session_id, parent)
        self.tables.insert_entries(self.space, branch, entries)
        return Leaf(branch, entries[-1].seq)

    def _check_blobs(self, entries: Iterable[NewEntry], new: Iterable[Blob]) -> None:
        hashes = {blob.hash for blob in new}
        for digest in (digest for entry in entries for digest in entry.media):
            if digest not in hashes and (self.space, digest) not in self.tables.blobs:
                raise MissingBlob(digest)

    def _check_place(self, to: Leaf | None, present: Leaf | None) -> None:
        if to is None or (to.branch, to.seq) in self.tables.entries:
            return
        if to.branch not in self.tables.branches or self.tables.branches[to.branch].parent_seq != to.seq:
            raise InvalidPosition(str(to), 0, (present or to).seq)

    def _put_blobs(self, blobs: Iterable[Blob], at: int) -> None:
        for blob in blobs:
            present, since = self.tables.blobs.get((self.space, blob.hash), (blob, at))
            self.tables.blobs[self.space, blob.hash] = (present, max(since, at))

    def trash(self, session_id: str, at: int) -> list[str]:
        with self._lock:
            row = self._data(session_id).row
            session_ids = [*descendants(self.tables, session_id, forks=False), session_id]
            for data in (self.tables.sessions[name] for name in session_ids):
                if row.trashed_at is None and data.row.trashed_at is None:
                    data.row = replace(data.row, trashed_at=at)
            return session_ids

    def restore(self, session_id: str) -> list[str]:
        with self._lock:
            trashed_at = self._data(session_id).row.trashed_at
            session_ids = [*descendants(self.tables, session_id, forks=False), session_id]
            for data in (self.tables.sessions[name] for name in session_ids):
                if trashed_at is not None and data.row.trashed_at == trashed_at:
                    data.row = replace(data.row, trashed_at=None)
            return session_ids

    def purge(self, session_id: str, *, with_forks: bool = False, scrub: bool = True) -> PurgeResult:
        with self._lock:
            if self._data(session_id).row.trashed_at is None:
                raise NotTrashed(session_id)
            children = descendants(self.tables, session_id, forks=with_forks, trashed=not with_forks)
            return purge(self.tables, self.space, [*children, session_id])

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        with self._lock:
            blobs = [
                self.tables.blobs[key][0] for key in unreferenced(self.tables, self.space, before=before)
            ]
            return UnreferencedBlobs(len(blobs), sum(len(blob.data) for blob in blobs))

    def delete_unreferenced_blobs(self, before: int) -> int:
        with self._lock:
            return delete_blobs(self.tables, self.space, before=before)

    @contextmanager
    def export_sessions(self, *session_ids: str, children: bool = False) -> Iterator[SessionExports]:
        with self._lock:
            snapshot = self.for_tenant(self.space, self.owner)
            snapshot.tables = self.tables.copy()
        yield MemoryExporter(snapshot).export_all(session_ids, children=children)

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        with self._lock:
            before = self.tables.copy()
            try:
                return MemoryImporter(self).import_all(exports, at)
            except BaseException:  # also Ctrl-C: all of it or nothing
                self.tables.restore(before)
                raise

    def index(self, progress: IndexProgress | None = None) -> int:
        """Do nothing: a search reads every entry."""
        return 0

    def search(self, search: Search) -> SearchPage:
        with self._lock:
            return MemorySearch(self.tables, self.space, self.owner).page(search)

    def lease(
        self, session_id: str, holder: str, until: int, at: int, *, take_from: int | None = None
    ) -> int:
        with self._lock:
            data = self._data(session_id)
            fence = next_fence(data.row, holder, at, take_from)
            data.row = replace(data.row, holder=holder, lease_until=until, fence=fence)
            return fence

    def renew(self, session_id: str, fence: int, until: int) -> bool:
        with self._lock:
            data = self._data(session_id)
            is_held = data.row.holder is not None and data.row.fence == fence
            if is_held:
                data.row = replace(data.row, lease_until=until)
            return is_held

    def release(self, session_id: str, fence: int) -> None:
        with self._lock:
            data = self._data(session_id)
            if data.row.fence == fence:
                data.row = replace(data.row, holder=None, lease_until=None)

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        with self._lock:
            row = self._data(session_id).row
            if row.fence != fence:
                raise Fenced(session_id, fence, row.fence)
            self.tables.drafts[session_id] = (leaf, text)

    def draft(self, session_id: str) -> str | None:
        with self._lock:
            leaf, text = self.tables.drafts.get(session_id, (Leaf(0, 0), None))
            present = self._data(session_id).row.leaf
            if leaf.branch != present.branch:
                return None
            later = (self.tables.entries[leaf.branch, seq] for seq in range(leaf.seq + 1, present.seq + 1))
            return text if all(entry.kind == "note" for entry in later) else None

    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        with self._lock:
            data = self._data(session_id)
            if data.row.trashed_at is not None:
                raise SessionTrashed(session_id)
            number = data.inbox[-1].number + 1 if data.inbox else 1
            data.inbox.append(QueuedInput(number, body, at))
            return number

    def inbox(self, session_id: str, limit: int | None = None) -> list[QueuedInput]:
        with self._lock:
            return self._data(session_id).inbox[:limit]

    def put_blob(self, blob: Blob, at: int) -> None:
        with self._lock:
            self._put_blobs((blob,), at)

    # -- reading -----------------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionRow:
        with self._lock:
            return self._data(session_id).row

    def detail(self, session_id: str) -> SessionDetail:
        with self._lock:
            return self._data(session_id).detail

    def sessions(self, query: SessionQuery) -> SessionPage:
        with self._lock:
            sessions = self.tables.sessions.values()
            matching = [data for data in sessions if matches(data, query, self.space, self.owner)]
            matching.sort(key=lambda data: data.position(query), reverse=True)
            page = matching[: query.limit]
            is_last = len(matching) <= query.limit
            after = None if is_last else "-".join(map(str, page[-1].position(query)))
            times = {data.row.session_id: data.active_at for data in page}
            return SessionPage([data.row for data in page], after, times)

    def _stored(self, leaf: Leaf, first: int, last: int) -> Iterator[StoredEntry]:
        for part in window(lineage(self.tables.branches, leaf), first, last):
            for seq in range(part.first, part.last + 1):
                yield StoredEntry(part.branch, self.tables.entries[part.branch, seq])

    def path(
        self,
        session_id: str,
        *,
        leaf: Leaf | None = None,
        first: int = 1,
        last: int | None = None,
        newest: int | None = None,
        public: bool = False,
        detail: bool = False,
    ) -> PathSnapshot:
        with self._lock:
            data = self._data(session_id)
            end = data.row.leaf if leaf is None else leaf
            self._refuse_foreign_leaf(data.row, end)
            first = first if newest is None else max(first, end.seq - newest + 1)
            stored = self._stored(end, first, end.seq if last is None else last)
            entries = [
                one.entry.to_entry(one.branch) for one in stored if not (public and one.entry.internal)
            ]
            ranges = tuple(lineage(self.tables.branches, end))
            if not detail:
                return PathSnapshot(data.row, ranges, entries)
            return PathSnapshot(data.row, ranges, entries, data.detail, len(data.inbox))

    def _refuse_foreign_leaf(self, row: SessionRow, leaf: Leaf) -> None:
        if leaf == row.leaf:
            return
        branch = self.tables.branches.get(leaf.branch)
        is_own = branch is not None and branch.session_id == row.session_id
        if not is_own and not contains_leaf(self.branches(row.session_id), row.session_id, leaf):
            raise InvalidPosition(str(leaf), 0, row.leaf.seq)

    def entries(self, session_id: str, part: Range | None = None) -> list[StoredEntry]:
        with self._lock:
            self._data(session_id)
            branches, entries = self.tables.branches, self.tables.entries
            keys = sorted(key for key in entries if branches[key[0]].session_id == session_id)
            if part is not None:
                keys = [(n, seq) for n, seq in keys if n == part.branch and part.first <= seq <= part.last]
            return [StoredEntry(key[0], entries[key]) for key in keys]

    def branches(self, session_id: str) -> list[Branch]:
        with self._lock:
            self._data(session_id)
            waiting = [n for n, branch in self.tables.branches.items() if branch.session_id == session_id]
            branches: dict[int, Branch] = {}
            while waiting:
                branch = self.tables.branches[waiting.pop()]
                branches[branch.branch] = branch
                if branch.parent is not None and branch.parent not in branches:
                    waiting.append(branch.parent)
            tails = {number: branch.parent_seq for number, branch in branches.items()}
            for number, seq in self.tables.entries:  # once for all of them: there may be thousands
                if seq > tails.get(number, seq):
                    tails[number] = seq
            return [self._branch(branches[number], tails[number]) for number in sorted(branches)]

    def lost_branches(self) -> list[int]:
        with self._lock:
            branches, sessions = self.tables.branches, self.tables.sessions
            owned = [
                Leaf(n, branch.parent_seq) for n, branch in branches.items() if branch.session_id in sessions
            ]
            return sorted(branches.keys() - reachable_seqs(branches, owned).keys())

    def _branch(self, branch: Branch, tail: int) -> Branch:
        owner = branch.session_id if branch.session_id in self.tables.sessions else None
        return replace(branch, session_id=owner, tail=tail)

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        with self._lock:
            facts = self._data(session_id).journal[after:]
            return facts if limit is None else facts[:limit]

    def facts_of_kind(self, session_id: str, kind: str) -> list[Fact]:
        with self._lock:
            return [fact for fact in self._data(session_id).journal if fact.kind == kind]

    def control_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        with self._lock:
            row = self._data(session_id).row
            end = row.leaf if leaf is None else leaf
            self._refuse_foreign_leaf(row, end)
            stored = self._stored(end, 1, end.seq)
            return [
                one.entry.to_entry(one.branch) for one in stored if one.entry.kind not in ("message", "note")
            ]

    def calls(self, session_id: str) -> list[Call]:
        with self._lock:
            return list(self._data(session_id).calls)

    def inherited_calls(self, session_id: str) -> list[Call]:
        with self._lock:
            owners = {self.tables.branches[branch.branch].session_id for branch in self.branches(session_id)}
            sessions = [self.tables.data(owner) for owner in owners if owner not in (None, session_id)]
            return [call for data in sorted(sessions, key=lambda data: data.number) for call in data.calls]

    def blob(self, digest: str) -> Blob | None:
        with self._lock:
            blob = self.tables.blobs.get((self.space, digest))
            return None if blob is None else blob[0]


def _find_change(data: SessionData, key: str) -> CommitResult | None:
    for fact in reversed(data.journal):
        if fact.key == key:
            leaf = Leaf(fact.data["branch"], fact.data["last"]) if "last" in fact.data else data.row.leaf
            return CommitResult(leaf, fact.number, is_repeat=True)
    return None


def _merge_tags(tags: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: tag for name, tag in {**tags, **changes}.items() if tag is not None}
