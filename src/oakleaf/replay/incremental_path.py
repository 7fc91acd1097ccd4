"""The growing path of a replay, with derived values: read once, then updated from turn to turn.

All derived values are updated per new entry, so the work grows linearly with the path. Does not append entries.
"""

from __future__ import annotations

from collections import Counter

from oakleaf.core.entries import Entry
from oakleaf.core.prompt_path import PromptPath
from oakleaf.core.turns import OpenCall
from oakleaf.models.recorded import History
from oakleaf.replay.recording import canonical


class IncrementalPath:
    """A path with the history key and the numbers of equal calls.

    The writer of each turn extends the path.
    """

    def __init__(self, path: list[Entry]) -> None:
        self.prompt = PromptPath(path)
        self._start()

    def _start(self) -> None:
        self._entries = self.prompt.entries
        self._followed = 0
        self._history = History()
        self._occurrences: dict[tuple[int, int], int] = {}
        self._counts: Counter[bytes] = Counter()

    @property
    def entries(self) -> list[Entry]:
        return self.prompt.entries

    def history(self) -> History:
        self._catch_up()
        return self._history

    def occurrence(self, call: OpenCall) -> int:
        """Count the earlier calls of the same turn with the same name and arguments."""
        self._catch_up()
        return self._occurrences[call.seq, call.index]

    def _catch_up(self) -> None:
        if self._entries is not self.prompt.entries:  # the path was read again
            self._start()
        new = self._entries[self._followed :]
        self._followed = len(self._entries)
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
