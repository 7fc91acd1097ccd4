"""Read the JSON Lines files of other tools, and the times, texts and token counts in them.

Unreadable lines are counted in a `LossReport` and skipped.
"""

from __future__ import annotations

import base64
import re
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..core.codec import to_json
from ..core.usage import MAX_COUNT
from ..errors import BoughError, InvalidSource, InvalidValue
from .records import LossReport

INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNEXPECTED_SHAPE = (BoughError, TypeError, AttributeError, KeyError, ValueError)
"""What a parser raises for a value of the wrong shape: `wire` relies on the types of an SDK."""
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longer lines are counted and skipped: no provider accepts a request half as large, and decoding takes four times the memory."""
WRITTEN_SECONDS = 600
"""A file that was written within this time may be in the middle of an answer: a thought or a long file takes minutes."""
SETTLING_SECONDS = 5
"""A file that was written within this time may be between two lines that are written at once."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STANDARD_BASE64 = str.maketrans("-_", "+/")
_LONE_SURROGATE = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def find_files(source: str, tool: str, pattern: str = "*.jsonl") -> Iterator[Path]:
    """Yield the file itself, or the files below a folder that match `pattern`, sorted by path."""
    path = Path(source).expanduser()
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        reason = "it is neither a file nor a folder" if path.exists() else "there is no such file or folder"
        raise InvalidSource(source, tool, reason)
    paths = sorted(path.rglob(pattern))
    if not paths:
        raise InvalidSource(source, tool, f"the folder has no {pattern}")
    yield from paths


def read_objects(path: Path, losses: LossReport) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file. A line that a crash cut in half is counted and skipped."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
            losses.add("a file that is not a regular one", path.name)
            return
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), 1):
                if line is None:
                    losses.add("a line longer than 64 MB", f"{path.name}:{number}")
                    continue
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if not line.strip():
                    continue
                try:
                    value = decode_json(line, losses, f"{path.name}:{number}")
                except INVALID_JSON:
                    losses.add("a line that is not JSON", f"{path.name}:{number}")
                    continue
                if isinstance(value, dict):
                    yield value
                else:
                    losses.add("a line that is not a JSON object", f"{path.name}:{number}")
    except OSError as error:  # the next file may be readable
        losses.add("a file that cannot be read", f"{path.name}: {error.strerror}")


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines of a file, None for each that is too long: it is never held in memory."""
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None


def seconds_since_written(path: Path) -> float:
    """Return how long ago the file was written: its last answer may not be complete yet."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float(WRITTEN_SECONDS)


def decode_json(text: bytes, losses: LossReport, location: str) -> object:
    """Decode JSON, replacing lone surrogates: JavaScript leaves one when it cuts a string inside an emoji."""
    try:
        return msgspec.json.decode(text)
    except INVALID_JSON:
        valid_utf8 = text.decode("utf-8", "replace").encode()
        repaired = _LONE_SURROGATE.sub(lambda match: rb"\ufffd" if match[1] else match[0], valid_utf8)
        if repaired == text:
            raise
        value: object = msgspec.json.decode(repaired)
        losses.add("half a character, replaced by U+FFFD", location)
        return value


def parse_time(time: object) -> int | None:
    """Return microseconds since 1970 for an ISO time, seconds or milliseconds; None for anything else.

    A time without a zone is UTC, as databases write it.
    """
    if isinstance(time, bool) or time is None:
        return None
    try:
        if isinstance(time, int | float):
            seconds = time / 1_000 if time > 100_000_000_000 else time
            return round(seconds * 1_000_000) if 0 <= seconds < 10**11 else None
        date = datetime.fromisoformat(str(time))
        stamp = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        return round(stamp * 1_000_000) if stamp >= 0 else None
    except (ValueError, OverflowError):
        return None


def text_or_none(value: object) -> str | None:
    """Return the value if it is a string that is not blank, else None."""
    return value if isinstance(value, str) and value.strip() else None


def token_counts(usage: object, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the token counts under these names, 0 where one is missing; None if one is not a valid count."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name, 0) for name in names]
    return tuple(counts) if all(type(count) is int and 0 <= count <= MAX_COUNT for count in counts) else None


def is_storable(value: object) -> bool:
    """Whether every store can keep the value as JSON."""
    try:
        to_json(value, "value")
    except InvalidValue:
        return False
    return True


def gemini_signature(value: object) -> str | None:
    """Return a Gemini signature in standard base64, as the API expects it; None if it is not base64."""
    try:
        signature = value.translate(_STANDARD_BASE64) if isinstance(value, str) else ""
        return signature if base64.b64decode(signature, validate=True) else None
    except ValueError:
        return None


def json_object(value: object) -> dict[str, Any]:
    """Return the value, or the JSON text it is, as a dict; empty if it is not a JSON object."""
    try:
        parsed = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    except (*INVALID_JSON, UnicodeEncodeError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
