"""`bough worker`, and what `run` and `migrate` do with `--engine absurd`.

Knows how an engine is named on the command line and where a worker's agents stand in a file. What a worker does is
the engine's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ...agent.limits import Limits
from ...core.messages import system
from ...core.time_text import parse_duration
from ...errors import PostgresRequired, SessionRunning
from ...session import Session
from ..agent_options import Asked
from ..load_tools import loaded
from ..rendering.error_text import PROBLEM, Refused
from ..rendering.output import confirmed, many, plain, say, say_json
from ..run_source import Source, find_driven, refuse_naming
from ..store_option import Here, here

if TYPE_CHECKING:
    from ...engines.absurd.engine import Agent, EnqueuedTask

ENGINES = "local, absurd or absurd:QUEUE"
NOT_INSTALLED = "{} is not installed; pip install 'bough[absurd]' brings it"
THE_WORKERS = ("models", "tools", "workspace", "scope", "allow", "max_cost")

engine_option = click.option(
    "--engine",
    default="local",
    metavar="local|absurd[:QUEUE]",
    help="absurd: make it a task for a worker, in the same transaction; --agent names who answers.",
)


def queue_of(engine: str) -> str | None:
    """The queue, or None for the local engine."""
    name, _, queue = engine.partition(":")
    if name not in ("local", "absurd") or (name == "local" and queue):
        raise Refused(f"there is no engine {engine!r}; {ENGINES}")
    return None if name == "local" else queue or "default"


@click.command()
@click.option("--queue", default="default", show_default=True, metavar="NAME", help="Whose tasks it takes.")
@click.option(
    "--agents",
    "sources",
    multiple=True,
    required=True,
    metavar="FILE.py|MODULE",
    help="Every Agent there, and lists called agents; repeatable.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 1_000), default=4, show_default=True, help="Tasks at once."
)
@click.option(
    "--lease", default="30s", show_default=True, help="After so long without a sign others take over."
)
@click.option(
    "--grace", default="60s", show_default=True, help="How long a step may take once it is told to stop."
)
@here
def worker(
    place: Here, sources: tuple[str, ...], queue: str, concurrency: int, lease: str, grace: str
) -> int:
    """Run the tasks of a queue; any number of workers, on any number of machines.

    Needs PostgreSQL, and bough migrate --engine absurd once. Ctrl-C or SIGTERM: every task ends its step and is given
    back; a second one ends at once. A worker may be killed at any moment: what was durable is not done again.
    """
    _refuse_elsewhere(place)
    agents = load_agents(sources)
    try:
        from ...engines.absurd.worker import Worker
    except ModuleNotFoundError as error:
        raise Refused(NOT_INSTALLED.format(error.name)) from None
    seconds = parse_duration("lease", lease) // 1_000_000
    working = Worker(place.url, agents, queue=queue, concurrency=concurrency, lease=seconds, report=say)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: _stop(working))
    named = ", ".join(agent.name for agent in agents)
    say(f"{working.name} takes tasks of {queue!r} for {named}, {concurrency} at once; Ctrl-C stops it")
    left = working.run(parse_duration("grace", grace) / 1_000_000)
    if left:
        say(f"{many(left, 'task')} left in a step; others take over when the lease ends")
        os._exit(0)  # Python would wait for the threads of tools, perhaps for hours
    return 0


def _stop(working: Any) -> None:
    if working.stopping.is_set():
        os._exit(130)
    say("stopping: every task ends its step first; once more ends at once")
    working.stop()


def load_agents(sources: Iterable[str]) -> list[Agent]:
    try:
        from ...engines.absurd.engine import Agent
    except ModuleNotFoundError as error:
        raise Refused(NOT_INSTALLED.format(error.name)) from None
    found: dict[str, Agent] = {}
    for source in sources:
        values = vars(loaded("--agents", source, source))
        listed = values.get("agents")
        several = listed if isinstance(listed, list | tuple) else ()
        agents = [one for one in (*values.values(), *several) if isinstance(one, Agent)]
        if not agents:
            raise Refused(
                f"there is no agent in {source}; write bough.engines.absurd.Agent(NAME, model=…, tools=[…])"
            )
        for agent in agents:
            if found.setdefault(agent.name, agent) is not agent:
                raise Refused(f"--agents {source}: there are two agents called {agent.name!r}")
    return list(found.values())


def send_off(
    place: Here, source: Source, asked: Asked, content: str | None, queue: str, *, waits: bool, is_json: bool
) -> int:
    """Make the input, or the turn that is open, a task of the queue."""
    _refuse_elsewhere(place)
    given = [name for name in THE_WORKERS if getattr(asked, name)]
    if given:
        raise Refused(
            f"--engine absurd: the worker's agent decides on {', '.join(given)}; name it with --agent"
        )
    if source.copied is not None or source.overwritten is not None:
        raise Refused("--engine absurd goes on where a session stands; bough fork or bough rewind it first")
    session = _session(place, source, asked)
    sent = _sent(session, content, queue, asked, waits=waits)
    if is_json:
        say_json(sent=plain(sent))
    else:
        click.echo(sent.session_id)
        say(f"task {sent.task_id} of queue {queue!r}; bough tail -f {sent.session_id} follows it")
    return 0


def _session(place: Here, source: Source, asked: Asked) -> Session:
    if source.resumed is not None:
        refuse_naming(asked, "title", "tags", "system")
        return find_driven(place, source.resumed)
    if asked.agent is None:
        raise Refused("--engine absurd needs --agent NAME: one that a worker was given with --agents")
    sessions = place.new_sessions()
    seeds = [system(asked.system)] if asked.system else []
    about: dict[str, Any] = {"title": asked.title, "tags": asked.tags}
    if asked.conversation is not None:
        return sessions.latest_or_start(asked.conversation, asked.agent, seeds, **about)
    return sessions.start(asked.agent, seeds, **about)


def _sent(session: Session, content: str | None, queue: str, asked: Asked, *, waits: bool) -> EnqueuedTask:
    if content is None:
        return session.resume(engine="absurd", queue=queue, agent=asked.agent)
    try:
        limits = Limits(turns=asked.max_turns or 50)
        how: dict[str, Any] = {"queue": queue, "agent": asked.agent, "limits": limits}
        return session.send(content, engine="absurd", **how, one_shot=True)
    except SessionRunning:
        if not waits:
            raise
    return session.enqueue(content, engine="absurd", queue=queue, agent=asked.agent)


def install_engine(place: Here, queue: str, service: str, *, yes: bool, is_json: bool) -> int:
    """Absurd's schema and the queue, beside our own."""
    _refuse_elsewhere(place)
    try:
        from ...engines.absurd import schema as absurd_schema
    except ModuleNotFoundError as error:
        raise Refused(NOT_INSTALLED.format(error.name)) from None
    say(f"{place.where}: the schema absurd, its queue {queue!r}, and the right of {service} to use them")
    if not confirmed("Migrate?", yes=yes):
        return PROBLEM
    done = absurd_schema.install(place.url, queue, service=service)
    if is_json:
        say_json(engine="absurd", version_before=done.before, version=done.after, queue=done.queue)
    else:
        was = "was there" if done.before == done.after else "installed"
        click.echo(f"Absurd {done.after} {was}; queue {queue!r} is ready")
    return 0


def _refuse_elsewhere(place: Here) -> None:
    if not place.is_postgres:
        raise PostgresRequired("absurd", place.where)
