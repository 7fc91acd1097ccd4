"""A file whose lines are sent: OpenTelemetry spans to a collector, OTLP over HTTP, one request per line.

Sending twice is harmless, since the span ids are the same. Redirects are not followed: they would drop the body.
"""

from __future__ import annotations

import io
import os
import re
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

import msgspec
from msgspec import Struct

from oakleaf.cli.rendering.error_text import FAILURE, CommandError

PATH = "/v1/traces"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""The variable all OpenTelemetry exporters read: NAME=VALUE,…. It may hold secrets, so its value is never printed."""
TIMEOUT = 30
MAX_REPLY = 64 * 1024


class SendFailed(CommandError):
    """The collector did not accept the spans."""

    exit_code = FAILURE


class SendResult(Struct, frozen=True):
    url: str
    requests: int
    spans: int


class PartialSuccess(Struct, frozen=True, rename="camel"):
    rejected_spans: int | str = 0
    error_message: str = ""


class CollectorReply(Struct, frozen=True, rename="camel"):
    partial_success: PartialSuccess = PartialSuccess()


class NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Collector(io.RawIOBase):
    """Sends every line that is written to it; an export writes one line at a time."""

    def __init__(self, to: str) -> None:
        self._url, self._headers, self._opener = collector_url(to), _headers(), build_opener(NoRedirect)
        self._requests = self._spans = 0

    @property
    def result(self) -> SendResult:
        return SendResult(self._url, self._requests, self._spans)

    def writable(self) -> bool:
        return True

    def write(self, line: Any, /) -> int:
        request = Request(self._url, line, self._headers, method="POST")
        partial = _post(self._opener, request, self._requests).partial_success
        if partial.rejected_spans not in ("", "0", 0):
            reason = partial.error_message or "no reason given"
            raise SendFailed(
                f"{self._url} rejected {partial.rejected_spans} spans and accepted the others: {reason}"
            )
        self._requests += 1
        self._spans += line.count(b'"spanId":"')  # inside a text the quotes are escaped
        return len(line)


def collector_url(to: str) -> str:
    """Return the collector's URL, with the path for traces appended if it is missing."""
    try:
        parts = urlsplit(to)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_good = is_good and parts.username is None  # keys belong in a header
    except ValueError:
        is_good = False
    if not is_good or not to.isprintable() or " " in to or parts.query or parts.fragment:
        raise CommandError(f"{to!r} is not a collector's URL; expected one such as http://localhost:4318")
    return to if parts.path.rstrip("/").endswith(PATH) else to.rstrip("/") + PATH


def _headers() -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "oakleaf"}
    for pair in filter(str.strip, os.environ.get(HEADERS, "").split(",")):
        name, is_pair, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not is_pair or not re.fullmatch(r"[!-~]+", name) or not value.isprintable():
            raise CommandError(f"{HEADERS} is invalid; expected NAME=VALUE, separated by commas")
        headers[name] = value
    return headers


def _post(opener: OpenerDirector, request: Request, done: int) -> CollectorReply:
    url = request.full_url
    before = f" ({done} requests were accepted before)" if done else ""
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            body = answer.read(MAX_REPLY)
    except HTTPError as error:
        with error:
            reason = error.read(200).decode("utf-8", "replace").strip()
        raise SendFailed(
            f"{url} refused the spans: {error.code} {error.reason}{': ' + reason if reason else ''}{before}; check the "
            f"URL, and {HEADERS} if the collector needs a key"
        ) from None
    except (URLError, HTTPException, OSError) as error:
        cause = getattr(error, "reason", None) or error
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise SendFailed(
            f"cannot send spans to {url}: {why}{before}; start a collector there, or write them to a file with -o FILE"
        ) from None
    try:
        return msgspec.json.decode(body, type=CollectorReply)
    except msgspec.DecodeError:
        return CollectorReply()  # accepted, with a body we do not know
