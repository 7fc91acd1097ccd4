"""The agent options that `run`, `chat` and `resume` share: models, tools, limits and prompt.

The model comes from --model, else from the session, else from $OAKLEAF_MODEL, else from the configuration. Also loads tools from files and modules. Does
not know how a turn runs.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeGuard

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Limits, Tool, Workspace, tool
from oakleaf.cli.config import load_config, model_option, model_options
from oakleaf.cli.mcp_option import connect_once, load_servers, mcp_options
from oakleaf.cli.option_group import complete_file, struct_options
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import notify, safe
from oakleaf.cli.text_argument import text_option
from oakleaf.cli.workspace_plugin import find_workspace_plugin, workspace_plugin
from oakleaf.core.context import changed_options
from oakleaf.core.entries import Effects, Settings
from oakleaf.core.messages import system as system_message
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR
from oakleaf.errors import ModelRefused, ModelUnavailable
from oakleaf.ext import (
    ScopeTier,
    Selection,
    ToolLike,
    ToolSource,
    address_of,
    available_models,
    is_model_name,
    is_source,
    needs_client,
    plugin_tools,
    read,
    split_tools,
    stored_model,
    tools_by_name,
    with_defaults,
)
from oakleaf.models.base import Model
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.wire.options import check_options

NO_MODEL = """\
no model was given. Pass --model NAME, set OAKLEAF_MODEL, or choose one for good: oakleaf config set model NAME

  anthropic:MODEL  openai:MODEL  gemini:MODEL    the key comes from the environment
  openai-chat:MODEL@http://127.0.0.1:8080/v1     any compatible server
  scripted:FILE.yaml                             offline: answers from a file, for trials and tests

Several --model are a fallback chain."""


CONTEXT_FLAGS = {
    "active_file": "--active-file",
    "selection": "--selection",
    "git_ref": "--git-ref",
    "variables": "--var",
}


class AgentOptions(Struct, frozen=True, kw_only=True):
    """The agent options as typed."""

    models: tuple[str, ...] = ()
    model_options: dict[str, Any] = {}
    tools: tuple[str, ...] = ()
    workspace: str | None = None
    scope: ScopeTier | None = None
    allow: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    mcp_trust: bool = False
    mcp_approve: bool = False
    max_cost: float | None = None
    on_exceed: Literal["stop", "warn"] | None = None
    max_turns: int | None = None
    max_rounds: int | None = None
    max_messages: int | None = None
    context_window: int | None = None
    effects: Effects | None = None
    system: str | None = None
    agent: str | None = None
    title: str | None = None
    tags: dict[str, str] = {}
    conversation: str | None = None
    active_file: str | None = None
    selection: Selection | None = None
    git_ref: str | None = None
    variables: dict[str, str] = {}

    @property
    def limits(self) -> Limits:
        """The limits as typed."""
        return Limits(
            turns=self.max_turns or 0,
            rounds=self.max_rounds or 0,
            max_cost_microcents=None if self.max_cost is None else _microcents(self.max_cost),
            on_exceed=self.on_exceed or "stop",
            context_window=self.context_window,
            max_messages=self.max_messages,
        )

    @property
    def default_limits(self) -> dict[str, Any]:
        """The limits of the configuration that no flag sets."""
        typed = {
            "turns": self.max_turns,
            "rounds": self.max_rounds,
            "max_messages": self.max_messages,
            "max_cost_microcents": self.max_cost,
            "on_exceed": self.on_exceed,
        }
        return {name: value for name, value in load_config().chat_limits.items() if typed[name] is None}

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that the shell tool may run: those of --allow, else those of the configuration."""
        return self.allow or tuple(load_config().chat.get("allowed_commands", ()))

    @property
    def context(self) -> Workspace | None:
        """The workspace that a new session records: that of --workspace, or the current folder with what was said of it."""
        about = {name: getattr(self, name) for name in CONTEXT_FLAGS}
        if self.workspace is None and not any(about.values()):
            return None
        return Workspace.detect(
            working_dir=str(Path(self.workspace or ".").resolve()),
            fs_scope_tier=self.scope or load_config().chat.get("fs_scope", "sandboxed"),
            **about,
        )

    def start(self, store: Store, **arguments: Any) -> Session:
        """Start a session, or continue the latest one of --conversation."""
        seeds = [system_message(self.system)] if self.system else []
        arguments |= {"title": self.title, "tags": self.tags, "workspace": self.context}
        if self.conversation is not None:
            return store.latest_or_start(self.conversation, self.agent, seeds, **arguments)
        return store.start(self.agent, seeds, **arguments)


class CommandAgent(Struct, frozen=True):
    """The models, tools and limits a turn runs with."""

    options: AgentOptions
    names: tuple[str, ...]
    models: list[Model]
    own_tools: list[Tool]
    """The tools from files."""
    limits: Limits
    workspace: Workspace | None
    """Where it has tools."""
    default_limits: dict[str, Any] = {}
    """Limits for a session that has none of the same name."""
    model_options: dict[str, Any] = {}
    """Options of the model's calls that the session does not have yet."""
    sources: tuple[ToolSource, ...] = ()
    source_tools: tuple[Tool, ...] = ()
    """What the sources listed; a run connects to them itself."""

    def tools(self, session: Session | None) -> list[Tool]:
        """Return all its tools. Those of the workspace store long output in the session, and need one."""
        return [*self.own_tools, *self.source_tools, *self._workspace_tools(session)]

    def run_arguments(self, session: Session) -> dict[str, Any]:
        """Return the keyword arguments of `send` and `resume`."""
        return {
            "model": self.models,
            "tools": [*self.own_tools, *self.sources, *self._workspace_tools(session)],
            "limits": self._limits_of(session),
            "options": self.model_options,
            "effects": self.options.effects,
        }

    def _limits_of(self, session: Session) -> Limits:
        if not self.default_limits:
            return self.limits
        return with_defaults(self.limits, self.default_limits, read(session).settings())

    def _workspace_tools(self, session: Session | None) -> list[Tool]:
        if self.workspace is None or session is None:
            return []
        commands, env = self.options.commands, self.options.env
        made = plugin_tools("workspace", session, self.workspace, commands=commands, env=env)
        return list(tools_by_name(made).values())

    def without_options_of(self, session: Session) -> CommandAgent:
        """Return the agent without its options, once the session has them: it may change them meanwhile."""
        if changed_options(read(session).settings().options, self.model_options) is not None:
            return self
        return replace(self, model_options={})

    def start(self, store: Store) -> Session:
        """Start a session, or continue the latest one of --conversation. The spec records how it was started."""
        options = self.options
        spec = {
            "name": options.agent,
            "prompt": options.system,
            "models": list(self.names),
            "tools": list(options.tools),
            "workspace": options.workspace,
            "mcp": list(options.mcp),
        }
        return options.start(
            store,
            model=self.names[0],
            tool_names=self._tool_names(),
            spec={name: value for name, value in spec.items() if value},
        )

    def _tool_names(self) -> list[str]:
        """Return the names of all tools. None of them: the session may be given some later."""
        own = [tool.name for tool in self.tools(None)]
        return (
            [*own, *workspace_plugin("--workspace").TOOL_NAMES] if own and self.workspace is not None else own
        )

    def flags(self, session: Session) -> str:
        """Return the options that select this agent again, as typed in a shell, with a leading space."""
        options = self.options
        flags = {
            "--model": () if self._is_known_by(session) else self.names,
            "--tools": options.tools,
            "--workspace": (options.workspace,),
            "--scope": (options.scope,),
            "--allow": options.allow,
            "--env": options.env,
            "--mcp": options.mcp,
            "--max-cost": (options.max_cost,),
            "--on-exceed": (options.on_exceed,),
            "--max-turns": (options.max_turns,),
            "--max-rounds": (options.max_rounds,),
            "--max-messages": (options.max_messages,),
            "--context-window": (options.context_window,),
            "--effects": (options.effects,),
        }
        words = [word for flag, values in flags.items() for one in values if one for word in (flag, f"{one}")]
        words += [
            flag for flag in ("--mcp-trust", "--mcp-approve") if getattr(options, flag[2:].replace("-", "_"))
        ]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def _is_known_by(self, session: Session) -> bool:
        """Whether the session's own data is enough to ask the same models again."""
        names = self.names
        return names == _own_models(session) and (_is_configured(names) or _are_allowed(names, session))

    def update_prompt(self, session: Session) -> None:
        """Append --system to an existing session as its new prompt, unless it is the prompt already."""
        prompt = read(session).fill(Settings(prompt=self.options.system)).prompt
        if prompt is None or "\n\n".join(session.context().system) == prompt:
            return
        read(session).check_free()
        session.set(prompt=prompt)


def agent_for(options: AgentOptions, session: Session | None) -> CommandAgent:
    """Build the agent. Refuses every invalid option, before anything is written."""
    if options.workspace is None and (options.scope or options.allow or options.env):
        raise CommandError("--scope, --allow and --env need --workspace DIR")
    stored = () if session is None or options.models else _own_models(session)
    names = options.models or stored or default_models()
    if not names:
        raise CommandError(NO_MODEL)
    model_options = with_default_options(names[0], session, options.model_options)
    is_foreign = session is not None and stored and not _is_configured(stored)
    models = available_models(names, stored_in=session.session_id if session and is_foreign else None)
    for name in stored if is_foreign else ():
        if address_of(name) is not None:
            notify(safe(f"the session names its model: {name}"))
    for model in models:
        check_options(model.provider, model_options)
    limits, context = options.limits, options.context
    if options.workspace is not None and context is not None:
        workspace_plugin("--workspace").check(context, commands=options.commands, env=options.env)
    own, sources = command_tools(options)
    return CommandAgent(
        options,
        names,
        models,
        list(own.values()),
        limits,
        None if options.workspace is None else context,
        options.default_limits,
        model_options,
        sources,
        connect_once(own, sources),
    )


def with_default_options(model: str, session: Session | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, and those configured for the model that neither they nor the session have one of that name for."""
    config = load_config()
    defaults = config.default_options(model)
    own = (read(session).settings().options or {}) if defaults and session is not None else {}
    used = {name: value for name, value in defaults.items() if name not in own and name not in options}
    config.check_options(model, used)
    return {**used, **options}


def _microcents(dollars: float) -> int:
    if not isfinite(dollars):
        raise CommandError(f"--max-cost {dollars} is not an amount; omit it for no limit")
    microcents = round(dollars * MICROCENTS_PER_DOLLAR)
    if not microcents:
        raise CommandError(
            f"--max-cost {dollars:g} would not allow a single call; raise it, or omit it for no limit"
        )
    return microcents


def _own_models(session: Session) -> tuple[str, ...]:
    """Return the models of the session's settings, else of the chain it was started with, else of its row."""
    model = read(session).settings().model
    if model is not None:
        return (model,)
    row, spec = session.row, _spec(session)
    chain = spec.get("models")
    if isinstance(chain, list) and chain[:1] == [row.model] and all(isinstance(name, str) for name in chain):
        return tuple(chain)
    return (row.model,) if row.model and (is_model_name(row.model) or needs_client(row.model)) else ()


def _is_configured(names: Iterable[str]) -> bool:
    """Whether the configuration and $OAKLEAF_MODEL have these names too, so that the operator gave them."""
    config, name = load_config(), os.environ.get("OAKLEAF_MODEL")
    return set(names) <= {
        *config.resolve([*([name] if name else []), *config.chat_models, *config.models]),
        *config.aliases.values(),
    }


def _are_allowed(names: Iterable[str], session: Session) -> bool:
    """Whether a command asks the models that the session's data names."""
    try:
        for name in names:
            stored_model(name, session.session_id)
    except ModelUnavailable as error:
        return not isinstance(error, ModelRefused)
    return True


def default_models() -> tuple[str, ...]:
    """Return the models of $OAKLEAF_MODEL, else of the configuration."""
    config, name = load_config(), os.environ.get("OAKLEAF_MODEL")
    return config.resolve([name] if name else config.chat_models)


def _spec(session: Session) -> dict[str, Any]:
    spec = read(session).detail().spec
    fields = msgspec.json.decode(spec) if spec else {}
    return fields if isinstance(fields, dict) else {}


def require_tools(session: Session, tools: list[Tool]) -> None:
    """Refuse to resume if an open call needs a tool that is not loaded; otherwise the model would get an error that it does not exist."""
    missing = sorted({call.call.name for call in session.open_tool_calls} - {tool.name for tool in tools})
    if missing:
        raise CommandError(
            f"session {session.session_id} has open calls of {', '.join(missing)}, which is not loaded{_hint(session)}; "
            f"pass --tools FILE.py, --mcp SERVER or --workspace DIR, or abandon the turn: "
            f"oakleaf resume {session.session_id} --rollback"
        )


def warn_missing_tools(session: Session, tools: list[Tool]) -> None:
    names, present = set(session.row.tool_names), {tool.name for tool in tools}
    workspace = find_workspace_plugin()
    if missing := sorted(names - present - set(() if workspace is None else workspace.TOOL_NAMES)):
        notify(f"running without {', '.join(missing)}, which this session had{_hint(session)}")
    if names and (extra := sorted(present - names)):
        notify(
            f"running without {', '.join(extra)}, which this session was not started with; its tools can only be fewer"
        )


def _hint(session: Session) -> str:
    flags = original_flags(session)
    return f" (it was started with{flags})" if flags else ""


def original_flags(session: Session) -> str:
    """Return the --tools, --mcp and --workspace the session was started with, as typed in a shell, with a leading space.

    None of an imported session: its commands and files are a stranger's, and nobody should be told to run them.
    """
    if read(session).has_foreign_detail():
        return ""
    spec = _spec(session)
    was = [
        (flag, source)
        for flag, name in (("--tools", "tools"), ("--mcp", "mcp"))
        for source in spec.get(name, ())
    ]
    was += [("--workspace", spec["workspace"])] if spec.get("workspace") else []
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in was)


def flags_for_open_calls(session: Session) -> str:
    """Return the flags that load the tools of its open calls: those it was started with, if a command started it."""
    return original_flags(session) or " --tools FILE.py"


# -- tools from files and modules ------------------------------------------------------------------------


def command_tools(options: AgentOptions) -> tuple[dict[str, Tool], tuple[ToolSource, ...]]:
    """Return the tools of --tools, and the sources of --tools and --mcp."""
    servers = load_servers(options.mcp, trust=options.mcp_trust, approve=options.mcp_approve)
    return split_tools([*load_tools(options.tools), *servers])


def load_tools(sources: Iterable[str]) -> list[ToolLike]:
    """Return the tools, and sources of tools, of each `FILE.py` or `package.module`, or of one name in it (`FILE.py:name`), without duplicates."""
    loaded: dict[int, ToolLike] = {}
    for source in sources:
        place, _, name = source.partition(":")
        module = load_module("--tools", source, place)
        tools = _tools_named(source, module, name) if name else _all_tools(module)
        if not tools:
            raise CommandError(
                f"{source} has no tools; decorate functions with @oakleaf.tool, or list them as `tools`"
            )
        loaded |= {id(one): one for one in tools}
    return list(loaded.values())


def load_module(option: str, source: str, place: str) -> ModuleType:
    """Import `FILE.py` or `package.module`."""
    is_file = place.endswith(".py") or not all(part.isidentifier() for part in place.split("."))
    if is_file and Path(place).is_dir():
        raise CommandError(f"{option} {source}: {place} is a folder; name a file in it, or a module")
    if is_file and not Path(place).is_file():
        raise CommandError(f"{option} {source}: there is no file {place}")
    try:
        if is_file:
            return _from_file(Path(place))
        _find_in(Path.cwd())
        return import_module(place)
    except Exception as error:  # user code may raise anything
        if isinstance(error, ModuleNotFoundError) and Path(place).is_file():
            raise CommandError(f"{option} {source}: the name of a Python file must end in .py") from None
        raise CommandError(f"{option} {source}: cannot be loaded: {type(error).__name__}: {error}") from error


def _from_file(place: Path) -> ModuleType:
    name = f"oakleaf_tools_{place.stem}"
    _find_in(place.resolve().parent)  # as a script imports its neighbours
    spec = spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _tools_named(source: str, module: ModuleType, name: str) -> list[ToolLike]:
    value = getattr(module, name, None)
    if value is None:
        raise CommandError(f"--tools {source}: it has no {name!r}")
    return [tool(value)] if callable(value) and not _is_ready(value) else _tools_of(value)


def _all_tools(module: ModuleType) -> list[ToolLike]:
    values = vars(module)
    own = (value for value in values.values() if _is_ready(value))
    return [*own, *_tools_of(values.get("tools"))]


def _tools_of(value: Any) -> list[ToolLike]:
    if _is_ready(value):
        return [value]
    several = value if isinstance(value, list | tuple) else ()
    return [one if _is_ready(one) else tool(one) for one in several]


def _is_ready(value: object) -> TypeGuard[Tool | ToolSource]:
    """Whether it can be passed on as it is; a function is made a tool first."""
    return isinstance(value, Tool) or is_source(value)


# -- options -------------------------------------------------------------------------------------------


def _tags(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    for pair in value:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", ctx, param)
    return dict(pair.split("=", 1) for pair in value)


effects_option = click.option(
    "--effects",
    type=click.Choice(["ask", "repeat", "reuse"]),
    help="From here on, a call of an unsafe tool that a path which was left has made with the same arguments: wait for "
    "approval, run it once more, or answer with the result it had. Default: ask.",
)


def _selection(ctx: click.Context, param: click.Parameter, value: str | None) -> Selection | None:
    if value is None:
        return None
    file, _, lines = value.rpartition(":")
    first, _, last = lines.partition("-")
    if not file or not first.isdecimal() or not (last or first).isdecimal():
        raise click.BadParameter(f"{value!r} is not FILE:FIRST-LAST, two numbers of lines", ctx, param)
    return Selection(file, int(first), int(last or first))


_max_turns_option = click.option(
    "--max-turns",
    metavar="N",
    type=click.IntRange(min=0),
    help="Limit of turns in the session. 0 is the default, 50.",
)
_AGENT = (
    model_option(
        "--model",
        "models",
        multiple=True,
        help="The model, or an alias of it (oakleaf config alias); repeat it for a fallback chain.",
    ),
    model_options,
    click.option(
        "--tools",
        multiple=True,
        shell_complete=complete_file,
        metavar="FILE.py|MODULE[:NAME]",
        help="Load every tool there, and the lists named `tools`.",
    ),
    click.option(
        "--workspace",
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        help="Give the agent file, grep, shell and HTTP tools in this folder.",
    ),
    click.option(
        "--scope",
        type=click.Choice(["sandboxed", "project", "full"]),
        help="What the workspace tools may access. Default: sandboxed.",
    ),
    click.option(
        "--allow", multiple=True, metavar="COMMAND", help="A command the shell tool may run; repeatable."
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME",
        help="A variable of your environment that these commands inherit besides PATH, HOME, LANG and the like; repeatable.",
    ),
    *mcp_options,
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0),
        metavar="DOLLARS",
        help="Refuse a model call that would make the session cost more, or that has no price.",
    ),
    click.option(
        "--on-exceed",
        type=click.Choice(["stop", "warn"]),
        help="At --max-cost: refuse the call, or only warn. Default: stop.",
    ),
    _max_turns_option,
    click.option(
        "--max-rounds",
        metavar="N",
        type=click.IntRange(min=0),
        help="Limit of model calls in one turn. 0 is the default, 50.",
    ),
    click.option(
        "--max-messages",
        metavar="N",
        type=click.IntRange(min=1),
        help="Send at most this many messages: whole older turns are left out of the request.",
    ),
    click.option(
        "--context-window",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="The model's window, if it is not in the table of models or the server allows less.",
    ),
    effects_option,
)
_START = (
    text_option("--system", help="The system prompt."),
    click.option("--agent", metavar="NAME", help="The agent's name; oakleaf ls --agent filters by it."),
    click.option("--title", help="The session's title."),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        callback=_tags,
        metavar="NAME=VALUE",
        help="A tag of the session; repeatable.",
    ),
    click.option(
        "--conversation",
        metavar="ID",
        help="Continue the latest session of this conversation, or start its first.",
    ),
    click.option(
        "--active-file", metavar="FILE", help="The file you work on; prompts name it {{ctx.active_file}}."
    ),
    click.option(
        "--selection",
        metavar="FILE:FIRST-LAST",
        callback=_selection,
        help="The lines you selected; prompts name them {{ctx.selection}}.",
    ),
    click.option(
        "--git-ref", metavar="NAME", help="The branch or commit of the folder. Default: what is checked out."
    ),
    click.option(
        "--var",
        "variables",
        multiple=True,
        callback=_tags,
        metavar="NAME=VALUE",
        help="A value that prompts name {{ctx.NAME}}; repeatable. It is stored as plain text: no secrets.",
    ),
)


agent_options = struct_options("options", AgentOptions, *_AGENT)
"""The options of an agent; the command receives them as `options`."""
start_options = struct_options("options", AgentOptions, *_AGENT, *_START)
"""The options of an agent, and those of a new session: prompt, title, tags, conversation."""
input_options = struct_options(
    "options", AgentOptions, model_options, _max_turns_option, effects_option, *_START
)
"""The options of an input that a worker's agent answers, and those of a new session."""
