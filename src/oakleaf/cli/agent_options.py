"""The agent of a command: what its agent file, its flags and --set say, and what a turn runs with.

A flag and --set come first, then the agent file, the session's own, $OAKLEAF_MODEL and the configuration. Does not know how a
turn runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Limits, Tool, Workspace
from oakleaf.cli.agent_file import (
    AgentFile,
    ContextTable,
    SessionTable,
    is_agent_file,
    read_agent_file,
    to_agent,
    to_selection,
)
from oakleaf.cli.config import load_config, model_option
from oakleaf.cli.key_file import all_keys, flat, merge, merge_changes
from oakleaf.cli.mcp_servers import connect_once, load_servers
from oakleaf.cli.option_group import Decorator, complete_file, option_group
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import notify, safe
from oakleaf.cli.tool_files import load_tools
from oakleaf.cli.workspace_plugin import find_workspace_plugin, workspace_plugin
from oakleaf.core.codec import to_json
from oakleaf.core.context import changed_options
from oakleaf.core.entries import Settings
from oakleaf.core.messages import system as system_message
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR
from oakleaf.errors import ModelRefused, ModelUnavailable
from oakleaf.ext import (
    ToolLike,
    ToolSource,
    address_of,
    available_models,
    is_model_name,
    needs_client,
    plugin_tools,
    read,
    resolve_models,
    split_tools,
    stored_model,
    tools_by_name,
    with_approval,
    with_defaults,
)
from oakleaf.models.base import Model, model_name
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.verbs.resume_command import original_flags, start_spec
from oakleaf.wire.options import check_options

NO_MODEL = """\
no model was given. Pass --model NAME, set OAKLEAF_MODEL, or choose one for good: oakleaf config model NAME

  anthropic:MODEL  openai:MODEL  gemini:MODEL    the key comes from the environment
  openai-chat:MODEL@http://127.0.0.1:8080/v1     any compatible server
  scripted:FILE.yaml                             offline: answers from a file, for trials and tests

Several --model are a fallback chain."""


class AgentOptions(Struct, frozen=True, kw_only=True):
    """The agent options as typed, merged with the agent file's."""

    agent: AgentFile = AgentFile()
    file: str | None = None
    """The agent file."""
    typed: dict[str, Any] = {}
    """What flags and --set say, in the form of an agent file."""

    @property
    def models(self) -> tuple[Any, ...]:
        """The chain of models: names without aliases, or objects of a Python file."""
        resolve = load_config().resolve
        return tuple(resolve([one])[0] if isinstance(one, str) else one for one in self.agent.models)

    @property
    def model_options(self) -> dict[str, Any]:
        """The options of the model's calls."""
        return self.agent.options or {}

    @property
    def limits(self) -> Limits:
        """The limits as written."""
        limits = self.agent.limits
        return Limits(
            turns=limits.turns or 0,
            rounds=limits.rounds or 0,
            max_cost_microcents=None if limits.cost is None else round(limits.cost * MICROCENTS_PER_DOLLAR),
            on_exceed="warn" if limits.on_exceed == "warn" else "stop",
            context_window=limits.context_window,
            max_messages=limits.messages,
        )

    @property
    def default_limits(self) -> dict[str, Any]:
        """The configuration's limits, as far as neither a flag nor the agent file sets a limit."""
        limits = self.agent.limits
        own = {
            "turns": limits.turns,
            "rounds": limits.rounds,
            "max_messages": limits.messages,
            "max_cost_microcents": limits.cost,
            "on_exceed": limits.on_exceed,
        }
        return {name: value for name, value in load_config().chat_limits.items() if own[name] is None}

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands for the shell tool; by default the configuration's."""
        return self.agent.workspace.allow or tuple(load_config().chat.get("allowed_commands", ()))

    @property
    def env(self) -> tuple[str, ...]:
        """The environment variables of the commands."""
        return self.agent.workspace.env or ()

    @property
    def context(self) -> Workspace | None:
        """The workspace recorded in a new session: workspace.dir, or the current folder with the given details."""
        workspace, about = self.agent.workspace, self.agent.context
        if workspace.dir is None and about == ContextTable():
            return None
        return Workspace.detect(
            working_dir=str(Path(workspace.dir or ".").resolve()),
            fs_scope_tier=workspace.scope or load_config().chat.get("fs_scope", "sandboxed"),
            active_file=about.active_file,
            selection=None if about.selection is None else to_selection(about.selection),
            git_ref=about.git_ref,
            variables=about.variables,
        )

    @property
    def about_turn(self) -> dict[str, Any]:
        """The record of each turn: the cause and the policy."""
        about: dict[str, Any] = {}
        if self.agent.trigger is not None:
            kind, _, number = self.agent.trigger.partition(":")
            about["trigger"] = {"type": kind, **({"id": number} if number else {})}
        if self.agent.policy is not None:
            about["policy"] = self.agent.policy
        return about

    def refuse_typed(self, names: Iterable[str], why: str) -> None:
        """Refuse flags and --set of the keys, or tables of keys, without use for the command."""
        refused = set(names)
        keys = [key for key, _ in flat(AgentFile, self.typed) if refused & {key, key.partition(".")[0]}]
        if keys:
            words = ("--agent NAME" if key == "name" else f"--set {key}" for key in keys)
            raise CommandError(f"{' and '.join(words)}: {why}")

    def start(self, store: Store, **arguments: Any) -> Session:
        """Start a session, or continue the latest one of the agent's conversation."""
        agent, about = self.agent, self.agent.session
        seeds = [system_message(agent.prompt)] if agent.prompt else []
        arguments |= {"title": about.title, "tags": about.tags or {}, "workspace": self.context}
        if about.conversation is not None:
            return store.latest_or_start(about.conversation, agent.name, seeds, **arguments)
        return store.start(agent.name, seeds, **arguments)

    def tools(self) -> list[ToolLike]:
        """Load the agent's tools and MCP servers; none has the agent's approvals yet."""
        agent, is_typed = self.agent, "tools" in self.typed or self.file is None
        option = "--set tools" if is_typed else f"{self.file}: tools"
        folder = None if self.file is None or is_typed else Path(self.file).parent
        loaded = load_tools(agent.tool_names, option=option, folder=folder)
        trust, approve = bool(agent.mcp.trust), bool(agent.mcp.approve)
        servers = load_servers(agent.servers, trust=trust, approve=approve)
        ready = [one for one in agent.tools or () if not isinstance(one, str)]
        return [*ready, *loaded, *servers]


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
        """Return all tools of the agent. Those of the workspace store long output in the session, and need one."""
        return [*self.own_tools, *self.source_tools, *self._workspace_tools(session)]

    def run_arguments(self, session: Session) -> dict[str, Any]:
        """Return the keyword arguments of `send` and `resume`."""
        return {
            "model": self.models,
            "tools": [*self.own_tools, *self.sources, *self._workspace_tools(session)],
            "limits": self._limits_of(session),
            "options": self.model_options,
            "effects": self.options.agent.effects,
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
        return list(tools_by_name(with_approval(made, self.options.agent.approval or ())).values())

    def without_options_of(self, session: Session) -> CommandAgent:
        """Return the agent without options, once the session has the options: the session may change options
        meanwhile.
        """
        if changed_options(read(session).settings().options, self.model_options) is not None:
            return self
        return replace(self, model_options={})

    def start(self, store: Store) -> Session:
        """Start a session, or continue the latest session of the conversation. The spec records how it was
        started.
        """
        options, agent = self.options, self.options.agent
        spec = {
            "name": agent.name,
            "prompt": agent.prompt,
            "models": list(self.names),
            "tools": list(agent.tool_names),
            "workspace": agent.workspace.dir,
            "mcp": list(agent.servers),
            "agent_file": options.file,
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
            [*own, *workspace_plugin("workspace.dir").TOOL_NAMES]
            if own and self.workspace is not None
            else own
        )

    def flags(self, session: Session) -> str:
        """Return the options for selecting the agent again, as typed in a shell, with a leading space."""
        options = self.options
        typed = {key: value for key, value in flat(AgentFile, options.typed) if key not in _OF_A_START}
        models = typed.pop("model", None)
        needs_model = options.file is None and not self._is_known_by(session)
        words = [] if options.file is None else ["--agent", options.file]
        if needs_model or (options.file is not None and models is not None):
            words += [word for name in self.names for word in ("--model", name)]
        words += [word for key in sorted(typed) for word in as_changes(key, typed[key])]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def _is_known_by(self, session: Session) -> bool:
        """Whether the session's own data is enough to ask the same models again."""
        names = self.names
        return names == _own_models(session) and (_is_configured(names) or _are_allowed(names, session))

    def update_prompt(self, session: Session) -> None:
        """Append the agent's prompt to an existing session, unless already the prompt."""
        prompt = read(session).fill(Settings(prompt=self.options.agent.prompt)).prompt
        if prompt is None or "\n\n".join(session.context().system) == prompt:
            return
        read(session).check_free()
        session.set(prompt=prompt)


_OF_A_START = {
    "name",
    "prompt",
    "trigger",
    "policy",
    "options",
    *(f"context.{name}" for name in ContextTable.__struct_fields__),
    *(f"session.{name}" for name in SessionTable.__struct_fields__),
}
"""Keys whose value the session has recorded."""


def as_changes(key: str, value: Any) -> list[str]:
    """Return a typed key as words of a command line. Each text of a list is a --set of its own."""
    are_texts = isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value)
    texts = value if are_texts else [value if isinstance(value, str) else to_json(value, key).decode()]
    return [word for text in texts for word in ("--set", f"{key}={text}")]


def agent_for(options: AgentOptions, session: Session | None) -> CommandAgent:
    """Build the agent. Refuses every invalid option, before anything is written."""
    workspace = options.agent.workspace
    if workspace.dir is None and (workspace.scope or workspace.allow or workspace.env):
        raise CommandError("workspace.scope, workspace.allow and workspace.env need workspace.dir")
    typed = options.models
    stored = () if session is None or typed else _own_models(session)
    chain = typed or stored or default_models()
    if not chain:
        raise CommandError(NO_MODEL)
    names = tuple(one if isinstance(one, str) else model_name(one) or one.model for one in chain)
    model_options = with_default_options(names[0], session, options.model_options)
    is_foreign = session is not None and stored and not _is_configured(stored)
    models = models_of(chain, session.session_id if session and is_foreign else None)
    for name in stored if is_foreign else ():
        if address_of(name) is not None:
            notify(safe(f"the session names its model: {name}"))
    for model in models:
        check_options(model.provider, model_options)
    limits, context = options.limits, options.context
    if workspace.dir is not None and context is not None:
        workspace_plugin("workspace.dir").check(context, commands=options.commands, env=options.env)
    own, sources = command_tools(options)
    agent = CommandAgent(
        options,
        names,
        models,
        list(own.values()),
        limits,
        None if workspace.dir is None else context,
        options.default_limits,
        model_options,
        sources,
        connect_once(own, sources),
    )
    if sources:
        _check_approval(options, [tool.name for tool in agent.tools(None)])
    return agent


def models_of(chain: tuple[Any, ...], stored_in: str | None = None) -> list[Model]:
    """Return the models of a chain of names and objects; `stored_in` is the session with the names."""
    is_named = all(isinstance(one, str) for one in chain)
    return available_models(chain, stored_in=stored_in) if is_named else resolve_models(chain)


def command_tools(options: AgentOptions) -> tuple[dict[str, Tool], tuple[ToolSource, ...]]:
    """Return the agent's tools and sources of tools, with its approvals."""
    own, sources = split_tools(with_approval(options.tools(), options.agent.approval or ()))
    if not sources:
        _check_approval(options, own)
    return own, sources


def _check_approval(options: AgentOptions, own: Iterable[str]) -> None:
    """Refuse the approval of a tool the agent lacks: another tool would run without approval."""
    approval, has_folder = options.agent.approval or (), options.agent.workspace.dir is not None
    names = [*own, *(workspace_plugin("workspace.dir").TOOL_NAMES if has_folder else ())]
    unknown = [] if isinstance(approval, bool) else sorted(set(approval) - set(names))
    if unknown:
        raise CommandError(
            f"approval names {', '.join(unknown)}, which the agent does not have; its tools: {', '.join(names) or 'none'}"
        )


def with_default_options(model: str, session: Session | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, and the model's configured options for names missing in options and session."""
    config = load_config()
    defaults = config.default_options(model)
    own = (read(session).settings().options or {}) if defaults and session is not None else {}
    used = {name: value for name, value in defaults.items() if name not in own and name not in options}
    config.check_options(model, used)
    return {**used, **options}


def _own_models(session: Session) -> tuple[str, ...]:
    """Return the models of the session's settings, else of the session's first chain, else of its row."""
    model = read(session).settings().model
    if model is not None:
        return (model,)
    row, spec = session.row, start_spec(session)
    chain = spec.get("models")
    if isinstance(chain, list) and chain[:1] == [row.model] and all(isinstance(name, str) for name in chain):
        return tuple(chain)
    return (row.model,) if row.model and (is_model_name(row.model) or needs_client(row.model)) else ()


def _is_configured(names: Iterable[str]) -> bool:
    """Whether the configuration and $OAKLEAF_MODEL have the names, too, as the operator's choice."""
    config, name = load_config(), os.environ.get("OAKLEAF_MODEL")
    return set(names) <= {
        *config.resolve([*([name] if name else []), *config.chat_models, *config.models]),
        *config.aliases.values(),
    }


def _are_allowed(names: Iterable[str], session: Session) -> bool:
    """Whether a command asks the models in the session's data."""
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


def require_tools(session: Session, tools: list[Tool]) -> None:
    """Refuse to resume if an open call needs a tool not loaded; otherwise the model would get an error about
    a missing tool.
    """
    missing = sorted({call.call.name for call in session.open_tool_calls} - {tool.name for tool in tools})
    if missing:
        raise CommandError(
            f"session {session.session_id} has open calls of {', '.join(missing)}, which is not loaded{_hint(session)}; "
            f"pass --agent FILE, or --set with tools, mcp.servers or workspace.dir, or abandon the turn: "
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


# -- options -------------------------------------------------------------------------------------------


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the keys of an agent file."""
    return [CompletionItem(key) for key in all_keys(AgentFile) if key.startswith(incomplete)]


agent_option = click.option(
    "--agent",
    metavar="FILE.toml|FILE.py|NAME",
    shell_complete=complete_file,
    help="An agent file: model, prompt, tools, limits and more. Another word is the agent's name; oakleaf ls "
    "agent:NAME lists its sessions.",
)
_AGENT = (
    agent_option,
    model_option(
        "--model",
        "models",
        multiple=True,
        help="The model, or an alias of it (oakleaf config aliases); repeat it for a fallback chain.",
    ),
)
set_option = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_key,
    help="Any key of an agent file, such as prompt=@support.md, tools=shop.py, options.temperature=0, limits.cost=0.50, "
    "mcp.servers=URL or workspace.dir=.; repeatable.",
)


def read_options(
    *,
    agent: str | None = None,
    changes: Iterable[str] = (),
    models: Iterable[str] = (),
    prompt: str | None = None,
) -> AgentOptions:
    """Return the options as typed, merged with the agent file's."""
    file = agent if agent is not None and is_agent_file(agent) else None
    flags = {
        "name": agent if file is None else None,
        "model": list(models),
        "prompt": prompt,
    }
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    typed = merge(merge_changes(AgentFile, changes), given)
    data = typed if file is None else merge(read_agent_file(file), typed)
    return AgentOptions(agent=to_agent(data), file=file, typed=typed)


_TYPED = ("agent", "changes", "models", "prompt")


def agent_group(*options: Decorator) -> Decorator:
    """Add the options to a command, which receives the options as one `options`, merged with the agent file's."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def command(*args: Any, **values: Any) -> Any:
            typed = {name: values.pop(name) for name in _TYPED if name in values}
            return verb(*args, **values, options=read_options(**typed))

        return option_group(*options)(command)

    return decorate


agent_options = agent_group(*_AGENT, set_option)
"""The options of an agent; the command receives them as `options`."""
input_options = agent_group(agent_option, set_option)
"""The options of an input that a worker's agent answers."""
