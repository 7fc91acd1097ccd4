"""What the clients of all vendors share: finding the key, and turning a vendor's errors into ours.

Knows HTTP statuses and how vendors word a refusal. Does not know any vendor's request: each client makes its own. An
SDK is imported at the first call, because that takes up to two seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction, signature, unwrap
from typing import Any, ClassVar
from weakref import ref

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.context import with_endpoint
from oakleaf.core.entries import Endpoint, Settings
from oakleaf.core.redact import MIN_SECRET_LENGTH
from oakleaf.errors import (
    ContextOverflow,
    ModelError,
    ModelUnavailable,
    OakleafError,
    Overloaded,
    TruncatedReply,
    UnrecognizedReply,
    shorten,
)
from oakleaf.ext import find_server, run_blocking, run_by_size
from oakleaf.install import install_line
from oakleaf.models.base import Delta, Model, ModelPlugin, Request, client_name
from oakleaf.providers.connections import HttpExchange, VendorConnection
from oakleaf.providers.overflow import OVERFLOW, read_overflow
from oakleaf.wire import Answer, find_provider
from oakleaf.wire.base import Request as History

MAX_REASON_LENGTH = 400
MAX_RAW_LENGTH = 4_000
NO_KEY = "none"
"""Passed to the SDKs, which need some key, if a custom server needs none."""

_OUTSIDE_THE_BODY = {"extra_headers", "extra_query", "extra_body", "timeout"}
"""Parameters of the SDKs' methods that are no fields of a request."""
_NEVER_FITS = re.compile(r"request too large|must be reduced", re.IGNORECASE)
"""A rate limit that no waiting helps against: this one request is larger than it allows for a minute."""
_TEXT_KEYS = (
    "message",
    "msg",
    "error",
    "detail",
    "errors",
    "error_message",
    "description",
    "reason",
    "title",
)
"""Where an error body has its text, at any depth."""
_HTML = re.compile(r"\s*<(!doctype|html|head|body|h1|center|title)\b", re.IGNORECASE)
_HEADINGS = ("title", "h1")
_HIDDEN_TAGS = ("style", "script")
_STATUS_BY_KIND = {
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
"""An error in the middle of a stream has a kind instead of a status, which was sent at the start."""


class StreamFailure(Exception):
    """An error event of a stream, in the vendor's JSON, not raised by the vendor's SDK."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__("the stream failed without a message")
        self.body = body


class VendorFault(Struct, frozen=True):
    """A vendor's error: the message, the full body, the status, and the seconds to wait before a retry."""

    message: str
    wording: str
    """The whole body as text, by which the error is recognised."""
    status: int | None = None
    retry_after: float | None = None


class VendorClient(ABC):
    """A model behind a vendor's SDK, called through the caller's client object, or else through a client per
    call with shared HTTP connections.
    """

    provider: str
    package: ClassVar[str]
    client_class: ClassVar[str]
    extra: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]
    url_variable: ClassVar[str]
    url_path: ClassVar[str] = ""
    """How a base URL usually ends."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        key: str | None = None,
        takes_key: bool = True,
        client: Any = None,
    ) -> None:
        """Make the client; `takes_key=False` serves an address nobody configured: no key and nothing else of
        the environment.
        """
        self.model = model
        self._client = client
        self._loop: ref[asyncio.AbstractEventLoop] | None = None
        self._base_url = base_url
        self._key = key
        self._takes_key = takes_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    @property
    def name(self) -> str:
        """The name for `model_by_name`, with the server if different from the vendor's. Through a client
        object of the
        caller's the model has a name that needs such an object."""
        if self._client is not None:
            return client_name(self._name, _sdk_class(self._client, self.package))
        return f"{self._name}@{self._base_url}" if self._base_url else self._name

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        # In a thread: importing an SDK must not block the event loop.
        try:
            connection = await run_blocking(self._connection)
        except ModelUnavailable as error:
            error.was_asked = False
            raise
        reply: object = None
        has_begun = has_text = False
        try:
            async with aclosing(self._pieces(connection, request)) as pieces:
                async for piece in pieces:
                    has_begun = True
                    if not isinstance(piece, Delta):
                        reply = piece
                    elif piece != Delta():
                        has_text = True
                        yield piece
            answer = self._parse(reply)
            answer = replace(answer, endpoint=self.endpoint_for(request.context.settings))
        except self._expected_errors(connection) as error:
            if isinstance(error, OakleafError) and not isinstance(error, UnrecognizedReply):
                raise
            if isinstance(error, StreamFailure):  # an error in place of an answer cuts nothing off
                has_begun = has_text
            model_error = self._model_error(error, connection, has_begun)
            if isinstance(error, UnrecognizedReply) and error.raw is not None:
                model_error.raw = _mask(_raw_text(error.raw), connection.key)[:MAX_RAW_LENGTH]
        else:
            yield answer
            return
        # Raised outside of `except`, without the SDK's error as its context: its message may contain the key, and its
        # frames keep unread streams alive.
        raise model_error

    @abstractmethod
    def _pieces(self, connection: VendorConnection, request: Request) -> AsyncGenerator[object, None]:
        """Yield deltas, starting with a possibly empty delta as soon as the vendor responds; then the whole reply."""

    @abstractmethod
    def _method(self, client: Any) -> Callable[..., Any]:
        """Return the SDK's method for a model call."""

    def _open(self, connection: VendorConnection, http: Any) -> AbstractContextManager[Any]:
        """Make a client object for a call. Closing it would close the connections that others use."""
        make = getattr(connection.sdk, self.client_class)
        return nullcontext(
            make(api_key=connection.key, base_url=connection.base_url, max_retries=0, http_client=http)
        )

    @asynccontextmanager
    async def _opened(self, connection: VendorConnection) -> AsyncGenerator[Callable[..., Any], None]:
        """Yield the SDK's method of the caller's unchanged client object, or of a new client object."""
        if self._client is not None:
            self._check_loop()
            yield self._method(self._client)
            return
        async with HttpExchange(connection) as exchange:
            with self._open(connection, exchange.http.client) as client:
                yield self._method(client)

    def _check_loop(self) -> None:
        """Refuse a client object on a second event loop: the connections belong to the first loop, and break
        in odd ways.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop() is not loop:
            reason = f"its {type(self._client).__name__} was used on another event loop, which its connections belong to"
            hint = "make a client object for each run by send_sync, resume_sync or asyncio.run; or await all runs on one event loop"
            error = ModelUnavailable(self._name, reason, hint)
            error.was_asked = False
            raise error
        self._loop = ref(loop)

    def check_client(self) -> None:
        """Raise ModelUnavailable for a client object without the method, or with a blocking method."""
        kind, hint = type(self._client).__name__, f"pass one like {self.package}.{self.client_class}"
        try:
            method = unwrap(self._method(self._client))
        except AttributeError as error:
            raise ModelUnavailable(
                self._name, f"a client object {kind} does not answer it: {error}", hint
            ) from None
        is_of_sdk = getattr(method, "__module__", None) or ""
        if is_of_sdk.startswith(f"{self.package}.") and not iscoroutinefunction(method):
            raise ModelUnavailable(self._name, f"a client object {kind} is not asynchronous", hint)

    @abstractmethod
    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        """Return the SDK's errors for a refusing or unreachable vendor."""

    def _connection(self) -> VendorConnection:
        """Import the SDK and find key and URL; raise ModelUnavailable without all three."""
        try:
            sdk, http = import_module(self.package), import_module("httpx2")
        except ImportError:
            raise self._package_missing() from None
        base_url = self._url()
        if self._client is not None:
            return VendorConnection(
                sdk, http, str(getattr(self._client, "api_key", None) or NO_KEY), base_url
            )
        if base_url and not base_url.startswith(("http://", "https://")):
            raise ModelUnavailable(self._name, "its base URL is invalid", "start it with http:// or https://")
        if not self._takes_key:
            return VendorConnection(sdk, http, NO_KEY, base_url, takes_environment=False)
        server = None if base_url is None or self._key else find_server(base_url, self.name)
        if server is not None:
            return VendorConnection(
                sdk, http, server.key(self.name) or NO_KEY, base_url, takes_environment=False
            )
        key = self._key or next(filter(None, map(os.environ.get, self.key_variables)), None)
        if not key and not self._base_url:
            raise self._key_missing()
        return VendorConnection(sdk, http, key or NO_KEY, base_url)

    def problem(self) -> ModelUnavailable | None:
        """Return the missing piece of a call: the package or the key. A custom server may need no key."""
        if not is_installed(self.package):
            return self._package_missing()
        has_key = (
            self._client is not None
            or self._key
            or self._base_url
            or any(map(os.environ.get, self.key_variables))
        )
        return None if has_key else self._key_missing()

    def _package_missing(self) -> ModelUnavailable:
        reason = f"the package {self.package} is not installed"
        return ModelUnavailable(self._name, reason, install_line(self.extra))

    def _key_missing(self) -> ModelUnavailable:
        hint = f"set {' or '.join(self.key_variables)} in the environment"
        return ModelUnavailable(self._name, "no API key was found", hint)

    def _url(self) -> str | None:
        if self._client is not None:
            return str(getattr(self._client, "base_url", "")) or None
        return self._base_url or os.environ.get(self.url_variable) or None

    @property
    def _name(self) -> str:
        return f"{self.provider}:{self.model}"

    def _expected_errors(self, connection: VendorConnection) -> tuple[type[Exception], ...]:
        """Return the SDK's possible errors: own errors, transport errors, and any error caused by a garbled
        reply. A
        client object of the caller's has credentials, and a transport, with errors of their own."""
        if self._client is not None:
            return (Exception,)
        parse_errors = (
            UnrecognizedReply,
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
            AssertionError,
            OSError,
        )
        transport = (connection.http.HTTPError, connection.http.StreamError, connection.http.InvalidURL)
        return (StreamFailure, *self._sdk_errors(connection.sdk), *transport, *parse_errors)

    def _model_error(self, error: Exception, connection: VendorConnection, has_begun: bool) -> ModelError:
        """Return our error with the caller's choices: retry, compact, or check key and name."""
        fault = read_fault(error)
        reason = shorten(_mask(fault.message, connection.key), MAX_REASON_LENGTH)
        is_overflow = OVERFLOW.search(fault.wording) is not None
        if fault.status is not None:
            return self._error_by_status(reason, fault, is_overflow, connection)
        if is_overflow:
            return ContextOverflow(self._name, reason, *read_overflow(fault.wording))
        if has_begun:
            return TruncatedReply(self._name, f"the stream broke: {reason}")
        if any(isinstance(cause, connection.http.HTTPError) for cause in (error, error.__cause__)):
            return Overloaded(self._name, f"it could not be reached: {reason}")
        hint = self._url_hint(connection.base_url) if isinstance(error, StreamFailure) else ""
        return ModelError(self._name, reason, hint)

    def _error_by_status(
        self, reason: str, fault: VendorFault, is_overflow: bool, connection: VendorConnection
    ) -> ModelError:
        """Recognise the failure by the vendor's own words; `reason` is the part fit for showing."""
        status = fault.status
        assert status is not None
        if status in (401, 403):
            return ModelUnavailable(self._name, reason, self._key_hint(connection))
        if status in (404, 405):
            return ModelUnavailable(self._name, reason, self._url_hint(connection.base_url))
        if status == 429 and not _NEVER_FITS.search(fault.wording):
            return Overloaded(self._name, f"{reason} ({status})", fault.retry_after)
        if status in (413, 429) or is_overflow:  # whatever the status: older servers send 500
            return ContextOverflow(self._name, reason, *read_overflow(fault.wording))
        if status == 408 or status >= 500:
            return Overloaded(self._name, f"{reason} ({status})", fault.retry_after)
        return ModelError(self._name, f"{reason} ({status})")

    def _key_hint(self, connection: VendorConnection) -> str:
        if self._client is not None:
            return f"check the credentials of the {type(self._client).__name__} that you passed"
        if connection.takes_environment:
            return f"check the key in {' or '.join(self.key_variables)}"
        return f"name the variable of its key: OAKLEAF_SERVERS={connection.base_url}=VARIABLE"

    def _url_hint(self, base_url: str | None) -> str:
        hint = "check the model name and the base URL"
        if base_url and self.url_path and not re.search(r"/v\d", base_url):
            return f"{hint}, which has no {self.url_path}; most servers need it at the end"
        return hint

    def endpoint_for(self, settings: Settings) -> Endpoint:
        """Return the server and the accepted features, as far as the request's form depends on both.

        What was learned from its errors is in the settings, if another process learned it, or known here.
        """
        return Endpoint()

    async def _arguments(self, method: Callable[..., Any], request: Request, **how: Any) -> dict[str, Any]:
        """Return the arguments for the SDK's method: the request, and the way of answering. Fields without a
        parameter go into
        `extra_body`. Made on a thread, because other sessions share the event loop."""
        history = await run_by_size(len(request.context.items), self._project, request)
        fields = {"model": self.model, **how, **history}
        known = signature(method).parameters.keys() - _OUTSIDE_THE_BODY
        extra = {name: fields.pop(name) for name in list(fields) if name not in known}
        return {**fields, "extra_body": extra} if extra else fields

    def _project(self, request: Request) -> History:
        """Return the request for sending, except the model and the streaming."""
        context = with_endpoint(request.context, self.provider, self.endpoint_for(request.context.settings))
        return find_provider(self.provider).project(context, request.blobs)

    def _parse(self, reply: object) -> Answer:
        if reply is None:
            raise TruncatedReply(self._name, "the stream ended before there was an answer")
        try:
            answer = find_provider(self.provider).parse_reply(reply)
        except UnrecognizedReply as error:
            unread = ModelError(self._name, shorten(error.problem, MAX_REASON_LENGTH))
            unread.raw = _raw_text(reply if error.raw is None else error.raw)[:MAX_RAW_LENGTH]
            raise unread from None
        if not isinstance(answer.finish, str):
            truncated = TruncatedReply(self._name, "the stream ended without a stop reason")
            truncated.usage = answer.usage
            raise truncated
        return answer if isinstance(answer.model, str) else replace(answer, model=None)


class VendorPlugin(ModelPlugin):
    """The models of a vendor: the client's models."""

    client: ClassVar[type[VendorClient]]

    def __init__(self) -> None:
        self.url_variable = self.client.url_variable

    def make(self, name: str, base_url: str | None, *, takes_key: bool) -> Model:
        return self.client(name, base_url=base_url, takes_key=takes_key)

    def make_of(self, client: object, name: str) -> Model:
        model = self.client(name, client=client)
        model.check_client()
        return model

    def problem(self, model: Model) -> ModelUnavailable | None:
        """A model of the host's own may have the same name; nothing is known about such a model."""
        return model.problem() if isinstance(model, VendorClient) else None


@asynccontextmanager
async def closing_reply(reply: Any) -> AsyncGenerator[Any, None]:
    """Close the result of the SDK's method, if closable: a wrapper may return anything."""
    try:
        yield reply
    finally:
        close = getattr(reply, "aclose", None) or getattr(reply, "close", None)
        if close is not None:
            await close()


def _sdk_class(client: object, package: str) -> str:
    """Return the class for a caller's client object: the SDK's, also of an object of a subclass."""
    kinds = type(client).__mro__
    return next((kind for kind in kinds if kind.__module__.startswith(package)), kinds[0]).__name__


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing too
        return False


def _status_of(*kinds: object) -> int | None:
    """Return the status for the first known kind, or of a kind that is a status."""
    for kind in kinds:
        if str(kind) in _STATUS_BY_KIND:
            return _STATUS_BY_KIND[str(kind)]
        if re.fullmatch("[45][0-9][0-9]", str(kind)):
            return int(str(kind))
    return None


def read_fault(error: Exception) -> VendorFault:
    """Read a vendor's message from the vendor's own JSON, named differently in each of the three SDKs."""
    body = getattr(error, "body", None) or getattr(error, "details", None)
    first = body[0] if isinstance(body, list) and body else body
    inner = first.get("error", first) if isinstance(first, Mapping) else {}
    inner = inner if isinstance(inner, Mapping) else {}
    status = _status_of(getattr(error, "status_code", None), *map(inner.get, ("code", "type", "status")))
    status = status or _status_of(getattr(error, "code", None))
    message = body_text(body)
    if not message:
        is_empty = getattr(error, "status_code", None) is not None
        message = "it sent no message" if is_empty else _error_text(error.__cause__ or error)
    if isinstance(code := inner.get("code"), str) and code not in message:
        message += f" [{code}]"
    return VendorFault(message, f"{message} {body}", status, _retry_after(error, inner))


def body_text(body: object) -> str:
    """Return the text of an error's body: JSON of any server's shape, a page of a proxy, or text."""
    if isinstance(body, str):
        if not is_page(body):
            return body.strip()
        return _page_text(body)
    if isinstance(body, list):
        return "; ".join(filter(None, map(body_text, body)))
    if not isinstance(body, Mapping):
        return "" if body is None else str(body)
    text = next(filter(None, (body_text(body.get(key)) for key in _TEXT_KEYS)), "") or (
        str(body) if body else ""
    )
    if isinstance(place := body.get("loc"), list):  # FastAPI names the field
        text = f"{'.'.join(map(str, place))}: {text}"
    metadata = body.get("metadata")
    # What a router was told by the server behind it.
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{text}: {raw}" if raw else text


def _page_text(page: str) -> str:
    """Return the first heading of a page, or all text of a page without a heading."""
    texts: list[str] = []
    hidden = heading = ""
    for piece in page.split("<")[1:]:
        tag, _, text = piece.partition(">")
        name = (tag.split(maxsplit=1) or [""])[0].lower()
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
        elif name in _HIDDEN_TAGS:
            hidden = name
        elif heading and name == f"/{heading}":
            break
        elif name in _HEADINGS and not heading:
            heading, texts = name, [text]
            continue
        if not hidden:
            texts.append(text)
    return " ".join(" ".join(texts).split())


def is_page(body: str) -> bool:
    return _HTML.match(body) is not None


def _retry_after(error: Exception, inner: Mapping[str, Any]) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    delays = [(headers.get("retry-after-ms"), 1000), (headers.get("retry-after"), 1)]
    details = inner.get("details")
    for detail in details if isinstance(details, list) else ():  # where Google puts it
        if isinstance(detail, Mapping) and isinstance(delay := detail.get("retryDelay"), str):
            delays.append((delay.removesuffix("s"), 1))
    for value, unit in delays:
        if value and re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value) / unit
    return None


def _error_text(error: BaseException) -> str:
    """Return the message without a hint: our errors' hints are for callers of the reply parser."""
    return (error.problem if isinstance(error, UnrecognizedReply) else str(error)) or type(error).__name__


def _raw_text(raw: object) -> str:
    if isinstance(raw, str):
        return raw
    dump = getattr(raw, "model_dump_json", None)
    return str(dump(warnings=False)) if callable(dump) else json.dumps(raw, ensure_ascii=False, default=str)


def _mask(message: str, key: str) -> str:
    """Hide the key. A short one, such as a local server's "x", is no secret and occurs in ordinary words."""
    return message if len(key) < MIN_SECRET_LENGTH else message.replace(key, "[key]")
