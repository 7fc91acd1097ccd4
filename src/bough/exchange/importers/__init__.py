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
from ...formats.records import SessionRecord


class Importer(Struct, frozen=True):
    """Another program that keeps sessions."""

    name: str
    source: str
    """What a place of it is, for people."""
    module: str
    default_paths: tuple[str, ...] = ()
    """Where it keeps them unless told otherwise; the first that is there."""

    @property
    def default_path(self) -> str | None:
        places = (Path(home).expanduser() for home in self.default_paths)
        return next((str(place) for place in places if place.exists()), None)

    def sessions(self, place: str) -> Iterator[SessionRecord]:
        told: Callable[[str], Iterator[SessionRecord]] = import_module(f".{self.module}", __name__).sessions
        return told(place)


IMPORTERS = {
    tool.name: tool
    for tool in (
        Importer("adk", "a SQLite file of ADK's sessions", "adk"),
        Importer("chat", "JSON lines of messages, or of conversations as fine-tuning takes them", "chat"),
        Importer(
            "claude-code",
            "its folder of projects, or one .jsonl of it",
            "claude_code",
            ("~/.claude/projects",),
        ),
        Importer("codex", "a rollout-….jsonl, or a folder of them", "codex", ("~/.codex/sessions",)),
        Importer("langgraph", "a SQLite file of LangGraph's SqliteSaver", "langgraph"),
        Importer(
            "llm",
            "the logs.db of llm, or its folder",
            "llm",
            (
                "~/.config/io.datasette.llm",
                "~/Library/Application Support/io.datasette.llm",
                "~/AppData/Roaming/io.datasette.llm",
            ),
        ),
        Importer("openai-agents", "a SQLite file of OpenAI Agents' sessions", "openai_agents"),
        Importer("pi", "its folder of sessions, or one .jsonl of it", "pi", ("~/.pi/agent/sessions",)),
        Importer("redis", "redis://[user:password@]host[:port][/db][?match=PATTERN]", "redis"),
    )
}


def read_sessions(name: str, place: str | None = None) -> Iterator[SessionRecord]:
    """The sessions a tool keeps at a place; without one, where it keeps them by itself."""
    tool = IMPORTERS.get(name)
    if tool is None:
        raise UnknownImporter(name, list(IMPORTERS))
    where = place or tool.default_path
    if where is None:
        looked = (
            f"nothing is at {' or '.join(tool.default_paths)}"
            if tool.default_paths
            else "it has no place of its own"
        )
        raise InvalidSource(None, name, f"{looked}; name {tool.source}")
    return tool.sessions(where)
