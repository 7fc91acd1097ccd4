"""OpenAI's models over its Responses API, called with the SDK `openai`.

Nothing is stored at OpenAI: reasoning is returned encrypted and sent again. The last event of a stream contains the
whole response, so nothing is assembled here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ...wire.base import Request as History
from ...wire.parsing import to_dict
from ..model import Delta, Request, ToolSpec
from .base import TIMEOUT_SECONDS, StreamFailure, VendorClient, VendorConnection

_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_NOT_ENCRYPTED = "Encrypted content is not supported"
_FINAL_EVENTS = ("response.completed", "response.incomplete")
_TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
_REASONING_EVENTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


class OpenAIModel(VendorClient):
    provider = "openai"
    package = "openai"
    extra = "openai"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.OpenAIError,)

    async def _pieces(
        self, connection: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        fields: dict[str, Any] = {
            **history,
            "store": False,
            "include": [_ENCRYPTED_REASONING],
            **self.options,
        }
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
        if request.max_tokens:
            fields["max_output_tokens"] = request.max_tokens
        http = connection.sdk.DefaultAsyncHttpxClient(verify=connection.tls, timeout=TIMEOUT_SECONDS)
        client = connection.sdk.AsyncOpenAI(
            api_key=connection.key, base_url=connection.base_url, max_retries=0, http_client=http
        )
        async with client, await self._open(connection.sdk, client, fields) as events:
            yield Delta()
            async for event in events:
                yield _read_event(to_dict(event))

    async def _open(self, sdk: Any, client: Any, fields: dict[str, Any]) -> Any:
        try:
            return await client.responses.create(model=self.model, stream=True, **fields)
        except sdk.BadRequestError as error:
            if _NOT_ENCRYPTED not in str(error):
                raise
            # A model without reasoning refuses to encrypt it, and says so in this message.
            without_include = {key: value for key, value in fields.items() if key != "include"}
            return await client.responses.create(model=self.model, stream=True, **without_include)


def _read_event(event: dict[str, Any]) -> object:
    """Return the delta of an event, or the whole response of the last one."""
    kind = event.get("type")
    if kind in _TEXT_EVENTS:
        return Delta(text=event["delta"])
    if kind in _REASONING_EVENTS:
        return Delta(reasoning=event["delta"])
    if kind in _FINAL_EVENTS:
        return event["response"]
    if kind == "response.failed":
        raise StreamFailure(event["response"].get("error") or {})
    if kind == "error":
        raise StreamFailure(event)
    return Delta()


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **function, "strict": False}
