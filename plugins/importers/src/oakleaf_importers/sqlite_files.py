"""Read the SQLite files of other tools without writing to them or creating files beside them.

SQLite creates files even to read a database with a WAL or journal, so such a file is read from a copy, WAL included.
Any other is opened as immutable and checked afterwards for changes. Only tables are read: a view, a virtual table or a
damaged tree of pages may have no end, so no query does or returns more than a file of its size can hold. This module knows
no tool's tables.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from oakleaf.errors import InvalidSource

Row = dict[str, Any]
Signature = tuple[int, int]
"""Size and modification time of a file."""
FileState = tuple[Signature | None, ...]
"""The signatures of the database, its WAL and its journal; None for a missing one."""
SUFFIXES = ("", "-wal", "-journal")
COPY_ATTEMPTS = 5
DISABLED = (
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    apsw.SQLITE_DBCONFIG_ENABLE_VIEW,
    apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER,
)
"""What the schema of a stranger's file might run code by."""
STEPS_PER_BYTE = 32
"""More instructions of SQLite than reading and sorting a byte of a table takes."""
MIN_STEPS = 5_000_000
BYTES_PER_BYTE = 3
"""Text in UTF-16 becomes longer in UTF-8."""
MIN_BYTES = 1 << 20
STEPS_BETWEEN = 10_000
ENDLESS = "a query of its tables returns more than the file can hold: it is damaged, or made to have no end"
CHANGED = "it changed while it was being read; try again, or import a copy of it"


class SourceTables:
    """The tables of an open file of this size, and the rows. Views and virtual tables are not among them."""

    def __init__(self, connection: apsw.Connection, size: int) -> None:
        self._connection = connection
        self._max_bytes = max(MIN_BYTES, size * BYTES_PER_BYTE)
        self._max_steps = max(MIN_STEPS, size * STEPS_PER_BYTE)
        self._steps_left = self._max_steps
        for setting in DISABLED:
            connection.config(setting, 0)
        connection.set_progress_handler(self._is_over, STEPS_BETWEEN)
        tables = connection.execute(
            "select name from pragma_table_list where schema = 'main' and type = 'table'"
        )
        self.names = {name for (name,) in tables.fetchall()}

    def _is_over(self) -> bool:
        self._steps_left -= STEPS_BETWEEN
        return self._steps_left < 0

    def rows(self, table: str, where: str = "1", *values: object, order: str = "rowid") -> Iterator[Row]:
        """Yield the rows of a table with the available columns; none for a missing table."""
        if table not in self.names:
            return
        sql = f'select * from "{table}" where {where} order by {order}'
        self._steps_left += self._max_steps
        cursor = self._connection.execute(sql, values)
        columns: list[str] = []
        bytes_left = self._max_bytes
        for row in cursor:
            columns = columns or [column[0] for column in cursor.getdescription()]
            bytes_left -= 1 + sum(len(value) for value in row if isinstance(value, str | bytes))
            if bytes_left < 0:
                raise apsw.InterruptError(ENDLESS)
            yield dict(zip(columns, row, strict=True))

    def row(self, table: str, where: str, *values: object) -> Row:
        """Return the first matching row; else an empty row."""
        return next(self.rows(table, where, *values), {})


@contextlib.contextmanager
def open_tables(source: str, tool: str, *expected: str) -> Iterator[SourceTables]:
    """Open a file for reading; `InvalidSource` without any of the `expected` tables."""
    path = Path(source).expanduser()
    if not path.is_file():
        raise InvalidSource(source, tool, "it is a folder" if path.is_dir() else "there is no such file")
    with path.open("rb"):  # `PermissionError` says more than SQLite
        pass
    try:
        with _connect(path, source, tool) as connection:
            size = sum(file[0] for file in _file_state(path) if file is not None)
            tables = SourceTables(connection, size)
            if not tables.names.intersection(expected):
                raise InvalidSource(source, tool, f"it has no table {' or '.join(expected)}")
            yield tables
    except apsw.InterruptError:
        raise InvalidSource(source, tool, ENDLESS) from None
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise InvalidSource(source, tool, str(error)) from None


def _connect_immutable(path: Path) -> apsw.Connection:
    """Open the file alone as unchanging: takes no lock and creates no file."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
    return apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)


@contextlib.contextmanager
def _connect(path: Path, source: str, tool: str) -> Iterator[apsw.Connection]:
    before = _file_state(path)
    if not any(file is not None and file[0] for file in before[1:]):
        with contextlib.closing(_connect_immutable(path)) as connection:
            yield connection
        if _file_state(path) != before:
            raise InvalidSource(source, tool, CHANGED)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = _copy(path, Path(folder))
        if copy is None:
            raise InvalidSource(source, tool, CHANGED)
        with contextlib.closing(apsw.Connection(str(copy))) as connection:
            yield connection


def _copy(path: Path, folder: Path) -> Path | None:
    """Copy the file with WAL and journal, all in one state; None for constantly changing files."""
    for _ in range(COPY_ATTEMPTS):
        before = _file_state(path)
        for suffix in SUFFIXES:
            target = folder / f"copy{suffix}"
            target.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", target)
        if _file_state(path) == before:
            return folder / "copy"
    return None


def _file_state(path: Path) -> FileState:
    return tuple(file_signature(f"{path}{suffix}") for suffix in SUFFIXES)


def file_signature(path: str | Path) -> Signature | None:
    """Return the size and time of a file; None for an unreadable file, such as a vanished file."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return (stat.st_size, stat.st_mtime_ns)
