"""`oakleaf worker`, and the `--engine absurd` option of `run` and `migrate`.

Parses the engine's name and loads the worker's agents from files. The work itself is in `engines.absurd`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from oakleaf.agent.limits import Limits
from oakleaf.cli.agent_options import AgentOptions, load_module
from oakleaf.cli.json_log import log_format_option, start_log
from oakleaf.cli.option_group import complete_file
from oakleaf.cli.rendering.error_text import CommandError, needs_extra
from oakleaf.cli.rendering.output import echo, notify, plural, print_json
from oakleaf.cli.run_source import Source, reject_naming_options, resolve_runnable
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.redact import Redactor
from oakleaf.core.time_text import parse_duration
from oakleaf.errors import PostgresRequired, SessionRunning
from oakleaf.log.runtime import environment_secrets
from oakleaf.session import Session
from oakleaf.stores.tasks import DEFAULT_QUEUE

if TYPE_CHECKING:
    from oakleaf_postgres.absurd.engine import Agent
    from oakleaf_postgres.absurd.schema import InstallResult

ENGINES = "local, absurd or absurd:QUEUE"
WORKER_OPTIONS = (
    "models",
    "tools",
    "mcp",
    "workspace",
    "scope",
    "allow",
    "env",
    "max_cost",
    "on_exceed",
    "max_rounds",
    "max_messages",
    "context_window",
)

engine_option = click.option(
    "--engine",
    default="local",
    metavar="local|absurd[:QUEUE]",
    help="absurd: queue the turn for a worker, in the same transaction; --agent names the worker's agent.",
)


def parse_engine(engine: str) -> str | None:
    """Return the queue of `absurd[:QUEUE]`, or None for the local engine."""
    name, _, queue = engine.partition(":")
    if name not in ("local", "absurd") or (name == "local" and queue):
        raise CommandError(f"unknown engine {engine!r}; expected {ENGINES}")
    return None if name == "local" else queue or DEFAULT_QUEUE


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

    Needs PostgreSQL, and oakleaf migrate --engine absurd once. On Ctrl-C or SIGTERM every task finishes its step and returns
    to the queue; a second signal exits at once. A worker may be killed at any time: finished steps do not run again.
    """
    require_postgres(location)
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


def enqueue_run(
    location: StoreLocation,
    source: Source,
    options: AgentOptions,
    content: str | None,
    queue: str,
    *,
    queue_if_busy: bool,
    key: str | None,
    accept_imported: bool,
    about: dict[str, Any],
    is_json: bool,
) -> int:
    """Queue the input, or the open turn, as a task."""
    require_postgres(location)
    unsupported = [name for name in WORKER_OPTIONS if getattr(options, name)]
    if unsupported:
        raise CommandError(
            f"--engine absurd: {', '.join(unsupported)} come from the worker's agent; omit them and name the agent with --agent"
        )
    if source.copy_from is not None or source.overwrite_from is not None:
        raise CommandError(
            "--engine absurd continues at a session's leaf; run oakleaf fork or oakleaf rewind first"
        )
    session = _session(location, source, options)
    where: dict[str, Any] = {"queue": queue, "agent": options.agent}
    if accept_imported:
        session.accept_imported()
    if content is None:
        if options.model_options or options.effects:
            raise CommandError("--engine absurd: -o and --effects need TEXT, the input from which they hold")
        task = session.resume(engine="absurd", **where)
    else:
        limits = None if options.max_turns is None else Limits(turns=options.max_turns)
        model_options = options.model_options or None
        try:
            task = session.send(
                content,
                engine="absurd",
                **where,
                limits=limits,
                options=model_options,
                effects=options.effects,
                one_shot=True,
                key=key,
                **about,
            )
        except SessionRunning:
            if not queue_if_busy or key is not None or model_options or options.effects or about:
                raise
            task = session.enqueue(content, engine="absurd", **where)
    if is_json:
        print_json(sent=task)
    else:
        echo(task.session_id)
        notify(f"task {task.task_id} in queue {queue!r}; follow it with: oakleaf tail -f {task.session_id}")
    return 0


def _session(location: StoreLocation, source: Source, options: AgentOptions) -> Session:
    if source.resume_from is not None:
        reject_naming_options(options, "title", "tags", "system")
        return resolve_runnable(location, source.resume_from)
    if options.agent is None:
        raise CommandError("--engine absurd needs --agent NAME, one of those a worker loads with --agents")
    return options.start(location.open_or_create())


def load_absurd(location: StoreLocation) -> Callable[..., InstallResult]:
    """Return the function that installs Absurd's schema and a queue in the store's database."""
    require_postgres(location)
    with needs_extra("absurd"):
        from oakleaf_postgres.absurd.schema import install
    return install


def require_postgres(location: StoreLocation) -> None:
    if not location.is_postgres:
        raise PostgresRequired("absurd", location.display_url)
