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
from ..agent_options import AgentOptions, load_module
from ..rendering.error_text import FAILURE, CommandError
from ..rendering.output import confirm_plan, notify, plural, print_json, to_json_value
from ..run_source import Source, reject_naming_options, resolve_runnable
from ..store_option import StoreLocation, pass_location

if TYPE_CHECKING:
    from ...engines.absurd.engine import Agent, EnqueuedTask

ENGINES = "local, absurd or absurd:QUEUE"
NOT_INSTALLED = "{} is not installed; pip install 'bough[absurd]' brings it"
WORKER_OPTIONS = ("models", "tools", "workspace", "scope", "allow", "max_cost")

engine_option = click.option(
    "--engine",
    default="local",
    metavar="local|absurd[:QUEUE]",
    help="absurd: make it a task for a worker, in the same transaction; --agent names who answers.",
)


def parse_engine(engine: str) -> str | None:
    """The queue, or None for the local engine."""
    name, _, queue = engine.partition(":")
    if name not in ("local", "absurd") or (name == "local" and queue):
        raise CommandError(f"there is no engine {engine!r}; {ENGINES}")
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
@pass_location
def worker(
    location: StoreLocation, sources: tuple[str, ...], queue: str, concurrency: int, lease: str, grace: str
) -> int:
    """Run the tasks of a queue; any number of workers, on any number of machines.

    Needs PostgreSQL, and bough migrate --engine absurd once. Ctrl-C or SIGTERM: every task ends its step and is given
    back; a second one ends at once. A worker may be killed at any moment: what was durable is not done again.
    """
    _refuse_elsewhere(location)
    agents = load_agents(sources)
    try:
        from ...engines.absurd.worker import Worker
    except ModuleNotFoundError as error:
        raise CommandError(NOT_INSTALLED.format(error.name)) from None
    seconds = parse_duration("lease", lease) // 1_000_000
    working = Worker(location.url, agents, queue=queue, concurrency=concurrency, lease=seconds, report=notify)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: _stop(working))
    named = ", ".join(agent.name for agent in agents)
    notify(f"{working.name} takes tasks of {queue!r} for {named}, {concurrency} at once; Ctrl-C stops it")
    left = working.run(parse_duration("grace", grace) / 1_000_000)
    if left:
        notify(f"{plural(left, 'task')} left in a step; others take over when the lease ends")
        os._exit(0)  # Python would wait for the threads of tools, perhaps for hours
    return 0


def _stop(working: Any) -> None:
    if working.stopping.is_set():
        os._exit(130)
    notify("stopping: every task ends its step first; once more ends at once")
    working.stop()


def load_agents(sources: Iterable[str]) -> list[Agent]:
    try:
        from ...engines.absurd.engine import Agent
    except ModuleNotFoundError as error:
        raise CommandError(NOT_INSTALLED.format(error.name)) from None
    found: dict[str, Agent] = {}
    for source in sources:
        values = vars(load_module("--agents", source, source))
        listed = values.get("agents")
        several = listed if isinstance(listed, list | tuple) else ()
        agents = [one for one in (*values.values(), *several) if isinstance(one, Agent)]
        if not agents:
            raise CommandError(
                f"there is no agent in {source}; write bough.engines.absurd.Agent(NAME, model=…, tools=[…])"
            )
        for agent in agents:
            if found.setdefault(agent.name, agent) is not agent:
                raise CommandError(f"--agents {source}: there are two agents called {agent.name!r}")
    return list(found.values())


def enqueue_run(
    location: StoreLocation,
    source: Source,
    options: AgentOptions,
    content: str | None,
    queue: str,
    *,
    waits: bool,
    is_json: bool,
) -> int:
    """Make the input, or the turn that is open, a task of the queue."""
    _refuse_elsewhere(location)
    given = [name for name in WORKER_OPTIONS if getattr(options, name)]
    if given:
        raise CommandError(
            f"--engine absurd: the worker's agent decides on {', '.join(given)}; name it with --agent"
        )
    if source.copy_from is not None or source.overwrite_from is not None:
        raise CommandError(
            "--engine absurd goes on where a session stands; bough fork or bough rewind it first"
        )
    session = _session(location, source, options)
    sent = _sent(session, content, queue, options, waits=waits)
    if is_json:
        print_json(sent=to_json_value(sent))
    else:
        click.echo(sent.session_id)
        notify(f"task {sent.task_id} of queue {queue!r}; bough tail -f {sent.session_id} follows it")
    return 0


def _session(location: StoreLocation, source: Source, options: AgentOptions) -> Session:
    if source.resume_from is not None:
        reject_naming_options(options, "title", "tags", "system")
        return resolve_runnable(location, source.resume_from)
    if options.agent is None:
        raise CommandError("--engine absurd needs --agent NAME: one that a worker was given with --agents")
    store = location.open_or_create()
    seeds = [system(options.system)] if options.system else []
    about: dict[str, Any] = {"title": options.title, "tags": options.tags}
    if options.conversation is not None:
        return store.latest_or_start(options.conversation, options.agent, seeds, **about)
    return store.start(options.agent, seeds, **about)


def _sent(
    session: Session, content: str | None, queue: str, options: AgentOptions, *, waits: bool
) -> EnqueuedTask:
    if content is None:
        return session.resume(engine="absurd", queue=queue, agent=options.agent)
    try:
        limits = Limits(turns=options.max_turns or 50)
        how: dict[str, Any] = {"queue": queue, "agent": options.agent, "limits": limits}
        return session.send(content, engine="absurd", **how, one_shot=True)
    except SessionRunning:
        if not waits:
            raise
    return session.enqueue(content, engine="absurd", queue=queue, agent=options.agent)


def install_absurd(location: StoreLocation, queue: str, service: str, *, yes: bool, is_json: bool) -> int:
    """Absurd's schema and the queue, beside our own."""
    _refuse_elsewhere(location)
    try:
        from ...engines.absurd import schema as absurd_schema
    except ModuleNotFoundError as error:
        raise CommandError(NOT_INSTALLED.format(error.name)) from None
    notify(
        f"{location.display_url}: the schema absurd, its queue {queue!r}, and the right of {service} to use them"
    )
    if not confirm_plan("Migrate?", yes=yes):
        return FAILURE
    done = absurd_schema.install(location.url, queue, service=service)
    if is_json:
        print_json(engine="absurd", version_before=done.before, version=done.after, queue=done.queue)
    else:
        was = "was there" if done.before == done.after else "installed"
        click.echo(f"Absurd {done.after} {was}; queue {queue!r} is ready")
    return 0


def _refuse_elsewhere(location: StoreLocation) -> None:
    if not location.is_postgres:
        raise PostgresRequired("absurd", location.display_url)
