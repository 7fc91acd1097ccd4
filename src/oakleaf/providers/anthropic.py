"""Anthropic's models, called with the SDK `anthropic`.

The SDK's own final message is not used: it completes the arguments of a call that the token limit cut off, and fails on
arguments that are not JSON. Here their text is kept, and `wire` marks the call as malformed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar

from oakleaf.core.json_repair import INVALID_JSON, decode_repaired
from oakleaf.models.base import Delta, Request, StreamReply
from oakleaf.providers.base import VendorClient, VendorPlugin, closing_reply
from oakleaf.providers.connections import VendorConnection
from oakleaf.providers.replies import RecordedReply, text_or_none
from oakleaf.wire.parsing import to_dict

_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
}


class AnthropicModel(VendorClient):
    provider = "anthropic"
    package = "anthropic"
    client_class = "AsyncAnthropic"
    extra = "anthropic"
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    url_variable = "ANTHROPIC_BASE_URL"

    def _method(self, client: Any) -> Callable[..., Any]:
        return client.messages.create  # type: ignore[no-any-return]

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.AnthropicError,)

    async def _pieces(self, connection: VendorConnection, request: Request) -> AsyncGenerator[object, None]:
        message: dict[str, Any] = {}
        async with self._opened(connection) as create:
            arguments = await self._arguments(create, request, stream=True)
            async with closing_reply(await create(**arguments)) as events:
                yield Delta()
                async for event in events:
                    yield _add_event(message, to_dict(event))
        if message:
            yield message


def _add_event(message: dict[str, Any], event: dict[str, Any]) -> Delta:
    """Add an event to the message and return the addition to display."""
    kind = event["type"]
    if kind == "message_start":
        message.update(event["message"], content=[])
    elif kind == "content_block_start":
        message["content"].append(event["content_block"])
    elif kind == "content_block_delta":
        return _extend_block(message["content"][event["index"]], event["delta"])
    elif kind == "message_delta":
        message["stop_reason"] = event["delta"]["stop_reason"]
        message.update({key: value for key, value in event["delta"].items() if value is not None})
        # Totals, not increments; a field that is missing keeps its value from the start.
        totals = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        message["usage"] = {**(message.get("usage") or {}), **totals}
    return Delta()


def _extend_block(block: dict[str, Any], delta: dict[str, Any]) -> Delta:
    kind = delta["type"]
    if kind == "input_json_delta":
        block["input"] = (block["input"] or "") + delta["partial_json"]  # it starts as an empty object
    elif kind in _DELTA_FIELDS:
        key = _DELTA_FIELDS[kind]
        block[key] = (block.get(key) or "") + delta[key]
        if key in ("text", "thinking"):
            return Delta(text=delta[key]) if key == "text" else Delta(reasoning=delta[key])
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
    else:  # of a newer API
        block["unread_deltas"] = [*block.get("unread_deltas", ()), delta]
    return Delta()


class RecordedMessage(RecordedReply):
    """Puts the events of an Anthropic stream together."""

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._is_complete = False

    def add(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._message = dict(event.get("message") or {})
            case "content_block_start":
                self._blocks[event["index"]] = dict(event.get("content_block") or {})
            case "content_block_delta":
                self._add_delta(event["index"], event.get("delta") or {})
            case "message_delta":
                self._message.update(event.get("delta") or {})
                usage = event.get("usage") or {}
                self._message["usage"] = {**(self._message.get("usage") or {}), **_without_none(usage)}
            case "message_stop":
                self._is_complete = True

    def _add_delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        for name in ("text", "thinking", "signature", "content", "encrypted_content"):
            if isinstance(delta.get(name), str):
                block[name] = (block.get(name) or "") + delta[name]
        if isinstance(delta.get("partial_json"), str):
            self._json[index] = self._json.get(index, "") + delta["partial_json"]
        if "citation" in delta:
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def reply(self) -> StreamReply:
        blocks = [self._block(index) for index in sorted(self._blocks)]
        if not self._is_complete:  # half a call is not a call
            blocks = [block for block in blocks if block.get("type") != "tool_use"]
        data = {**self._message, "content": blocks} if self._message else None
        return StreamReply(
            data, self._is_complete and not self.error, self.error, text_or_none(self._message.get("id"))
        )

    def _block(self, index: int) -> dict[str, Any]:
        block, text = self._blocks[index], self._json.get(index)
        if text is None:
            return block
        try:
            return {**block, "input": decode_repaired(text.encode("utf-8", "replace"))}
        except INVALID_JSON:
            return {**block, "input": text}


def _without_none(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if value is not None}


class AnthropicPlugin(VendorPlugin):
    client = AnthropicModel
    families = ("claude-",)

    def read_reply(self, content_type: str, body: bytes) -> StreamReply:
        return RecordedMessage().read(content_type, body)


plugin = AnthropicPlugin()
