"""`bough chat`: talk to an agent in the terminal; every word is durable.

Knows the conversation between a person and a session: inputs, approvals, what to do when a turn was cut off or
another process has the session. How it looks is `screen`'s business, what is typed `typed`'s.
"""

from __future__ import annotations

import sys
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from ...core.entries import Entry
from ...core.tree import Leaf
from ...core.turns import OpenCall
from ...core.usage import difference, format_cost
from ...errors import BoughError, Fenced, SessionRunning, StaleLeaf
from ...session import Session
from ..agent_options import Agent, Asked, agent_for, refuse_without, say_lost, start_options
from ..reference import complete
from ..rendering.error_text import HELD, PROBLEM, end_words, explain
from ..rendering.output import dim, safe, say, tokens, width
from ..rendering.turn_events import Plain, Watcher, called, spelled_out
from ..run_source import find_driven, refuse_naming
from ..store_option import Here, here
from ..text_argument import legible
from ..turn_driver import Driver, End, carry_out
from .line_input import Piped, Typed

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_AT_START = 2


@click.command()
@click.option(
    "--resume", "resumed", metavar="REFERENCE", shell_complete=complete, help="Go on with this session."
)
@start_options
@here
def chat(place: Here, resumed: str | None, asked: Asked) -> int:
    """Talk to an agent in the terminal; every word is durable.

    A backslash at the end of a line goes on with the next one, triple quotes hold several. Ctrl-C stops the
    turn, Ctrl-D leaves. Without a terminal each line of stdin is an input and the answers go to stdout.

    \b
    bough chat --model anthropic:MODEL
    bough chat --model openai-chat:MODEL@http://127.0.0.1:8080/v1 --workspace . --allow git
    bough chat --resume latest
    """
    with Driver(place) as driver:
        return driver.leave(Chat.opened(place, driver, resumed, asked).go())


class Chat:
    """One conversation. The session is made by the first input, so that looking around leaves nothing behind."""

    def __init__(self, place: Here, driver: Driver, session: Session | None, agent: Agent) -> None:
        self.place, self.agent = place, agent
        self._driver = driver
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._session = session
        self._seen: Leaf | None = None
        self._console: Console | None = None

    @classmethod
    def opened(cls, place: Here, driver: Driver, resumed: str | None, asked: Asked) -> Chat:
        session = None
        if resumed is not None:
            refuse_naming(asked, "title", "tags", "agent")
            session = find_driven(place, resumed)
        elif asked.conversation is not None:
            session = place.new_sessions().latest(asked.conversation)
        made = cls(place, driver, session, agent_for(asked, session))
        if session is not None:
            made.agent.settle_prompt(session)
        return made

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.agent.start(self.place.new_sessions())
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
        from .commands import COMMANDS, Left

        typed = self._typed(list(COMMANDS)) if self.is_terminal else Piped()
        self._greet()
        code = 0
        while True:
            try:
                self._catch_up()
                if self.is_terminal:
                    click.echo()
                code = self._take(typed.read())
            except (EOFError, Left):
                break
            except KeyboardInterrupt:
                say(dim("\n/quit or Ctrl-D leaves"))
            if code and not self.is_terminal:
                break  # the next line of a pipe was meant for an answer that never came
        self._farewell()
        return 0 if self.is_terminal else code

    def _take(self, text: str) -> int:
        """One input: a command or words for the agent. Whatever goes wrong is said, and the chat goes on."""
        from .commands import perform

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
            return self.explain(error)

    def turn(self, content: str | None) -> int:
        """An input, or without one the turn that is open."""
        content = None if content is None else legible(content, "your input")
        session = self.session
        if content is None:
            refuse_without(session, self.agent.tools(session))
        before = session.row.totals
        try:
            if self.is_terminal:
                click.echo()
            end = carry_out(
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
            say(dim(f"{tokens(spent)} · {format_cost(spent)}"))
        return 0 if end.is_fine else PROBLEM

    def _watcher(self) -> Watcher:
        if not self.is_terminal:
            return Plain(self.session)
        from ..rendering.turn_screen import Screen

        return Screen(self.session, self.console)

    def _tell(self, end: End) -> None:
        if end.waiting:
            for call in end.waiting:
                say(f"waits for approval: {called(call.call)}")
            name = self.session.session_id
            say(
                "/resume asks again"
                if self.is_terminal
                else f"bough approve {name}, then bough resume {name}{self.agent.again(self.session)}"
            )
        elif end.reason == "cancelled":
            say(dim("cancelled; what was said is kept. /undo takes the input back"))
        elif end.error is not None:
            why = end_words(end.error["message"], self.session.session_id)
            say(f"{click.style('✗', fg='red')} {safe(why)}")
            if self.session.log.cursor.turn:
                say("the input is durable; /resume tries again, /undo takes it back")

    # -- what may stand in the way -----------------------------------------------------------------

    def explain(self, error: Exception) -> int:
        said = explain(error)
        if said is None:
            raise error
        say(f"{click.style('✗', fg='red')} {safe(said.text)}")
        if isinstance(error, StaleLeaf | Fenced):
            self._catch_up()
        return said.code

    def _busy(self, error: SessionRunning, content: str | None) -> int:
        """Another process drives the session: wait, or leave the input in its queue."""
        self._say_busy(error)
        if content is None or not self.is_terminal:
            self.note(f"wait for it (bough tail -f {error.session_id}), then try again")
        elif self.confirm("leave your input in its queue, to be answered next?"):
            self.session.enqueue(content)
            say("queued; the answer is shown here when it is there and you press Enter")
        return HELD

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
        say(dim(f"another process moved this session to entry {session.leaf.seq}"))
        if seen.branch == session.leaf.branch:
            self.show([entry for entry in session.transcript() if entry.seq > seen.seq])
        return True

    def _ask(self, call: OpenCall) -> bool | None:
        click.echo(spelled_out(call.call))
        return self.confirm("allow it?", when_left=None)

    def confirm(self, question: str, *, when_left: bool | None = False) -> bool | None:
        try:
            return click.confirm(question, default=False)
        except click.Abort:
            click.echo()
            return when_left

    # -- words around it ---------------------------------------------------------------------------

    def _typed(self, words: list[str]) -> Typed:
        from ...core.redact import Redactor
        from ...log.runtime import environment_secrets

        return Typed(words, Redactor(environment_secrets()).redact_text)

    def _greet(self) -> None:
        session = self._session
        if session is not None:
            self._seen = session.leaf
            say_lost(session, self.agent.tools(session))
        if self.is_terminal:
            name = "a new session" if session is None else session.row.title or session.session_id
            say(f"{click.style('bough', bold=True)} {dim(f'· {name} · {self.agent.names[0]}')}")
            say(dim("/help lists the commands, Ctrl-D leaves"))
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
            say(dim("… more lies before this; /show shows all"))
        self.show(said[first:])

    def _offer(self, session: Session) -> None:
        """A turn that was cut off: go on with it, or leave it behind. One that is being driven is neither."""
        try:
            session.log.raise_if_leased()
        except SessionRunning as error:
            self._say_busy(error)
            return
        if not self.is_terminal:
            say(
                f"a turn was cut off here; bough resume {session.session_id}{self.agent.again(session)} goes on with it, "
                "your input closes it"
            )
            return
        say("\nthis turn was cut off before it was answered")
        if self.confirm("go on with it?"):
            self._take("/resume")
        elif self.confirm("leave it behind, as if its input had not been sent?"):
            self._take("/undo")
        else:
            say(dim("it stays open: /resume goes on, your next input closes it"))

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
        from ..rendering.turn_screen import rendered

        self.console.print(rendered(safe(text), self.console))

    def note(self, text: str) -> None:
        """A remark, broken between words; an id is never torn apart."""
        say("\n".join(wrap(safe(text), width(), break_long_words=False, break_on_hyphens=False)))

    def _farewell(self) -> None:
        if self._session is not None:
            if self.is_terminal:
                click.echo()
            say(f"come back with: bough chat --resume {self._session.session_id}")
