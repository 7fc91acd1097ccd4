"""Purging a session on every database: the rows to delete, and the rows that a surviving fork keeps.

Runs inside one transaction, so a crash halfway leaves everything as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oakleaf.core.tree import Branch, Leaf, reachable_seqs
from oakleaf.stores.base import PurgeResult


def descendants(children: Callable[[list[str]], Iterable[str]], session_id: str) -> list[str]:
    """Return the descendants of a session, deepest first; `children` returns the children of a list of parents."""
    session_ids = {session_id: None}
    level = [session_id]
    while level:
        level = [name for name in dict.fromkeys(children(level)) if name not in session_ids]
        session_ids.update(dict.fromkeys(level))
    return list(session_ids)[:0:-1]


class Purge(ABC):
    """Deletes trashed sessions; the databases provide the statements.

    `keep` is the last seq, by branch, that surviving forks inherit.
    """

    @abstractmethod
    def session_numbers(self, session_ids: list[str]) -> list[int]: ...

    @abstractmethod
    def candidates(self, numbers: list[int]) -> Iterable[tuple[int, int, int | None, int]]:
        """Return number, session number, parent and parent_seq of the branches that may be deleted.

        The sessions' own branches, and the ancestors left by sessions purged before.
        """

    @abstractmethod
    def fork_points(self, branches: list[int]) -> Iterable[tuple[int, int]]:
        """Return the places where other branches are attached to the given branches."""

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
        """Delete the calls of sessions, all or only on the given branches, except the calls of kept entries."""

    @abstractmethod
    def delete_entries(self, branches: list[Branch], keep: Mapping[int, int]) -> tuple[int, list[Any]]:
        """Delete the entries of branches beyond `keep`; return the number of entries, and their blobs."""

    @abstractmethod
    def queued_blobs(self, numbers: list[int]) -> list[Any]:
        """Return the blobs used by inputs in the sessions' queues."""

    @abstractmethod
    def delete_blobs(self, numbers: list[Any]) -> int:
        """Delete the given blobs that no entry and no queued input uses; return the number."""

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
