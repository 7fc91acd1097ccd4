"""Anthropic's models, called with the SDK `anthropic`.

The SDK's own final message is not used: it completes the arguments of a call that the token limit cut off, and fails on
arguments that are not JSON. Here their text is kept, and `wire` marks the call as malformed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from oakleaf.models.base import Delta, Request
from oakleaf.providers.base import VendorClient
from oakleaf.providers.connections import HttpExchange, VendorConnection
from oakleaf.wire.parsing import to_dict

_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class AnthropicModel(VendorClient):
    provider = "anthropic"
    package = "anthropic"
    extra = "anthropic"
    key_variables = ("ANTHROPIC_API_KEY",)
    url_variable = "ANTHROPIC_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.AnthropicError,)

    async def _pieces(self, connection: VendorConnection, request: Request) -> AsyncGenerator[object, None]:
        message: dict[str, Any] = {}
        async with HttpExchange(connection) as exchange:
            create = exchange.client(connection.sdk.AsyncAnthropic).messages.create
            fields = await self._request(request, exchange, {"model": self.model, "stream": True})
            async with await create(**self._arguments(fields)) as events:
                yield Delta()
                async for event in events:
                    yield _add_event(message, to_dict(event))
        if message:
            yield message


def _add_event(message: dict[str, Any], event: dict[str, Any]) -> Delta:
    """Add one event to the message and return what it adds for display."""
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
        if key != "signature":
            return Delta(text=delta[key]) if key == "text" else Delta(reasoning=delta[key])
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
    else:  # of a newer API
        block["unread_deltas"] = [*block.get("unread_deltas", ()), delta]
    return Delta()
