"""Google's Gemini models, called with the SDK `google-genai`, which has no final message: it is assembled here.

A part with a signature is never joined with another: Gemini accepts a signature only on the part it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, closing
from typing import Any, ClassVar

import msgspec

from oakleaf.ext import run_by_size
from oakleaf.models.base import Delta, Request, StreamReply
from oakleaf.providers.base import VendorClient, VendorPlugin, closing_reply
from oakleaf.providers.connections import TIMEOUT_SECONDS, VendorConnection
from oakleaf.providers.replies import RecordedReply
from oakleaf.wire.parsing import to_dict

_NO_CALLING = {"automatic_function_calling": {"disable": True}}
_SOURCES = ("grounding_metadata", "url_context_metadata", "citation_metadata")


class GeminiModel(VendorClient):
    provider = "gemini"
    package = "google.genai"
    client_class = "Client"
    extra = "gemini"
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    url_variable = "GOOGLE_GEMINI_BASE_URL"

    def _method(self, client: Any) -> Callable[..., Any]:
        return client.aio.models.generate_content_stream  # type: ignore[no-any-return]

    def _open(self, connection: VendorConnection, http: Any) -> AbstractContextManager[Any]:
        options = self._http_options(connection, http)
        return closing(connection.sdk.Client(vertexai=False, api_key=connection.key, http_options=options))

    def _http_options(self, connection: VendorConnection, http: Any) -> dict[str, Any]:
        return {
            "base_url": connection.base_url,
            "httpx_async_client": http,  # so that the SDK does not use aiohttp
            "timeout": int(
                TIMEOUT_SECONDS * 1000
            ),  # without it the SDK sets none, which overrides that client's
            "client_args": {"verify": connection.tls},
            "async_client_args": {"ssl": connection.tls},
        }

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        kinds = vars(sdk.errors).values()  # they have no common base class
        return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))

    async def _pieces(self, connection: VendorConnection, request: Request) -> AsyncGenerator[object, None]:
        builder = GeminiReplyBuilder()
        size = len(request.context.items)
        arguments = await run_by_size(size, self._typed, connection.sdk.types, request)
        async with (
            self._opened(connection) as stream,
            closing_reply(await stream(model=self.model, **arguments)) as chunks,
        ):
            async for chunk in chunks:
                yield builder.add(to_dict(chunk))
        if builder.has_begun:
            yield builder.reply()

    def _typed(self, types: Any, request: Request) -> dict[str, Any]:
        """Return the request in the SDK's types. A field that these cannot hold, as of a newer API, goes into `extra_body`."""
        fields = self._project(request)
        contents, generation = fields.pop("contents"), fields.pop("generationConfig", {})
        messages = [_Typed(types.Content, content) for content in contents]
        config = _Typed(types.GenerateContentConfig, {**fields, **generation, **_NO_CALLING}, depth=1)
        unread = {place[0] for place in config.unread}
        extra = {name: value for name, value in fields.items() if name in unread}
        if unread_generation := {name: value for name, value in generation.items() if name in unread}:
            extra["generationConfig"] = unread_generation
        if any(message.unread for message in messages):
            extra["contents"] = contents
        if extra:
            config.value.http_options = types.HttpOptions(extra_body=extra)
        # The SDK takes twice as long with objects of its types as with dicts of the same.
        dicts = [message.value.model_dump(exclude_none=True) for message in messages]
        return {"contents": dicts, "config": config.value}


class _Typed:
    """JSON as a type of the SDK, and the places of values outside of the type."""

    def __init__(self, kind: Any, data: dict[str, Any], depth: int | None = None) -> None:
        """Set the places; `depth` says the exactness of places; exact places are None."""
        self.unread: set[tuple[Any, ...]] = set()
        text = msgspec.json.encode(data)
        try:
            self.value = kind.model_validate_json(text)
        except ValueError as error:  # pydantic's
            self.unread = {fault["loc"][:depth] for fault in error.errors()}  # type: ignore[attr-defined]
            self.value = kind.model_validate_json(msgspec.json.encode(_without(data, self.unread)))


def _without(data: dict[str, Any], places: set[tuple[Any, ...]]) -> dict[str, Any]:
    copy = msgspec.json.decode(msgspec.json.encode(data))
    for *path, last in sorted(places, reverse=True):
        holder = copy
        for step in path:
            holder = holder[step]
        del holder[last]
    return copy  # type: ignore[no-any-return]


class GeminiReplyBuilder:
    """Assembles a reply from chunks."""

    def __init__(self) -> None:
        self.has_begun = False
        self._parts: list[dict[str, Any]] = []
        self._fields: dict[str, Any] = {}
        self._finish: object = None
        self._sources: dict[str, Any] = {}

    def add(self, chunk: dict[str, Any]) -> Delta:
        names = ("prompt_feedback", "usage_metadata", "model_version")
        self._fields.update({name: chunk[name] for name in names if chunk.get(name) is not None})
        candidates = chunk.get("candidates") or []
        self.has_begun |= bool(candidates) or "prompt_feedback" in self._fields
        text = reasoning = ""
        for candidate in candidates[:1]:
            self._finish = candidate.get("finish_reason") or self._finish
            self._sources.update({name: candidate[name] for name in _SOURCES if candidate.get(name)})
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._add_part(part)
                text += "" if part.get("thought") else part.get("text") or ""
                reasoning += (part.get("text") or "") if part.get("thought") else ""
        return Delta(text, reasoning)

    def _add_part(self, part: dict[str, Any]) -> None:
        last = self._parts[-1] if self._parts else {}
        if (
            _is_plain_text(part)
            and _is_plain_text(last)
            and bool(part.get("thought")) == bool(last.get("thought"))
        ):
            last["text"] += part["text"]
        else:
            self._parts.append(part)

    def reply(self) -> dict[str, Any]:
        if not self._parts and self._finish is None and "prompt_feedback" in self._fields:
            return self._fields
        content = {"role": "model", "parts": self._parts}
        candidate = {"content": content, "finish_reason": self._finish, **self._sources}
        return {**self._fields, "candidates": [candidate]}


def _is_plain_text(part: dict[str, Any]) -> bool:
    """Whether the part is text and nothing else, without a signature."""
    fields = {key for key, value in part.items() if value is not None}
    return "text" in fields and fields <= {"text", "thought"}


class RecordedChunks(RecordedReply):
    """Puts the chunks of a Gemini stream together, as the client of the same API does."""

    def __init__(self) -> None:
        super().__init__()
        self._builder = GeminiReplyBuilder()
        self._is_finished = False

    def add(self, chunk: dict[str, Any]) -> None:
        chunk = _snake_case(chunk)
        if isinstance(candidates := chunk.get("candidates"), list):
            first = [_snake_case(to_dict(one)) for one in candidates if not to_dict(one).get("index")]
            chunk["candidates"] = first
            self._is_finished |= any(candidate.get("finish_reason") for candidate in first)
        self._builder.add(chunk)

    def reply(self) -> StreamReply:
        data = self._builder.reply() if self._builder.has_begun else None
        return StreamReply(data, self._is_finished and not self.error, self.error)

    def read_value(self, value: object) -> StreamReply:
        if isinstance(value, list):  # a stream without `alt=sse` is one array
            for chunk in value:
                self.add(to_dict(chunk))
            return self.reply()
        reply = super().read_value(value)
        if reply.data is not None and isinstance(candidates := reply.data.get("candidates"), list):
            reply.data["candidates"] = candidates[:1]
        return reply


def _snake_case(fields: dict[str, Any]) -> dict[str, Any]:
    """Return Gemini's fields under the SDK's names."""
    return {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in fields.items()}


class GeminiPlugin(VendorPlugin):
    client = GeminiModel
    families = ("gemini-",)

    def read_reply(self, content_type: str, body: bytes) -> StreamReply:
        return RecordedChunks().read(content_type, body)


plugin = GeminiPlugin()
