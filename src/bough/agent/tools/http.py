"""One request to the web, and nowhere else.

Knows which addresses are public. A name is resolved once, every address it has is checked, and the
connection goes to an address that was checked: what the name says a moment later does not matter. Each
redirect starts again from there. Does not know proxies, cookies or compressed answers.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import SplitResult, urljoin, urlsplit

from msgspec import Struct

from ...errors import InvalidArgument, OutOfScope
from .files import Spill, text_of, truncate

Resolver = Callable[[str, int], list[str]]
"""Host and port to addresses, as text."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_REDIRECTS = 5
_REDIRECTING = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"}
)
_FOR_ANYONE = frozenset({"accept", "accept-language", "user-agent"})
"""All that goes along to another host: any other header may be a credential."""
_CHARSETS = frozenset({"utf-8", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16", "shift_jis"})

_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(net)
    for net in (
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata is among them
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # Azure's host, at an address that looks public
        "2001::/23",  # Teredo and other tunnels, which carry an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, likewise
        "3fff::/20",
    )
)


class HttpResponse(Struct, frozen=True):
    url: str
    """Where it came from, after redirects."""
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_whole: bool
    """False: the body was longer than what is read of one."""


class _Target(Struct, frozen=True):
    """A checked URL: where to connect, and what to call it."""

    url: str
    scheme: str
    host: str
    port: int
    path: str
    addresses: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


class HttpTools:
    """`hosts` names who may be reached wherever they are, as `host` or `host:port`, in lower case."""

    def __init__(
        self,
        spill: Spill,
        hosts: frozenset[str] = frozenset(),
        resolver: Resolver | None = None,
        timeout: float = 30.0,
        largest: int = 2 * 1024 * 1024,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._spill, self._hosts, self._resolver = spill, hosts, resolver or _resolved
        self._timeout, self._largest, self._tls = timeout, largest, tls

    def http_request(
        self, method: str, url: str, headers: dict[str, str] | None = None, body: str | None = None
    ) -> str:
        """Make an HTTP request to a public address. Follows up to 5 redirects."""
        return self._told(self.fetch(method, url, headers or {}, None if body is None else body.encode()))

    def fetch(
        self, method: str, url: str, headers: Mapping[str, str] = {}, body: bytes | None = None
    ) -> HttpResponse:
        """The answer as data; OutOfScope if it, or any redirect on the way, is not for us to reach."""
        if method not in _METHODS:
            raise InvalidArgument("method", method, ", ".join(_METHODS))
        headers = _clean(headers)
        target = self._target(url)
        ends_at = time.monotonic() + self._timeout
        for _ in range(_REDIRECTS + 1):
            answer = self._exchange(method, target, headers, body, ends_at)
            where = dict(answer.headers).get("location")
            if answer.status not in _REDIRECTING or not where:
                return answer
            if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                method, body = ("HEAD" if method == "HEAD" else "GET"), None
                headers = {name: value for name, value in headers.items() if name != "content-type"}
            following = self._target(urljoin(target.url, where))
            if following.origin != target.origin:
                if body is not None:
                    raise OutOfScope(_bare(following.url), "a redirect would take the body to another host")
                headers = {name: value for name, value in headers.items() if name in _FOR_ANYONE}
            target = following
        raise OutOfScope(_bare(url), f"it redirects more than {_REDIRECTS} times")

    def _target(self, url: str) -> _Target:
        parts = _split(url)
        host = _host(parts, url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        literal = _literal(host)
        addresses = [literal] if literal else self._resolver(host, port)
        if not addresses:
            raise OutOfScope(_bare(url), f"{host} has no address")
        if not {host, f"{host}:{port}", f"[{host}]:{port}"} & self._hosts:
            for address in addresses:
                if (why := refusal(address)) is not None:
                    raise OutOfScope(_bare(url), f"{host} is at {address}, {why}")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _Target(parts._replace(fragment="").geturl(), parts.scheme, host, port, path, tuple(addresses))

    def _exchange(
        self, method: str, target: _Target, headers: Mapping[str, str], body: bytes | None, ends_at: float
    ) -> HttpResponse:
        connection = _Connection(target, ends_at, self._tls)
        # Timeouts of a socket count from byte to byte; a server that trickles is cut off by the clock.
        watch = threading.Timer(max(ends_at - time.monotonic(), 0), connection.cut)
        watch.daemon = True
        watch.start()
        try:
            connection.request(method, target.path, body, {**headers, "Accept-Encoding": "identity"})
            found = connection.getresponse()
            data = found.read(self._largest + 1)
            if connection.is_late:
                raise TimeoutError
            if found.length and len(data) <= self._largest:
                raise ConnectionError(f"{_bare(target.url)} broke off, {found.length:,} bytes were to come")
            fields = tuple((name.lower(), value) for name, value in found.getheaders())
            is_whole = len(data) <= self._largest
            return HttpResponse(
                target.url, found.status, found.reason, fields, data[: self._largest], is_whole
            )
        except (OSError, ValueError, http.client.HTTPException) as error:
            if connection.is_late or isinstance(error, TimeoutError):
                raise TimeoutError(f"{_bare(target.url)} took longer than {self._timeout:g} s") from None
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"{_bare(target.url)} answered what is not HTTP: {error!r}") from None
        finally:
            watch.cancel()
            connection.close()

    def _told(self, answer: HttpResponse) -> str:
        """As a model is told. Cookies are credentials: they are left out."""
        fields = dict(answer.headers)
        lines = [f"{answer.status} {answer.reason} {_bare(answer.url)}"]
        lines += [f"{name}: {value}" for name, value in answer.headers if not name.startswith("set-cookie")]
        if not answer.is_whole:
            lines.append(f"[only the first {self._largest:,} bytes were read]")
        mime = fields.get("content-type", "application/octet-stream")
        if (b"\0" in answer.body and "utf-16" not in mime.lower()) or fields.get("content-encoding"):
            handle = self._spill(answer.body, mime.partition(";")[0].strip())
            return "\n".join([*lines, f"[{len(answer.body):,} bytes that are no text, kept as {handle}]"])
        return truncate("\n".join([*lines, "", _text(answer.body, mime)]), self._spill)


class _Connection(http.client.HTTPConnection):
    """To an address that was checked, whatever the name resolves to by now; in the host's name."""

    def __init__(self, target: _Target, ends_at: float, tls: ssl.SSLContext | None) -> None:
        super().__init__(target.host, target.port)
        # So that the Host header goes without the usual port of https, too.
        self.default_port = 443 if target.scheme == "https" else 80
        self._target, self._ends_at, self._tls = target, ends_at, tls
        self._wire: socket.socket | None = None
        self.is_late = False

    def connect(self) -> None:
        raw = self._reach()
        self._wire = self.sock = raw
        if self._target.scheme == "https":
            secure = (self._tls or ssl.create_default_context()).wrap_socket(
                raw, server_hostname=self._target.host, do_handshake_on_connect=False
            )
            self._wire = self.sock = secure
            secure.do_handshake()

    def _reach(self) -> socket.socket:
        failure: OSError = TimeoutError()
        for address in self._target.addresses:
            left = self._ends_at - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                return socket.create_connection((address, self._target.port), timeout=left)
            except OSError as error:
                failure = error
        raise failure

    def cut(self) -> None:
        """From another thread: wakes whoever reads. Not SSLSocket's own shutdown, which the reader would
        trip over."""
        self.is_late = True
        if self._wire is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._wire, socket.SHUT_RDWR)


def refusal(address: str) -> str | None:
    """Why an address is not to be reached; None if it is public."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "which is no address"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return "an IPv4 address dressed as IPv6"
        is_public = found in _PUBLIC_V6 and found.scope_id is None
    else:
        is_public = found.is_global and not found.is_reserved
    if found.is_multicast:
        return "a multicast address"
    if not is_public or any(found in net for net in _NOT_PUBLIC):
        return "which is private, loopback, link-local, a tunnel or reserved"
    return None


def _split(url: str) -> SplitResult:
    # urlsplit drops tabs and line ends and lets backslashes pass, which other readers take for slashes.
    if any(ord(char) <= 32 or ord(char) == 127 or char == "\\" for char in url):
        raise OutOfScope(_bare(url), "it holds a space, control character or backslash")
    if not url.isascii():
        raise OutOfScope(_bare(url), "it holds other characters than ASCII; write them as % and xn--")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OutOfScope(_bare(url), f"it is no URL ({error})") from None
    if parts.scheme not in ("http", "https"):
        raise OutOfScope(_bare(url), "only http and https are spoken")
    if "@" in parts.netloc:
        raise OutOfScope(_bare(url), "it holds a user or password; use a header")
    if port == 0 or parts.netloc.endswith(":"):
        raise OutOfScope(_bare(url), "its port is none")
    return parts


def _host(parts: SplitResult, url: str) -> str:
    host = (parts.hostname or "").removesuffix(".")
    is_v6 = parts.netloc.startswith("[")
    if not host or not (is_v6 or re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", host)) or "%" in host:
        raise OutOfScope(_bare(url), "it names no host")
    last = host.rpartition(".")[2]
    if not is_v6 and _literal(host) is None and re.fullmatch(r"\d+|0x[0-9a-f]*", last):
        # 2130706433, 0x7f.1, 0177.0.0.1: resolvers differ on which address that is.
        raise OutOfScope(_bare(url), f"{host} is an address in disguise")
    if is_v6 and _literal(host) is None:
        raise OutOfScope(_bare(url), f"{host} is no IPv6 address")
    return host


def _literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _clean(headers: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, str] = {}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise InvalidArgument("header", name, "a name that does not steer the connection itself")
        if not value.isascii() or not value.isprintable():
            raise InvalidArgument("header", name, "a value of printable ASCII")
        kept[name.lower()] = value
    return kept


def _text(body: bytes, mime: str) -> str:
    met = re.search(r"charset=[\"']?([\w-]+)", mime.lower())
    charset = met.group(1) if met else "utf-8"
    return body.decode(charset, "replace") if charset in _CHARSETS else text_of(body)


def _bare(url: str) -> str:
    """The URL for an error: a user and password in it are nobody's business."""
    return re.sub(r"//[^/?#]*@", "//…@", url)


def _resolved(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
