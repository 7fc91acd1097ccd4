"""Purging a session on every database: what is deleted with it, and what a surviving fork keeps.

Runs inside one transaction, so a crash halfway leaves everything as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oakleaf.core.tree import Branch, Leaf, reachable_seqs
from oakleaf.stores.base import PurgeResult


def descendants(children: Callable[[list[str]], Iterable[str]], session_id: str) -> list[str]:
    """Return a session's children and theirs, deepest first; `children` returns those of a list of parents."""
    session_ids = {session_id: None}
    level = [session_id]
    while level:
        level = [name for name in dict.fromkeys(children(level)) if name not in session_ids]
        session_ids.update(dict.fromkeys(level))
    return list(session_ids)[:0:-1]


class Purge(ABC):
    """Deletes sessions that are in the trash; the databases provide the statements.

    `keep` is the last seq, by branch, that surviving forks inherit.
    """

    @abstractmethod
    def session_numbers(self, session_ids: list[str]) -> list[int]: ...

    @abstractmethod
    def candidates(self, numbers: list[int]) -> Iterable[tuple[int, int, int | None, int]]:
        """Return number, session number, parent and parent_seq of the branches that may be deleted.

        They are the sessions' own and those of their ancestors whose sessions were purged before.
        """

    @abstractmethod
    def fork_points(self, branches: list[int]) -> Iterable[tuple[int, int]]:
        """Return where branches that are not among these are attached to these."""

    @abstractmethod
    def remove_from_index(self, branches: list[int], numbers: list[int]) -> None: ...

    @abstractmethod
    def delete_journals(self, numbers: list[int]) -> None: ...

    @abstractmethod
    def delete_sessions(self, numbers: list[int]) -> None: ...

    @abstractmethod
    def delete_calls(
        self, numbers: Sequence[int], keep: Mapping[int, int], branches: list[int] | None
    ) -> None:
        """Delete the calls of sessions, all or those on these branches, except those of entries that are kept."""

    @abstractmethod
    def delete_entries(self, branches: list[Branch], keep: Mapping[int, int]) -> tuple[int, list[Any]]:
        """Delete what is not kept of these branches; return how many entries, and the blobs they used."""

    @abstractmethod
    def queued_blobs(self, numbers: list[int]) -> list[Any]:
        """Return the blobs that inputs queued for sessions use."""

    @abstractmethod
    def delete_blobs(self, numbers: list[Any]) -> int:
        """Delete those of these blobs that no entry and no queued input uses; return how many."""

    def run(self, session_ids: list[str]) -> PurgeResult:
        numbers = self.session_numbers(session_ids)
        rows = list(self.candidates(numbers))
        branches = {number: Branch(number, None, parent, seq) for number, _, parent, seq in rows}
        keep = reachable_seqs(branches, [Leaf(*point) for point in self.fork_points(list(branches))])
        self.remove_from_index(list(branches), numbers)
        purged_before = sorted({session_number for _, session_number, *_ in rows}.difference(numbers))
        self.delete_journals(numbers)
        queued_blobs = self.queued_blobs(numbers)
        self.delete_sessions(numbers)
        self.delete_calls(numbers, keep, None)
        self.delete_calls(purged_before, keep, list(branches))
        entries, blobs = self.delete_entries(list(branches.values()), keep)
        remaining = sum(max(0, keep[n] - branch.parent_seq) for n, branch in branches.items() if n in keep)
        return PurgeResult(tuple(session_ids), entries, remaining, self.delete_blobs([*blobs, *queued_blobs]))
