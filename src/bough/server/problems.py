"""Errors as problem details (RFC 9457), in the words of the command line.

Knows which error is which status. Says nothing of stacks, paths or SQL: what nobody foresaw goes to the
server's log, and the answer has a reference to find it there.
"""

from __future__ import annotations

import logging
import secrets
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from msgspec import Struct

from .. import errors

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("bough.server")


class Problem(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What went wrong, for programs (`code`) and people (`detail`, and what to do: `next`)."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    next: str | None = None
    reference: str | None = None
    """Of a 500: what to look for in the server's log."""

    def response(self, headers: dict[str, str] | None = None) -> Response[bytes]:
        return Response(self.body, status_code=self.status, media_type=MEDIA_TYPE, headers=headers)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"type": self.type, **msgspec.to_builtins(self)})


class Refusal(Exception):
    """A request that is wrong as a request: no token, too large, from another site."""

    def __init__(self, status: int, code: str, detail: str, next: str | None = None) -> None:
        self.problem = Problem(title=_title(status), status=status, code=code, detail=detail, next=next)
        super().__init__(detail)


def problem_of(error: BaseException) -> Problem:
    if isinstance(error, Refusal):
        return error.problem
    if isinstance(error, errors.StoreError):
        return _store_problem(error)
    if isinstance(error, errors.BoughError):
        status = error.http_status
        hint = error.command_hint or None
        return Problem(title=_title(status), status=status, code=error.code, detail=error.problem, next=hint)
    if isinstance(error, HTTPException):
        return _http_problem(error)
    reference = secrets.token_hex(4)
    log.error("%s: a request broke", reference, exc_info=error)
    said = "something broke that should not; nothing is known to be lost"
    return Problem(title=_title(500), status=500, code="broken", detail=said, reference=reference)


def _store_problem(error: errors.StoreError) -> Problem:
    """Its own words name files and hosts."""
    reference = secrets.token_hex(4)
    log.error("%s: %s", reference, error)
    is_full = isinstance(error, errors.StoreFull)
    status = error.http_status
    said = "the store has no room to write" if is_full else "the store could not be read or written"
    return Problem(
        title=_title(status),
        status=status,
        code=error.code,
        detail=f"{said}; nothing of this change was kept",
        next="the server's log says more; bough doctor looks into the store",
        reference=reference,
    )


_CODES = {404: "no_page", 405: "method_not_allowed", 413: "too_large", 401: "no_token"}


def _http_problem(error: HTTPException) -> Problem:
    status = error.status_code
    code = _CODES.get(status, "invalid_body" if status == 400 else _title(status).lower().replace(" ", "_"))
    detail = _title(status).lower()
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        found = [_said(str(one.get("key", "body")), str(one.get("message"))) for one in error.extra]
        detail, code = "; ".join(found) or "the request does not fit", "invalid_value"
    elif status == 400:
        detail = "the body is not the JSON that is wanted here"
    elif status == 413:
        detail = "the body is larger than this server takes"
    return Problem(title=_title(status), status=status, code=code, detail=detail, next=_seeing(status))


def _said(key: str, message: str) -> str:
    return "the body is missing" if (key, message) == ("data", "'data'") else f"{key}: {message}"


def _seeing(status: int) -> str | None:
    return "/openapi.json tells what there is and what it takes" if status in (400, 404, 405) else None


def handled(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The one exception handler of the app."""
    return problem_of(error).response()


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
