"""The growing path of a replay, and what is derived from it: read once, then updated from turn to turn.

All derived values are updated per new entry, so the work grows linearly with the path. Does not append entries.
"""

from __future__ import annotations

from collections import Counter

from oakleaf.core.context import fold_settings
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.turns import OpenCall
from oakleaf.models.recorded import History
from oakleaf.replay.recording import canonical


class IncrementalPath:
    """A path with its settings, its history key and the numbers of equal calls."""

    def __init__(self, path: list[Entry]) -> None:
        self.start(path)

    def start(self, path: list[Entry]) -> None:
        """Start over with this path. The writer that appends to the log extends it."""
        self.path = path
        self._folded = 0
        self._settings = Settings()
        self._history = History()
        self._occurrences: dict[tuple[int, int], int] = {}
        self._counts: Counter[bytes] = Counter()

    @property
    def entry_id(self) -> bytes:
        """The id of the last entry: equal ids are equal histories."""
        return self.path[-1].entry_id if self.path else b""

    def settings(self) -> Settings:
        self._catch_up()
        return self._settings

    def history(self) -> History:
        self._catch_up()
        return self._history

    def occurrence(self, call: OpenCall) -> int:
        """Count the earlier calls of its turn with the same name and arguments."""
        self._catch_up()
        return self._occurrences[call.seq, call.index]

    def _catch_up(self) -> None:
        new = self.path[self._folded :]
        self._folded = len(self.path)
        self._settings = fold_settings(new, self._settings)
        for entry in new:
            self._history.follow(entry)
            self._count_calls(entry)

    def _count_calls(self, entry: Entry) -> None:
        if entry.turn == entry.seq:
            self._occurrences.clear()
            self._counts.clear()
        for index, call in enumerate(entry.message.calls if entry.message is not None else ()):
            key = canonical(call)
            self._occurrences[entry.seq, index] = self._counts[key]
            self._counts[key] += 1
