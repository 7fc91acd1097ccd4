"""The slash commands of the chat, each a line or two: the verb it stands for, and what the person is told."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from ...core.tree_text import describe_entry
from ...core.usage import format_cost
from ...errors import InvalidPosition
from ...models.names import model_by_name
from ..commands.export import file_name
from ..rendering.error_text import Refused
from ..rendering.output import bold, dim, safe, tokens, width
from ..run_source import find_driven

if TYPE_CHECKING:
    from .chat import Chat


class Left(Exception):
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
        raise Refused(f"there is no {name}{f'; did you mean {near[0]}?' if near else '; /help lists them'}")
    if chat.is_new and name in _OF_WHAT_WAS_SAID:
        raise Refused("nothing was said here yet; your first words make the session")
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
        raise Refused(f"there is no entry {seq}; /tree shows those there are")
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
        raise Refused("there is no input to undo; /tree shows what there is") from None
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
    place = Path(rest or file_name(chat.session.session_id, ".bough")).expanduser()
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
        chat.switch(find_driven(chat.place, rest))
        chat.note(f"this is {chat.session.session_id} now, at entry {chat.session.leaf.seq}")
        return
    log = None if chat.is_new else chat.session.log
    if log is not None and (log.cursor.turn or log.store.inbox(log.session_id)):
        chat.turn(None)
    else:
        chat.note("nothing is open here")


def _quit(chat: Chat, rest: str) -> None:
    raise Left


def _number(text: str) -> int:
    if not text.isdecimal():
        raise Refused(f"{text!r} is no number of an entry; /tree shows them")
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
_OF_WHAT_WAS_SAID = {"/show", "/tree", "/fork", "/undo", "/redo", "/compact", "/usage", "/export"}
"""Looking makes no session."""
