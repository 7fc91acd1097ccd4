"""Forgetting, in memory: the trash, what a purge takes and what a fork keeps, blobs that nothing points to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from threading import RLock

from msgspec.structs import replace

from ...core.drafts import Blob, NewEntry
from ...core.tree import Branch, Leaf, reachable_seqs
from ...core.usage import Call
from ...errors import NotTrashed
from ..base import Fact, StoreBackend
from ..message_limits import retained_limit_facts
from ..purge_types import PurgeResult, UnreferencedBlobs
from .session_data import SessionData


class MemoryForgetting(StoreBackend):
    """The verbs by which something goes."""

    _lock: RLock
    _sessions: dict[str, SessionData]
    _branches: dict[int, Branch]
    _entries: dict[tuple[int, int], NewEntry]
    _blobs: dict[tuple[str, str], tuple[Blob, int]]
    _left: dict[str, list[Call]]
    _told_once: dict[str, list[Fact]]
    _drafts: dict[str, tuple[Leaf, str]]

    @abstractmethod
    def _kept(self, session_id: str) -> SessionData: ...

    def trash(self, session_id: str, at: int) -> list[str]:
        with self._lock:
            kept = self._kept(session_id)
            ids = [*self._below(session_id, forks=False), session_id]
            for name in ids if kept.row.trashed_at is None else ():
                row = self._sessions[name].row
                self._sessions[name].row = row if row.trashed_at is not None else replace(row, trashed_at=at)
            return ids

    def restore(self, session_id: str) -> list[str]:
        with self._lock:
            when = self._kept(session_id).row.trashed_at
            ids = [*self._below(session_id, forks=False), session_id]
            for kept in (self._sessions[name] for name in ids):
                if when is not None and kept.row.trashed_at == when:
                    kept.row = replace(kept.row, trashed_at=None)
            return ids

    def _below(self, session_id: str, *, forks: bool, trashed: bool = False) -> list[str]:
        found = [session_id]
        for parent in found:
            for name, kept in sorted(self._sessions.items(), key=lambda item: item[1].no):
                row = kept.row
                is_child = row.parent_session == parent and (forks or row.relation == "task")
                if is_child and name not in found and not (trashed and row.trashed_at is None):
                    found.append(name)
        return found[:0:-1]

    def purge(self, session_id: str, *, with_forks: bool = False) -> PurgeResult:
        with self._lock:
            if self._kept(session_id).row.trashed_at is None:
                raise NotTrashed(session_id)
            ids = [*self._below(session_id, forks=with_forks, trashed=not with_forks), session_id]
            for name in ids:
                kept = self._sessions.pop(name)
                self._left[name], self._told_once[name] = kept.calls, kept.journal
                self._drafts.pop(name, None)
            doomed = {n: b for n, b in self._branches.items() if b.session_id in ids}
            for branch in list(doomed.values()):
                while (
                    branch.parent is not None
                    and self._branches[branch.parent].session_id not in self._sessions
                ):
                    branch = doomed.setdefault(branch.parent, self._branches[branch.parent])
            stay = [b for n, b in self._branches.items() if n not in doomed and b.parent in doomed]
            keep = reachable_seqs(
                doomed, [Leaf(b.parent, b.parent_seq) for b in stay if b.parent is not None]
            )
            return self._forget(ids, doomed, keep)

    def _forget(self, ids: Sequence[str], doomed: dict[int, Branch], keep: dict[int, int]) -> PurgeResult:
        gone = [key for key in self._entries if key[0] in doomed and key[1] > keep.get(key[0], -1)]
        used = {digest for key in gone for digest in self._entries[key].media}
        for key in gone:
            del self._entries[key]
        for number in doomed:
            if number not in keep:
                del self._branches[number]
        for name in {*ids, *(branch.session_id or "" for branch in doomed.values())}:

            def stays(place: Leaf, name: str = name) -> bool:
                is_kept = place.seq <= keep.get(place.branch, -1)
                return is_kept or (name not in ids and place.branch not in doomed)  # others may stand there

            self._left[name] = [
                call
                for call in self._left[name]
                if stays(Leaf(call.branch, call.after_seq if call.answer_seq is None else call.answer_seq))
            ]
            self._told_once[name] = retained_limit_facts(self._told_once.get(name, ()), stays)
        kept = sum(1 for branch, _ in self._entries if branch in doomed)
        return PurgeResult(tuple(ids), len(gone), kept, self._drop_blobs(used))

    def _loose(self, digests: Iterable[str], before: int | None = None) -> list[tuple[str, str]]:
        used = {digest for entry in self._entries.values() for digest in entry.media}
        return [
            (self.space, digest)
            for digest in digests
            if digest not in used and (self.space, digest) in self._blobs
            if before is None or self._blobs[self.space, digest][1] < before
        ]

    def _drop_blobs(self, digests: Iterable[str], before: int | None = None) -> int:
        gone = self._loose(digests, before)
        for key in gone:
            del self._blobs[key]
        return len(gone)

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        with self._lock:
            found = [self._blobs[key][0] for key in self._loose(self._own_blobs(), before)]
            return UnreferencedBlobs(len(found), sum(len(blob.data) for blob in found))

    def delete_unreferenced_blobs(self, before: int) -> int:
        with self._lock:
            return self._drop_blobs(self._own_blobs(), before)

    def _own_blobs(self) -> list[str]:
        return [digest for space, digest in self._blobs if space == self.space]
