"""`oakleaf chat`: the conversation between the user and a session, and its slash commands.

Handles inputs, approvals, interrupted turns and sessions that another process is running. `turn_screen` draws turns,
`line_input` reads what is typed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import PendingApproval
from oakleaf.cli.agent_options import (
    AgentOptions,
    agent_for,
    agent_options,
    require_tools,
    warn_missing_tools,
    with_default_options,
)
from oakleaf.cli.chat.line_input import TerminalInput, read_piped, read_plain
from oakleaf.cli.commands.export import export_file_name
from oakleaf.cli.config import load_config, parse_value
from oakleaf.cli.imports import accept_import, decided_elsewhere
from oakleaf.cli.picker import can_pick, pick
from oakleaf.cli.reference import complete
from oakleaf.cli.rendering.error_text import CONFLICT, FAILURE, CommandError, describe_error
from oakleaf.cli.rendering.left_behind import notify_left_behind
from oakleaf.cli.rendering.output import bold, clip, dim, echo, notify, plural, safe, width
from oakleaf.cli.rendering.turn_events import PlainWatcher, Watcher
from oakleaf.cli.run_source import (
    NAMING_KEYS,
    cut_text,
    pick_session,
    reject_naming_options,
    resolve_runnable,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.cli.text_argument import check_utf8
from oakleaf.cli.turn_driver import Driver, TurnEnd, run_turn
from oakleaf.cli.workspace_plugin import PlanFiles, WorkspacePlugin, find_workspace_plugin
from oakleaf.core.codec import to_json
from oakleaf.core.context import merge_options
from oakleaf.core.entries import Entry
from oakleaf.core.tree import Leaf, contains_leaf, shared_seq
from oakleaf.core.tree_text import describe_entry
from oakleaf.core.usage import difference, format_cost, format_tokens
from oakleaf.errors import Fenced, InvalidOperation, OakleafError, SessionRunning, StaleLeaf, short_holder
from oakleaf.ext import is_model_name, model_by_name, read, read_store
from oakleaf.session import Session
from oakleaf.stores.base import SessionQuery
from oakleaf.verbs.call_text import approval_details, call_text
from oakleaf.verbs.reference import Position
from oakleaf.wire import provider_of
from oakleaf.wire.options import COMMON, OPTIONS, check_options

if TYPE_CHECKING:
    from rich.console import Console

_NEXT_OPTION = re.compile(r"(?<!\s)\s++(?=[a-z_]++=)")
TURNS_AT_START = 2
MAX_LEFT = 5
"""Messages left behind that are printed."""


@click.command()
@click.option(
    "--resume",
    "resume_from",
    is_flag=False,
    flag_value="",
    metavar="[REFERENCE]",
    shell_complete=complete,
    help="Continue this session; without a reference you pick one.",
)
@agent_options
@pass_location
def chat(location: StoreLocation, resume_from: str | None, options: AgentOptions) -> int:
    """Talk to an agent in the terminal; every message is saved as it is sent.

    End a line with a backslash to continue it, or put several lines between triple quotes. Ctrl-C stops the
    turn, Ctrl-D quits. Without a terminal each line of stdin is an input and the answers go to stdout.

    \b
    oakleaf chat --model anthropic:MODEL
    oakleaf chat --model openai-chat:MODEL@http://127.0.0.1:8080/v1 --set workspace.dir=. --set workspace.allow=git
    oakleaf chat --agent support.toml
    oakleaf chat --resume latest
    oakleaf chat --resume
    """
    session = None
    if resume_from is not None:
        reject_naming_options(options, *NAMING_KEYS)
        session = (
            resolve_runnable(location, resume_from)
            if resume_from
            else pick_session(location, "oakleaf chat --resume")
        )
        if session is None:
            return 0
    elif (conversation := options.agent.session.conversation) is not None:
        session = location.open_or_create().latest(conversation)
    with Driver(location) as driver:
        return driver.exit(Chat(location, driver, session, options).run())


class Chat:
    """A conversation. The session is created by the first input, so opening and closing the chat leaves
    nothing behind.
    """

    def __init__(
        self, location: StoreLocation, driver: Driver, session: Session | None, options: AgentOptions
    ) -> None:
        self.location, self.agent = location, agent_for(options, session)
        if session is not None:
            self.agent.update_prompt(session)
        self._driver = driver
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._session = session
        self._last_leaf: Leaf | None = None
        self.draft = ""
        """What the next line begins with: a message that was taken back."""

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.agent.start(self.location.open_or_create())
        return self._session

    @property
    def is_new(self) -> bool:
        """Whether there is no session yet, because nothing was sent."""
        return self._session is None

    def switch(self, session: Session) -> None:
        """Continue with another session, or at another entry of the same session."""
        self._session = session
        self._last_leaf = session.leaf

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(highlight=False)

    # -- the conversation --------------------------------------------------------------------------

    def run(self) -> int:
        """Read inputs until the user quits; return the exit code."""
        read = self._terminal_reader() if self.is_terminal else read_piped
        self._greet()
        code = 0
        while True:
            try:
                self._reload()
                if self.is_terminal:
                    echo()
                draft, self.draft = self.draft, ""
                code = self._handle(read(draft))
            except (EOFError, LeaveChat):
                break
            except KeyboardInterrupt:
                notify(dim("\nType /quit or Ctrl-D to quit"))
            if code and not self.is_terminal:
                break  # the next line of the pipe expects an answer that never came
        self._farewell()
        return 0 if self.is_terminal else code

    def _handle(self, text: str) -> int:
        """Handle one input: a slash command or a message. Errors are printed and the chat continues."""
        if not text.strip():
            return 0
        try:
            if text.startswith("/"):
                run_command(self, text)
                return 0
            if self.is_terminal and self._reload() and not self.confirm("Send your message anyway?"):
                return 0
            return self.turn(text)
        except (OakleafError, click.ClickException, OSError) as error:
            return self.print_error(error)

    def turn(self, content: str | None) -> int:
        """Send a message, or resume the open turn."""
        content = None if content is None else check_utf8(content, "your input")
        session = self.session
        if content is None:
            require_tools(session, self.agent.tools(session))
        before = session.row.totals
        try:
            if self.is_terminal:
                echo()
            end = run_turn(
                self._driver,
                session,
                self.agent,
                content,
                self._watcher(),
                self._ask if self.is_terminal else None,
                accept_import if self.is_terminal else None,
                about=self.agent.options.about_turn,
            )
            self.agent = self.agent.without_options_of(session)
        except SessionRunning as error:
            return self._busy(error, content)
        finally:
            self._last_leaf = session.leaf
        spent = difference(session.row.totals, before)
        self._print_end(end)
        if self.is_terminal:
            used = read(session).window_use()
            share = "" if used.window is None else f" · window {100 * used.tokens // used.window} % full"
            notify(dim(f"{format_tokens(spent)} · {format_cost(spent)}{share}"))
        return 0 if end.is_fine else FAILURE

    def _watcher(self) -> Watcher:
        if not self.is_terminal:
            return PlainWatcher(self.session)
        from oakleaf.cli.rendering.turn_screen import TerminalWatcher

        return TerminalWatcher(self.session, self.console)

    def _print_end(self, end: TurnEnd) -> None:
        if end.error is not None:
            notify(f"{click.style('✗', fg='red')} {safe(end.error['command_message'])}")
        if end.waiting:
            for call in end.waiting:
                notify(f"waiting for approval: {call_text(call.call)}{decided_elsewhere(call)}")
            name = self.session.session_id
            notify(
                "/resume asks you again"
                if self.is_terminal
                else f"oakleaf approve {name}, then oakleaf resume {name}{self.agent.flags(self.session)}"
            )
        elif end.reason == "cancelled":
            notify(dim("Cancelled; everything so far is saved. /undo removes your message"))
        elif end.error is not None and read(self.session).cursor.turn and not end.is_limit:
            notify("Your message is saved. /resume tries again, /undo removes it")

    # -- errors and other processes -----------------------------------------------------------------

    def print_error(self, error: Exception) -> int:
        report = describe_error(error)
        if report is None:
            raise error
        notify(f"{click.style('✗', fg='red')} {safe(report.text)}")
        if isinstance(error, StaleLeaf | Fenced):
            self._reload()
        return report.exit_code

    def _busy(self, error: SessionRunning, content: str | None) -> int:
        """Another process is running the session: wait, or queue the input."""
        self._print_busy(error)
        if content is None or not self.is_terminal:
            self.note(f"Wait for it (oakleaf tail -f {error.session_id}), then try again")
        elif self.confirm("Queue your message, to be answered next?"):
            self.session.enqueue(content)
            notify("Queued. Press Enter later to see the answer")
        return CONFLICT

    def _print_busy(self, error: SessionRunning) -> None:
        self.note(
            f"{short_holder(error.holder) if error.holder else 'Another process'} is running a turn in this session"
        )

    def _reload(self) -> bool:
        """Reload the current leaf; after a move by another process, show the new messages and return True."""
        if self._session is None:
            return False
        session = self._session
        session.refresh()
        previous, self._last_leaf = self._last_leaf, session.leaf
        if previous is None or previous == session.leaf:
            return False
        notify(dim(f"Another process moved this session to entry {session.leaf.seq}"))
        if previous.branch == session.leaf.branch:
            self.show(session.transcript(since=previous.seq))
        return True

    def _ask(self, call: PendingApproval) -> bool | None:
        echo(approval_details(call) + decided_elsewhere(call))
        return self.confirm("Allow it?", default_on_abort=None)

    def confirm(self, question: str, *, default_on_abort: bool | None = False) -> bool | None:
        try:
            return click.confirm(question, default=False)
        except click.Abort:
            echo()
            return default_on_abort

    # -- greeting and output ---------------------------------------------------------------------------

    def _terminal_reader(self) -> Callable[[str], str]:
        if find_spec("readline") is None:
            return read_plain
        from oakleaf.core.redact import Redactor
        from oakleaf.ext import environment_secrets

        return TerminalInput(self._complete, Redactor(environment_secrets()).redact_text).read

    def _complete(self, before: str) -> list[str]:
        """Return the possible next words in a line: a command, then model or option names."""
        command = before.partition(" ")[0]
        if not before:
            return [f"{name} " if one.arguments else name for name, one in COMMANDS.items()]
        if command == "/model":
            return [f"{name} " for name in self.known_models()]
        if command == "/options":
            return [f"{name}=" for name in OPTIONS.get(self.provider, COMMON)]
        return []

    def known_models(self) -> list[str]:
        """Return the names of the models of the chat, of the environment, the configuration and the stored
        sessions.
        """
        config = load_config()
        names = [
            *self.agent.names,
            *filter(None, [os.environ.get("OAKLEAF_MODEL")]),
            *config.aliases,
            *config.models,
        ]
        if self.location.exists:
            used = read_store(self.location.open()).count(SessionQuery(), "model")
            names += sorted(name for name in used if is_model_name(name))
        return list(dict.fromkeys(names))

    @property
    def provider(self) -> str:
        return provider_of(self.agent.names[0])

    def _greet(self) -> None:
        session = self._session
        if session is not None:
            self._last_leaf = session.leaf
            warn_missing_tools(session, self.agent.tools(session))
        if self.is_terminal:
            name = "a new session" if session is None else session.row.title or session.session_id
            notify(f"{click.style('oakleaf', bold=True)} {dim(f'· {name} · {self.agent.names[0]}')}")
            notify(dim("/help lists the commands, Ctrl-D quits"))
        if session is not None and self.is_terminal:
            self._show_latest(session)
        if session is not None and read(session).cursor.turn:
            self._offer_open_turn(session)

    def _show_latest(self, session: Session) -> None:
        """Show the last two turns."""
        inputs = (
            entry.seq for entry in read(session).backwards() if entry.role == "user" and not entry.internal
        )
        newest = list(islice(inputs, TURNS_AT_START + 1))
        is_part = len(newest) > TURNS_AT_START
        if is_part:
            notify(dim("… earlier messages are hidden; /show shows all"))
        self.show(session.transcript(since=newest[-2] - 1 if is_part else 0))

    def _offer_open_turn(self, session: Session) -> None:
        """Offer to continue or abandon an interrupted turn, unless running in another process."""
        try:
            read(session).check_free()
        except SessionRunning as error:
            self._print_busy(error)
            return
        if not self.is_terminal:
            notify(
                f"the last turn was interrupted; oakleaf resume {session.session_id}{self.agent.flags(session)} continues it, "
                "a new message closes it"
            )
            return
        notify("\nThis turn was interrupted before it was answered")
        if self.confirm("Continue it?"):
            self._handle("/resume")
        elif self.confirm("Abandon it, as if your message had not been sent?"):
            self._handle("/undo")
            self.draft = ""  # it is abandoned, not edited
        else:
            notify(dim("It stays open: /resume continues it, a new message closes it"))

    def show(self, entries: list[Entry]) -> None:
        """Print earlier messages as at the time of sending."""
        for entry in entries:
            message = entry.message
            if message is None or not message.text:
                continue
            echo()
            if message.role == "user":
                echo(f"{click.style('›', fg='cyan', bold=True)} {safe(message.text)}")
            else:
                self.render(message.text)

    def render(self, text: str) -> None:
        """Print text, as Markdown in a terminal."""
        if not self.is_terminal:
            echo(safe(text))
            return
        from oakleaf.cli.rendering.turn_screen import render_markdown

        self.console.print(render_markdown(safe(text), self.console))

    def note(self, text: str) -> None:
        """Print a notice wrapped between words; an id is never split."""
        notify("\n".join(wrap(safe(text), width(), break_long_words=False, break_on_hyphens=False)))

    def _farewell(self) -> None:
        if self._session is not None:
            if self.is_terminal:
                echo()
            notify(f"Continue with: oakleaf chat --resume {self._session.session_id}")


# -- slash commands -------------------------------------------------------------------------------------


class LeaveChat(Exception):
    """Raised to quit the chat."""


class Command(Struct, frozen=True):
    arguments: str
    help: str
    run: Callable[[Chat, str], None]
    needs_session: bool = False
    """Whether it needs a session; it does not create one."""


def run_command(chat: Chat, text: str) -> None:
    """Run a slash command."""
    name, _, rest = text.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = get_close_matches(name, COMMANDS, 1, cutoff=0.7)
        raise CommandError(
            f"unknown command {name}{f'; did you mean {near[0]}?' if near else '; /help lists the commands'}"
        )
    if chat.is_new and command.needs_session:
        raise CommandError("There is no session yet; your first message creates it")
    command.run(chat, rest.strip())


def _help(chat: Chat, rest: str) -> None:
    wide = max(len(f"{name} {command.arguments}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        echo(f"  {f'{name} {command.arguments}':<{wide}}  {dim(command.help)}")
    echo(dim('\n  End a line with \\ to continue it; put several lines between """ and """.'))


def _tree(chat: Chat, rest: str) -> None:
    """Draw the tree and go to the picked entry; without a terminal print the tree, and go to the named entry."""
    session = chat.session
    if rest:
        _go_to(chat, _position(session, rest))
        return
    lines = list(read(session).tree_lines())
    texts = [line.fit(width() - len("   ◀ leaf")) for line in lines]
    if not (chat.is_terminal and can_pick()):
        echo("\n".join(map(safe, texts)))
        notify(dim("/tree N goes to entry N, /tree BRANCH:N to one of another branch"))
        return
    index = pick(
        texts,
        "The tree of this session. Where do you want to continue?",
        start=next(n for n, line in enumerate(lines) if line.is_leaf),
        skip=[n for n, line in enumerate(lines) if line.leaf is None],
    )
    leaf = None if index is None else lines[index].leaf
    if leaf is not None:
        _go_to(chat, leaf)


def _position(session: Session, text: str) -> Leaf:
    """Return the position `7`, an entry of the path, or `3:7`, an entry of another branch."""
    branch, colon, seq = text.rpartition(":")
    if not colon:
        return _leaf_on_path(session, _number(text))
    leaf = Leaf(_number(branch), _number(seq))
    if not leaf.seq or not contains_leaf(session.branches(), session.session_id, leaf):
        raise CommandError(f"there is no entry {text}; /tree lists the entries")
    return leaf


def _leaf_on_path(session: Session, seq: int) -> Leaf:
    if seq > session.leaf.seq:
        raise CommandError(
            f"there is no entry {seq}: this path has {session.leaf.seq}; /tree lists all entries"
        )
    return read(session).leaf_at(seq)


def _go_to(chat: Chat, leaf: Leaf) -> None:
    """Move to a position and say the messages left behind."""
    session = chat.session
    before = session.leaf
    if leaf == before:
        chat.note("You are there already")
        return
    is_back = leaf.seq == 0 or Position(session, leaf).is_on_path
    command = f"rewind {session.session_id}@{leaf.seq}"
    files = _files_plugin(chat) if is_back else None
    folder = None
    if files is not None:
        folder = _offer_files(chat, partial(files.plan_rewind, session, leaf.seq), command)
    if files is not None and folder is not None:
        cut = cut_text(files.rewind(session, leaf.seq, folder, skip_changed=True, accept_imported=True))
    elif is_back:
        cut = cut_text(session.rewind(leaf.seq))
    else:
        cut = str(session.checkout(leaf).seq)
    chat.switch(session)
    chat.note(f"Now at entry {cut}. Nothing was deleted; /redo returns")
    _print_left(chat, before)
    _print_unanswered(chat)


def _files_plugin(chat: Chat) -> WorkspacePlugin | None:
    """Return the plugin for restoring the agent's files; None without a plugin."""
    return None if chat.agent.workspace is None else find_workspace_plugin()


def _offer_files(chat: Chat, make_plan: PlanFiles, command: str) -> str | None:
    """Show the files of the agent affected by a move, and ask whether to restore; return the folder after a yes."""
    assert chat.agent.workspace is not None
    folder = chat.agent.workspace.working_dir
    plan = make_plan(folder, accept_imported=True)  # it is shown, and asked about
    if not plan.changes:
        return None
    for line in plan.lines():
        notify(dim(f"  {clip(line, width() - 2)}"))
    if not chat.is_terminal:
        chat.note(f"The files stay as they are; oakleaf {command} --files restores them")
        return None
    return folder if chat.confirm("Restore these files, too?") else None


def _print_left(chat: Chat, before: Leaf) -> None:
    """Print the messages of the earlier path outside of the conversation now."""
    reader = read(chat.session)
    earlier = reader.at(before)
    entries_left = earlier.entries(shared_seq(earlier.ranges(), reader.ranges()) + 1)
    if not entries_left:
        return
    first, last = entries_left[0].seq, entries_left[-1].seq
    entries = f"entry {first}" if first == last else f"entries {first} to {last}"
    notify(dim(f"Left behind: {entries} of branch {entries_left[-1].branch}"))
    inputs = [entry.message.text for entry in entries_left if entry.is_input and entry.message is not None]
    for text in inputs[:MAX_LEFT]:
        notify(dim(f"  › {clip(text, width() - 4)}"))
    if len(inputs) > MAX_LEFT:
        notify(dim(f"  … and {plural(len(inputs) - MAX_LEFT, 'more message')}"))
    notify_left_behind(chat.session)


def _rewind(chat: Chat, rest: str) -> None:
    """Rewind to the picked entry, or to before the picked message for editing."""
    session = chat.session
    if rest:
        _go_to(chat, _leaf_on_path(session, _number(rest)))
        return
    inputs = [entry for entry in session.path() if entry.is_input and entry.message is not None]
    if not inputs:
        raise CommandError("there is no message to go back to; /tree lists the entries")
    texts = [entry.message.text for entry in inputs if entry.message is not None]
    if not (chat.is_terminal and can_pick()):
        for entry, text in zip(inputs, texts, strict=True):
            echo(f"  /rewind {entry.seq - 1:<4} before › {clip(text, width() - 24)}")
        return
    rows = [f"{entry.seq:>4}  {clip(text, 200)}" for entry, text in zip(inputs, texts, strict=True)]
    index = pick(rows, "Go back to before which message?", start=len(rows) - 1)
    if index is not None:
        _go_to(chat, read(session).leaf_at(inputs[index].seq - 1))
        chat.draft = texts[index]


def _show(chat: Chat, rest: str) -> None:
    if not rest:
        chat.show(chat.session.transcript())
        return
    seq = _number(rest)
    if not 1 <= seq <= chat.session.leaf.seq:
        raise CommandError(f"there is no entry {seq}; /tree lists the entries")
    [entry] = read(chat.session).entries(seq, seq)
    echo(dim(f"{entry.seq} {entry.role or entry.kind} {entry.model or ''}".rstrip()))
    text = entry.message.text if entry.message is not None else ""
    chat.render(text) if text else echo(describe_entry(entry))


def _fork(chat: Chat, rest: str) -> None:
    source = chat.session
    fork = source.fork(_number(rest) if rest else None)
    chat.switch(fork)
    assert fork.cut is not None
    chat.note(
        f"Now in {fork.session_id}, a fork at entry {cut_text(fork.cut)}. /resume {source.session_id} goes back"
    )
    notify_left_behind(fork)
    _print_unanswered(chat)


def _print_unanswered(chat: Chat) -> None:
    if read(chat.session).cursor.turn:
        chat.note("Your last message has no answer. /resume gets one; a new message skips it")


def _undo(chat: Chat, rest: str) -> None:
    session = chat.session
    messages = (entry.message for entry in read(session).backwards() if entry.is_input)
    message = next(messages, None)
    if message is None:
        raise CommandError("there is no message to undo; /tree lists the entries")
    cut = session.undo()
    chat.switch(session)
    chat.draft = message.text
    edit = " Your message is below to edit; Ctrl-U clears it" if chat.is_terminal else ""
    chat.note(f"Back at entry {cut.at}. Nothing was deleted; /redo returns.{edit}")
    notify_left_behind(session)


def _redo(chat: Chat, rest: str) -> None:
    session, files, folder = chat.session, _files_plugin(chat), None
    if files is not None:
        with suppress(InvalidOperation):  # it goes to another branch, whose files are not known
            folder = _offer_files(chat, partial(files.plan_redo, session), "redo")
    if files is not None and folder is not None:
        leaf = files.redo(session, folder, skip_changed=True, accept_imported=True)
    else:
        leaf = session.redo()
    chat.switch(chat.session)
    chat.note(f"At entry {leaf.seq} again")


def _compact(chat: Chat, rest: str) -> None:
    """Compact with the user's summary, else with a summary made without a model."""
    session = chat.session
    compaction = session.compact(rest or None)
    chat.switch(session)
    chat.note(
        f"A summary replaces everything before entry {compaction.first_kept}; oakleaf uncompact {session.session_id} undoes it"
    )


def _usage(chat: Chat, rest: str) -> None:
    own, path = chat.session.usage(), chat.session.usage("path")
    echo(f"  this session  {plural(own.calls, 'call')}, {format_tokens(own)}, {format_cost(own)}")
    echo(f"  this path     {plural(path.calls, 'call')}, {format_tokens(path)}, {format_cost(path)}")
    echo(f"  next request  {read(chat.session).window_use()}")


def _model(chat: Chat, rest: str) -> None:
    if not rest:
        echo("  " + ", then ".join(chat.agent.names))
        others = [name for name in chat.known_models() if name not in chat.agent.names]
        if others:
            notify(dim(f"  others used here: {', '.join(others)}"))
        return
    names = load_config().resolve(rest.split())
    models = [model_by_name(name) for name in names]
    session = None if chat.is_new else chat.session
    if session is not None:
        read(session).check_free()
        session.set(model=names[0])
        chat.switch(session)
    options = with_default_options(names[0], session, chat.agent.model_options)
    chat.agent = replace(chat.agent, names=names, models=models, model_options=options)
    chat.note(f"Now using {', then '.join(names)}")


def _options(chat: Chat, rest: str) -> None:
    """Show the options of the model's calls, or change the options from here on. Those of a new chat are set
    by its first message.
    """
    session = None if chat.is_new else chat.session
    changes = {**chat.agent.model_options, **_parse_options(rest)}
    in_force = merge_options(None if session is None else read(session).settings().options, changes) or {}
    if rest and session is None:
        check_options(chat.provider, in_force)
        chat.agent = replace(chat.agent, model_options=in_force)
    elif rest and session is not None:
        read(session).check_free()
        session.set(options=changes)
        chat.agent = replace(chat.agent, model_options={})
        chat.switch(session)
    if not in_force:
        names = ", ".join(OPTIONS.get(chat.provider, COMMON))
        chat.note(f"No options are set. /options temperature=0 sets one; {chat.provider} has: {names}")
    for name, value in in_force.items():
        echo(f"  {name}={safe(to_json(value, name).decode())}")


def _parse_options(text: str) -> dict[str, Any]:
    """Return the pairs `NAME=VALUE`, whose values may contain blanks; an empty value takes the option back."""
    options: dict[str, Any] = {}
    for pair in filter(None, _NEXT_OPTION.split(text)):
        name, equals, value = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise CommandError(
                f"{pair!r} is not NAME=VALUE; /options temperature=0 sets one, temperature= takes it back"
            )
        options[name] = parse_value(value) if value.strip() else None
    return options


def _export(chat: Chat, rest: str) -> None:
    path = Path(rest or export_file_name(chat.session.session_id, ".oakleaf")).expanduser()
    if path.is_file():
        raise CommandError(f"{path} exists; /export FILE writes another")
    chat.session.export(path)
    chat.note(f"Written to {path}")


def _title(chat: Chat, rest: str) -> None:
    if rest:
        chat.session.title(rest)
    echo(f"  {safe(chat.session.row.title or '(no title)')}")


def _tools(chat: Chat, rest: str) -> None:
    is_known = chat.is_new and chat.agent.workspace is None
    tools = chat.agent.tools(None if is_known else chat.session)
    if not tools:
        chat.note("No tools; start with --agent FILE, or --set with tools, mcp.servers or workspace.dir")
    for tool in tools:
        about = tool.spec.description.partition("\n")[0]
        asks = ", needs approval" if tool.approval else ""
        echo(f"  {bold(tool.name)} {dim(f'({tool.effect}{asks})')} {safe(about)}")


def _resume(chat: Chat, rest: str) -> None:
    """Resume the open turn, or switch to the named session."""
    if rest:
        chat.switch(resolve_runnable(chat.location, rest))
        chat.note(f"Now in {chat.session.session_id}, at entry {chat.session.leaf.seq}")
        return
    reader = None if chat.is_new else read(chat.session)
    if reader is not None and (reader.cursor.turn or reader.inbox(1)):
        chat.turn(None)
    else:
        chat.note("There is no open turn here")


def _quit(chat: Chat, rest: str) -> None:
    raise LeaveChat


def _number(text: str) -> int:
    if not text.isdecimal():
        raise CommandError(f"{text!r} is not an entry number; /tree lists the entries")
    return int(text)


COMMANDS: dict[str, Command] = {
    "/help": Command("", "list these commands", _help),
    "/show": Command("[N]", "show the conversation, or entry N in full", _show, needs_session=True),
    "/tree": Command("[N]", "walk the tree and continue anywhere, or at entry N", _tree, needs_session=True),
    "/rewind": Command("[N]", "go back to before a message, or to entry N", _rewind, needs_session=True),
    "/fork": Command("[N]", "start a new session here, or at entry N", _fork, needs_session=True),
    "/undo": Command("", "take back your latest message, to edit it", _undo, needs_session=True),
    "/redo": Command("", "undo the latest /undo, /rewind or move in the /tree", _redo, needs_session=True),
    "/compact": Command("[TEXT]", "replace earlier turns with a summary", _compact, needs_session=True),
    "/usage": Command("", "show tokens and cost", _usage, needs_session=True),
    "/model": Command("[NAME…]", "show or change the model", _model),
    "/options": Command("[NAME=VALUE…]", "show or change options, such as temperature=0", _options),
    "/tools": Command("", "list the agent's tools", _tools),
    "/title": Command("[TEXT]", "show or set the session's title", _title),
    "/export": Command("[FILE]", "write the session as a bundle", _export, needs_session=True),
    "/resume": Command("[REFERENCE]", "continue an interrupted turn, or another session", _resume),
    "/quit": Command("", "quit; so does Ctrl-D", _quit),
}
