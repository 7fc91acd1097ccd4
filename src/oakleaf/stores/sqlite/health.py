"""The health of a SQLite store's file, checked without opening it as a store.

Reads only: creates no file, holds no lock for long, migrates nothing. Sessions are checked by `oakleaf.log.doctor`.
"""

from __future__ import annotations

import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw

from oakleaf.errors import NotAStore, OakleafError, StoreDamaged
from oakleaf.stores.base import Finding
from oakleaf.stores.sqlite.file import FORMAT, check_format, may_write
from oakleaf.stores.sqlite.readonly import readonly_snapshot


def file_health(path: str) -> list[Finding]:
    """Check the file alone; the last finding is a problem if the file cannot be read as a store."""
    place = Path(path)
    try:
        if not place.is_file():
            raise NotAStore(path, "it is a device or pipe")
        with readonly_snapshot(path) as reader:
            inside = list(_inside(reader, path))
    except OakleafError as error:  # not a store: its mode and size do not matter
        return [Finding("problem", error.problem, error.command_hint, is_final=True)]
    return [_mode(place), _size(place), *_room(place), *inside]


def format_of(path: str) -> int:
    """Return the format of a file without opening a store; raise if the file is no store or too new."""
    with readonly_snapshot(path) as reader:
        return check_format(reader, path)


def _mode(place: Path) -> Finding:
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & 0o077:
        return Finding(
            "problem", f"others may read the file (mode {mode:o})", f"chmod 600 {shlex.quote(str(place))}"
        )
    return Finding("ok", f"only its owner may read the file (mode {mode:o})")


def _size(place: Path) -> Finding:
    sizes = [f"{place.stat().st_size / 1e6:,.1f} MB"]
    wal = Path(f"{place}-wal")
    if wal.exists():
        sizes.append(f"write-ahead log {wal.stat().st_size / 1e6:,.1f} MB")
    return Finding("ok", ", ".join(sizes))


def _room(place: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(place.parent).free
    if free < 2 * place.stat().st_size + 100_000_000:
        message = f"{free / 1e6:,.0f} MB of disk are free: too little for a backup next to it"
        yield Finding("warning", message)
    if not may_write(place):
        yield Finding(
            "problem",
            "the file or its folder cannot be written",
            f"ls -ld {shlex.join([str(place.parent), str(place)])}",
        )


def _inside(reader: apsw.Connection, path: str) -> Iterator[Finding]:
    version = check_format(reader, path)
    text = f"format {version // 1_000}.{version % 1_000}"
    if version < FORMAT:
        yield Finding("warning", f"{text} is older than this Oakleaf's", "oakleaf migrate --yes")
    else:
        yield Finding("ok", text)
    for (line,) in reader.execute("pragma quick_check(20)"):
        if line == "ok":
            yield Finding("ok", "SQLite finds no damaged page")
        else:
            damage = StoreDamaged(path, str(line))
            yield Finding("problem", f"SQLite: {line}", damage.command_hint, is_final=True)
    unused = int(reader.execute("pragma freelist_count").get)
    pages = int(reader.execute("pragma page_count").get)
    if pages and unused > pages // 4:
        yield Finding("warning", f"{unused / pages:.0%} of the file is unused; the next purge returns it")
