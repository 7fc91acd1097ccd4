"""The values for `tools=[…]`: tools, functions, and sources with tools known after a connection.

A source is anything that has the methods of `ToolSource`, such as an MCP server. A run connects to its sources before its
first model call and closes the connections at its end. Knows no source by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

from oakleaf import plugins
from oakleaf.agent.tools.tool import Tool, tool
from oakleaf.core.redact import Redactor
from oakleaf.errors import DuplicateTool, InvalidArgument, InvalidTool

BEFORE_A_SESSION = "before a session"
"""In place of a session's key: the tools are only listed. What was started for the list is left to the first
session that wants the same."""


class ToolConnection(Protocol):
    """One run's connection to a source."""

    @property
    def restarts(self) -> Sequence[str]:
        """Restarts of things kept for the session, with the reason: a warning each."""

    async def connect(self) -> Sequence[Tool]:
        """Connect and return the present tools of the source. Called once."""

    async def close(self) -> None:
        """End the connection, or leave the connection to the session's next run. Called once, also after a
        `connect` that failed."""


@runtime_checkable
class ToolSource(Protocol):
    """A source with tools known after a connection. Its `str` names it in errors."""

    def for_one_turn(self) -> ToolSource:
        """Return the source for a session without a later turn. Nothing is kept for the session."""

    def open(self, redactor: Redactor, session_key: object) -> ToolConnection:
        """Return a connection for a run, to be connected later. May import what it needs: it is called in a
        thread.

        What is kept between two runs belongs to the session of this key alone; of None nothing is kept.
        """


ToolLike = Tool | Callable[..., Any] | ToolSource
"""An item of `tools=[…]`."""


def is_source(item: object) -> TypeGuard[ToolSource]:
    """Whether the item is a source. The class of a source is no source."""
    return not isinstance(item, Tool | type) and isinstance(item, ToolSource)


def split_tools(tools: Iterable[ToolLike]) -> tuple[dict[str, Tool], tuple[ToolSource, ...]]:
    """Return tools by name, and the sources."""
    items = require_list(tools)
    sources = tuple(item for item in items if is_source(item))
    return tools_by_name(item for item in items if not is_source(item)), sources


def require_list(tools: Any) -> list[Any]:
    """Return the tools as a list. A single tool, function or name in place of a list is refused."""
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        name = getattr(tools, "name", None) or getattr(tools, "__name__", None) or "…"
        raise InvalidArgument("tools", tools, f"a list: tools=[{name}]")
    return list(tools)


def tools_by_name(tools: Iterable[ToolLike]) -> dict[str, Tool]:
    """Return tools by name. Plain functions become tools. A source is refused: its tools are known in a run
    only."""
    by_name: dict[str, Tool] = {}
    for item in require_list(tools):
        if is_source(item):
            raise InvalidTool(
                str(item),
                "its tools are known in a run only",
                "leave it out where recordings answer, as in a lab: what it offered and returned is recorded; else pass tools",
            )
        made = item if isinstance(item, Tool) else tool(cast("Callable[..., Any]", item))
        if made.name in by_name:
            raise InvalidTool(made.name, "another tool has the same name", "rename one: @tool(name=…)")
        by_name[made.name] = made
    return by_name


def for_one_turn(sources: Iterable[ToolSource]) -> tuple[ToolSource, ...]:
    """Return the sources for a session without a later turn."""
    return tuple(source.for_one_turn() for source in sources)


class Connections:
    """The connections of one run to the sources. Close them at its end, also if `open` failed."""

    def __init__(self, sources: Sequence[ToolSource], redactor: Redactor, session_key: object = None) -> None:
        self._sources, self._redactor, self._session_key = sources, redactor, session_key
        self._connections: list[ToolConnection] = []
        self._connecting: list[asyncio.Task[Sequence[Tool]]] = []

    @property
    def restarts(self) -> list[str]:
        return [why for connection in self._connections for why in connection.restarts]

    async def open(self, own: Mapping[str, Tool]) -> dict[str, Tool]:
        """Connect to all sources at once. Return offered tools and `own` tools by name, or raise
        `DuplicateTool`."""
        await asyncio.to_thread(self._open)
        self._connecting = [asyncio.create_task(_connect(each)) for each in self._connections]
        return merge_tools(own, zip(self._sources, await asyncio.gather(*self._connecting), strict=True))

    def _open(self) -> None:
        for source in self._sources:
            self._connections.append(source.open(self._redactor, self._session_key))

    async def close(self) -> None:
        for task in self._connecting:
            task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)
        closing = (connection.close() for connection in self._connections)
        ended = await asyncio.gather(*closing, return_exceptions=True)
        for error in filter(None, ended):  # raised when all are closed
            raise error


async def _connect(connection: ToolConnection) -> Sequence[Tool]:
    return await connection.connect()


def merge_tools(
    own: Mapping[str, Tool], offers: Iterable[tuple[ToolSource, Sequence[Tool]]]
) -> dict[str, Tool]:
    """Return all tools by name; raise `DuplicateTool` if a name occurs twice."""
    merged = dict(own)
    origin: dict[str, str] = {}
    for source, tools in offers:
        for each in tools:
            if not isinstance(each, Tool):
                raise InvalidTool(
                    repr(each)[:80], f"{source} offers it, and it is no tool", "use @oakleaf.tool"
                )
            if each.name in merged:
                raise DuplicateTool(each.name, origin.get(each.name, "a tool of this program"), str(source))
            merged[each.name], origin[each.name] = each, str(source)
    return merged


async def list_tools(own: Mapping[str, Tool], sources: Sequence[ToolSource]) -> list[Tool]:
    """Return the present tools of sources, before there is a session. The first session that wants the same
    sources takes over what was started."""
    connections = Connections(sources, Redactor(), BEFORE_A_SESSION)
    try:
        merged = await connections.open(own)
    finally:
        await connections.close()
    return [each for name, each in merged.items() if name not in own]


def plugin_tools(name: str, /, *arguments: Any, **options: Any) -> list[ToolLike]:
    """Return the tools made by a plugin of the group `oakleaf.tools` from the given arguments."""
    make = getattr(plugins.find(plugins.TOOLS, name), "tools", None)
    made = make(*arguments, **options) if callable(make) else None
    if not isinstance(made, list | tuple) or not all(callable(each) or is_source(each) for each in made):
        raise plugins.broken(plugins.TOOLS, name, "it has no function tools that returns a list of tools")
    return list(made)
