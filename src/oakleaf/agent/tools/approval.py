"""Approvals that an operator asks for, beside those that the tools ask for themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from oakleaf.agent.tools.sources import ToolConnection, ToolLike, ToolSource, is_source
from oakleaf.agent.tools.tool import Tool, tool
from oakleaf.core.redact import Redactor


def with_approval(tools: Iterable[ToolLike], names: bool | Collection[str]) -> list[ToolLike]:
    """Return the tools. Calls of the named tools wait for approval; True names all tools."""
    return [_with_approval(each, names) for each in tools] if names else list(tools)


def _with_approval(item: ToolLike, names: bool | Collection[str]) -> ToolLike:
    if is_source(item):
        return _Source(item, names)
    made = item if isinstance(item, Tool) else tool(cast("Callable[..., Any]", item))
    return _ask(made, names)


def _ask(one: Tool, names: bool | Collection[str]) -> Tool:
    is_named = names if isinstance(names, bool) else one.name in names
    return replace(one, approval=one.approval or True) if is_named else one


class _Source:
    """A source with tools that wait for approval."""

    def __init__(self, source: ToolSource, names: bool | Collection[str]) -> None:
        self._source, self._names = source, names

    def __str__(self) -> str:
        return str(self._source)

    def for_one_turn(self) -> ToolSource:
        return _Source(self._source.for_one_turn(), self._names)

    def open(self, redactor: Redactor, session_key: object) -> ToolConnection:
        return _Connection(self._source.open(redactor, session_key), self._names)


class _Connection:
    def __init__(self, connection: ToolConnection, names: bool | Collection[str]) -> None:
        self._connection, self._names = connection, names

    @property
    def restarts(self) -> Sequence[str]:
        return self._connection.restarts

    async def connect(self) -> Sequence[Tool]:
        return [_ask(each, self._names) for each in await self._connection.connect()]

    async def close(self) -> None:
        await self._connection.close()
