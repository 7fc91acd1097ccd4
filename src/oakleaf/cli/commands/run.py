"""`oakleaf run` and `oakleaf resume`."""

from __future__ import annotations

from typing import Any

import click

from oakleaf import PendingApproval
from oakleaf.cli.agent_options import (
    AgentOptions,
    CommandAgent,
    agent_for,
    agent_options,
    require_tools,
    warn_missing_tools,
)
from oakleaf.cli.imports import accept_import, accept_option, decided_elsewhere
from oakleaf.cli.reference import complete
from oakleaf.cli.rendering.error_text import FAILURE
from oakleaf.cli.rendering.left_behind import notify_left_behind
from oakleaf.cli.rendering.output import (
    dim,
    echo,
    encode_line,
    is_terminal,
    json_option,
    notify,
    safe,
)
from oakleaf.cli.rendering.turn_events import JsonWatcher, PlainWatcher
from oakleaf.cli.run_source import Source, pick_session, resolve_runnable, source_options
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.cli.turn_driver import CANCELLED_CODE, Driver, TurnEnd, run_turn
from oakleaf.cli.turn_input import read_input, turn_about, turn_options
from oakleaf.core.usage import Totals, difference, format_cost, format_tokens
from oakleaf.errors import ApprovalPending, SessionRunning
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf.verbs.call_text import approval_details, call_text, earlier_text

NOT_OF_A_RESUME = ("name", "prompt", "context", "session", "trigger", "policy")
"""Keys of the agent that an open turn has no use for."""


@click.command()
@click.argument("text", required=False)
@source_options
@agent_options
@click.option(
    "--queue",
    is_flag=True,
    help="If the session is running, or waits for approval, queue the input instead of failing.",
)
@turn_options
@json_option
@pass_location
def run(
    location: StoreLocation,
    text: str | None,
    source: Source,
    options: AgentOptions,
    queue: bool,
    key: str | None,
    accept_imported: bool,
    is_json: bool,
) -> int:
    """Send one input to an agent and print its answer.

    TEXT is read from stdin if it is - or, for a new session, if stdin is not a terminal. With --resume, --copy or
    --overwrite and no TEXT, the open turn continues. The answer goes to stdout, everything else to stderr; --json
    prints each event as one line. Exit code: 0 answered, 1 failed, stopped by a limit or waiting for approval,
    3 busy, 130 cancelled.

    \b
    oakleaf run "Where is order 41?" --model anthropic:MODEL --agent shop.py
    oakleaf run "Where is order 41?" --agent support.toml --set limits.cost=0.50
    git diff | oakleaf run - --set prompt=@review.md --model openai:MODEL
    oakleaf run "And order 42?" --resume latest
    oakleaf run "$(cat mail-17.txt)" --resume ses_3f --key mail-17
    oakleaf run "Try again, politely." --overwrite latest --from-point 7
    """
    content = read_input(text, is_new=source.reference is None)
    is_in_session = (source.resume_from or options.agent.session.conversation) is not None
    about = turn_about(content, key, options, is_in_session=is_in_session)
    session, agent = source.session(location, options)
    if accept_imported:
        session.accept_imported()
    if content is None and not _has_work(session):
        return _end_without_run(session, is_json=is_json)
    try:
        return _run(location, session, agent, content, is_json=is_json, key=key, about=about)
    except (SessionRunning, ApprovalPending):
        if not queue or content is None or key is not None or agent.model_options or options.agent.effects:
            raise
    number = session.enqueue(content)
    notify(
        f"queued as number {number}; the process that runs {session.session_id} answers it next, else oakleaf resume does"
    )
    return 0


@click.command()
@click.argument("reference", required=False, shell_complete=complete)
@agent_options
@click.option("--rollback", is_flag=True, help="Abandon the open turn instead; oakleaf redo undoes that.")
@click.option("--take-over", is_flag=True, help="End the run that holds the session: its process is gone.")
@click.option(
    "--keep-partial",
    is_flag=True,
    help="End the turn with the part of its answer that was shown before it broke off.",
)
@accept_option
@json_option
@pass_location
def resume(
    location: StoreLocation,
    reference: str | None,
    options: AgentOptions,
    rollback: bool,
    take_over: bool,
    keep_partial: bool,
    accept_imported: bool,
    is_json: bool,
) -> int:
    """Continue a turn that was interrupted: after a crash, a failure or an approval.

    Finished steps do not run again. A tool call that was running is repeated only if its effect allows it; for an
    unsafe one its verify function decides, or else its outcome stays unknown. An answer that broke off is kept, marked
    as interrupted, and the model is asked again.

    If the process that ran it died on this machine, you can resume at once; otherwise half a minute after its last sign
    of life. --take-over does not wait; if the other run is still alive, it writes nothing more.

    What an import left open, calls with an effect and queued inputs, is listed and asked about once; without a terminal
    --accept-imported accepts it. An approval that was given elsewhere does not count here.

    Without a REFERENCE you pick one of the sessions whose turn is open.

    \b
    oakleaf resume latest --agent support.toml
    oakleaf resume latest --agent shop.py --take-over
    oakleaf resume latest --rollback
    """
    options.refuse_typed(NOT_OF_A_RESUME, "it is of a new session or an input; oakleaf run takes it")
    session = (
        pick_session(location, "oakleaf resume", is_open=True)
        if reference is None
        else resolve_runnable(location, reference)
    )
    if session is None:
        return 0
    if take_over and session.row.holder is not None:
        session.interrupt()
    if rollback:
        turn = read(session).cursor.turn
        if not turn:
            notify("there is no open turn")
        else:
            session.undo()
            notify(f"turn {turn} abandoned; oakleaf redo {session.session_id} brings it back")
        notify_left_behind(session)
        return _end_without_run(session, is_json=is_json)
    if keep_partial:
        text = session.keep_partial()
        notify(
            f"no answer of {session.session_id} broke off; oakleaf resume {session.session_id} continues its turn, if one is open"
            if text is None
            else "the turn ends with what was shown of its answer, marked as interrupted"
        )
        return _end_without_run(session, is_json=is_json)
    if not _has_work(session):
        return _end_without_run(session, is_json=is_json)
    if accept_imported:
        session.accept_imported()
    return _run(location, session, agent_for(options, session), None, is_json=is_json)


def _has_work(session: Session) -> bool:
    """Return whether a turn is open, or an input is queued; if not, say so."""
    name = session.session_id
    if read(session).cursor.turn or read(session).inbox(1):
        return True
    notify(f"{name} has no open turn; continue with: oakleaf run --resume {name} TEXT")
    return False


def _run(
    location: StoreLocation,
    session: Session,
    agent: CommandAgent,
    content: str | None,
    *,
    is_json: bool,
    key: str | None = None,
    about: dict[str, Any] | None = None,
) -> int:
    tools = agent.tools(session)
    if content is None:
        require_tools(session, tools)
    warn_missing_tools(session, tools)
    before = session.row.totals
    watcher = JsonWatcher(session) if is_json else PlainWatcher(session)
    with Driver(location) as driver:
        ask, accept = (_ask, accept_import) if is_terminal() else (None, None)
        end = run_turn(
            driver, session, agent, content, watcher, ask, accept, one_shot=True, key=key, about=about
        )
        spent = difference(session.row.totals, before)
        if is_json:
            _print_json_end(session, end, spent)
        else:
            _print_end(session, agent, end, spent)
        code = CANCELLED_CODE if end.reason == "cancelled" else 0 if end.is_fine else FAILURE
        return driver.exit(code)


def _ask(call: PendingApproval) -> bool | None:
    notify(approval_details(call) + decided_elsewhere(call))
    try:
        return click.confirm("Allow it?", default=False, err=True)
    except click.Abort:
        notify()
        return None


def _print_end(session: Session, agent: CommandAgent, end: TurnEnd, spent: Totals) -> None:
    """Print the end, the way to continue, and the cost."""
    name = session.session_id
    resume = f"oakleaf resume {name}{agent.flags(session)}"
    if end.error is not None:
        notify(f"{click.style('oakleaf:', fg='red')} {safe(end.error['command_message'])}")
    if end.waiting:
        for call in end.waiting:
            notify(f"waiting for approval: {call_text(call.call)}{decided_elsewhere(call)}")
            if call.earlier is not None:
                notify(f"  made before: {earlier_text(call.earlier)}")
        notify(f"continue with: oakleaf approve {name}, then {resume}")
    elif end.reason == "cancelled":
        notify(f"cancelled; everything so far is saved. Continue with: oakleaf run --resume {name} TEXT")
    elif end.error is not None and read(session).cursor.turn and not end.is_limit:
        notify(f"the input is saved; continue with: {resume}")
    notify(dim(f"{name} · {format_tokens(spent)} · {format_cost(spent)}"))


def _end_without_run(session: Session, *, is_json: bool) -> int:
    """Exit without a run; a program reading the lines gets the last line all the same."""
    if is_json:
        _print_json_end(session, None, Totals())
    return 0


def _print_json_end(session: Session, end: TurnEnd | None, spent: Totals) -> None:
    last = session.path(last=1)
    message = last[-1].message if last else None
    has_answer = message is not None and message.role == "assistant" and not message.calls
    result = {
        "type": "run",
        "session_id": session.session_id,
        "stop_reason": None if end is None else end.reason,
        "error": None if end is None else end.error,
        "answer": message.text if has_answer and message is not None and end is not None else None,
        "waiting": () if end is None else end.waiting,
        "usage": spent,
    }
    echo(encode_line(result))
