"""OpenAI's Chat Completions and servers compatible with it, called with the SDK `openai`.

The chunks are assembled here and not by the SDK: other servers repeat ids and names in every chunk, which it would
concatenate, or give all calls of a batch the same index.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ...wire.base import Request as History
from ...wire.parsing import to_dict
from ..model import Delta, Request, ToolSpec
from .base import TIMEOUT_SECONDS, VendorClient, VendorConnection

_TEXT_FIELDS = ("content", "refusal", "reasoning_content", "reasoning")


class OpenAIChatModel(VendorClient):
    provider = "openai-chat"
    package = "openai"
    extra = "openai"
    key_variables = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.OpenAIError,)

    async def _pieces(
        self, connection: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        fields: dict[str, Any] = {**history, "stream_options": {"include_usage": True}, **self.options}
        if request.tools:
            fields["tools"] = [_tool(tool) for tool in request.tools]
        if request.max_tokens:
            # OpenAI's newer models refuse the old name, other servers do not know the new one.
            is_openai = "//api.openai.com" in (connection.base_url or "//api.openai.com")
            fields["max_completion_tokens" if is_openai else "max_tokens"] = request.max_tokens
        http = connection.sdk.DefaultAsyncHttpxClient(verify=connection.tls, timeout=TIMEOUT_SECONDS)
        client = connection.sdk.AsyncOpenAI(
            api_key=connection.key, base_url=connection.base_url, max_retries=0, http_client=http
        )
        create = client.chat.completions.create
        builder = _ReplyBuilder()
        async with client, await create(model=self.model, stream=True, **fields) as chunks:
            yield Delta()
            async for chunk in chunks:
                yield builder.add(to_dict(chunk))
        if builder.has_begun:
            yield builder.reply()


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _ReplyBuilder:
    """Assembles a completion from its chunks."""

    def __init__(self) -> None:
        self.has_begun = False
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._calls: list[dict[str, Any]] = []
        self._calls_by_index: dict[object, dict[str, Any]] = {}
        self._finish: str | None = None

    def add(self, chunk: dict[str, Any]) -> Delta:
        self._fields.update({key: chunk[key] for key in ("model", "usage") if chunk.get(key)})
        for choice in map(to_dict, chunk.get("choices") or ()):
            self.has_begun = True
            self._finish = choice.get("finish_reason") or self._finish
            delta = to_dict(choice.get("delta") or {})
            for call in delta.get("tool_calls") or ():
                self._add_call(to_dict(call))
            return self._add_texts(
                {key: delta[key] for key in _TEXT_FIELDS if isinstance(delta.get(key), str)}
            )
        return Delta()

    def _add_texts(self, texts: dict[str, str]) -> Delta:
        for key, text in texts.items():
            self._texts[key] = self._texts.get(key, "") + text
        reasoning = texts.get("reasoning_content") or texts.get("reasoning", "")
        return Delta(texts.get("content", "") + texts.get("refusal", ""), reasoning)

    def _add_call(self, piece: dict[str, Any]) -> None:
        function = to_dict(piece.get("function") or {})
        call = self._calls_by_index.get(piece.get("index"))
        is_new = call is not None and piece.get("id") and piece["id"] != call["id"]
        if call is None or is_new:
            call = {"id": piece.get("id") or f"call_{len(self._calls)}", "type": "function"}
            call["function"] = {"name": "", "arguments": ""}
            self._calls.append(call)
            self._calls_by_index[piece.get("index")] = call
        whole = call["function"]
        whole["name"] = whole["name"] or function.get("name") or ""
        whole["arguments"] += function.get("arguments") or ""

    def reply(self) -> dict[str, Any]:
        message = {"role": "assistant", **self._texts, "tool_calls": self._calls}
        return {**self._fields, "choices": [{"message": message, "finish_reason": self._finish}]}
