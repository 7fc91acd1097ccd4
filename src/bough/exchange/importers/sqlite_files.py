"""Read the SQLite files of other tools without writing to them or creating files beside them.

SQLite creates files even to read a database with a WAL or journal, so such a file is read from a copy, WAL included.
Any other is opened as immutable and checked afterwards for changes. This module knows no tool's tables.
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

from ...errors import InvalidSource
from ...stores.sqlite.file import connect_immutable

Row = dict[str, Any]
Signature = tuple[int, int]
"""Size and modification time of a file."""
FileState = tuple[Signature | None, ...]
"""The signatures of the database, its WAL and its journal; None for a missing one."""
SUFFIXES = ("", "-wal", "-journal")
COPY_ATTEMPTS = 5
CHANGED = "it changed while it was being read; try again, or import a copy of it"


class SourceTables:
    """The tables of an open file, and their rows."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        schema = connection.execute("select name from sqlite_schema where type in ('table', 'view')")
        self.names = {name for (name,) in schema.fetchall()}

    def rows(self, table: str, where: str = "1", *values: object, order: str = "rowid") -> Iterator[Row]:
        """Yield the rows of a table with the columns its version has; none if the table does not exist."""
        if table not in self.names:
            return
        sql = f'select * from "{table}" where {where} order by {order}'
        cursor = self._connection.execute(sql, values)
        columns: list[str] = []
        for row in cursor:
            columns = columns or [column[0] for column in cursor.getdescription()]
            yield dict(zip(columns, row, strict=True))

    def row(self, table: str, where: str, *values: object) -> Row:
        """Return the first row that matches; empty if none does."""
        return next(self.rows(table, where, *values), {})


@contextlib.contextmanager
def open_tables(source: str, tool: str, *expected: str) -> Iterator[SourceTables]:
    """Open a file for reading; `InvalidSource` if it has none of the `expected` tables."""
    path = Path(source).expanduser()
    if not path.is_file():
        raise InvalidSource(source, tool, "it is a folder" if path.is_dir() else "there is no such file")
    try:
        with _connect(path, source, tool) as connection:
            tables = SourceTables(connection)
            if not tables.names.intersection(expected):
                raise InvalidSource(source, tool, f"it has no table {' or '.join(expected)}")
            yield tables
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise InvalidSource(source, tool, str(error)) from None


@contextlib.contextmanager
def _connect(path: Path, source: str, tool: str) -> Iterator[apsw.Connection]:
    before = _file_state(path)
    if not any(file is not None and file[0] for file in before[1:]):
        with contextlib.closing(connect_immutable(str(path))) as connection:
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
    """Copy the file with its WAL and journal, all in one state; None if they keep changing."""
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
    """Return the size and time of a file; None if it cannot be read, because it vanished for example."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return (stat.st_size, stat.st_mtime_ns)
