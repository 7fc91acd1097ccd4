"""The store in memory: a real store for tests and throw-away agents, and the model the others are held to.

Written for plainness, not speed: dictionaries, one lock, no index. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import RLock

from msgspec import UNSET
from msgspec.structs import replace

from ...core.drafts import Blob, NewEntry
from ...core.entries import Entry
from ...core.tree import Branch, Leaf, contains_leaf, lineage, window
from ...core.usage import Call, add, difference, total
from ...errors import Fenced, IdTaken, InvalidPosition, MissingBlob, NotFound, SessionRunning, SessionTrashed
from ..base import (
    Change,
    CommitResult,
    Fact,
    NewSession,
    PathSnapshot,
    QueuedInput,
    SessionDetail,
    SessionPage,
    SessionQuery,
    SessionRow,
    StoredEntry,
)
from .purge import MemoryForgetting
from .search import MemorySearching
from .session_data import SessionData, matches, repeated
from .transfer import MemoryDumping


class MemoryStore(MemorySearching, MemoryDumping, MemoryForgetting):
    def __init__(self, *, space: str = "default", owner: str | None = None) -> None:
        self.url, self.space, self.owner = "memory:", space, owner
        self._lock = RLock()
        self._sessions: dict[str, SessionData] = {}
        self._branches: dict[int, Branch] = {}
        self._entries: dict[tuple[int, int], NewEntry] = {}
        self._blobs: dict[tuple[str, str], tuple[Blob, int]] = {}
        self._left: dict[str, list[Call]] = {}  # calls of purged sessions whose answers a fork stands on
        self._told_once: dict[str, list[Fact]] = {}  # and what they were given
        self._numbers = {"session": 0, "branch": 0}
        self._drafts: dict[str, tuple[Leaf, str]] = {}

    def for_tenant(self, space: str, owner: str | None = None) -> MemoryStore:
        """The same sessions, opened for another space or owner."""
        other = MemoryStore.__new__(MemoryStore)
        other.__dict__ = {**self.__dict__, "space": space, "owner": owner}
        return other

    def close(self) -> None:
        """Nothing to close: the store goes with its last reference."""

    def _next(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def _kept(self, session_id: str) -> SessionData:
        kept = self._sessions.get(session_id)
        if kept is None or kept.row.space != self.space or self.owner not in (None, kept.row.owner):
            raise NotFound(session_id)
        return kept

    # -- writing -----------------------------------------------------------------------------------

    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        with self._lock:
            name = new.row.session_id
            taken = self._sessions.get(name)
            if taken is None:
                return self._insert(new), True
            seeds = [e.entry_id for e in self._path(taken.row.leaf, 1, taken.row.seed_count)]
            is_same = (taken.row.space, taken.row.owner) == (
                self.space,
                new.row.owner,
            ) and new.fork_point is None
            if not is_same or seeds != [seed.entry_id for seed in new.seeds]:
                raise IdTaken(name)
            return taken.row, False

    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        with self._lock:
            query = SessionQuery(conversation_id=new.row.conversation_id, limit=100_000)
            found = [row for row in self.sessions(query).sessions if row.relation in (None, "import")]
            return (found[0], False) if found else self.create(new)

    def _insert(self, new: NewSession) -> SessionRow:
        self._check_place(new.fork_point, new.fork_point)
        self._check_blobs(new.seeds, new.blobs)
        branch, under = self._next("branch"), new.fork_point
        self._branches[branch] = Branch(
            branch, new.row.session_id, under.branch if under else None, under.seq if under else 0
        )
        self._put_blobs(new.blobs, new.row.started_at)
        self._put_entries(branch, new.seeds)
        seq = new.seeds[-1].seq if new.seeds else under.seq if under else 0
        row = replace(new.row, leaf=Leaf(branch, seq), facts=1)
        data: dict[str, object] = {"branch": branch, "last": seq}
        if row.parent_session is not None:
            data |= {"relation": row.relation, "parent": row.parent_session}
        started = Fact(1, "started", new.key, data, row.started_at)
        self._sessions[row.session_id] = SessionData(self._next("session"), row, new.detail, [started])
        return row

    def commit(self, change: Change) -> CommitResult:
        with self._lock:
            kept = self._kept(change.session_id)
            row = kept.row
            if row.trashed_at is not None:
                raise SessionTrashed(change.session_id)
            if change.fence is not None and change.fence != row.fence:
                raise Fenced(change.session_id, change.fence, row.fence)
            if change.after is not None and change.after != row.leaf:
                return repeated(kept, change)
            self._check_blobs(change.entries, change.blobs)
            self._check_place(change.move_to, row.leaf)
            self._put_blobs(change.blobs, change.at)
            if change.move_to is not None or (change.entries and change.fence is not None):
                self._drafts.pop(change.session_id, None)
            leaf = row.leaf if change.move_to is None else change.move_to
            if change.entries:
                leaf = self._grow(row, leaf, change.entries, has_moved=change.move_to is not None)
            return self._settle(kept, change, leaf)

    def _settle(self, kept: SessionData, change: Change, leaf: Leaf) -> CommitResult:
        totals = kept.row.totals
        kept.inbox = [queued for queued in kept.inbox if queued.number != change.inbox_number]
        for call in change.calls:
            call = replace(call, branch=leaf.branch)
            started = [
                i for i, old in enumerate(kept.calls) if change.replaces_call and old.call_id == call.call_id
            ]
            growth = total([call])
            if started:
                growth = difference(growth, total([kept.calls[started[-1]]]))
                kept.calls[started[-1]] = call
            else:
                kept.calls.append(call)
            totals = add(totals, growth)
        data = change.data
        if change.entries:
            data = {"branch": leaf.branch, "first": change.entries[0].seq, "last": leaf.seq, **data}
        elif change.after is not None:
            data = {"branch": leaf.branch, "last": leaf.seq, **data}
        facts = [(change.kind, change.key, data), *((fact.kind, None, fact.data) for fact in change.facts)]
        for kind, key, content in facts:
            kept.journal.append(Fact(len(kept.journal) + 1, kind, key, content, change.at))
        kept.row = replace(
            kept.row,
            leaf=leaf,
            totals=totals,
            turns=kept.row.turns + sum(entry.turn == entry.seq for entry in change.entries),
            facts=len(kept.journal),
            updated_at=change.at,
            tags={name: tag for name, tag in {**kept.row.tags, **change.tags}.items() if tag is not None},
            **change.columns,
        )
        if change.state is not UNSET:
            kept.detail = replace(kept.detail, state=change.state)
        return CommitResult(leaf, len(kept.journal))

    def _grow(self, row: SessionRow, under: Leaf, entries: Sequence[NewEntry], *, has_moved: bool) -> Leaf:
        branch = under.branch
        is_tail = (branch, under.seq + 1) not in self._entries
        if has_moved or self._branches[branch].session_id != row.session_id or not is_tail:
            branch = self._next("branch")
            self._branches[branch] = Branch(branch, row.session_id, under.branch, under.seq)
        self._put_entries(branch, entries)
        return Leaf(branch, entries[-1].seq)

    def _put_entries(self, branch: int, entries: Iterable[NewEntry]) -> None:
        for entry in entries:
            assert (branch, entry.seq) not in self._entries
            self._entries[branch, entry.seq] = replace(entry, media=tuple(sorted(set(entry.media))))

    def _check_blobs(self, entries: Iterable[NewEntry], coming: Iterable[Blob]) -> None:
        known = {blob.hash for blob in coming}
        for digest in (digest for entry in entries for digest in entry.media):
            if digest not in known and (self.space, digest) not in self._blobs:
                raise MissingBlob(digest)

    def _check_place(self, to: Leaf | None, present: Leaf | None) -> None:
        if to is None or (to.branch, to.seq) in self._entries:
            return
        if to.branch not in self._branches or self._branches[to.branch].parent_seq != to.seq:
            raise InvalidPosition(str(to), 0, (present or to).seq)

    def _put_blobs(self, blobs: Iterable[Blob], at: int) -> None:
        for blob in blobs:
            held, since = self._blobs.get((self.space, blob.hash), (blob, at))
            self._blobs[self.space, blob.hash] = (held, max(since, at))

    def lease(self, session_id: str, holder: str, until: int, at: int) -> int:
        with self._lock:
            kept = self._kept(session_id)
            row = kept.row
            if row.trashed_at is not None:
                raise SessionTrashed(session_id)
            is_held = row.holder is not None and (row.lease_until or 0) > at
            if is_held and row.holder != holder:
                raise SessionRunning(session_id, row.holder, row.updated_at)
            fence = row.fence if row.holder == holder else row.fence + 1
            kept.row = replace(row, holder=holder, lease_until=until, fence=fence)
            return fence

    def release(self, session_id: str, fence: int) -> None:
        with self._lock:
            kept = self._kept(session_id)
            if kept.row.fence == fence:
                kept.row = replace(kept.row, holder=None, lease_until=None)

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        with self._lock:
            row = self._kept(session_id).row
            if row.fence != fence:
                raise Fenced(session_id, fence, row.fence)
            self._drafts[session_id] = (leaf, text)

    def draft(self, session_id: str) -> str | None:
        with self._lock:
            leaf, text = self._drafts.get(session_id, (None, None))
            return text if leaf == self._kept(session_id).row.leaf else None

    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        with self._lock:
            kept = self._kept(session_id)
            if kept.row.trashed_at is not None:
                raise SessionTrashed(session_id)
            n = kept.inbox[-1].number + 1 if kept.inbox else 1
            kept.inbox.append(QueuedInput(n, body, at))
            return n

    def inbox(self, session_id: str) -> list[QueuedInput]:
        with self._lock:
            return list(self._kept(session_id).inbox)

    def put_blob(self, blob: Blob, at: int) -> None:
        with self._lock:
            self._put_blobs((blob,), at)

    # -- reading -----------------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionRow:
        with self._lock:
            return self._kept(session_id).row

    def detail(self, session_id: str) -> SessionDetail:
        with self._lock:
            return self._kept(session_id).detail

    def sessions(self, query: SessionQuery) -> SessionPage:
        with self._lock:
            kept = sorted(self._sessions.values(), key=lambda kept: -kept.no)
            found = [k for k in kept if matches(k, query, self.space, self.owner)]
        page = found[: query.limit]
        return SessionPage([k.row for k in page], str(page[-1].no) if len(found) > query.limit else None)

    def _path(self, leaf: Leaf, first: int, last: int) -> list[Entry]:
        ranges = window(lineage(self._branches, leaf), first, last)
        return [
            self._entries[part.branch, seq].to_entry(part.branch)
            for part in ranges
            for seq in range(part.first, part.last + 1)
        ]

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
            kept = self._kept(session_id)
            end = kept.row.leaf if leaf is None else leaf
            self._refuse_stray(kept.row, end)
            first = first if newest is None else max(first, end.seq - newest + 1)
            entries = self._path(end, first, end.seq if last is None else last)
            entries = [entry for entry in entries if not (public and entry.internal)]
            ranges = tuple(lineage(self._branches, end))
            return PathSnapshot(kept.row, ranges, entries, kept.detail if detail else None)

    def _refuse_stray(self, row: SessionRow, leaf: Leaf) -> None:
        if leaf == row.leaf:
            return
        held = self._branches.get(leaf.branch)
        is_own = held is not None and held.session_id == row.session_id
        if not is_own and not contains_leaf(self.branches(row.session_id), row.session_id, leaf):
            raise InvalidPosition(str(leaf), 0, row.leaf.seq)

    def entries(self, session_id: str) -> list[StoredEntry]:
        with self._lock:
            self._kept(session_id)
            keys = sorted(key for key in self._entries if self._branches[key[0]].session_id == session_id)
            return [StoredEntry(branch, self._entries[branch, seq]) for branch, seq in keys]

    def branches(self, session_id: str) -> list[Branch]:
        with self._lock:
            self._kept(session_id)
            waiting = [n for n, branch in self._branches.items() if branch.session_id == session_id]
            own: dict[int, Branch] = {}
            while waiting:
                branch = self._branches[waiting.pop()]
                own[branch.branch] = branch
                if branch.parent is not None and branch.parent not in own:
                    waiting.append(branch.parent)
            tails = {number: branch.parent_seq for number, branch in own.items()}
            for number, seq in self._entries:  # once for all of them: there may be thousands
                if seq > tails.get(number, seq):
                    tails[number] = seq
            return [self._spoken(own[number], tails[number]) for number in sorted(own)]

    def _spoken(self, branch: Branch, tail: int) -> Branch:
        owner = branch.session_id if branch.session_id in self._sessions else None
        return replace(branch, session_id=owner, tail=tail)

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        with self._lock:
            facts = self._kept(session_id).journal[after:]
            return facts if limit is None else facts[:limit]

    def calls(self, session_id: str) -> list[Call]:
        with self._lock:
            return list(self._kept(session_id).calls)

    def inherited_calls(self, session_id: str) -> list[Call]:
        with self._lock:
            line = {b.branch for b in self.branches(session_id)}
            owners = {self._branches[n].session_id for n in line} - {session_id}
            living = [(k.no, k.calls) for name, k in self._sessions.items() if name in owners]
            left = [(0, calls) for name, calls in self._left.items() if name in owners]
            return [call for _, calls in sorted([*left, *living], key=lambda pair: pair[0]) for call in calls]

    def blob(self, digest: str) -> Blob | None:
        with self._lock:
            held = self._blobs.get((self.space, digest))
            return None if held is None else held[0]
