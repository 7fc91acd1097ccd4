"""`bough run`, `bough resume` and `bough approve`: a turn of an agent, from one command line to the next."""

from __future__ import annotations

import sys

import click

from ...agent.call_status import ancestors, is_awaited_by_worker, read_call_status
from ...agent.tools.tool import PendingApproval as AskedCall
from ...core.turns import OpenCall
from ...core.usage import Totals, difference, format_cost
from ...errors import SessionRunning, TaskTrashed
from ...session import Session
from ..agent_options import (
    Agent,
    AgentOptions,
    agent_for,
    agent_options,
    original_flags,
    require_tools,
    start_options,
    warn_missing_tools,
)
from ..reference import required_reference
from ..rendering.error_text import FAILURE, CommandError, print_error
from ..rendering.output import (
    SCHEMA_VERSION,
    confirm_plan,
    dim,
    encode_json,
    is_terminal,
    json_option,
    notify,
    print_json,
    safe,
    to_json_value,
    tokens,
)
from ..rendering.turn_events import JsonWatcher, PlainWatcher, call_details, call_text
from ..run_source import Source, resolve_runnable, source_options
from ..store_option import StoreLocation, pass_location
from ..text_argument import check_utf8, read_stdin
from ..turn_driver import CANCELLED_CODE, Driver, TurnEnd, run_turn, waiting_calls
from .worker import engine_option, enqueue_run, parse_engine


@click.command()
@click.argument("text", required=False)
@source_options
@start_options
@click.option("--queue", is_flag=True, help="If the session is busy, keep the input until its turn is over.")
@engine_option
@json_option
@pass_location
def run(
    location: StoreLocation,
    text: str | None,
    source: Source,
    options: AgentOptions,
    queue: bool,
    engine: str,
    is_json: bool,
) -> int:
    """Send one input to an agent and print its answer.

    TEXT comes from stdin if it is - or, for a new session, if stdin is no terminal. With --resume, --copy or
    --overwrite and no TEXT the turn that is open there goes on. The answer goes to stdout, everything else to
    stderr; with --json every event is one line. Exit code 0 answered, 1 failed, stopped by a limit or waiting
    for an approval, 3 busy, 130 cancelled.

    \b
    bough run "Where is order 41?" --model anthropic:MODEL --tools shop.py
    git diff | bough run - --system "Review this." --model openai:MODEL
    bough run "And order 42?" --resume latest
    bough run "Try again, politely." --overwrite latest --from-point 7
    """
    content = _content(text, is_new=source.reference is None)
    absurd_queue = parse_engine(engine)
    if absurd_queue is not None:
        return enqueue_run(location, source, options, content, absurd_queue, waits=queue, is_json=is_json)
    session, agent = source.session(location, options)
    if content is None and not _has_work(session):
        notify(
            f"nothing is open in {session.session_id}; go on with: bough run --resume {session.session_id} TEXT"
        )
        return 0
    try:
        return _run(location, session, agent, content, is_json=is_json)
    except SessionRunning:
        if not queue or content is None:
            raise
    number = session.enqueue(content)
    notify(
        f"queued as number {number}: whoever drives {session.session_id} takes it; if nobody does, bough resume will"
    )
    return 0


@click.command()
@required_reference
@agent_options
@click.option(
    "--rollback", is_flag=True, help="Leave the unfinished turn behind instead; bough redo undoes it."
)
@json_option
@pass_location
def resume(
    location: StoreLocation, reference: str, options: AgentOptions, rollback: bool, is_json: bool
) -> int:
    """Go on with a turn that was cut off: after a crash, a failure or an approval.

    What is durable is not done again. A tool that was running is run again only if it may be; an unsafe one is
    settled by its verify function, or its outcome stays unknown.

    \b
    bough resume latest --tools shop.py
    bough resume latest --rollback
    """
    session = resolve_runnable(location, reference)
    if rollback:
        turn, left = session.log.cursor.turn, session.rollback()
        notify(
            "nothing is open"
            if left is None
            else f"turn {turn} is left behind; bough redo {session.session_id} brings it back"
        )
        return 0
    if not _has_work(session):
        notify(
            f"nothing is open in {session.session_id}; go on with: bough run --resume {session.session_id} TEXT"
        )
        return 0
    return _run(location, session, agent_for(options, session), None, is_json=is_json)


@click.command()
@required_reference
@click.option("--deny", is_flag=True, help="Say no: the model is told so.")
@click.option(
    "--call", "number", type=click.IntRange(min=1), metavar="N", help="Only the Nth of those that wait."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_location
def approve(
    location: StoreLocation, reference: str, deny: bool, number: int | None, yes: bool, is_json: bool
) -> int:
    """Allow, or deny, the tool calls that wait for a person.

    Shows what waits and asks before it allows anything; without a terminal it wants --yes. A word binds to the
    exact call, survives everything, and the call runs once. bough resume then goes on.
    """
    session = resolve_runnable(location, reference)
    waiting = waiting_calls(session)
    chosen = _chosen(waiting, number)
    if is_json:
        print_json(session_id=session.session_id, waiting=[to_json_value(call) for call in waiting])
    else:
        for n, call in enumerate(waiting, 1):
            where = (
                "" if call.session_id == session.session_id else f"  (asked by its task {call.session_id})"
            )
            click.echo(f"{n}. {call_details(call.call)}{where}")
    lost = read_call_status(session.log).trashed_tasks
    for task in dict.fromkeys(lost.values()):
        print_error(TaskTrashed(session.session_id, task).command_text)
    if not chosen:
        notify(f"no call of {session.session_id} waits for a person")
        return FAILURE if lost else 0
    if is_json and not (yes or deny):
        return 0
    if not deny and not confirm_plan(f"allow {_many(chosen)}?", yes=yes):
        return FAILURE
    for call in chosen:
        session.approve(call, allow=not deny)
    notify(f"{'denied' if deny else 'allowed'}; {_then(session)}")
    return 0


def _then(session: Session) -> str:
    """How it goes on: a task with the session that started it."""
    top = [session.log, *ancestors(session.log)][-1]
    if is_awaited_by_worker(top):  # it was woken by the word
        return "its worker goes on"
    return f"go on with: bough resume {top.session_id}{original_flags(Session(top))}"


def _chosen(waiting: tuple[AskedCall, ...], number: int | None) -> tuple[AskedCall, ...]:
    if number is not None and number > len(waiting):
        raise CommandError(f"there is no call {number}: {len(waiting)} wait")
    return waiting if number is None else waiting[number - 1 : number]


def _many(calls: tuple[AskedCall, ...]) -> str:
    return "this call" if len(calls) == 1 else f"these {len(calls)} calls"


def _content(text: str | None, *, is_new: bool) -> str | None:
    """The input: an argument, or stdin. Only a new session must have one."""
    if text == "-" or (text is None and is_new and not sys.stdin.isatty()):
        text = read_stdin().strip("\n")
    if text is not None and not text.strip():
        raise CommandError("the input is empty; say something, or pipe it in")
    if text is None and is_new:
        raise CommandError(
            'nothing to send; bough run "your words", or pipe them in. bough chat is for talking'
        )
    return None if text is None else check_utf8(text, "the input")


def _has_work(session: Session) -> bool:
    """Whether a turn is open, or an input was queued that nobody took."""
    return bool(session.log.cursor.turn or session.log.store.inbox(session.session_id))


def _run(
    location: StoreLocation, session: Session, agent: Agent, content: str | None, *, is_json: bool
) -> int:
    tools = agent.tools(session)
    if content is None:
        require_tools(session, tools)
    warn_missing_tools(session, tools)
    before = session.row.totals
    watcher = JsonWatcher(session) if is_json else PlainWatcher(session)
    with Driver(location) as driver:
        ask = _ask if is_terminal() else None
        end = run_turn(driver, session, agent, content, watcher, ask, one_shot=True)
        spent = difference(session.row.totals, before)
        if is_json:
            _tell_json(session, end, spent)
        else:
            _tell(session, agent, end, spent)
        code = CANCELLED_CODE if end.reason == "cancelled" else 0 if end.is_fine else FAILURE
        return driver.leave(code)


def _ask(call: OpenCall) -> bool | None:
    notify(call_details(call.call))
    try:
        return click.confirm("allow it?", default=False, err=True)
    except click.Abort:
        notify()
        return None


def _tell(session: Session, agent: Agent, end: TurnEnd, spent: Totals) -> None:
    """How it ended and how to go on, then what it cost."""
    name = session.session_id
    resume = f"bough resume {name}{agent.again(session)}"
    if end.waiting:
        for call in end.waiting:
            notify(f"waits for approval: {call_text(call.call)}")
        notify(f"go on with: bough approve {name}, then {resume}")
    elif end.reason == "cancelled":
        notify(f"cancelled; what was said is kept. Go on with: bough run --resume {name} TEXT")
    elif end.error is not None:
        notify(f"{click.style('bough:', fg='red')} {safe(end.error['command_message'])}")
        if session.log.cursor.turn:
            notify(f"the input is durable; go on with: {resume}")
    notify(dim(f"{name} · {tokens(spent)} · {format_cost(spent)}"))


def _tell_json(session: Session, end: TurnEnd, spent: Totals) -> None:
    last = session.path(last=1)[-1]
    has_answer = last.message is not None and last.message.role == "assistant" and not last.message.calls
    told = {
        "schema_version": SCHEMA_VERSION,
        "type": "run",
        "session_id": session.session_id,
        "stop_reason": end.reason,
        "error": end.error,
        "answer": last.message.text if has_answer and last.message is not None else None,
        "waiting": [to_json_value(call) for call in end.waiting],
        "usage": to_json_value(spent),
    }
    click.echo(encode_json(told))
