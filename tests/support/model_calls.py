"""Calls of a vendor's client in a test: the client, a request, and the pieces of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Settings
from oakleaf.core.messages import Message, user
from oakleaf.core.tool_definitions import ToolSpec, define_tools
from oakleaf.models.base import Delta, Model, Request
from oakleaf.models.names import model_by_name
from oakleaf.wire import Answer
from support.fake_providers import FakeProviders

T = TypeVar("T")
KEY = "sk-very-secret-0123456789"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (ToolSpec("weather", "Looks out of the window.", SCHEMA), ToolSpec("f", "Does.", SCHEMA))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end of the loop; what the loop itself complains about is a failure."""
    complaints: list[dict[str, Any]] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        try:
            result = runner.run(work)
        finally:
            runner.close()
            assert complaints == []
    return result


def client(provider: str, server: FakeProviders, key: str = KEY) -> Model:
    model = model_by_name(f"{provider}:some-model@{server.url_for(provider)}")
    return type(model)("some-model", base_url=server.url_for(provider), key=key)


def request_of(*messages: Message, tools: tuple[ToolSpec, ...] = TOOLS, **options: Any) -> Request:
    items = tuple(Item(message, seq, 1) for seq, message in enumerate(messages or (user("hi"),), 1))
    tool_set = define_tools(tools)
    settings = Settings(options=options or None, tool_definitions=tool_set.definitions if tools else None)
    return Request(Context(("Be brief.",), items, settings), {tool_set.blob.hash: tool_set.blob.data}.get)


async def listen(model: Model, request: Request) -> tuple[list[Delta], Answer]:
    deltas: list[Delta] = []
    answers: list[Answer] = []
    async for piece in model.stream(request):
        assert answers == []
        (deltas if isinstance(piece, Delta) else answers).append(piece)
    [answer] = answers
    return deltas, answer
