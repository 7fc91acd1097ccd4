"""`oakleaf worker`: loads the worker's agents from files. The work itself is in `oakleaf_postgres.absurd`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from oakleaf.cli.terminal import (
    CommandError,
    StoreLocation,
    complete_file,
    load_module,
    log_format_option,
    needs_extra,
    pass_location,
    start_log,
)
from oakleaf.core.redact import Redactor
from oakleaf.core.time_text import parse_duration
from oakleaf.errors import PostgresRequired, plural
from oakleaf.ext import environment_secrets
from oakleaf.stores.tasks import DEFAULT_QUEUE

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
    required=True,
    shell_complete=complete_file,
    metavar="FILE.py|MODULE",
    help="Load every Agent there, and the lists named `agents`; repeatable.",
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
    with needs_extra("absurd"):
        from oakleaf_postgres.absurd.engine import Agent
    by_name: dict[str, Agent] = {}
    for source in sources:
        values = vars(load_module("--agents", source, source))
        listed = values.get("agents")
        several = listed if isinstance(listed, list | tuple) else ()
        agents = [one for one in (*values.values(), *several) if isinstance(one, Agent)]
        if not agents:
            raise CommandError(
                f"{source} has no agents; define one with oakleaf_postgres.absurd.Agent(NAME, model=…, tools=[…])"
            )
        for agent in agents:
            if by_name.setdefault(agent.name, agent) is not agent:
                raise CommandError(f"--agents {source}: two agents are named {agent.name!r}")
    return list(by_name.values())
