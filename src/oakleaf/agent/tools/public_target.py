"""The addresses open to a tool by HTTP: public addresses, and hosts named by the caller.

A host name is resolved once and all its addresses are checked, so that the caller connects to a checked address: what the
name resolves to a moment later does not matter. Sends nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from oakleaf.errors import OutOfScope

Resolver = Callable[[str, int], list[str]]
"""Returns the addresses of a host and port, as text."""

_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(net)
    for net in (
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata is among them
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # Azure's host, at an address that looks public
        "2001::/23",  # Teredo and other tunnels, which carry an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries an IPv4 address as well
        "3fff::/20",
    )
)


class Target(Struct, frozen=True):
    """A checked URL and the addresses to connect to."""

    url: str
    scheme: str
    host: str
    port: int
    path: str
    addresses: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


def resolve_target(url: str, hosts: frozenset[str], resolver: Resolver | None = None) -> Target:
    """Return the addresses of a URL. Raise OutOfScope unless all are public or the host is one of `hosts`."""
    parts = _parse_url(url)
    host = _host(parts, url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    literal = _ip_address(host)
    addresses = [literal] if literal else (resolver or _resolve)(host, port)
    if not addresses:
        raise _refuse(url, f"{host} has no address")
    if not {host, f"{host}:{port}", f"[{host}]:{port}"} & hosts:
        for address in addresses:
            if (reason := refusal(address)) is not None:
                raise _refuse(url, f"{host} is at {address}, {reason}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts._replace(fragment="").geturl(), parts.scheme, host, port, path, tuple(addresses))


def refusal(address: str) -> str | None:
    """Return the reason to refuse an address. None: the address is public."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "which is not an IP address"
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return "an IPv4 address written as IPv6"
        is_public = ip in _PUBLIC_V6 and ip.scope_id is None
    else:
        is_public = ip.is_global and not ip.is_reserved
    if ip.is_multicast:
        return "a multicast address"
    if not is_public or any(ip in net for net in _NOT_PUBLIC):
        return "which is private, loopback, link-local, a tunnel or reserved"
    return None


def _parse_url(url: str) -> SplitResult:
    # urlsplit drops tabs and line ends, and accepts backslashes, which other parsers read as slashes.
    if any(ord(char) <= 32 or ord(char) == 127 or char == "\\" for char in url):
        raise _refuse(url, "it contains a space, control character or backslash")
    if not url.isascii():
        raise _refuse(url, "it contains non-ASCII characters; encode them with % and xn--")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refuse(url, f"it is not a URL ({error})") from None
    if parts.scheme not in ("http", "https"):
        raise _refuse(url, "only http and https are supported")
    if "@" in parts.netloc:
        raise _refuse(url, "it contains a user or password; use a header")
    if port == 0 or parts.netloc.endswith(":"):
        raise _refuse(url, "its port is invalid")
    return parts


def _host(parts: SplitResult, url: str) -> str:
    host = (parts.hostname or "").removesuffix(".")
    is_v6 = parts.netloc.startswith("[")
    if not host or not (is_v6 or re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", host)) or "%" in host:
        raise _refuse(url, "it has no valid host name")
    last = host.rpartition(".")[2]
    if not is_v6 and _ip_address(host) is None and re.fullmatch(r"\d+|0x[0-9a-f]*", last):
        # Resolvers differ on which address 2130706433, 0x7f.1 or 0177.0.0.1 is.
        raise _refuse(url, f"{host} is an IP address in an unusual form")
    if is_v6 and _ip_address(host) is None:
        raise _refuse(url, f"{host} is not an IPv6 address")
    return host


def _ip_address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _refuse(url: str, reason: str) -> OutOfScope:
    return OutOfScope(re.sub(r"//[^/?#]*@", "//…@", url), reason)  # without user and password


def _resolve(host: str, port: int) -> list[str]:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
