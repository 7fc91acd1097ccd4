"""The position of a log, with the values read there."""

from __future__ import annotations

from msgspec import Struct

from oakleaf.core.tree import Leaf, Range
from oakleaf.core.turns import Cursor


class Position(Struct, frozen=True, gc=False):
    """A leaf, and the known values at the leaf. Replaced by one assignment; None means: not read yet."""

    leaf: Leaf
    cursor: Cursor | None = None
    state: bytes | None = None
    is_state_stored: bool = True
    """False after a fold of the state from the path: the next append stores the state."""
    ranges: tuple[Range, ...] | None = None
    branch_number: int | None = None
    """The number of the leaf's branch among the session's own branches."""
    calls_since: int = 0
    """The number of a fact before all facts about the open tool calls; 0: unknown."""

    def at(self, leaf: Leaf) -> Position:
        """Return the position at another leaf, where nothing has been read yet."""
        number = self.branch_number if leaf.branch == self.leaf.branch else None
        return Position(leaf, branch_number=number)
