"""How many requests are answered at once, and how many of them for one caller.

A request that waits, such as an event stream or a body that comes slowly, keeps its place. So that nobody takes all
places, each caller has a share: a token its own, and those without one share by address. What each level may take together
leaves room for the others.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from oakleaf_server.problems import Refusal

if TYPE_CHECKING:
    from oakleaf_server.auth import Caller

LOGIN = "/api/login"
HEALTH = "/healthz"
CLIENT_REQUESTS, CLIENT_STREAMS = 32, 16
"""For one client; its event streams count as requests, too."""
ADDRESS_REQUESTS, ADDRESS_LOGINS = 32, 8
"""For one address without a token. Logins count on their own: slow ones leave the pages of the viewer reachable."""


def max_connections() -> int:
    """Return the number of connections to accept: half of the files the process may open, at most 2,000."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows limits handles, not files
        return 2_000
    return min(2_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class Capacity:
    """Counts the requests under way, in total and per caller."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._counts: Counter[Hashable] = Counter()

    def take(self, scope: Any, caller: Caller | None) -> tuple[Hashable, ...]:
        """Take a place for a request, for `give`; raise `Refusal` without a place for the caller.

        Whether the server is alive is answered without one.
        """
        shares = {} if scope["path"] == HEALTH else self._shares(scope, caller)
        for share, limit in shares.items():
            if self._counts[share] >= limit:
                raise _refusal(share, limit)
        self._counts.update(shares.keys())
        return tuple(shares)

    def give(self, shares: tuple[Hashable, ...]) -> None:
        """Give a place back."""
        for share in shares:
            self._counts[share] -= 1
            if not self._counts[share]:
                del self._counts[share]

    def _shares(self, scope: Any, caller: Caller | None) -> dict[Hashable, int]:
        """Return a request's counters, with the limit of each, the caller's own first."""
        total, path = self._total, scope["path"]
        is_stream = path.startswith("/api/") and path.endswith("/events")
        if caller is None:
            name = "logins" if path == LOGIN else "requests"
            address = _network(scope)
            limit = ADDRESS_LOGINS if path == LOGIN else ADDRESS_REQUESTS
            return {(name, address): limit, "strangers": total // 8, "all": total}
        if caller.is_client:
            own: dict[Hashable, int] = {("requests", "client", caller.owner): CLIENT_REQUESTS}
            if is_stream:
                own = {("streams", "client", caller.owner): CLIENT_STREAMS, **own}
            return {**own, "clients": total * 5 // 8, "all": total}
        streams: dict[Hashable, int] = {"event streams": total // 2} if is_stream else {}
        return {**streams, "service": total * 3 // 4, "all": total}


def _network(scope: Any) -> str:
    """Return the address of a request; of IPv6 the network, as a machine has any number of addresses there."""
    host = (scope.get("client") or ("", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _refusal(share: Hashable, limit: int) -> Refusal:
    if isinstance(share, tuple):
        what = f"{limit:,} {share[0]} of this caller are being answered"
        return Refusal(429, "too_many_requests", what, "wait for one to end, or end an event stream")
    what = (
        f"{limit:,} requests are being answered"
        if share == "all"
        else f"{limit:,} places for {share} are taken"
    )
    return Refusal(503, "too_many_requests", what, "try later")
