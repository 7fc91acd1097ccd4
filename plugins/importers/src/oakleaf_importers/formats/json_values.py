"""Read values of JSON that another program wrote: texts, times, token counts. Nothing about their types is taken for granted."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.core.usage import is_count
from oakleaf.errors import OakleafError

UNEXPECTED_SHAPE = (OakleafError, TypeError, AttributeError, KeyError, ValueError)
"""What a parser raises for a value of the wrong shape: `wire` relies on the types of an SDK."""
_STANDARD_BASE64 = str.maketrans("-_", "+/")


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
    """Return the value if a non-blank string, else None."""
    return value if isinstance(value, str) and value.strip() else None


def first_text(fields: Mapping[str, object], *names: str) -> str | None:
    """Return the first of the fields with a non-blank string."""
    return next((text for name in names if (text := text_or_none(fields.get(name)))), None)


def known_texts(**values: object) -> dict[str, str]:
    """Return the non-blank strings among the values."""
    return {name: text for name, value in values.items() if (text := text_or_none(value))}


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def dicts_in(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects of a list; none if the value is not a list."""
    return [item for item in as_list(value) if isinstance(item, dict)]


def required_text(value: object, description: str) -> str:
    """Return the string; `TypeError` for another value."""
    if not isinstance(value, str):
        raise TypeError(description)
    return value


def token_counts(usage: object, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the token counts under the names, 0 for a missing count; None for an invalid count."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(name, 0) for name in names]
    return tuple(counts) if all(map(is_count, counts)) else None


def gemini_signature(value: object) -> str | None:
    """Return a Gemini signature in the API's standard base64; None if invalid."""
    try:
        signature = value.translate(_STANDARD_BASE64) if isinstance(value, str) else ""
        return signature if base64.b64decode(signature, validate=True) else None
    except ValueError:
        return None


def json_object(value: object) -> dict[str, Any]:
    """Return the value, or the value's JSON text, as a dict; empty for anything but a JSON object."""
    try:
        parsed = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    except (*INVALID_JSON, UnicodeEncodeError):
        return {}
    return as_dict(parsed)
