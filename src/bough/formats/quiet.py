"""Whether a source has been left alone for a while: some tools do not mark what is finished."""

from __future__ import annotations

import time
from pathlib import Path

QUIET_SECONDS = 120


def is_quiet(path: Path, seconds: int = QUIET_SECONDS) -> bool:
    """Return whether the file has not changed within the last `seconds`."""
    try:
        return is_past(path.stat().st_mtime, seconds)
    except OSError:
        return False


def is_past(moment: float, seconds: int = QUIET_SECONDS) -> bool:
    """Return whether a time, in seconds since 1970, is at least `seconds` ago."""
    return time.time() - moment >= seconds
