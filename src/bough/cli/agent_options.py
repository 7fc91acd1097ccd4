"""The agent a command line describes: its models, tools, limits, and what it is told.

Knows the options that `run`, `chat` and `resume` share and where a model's name comes from: the option, else the
session, else the environment, never a guess. Does not know how a turn is run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from ..agent.limits import Limits
from ..agent.tools.tool import Tool
from ..core.context import fold_settings
from ..core.messages import system as system_message
from ..log.workspace import Workspace
from ..models.availability import available_models
from ..models.model import Model
from ..models.prices import MICROCENTS_PER_DOLLAR
from ..session import Session
from ..store import Store
from .load_tools import load_tools
from .rendering.error_text import Refused
from .rendering.output import say
from .text_argument import spoken

NO_MODEL = """\
no model is named. Name one with --model NAME, or set BOUGH_MODEL:

  anthropic:MODEL  openai:MODEL  gemini:MODEL    the key comes from the environment
  openai-chat:MODEL@http://127.0.0.1:8080/v1     any compatible server
  scripted:FILE.yaml                             offline: answers from a file, for trying and for tests

Several --model are a fallback chain."""


class Asked(Struct, frozen=True, kw_only=True):
    """What the command line said of the agent."""

    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    workspace: str | None = None
    scope: str | None = None
    allow: tuple[str, ...] = ()
    max_cost: float | None = None
    max_turns: int | None = None
    system: str | None = None
    agent: str | None = None
    title: str | None = None
    tags: dict[str, str] = {}
    conversation: str | None = None


class Agent(Struct, frozen=True):
    """Who answers, and what it may use."""

    asked: Asked
    names: tuple[str, ...]
    models: list[Model]
    own_tools: list[Tool]
    limits: Limits
    workspace: Workspace | None

    def tools(self, session: Session) -> list[Tool]:
        """Those of the files named, and the workspace's, which keep their long output in this session."""
        if self.workspace is None:
            return self.own_tools
        return [*self.own_tools, *session.workspace_tools(self.workspace, commands=self.asked.allow)]

    def how(self, session: Session) -> dict[str, Any]:
        """What `send` and `resume` take."""
        return {"model": self.models, "tools": self.tools(session), "limits": self.limits}

    def about(self) -> dict[str, Any]:
        """What a new session's row says of it. The spec tells people later how it was started."""
        asked = self.asked
        spec = {
            "name": asked.agent,
            "prompt": asked.system,
            "models": list(self.names),
            "tools": list(asked.tools),
            "workspace": asked.workspace,
        }
        return {
            "model": self.names[0],
            "title": asked.title,
            "tags": asked.tags,
            "tool_names": [tool.name for tool in self.own_tools],
            "workspace": self.workspace,
            "spec": {name: value for name, value in spec.items() if value},
        }

    def start(self, sessions: Store) -> Session:
        """A new session, or the latest of the conversation that was named."""
        asked = self.asked
        seeds = [system_message(asked.system)] if asked.system else []
        if asked.conversation is not None:
            return sessions.latest_or_start(asked.conversation, asked.agent, seeds, **self.about())
        return sessions.start(asked.agent, seeds, **self.about())

    def again(self, session: Session) -> str:
        """The options that bring the same agent to the session once more, as they are typed behind its name."""
        asked = self.asked
        given = {
            "--model": () if self.names == _own_models(session) else self.names,
            "--tools": asked.tools,
            "--workspace": (asked.workspace,),
            "--scope": (asked.scope,),
            "--allow": asked.allow,
            "--max-cost": (asked.max_cost,),
            "--max-turns": (asked.max_turns,),
        }
        words = [word for flag, values in given.items() for one in values if one for word in (flag, f"{one}")]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def settle_prompt(self, session: Session) -> None:
        """--system on a session that is there already holds from here on, as an entry of it."""
        prompt = self.asked.system
        if prompt is None or "\n\n".join(session.context().system) == prompt:
            return
        session.log.raise_if_leased()
        session.set(prompt=prompt)


def agent_for(asked: Asked, session: Session | None) -> Agent:
    """Everything that can be refused is refused here, before anything is made."""
    if asked.workspace is None and (asked.scope or asked.allow):
        raise Refused("--scope and --allow say what a workspace may do; name it with --workspace DIR")
    names = asked.models or _own_models(session) or _environment()
    if not names:
        raise Refused(NO_MODEL)
    models = available_models(names)
    cost = None if asked.max_cost is None else _microcents(asked.max_cost)
    limits = Limits(turns=asked.max_turns or 50, max_cost_microcents=cost)
    return Agent(asked, names, models, load_tools(asked.tools), limits, _workspace(asked))


def _microcents(dollars: float) -> int:
    if not isfinite(dollars):
        raise Refused(f"--max-cost {dollars} is no amount of money; leave it out for no cap")
    microcents = round(dollars * MICROCENTS_PER_DOLLAR)
    if not microcents:
        raise Refused(
            f"--max-cost {dollars:g} would allow no call at all; raise it, or leave it out for no cap"
        )
    return microcents


def _own_models(session: Session | None) -> tuple[str, ...]:
    """What the session's settings name, else the chain it was started with, else its row."""
    if session is None:
        return ()
    settled = fold_settings(session.path()).model
    if settled is not None:
        return (settled,)
    row, spec = session.row, _spec(session)
    chain = tuple(spec.get("models", ()))
    return chain if chain[:1] == (row.model,) else (row.model,) if row.model else ()


def _environment() -> tuple[str, ...]:
    name = os.environ.get("BOUGH_MODEL")
    return (name,) if name else ()


def _workspace(asked: Asked) -> Workspace | None:
    if asked.workspace is None:
        return None
    return Workspace.detect(
        working_dir=str(Path(asked.workspace).resolve()), fs_scope_tier=asked.scope or "sandboxed"
    )


def _spec(session: Session) -> dict[str, Any]:
    spec = session.log.store.detail(session.session_id).spec
    found = msgspec.json.decode(spec) if spec else {}
    return found if isinstance(found, dict) else {}


def refuse_without(session: Session, tools: list[Tool]) -> None:
    """A call that waits is not answered with "no such tool" because an option was forgotten."""
    missing = sorted({call.call.name for call in session.open_tool_calls} - {tool.name for tool in tools})
    if missing:
        raise Refused(
            f"session {session.session_id} waits for {', '.join(missing)}, and no such tool is given{_hint(session)}; "
            f"name it with --tools FILE.py or --workspace DIR, or leave the turn behind: "
            f"bough resume {session.session_id} --rollback"
        )


def say_lost(session: Session, tools: list[Tool]) -> None:
    lost = sorted(set(session.row.tool_names) - {tool.name for tool in tools})
    if lost:
        say(f"without {', '.join(lost)}, which this session had{_hint(session)}")


def _hint(session: Session) -> str:
    was = started_with(session)
    return f" (it was started with{was})" if was else ""


def started_with(session: Session) -> str:
    """Its tools and workspace, as they are typed behind its name."""
    spec = _spec(session)
    was = [("--tools", source) for source in spec.get("tools", ())]
    was += [("--workspace", spec["workspace"])] if spec.get("workspace") else []
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in was)


# -- options -------------------------------------------------------------------------------------------


def _tags(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    for pair in value:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", ctx, param)
    return dict(pair.split("=", 1) for pair in value)


_AGENT = (
    click.option("--model", "models", multiple=True, metavar="NAME", help="Several are a fallback chain."),
    click.option(
        "--tools",
        multiple=True,
        metavar="FILE.py|MODULE[:NAME]",
        help="Every tool there, and lists called tools.",
    ),
    click.option(
        "--workspace",
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        help="Give it files, grep, shell and HTTP there.",
    ),
    click.option(
        "--scope",
        type=click.Choice(["sandboxed", "project", "full"]),
        help="What of the workspace it may touch; sandboxed if not said.",
    ),
    click.option(
        "--allow", multiple=True, metavar="COMMAND", help="A command its shell may run; repeat for more."
    ),
    click.option(
        "--max-cost", type=click.FloatRange(min=0), metavar="DOLLARS", help="Refuse calls past this."
    ),
    click.option(
        "--max-turns", type=click.IntRange(min=1), help="Cap on the session's turns; 50 if not said."
    ),
)
_START = (
    click.option("--system", callback=spoken, metavar="TEXT|@FILE", help="The system prompt."),
    click.option("--agent", metavar="NAME", help="The agent's name, for bough ls --agent."),
    click.option("--title", help="The session's title."),
    click.option("--tag", "tags", multiple=True, callback=_tags, metavar="NAME=VALUE"),
    click.option(
        "--conversation", metavar="ID", help="Go on with its latest session, or start its first one."
    ),
)


def agent_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Who answers, with which tools and limits; the verb is given them as `asked`."""
    return _taking(verb, _AGENT)


def start_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`agent_options`, and what a new session is told and called."""
    return _taking(verb, (*_AGENT, *_START))


def _taking(verb: Callable[..., Any], options: tuple[Any, ...]) -> Callable[..., Any]:
    @wraps(verb)
    def parsed(*args: Any, **given: Any) -> Any:
        about = {name: given.pop(name) for name in Asked.__struct_fields__ if name in given}
        return verb(*args, asked=Asked(**about), **given)

    taking: Callable[..., Any] = parsed
    for option in reversed(options):
        taking = option(taking)
    return taking
