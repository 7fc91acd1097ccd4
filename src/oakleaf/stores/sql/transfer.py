"""Whole sessions out of tables and into them: the steps that databases share. The values are those of `oakleaf.stores.transfer`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

from oakleaf.core.drafts import NewEntry
from oakleaf.core.tree import Branch
from oakleaf.core.usage import Call
from oakleaf.stores.transfer import (
    PIECE_BYTES,
    BlobStream,
    SessionExport,
    SessionExporter,
    SessionImporter,
    select_inherited_calls,
)
from oakleaf.stores.values import StoredEntry

__all__ = ["PIECE_BYTES", "BlobStream", "SessionExport", "SessionImporter", "TableExporter"]


class TableExporter(SessionExporter):
    """Reads whole sessions from a snapshot of a database; the subclass provides the reads. A session's key is its number.

    A session that was purged while a fork needs its entries keeps its number.
    """

    @abstractmethod
    def branch_entries(self, branch: int, first: int, last: int) -> Iterable[NewEntry]: ...

    @abstractmethod
    def branch_owners(self, branches: Sequence[int]) -> Iterable[int]:
        """Return the numbers of the present or former owners of the branches."""

    def _inherited_calls(self, branches: Sequence[Branch], numbers: Mapping[int, int]) -> tuple[Call, ...]:
        own_numbers = {number: own for own, number in numbers.items()}
        owners = self.branch_owners([own_numbers[branch.branch] for branch in branches])
        calls = (call for key in owners for call in self.calls(key))
        return tuple(select_inherited_calls(calls, branches, numbers))

    def _entries(self, branches: Iterable[Branch], numbers: Mapping[int, int]) -> Iterator[StoredEntry]:
        own_numbers = {number: own for own, number in numbers.items()}
        for branch in branches:
            first, last = branch.parent_seq + 1, branch.tail
            for entry in self.branch_entries(own_numbers[branch.branch], first, last):
                yield StoredEntry(branch.branch, entry)
