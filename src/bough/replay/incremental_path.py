"""The path of a replay as it grows, and what follows from it: read once, then carried from turn to turn.

All of it is a fold, so an entry costs what it adds and not what lies before it: twice the length is twice the work.
Knows entries. Does not know who appends them.
"""

from __future__ import annotations

from collections import Counter

from ..core.context import fold_settings
from ..core.entries import Entry, Settings
from ..core.turns import OpenCall
from ..models.recorded import History
from .recording import canonical


class IncrementalPath:
    def __init__(self, path: list[Entry]) -> None:
        self.start(path)

    def start(self, path: list[Entry]) -> None:
        """From this path on. Whoever appends to the log extends it."""
        self.path = path
        self._seen = 0
        self._settings = Settings()
        self._history = History()
        self._numbers: dict[tuple[int, int], int] = {}
        self._made: Counter[bytes] = Counter()

    @property
    def entry_id(self) -> bytes:
        """Of its last entry: equal ids are equal histories."""
        return self.path[-1].entry_id if self.path else b""

    def settings(self) -> Settings:
        self._catch_up()
        return self._settings

    def history(self) -> History:
        self._catch_up()
        return self._history

    def occurrence(self, call: OpenCall) -> int:
        """How many calls of the same name and arguments its turn made before that one."""
        self._catch_up()
        return self._numbers[call.seq, call.index]

    def _catch_up(self) -> None:
        new = self.path[self._seen :]
        self._seen = len(self.path)
        self._settings = fold_settings(new, self._settings)
        for entry in new:
            self._history.follow(entry)
            self._number(entry)

    def _number(self, entry: Entry) -> None:
        if entry.turn == entry.seq:
            self._numbers.clear()
            self._made.clear()
        for index, call in enumerate(entry.message.calls if entry.message is not None else ()):
            key = canonical(call)
            self._numbers[entry.seq, index] = self._made[key]
            self._made[key] += 1
