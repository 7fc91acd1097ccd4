"""Spans on their way to a collector: OTLP over HTTP, each line a request.

Knows addresses, headers and what a collector answers. Does not know spans. Sending again does no harm: the ids are the
same. A redirect is not followed: it would lose what was sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

import msgspec
from msgspec import Struct

from .rendering.error_text import FAILURE, CommandError

PATH = "/v1/traces"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""The variable that every exporter of OpenTelemetry reads: NAME=VALUE,… with keys that are nobody's business."""
TIMEOUT = 30
MAX_REPLY = 64 * 1024


class SendFailed(CommandError):
    """The collector did not take it."""

    exit_code = FAILURE


class Sent(Struct, frozen=True):
    url: str
    requests: int
    spans: int


class Partial(Struct, frozen=True, rename="camel"):
    rejected_spans: int | str = 0
    error_message: str = ""


class Reply(Struct, frozen=True, rename="camel"):
    partial_success: Partial = Partial()


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def send(lines: Iterable[str], to: str) -> Sent:
    url, headers, opener = address(to), _headers(), build_opener(_NoRedirect)
    requests = spans = 0
    for line in lines:
        body = line.encode()
        reply = _post(opener, Request(url, body, headers, method="POST"), requests)
        partial = reply.partial_success
        if partial.rejected_spans not in ("", "0", 0):
            said = partial.error_message or "it does not say why"
            raise SendFailed(f"{url} took the others and rejected {partial.rejected_spans} spans: {said}")
        requests += 1
        spans += line.count('"spanId":"')  # within a text the quotes are escaped
    return Sent(url, requests, spans)


def address(to: str) -> str:
    """The address of a collector, with the path for traces unless it is there."""
    try:
        parts = urlsplit(to)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_good = is_good and parts.username is None  # a key goes into a header
    except ValueError:
        is_good = False
    if not is_good or not to.isprintable() or " " in to or parts.query or parts.fragment:
        raise CommandError(f"{to!r} is no address of a collector; it takes one such as http://localhost:4318")
    return to if parts.path.rstrip("/").endswith(PATH) else to.rstrip("/") + PATH


def _headers() -> dict[str, str]:
    found = {"Content-Type": "application/json", "User-Agent": "bough"}
    for pair in filter(str.strip, os.environ.get(HEADERS, "").split(",")):
        name, is_pair, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if (
            not is_pair
            or not name.isascii()
            or not name.isprintable()
            or " " in name
            or not value.isprintable()
        ):
            raise CommandError(f"{HEADERS} is not understood; it takes NAME=VALUE, several parted by commas")
        found[name] = value
    return found


def _post(opener: OpenerDirector, request: Request, done: int) -> Reply:
    url = request.full_url
    before = f" ({done} requests were taken before)" if done else ""
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            said = answer.read(MAX_REPLY)
    except HTTPError as error:
        with error:
            words = error.read(200).decode("utf-8", "replace").strip()
        raise SendFailed(
            f"{url} refused the spans: {error.code} {error.reason}{': ' + words if words else ''}{before}; look at the "
            f"address, and at {HEADERS} if it wants a key"
        ) from None
    except (URLError, HTTPException, OSError) as error:
        cause = getattr(error, "reason", None) or error
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise SendFailed(
            f"nobody takes spans at {url}: {why}{before}; start a collector there, or write them to a file with -o FILE"
        ) from None
    try:
        return msgspec.json.decode(said, type=Reply)
    except msgspec.DecodeError:
        return Reply()  # it said 200 in words of its own
