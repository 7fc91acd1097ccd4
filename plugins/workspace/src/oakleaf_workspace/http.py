"""HTTP requests to public addresses only.

A host name is resolved once, all its addresses are checked, and the connection is made to a checked address: what the
name resolves to a moment later does not matter. Each redirect is checked in the same way. Does not know proxies,
cookies or compressed responses.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urljoin

from msgspec import Struct

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf.ext import Target, resolve_target
from oakleaf_workspace.files import Spill, text_of, truncate

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MAX_REDIRECTS = 5
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONNECTION_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"}
)
_SAFE_HEADERS = frozenset({"accept", "accept-language", "user-agent"})
"""The only headers sent on to another host: any other may be a credential."""
_CHARSETS = frozenset({"utf-8", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16", "shift_jis"})


class HttpResponse(Struct, frozen=True):
    url: str
    """The URL that answered, after redirects."""
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_complete: bool
    """False: the body was longer than the limit and is cut."""


class HttpTools:
    """HTTP for a session. `hosts` may be reached at any address: `host` or `host:port`, in lower case."""

    def __init__(
        self,
        spill: Spill,
        hosts: frozenset[str] = frozenset(),
        resolver: Callable[[str, int], list[str]] | None = None,
        timeout: float = 30.0,
        max_bytes: int = 2 * 1024 * 1024,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._spill, self._hosts, self._resolver = spill, hosts, resolver
        self._timeout, self._max_bytes, self._tls = timeout, max_bytes, tls

    def http_request(
        self, method: str, url: str, headers: dict[str, str] | None = None, body: str | None = None
    ) -> str:
        """Make an HTTP request to a public address. Follows up to 5 redirects."""
        response = self.fetch(method, url, headers or {}, None if body is None else body.encode())
        return self._response_text(response)

    def preview(
        self, method: str, url: str, headers: dict[str, str] | None = None, body: str | None = None
    ) -> str:
        """Return the request without sending the request or resolving a name."""
        if method not in _METHODS:
            raise InvalidArgument("method", method, ", ".join(_METHODS))
        lines = [f"{name}: {value}" for name, value in _check_headers(headers or {}).items()]
        return "\n".join([f"would send {method} {_without_user(url)}", *lines, *([body] if body else [])])

    def fetch(
        self, method: str, url: str, headers: Mapping[str, str] = {}, body: bytes | None = None
    ) -> HttpResponse:
        """Return the response; raise OutOfScope if the URL or any redirect is not at a public address."""
        if method not in _METHODS:
            raise InvalidArgument("method", method, ", ".join(_METHODS))
        headers = _check_headers(headers)
        target = self._target(url)
        deadline = time.monotonic() + self._timeout
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._exchange(method, target, headers, body, deadline)
            location = dict(response.headers).get("location")
            if response.status not in _REDIRECT_STATUSES or not location:
                return response
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = ("HEAD" if method == "HEAD" else "GET"), None
                headers = {name: value for name, value in headers.items() if name != "content-type"}
            next_target = self._target(urljoin(target.url, location))
            if next_target.origin != target.origin:
                if body is not None:
                    raise _refuse(next_target.url, "a redirect would send the body to another host")
                headers = {name: value for name, value in headers.items() if name in _SAFE_HEADERS}
            target = next_target
        raise _refuse(url, f"it redirects more than {_MAX_REDIRECTS} times")

    def _target(self, url: str) -> Target:
        return resolve_target(url, self._hosts, self._resolver)

    def _exchange(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None, deadline: float
    ) -> HttpResponse:
        connection, shown_url = _Connection(target, deadline, self._tls), _without_user(target.url)
        # A socket's timeout restarts with every byte; the timer also ends a response that trickles.
        timer = threading.Timer(max(deadline - time.monotonic(), 0), connection.cut)
        timer.daemon = True
        timer.start()
        try:
            connection.request(method, target.path, body, {**headers, "Accept-Encoding": "identity"})
            response = connection.getresponse()
            data = response.read(self._max_bytes + 1)
            if connection.is_late:
                raise TimeoutError
            if response.length and len(data) <= self._max_bytes:
                raise ConnectionError(
                    f"{shown_url} closed the connection with {response.length:,} bytes missing"
                )
            fields = tuple((name.lower(), value) for name, value in response.getheaders())
            is_complete = len(data) <= self._max_bytes
            return HttpResponse(
                target.url, response.status, response.reason, fields, data[: self._max_bytes], is_complete
            )
        except (OSError, ValueError, http.client.HTTPException) as error:
            if connection.is_late or isinstance(error, TimeoutError):
                raise TimeoutError(f"{shown_url} took longer than {self._timeout:g} s") from None
            if isinstance(error, OSError):
                raise
            raise ConnectionError(f"{shown_url} sent a response that is not HTTP: {error!r}") from None
        finally:
            timer.cancel()
            connection.close()

    def _response_text(self, response: HttpResponse) -> str:
        """Return the response as text for the model, without cookies, as cookies are credentials."""
        fields = dict(response.headers)
        lines = [f"{response.status} {response.reason} {_without_user(response.url)}"]
        lines += [f"{name}: {value}" for name, value in response.headers if not name.startswith("set-cookie")]
        if not response.is_complete:
            lines.append(f"[only the first {self._max_bytes:,} bytes were read]")
        mime = fields.get("content-type", "application/octet-stream")
        if (b"\0" in response.body and "utf-16" not in mime.lower()) or fields.get("content-encoding"):
            handle = self._spill(response.body, mime.partition(";")[0].strip())
            lines.append(f"[{len(response.body):,} bytes that are not text, stored as {handle}]")
            return "\n".join(lines)
        return truncate("\n".join([*lines, "", _text(response.body, mime)]), self._spill)


class _Connection(http.client.HTTPConnection):
    """Connects to a checked address of the host, whatever the name resolves to by now."""

    def __init__(self, target: Target, deadline: float, tls: ssl.SSLContext | None) -> None:
        super().__init__(target.host, target.port)
        # So that the Host header leaves out the default port of https too.
        self.default_port = 443 if target.scheme == "https" else 80
        self._target, self._deadline, self._tls = target, deadline, tls
        self._socket: socket.socket | None = None
        self.is_late = False

    def connect(self) -> None:
        raw = self._open_socket()
        self._socket = self.sock = raw
        if self._target.scheme == "https":
            secure = (self._tls or ssl.create_default_context()).wrap_socket(
                raw, server_hostname=self._target.host, do_handshake_on_connect=False
            )
            self._socket = self.sock = secure
            secure.do_handshake()

    def _open_socket(self) -> socket.socket:
        failure: OSError = TimeoutError()
        for address in self._target.addresses:
            seconds = self._deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            try:
                return socket.create_connection((address, self._target.port), timeout=seconds)
            except OSError as error:
                failure = error
        raise failure

    def cut(self) -> None:
        """Close the socket from another thread to end a blocked read. Not by SSLSocket's own shutdown, which
        would
        break the reader."""
        self.is_late = True
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in _CONNECTION_HEADERS:
            raise InvalidArgument("header", name, "a valid name that does not control the connection")
        if not value.isascii() or not value.isprintable():
            raise InvalidArgument("header", name, "a value of printable ASCII")
        checked[name.lower()] = value
    return checked


def _text(body: bytes, mime: str) -> str:
    match = re.search(r"charset=[\"']?([\w-]+)", mime.lower())
    charset = match.group(1) if match else "utf-8"
    return body.decode(charset, "replace") if charset in _CHARSETS else text_of(body)


def _refuse(url: str, reason: str) -> OutOfScope:
    return OutOfScope(_without_user(url), reason)


def _without_user(url: str) -> str:
    """Return the URL without user and password, for error messages."""
    return re.sub(r"//[^/?#]*@", "//…@", url)
