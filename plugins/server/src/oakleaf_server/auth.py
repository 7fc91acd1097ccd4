"""Authentication and request checks: tokens, Host, cross-site requests, body sizes, slow bodies.

An ASGI middleware around the application, so that no handler is reached unchecked. Tokens are compared in constant
time. Knows HTTP; does not know sessions.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Callable
from typing import Any, Literal

from litestar.types import ASGIApp, Receive, Send
from msgspec import Struct

from oakleaf.errors import TokenRequired
from oakleaf_server.capacity import LOGIN, Capacity
from oakleaf_server.host_header import LOOPBACK, host_name, is_address, is_cross_site, is_loopback
from oakleaf_server.problems import MEDIA_TYPE, Refusal
from oakleaf_server.sender import ResponseSender

LOGIN_SECONDS = 7 * 24 * 3600
LOGIN_BODY_SECONDS = 5.0
IMPORT = "/api/import"
_LOGIN = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})")
_PORT = re.compile(r":([0-9]{1,5})$")
_UNCLEAR = re.compile(rb"//|/\.\.?(?:/|$)|\\|[^/]/$|[\x00-\x20\x7f]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")
_PLAIN = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/\\\x7f" + bytes(range(32))
)
"""Bytes that a path holds as they are, or not at all."""


class Caller(Struct, frozen=True):
    """The holder of the token sent with a request."""

    level: Literal["service", "client"] = "service"
    owner: str | None = None
    person: str | None = None
    """Who holds a service token of a person's own."""

    @property
    def is_client(self) -> bool:
        return self.level == "client"


class AccessSettings(Struct, frozen=True, kw_only=True):
    """The allowed callers of the server, and the limits on requests."""

    host: str = "127.0.0.1"
    token: str | None = None
    client_tokens: dict[str, str] = {}
    """Tokens by owner."""
    persons: dict[str, str] = {}
    """Service tokens by the name of the person who holds each."""
    accepts_names: bool = False
    """Whether the holder of the nameless service token may name who decides: a service that knows its users."""
    internal_token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 1_000_000
    max_import_bytes: int = 256_000_000
    body_timeout: float = 30.0
    """Seconds in which a request body has to come; of a bundle, the longest pause within it."""

    def __post_init__(self) -> None:
        tokens = [
            token
            for token in (
                self.token,
                self.internal_token,
                *self.client_tokens.values(),
                *self.persons.values(),
            )
            if token is not None
        ]
        if any(not token.strip() for token in tokens):
            raise TokenRequired(self.host, "a token is empty", "give it a value or leave it out")
        if not is_loopback(self.host) and self.token is None:
            raise TokenRequired(self.host)
        if self.token is None and (self.client_tokens or self.persons):
            raise TokenRequired(self.host, "tokens of clients and persons require a service token")

    def caller(self, token: str | None) -> Caller | None:
        """Return the caller of a token, or None. Compares every token, so that timing reveals nothing."""
        if self.token is None:
            return Caller()
        secret = (token or "").encode("utf-8", "surrogateescape")
        return self._first(lambda token: hmac.compare_digest(secret, token.encode()))

    def login_cookie(self, token: str, now: float) -> str:
        """Return a cookie's value as an expiring proof of login. It does not contain the token."""
        expires = int(now) + LOGIN_SECONDS
        return f"{expires}.{_signature(token, expires)}"

    def cookie_caller(self, value: str | None, now: float) -> Caller | None:
        """Return the caller of a login cookie, or None; a cookie ends with the token or after `LOGIN_SECONDS`."""
        if self.token is None:
            return Caller()
        match = _LOGIN.fullmatch(value or "")
        if match is None or int(match[1]) < now:
            return None
        expires, signature = int(match[1]), match[2]
        return self._first(lambda token: hmac.compare_digest(signature, _signature(token, expires)))

    def _first(self, matches: Callable[[str], bool]) -> Caller | None:
        """Return the caller of the first matching token; try all tokens, so timing reveals nothing."""
        assert self.token is not None
        caller = Caller() if matches(self.token) else None
        for person, own_token in self.persons.items():
            if matches(own_token):
                caller = caller or Caller(person=person)
        for owner, client_token in self.client_tokens.items():
            if matches(client_token):
                caller = caller or Caller("client", owner)
        return caller

    def is_internal_token(self, token: str | None) -> bool:
        secret = (token or "").encode("utf-8", "surrogateescape")
        return self.internal_token is not None and hmac.compare_digest(secret, self.internal_token.encode())

    def allows_host(self, host: str) -> bool:
        """Whether a Host header is allowed: DNS rebinding makes a browser send another site's name."""
        name = host_name(host)
        if name is None:
            return False
        if name in self.allowed_hosts or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return name in LOOPBACK
        return is_address(name) and (self.host in ("0.0.0.0", "::") or name in LOOPBACK)


def _signature(token: str, expires: int) -> str:
    return hmac.digest(token.encode(), b"oakleaf login %d" % expires, "sha256").hex()


def cookie_name(host: str) -> str:
    """Return the cookie's name for a Host header: browsers share cookies between all ports of a host."""
    port = _PORT.search(host)
    return f"oakleaf_login_{port[1] if port else 80}"


def token_required() -> Refusal:
    return Refusal(401, "no_token", "a token is required", "send Authorization: Bearer TOKEN, or log in")


class AuthMiddleware:
    """Checks every request and answers refused requests."""

    def __init__(self, app: ASGIApp, access: AccessSettings, capacity: Capacity) -> None:
        self.app, self.access, self._capacity = app, access, capacity

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # web sockets are not supported
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        is_api, is_head = scope["path"].startswith("/api"), scope["method"] == "HEAD"
        sender = ResponseSender(send, headers, is_api=is_api, is_head=is_head)
        if is_head:
            scope["method"] = "GET"  # answered like GET, by the sender without a body
        try:
            self._admit(scope, headers)
            place = self._capacity.take(scope, scope["state"]["caller"])
        except Refusal as refusal:
            await _send_problem(sender, refusal)
            return
        try:
            await self.app(scope, self._with_timeout(receive, scope["path"]), sender)
        finally:
            self._capacity.give(place)

    def _with_timeout(self, receive: Receive, path: str) -> Receive:
        seconds = self.access.body_timeout
        if path == LOGIN:  # open to everybody, and short
            seconds = min(seconds, LOGIN_BODY_SECONDS)
        return _with_timeout(receive, seconds, is_long=path == IMPORT)

    def _admit(self, scope: Any, headers: dict[str, str]) -> None:
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(hosts) != 1 or not self.access.allows_host(headers["host"]):
            raise Refusal(
                400,
                "bad_host",
                "the Host header is not allowed",
                "start oakleaf serve with --allow-host NAME",
            )
        check_path(scope.get("raw_path") or scope["path"].encode())
        path = scope["path"]
        self._check_size(path, headers)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            check_same_site(headers)
            check_content_type(path, headers)
        caller = self._caller(headers)
        if caller is None and (path == "/api" or path.startswith("/api/")) and path != LOGIN:
            raise token_required()
        scope.setdefault("state", {})["caller"] = caller

    def _caller(self, headers: dict[str, str]) -> Caller | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.access.caller(token.strip())
        return self.access.cookie_caller(login_cookie(headers), time.time())

    def _check_size(self, path: str, headers: dict[str, str]) -> None:
        length = headers.get("content-length", "0")
        limit = self.access.max_import_bytes if path == IMPORT else self.access.max_body_bytes
        if not length.isdecimal() or len(length) > 15 or int(length) > limit:
            raise Refusal(413, "too_large", f"the body is larger than {limit:,} bytes")


def check_same_site(headers: dict[str, str]) -> None:
    """Refuse cross-site requests: another site's page cannot set the header or send our origin."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if is_cross_site(origin, headers.get("sec-fetch-site"), host):
        raise Refusal(403, "cross_site", "cross-site requests may not change anything")
    if origin is None and headers.get("x-oakleaf") != "1":
        raise Refusal(403, "cross_site", "the X-Oakleaf: 1 header is missing")


def check_content_type(path: str, headers: dict[str, str]) -> None:
    expected = "application/octet-stream" if path == IMPORT else "application/json"
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if content_type != expected and (has_body or content_type):
        raise Refusal(
            415, "wrong_content_type", f"the body must be {expected}", f"send Content-Type: {expected}"
        )


def check_path(raw_path: bytes) -> None:
    """Refuse a path with a second spelling: the check here, the routing behind and the check of a server
    before must see the same path.
    """
    escapes = (int(match[1] or b"0", 16) for match in _ESCAPE.finditer(raw_path))
    if _UNCLEAR.search(raw_path) or any(byte in _PLAIN for byte in escapes):
        raise Refusal(
            400,
            "bad_path",
            "the path is not in its plain form",
            "write it without //, dot segments, a slash at its end, and escapes of slashes, letters, digits and -._~",
        )


def login_cookie(headers: dict[str, str]) -> str | None:
    """Return the login cookie of a request. Other applications' cookies may have any form."""
    name = cookie_name(headers.get("host", ""))
    pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
    return next((value for key, _, value in pairs if key == name), None)


def _with_timeout(receive: Receive, seconds: float, *, is_long: bool) -> Receive:
    """Time out while a body is being received: after the given seconds in all, or without data for a long
    body.

    After its end, wait for a disconnect without limit.
    """
    end = asyncio.get_running_loop().time() + seconds
    is_complete = False

    async def wait() -> Any:
        nonlocal is_complete, end
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(end):
                message = await receive()
        except TimeoutError:
            raise Refusal(408, "too_slow", f"the body did not come within {seconds:g} s") from None
        if is_long:
            end = asyncio.get_running_loop().time() + seconds
        is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return wait


async def _send_problem(send: ResponseSender, refusal: Refusal) -> None:
    problem = refusal.problem
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(problem.body)).encode())]
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    headers.append((b"connection", b"close"))  # do not wait for an unread body
    start: Any = {"type": "http.response.start", "status": problem.status, "headers": headers}
    await send(start)
    body: Any = {"type": "http.response.body", "body": problem.body, "more_body": False}
    await send(body)
