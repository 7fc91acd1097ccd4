"""Whether a web page sent a request: by Host, Origin and Sec-Fetch-Site, which no page can change.

A page of any site can make a browser send requests to this machine, and by DNS rebinding under a name of its own.
"""

from __future__ import annotations

import re

_LOOPBACK_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::([0-9]{1,5}))?", re.IGNORECASE)
MAX_PORT = 65_535


def is_loopback_host(host: str) -> bool:
    """Whether a whole Host header names the local machine: a name continued behind a bracket is another name."""
    match = _LOOPBACK_HOST.fullmatch(host)
    return match is not None and int(match[1] or 0) <= MAX_PORT


def is_cross_site(origin: str | None, site: str | None, host: str) -> bool:
    """Whether a page of another site sent a request to `host`.

    Programs send neither Origin nor Sec-Fetch-Site. The origin of a page in a sandbox, or of a file, is `null`.
    """
    if site is not None and site not in ("same-origin", "none"):
        return True
    return origin is not None and origin.partition("://")[2].lower() != host.lower()
