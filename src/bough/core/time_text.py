"""Parse times as people write them: `2026-11-01`, `2026-11-01T09:30`, or an age such as `7d`, `24h`, `30m`.

Without a zone a date is UTC: the same text means the same time on every host. The clock is an argument.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ..errors import InvalidArgument

_DURATION = re.compile(r"([0-9]{1,6})\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_FORMATS = (
    "a day (2026-11-01), a time (2026-11-01T09:30, UTC unless it names a zone) or an age (30m, 24h, 7d, 2w)"
)


def parse_duration(name: str, text: str) -> int:
    """Return a duration in microseconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(name, text, "a duration: 30m, 24h, 7d, 2w")
    return int(match[1]) * _SECONDS[match[2]] * 1_000_000


def parse_time(name: str, text: str, now: int) -> int:
    """Return a time in microseconds since 1970."""
    if _DURATION.fullmatch(text.strip()):
        return now - parse_duration(name, text)
    try:
        time = datetime.fromisoformat(text.strip())
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise InvalidArgument(name, text, TIME_FORMATS) from None
