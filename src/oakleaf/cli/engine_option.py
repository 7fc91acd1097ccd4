"""The `--engine` option of commands whose turns a worker may run, and `oakleaf run --engine absurd`."""

from __future__ import annotations

from typing import Any

import click

from oakleaf import Limits
from oakleaf.cli.agent_options import AgentOptions
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import echo, notify, print_json
from oakleaf.cli.run_source import Source, reject_naming_options, resolve_runnable
from oakleaf.cli.store_option import StoreLocation
from oakleaf.errors import PostgresRequired, SessionRunning
from oakleaf.session import Session
from oakleaf.stores.tasks import DEFAULT_QUEUE, has_workers

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
    require_engine(location)
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


def require_engine(location: StoreLocation) -> None:
    """Raise PostgresRequired for a store that has no workers; create no file."""
    if location.scheme is None or not has_workers(location.open()):
        raise PostgresRequired("absurd", location.display_url)
