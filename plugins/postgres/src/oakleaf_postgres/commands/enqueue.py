"""`oakleaf enqueue`: an input, or the open turn, as a task of a queue."""

from __future__ import annotations

import click

from oakleaf import Limits, Session
from oakleaf.cli.terminal import (
    AgentOptions,
    CommandError,
    StoreLocation,
    complete,
    echo,
    input_options,
    json_option,
    notify,
    pass_location,
    print_json,
    read_input,
    reject_naming_options,
    resolve_runnable,
    turn_about,
    turn_options,
)
from oakleaf.errors import PostgresRequired, SessionRunning
from oakleaf.stores.tasks import DEFAULT_QUEUE
from oakleaf_postgres import absurd

SCHEMES = ("postgresql", "postgres")
OF_THE_WORKER = (
    *("model", "tools", "approval", "workspace", "mcp"),
    *("limits.rounds", "limits.cost", "limits.on_exceed", "limits.messages", "limits.context_window"),
)
"""Keys of an agent that the worker decides."""


@click.command()
@click.argument("text", required=False)
@click.option(
    "--queue", default=DEFAULT_QUEUE, show_default=True, metavar="NAME", help="The queue of the workers."
)
@click.option(
    "--resume",
    "resume_from",
    metavar="REFERENCE",
    shell_complete=complete,
    help="Continue this session.",
)
@input_options
@turn_options
@json_option
@pass_location
def enqueue(
    location: StoreLocation,
    text: str | None,
    queue: str,
    resume_from: str | None,
    options: AgentOptions,
    key: str | None,
    accept_imported: bool,
    is_json: bool,
) -> int:
    """Send one input to an agent of the workers, and return at once.

    The input and its task are durable together; --agent names one of the agents that a worker loads. Of an agent file the
    name, prompt, options, effects, turns and context are used here, and the worker that loads it has the rest. If the session is
    running or its last input waits for a worker, the input is queued behind that. With --resume and no TEXT, a worker
    continues the open turn, for instance after a task that failed for good. Prints the session's id.

    \b
    oakleaf enqueue --agent support "Where is order 41?"
    oakleaf enqueue --agent support.toml "Where is order 41?"
    oakleaf enqueue --resume ses_3f "And order 42?"
    oakleaf enqueue --resume ses_3f
    """
    if location.scheme not in SCHEMES:
        raise PostgresRequired(location.display_url)
    options.refuse_typed(OF_THE_WORKER, "the worker decides it, by the agent that it loads with --agents")
    content = read_input(text, is_new=resume_from is None)
    is_in_session = (resume_from or options.agent.session.conversation) is not None
    about = turn_about(content, key, options, is_in_session=is_in_session)
    session = _session(location, resume_from, options)
    if accept_imported:
        session.accept_imported()
    agent, model_options = options.agent, options.model_options or None
    if content is None:
        options.refuse_typed(("options", "effects"), "it needs TEXT, the input from which it holds")
        task = absurd.resume(session, queue=queue, agent=agent.name)
    else:
        limits = None if agent.limits.turns is None else Limits(turns=agent.limits.turns)
        try:
            task = absurd.send(
                session,
                content,
                queue=queue,
                agent=agent.name,
                limits=limits,
                options=model_options,
                effects=agent.effects,
                one_shot=True,
                key=key,
                **about,
            )
        except SessionRunning:
            if key is not None or model_options or agent.effects or about:
                raise  # a queued input is its text alone
            task = absurd.enqueue(session, content, queue=queue, agent=agent.name)
    if is_json:
        print_json(sent=task)
    else:
        echo(task.session_id)
        notify(f"task {task.task_id} in queue {queue!r}; follow it with: oakleaf tail -f {task.session_id}")
    return 0


def _session(location: StoreLocation, resume_from: str | None, options: AgentOptions) -> Session:
    if resume_from is not None:
        reject_naming_options(options, "session", "prompt")
        return resolve_runnable(location, resume_from)
    if options.agent.name is None:
        raise CommandError(
            "a new session needs --agent NAME or FILE, one of those a worker loads with --agents"
        )
    return options.start(location.open_or_create())
