"""The store in memory: a real store for tests and throw-away agents, and the reference for the others.

Dictionaries and a lock; the laws are in `stores.plain`. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from oakleaf.stores.plain import PlainStore, Tables

ABSENT = object()


class MemoryTable(dict[Any, Any]):
    """A dictionary that keeps the old value of each write, for an undo."""

    def __init__(self, undo: list[tuple[MemoryTable, Any, Any]]) -> None:
        super().__init__()
        self.undo = undo

    def __setitem__(self, key: Any, value: Any) -> None:
        self.undo.append((self, key, self.get(key, ABSENT)))
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self.undo.append((self, key, self[key]))
        super().__delitem__(key)

    def put_back(self, key: Any, value: Any) -> None:
        if value is ABSENT:
            super().__delitem__(key)
        else:
            super().__setitem__(key, value)


class MemoryStore(PlainStore):
    def __init__(self, *, space: str = "default", owner: str | None = None) -> None:
        self._lock, self._undo = RLock(), list[tuple[MemoryTable, Any, Any]]()
        tables = Tables.make(lambda name, key, value: MemoryTable(self._undo))
        super().__init__("memory:", tables, space=space, owner=owner)

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[None]:
        with self._lock:
            mark = len(self._undo)  # another tenant's store of the same thread may be writing
            try:
                yield
            except BaseException:  # also Ctrl-C: all of it or nothing
                while len(self._undo) > mark:
                    table, key, value = self._undo.pop()
                    table.put_back(key, value)
                raise
            finally:
                if mark == 0:
                    self._undo.clear()
