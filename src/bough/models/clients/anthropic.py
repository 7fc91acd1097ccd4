"""Anthropic's models, by way of the SDK `anthropic`.

The SDK's own final message is not used: it closes arguments of a call that were cut off by the token limit as
if the model had, and fails on those that are no JSON. Here the text is kept, and `wire` says that it is malformed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ...wire.base import Request as History
from ...wire.parsing import to_dict
from ..model import Delta, Request, ToolSpec
from .base import SECONDS, Client, VendorConnection

MAX_TOKENS = 8192
"""Anthropic wants a limit; this is ours if nobody sets one."""

_SPOKEN = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class AnthropicModel(Client):
    provider = "anthropic"
    package = "anthropic"
    extra = "anthropic"
    key_variables = ("ANTHROPIC_API_KEY",)
    url_variable = "ANTHROPIC_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.AnthropicError,)

    async def _ask(
        self, door: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        fields = {"max_tokens": request.max_tokens or MAX_TOKENS, **history, **self.options}
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
        http = door.sdk.DefaultAsyncHttpxClient(verify=door.tls, timeout=SECONDS)
        client = door.sdk.AsyncAnthropic(
            api_key=door.key, base_url=door.base_url, max_retries=0, http_client=http
        )
        message: dict[str, Any] = {}
        async with client, await client.messages.create(model=self.model, stream=True, **fields) as events:
            yield Delta()
            async for event in events:
                yield _add(message, to_dict(event))
        if message:
            yield message


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _add(message: dict[str, Any], event: dict[str, Any]) -> Delta:
    """Take one event into the message; what it says is for whoever watches."""
    kind = event["type"]
    if kind == "message_start":
        message.update(event["message"], content=[])
    elif kind == "content_block_start":
        message["content"].append(event["content_block"])
    elif kind == "content_block_delta":
        return _grow(message["content"][event["index"]], event["delta"])
    elif kind == "message_delta":
        message["stop_reason"] = event["delta"]["stop_reason"]
        # Totals, not additions; what is left out stays as it was at the start.
        counted = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        message["usage"] = {**(message.get("usage") or {}), **counted}
    return Delta()


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> Delta:
    kind = delta["type"]
    if kind == "input_json_delta":
        block["input"] = (block["input"] or "") + delta["partial_json"]  # it starts as an empty object
    elif kind in _SPOKEN:
        key = _SPOKEN[kind]
        block[key] = (block.get(key) or "") + delta[key]
        if key != "signature":
            return Delta(text=delta[key]) if key == "text" else Delta(reasoning=delta[key])
    return Delta()
