"""Google's Gemini models, by way of the SDK `google-genai`, which has no final message: it is put together here.

A part with a signature is never joined with another: Gemini takes a signature back only on the part it came with.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any

from ...wire.base import Request as History
from ...wire.parsing import to_dict
from ..model import Delta, Request, ToolSpec
from .base import SECONDS, Client, VendorConnection


class GeminiModel(Client):
    provider = "gemini"
    package = "google.genai"
    extra = "gemini"
    key_variables = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    url_variable = "GOOGLE_GEMINI_BASE_URL"

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        kinds = vars(sdk.errors).values()  # they have no common root
        return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))

    async def _ask(
        self, door: VendorConnection, history: History, request: Request
    ) -> AsyncGenerator[object, None]:
        building = _Building()
        async with _heard(door) as http:
            client = door.sdk.Client(vertexai=False, api_key=door.key, http_options=_http_options(door, http))
            with closing(client):
                chunks = await client.aio.models.generate_content_stream(
                    model=self.model, contents=history["contents"], config=self._config(history, request)
                )
                async with aclosing(chunks):
                    async for chunk in chunks:
                        yield building.add(to_dict(chunk))
        if building.has_begun:
            yield building.reply()

    def _config(self, history: History, request: Request) -> dict[str, Any]:
        config: dict[str, Any] = {"automatic_function_calling": {"disable": True}, **self.options}
        if "systemInstruction" in history:
            config["system_instruction"] = history["systemInstruction"]
        if request.tools:
            config["tools"] = [{"functionDeclarations": [_tool(tool) for tool in request.tools]}]
        if request.max_tokens:
            config["max_output_tokens"] = request.max_tokens
        return config


@asynccontextmanager
async def _heard(door: VendorConnection) -> AsyncIterator[Any]:
    """An HTTP client that closes what it opened, for the SDK leaves a stream open that it stumbles over."""
    opened: list[Any] = []

    async def remember(response: Any) -> None:
        opened.append(response)

    hooks = {"response": [remember]}
    async with door.http.AsyncClient(verify=door.tls, timeout=SECONDS, event_hooks=hooks) as http:
        try:
            yield http
        finally:
            for response in opened:
                await response.aclose()


def _http_options(door: VendorConnection, http: Any) -> dict[str, Any]:
    return {
        "base_url": door.base_url,
        "httpx_async_client": http,  # with a client of our own it leaves aiohttp alone
        "timeout": int(SECONDS * 1000),  # else none at all, which would beat that client's
        "client_args": {"verify": door.tls},
        "async_client_args": {"ssl": door.tls},
    }


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}


class _Building:
    """A reply in the making."""

    def __init__(self) -> None:
        self.has_begun = False
        self._parts: list[dict[str, Any]] = []
        self._top: dict[str, Any] = {}
        self._finish: object = None

    def add(self, chunk: dict[str, Any]) -> Delta:
        kept = ("prompt_feedback", "usage_metadata", "model_version")
        self._top.update({key: chunk[key] for key in kept if chunk.get(key) is not None})
        candidates = chunk.get("candidates") or []
        self.has_begun |= bool(candidates) or "prompt_feedback" in self._top
        text = thought = ""
        for candidate in candidates[:1]:
            self._finish = candidate.get("finish_reason") or self._finish
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._join(part)
                text += "" if part.get("thought") else part.get("text") or ""
                thought += (part.get("text") or "") if part.get("thought") else ""
        return Delta(text, thought)

    def _join(self, part: dict[str, Any]) -> None:
        last = self._parts[-1] if self._parts else {}
        if _is_words(part) and _is_words(last) and bool(part.get("thought")) == bool(last.get("thought")):
            last["text"] += part["text"]
        else:
            self._parts.append(part)

    def reply(self) -> dict[str, Any]:
        if not self._parts and self._finish is None and "prompt_feedback" in self._top:
            return self._top
        content = {"role": "model", "parts": self._parts}
        return {**self._top, "candidates": [{"content": content, "finish_reason": self._finish}]}


def _is_words(part: dict[str, Any]) -> bool:
    """Whether it is text and nothing else, not even signed."""
    told = {key for key, value in part.items() if value is not None}
    return "text" in told and told <= {"text", "thought"}
