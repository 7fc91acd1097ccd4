"""Read the JSON and JSON Lines files of other tools.

Unreadable lines are counted in a `LossReport` and skipped. `json_values` reads what is in them.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from oakleaf.core.json_repair import INVALID_JSON, repair_json
from oakleaf.ingest.records import LossReport
from oakleaf_importers.formats.source_files import (
    LINK_OUT,
    NOT_REGULAR,
    leads_to,
    max_bytes,
    read_bytes,
    too_large,
)
from oakleaf_importers.formats.zstd import SUFFIX, open_compressed

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longer lines are counted and skipped: no provider accepts a request half as large, and decoding takes four times the memory."""
WRITTEN_SECONDS = 600
"""A file that was written within this time may be in the middle of an answer: a thought or a long file takes minutes."""
SETTLING_SECONDS = 5
"""A file that was written within this time may be between two lines that are written at once."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_objects(path: Path, losses: LossReport) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file. A line that a crash cut in half is counted and skipped."""
    try:
        state, limit = path.stat(), max_bytes()
        if not stat.S_ISREG(state.st_mode):  # opening a pipe would wait for its writer
            losses.add(NOT_REGULAR, path.name)
            return
        if state.st_size > limit:
            losses.add(f"a file of {too_large(limit)}", path.name)
            return
        with open_compressed(path) if path.suffix == SUFFIX else path.open("rb") as file:
            for number, line in enumerate(_lines(file, limit), 1):
                if line is None:
                    losses.item_count += 1
                    losses.misread("a line longer than 64 MB", f"{path.name}:{number}")
                    continue
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if not line.strip():
                    continue
                losses.item_count += 1
                try:
                    value = decode_json(line, losses, f"{path.name}:{number}")
                except INVALID_JSON:
                    losses.misread("a line that is not JSON", f"{path.name}:{number}")
                    continue
                if isinstance(value, dict):
                    yield value
                else:
                    losses.misread("a line that is not a JSON object", f"{path.name}:{number}")
    except OSError as error:  # the next file may be readable
        losses.misread("a file that cannot be read", f"{path.name}: {error.strerror}")
    except ValueError as error:
        losses.add(f"a file that was not read: {error}", path.name)


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """Yield the lines of a file, None for a line too long to hold in memory.

    `ValueError` if the file unpacks to more than `limit` bytes.
    """
    size, is_rest = 0, False
    while line := file.readline(MAX_LINE_BYTES):
        size += len(line)
        if size > limit:
            raise ValueError(f"it has {too_large(limit)}")
        is_whole = len(line) < MAX_LINE_BYTES or line.endswith(b"\n")
        if not is_rest:
            yield line if is_whole else None
        is_rest = not is_whole


def seconds_since_written(path: Path) -> float:
    """Return the seconds since the file was written: the last answer may not be complete yet."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float(WRITTEN_SECONDS)


def decode_json(text: bytes, losses: LossReport, location: str) -> object:
    """Decode JSON, replacing lone surrogates: JavaScript leaves one when it cuts a string inside an emoji."""
    try:
        return msgspec.json.decode(text)
    except INVALID_JSON:
        value: object = msgspec.json.decode(repair_json(text))
        losses.add("half a character, replaced by U+FFFD", location)
        return value


def read_json(path: Path, losses: LossReport, *, within: Path | None = None) -> object:
    """Return the value of a JSON file; None if unreadable, or outside of the folder `within`."""
    if within is not None and not leads_to(within.resolve(), path):
        losses.add(LINK_OUT, path.name)
        return None
    try:
        data = read_bytes(path)
    except OSError:
        return None
    except ValueError as error:
        losses.misread("a file that cannot be read", f"{path.name}: {error}")
        return None
    try:
        return decode_json(data, losses, path.name)
    except INVALID_JSON:
        return None


def read_optional_json(path: Path, losses: LossReport, description: str) -> dict[str, Any]:
    """Return the JSON object of a file beside another; an unreadable file is counted as `description`."""
    value = read_json(path, losses, within=path.parent)
    if value is None and path.exists():
        losses.add(description, path.name)
    return value if isinstance(value, dict) else {}
