"""Sessions in one file of JSON lines. A line is a transaction: the records that it wrote, null for a deleted one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

from msgspec import DecodeError, Raw, json

from oakleaf.errors import StoreDamaged, StoreError
from oakleaf.stores.opening import StoreOptions
from oakleaf.stores.plain import PlainStore, Tables


class Table(dict[Any, Any]):
    """A dictionary that notes which of its keys a transaction writes."""

    def __init__(self, key: Any, value: Any) -> None:
        self.lines = json.Decoder(list[tuple[key, value | None]])
        self.written: set[Any] = set()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.written.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self.written.add(key)
        super().__delitem__(key)


class JsonLines:
    """The file, and what it holds in memory. The stores of one process share it, whatever their space and owner."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock, self.size, self.is_busy = path, RLock(), 0, False
        self.maps: dict[str, Table] = {}
        self.tables = Tables.make(self._table)

    def _table(self, name: str, key: Any, value: Any) -> Table:
        return self.maps.setdefault(name, Table(key, value))

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[None]:
        with self.lock:
            if self.is_busy:  # another store of this process, in the same thread
                yield
                return
            with self.path.open("ab+") as file:
                fcntl.flock(
                    file, fcntl.LOCK_EX if writes else fcntl.LOCK_SH
                )  # other processes; closing releases it
                self._read(file)
                self.is_busy = True
                try:
                    yield
                    self._write(file)
                except BaseException:
                    self._forget()
                    raise
                finally:
                    self.is_busy = False

    def _read(self, file: Any) -> None:
        """Read the transactions of others. A line without an end was cut off by a crash, and counts for nothing."""
        file.seek(self.size)
        for line in file.read().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                for name, records in json.decode(line, type=dict[str, Raw]).items():
                    for key, value in self.maps[name].lines.decode(records):
                        self.maps[name].update({key: value}) if value is not None else self.maps[name].pop(
                            key
                        )
            except (DecodeError, KeyError) as error:
                raise StoreDamaged(
                    str(self.path), f"the line at byte {self.size} cannot be read ({error})"
                ) from None
            self.size += len(line)

    def _write(self, file: Any) -> None:
        written = {
            name: [(key, table.get(key)) for key in table.written] for name, table in self.maps.items()
        }
        changed = {name: records for name, records in written.items() if records}
        if changed:
            line = json.encode(changed) + b"\n"
            os.truncate(file.fileno(), self.size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self.size += len(line)
            for table in self.maps.values():
                table.written.clear()

    def _forget(self) -> None:
        """Forget what was not written: the file has all else, and is read again."""
        if any(table.written for table in self.maps.values()):
            self.size = 0
            for table in self.maps.values():
                table.clear()
                table.written.clear()


class JsonLinesStore(PlainStore):
    def __init__(self, path: Path, *, space: str = "default", owner: str | None = None) -> None:
        self._file = _open(path.absolute())
        super().__init__(f"jsonl://{path}", self._file.tables, space=space, owner=owner)

    def transaction(self, *, writes: bool) -> AbstractContextManager[None]:
        return self._file.transaction(writes=writes)


_open = cache(JsonLines)


def open_store(url: str, *, space: str, owner: str | None, options: StoreOptions) -> JsonLinesStore:
    if options != StoreOptions():
        raise StoreError(f"{url} has no options, such as a key")
    return JsonLinesStore(Path(url.removeprefix("jsonl://")), space=space, owner=owner)
