"""OpenAI's models over its Responses API, by way of the SDK `openai`.

Nothing is stored at OpenAI: reasoning comes back encrypted and is sent again. The last event of a stream holds
the whole response, so nothing is put together here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ...wire.base import Request as History
from ...wire.parsing import to_dict
from ..model import Delta, Request, ToolSpec
from .base import SECONDS, Client, StreamFailure, VendorConnection

_SEALED = "reasoning.encrypted_content"
_UNSEALED = "Encrypted content is not supported"
_DONE = ("response.completed", "response.incomplete")
_TEXT = ("response.output_text.delta", "response.refusal.delta")
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


class OpenAIModel(Client):
    provider = "openai"
    package = "openai"
    extra = "openai"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.OpenAIError,)

    async def _ask(
        self, door: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        fields: dict[str, Any] = {**history, "store": False, "include": [_SEALED], **self.options}
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
        if request.max_tokens:
            fields["max_output_tokens"] = request.max_tokens
        http = door.sdk.DefaultAsyncHttpxClient(verify=door.tls, timeout=SECONDS)
        client = door.sdk.AsyncOpenAI(
            api_key=door.key, base_url=door.base_url, max_retries=0, http_client=http
        )
        async with client, await self._open(door.sdk, client, fields) as events:
            yield Delta()
            async for event in events:
                yield _take(to_dict(event))

    async def _open(self, sdk: Any, client: Any, fields: dict[str, Any]) -> Any:
        try:
            return await client.responses.create(model=self.model, stream=True, **fields)
        except sdk.BadRequestError as error:
            if _UNSEALED not in str(error):
                raise
            # A model that does not reason refuses to seal what it has not thought: said, not guessed.
            bare = {key: value for key, value in fields.items() if key != "include"}
            return await client.responses.create(model=self.model, stream=True, **bare)


def _take(event: dict[str, Any]) -> object:
    kind = event.get("type")
    if kind in _TEXT:
        return Delta(text=event["delta"])
    if kind in _REASONING:
        return Delta(reasoning=event["delta"])
    if kind in _DONE:
        return event["response"]
    if kind == "response.failed":
        raise StreamFailure(event["response"].get("error") or {})
    if kind == "error":
        raise StreamFailure(event)
    return Delta()


def _tool(tool: ToolSpec) -> dict[str, Any]:
    told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **told, "strict": False}
