"""Sessions out of other tools: read there, never written; told as entries; taken in like a bundle, with a report of what was lost.

`TOOLS` says which are known. A tool's module has `sessions(place)`, which tells every session of a place as a `Foreign`,
and is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from ...errors import InvalidSource, UnknownImporter
from ...formats.records import Foreign


class Tool(Struct, frozen=True):
    """Another program that keeps sessions."""

    name: str
    what: str
    """What a place of it is, for people."""
    module: str
    homes: tuple[str, ...] = ()
    """Where it keeps them unless told otherwise; the first that is there."""

    @property
    def home(self) -> str | None:
        places = (Path(home).expanduser() for home in self.homes)
        return next((str(place) for place in places if place.exists()), None)

    def sessions(self, place: str) -> Iterator[Foreign]:
        told: Callable[[str], Iterator[Foreign]] = import_module(f".{self.module}", __name__).sessions
        return told(place)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("adk", "a SQLite file of ADK's sessions", "adk"),
        Tool("chat", "JSON lines of messages, or of conversations as fine-tuning takes them", "chat"),
        Tool(
            "claude-code",
            "its folder of projects, or one .jsonl of it",
            "claude_code",
            ("~/.claude/projects",),
        ),
        Tool("codex", "a rollout-….jsonl, or a folder of them", "codex", ("~/.codex/sessions",)),
        Tool("langgraph", "a SQLite file of LangGraph's SqliteSaver", "langgraph"),
        Tool(
            "llm",
            "the logs.db of llm, or its folder",
            "llm",
            (
                "~/.config/io.datasette.llm",
                "~/Library/Application Support/io.datasette.llm",
                "~/AppData/Roaming/io.datasette.llm",
            ),
        ),
        Tool("openai-agents", "a SQLite file of OpenAI Agents' sessions", "openai_agents"),
        Tool("pi", "its folder of sessions, or one .jsonl of it", "pi", ("~/.pi/agent/sessions",)),
        Tool("redis", "redis://[user:password@]host[:port][/db][?match=PATTERN]", "redis"),
    )
}


def told_by(name: str, place: str | None = None) -> Iterator[Foreign]:
    """The sessions a tool keeps at a place; without one, where it keeps them by itself."""
    tool = TOOLS.get(name)
    if tool is None:
        raise UnknownImporter(name, list(TOOLS))
    where = place or tool.home
    if where is None:
        looked = f"nothing is at {' or '.join(tool.homes)}" if tool.homes else "it has no place of its own"
        raise InvalidSource(None, name, f"{looked}; name {tool.what}")
    return tool.sessions(where)
