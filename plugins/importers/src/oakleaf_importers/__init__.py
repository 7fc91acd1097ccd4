"""Import sessions from other tools. The sources are only read, and what could not be converted is reported.

`IMPORTERS` lists the known tools. Each has a module of its name with `read_sessions(source)`, loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from oakleaf.errors import InvalidSource, UnknownImporter
from oakleaf.ingest.records import SessionRecord


class Importer(Struct, frozen=True):
    """A tool whose sessions can be imported."""

    name: str
    source: str
    """What to name as its source, for people."""
    default_paths: tuple[str, ...] = ()
    """Where the tool keeps its sessions by default; the first that exists is used."""

    @property
    def default_path(self) -> str | None:
        paths = (Path(path).expanduser() for path in self.default_paths)
        return next((str(path) for path in paths if path.exists()), None)

    def sessions(self, source: str) -> Iterator[SessionRecord]:
        module = import_module(f".{self.name.replace('-', '_')}", __name__)
        read: Callable[[str], Iterator[SessionRecord]] = module.read_sessions
        return read(source)


def _config_folders(name: str) -> tuple[str, ...]:
    """Return where a program may keep its data on Linux, macOS and Windows."""
    return tuple(f"~/{root}/{name}" for root in (".config", "Library/Application Support", "AppData/Roaming"))


IMPORTERS = {
    importer.name: importer
    for importer in (
        Importer("adk", "a SQLite file of ADK's sessions"),
        Importer("chat", "a JSON Lines file of messages, or of conversations in a fine-tuning format"),
        Importer("chatgpt", "conversations.json of a data export, its folder or its .zip"),
        Importer("claude-ai", "conversations.json of a data export, its folder or its .zip"),
        Importer("claude-code", "its projects folder, or one .jsonl file in it", ("~/.claude/projects",)),
        Importer(
            "cline",
            "its data folder ~/.cline/data, the extension's folder in globalStorage, or one file of a task",
            ("~/.cline/data", *_config_folders("Code/User/globalStorage/saoudrizwan.claude-dev")),
        ),
        Importer("codex", "a rollout-….jsonl file, or a folder of them", ("~/.codex/sessions",)),
        Importer(
            "copilot-cli",
            "its folder ~/.copilot/session-state, or one events.jsonl in it",
            ("~/.copilot/session-state",),
        ),
        Importer(
            "droid", "its folder ~/.factory/sessions, or one .jsonl file in it", ("~/.factory/sessions",)
        ),
        Importer("gemini-cli", "its folder ~/.gemini/tmp, or one session file in it", ("~/.gemini/tmp",)),
        Importer(
            "goose",
            "its folder of sessions, sessions.db in it, or an older .jsonl file",
            ("~/.local/share/goose/sessions", "~/AppData/Roaming/Block/goose/data/sessions"),
        ),
        Importer("inspect", "a log of Inspect (.eval or .json), or a folder of them", ("logs",)),
        Importer("langgraph", "a SQLite file of LangGraph's SqliteSaver"),
        Importer("llm", "the logs.db of llm, or its folder", _config_folders("io.datasette.llm")),
        Importer("openai-agents", "a SQLite file of OpenAI Agents sessions"),
        Importer(
            "opencode", "opencode.db, or the folder that opencode keeps it in", ("~/.local/share/opencode",)
        ),
        Importer("pi", "its sessions folder, or one .jsonl file in it", ("~/.pi/agent/sessions",)),
        Importer(
            "qwen-code",
            "its folder ~/.qwen/projects, or one .jsonl file in it",
            ("~/.qwen/projects", "~/.qwen/tmp"),
        ),
        Importer("redis", "redis://[user:password@]host[:port][/db][?match=PATTERN]"),
        Importer(
            "roo-code",
            "the extension's folder in globalStorage, or one api_conversation_history.json in it",
            _config_folders("Code/User/globalStorage/rooveterinaryinc.roo-cline"),
        ),
    )
}


def read_sessions(tool: str, source: str | None = None) -> Iterator[SessionRecord]:
    """Read the sessions of a tool from `source`, or from its default location."""
    importer = IMPORTERS.get(tool)
    if importer is None:
        raise UnknownImporter(tool, list(IMPORTERS))
    location = source or importer.default_path
    if location is None:
        paths = " or ".join(importer.default_paths)
        reason = f"nothing is at {paths}" if paths else "it has no default location"
        raise InvalidSource(None, tool, f"{reason}; name {importer.source}")
    return importer.sessions(location)
