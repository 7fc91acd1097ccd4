"""Times as text. Parses what people write: `2026-11-01`, `yesterday`, `monday`, `2026-11-01T09:30`, or an age such as `7d`.

Without a zone a day or a time is local, as the clock on the wall of this machine. The present is an argument.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from oakleaf.errors import InvalidArgument

_DURATION = re.compile(r"([0-9]{1,6})\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_FORMATS = (
    "a day (2026-11-01, today, yesterday, monday … sunday), a time (2026-11-01T09:30), both local unless the time "
    "names a zone, or an age (30m, 24h, 7d, 2w)"
)


def parse_duration(name: str, text: str) -> int:
    """Return a duration in microseconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(name, text, "a duration: 30s, 30m, 24h, 7d, 2w")
    return int(match[1]) * _SECONDS[match[2]] * 1_000_000


def parse_time(name: str, text: str, now: int) -> int:
    """Return a time in microseconds since 1970; of a day the beginning, of a weekday the latest, today included."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return now - parse_duration(name, text)
    try:
        days = _days_ago(text.lower(), datetime.fromtimestamp(now / 1e6).weekday())
        time = datetime.fromisoformat(text) if days is None else _midnight(now, days)
        return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError, OSError):
        raise InvalidArgument(name, text, TIME_FORMATS) from None


def _days_ago(text: str, weekday: int) -> int | None:
    if text in ("today", "yesterday"):
        return int(text == "yesterday")
    matches = [n for n, day in enumerate(_WEEKDAYS) if text in (day, day[:3])]
    return (weekday - matches[0]) % 7 if matches else None


def _midnight(now: int, days: int) -> datetime:
    """Return the local midnight so many calendar days ago; a day may have 23 or 25 hours."""
    today = datetime.fromtimestamp(now / 1e6).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=days)


def iso(at: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC, exactly."""
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
