"""Files of JSON lines, as most tools write them: found, read line by line, what is broken counted and passed over."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..core.usage import MAX_COUNT
from ..errors import BoughError, InvalidSource
from .records import LossReport

INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNEXPECTED_SHAPE = (BoughError, TypeError, AttributeError, KeyError, ValueError)
"""What reading raises if a value is not of the shape it claims: `wire` trusts the types an SDK gave."""
_USUAL = str.maketrans("-_", "+/")
_HALF = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def find_files(place: str, tool: str, pattern: str = "*.jsonl") -> Iterator[Path]:
    """The file itself, or every file of that name below a folder, in the order of their names."""
    where = Path(place).expanduser()
    if where.is_file():
        yield where
        return
    if not where.is_dir():
        raise InvalidSource(place, tool, "there is no such file or folder")
    found = sorted(where.rglob(pattern))
    if not found:
        raise InvalidSource(place, tool, f"the folder holds no {pattern}")
    yield from found


def read_objects(path: Path, losses: LossReport) -> Iterator[dict[str, Any]]:
    """The objects of a file. A line cut in half, as a crash leaves it, costs itself and no more."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    found = decode_json(line, losses, f"{path.name}:{number}")
                except INVALID_JSON:
                    losses.add("a line that is no JSON", f"{path.name}:{number}")
                    continue
                if isinstance(found, dict):
                    yield found
                else:
                    losses.add("a line that is no object", f"{path.name}:{number}")
    except OSError as error:  # of this file; the next may be fine
        losses.add("a file that cannot be read", f"{path.name}: {error.strerror}")


def decode_json(text: bytes, losses: LossReport, where: str) -> object:
    """JSON as tools write it: JavaScript that cuts a text in the middle of an emoji leaves half a character."""
    try:
        return msgspec.json.decode(text)
    except INVALID_JSON:
        whole = text.decode("utf-8", "replace").encode()
        mended = _HALF.sub(lambda half: rb"\ufffd" if half[1] else half[0], whole)
        if mended == text:
            raise
        found: object = msgspec.json.decode(mended)
        losses.add("half a character; a sign stands in its place", where)
        return found


def parse_time(time: object) -> int | None:
    """Microseconds since 1970 from what tools write: an ISO text, seconds or milliseconds; None if it is neither.

    A text without a zone is UTC: databases write such ones.
    """
    if isinstance(time, bool) or time is None:
        return None
    try:
        if isinstance(time, int | float):
            seconds = time / 1_000 if time > 100_000_000_000 else time
            return round(seconds * 1_000_000) if 0 <= seconds < 10**11 else None
        found = datetime.fromisoformat(str(time))
        stamp = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        return round(stamp * 1_000_000) if stamp >= 0 else None
    except (ValueError, OverflowError):
        return None


def text_or_none(value: object) -> str | None:
    """A text that says something; None if it is anything else."""
    return value if isinstance(value, str) and value.strip() else None


def token_counts(usage: object, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Tokens by name, 0 where none are told; None if what is told is no count."""
    if not isinstance(usage, dict):
        return None
    found = [usage.get(name, 0) for name in names]
    return tuple(found) if all(type(one) is int and 0 <= one <= MAX_COUNT for one in found) else None


def gemini_signature(value: object) -> str | None:
    """A signature as Gemini takes it back: base64 in its usual alphabet; None if it is anything else."""
    try:
        said = value.translate(_USUAL) if isinstance(value, str) else ""
        return said if base64.b64decode(said, validate=True) else None
    except ValueError:
        return None
