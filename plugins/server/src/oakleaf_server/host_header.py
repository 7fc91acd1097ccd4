"""What a request says about where it was sent and where it comes from: Host, Origin, Sec-Fetch-Site.

A page of any site can make a browser send requests to this machine, and by DNS rebinding under a name of its own. So a
server that trusts its neighbours checks both. Needs nothing of the extra `server`: the proxy checks the same.
"""

from __future__ import annotations

import ipaddress
import re

LOOPBACK = frozenset(["localhost", "127.0.0.1", "::1"])
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
MAX_PORT = 65_535


def host_name(host: str) -> str | None:
    """Return the name of a Host header in small letters, without brackets and port: `[::1]:8377`, `localhost:8377`.

    None if it is not of that form as a whole: a name that goes on behind a bracket is another name.
    """
    match = _HOST.fullmatch(host)
    if match is None or int(match[3] or 0) > MAX_PORT:
        return None
    if match[1] is not None:
        return match[1].lower() if is_address(match[1]) else None
    return match[2].lower()


def is_cross_site(origin: str | None, site: str | None, host: str) -> bool:
    """Whether a page of another site sent a request to `host`, by Origin and Sec-Fetch-Site, headers beyond a
    page's control.

    Programs send neither. The origin of a page in a sandbox, or of a file, is `null`.
    """
    if site is not None and site not in ("same-origin", "none"):
        return True
    return origin is not None and origin.partition("://")[2].lower() != host.lower()


def is_loopback(host: str) -> bool:
    return host.lower() in LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
