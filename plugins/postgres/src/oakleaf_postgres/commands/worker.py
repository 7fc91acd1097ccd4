"""`oakleaf worker`: loads the worker's agents from files. The work itself is in `oakleaf_postgres.absurd`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from oakleaf.cli.terminal import (
    AgentOptions,
    CommandError,
    StoreLocation,
    agent_of_module,
    command_tools,
    complete_file,
    load_module,
    log_format_option,
    needs_extra,
    pass_location,
    read_options,
    start_log,
)
from oakleaf.core.redact import Redactor
from oakleaf.core.time_text import parse_duration
from oakleaf.errors import PostgresRequired, plural
from oakleaf.ext import environment_secrets
from oakleaf.stores.tasks import DEFAULT_QUEUE
from oakleaf.telemetry import installed_telemetry

if TYPE_CHECKING:
    from oakleaf_postgres.absurd.engine import Agent
SCHEMES = ("postgresql", "postgres")


@click.command()
@click.option(
    "--queue", default=DEFAULT_QUEUE, show_default=True, metavar="NAME", help="The queue to work on."
)
@click.option(
    "--agents",
    "sources",
    multiple=True,
    shell_complete=complete_file,
    metavar="FILE.toml|FILE.py|MODULE",
    help="An agent file; or load every Agent of a Python file, and the lists named `agents`; repeatable.",
)
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    help="How many tasks run at once.",
)
@click.option(
    "--lease",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long a task may be silent before another worker takes it.",
)
@click.option(
    "--grace",
    metavar="TIME",
    default="60s",
    show_default=True,
    help="How long to wait for running steps when stopping.",
)
@log_format_option
@click.option("--only-run", hidden=True, metavar="RUN_ID", help="Run this run, which another worker claimed.")
@pass_location
def worker(
    location: StoreLocation,
    sources: tuple[str, ...],
    queue: str,
    concurrency: int,
    lease: str,
    grace: str,
    log_format: str,
    only_run: str | None,
) -> int:
    """Run the tasks of a queue; start as many workers as you need, on any machine.

    Needs PostgreSQL, and oakleaf migrate --queue oakleaf once. On Ctrl-C or SIGTERM every task finishes its step and returns
    to the queue; a second signal exits at once. A worker may be killed at any time: finished steps do not run again.
    """
    if location.scheme not in SCHEMES:
        raise PostgresRequired(location.display_url)
    agents = load_agents(sources)
    with needs_extra("absurd"):
        from oakleaf_postgres.absurd.worker import Worker
    report = start_log(log_format, Redactor(environment_secrets()), "worker")
    seconds = parse_duration("lease", lease) // 1_000_000
    grace_seconds = parse_duration("grace", grace) / 1_000_000
    again = ["worker", "--queue", queue, "--lease", lease, "--grace", grace, "--log", log_format]
    again += [word for source in sources for word in ("--agents", source)]
    working = Worker(
        location.url,
        agents,
        queue=queue,
        concurrency=concurrency,
        lease=seconds,
        hooks=installed_telemetry(),
        report=report,
        own_process=[sys.executable, "-m", "oakleaf.cli.main", *again, "--only-run"],
        only_run=only_run,
    )

    def stop(*_: object) -> None:
        if working.stopping.is_set():
            os._exit(130)
        report("stopping: every task finishes its step first; press Ctrl-C again to exit at once")
        working.stop()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    named = ", ".join(agent.name for agent in agents)
    if only_run is None:
        report(
            f"{working.name} runs tasks of queue {queue!r} for {named}, {concurrency} at once; Ctrl-C stops it"
        )
    unfinished = working.run(grace_seconds)
    if unfinished:
        report(f"{plural(unfinished, 'task')} still in a step; another worker takes over when the lease ends")
        os._exit(0)  # Python would wait for the threads of tools, perhaps for hours
    return 0


def load_agents(sources: Iterable[str]) -> list[Agent]:
    """Return the agents of all files and modules: agent files, and Python files with `Agent` objects."""
    by_name: dict[str, Agent] = {}
    if not sources:
        raise CommandError(
            "a worker needs agents; name an agent file: oakleaf worker --agents support.toml, or a Python file with "
            "oakleaf_postgres.absurd.Agent(NAME, model=…, tools=[…])"
        )
    for source in sources:
        for agent in _agents_of(source):
            if by_name.setdefault(agent.name, agent) is not agent:
                raise CommandError(f"--agents {source}: two agents are named {agent.name!r}")
    return list(by_name.values())


def _agents_of(source: str) -> list[Agent]:
    with needs_extra("absurd"):
        from oakleaf_postgres.absurd.engine import Agent
    if source.endswith(".toml"):
        return [_of_file(read_options(agent=source))]
    module = load_module("--agents", source, source)
    listed = vars(module).get("agents")
    several = listed if isinstance(listed, list | tuple) else ()
    agents = [one for one in (*vars(module).values(), *several) if isinstance(one, Agent)]
    if not agents and source.endswith(".py") and hasattr(module, "model"):
        return [_of_file(AgentOptions(agent=agent_of_module(module, source), file=source))]
    if not agents:
        raise CommandError(
            f"{source} has no agents; define one with oakleaf_postgres.absurd.Agent(NAME, model=…, tools=[…]), or name an "
            "agent file"
        )
    return agents


def _of_file(options: AgentOptions) -> Agent:
    """Return the agent of an agent file. The prompt is that of a session: oakleaf enqueue --agent FILE writes it."""
    from oakleaf_postgres.absurd.engine import Agent

    agent = options.agent
    if not options.models:
        raise CommandError(
            f'{options.file} names no model, and a worker needs one: model = "anthropic:MODEL"'
        )
    tools, servers = command_tools(options)
    return Agent(
        name=agent.name or "",
        model=list(options.models),
        tools=(*tools.values(), *servers),
        limits=options.limits,
        workspace=None if agent.workspace.dir is None else options.context,
        commands=options.commands,
        env=options.env,
        options=options.model_options,
        effects=agent.effects,
        approval=agent.approval or (),
    )
