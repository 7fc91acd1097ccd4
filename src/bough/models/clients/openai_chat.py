"""OpenAI's Chat Completions and every server that speaks it, by way of the SDK `openai`.

The chunks are put together here and not by the SDK: other servers repeat ids and names in every chunk, which it
would join, or give all calls of a batch the same index.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ...wire.base import Request as History
from ...wire.parsing import to_dict
from ..model import Delta, Request, ToolSpec
from .base import SECONDS, Client, VendorConnection

_SPOKEN = ("content", "refusal", "reasoning_content", "reasoning")


class OpenAIChatModel(Client):
    provider = "openai-chat"
    package = "openai"
    extra = "openai"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.OpenAIError,)

    async def _ask(
        self, door: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        fields: dict[str, Any] = {**history, "stream_options": {"include_usage": True}, **self.options}
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
        if request.max_tokens:
            # OpenAI's newer models refuse the old name, other servers do not know the new one.
            is_openai = "//api.openai.com" in (door.base_url or "//api.openai.com")
            fields["max_completion_tokens" if is_openai else "max_tokens"] = request.max_tokens
        http = door.sdk.DefaultAsyncHttpxClient(verify=door.tls, timeout=SECONDS)
        client = door.sdk.AsyncOpenAI(
            api_key=door.key, base_url=door.base_url, max_retries=0, http_client=http
        )
        create = client.chat.completions.create
        building = _Building()
        async with client, await create(model=self.model, stream=True, **fields) as chunks:
            yield Delta()
            async for chunk in chunks:
                yield building.add(to_dict(chunk))
        if building.has_begun:
            yield building.reply()


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _Building:
    """A completion in the making."""

    def __init__(self) -> None:
        self.has_begun = False
        self._top: dict[str, Any] = {}
        self._said: dict[str, str] = {}
        self._calls: list[dict[str, Any]] = []
        self._at: dict[object, dict[str, Any]] = {}
        self._finish: str | None = None

    def add(self, chunk: dict[str, Any]) -> Delta:
        self._top.update({key: chunk[key] for key in ("model", "usage") if chunk.get(key)})
        for choice in map(to_dict, chunk.get("choices") or ()):
            self.has_begun = True
            self._finish = choice.get("finish_reason") or self._finish
            delta = to_dict(choice.get("delta") or {})
            for call in delta.get("tool_calls") or ():
                self._add_call(to_dict(call))
            return self._say({key: delta[key] for key in _SPOKEN if isinstance(delta.get(key), str)})
        return Delta()

    def _say(self, said: dict[str, str]) -> Delta:
        for key, text in said.items():
            self._said[key] = self._said.get(key, "") + text
        thought = said.get("reasoning_content") or said.get("reasoning", "")
        return Delta(said.get("content", "") + said.get("refusal", ""), thought)

    def _add_call(self, piece: dict[str, Any]) -> None:
        function = to_dict(piece.get("function") or {})
        call = self._at.get(piece.get("index"))
        is_another = call is not None and piece.get("id") and piece["id"] != call["id"]
        if call is None or is_another:
            call = {"id": piece.get("id") or f"call_{len(self._calls)}", "type": "function"}
            call["function"] = {"name": "", "arguments": ""}
            self._calls.append(call)
            self._at[piece.get("index")] = call
        written = call["function"]
        written["name"] = written["name"] or function.get("name") or ""
        written["arguments"] += function.get("arguments") or ""

    def reply(self) -> dict[str, Any]:
        message = {"role": "assistant", **self._said, "tool_calls": self._calls}
        return {**self._top, "choices": [{"message": message, "finish_reason": self._finish}]}
