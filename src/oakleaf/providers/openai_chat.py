"""OpenAI's Chat Completions and servers compatible with it, called with the SDK `openai`.

The SDK makes the request; the response is read here, because the SDK does not tell whether a stream came to its end, and
would concatenate ids and names that other servers repeat in every chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from oakleaf.core.context import endpoint_of
from oakleaf.core.entries import Endpoint, Settings
from oakleaf.errors import ContextOverflow, ModelError, ModelUnavailable, UnrecognizedReply
from oakleaf.models.base import Delta, Request, StreamReply
from oakleaf.providers.base import (
    StreamFailure,
    VendorClient,
    VendorPlugin,
    body_text,
    closing_reply,
    is_page,
    read_fault,
)
from oakleaf.providers.connections import VendorConnection
from oakleaf.providers.replies import error_text
from oakleaf.providers.sse import DONE, EventReader, ServerEvent
from oakleaf.wire import Answer
from oakleaf.wire.openai_chat.parse import REASONING_FIELDS, parse_usage
from oakleaf.wire.openai_chat.request import HOST, LIMIT_FIELDS, issuer_of
from oakleaf.wire.parsing import to_dict

_NO_STREAM = re.compile(
    r"\bstream(ing)?\b.{0,80}(not (be )?(support|allow|implement|available)|unsupported|disabled|does not support)"
    r"|(verified|not support|cannot|unsupported|not allow).{0,40}\bstream(ing)?\b",
    re.IGNORECASE | re.DOTALL,
)
_UNKNOWN_FIELD = re.compile(r"not supported|unsupported|unknown|unrecognized|not permitted", re.IGNORECASE)
_MISSING = re.compile(r"missing|required|must be (passed|provided|included|present)", re.IGNORECASE)
_WINDOW_ENDS = ("length", "model_context_window_exceeded")


class OpenAIChatModel(VendorClient):
    provider = "openai-chat"
    package = "openai"
    client_class = "AsyncOpenAI"
    extra = "openai"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"
    url_path = "/v1"

    # What the server has refused or demanded once is known from then on.
    _accepts_stream_options = True
    _streams = True
    _learned = Endpoint()

    def _method(self, client: Any) -> Callable[..., Any]:
        return client.chat.completions.create  # type: ignore[no-any-return]

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.OpenAIError,)

    async def _pieces(self, connection: VendorConnection, request: Request) -> AsyncGenerator[object, None]:
        streams = self._streams
        async with self._opened(connection) as create:
            while True:
                builder = ReplyBuilder()
                arguments = await self._arguments(create, request, **self._streaming(streams))
                try:
                    async with closing_reply(await create(**arguments)) as reply:
                        yield Delta()
                        async for delta in self._read(reply, builder, connection):
                            yield delta
                except connection.sdk.APIStatusError as error:
                    if not self._adapt(error, arguments, request):
                        raise
                    streams = self._streams
                    continue
                if not (builder.is_empty and streams):
                    break
                streams = False  # an error in the stream of llama-cpp-python ends it without a word
        self._check_window(builder)
        yield builder.reply()

    def _streaming(self, streams: bool) -> dict[str, Any]:
        if streams and self._accepts_stream_options:
            return {"stream": True, "stream_options": {"include_usage": True}}
        return {"stream": streams}

    def endpoint_for(self, settings: Settings) -> Endpoint:
        host, endpoint, learned = self._host(), endpoint_of(settings, self.provider), self._learned
        if (endpoint.host, endpoint.model) != (host, self.model):
            endpoint = Endpoint()
        limit, reasoning = (
            learned.token_limit or endpoint.token_limit,
            learned.reasoning or endpoint.reasoning,
        )
        model = self.model if limit or reasoning else None
        return Endpoint(host, model, limit, reasoning)

    def _adapt(self, error: Exception, body: dict[str, Any], request: Request) -> bool:
        """Leave out parameters refused by the server, add missing parameters; return whether the request changed."""
        fault = read_fault(error)
        if fault.status not in (400, 403, 422, 501):
            return False
        if self._streams and self._accepts_stream_options and "stream_options" in fault.wording:
            self._accepts_stream_options = False
            return True
        endpoint = self.endpoint_for(request.context.settings)
        for limit, other in (LIMIT_FIELDS, LIMIT_FIELDS[::-1]):
            is_refused = limit in body and limit in fault.wording and _UNKNOWN_FIELD.search(fault.wording)
            if is_refused and endpoint.token_limit is None:
                self._learned = replace(self._learned, token_limit=other)
                return True
        if "reasoning_content" in fault.wording and _MISSING.search(fault.wording):
            if endpoint.reasoning is not None:
                return False
            self._learned = replace(self._learned, reasoning="demanded")
            return True
        fields = [
            field for field in REASONING_FIELDS if any(field in message for message in body["messages"])
        ]
        if endpoint.reasoning != "refused" and any(
            re.search(rf"\b{field}\b", fault.wording) for field in fields
        ):
            self._learned = replace(self._learned, reasoning="refused")
            return True
        if self._streams and _NO_STREAM.search(fault.wording):
            self._streams = False
            return True
        return False

    def _parse(self, reply: object) -> Answer:
        try:
            answer = super()._parse(reply)
        except ModelError as error:
            usage = reply.get("usage") if isinstance(reply, dict) else None
            error.usage = parse_usage(usage) if usage else None
            raise
        if answer.evidence is None:
            return answer
        return replace(answer, evidence=replace(answer.evidence, issuer=issuer_of(self._host())))

    def _host(self) -> str | None:
        host = urlsplit(self._url() or "").netloc.rpartition("@")[2]
        return None if host in ("", HOST) else host

    async def _read(
        self, reply: Any, builder: ReplyBuilder, connection: VendorConnection
    ) -> AsyncGenerator[Delta, None]:
        """Read a stream, or the SDK's reading of another body."""
        if type(reply) is not connection.sdk.AsyncStream and hasattr(reply, "__aiter__"):
            # Of a wrapper around the SDK, such as a tracer, which wants to see each piece.
            async for piece in reply:
                yield builder.add_chunk(to_dict(piece))
            yield builder.close("")
            return
        reader = EventReader()
        async for data in _bytes(reply):
            for event in reader.feed(data):
                yield builder.add_event(event)
        for event in reader.close():
            yield builder.add_event(event)
        if is_page(reader.body):
            reason = f"it sent a web page instead of an answer: {body_text(reader.body)}"
            raise ModelUnavailable(self._name, reason, self._url_hint(connection.base_url))
        yield builder.close(reader.body)

    def _check_window(self, builder: ReplyBuilder) -> None:
        """Raise ContextOverflow for an empty answer caused by a full window, in the servers' several forms."""
        if builder.is_empty:
            reason = (
                "it answered with nothing, streamed or not, as servers do if the history is too long for them"
            )
            raise ContextOverflow(self._name, reason)
        if not builder.has_content and builder.finish in _WINDOW_ENDS and not builder.output_tokens:
            raise ContextOverflow(self._name, f"it stopped before the first word ({builder.finish})")


async def _bytes(reply: Any) -> AsyncGenerator[bytes, None]:
    if hasattr(reply, "response"):
        async for data in reply.response.aiter_bytes():
            yield data
    else:
        yield (reply if isinstance(reply, str) else json.dumps(to_dict(reply))).encode()


class ReplyBuilder:
    """Assembles a completion from events, or from a body with the whole completion.

    A second choice is refused, or left out with `only_first`.
    """

    def __init__(self, *, only_first: bool = False) -> None:
        self.finish: str | None = None
        self._only_first = only_first
        self._has_begun = False
        self._is_done = False
        self._model: str | None = None
        self._usage: dict[str, Any] = {}
        self._choice_index: object = None
        self._content: list[dict[str, Any]] = []
        self._texts: dict[str, str] = {}
        self._audio: dict[str, Any] = {}
        self._calls: list[CallBuilder] = []
        self._calls_by_index: dict[str, CallBuilder] = {}
        self._old_call = CallBuilder()
        self._message: dict[str, Any] = {}
        self._unread: object = None

    @property
    def has_content(self) -> bool:
        return bool(self._content or any(self._texts.values()) or self._audio or self._all_calls())

    @property
    def is_empty(self) -> bool:
        """Whether the server has said nothing at all, not even a stop."""
        return not self.has_content and self.finish is None and self._unread is None

    @property
    def output_tokens(self) -> object:
        return self._usage.get("completion_tokens")

    def add_event(self, event: ServerEvent) -> Delta:
        data = event.data.strip()
        if data.startswith(DONE):
            self._is_done = True
            return Delta()
        if event.kind == "error":
            raise StreamFailure({"error": _decode(data, data)})
        return self._add_json(data) if data else Delta()

    def close(self, body: str) -> Delta:
        """Add the parts outside of events, and a whole message beside or instead of deltas."""
        if body.strip() and not self._has_begun:
            self._is_done = True
            self._add_json(body)
        return Delta() if self.has_content else self._add_delta(self._message)

    def reply(self) -> dict[str, Any]:
        if self._unread is not None and not self._has_begun:
            raise UnrecognizedReply("a reply without choices", self._unread)
        calls = self._all_calls()
        finish = self.finish
        if finish is None and self._is_done:  # the server says by [DONE] that the answer is whole
            finish = "tool_calls" if calls else "stop"
        content: object = self._content
        if all(block["type"] == "text" for block in self._content):
            content = _join_surrogates("".join(block["text"] for block in self._content))
        texts = {key: _join_surrogates(text) for key, text in self._texts.items()}
        message = {"role": "assistant", "content": content, **texts}
        if self._audio:
            message["audio"] = self._audio
        used = {call.id for call in calls if call.id}
        message["tool_calls"] = [call.whole(number, used) for number, call in enumerate(calls)]
        usage = {"usage": self._usage} if self._usage else {}
        return {"model": self._model, **usage, "choices": [{"message": message, "finish_reason": finish}]}

    def _all_calls(self) -> list[CallBuilder]:
        """Return the calls, also from a server with only the deprecated `function_call`, or with both fields."""
        is_other = self._old_call.name not in ("", *(call.name for call in self._calls))
        return [*self._calls, self._old_call] if is_other else self._calls

    def _add_json(self, data: str) -> Delta:
        chunk = _decode(data, None)
        try:
            if not isinstance(chunk, dict):
                raise UnrecognizedReply("a piece that is not a JSON object")
            return self.add_chunk(chunk)
        except UnrecognizedReply as error:
            raise UnrecognizedReply(f"{error.problem}: {data}", data) from None

    def add_chunk(self, chunk: dict[str, Any]) -> Delta:
        choices = chunk.get("choices")
        if chunk.get("error") or str(chunk.get("object")).lower() == "error":
            raise StreamFailure(chunk)
        if choices is None and chunk.keys() & {"message", "detail"}:
            raise StreamFailure(chunk)
        if isinstance(chunk.get("model"), str):
            self._model = chunk["model"]
        self._add_usage(chunk.get("usage"))
        if isinstance(groq := chunk.get("x_groq"), dict):
            self._add_usage(groq.get("usage"))
        if choices is None:
            self._unread = chunk if not chunk.get("usage") else self._unread
            return Delta()
        if not isinstance(choices, list):
            raise UnrecognizedReply("choices that are not a list")
        deltas = [self._add_choice(to_dict(choice)) for choice in choices]
        return Delta("".join(d.text for d in deltas), "".join(d.reasoning for d in deltas))

    def _add_usage(self, usage: object) -> None:
        """Counts come once, at the end, or grow with every chunk: the largest is the whole."""
        if not isinstance(usage, dict):
            return
        for key, value in usage.items():
            before = self._usage.get(key)
            if isinstance(value, int) and isinstance(before, int):
                value = max(value, before)
            if value is not None:
                self._usage[key] = value

    def _add_choice(self, choice: dict[str, Any]) -> Delta:
        index = choice.get("index") or 0
        if self._has_begun and index != self._choice_index:
            if self._only_first:
                return Delta()
            raise UnrecognizedReply("a second choice; an answer is exactly one")
        self._has_begun, self._choice_index = True, index
        if choice.get("error"):
            raise StreamFailure({"error": choice["error"]})
        self._add_usage(choice.get("usage"))
        if choice.get("finish_reason"):
            self.finish = str(choice["finish_reason"])
        if choice.get("message"):
            self._message = to_dict(choice["message"])
        delta = to_dict(choice.get("delta") or {})
        if not delta and choice.get("text"):  # of the older completions
            delta = {"content": choice["text"]}
        return self._add_delta(delta)

    def _add_delta(self, delta: dict[str, Any]) -> Delta:
        before = {key: len(text) for key, text in self._texts.items()}
        content = self._add_content(delta.get("content"))
        for key in ("refusal", "reasoning_content", "reasoning"):
            if delta.get(key):
                self._texts[key] = self._texts.get(key, "") + _text_of(delta[key])
        if isinstance(audio := delta.get("audio"), dict):
            self._add_audio(audio)
        self._content.extend(to_dict(image) for image in _as_list(delta.get("images")))
        pieces = [to_dict(piece) for piece in _as_list(delta.get("tool_calls"))]
        for position, piece in enumerate(pieces):
            self._add_call(piece, position if len(pieces) > 1 else None)
        if delta.get("function_call"):
            self._old_call.add({"function": delta["function_call"]})
        new = {key: text[before.get(key, 0) :] for key, text in self._texts.items()}
        reasoning = new.get("reasoning_content") or new.get("reasoning", "")
        transcript = str(to_dict(delta.get("audio") or {}).get("transcript") or "")
        return Delta(content.text + new.get("refusal", "") + transcript, content.reasoning + reasoning)

    def _add_content(self, content: object) -> Delta:
        texts = {"text": "", "thinking": ""}
        for block in _as_list(content):
            block = {"type": "text", "text": block} if isinstance(block, str) else to_dict(block)
            kind = "text" if block.get("type") in (None, "text", "output_text") else str(block["type"])
            if kind not in texts:
                self._content.append(block)
                continue
            text = _text_of(block.get(kind, block))
            texts[kind] += text
            if self._content and self._content[-1]["type"] == kind:
                self._content[-1][kind] += text
            elif text:
                self._content.append({"type": kind, kind: text})
        return Delta(texts["text"], texts["thinking"])

    def _add_audio(self, audio: dict[str, Any]) -> None:
        for key, value in audio.items():
            is_piece = key in ("data", "transcript") and isinstance(value, str)
            self._audio[key] = self._audio.get(key, "") + value if is_piece else value

    def _add_call(self, piece: dict[str, Any], position: int | None) -> None:
        index = piece.get("index", position)
        key = "" if index is None else str(index)
        call = self._find_call(key, CallBuilder.of(piece))
        if call is None:
            call = CallBuilder()
            self._calls.append(call)
        self._calls_by_index[key] = self._calls_by_index[""] = call
        call.add(piece)

    def _find_call(self, key: str, piece: CallBuilder) -> CallBuilder | None:
        """Return the call continued by a piece; None for a new call.

        Servers omit the index or give all calls the same, omit ids, repeat id and name in every chunk, or invent a new id
        for each: what is left to tell by is the name, and whether the arguments so far are complete.
        """
        last = self._calls_by_index.get("")
        call = self._calls_by_index.get(key)
        if not key or call is None:
            same_id = next((call for call in self._calls if piece.id and call.id == piece.id), None)
            if call is None:
                is_continued = last is not None and last.is_open
                return None if piece.name else same_id or (last if is_continued else None)
            call = same_id or call
        if not piece.name:
            return call
        if piece.id and piece.id == call.id:
            is_repeated = piece.arguments in ("", call.arguments)
            return call if call.is_open or not call.arguments or is_repeated else None
        if piece.name != call.name and call.name:
            return None
        if piece.id and call.id:
            return call if call.is_open else None
        return call if call.is_open or not call.arguments or not piece.arguments else None


class CallBuilder:
    """Assembles a tool call."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.arguments = ""
        self._other_fields: dict[str, Any] = {}

    @classmethod
    def of(cls, piece: dict[str, Any]) -> CallBuilder:
        call = cls()
        call.add(piece)
        return call

    @property
    def is_open(self) -> bool:
        """Whether the arguments have begun and are not a whole JSON object yet."""
        if not self.arguments.rstrip().endswith("}"):  # most often, and cheaper than parsing it
            return bool(self.arguments)
        return not isinstance(_decode(self.arguments, None), dict)

    def add(self, piece: dict[str, Any]) -> None:
        function = to_dict(piece["function"]) if piece.get("function") else piece
        if self.id is None and piece.get("id") not in (None, ""):
            self.id = str(piece["id"])
        self.name = self.name or str(function.get("name") or "")
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if arguments != self.arguments or self.is_open:  # else it is repeated
            self.arguments += arguments or ""
        if piece.get("type") not in (None, "", "function"):
            self._other_fields |= piece
        if piece.get("extra_content"):  # Google's signatures
            self._other_fields["extra_content"] = piece["extra_content"]

    def whole(self, number: int, used: set[str]) -> dict[str, Any]:
        if not self.name and "type" not in self._other_fields:
            raise UnrecognizedReply(
                f"a tool call without a name, with the arguments {self.arguments}", self.arguments
            )
        call_id = self.id
        while call_id is None or (call_id != self.id and call_id in used):
            call_id, number = f"call_{number}", number + 1
        used.add(call_id)
        function = {"name": self.name, "arguments": _join_surrogates(self.arguments)}
        return {"id": call_id, "type": "function", "function": function, **self._other_fields}


def _decode(text: str, default: object) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default


def _as_list(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _text_of(value: object) -> str:
    """Return the text of a string, of a block, or of a list of blocks."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text_of, value))
    if isinstance(value, Mapping):
        keys = [key for key in ("text", "thinking", "content", "summary") if key in value]
        if keys:
            return _text_of(value[keys[0]])
    if value is None:
        return ""
    raise UnrecognizedReply(f"text that is {type(value).__name__}")


def _join_surrogates(text: str) -> str:
    """Join the halves of a character split by a server over two chunks."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class OpenAIChatPlugin(VendorPlugin):
    client = OpenAIChatModel

    def read_reply(self, content_type: str, body: bytes) -> StreamReply:
        """Read a completion in any shape of a compatible server."""
        builder, reader, error = ReplyBuilder(only_first=True), EventReader(), ""
        try:
            for event in chain(reader.feed(body), reader.close()):
                builder.add_event(event)
            builder.close(reader.body)
        except StreamFailure as failure:
            error = error_text(failure.body.get("error") or failure.body)
        except UnrecognizedReply as unread:
            error = unread.problem
        if builder.is_empty:
            return StreamReply(None, False, error)
        data = builder.reply()
        return StreamReply(data, data["choices"][0]["finish_reason"] is not None and not error, error)


plugin = OpenAIChatPlugin()
