"""The agent file: an agent in TOML or Python.

    model = "anthropic:MODEL"           # or a list: a fallback chain
    prompt = "@support.md"              # a text, or a file
    tools = ["shop.py"]
    approval = ["refund"]               # these calls wait for approval

    [limits]
    turns = 20
    cost = 0.50                         # dollars

Every path in the file is relative to the file. A Python file defines the same names as module variables; its models and
tools may be objects. `AgentFile` is the one declaration of the keys. Knows no session and no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

from oakleaf.cli.key_file import check, join, model_beside, read_toml, text_beside, tool_beside
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.text_argument import read_text
from oakleaf.cli.tool_files import all_tools, is_ready, load_module
from oakleaf.core.entries import Effects
from oakleaf.core.usage import MAX_COUNT, MICROCENTS_PER_DOLLAR
from oakleaf.errors import InvalidArgument
from oakleaf.ext import ScopeTier, Selection

# -- the keys ----------------------------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_models(value: object) -> bool:
    several = value if isinstance(value, list | tuple) else [value]
    return bool(several) and all(_is_text(one) or hasattr(one, "provider") for one in several)


def _are_tools(value: object) -> bool:
    several = value if isinstance(value, list | tuple) else [None]
    return all(_is_text(one) or callable(one) or is_ready(one) for one in several)


def _is_selection(value: object) -> bool:
    return isinstance(value, str) and to_selection(value) is not None


def to_selection(text: str) -> Selection | None:
    """Return the selection of `FILE:FIRST-LAST`; None for another text."""
    file, _, lines = text.rpartition(":")
    first, _, last = lines.partition("-")
    if not (file and first.isdecimal() and (last or first).isdecimal()):
        return None
    try:
        return Selection(file, int(first), int(last or first))
    except InvalidArgument:
        return None


Models = Annotated[
    Any, Meta(description="the name of a model, or a list of names", extra={"is_valid": _are_models})
]
Tools = Annotated[
    Any, Meta(description="a list of FILE.py, FILE.py:NAME or modules", extra={"is_valid": _are_tools})
]
Text = Annotated[str, Meta(min_length=1, description="a text")]
Commands = Annotated[tuple[Text, ...], Meta(description="a list of commands")]
Variables = Annotated[tuple[Text, ...], Meta(description="a list of names of variables")]
Flag = Annotated[bool, Meta(description="true or false")]
Turns = Annotated[
    int, Meta(ge=0, le=MAX_COUNT, description="a number of turns of the session; 0 is the default, 50")
]
Rounds = Annotated[
    int, Meta(ge=0, le=MAX_COUNT, description="a number of model calls in a turn; 0 is the default, 50")
]
Dollars = Annotated[
    float, Meta(ge=1 / MICROCENTS_PER_DOLLAR, lt=1e9, description="an amount of dollars above 0")
]
Messages = Annotated[int, Meta(ge=1, le=MAX_COUNT, description="a number of messages from 1 on")]
Tokens = Annotated[int, Meta(ge=1, le=MAX_COUNT, description="a number of tokens from 1 on")]


class LimitsTable(Struct, frozen=True, kw_only=True):
    """`[limits]`: the maximum use of a session."""

    turns: Turns | None = None
    rounds: Rounds | None = None
    cost: Dollars | None = None
    on_exceed: Annotated[str, Meta(pattern="^(stop|warn)$", description="stop or warn")] | None = None
    messages: Messages | None = None
    context_window: Tokens | None = None


class WorkspaceTable(Struct, frozen=True, kw_only=True):
    """`[workspace]`: a folder with tools for files, grep, shell and HTTP, and what these may do."""

    dir: Annotated[Text, Meta(description="a folder")] | None = None
    scope: Annotated[ScopeTier, Meta(description="sandboxed, project or full")] | None = None
    allow: Commands | None = None
    env: Variables | None = None


class McpTable(Struct, frozen=True, kw_only=True):
    """`[mcp]`: MCP servers and how far they are trusted."""

    servers: (
        Annotated[
            tuple[str, ...] | dict[str, str],
            Meta(description="a list of commands, URLs or FILE.json, or a table of NAME = COMMAND or URL"),
        ]
        | None
    ) = None
    trust: Flag | None = None
    approve: Flag | None = None


class ContextTable(Struct, frozen=True, kw_only=True):
    """`[context]`: what a new session records of where it works; prompts name it {{ctx.NAME}}."""

    active_file: Annotated[Text, Meta(description="the name of a file")] | None = None
    selection: (
        Annotated[
            Any,
            Meta(description="FILE:FIRST-LAST, two numbers of lines", extra={"is_valid": _is_selection}),
        ]
        | None
    ) = None
    git_ref: Annotated[Text, Meta(description="a branch or a commit")] | None = None
    variables: Annotated[dict[str, str], Meta(description="a table of NAME = TEXT")] | None = None


class SessionTable(Struct, frozen=True, kw_only=True):
    """`[session]`: the name of a new session, and where it belongs."""

    title: Text | None = None
    tags: Annotated[dict[str, str], Meta(description="a table of NAME = TEXT")] | None = None
    conversation: (
        Annotated[Text, Meta(description="the id of a conversation, whose latest session goes on")] | None
    ) = None


class AgentFile(Struct, frozen=True, kw_only=True):
    """An agent, as a file or --set describes it."""

    name: Annotated[Text, Meta(description="the agent's name")] | None = None
    model: Models | None = None
    prompt: Annotated[str, Meta(description="a text, or @FILE")] | None = None
    tools: Tools | None = None
    effects: Annotated[Effects, Meta(description="ask, repeat or reuse")] | None = None
    approval: (
        Annotated[bool | tuple[str, ...], Meta(description="a list of names of tools, or true for all")]
        | None
    ) = None
    trigger: Annotated[Text, Meta(description="TYPE or TYPE:ID, such as email:17")] | None = None
    policy: Annotated[dict[str, Any], Meta(description="a table, or a JSON object")] | None = None
    options: Annotated[dict[str, Any], Meta(description="a table of options of the model's calls")] | None = (
        None
    )
    limits: LimitsTable = LimitsTable()
    workspace: WorkspaceTable = WorkspaceTable()
    mcp: McpTable = McpTable()
    context: ContextTable = ContextTable()
    session: SessionTable = SessionTable()

    @property
    def models(self) -> list[Any]:
        """The chain of models, as written: names, or objects of a Python file."""
        chain = self.model or []
        return list(chain) if isinstance(chain, list | tuple) else [chain]

    @property
    def servers(self) -> tuple[str, ...]:
        """The MCP servers, each as NAME=SERVER or a server."""
        servers = self.mcp.servers or ()
        if isinstance(servers, dict):
            return tuple(f"{name}={where}" for name, where in servers.items())
        return servers

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The files and modules with tools. Tools that are objects have none."""
        return tuple(one for one in self.tools or () if isinstance(one, str))


# -- read a file -----------------------------------------------------------------------------------------------


def is_agent_file(value: str) -> bool:
    """Whether the value of --agent names a file, and not an agent."""
    return value.endswith((".toml", ".py")) or Path(value).is_file()


def read_agent_file(name: str) -> dict[str, Any]:
    """Return an agent file's content, with paths relative to the current folder."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise CommandError(
            f"--agent {name}: there is no file {path}; write one, or name an agent without .toml or .py"
        )
    if path.suffix == ".py":
        return _of_module(load_module("--agent", name, str(path)), path)
    return _beside(path, read_toml(AgentFile, path))


def agent_of_module(module: ModuleType, name: str) -> AgentFile:
    """Return the agent of a loaded Python agent file."""
    return to_agent(_of_module(module, Path(name)))


def _of_module(module: ModuleType, path: Path) -> dict[str, Any]:
    """Return the variables of a module that name keys. Without `tools`, every decorated tool of the module is one."""
    values = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    keys = [field.name for field in fields(AgentFile)]
    for name, value in values.items():
        if name not in keys and isinstance(value, str | int | float | list | tuple | dict):
            _refuse_typo(name, [key for key in keys if key not in values], path)
    data = {name: values[name] for name in keys if name in values}
    check(AgentFile, data, lambda _: str(path))
    return _beside(path, data if "tools" in data else {**data, "tools": all_tools(module)})


def _refuse_typo(name: str, keys: Iterable[str], path: Path) -> None:
    if close := get_close_matches(name, keys, 1, cutoff=0.8):
        raise CommandError(
            f"{path}: there is no key {name}; did you mean {close[0]}? Another variable may begin with an underscore"
        )


def _beside(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a file, with a name, and with paths relative to the file's folder."""
    folder, changed = path.parent, {"name": path.stem, **data}
    if data.get("prompt"):
        changed["prompt"] = text_beside(folder, data["prompt"], f"{path}: prompt")
    if data.get("model") is not None:
        changed["model"] = [model_beside(folder, one) for one in AgentFile(model=data["model"]).models]
    changed["tools"] = [tool_beside(folder, one) for one in data.get("tools") or ()]
    if "dir" in data.get("workspace", {}):
        changed["workspace"] = {**data["workspace"], "dir": join(folder, data["workspace"]["dir"])}
    servers = data.get("mcp", {}).get("servers")
    if isinstance(servers, list | tuple):
        changed["mcp"] = {**data["mcp"], "servers": [_server_beside(folder, one) for one in servers]}
    return changed


def _server_beside(folder: Path, server: str) -> str:
    is_file = server.endswith(".json") and "://" not in server and " " not in server
    return join(folder, server) if is_file else server


def to_agent(data: Mapping[str, Any]) -> AgentFile:
    """Return the agent of checked data, with the prompt's text."""
    prompt = data.get("prompt")
    text = prompt if prompt is None else read_text(prompt, "the prompt")
    return msgspec.convert({**data, "prompt": text}, AgentFile)
