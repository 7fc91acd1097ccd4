"""What the clients of all vendors share: finding the key, and faults in our words.

Knows HTTP statuses and how vendors word a refusal. Does not know any vendor's request: each client writes its
own. An SDK is imported at the first call, for that takes up to two seconds.
"""

from __future__ import annotations

import asyncio
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from ...errors import (
    ContextOverflow,
    ModelError,
    ModelUnavailable,
    Overloaded,
    TruncatedReply,
    UnrecognizedReply,
)
from ...wire import Answer, find_provider
from ...wire.base import Request as History
from ..model import Delta, Request

LONGEST_WORDS = 400
NO_KEY = "none"
"""For a server of one's own, which may want none; the SDKs do."""
SECONDS = 600.0
"""How long a vendor may be silent."""

_OVERFLOW = re.compile(
    r"prompt is too long|maximum context length|context_length_exceeded|context window|exceeds? (the )?context"
    r"|input token count.*exceeds|exceeds the available context|input is too long|maximum number of tokens",
    re.IGNORECASE | re.DOTALL,
)
_STATUS_OF = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""In the middle of a stream a vendor names the kind of its trouble, for the status is long sent."""


class VendorConnection(Struct, frozen=True):
    """Where a vendor is reached, and by which of its libraries."""

    sdk: Any
    http: Any
    key: str
    base_url: str | None

    def __repr__(self) -> str:
        return f"Door({self.sdk.__name__})"  # without the key

    @property
    def tls(self) -> Any:
        return _tls(self.http)


@lru_cache(maxsize=1)
def _tls(http: Any) -> Any:
    """Made once: reading the certificates takes 35 ms, a hundred times what the rest of a client takes."""
    return http.create_ssl_context()


class StreamFailure(Exception):
    """An error that came as an event of a stream, in the vendor's JSON, where its SDK lets it pass."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("it failed without a word")
        self.body = body


class VendorFault(Struct, frozen=True):
    """What a vendor said of its trouble."""

    words: str
    status: int | None = None
    after: float | None = None


class Client(ABC):
    """A model behind a vendor's SDK. A client of the SDK lives as long as one call: nothing is left to close."""

    provider: str
    package: ClassVar[str]
    extra: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]
    url_variable: ClassVar[str]

    def __init__(
        self, model: str, *, base_url: str | None = None, key: str | None = None, **options: Any
    ) -> None:
        """`options` are further fields of every request, in the words of its SDK: thinking, reasoning, …"""
        self.model = model
        self.options = options
        self._base_url = base_url
        self._key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        door = await asyncio.to_thread(self._door)  # others go on while an SDK is imported
        history = find_provider(self.provider).project(request.context, request.blobs)
        reply: object = None
        has_begun = False
        try:
            async with aclosing(self._ask(door, history, request)) as pieces:
                async for piece in pieces:
                    has_begun = True
                    if not isinstance(piece, Delta):
                        reply = piece
                    elif piece != Delta():
                        yield piece
            answer = self._read(reply)
        except self._faults(door) as error:
            trouble = self._told(error, door, has_begun)
        else:
            yield answer
            return
        # Raised out here, so that the SDK's error goes: its words may hold the key, and its frames keep
        # streams alive that were not read to the end.
        raise trouble

    @abstractmethod
    def _ask(
        self, door: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        """Deltas, the first of them (it may be empty) once the vendor has opened its mouth; then the whole reply."""

    @abstractmethod
    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        """What the SDK raises when the vendor refuses or cannot be reached."""

    def _door(self) -> VendorConnection:
        try:
            sdk, http = import_module(self.package), import_module("httpx2")
        except ImportError:
            hint = f'pip install "bough[{self.extra}]"'
            raise ModelUnavailable(self._name, f"the package {self.package} is not installed", hint) from None
        base_url = self._base_url or os.environ.get(self.url_variable) or None
        if base_url and not base_url.startswith(("http://", "https://")):
            raise ModelUnavailable(self._name, "its base URL is none", "it begins with http:// or https://")
        key = self._key or next(filter(None, map(os.environ.get, self.key_variables)), None)
        if not key and not self._base_url:
            hint = f"set {' or '.join(self.key_variables)} in the environment"
            raise ModelUnavailable(self._name, "no API key was found", hint)
        return VendorConnection(sdk, http, key or NO_KEY, base_url)

    @property
    def _name(self) -> str:
        return f"{self.provider}:{self.model}"

    def _faults(self, door: VendorConnection) -> tuple[type[Exception], ...]:
        """What an SDK lets through: its own errors, its transport's, and whatever garbage makes it stumble over."""
        stumbles = (
            UnrecognizedReply,
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
            AssertionError,
            OSError,
        )
        transport = (door.http.HTTPError, door.http.StreamError, door.http.InvalidURL)
        return (StreamFailure, *self._sdk_errors(door.sdk), *transport, *stumbles)

    def _told(self, error: Exception, door: VendorConnection, has_begun: bool) -> ModelError:
        fault = _fault(error)
        words = _short(fault.words if door.key == NO_KEY else fault.words.replace(door.key, "[key]"))
        if fault.status is not None:
            return self._refused(words, fault.status, fault.after)
        if has_begun:
            return TruncatedReply(self._name, f"the stream broke: {words}")
        if isinstance(error, door.http.HTTPError) or isinstance(error.__cause__, door.http.HTTPError):
            return Overloaded(self._name, f"it could not be reached: {words}")
        return ModelError(self._name, words)

    def _refused(self, words: str, status: int, after: float | None) -> ModelError:
        if status in (401, 403):
            return ModelUnavailable(self._name, words, f"check the key in {' or '.join(self.key_variables)}")
        if status == 404:
            return ModelUnavailable(self._name, words, "check the name of the model and the base URL")
        if status in (408, 429) or status >= 500:
            return Overloaded(self._name, f"{words} ({status})", after)
        if status == 413 or _OVERFLOW.search(words):
            return ContextOverflow(self._name, words)
        return ModelError(self._name, f"{words} ({status})")

    def _read(self, reply: object) -> Answer:
        if reply is None:
            raise TruncatedReply(self._name, "the stream ended before there was an answer")
        try:
            answer = find_provider(self.provider).parse_reply(reply)
        except UnrecognizedReply as error:
            raise ModelError(self._name, _short(_words(error))) from None
        if not isinstance(answer.finish, str):
            raise TruncatedReply(self._name, "the stream ended without a stop reason")
        return answer if isinstance(answer.model, str) else replace(answer, model=None)


def _status_of(*kinds: object) -> int | None:
    """The status of trouble that came in the middle of a stream, by the first of its names that is known."""
    for kind in kinds:
        if str(kind) in _STATUS_OF:
            return _STATUS_OF[str(kind)]
        if re.fullmatch("[45][0-9][0-9]", str(kind)):
            return int(str(kind))
    return None


def _fault(error: Exception) -> VendorFault:
    """The three SDKs keep a vendor's words under different names, in the vendor's own JSON."""
    body = getattr(error, "body", None) or getattr(error, "details", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    inner = inner if isinstance(inner, Mapping) else {"message": inner}
    status = _status_of(getattr(error, "status_code", None), *map(inner.get, ("code", "type", "status")))
    cause = error.__cause__ or error
    words = [str(inner.get("message") or "") or _words(cause)]
    if isinstance(code := inner.get("code"), str) and code not in words[0]:
        words.append(f"[{code}]")
    status = status or _status_of(getattr(error, "code", None))
    return VendorFault(" ".join(words), status, _after(error, inner))


def _after(error: Exception, inner: Mapping[str, Any]) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    told = [(headers.get("retry-after-ms"), 1000), (headers.get("retry-after"), 1)]
    details = inner.get("details")
    for detail in details if isinstance(details, list) else ():  # Google's way to say it
        if isinstance(detail, Mapping) and isinstance(delay := detail.get("retryDelay"), str):
            told.append((delay.removesuffix("s"), 1))
    for value, unit in told:
        if value and re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value) / unit
    return None


def _words(error: BaseException) -> str:
    """What it says, without advice for somebody who holds the reply in his hands."""
    return str(error).partition("; hand in ")[0] or type(error).__name__


def _short(words: str) -> str:
    return words if len(words) <= LONGEST_WORDS else words[: LONGEST_WORDS - 1] + "…"
