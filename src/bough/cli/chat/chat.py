"""`bough chat`: talk to an agent in the terminal; every word is durable.

Knows the conversation between a person and a session: inputs, approvals, what to do when a turn was cut off or
another process has the session. How it looks is `screen`'s business, what is typed `typed`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from ...core.entries import Entry
from ...core.tree import Leaf
from ...core.tree_text import describe_entry
from ...core.turns import OpenCall
from ...core.usage import difference, format_cost
from ...errors import BoughError, Fenced, InvalidPosition, SessionRunning, StaleLeaf
from ...models.names import model_by_name
from ...session import Session
from ..agent_options import Agent, AgentOptions, agent_for, require_tools, start_options, warn_missing_tools
from ..commands.export import export_file_name
from ..reference import complete
from ..rendering.error_text import CONFLICT, FAILURE, CommandError, describe_error
from ..rendering.output import bold, dim, notify, safe, tokens, width
from ..rendering.turn_events import PlainWatcher, Watcher, call_details, call_text
from ..run_source import reject_naming_options, resolve_runnable
from ..store_option import StoreLocation, pass_location
from ..text_argument import check_utf8
from ..turn_driver import Driver, TurnEnd, run_turn
from .line_input import PipedInput, TerminalInput

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_AT_START = 2


@click.command()
@click.option(
    "--resume", "resume_from", metavar="REFERENCE", shell_complete=complete, help="Go on with this session."
)
@start_options
@pass_location
def chat(location: StoreLocation, resume_from: str | None, options: AgentOptions) -> int:
    """Talk to an agent in the terminal; every word is durable.

    A backslash at the end of a line goes on with the next one, triple quotes hold several. Ctrl-C stops the
    turn, Ctrl-D leaves. Without a terminal each line of stdin is an input and the answers go to stdout.

    \b
    bough chat --model anthropic:MODEL
    bough chat --model openai-chat:MODEL@http://127.0.0.1:8080/v1 --workspace . --allow git
    bough chat --resume latest
    """
    with Driver(location) as driver:
        return driver.leave(Chat.opened(location, driver, resume_from, options).go())


class Chat:
    """One conversation. The session is made by the first input, so that looking around leaves nothing behind."""

    def __init__(
        self, location: StoreLocation, driver: Driver, session: Session | None, agent: Agent
    ) -> None:
        self.location, self.agent = location, agent
        self._driver = driver
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._session = session
        self._seen: Leaf | None = None
        self._console: Console | None = None

    @classmethod
    def opened(
        cls, location: StoreLocation, driver: Driver, resume_from: str | None, options: AgentOptions
    ) -> Chat:
        session = None
        if resume_from is not None:
            reject_naming_options(options, "title", "tags", "agent")
            session = resolve_runnable(location, resume_from)
        elif options.conversation is not None:
            session = location.open_or_create().latest(options.conversation)
        made = cls(location, driver, session, agent_for(options, session))
        if session is not None:
            made.agent.update_prompt(session)
        return made

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.agent.start(self.location.open_or_create())
        return self._session

    @property
    def is_new(self) -> bool:
        """Nothing was said yet, so there is no session to look at."""
        return self._session is None

    def switch(self, session: Session) -> None:
        """Go on with another session from here."""
        self._session = session
        self._seen = session.leaf

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False)
        return self._console

    # -- the conversation --------------------------------------------------------------------------

    def go(self) -> int:
        """Until the person leaves; the exit code."""
        typed = self._typed(list(COMMANDS)) if self.is_terminal else PipedInput()
        self._greet()
        code = 0
        while True:
            try:
                self._catch_up()
                if self.is_terminal:
                    click.echo()
                code = self._take(typed.read())
            except (EOFError, LeaveChat):
                break
            except KeyboardInterrupt:
                notify(dim("\n/quit or Ctrl-D leaves"))
            if code and not self.is_terminal:
                break  # the next line of a pipe was meant for an answer that never came
        self._farewell()
        return 0 if self.is_terminal else code

    def _take(self, text: str) -> int:
        """One input: a command or words for the agent. Whatever goes wrong is said, and the chat goes on."""
        if not text.strip():
            return 0
        try:
            if text.startswith("/"):
                perform(self, text)
                return 0
            if self.is_terminal and self._catch_up() and not self.confirm("send your words all the same?"):
                return 0
            return self.turn(text)
        except (BoughError, click.ClickException, OSError) as error:
            return self.describe_error(error)

    def turn(self, content: str | None) -> int:
        """An input, or without one the turn that is open."""
        content = None if content is None else check_utf8(content, "your input")
        session = self.session
        if content is None:
            require_tools(session, self.agent.tools(session))
        before = session.row.totals
        try:
            if self.is_terminal:
                click.echo()
            end = run_turn(
                self._driver,
                session,
                self.agent,
                content,
                self._watcher(),
                self._ask if self.is_terminal else None,
            )
        except SessionRunning as error:
            return self._busy(error, content)
        finally:
            self._seen = session.leaf
        spent = difference(session.row.totals, before)
        self._tell(end)
        if self.is_terminal:
            notify(dim(f"{tokens(spent)} · {format_cost(spent)}"))
        return 0 if end.is_fine else FAILURE

    def _watcher(self) -> Watcher:
        if not self.is_terminal:
            return PlainWatcher(self.session)
        from ..rendering.turn_screen import TerminalWatcher

        return TerminalWatcher(self.session, self.console)

    def _tell(self, end: TurnEnd) -> None:
        if end.waiting:
            for call in end.waiting:
                notify(f"waits for approval: {call_text(call.call)}")
            name = self.session.session_id
            notify(
                "/resume asks again"
                if self.is_terminal
                else f"bough approve {name}, then bough resume {name}{self.agent.again(self.session)}"
            )
        elif end.reason == "cancelled":
            notify(dim("cancelled; what was said is kept. /undo takes the input back"))
        elif end.error is not None:
            notify(f"{click.style('✗', fg='red')} {safe(end.error['command_message'])}")
            if self.session.log.cursor.turn:
                notify("the input is durable; /resume tries again, /undo takes it back")

    # -- what may stand in the way -----------------------------------------------------------------

    def describe_error(self, error: Exception) -> int:
        report = describe_error(error)
        if report is None:
            raise error
        notify(f"{click.style('✗', fg='red')} {safe(report.text)}")
        if isinstance(error, StaleLeaf | Fenced):
            self._catch_up()
        return report.exit_code

    def _busy(self, error: SessionRunning, content: str | None) -> int:
        """Another process drives the session: wait, or leave the input in its queue."""
        self._say_busy(error)
        if content is None or not self.is_terminal:
            self.note(f"wait for it (bough tail -f {error.session_id}), then try again")
        elif self.confirm("leave your input in its queue, to be answered next?"):
            self.session.enqueue(content)
            notify("queued; the answer is shown here when it is there and you press Enter")
        return CONFLICT

    def _say_busy(self, error: SessionRunning) -> None:
        self.note(f"{error.holder or 'another process'} is in the middle of a turn here")

    def _catch_up(self) -> bool:
        """Stand where the session stands now; True if another process moved it, and what it said is shown."""
        if self._session is None:
            return False
        session = self._session
        session.refresh()
        seen, self._seen = self._seen, session.leaf
        if seen is None or seen == session.leaf:
            return False
        notify(dim(f"another process moved this session to entry {session.leaf.seq}"))
        if seen.branch == session.leaf.branch:
            self.show([entry for entry in session.transcript() if entry.seq > seen.seq])
        return True

    def _ask(self, call: OpenCall) -> bool | None:
        click.echo(call_details(call.call))
        return self.confirm("allow it?", when_left=None)

    def confirm(self, question: str, *, when_left: bool | None = False) -> bool | None:
        try:
            return click.confirm(question, default=False)
        except click.Abort:
            click.echo()
            return when_left

    # -- words around it ---------------------------------------------------------------------------

    def _typed(self, words: list[str]) -> TerminalInput:
        from ...core.redact import Redactor
        from ...log.runtime import environment_secrets

        return TerminalInput(words, Redactor(environment_secrets()).redact_text)

    def _greet(self) -> None:
        session = self._session
        if session is not None:
            self._seen = session.leaf
            warn_missing_tools(session, self.agent.tools(session))
        if self.is_terminal:
            name = "a new session" if session is None else session.row.title or session.session_id
            notify(f"{click.style('bough', bold=True)} {dim(f'· {name} · {self.agent.names[0]}')}")
            notify(dim("/help lists the commands, Ctrl-D leaves"))
        if session is not None and self.is_terminal:
            self._show_latest(session)
        if session is not None and session.log.cursor.turn:
            self._offer(session)

    def _show_latest(self, session: Session) -> None:
        """The last turns, whole."""
        said = session.transcript()
        inputs = [n for n, entry in enumerate(said) if entry.role == "user"]
        first = inputs[-SHOWN_AT_START] if len(inputs) > SHOWN_AT_START else 0
        if first:
            notify(dim("… more lies before this; /show shows all"))
        self.show(said[first:])

    def _offer(self, session: Session) -> None:
        """A turn that was cut off: go on with it, or leave it behind. One that is being driven is neither."""
        try:
            session.log.raise_if_leased()
        except SessionRunning as error:
            self._say_busy(error)
            return
        if not self.is_terminal:
            notify(
                f"a turn was cut off here; bough resume {session.session_id}{self.agent.again(session)} goes on with it, "
                "your input closes it"
            )
            return
        notify("\nthis turn was cut off before it was answered")
        if self.confirm("go on with it?"):
            self._take("/resume")
        elif self.confirm("leave it behind, as if its input had not been sent?"):
            self._take("/undo")
        else:
            notify(dim("it stays open: /resume goes on, your next input closes it"))

    def show(self, entries: list[Entry]) -> None:
        """Messages that were said before, as they looked then."""
        for entry in entries:
            message = entry.message
            if message is None or not message.text:
                continue
            click.echo()
            if message.role == "user":
                click.echo(f"{click.style('›', fg='cyan', bold=True)} {safe(message.text)}")
            else:
                self.render(message.text)

    def render(self, text: str) -> None:
        """Markdown, in a terminal."""
        if not self.is_terminal:
            click.echo(safe(text))
            return
        from ..rendering.turn_screen import render_markdown

        self.console.print(render_markdown(safe(text), self.console))

    def note(self, text: str) -> None:
        """A remark, broken between words; an id is never torn apart."""
        notify("\n".join(wrap(safe(text), width(), break_long_words=False, break_on_hyphens=False)))

    def _farewell(self) -> None:
        if self._session is not None:
            if self.is_terminal:
                click.echo()
            notify(f"come back with: bough chat --resume {self._session.session_id}")


# -- slash commands -------------------------------------------------------------------------------------


class LeaveChat(Exception):
    """The person wants to go."""


class Command(Struct, frozen=True):
    takes: str
    says: str
    act: Callable[[Chat, str], None]


def perform(chat: Chat, text: str) -> None:
    """What a line that begins with a slash asks for."""
    name, _, rest = text.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = get_close_matches(name, COMMANDS, 1, cutoff=0.7)
        raise CommandError(
            f"there is no {name}{f'; did you mean {near[0]}?' if near else '; /help lists them'}"
        )
    if chat.is_new and name in _NEEDS_SESSION:
        raise CommandError("nothing was said here yet; your first words make the session")
    command.act(chat, rest.strip())


def _help(chat: Chat, rest: str) -> None:
    wide = max(len(f"{name} {command.takes}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        click.echo(f"  {f'{name} {command.takes}':<{wide}}  {dim(command.says)}")
    click.echo(dim('\n  A \\ at the end of a line goes on with the next; """ … """ holds several lines.'))


def _tree(chat: Chat, rest: str) -> None:
    click.echo(safe(chat.session.tree(width=width() - len("   ◀ leaf"))))


def _show(chat: Chat, rest: str) -> None:
    if not rest:
        chat.show(chat.session.transcript())
        return
    seq = _number(rest)
    if not 1 <= seq <= chat.session.leaf.seq:
        raise CommandError(f"there is no entry {seq}; /tree shows those there are")
    entry = chat.session.path(since=seq - 1)[0]
    click.echo(dim(f"{entry.seq} {entry.role or entry.kind} {entry.model or ''}".rstrip()))
    text = entry.message.text if entry.message is not None else ""
    chat.render(text) if text else click.echo(describe_entry(entry))


def _fork(chat: Chat, rest: str) -> None:
    source = chat.session
    made = source.fork(_number(rest) if rest else None)
    chat.switch(made)
    assert made.cut is not None
    why = f" ({made.cut.requested} would part a call from its results)" if made.cut.has_moved else ""
    chat.note(
        f"this is {made.session_id} now, a fork at entry {made.cut.at}{why}; /resume {source.session_id} goes back"
    )
    if made.log.cursor.turn:
        chat.note("its last input has no answer; /resume asks for one, your next input leaves it so")


def _undo(chat: Chat, rest: str) -> None:
    try:
        cut = chat.session.undo()
    except InvalidPosition:
        raise CommandError("there is no input to undo; /tree shows what there is") from None
    chat.switch(chat.session)
    chat.note(f"back at entry {cut.at}; nothing is lost, /redo returns")


def _redo(chat: Chat, rest: str) -> None:
    leaf = chat.session.redo()
    chat.switch(chat.session)
    chat.note(f"at entry {leaf.seq} again")


def _compact(chat: Chat, rest: str) -> None:
    """A summary of the person's, else one made without a model."""
    session = chat.session
    made = session.compact(rest or None)
    chat.switch(session)
    chat.note(
        f"a summary stands for all before entry {made.first_kept}; bough uncompact {session.session_id} undoes it"
    )


def _usage(chat: Chat, rest: str) -> None:
    own, path = chat.session.usage(), chat.session.usage("path")
    click.echo(f"  this session  {own.calls} calls, {tokens(own)}, {format_cost(own)}")
    click.echo(f"  this path     {path.calls} calls, {tokens(path)}, {format_cost(path)}")


def _model(chat: Chat, rest: str) -> None:
    if not rest:
        click.echo("  " + ", then ".join(chat.agent.names))
        return
    names = tuple(rest.split())
    models = [model_by_name(name) for name in names]
    chat.session.log.raise_if_leased()
    chat.session.set(model=names[0])
    chat.agent = replace(chat.agent, names=names, models=models)
    chat.switch(chat.session)
    chat.note(f"{names[0]} answers from here on")


def _export(chat: Chat, rest: str) -> None:
    place = Path(rest or export_file_name(chat.session.session_id, ".bough")).expanduser()
    chat.session.export(place)
    chat.note(f"written to {place}")


def _title(chat: Chat, rest: str) -> None:
    if rest:
        chat.session.title(rest)
    click.echo(f"  {safe(chat.session.row.title or '(no title)')}")


def _tools(chat: Chat, rest: str) -> None:
    is_known = chat.is_new and chat.agent.workspace is None
    tools = chat.agent.own_tools if is_known else chat.agent.tools(chat.session)
    if not tools:
        chat.note("none; start with --tools FILE.py or --workspace DIR")
    for tool in tools:
        about = tool.spec.description.partition("\n")[0]
        asks = ", asks first" if tool.approval else ""
        click.echo(f"  {bold(tool.name)} {dim(f'({tool.effect}{asks})')} {safe(about)}")


def _resume(chat: Chat, rest: str) -> None:
    """Go on with the open turn; with a reference, with another session."""
    if rest:
        chat.switch(resolve_runnable(chat.location, rest))
        chat.note(f"this is {chat.session.session_id} now, at entry {chat.session.leaf.seq}")
        return
    log = None if chat.is_new else chat.session.log
    if log is not None and (log.cursor.turn or log.store.inbox(log.session_id)):
        chat.turn(None)
    else:
        chat.note("nothing is open here")


def _quit(chat: Chat, rest: str) -> None:
    raise LeaveChat


def _number(text: str) -> int:
    if not text.isdecimal():
        raise CommandError(f"{text!r} is no number of an entry; /tree shows them")
    return int(text)


COMMANDS: dict[str, Command] = {
    "/help": Command("", "these commands", _help),
    "/show": Command("[N]", "what was said so far, or entry N whole", _show),
    "/tree": Command("", "the session's tree, the leaf marked", _tree),
    "/fork": Command("[N]", "go on in a new session, from here or from entry N", _fork),
    "/undo": Command("", "take the latest input back; nothing is lost", _undo),
    "/redo": Command("", "return to what /undo left", _redo),
    "/compact": Command("[TEXT]", "let a summary stand for what lies before the newest turn", _compact),
    "/usage": Command("", "tokens and money", _usage),
    "/model": Command("[NAME…]", "who answers, or who answers from here on", _model),
    "/tools": Command("", "what the agent may use", _tools),
    "/title": Command("[TEXT]", "name the session", _title),
    "/export": Command("[FILE]", "write the session as a bundle", _export),
    "/resume": Command("[REFERENCE]", "go on with a cut-off turn, or another session", _resume),
    "/quit": Command("", "leave; so does Ctrl-D", _quit),
}
_NEEDS_SESSION = {"/show", "/tree", "/fork", "/undo", "/redo", "/compact", "/usage", "/export"}
"""Looking makes no session."""
