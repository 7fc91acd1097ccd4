"""SQLite files of other tools: read as they lie, never written, and nothing is made beside them.

A file whose log or journal holds something is read from a copy, log and all: SQLite would make files beside it, even to
read. Any other is read as one that stands still, and looked at again afterwards. Knows no tool's tables.
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
Stamp = tuple[tuple[int, int] | None, ...]
BESIDE = ("", "-wal", "-journal")
TRIES = 5
WRITTEN = "it was written while it was read; try again, or copy it first"


class Tables:
    """An open file: which tables it has, and their rows."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        found = connection.execute("select name from sqlite_schema where type in ('table', 'view')")
        self.names = {name for (name,) in found.fetchall()}

    def rows(self, table: str, where: str = "1", *values: object, order: str = "rowid") -> Iterator[Row]:
        """The rows of a table, each with the columns its version has; none if there is no such table."""
        if table not in self.names:
            return
        sql = f'select * from "{table}" where {where} order by {order}'
        cursor = self._connection.execute(sql, values)
        names: list[str] = []
        for row in cursor:
            names = names or [column[0] for column in cursor.getdescription()]
            yield dict(zip(names, row, strict=True))

    def row(self, table: str, where: str, *values: object) -> Row:
        """The first that matches; empty if none does."""
        return next(self.rows(table, where, *values), {})


@contextlib.contextmanager
def tables(place: str, tool: str, *needed: str) -> Iterator[Tables]:
    """The tables of a file, at least one of those `needed` among them; `InvalidSource` if it is no such file."""
    path = Path(place).expanduser()
    if not path.is_file():
        raise InvalidSource(place, tool, "it is a folder" if path.is_dir() else "there is no such file")
    try:
        with _opened(path, place, tool) as connection:
            found = Tables(connection)
            if not found.names.intersection(needed):
                raise InvalidSource(place, tool, f"it has no table {' or '.join(needed)}")
            yield found
    except (apsw.Error, UnicodeDecodeError, OSError) as error:
        raise InvalidSource(place, tool, str(error)) from None


@contextlib.contextmanager
def _opened(path: Path, place: str, tool: str) -> Iterator[apsw.Connection]:
    before = _stamp(path)
    if not any(stamp is not None and stamp[0] for stamp in before[1:]):
        with contextlib.closing(connect_immutable(str(path))) as connection:
            yield connection
        if _stamp(path) != before:
            raise InvalidSource(place, tool, WRITTEN)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(path, Path(folder))
        if copy is None:
            raise InvalidSource(place, tool, WRITTEN)
        with contextlib.closing(apsw.Connection(str(copy))) as connection:
            yield connection


def _copied(path: Path, folder: Path) -> Path | None:
    """The file and what lies beside it, all of one moment; None if it is written all the time."""
    for _ in range(TRIES):
        before = _stamp(path)
        for suffix in BESIDE:
            target = folder / f"copy{suffix}"
            target.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", target)
        if _stamp(path) == before:
            return folder / "copy"
    return None


def _stamp(path: Path) -> Stamp:
    """Size and time of the file and of those beside it."""
    found: list[tuple[int, int] | None] = []
    for suffix in BESIDE:
        try:
            stat = os.stat(f"{path}{suffix}")
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)
