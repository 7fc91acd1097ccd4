"""Errors as problem details (RFC 9457), with the messages of the command line.

Responses never contain stack traces, paths or SQL: an unexpected error goes to the server's log, and the response has
a reference to find it there.
"""

from __future__ import annotations

import logging
import secrets
import traceback
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from msgspec import Struct

from oakleaf import errors

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("oakleaf.server")


class ProblemDetails(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What went wrong, for programs (`code`) and for people (`detail`, and `hint`: what to do)."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    hint: str | None = None
    reference: str | None = None
    """Look for it in the server's log."""
    plan: dict[str, Any] | None = None
    """Of `import_not_accepted`: the `calls` and `inputs` that would run."""

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"type": self.type, **msgspec.to_builtins(self)})


class Refusal(Exception):
    """A request refused by the server itself: no token, too large, from another site."""

    def __init__(self, status: int, code: str, detail: str, hint: str | None = None) -> None:
        self.problem = _problem(status, code, detail, hint)
        super().__init__(detail)


def problem_of(error: BaseException) -> ProblemDetails:
    if isinstance(error, Refusal):
        return error.problem
    if isinstance(error, errors.StoreError):
        return _store_problem(error)
    if isinstance(error, errors.ImportNotAccepted):
        return _import_problem(error)
    if isinstance(error, errors.OakleafError):
        return _problem(error.http_status, error.code, error.problem, error.command_hint or None)
    if isinstance(error, HTTPException):
        return _http_problem(error)
    if isinstance(error, RecursionError | UnicodeDecodeError) and _is_reading_body(error):
        return _problem(400, "invalid_body", "the body is nested too deeply or is not UTF-8", _hint(400))
    reference = secrets.token_hex(4)
    log.error(
        "%s: request failed",
        reference,
        exc_info=error,
        extra={"fields": {"event": "request_failed", "reference": reference}},
    )
    return _problem(500, "internal_error", "internal error; see the server's log", reference=reference)


def _problem(
    status: int, code: str, detail: str, hint: str | None = None, reference: str | None = None
) -> ProblemDetails:
    return ProblemDetails(
        title=_title(status), status=status, code=code, detail=detail, hint=hint, reference=reference
    )


def _import_problem(error: errors.ImportNotAccepted) -> ProblemDetails:
    """Say the calls an import left open, and the request field for accepting."""
    plan = {
        "calls": [call._asdict() for call in error.calls],
        "inputs": [queued._asdict() for queued in error.inputs],
    }
    hint = "accept it with accept_imported in the request, or fork the session to go on without it"
    problem = _problem(error.http_status, error.code, error.problem, hint)
    return msgspec.structs.replace(problem, plan=plan)


def _store_problem(error: errors.StoreError) -> ProblemDetails:
    """Hide the error's own message, as a message may name files and hosts."""
    reference = secrets.token_hex(4)
    log.error("%s: %s", reference, error)
    is_full = isinstance(error, errors.StoreFull)
    what = "the store is full" if is_full else "the store could not be read or written"
    hint = "see the server's log, or run oakleaf doctor"
    return _problem(error.http_status, error.code, f"{what}; nothing was changed", hint, reference)


def _is_reading_body(error: BaseException) -> bool:
    """Whether the decoder of the body raised the error; an error of our own code stays an internal error."""
    frames = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1] == "litestar.serialization.msgspec_hooks"


_CODES = {404: "no_page", 405: "method_not_allowed", 413: "too_large", 401: "no_token"}


def _http_problem(error: HTTPException) -> ProblemDetails:
    status = error.status_code
    code = _CODES.get(status, "invalid_body" if status == 400 else _title(status).lower().replace(" ", "_"))
    detail = _title(status).lower()
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        messages = [
            _validation_message(str(item.get("key", "body")), str(item.get("message")))
            for item in error.extra
        ]
        detail, code = "; ".join(messages) or "the request is invalid", "invalid_value"
    elif status == 400:
        detail = "the body is not valid JSON for this endpoint"
    elif status == 413:
        detail = "the body is too large"
    return _problem(status, code, detail, _hint(status))


def _validation_message(key: str, message: str) -> str:
    return "the body is missing" if (key, message) == ("data", "'data'") else f"{key}: {message}"


def _hint(status: int) -> str | None:
    return "see /openapi.json" if status in (400, 404, 405) else None


_TOLD_TO_CLIENTS = (
    errors.NotFound,
    errors.InvalidValue,
    errors.InvalidMessage,
    errors.KeyReused,
    errors.InputsQueued,
    errors.StoreError,
)
"""Errors whose messages tell a client nothing but what it sent. Others name tools, models or the process at work."""


def handle_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Turn any exception into a problem response."""
    problem = problem_of(error)
    caller = request.scope["state"].get("caller")
    is_told = not isinstance(error, errors.OakleafError) or isinstance(error, _TOLD_TO_CLIENTS)
    if not is_told and caller is not None and caller.is_client:
        is_busy = problem.status == 409
        detail = "the session does not take this now" if is_busy else "the server cannot do this"
        problem = _problem(problem.status, problem.code, detail, "try again later")
    return Response(problem.body, status_code=problem.status, media_type=MEDIA_TYPE)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
