"""The files of a source: which of them an import may read, and how much of each.

A user names a file or a folder; everything in it is data of others. So a link in a folder that leads out of it is not
followed, and no file is read without an end. This module knows no tool's files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from oakleaf.errors import InvalidArgument, InvalidSource
from oakleaf.ingest.records import LossReport

MAX_BYTES = 1 << 30
"""How much is read of one file, or unpacked from one archive, unless `LIMIT_VARIABLE` says more."""
LIMIT_VARIABLE = "OAKLEAF_IMPORT_MAX_BYTES"
LINK_OUT = "a link that leads out of the folder; name its target to import it"
DENIED = "a folder that this user may not read"
NOT_REGULAR = "a file that is not a regular one"


def max_bytes() -> int:
    """Return the maximum number of bytes read from one file, or unpacked from one archive."""
    named = os.environ.get(LIMIT_VARIABLE)
    if not named:
        return MAX_BYTES
    if not (named.isascii() and named.isdecimal() and int(named[:20]) > 0):
        raise InvalidArgument(LIMIT_VARIABLE, named, f"a number of bytes, such as {MAX_BYTES}")
    return int(named[:20])


def too_large(limit: int) -> str:
    """Return the reason for a skipped file, and the setting for reading the file."""
    return f"more than {limit:,} bytes; set {LIMIT_VARIABLE} to read it"


def find_files(source: str, tool: str, losses: LossReport, *patterns: str) -> list[Path]:
    """Return the file itself, or the files of a folder matching one of the glob patterns, sorted by path."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        reason = "it is neither a file nor a folder" if path.exists() else "there is no such file or folder"
        raise InvalidSource(source, tool, reason)
    paths = files_within(path, losses, *patterns)
    if not paths and not losses:
        names = " or ".join(pattern.removeprefix("**/") for pattern in patterns)
        raise InvalidSource(source, tool, f"the folder has no {names}")
    return paths


def files_within(folder: Path, losses: LossReport, *patterns: str) -> list[Path]:
    """Return the files of a folder matching the patterns; count links out of the folder.

    So are folders in it that this user may not read; `PermissionError` for the folder itself.
    """
    check_readable(folder)
    if any("/" in pattern for pattern in patterns):
        for _ in os.walk(folder, onerror=lambda error: losses.add(DENIED, str(error.filename))):
            pass
    return only_within(folder, sorted({file for each in patterns for file in folder.glob(each)}), losses)


def check_readable(folder: Path) -> None:
    """Raise `PermissionError` for an unreadable folder: a search would find nothing without an error."""
    with os.scandir(folder):
        os.stat(folder / ".")


def only_within(folder: Path, paths: Iterable[Path], losses: LossReport) -> list[Path]:
    """Return the paths inside the folder after following links; count the rest."""
    root, kept = folder.resolve(), []
    for path in paths:
        if leads_to(root, path):
            kept.append(path)
        else:
            losses.add(LINK_OUT, path.name)
    return kept


def leads_to(root: Path, path: Path) -> bool:
    """Return whether a path, links followed, is below the resolved `root`."""
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a circle of links
        return False


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file; `ValueError` for a file other than regular or larger than `max_bytes`."""
    limit = max_bytes()
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
        raise ValueError(NOT_REGULAR)
    with path.open("rb") as file:
        data = file.read(limit + 1) if os.fstat(file.fileno()).st_size <= limit else None
    if data is None or len(data) > limit:
        raise ValueError(f"it has {too_large(limit)}")
    return data


def jsonl_source(root: Path, file: Path) -> Path | None:
    """Return a changed file itself, of a tool with a JSON Lines file per session."""
    return file if file.suffix == ".jsonl" else None


def config_folders(name: str) -> tuple[str, ...]:
    """Return the candidate data folders of a program on Linux, macOS and Windows."""
    return tuple(f"~/{root}/{name}" for root in (".config", "Library/Application Support", "AppData/Roaming"))
