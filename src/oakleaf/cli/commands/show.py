"""`oakleaf show`, `log`, `tree` and `context`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import click

from oakleaf import draw_tree
from oakleaf.cli.reference import reference, resolve
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import (
    bold,
    clip,
    dim,
    echo,
    encode_json,
    encode_line,
    format_time,
    json_option,
    notify,
    plural,
    print_json,
    print_lines,
    safe,
    to_json_value,
    width,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.codec import decode
from oakleaf.core.context import Context
from oakleaf.core.entries import INTERRUPTED, PARTIAL, Entry
from oakleaf.core.log_events import LogEvent, log_events
from oakleaf.core.messages import Media, Message, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.tool_definitions import read_tools
from oakleaf.core.tree_text import describe_entry
from oakleaf.core.turn_reader import message_text
from oakleaf.core.usage import format_cost, format_tokens, total
from oakleaf.errors import short_holder
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf.stores.base import SessionQuery, SessionRow
from oakleaf.verbs.reference import Position
from oakleaf.verbs.resume_command import resume_command
from oakleaf.verbs.views import status_text
from oakleaf.wire import PROVIDERS, find_provider

_ROLES = {"user": "cyan", "assistant": "green", "tool": "magenta", "system": "blue"}
MAX_RESULT_LINES = 12


def as_data(row: SessionRow) -> dict[str, Any]:
    """Return a session's row as JSON data, its id as `id`."""
    data: dict[str, Any] = to_json_value(row)
    return {"id": data.pop("session_id"), **data}


@click.command()
@reference
@click.option("--full", is_flag=True, help="Show tool results in full, and reasoning.")
@click.option("--trace", is_flag=True, help="Include internal entries: settings, notes, summaries.")
@click.option("-n", "--last", type=click.IntRange(1), metavar="N", help="Only the newest N entries.")
@json_option
@pass_location
def show(
    location: StoreLocation, reference: str, full: bool, trace: bool, last: int | None, is_json: bool
) -> None:
    """Show a session's transcript, or one of its entries.

    REFERENCE names a session (default: the latest); with @7 only its entry 7 is shown, in full.
    """
    position = resolve(location, reference)
    if position.leaf is not None and last is not None:
        raise CommandError(
            f"{reference} is a single entry; to list the {last} entries up to it use oakleaf log {shlex.quote(reference)} -n {last}"
        )
    if position.leaf is not None:
        _show_entry(position, is_json=is_json)
        return
    session = position.session
    path = session.path(last=last)
    if is_json:
        print_json(
            session=as_data(read(session).row()),
            entries=[entry_data(entry) for entry in path],
            window_use=read(session).window_use() if last is None else None,
            queued=[
                {"number": number, "at": at, "text": text} for number, at, text in _queued_inputs(session)
            ],
            **_open_calls_data(session),
        )
        return
    echo("\n".join(_header_lines(session, is_whole=last is None)))
    visible = (entry for entry in path if trace or entry.message is not None)
    print_lines("\n".join(_entry_lines(entry, full=full)) for entry in visible)
    for line in (*_open_call_lines(position), *_queued_lines(position)):
        echo(line)


@click.command()
@reference
@click.option("--all", "is_all", is_flag=True, help="Include the entries of other branches.")
@click.option(
    "--events",
    is_flag=True,
    help="Print events: system_message, user_message, assistant_message, tool_call, tool_result.",
)
@click.option("--since", type=click.IntRange(0), default=0, metavar="N", help="Only entries after entry N.")
@click.option("-n", "--last", type=click.IntRange(1), metavar="N", help="Only the newest N entries.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON lines, one per entry.")
@pass_location
def log(
    location: StoreLocation,
    reference: str,
    is_all: bool,
    events: bool,
    since: int,
    last: int | None,
    is_json: bool,
) -> None:
    """List the entries on a session's path.

    With @7 the path ends at entry 7. With --all each entry is listed with its branch and number, such as 3:7, which you
    can use as REFERENCE@3:7.
    """
    session = resolve(location, reference).session_at()
    if events and is_all:
        raise CommandError(
            "--events prints the path only; oakleaf log --all --json lists the entries of all branches"
        )
    if events:
        print_lines(encode_line(event).decode() for event in newest_events(session, since, last))
        return
    if is_all:
        entries = read(session).tree_entries(last, since=since)
    else:
        entries = session.path(since=since, last=last)
    if not entries:
        notify(f"there are no entries after {since}" if since else "there are no entries yet")
    if is_json:
        print_lines(encode_line(entry_data(entry)).decode() for entry in entries)
    else:
        print_lines(_log_lines(entries, is_all=is_all))


def newest_events(session: Session, since: int, last: int | None) -> list[LogEvent]:
    """Return the events of the entries after `since`; or the last ones only, and no more of the path is read."""
    if last is None:
        return list(log_events(session.path(since)))
    newest: list[LogEvent] = []
    for entry in takewhile(lambda entry: entry.seq > since, read(session).backwards()):
        newest[:0] = log_events([entry])
        if len(newest) >= last:
            break
    return newest[-last:]


@click.command()
@reference
@json_option
@pass_location
def tree(location: StoreLocation, reference: str, is_json: bool) -> None:
    """Draw a session's tree of branches.

    Other branches are drawn next to the path, under their number; ⚑ marks a label. The session's forks and tasks are
    listed below.
    """
    position = resolve(location, reference)
    session = position.session_at()
    related = list(read(session).store.all_sessions(SessionQuery(parent_session=session.session_id)))
    if is_json:
        print_json(
            session=as_data(read(session).row()),
            leaf=session.leaf,
            branches=session.branches(),
            labels={str(leaf): label for leaf, label in session.labels().items()},
            entries=[
                {"branch": e.branch, "seq": e.seq, "kind": e.kind, "role": e.role, "id": e.entry_id.hex()}
                for e in read(session).tree_entries()
            ],
            related=[as_data(row) for row in related],
        )
        return
    echo(draw_tree(session, width=width(160)))
    names = read(session).store.headings(related)
    for row in related:
        echo(
            dim(f"  {row.relation} at {row.parent_seq}: {row.session_id}  {clip(names[row.session_id], 60)}")
        )


@click.command()
@reference
@click.option(
    "--provider",
    metavar="NAME",
    shell_complete=lambda ctx, param, typed: [name for name in PROVIDERS if name.startswith(typed)],
    help="anthropic, openai-chat, openai or gemini.  [default: that of the session's model, or anthropic]",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print the first difference from the last request; exit code 1 if there is one.",
)
@json_option
@pass_location
def context(
    location: StoreLocation, reference: str, provider: str | None, explain: bool, is_json: bool
) -> int:
    """Print what the model would receive at this point.

    With @7, what it would receive after entry 7. --json prints the exact request for the provider.
    """
    session = resolve(location, reference).session_at()
    if provider is None:
        own = (session.row.model or "").partition(":")[0]
        provider = own if own in PROVIDERS else "anthropic"
    find_provider(provider)
    if explain:
        return _print_cache_check(session, provider, is_json=is_json)
    used = read(session).window_use()
    if is_json:
        print_json(provider=provider, request=session.request(provider), window_use=used)
        return 0
    context_ = session.context()
    if not context_.system and not context_.items:
        notify("nothing: there are no messages yet")
    for text in context_.system:
        echo("\n".join(_message_lines("system", Message("system", (Text(text),)), full=True)))
    for name, text in _request_settings(session, context_):
        echo("\n".join(_message_lines(name, Message("system", (Text(text),)), full=True)))
    for item in context_.items:
        echo("\n".join(_message_lines(item.message.role, item.message, full=True)))
    notify(dim(str(used)))
    return 0


def _request_settings(session: Session, context: Context) -> Iterator[tuple[str, str]]:
    """Yield the tools and options of a request as text."""
    settings = context.settings
    definitions = settings.tool_definitions
    tools = read_tools(definitions, read(session).blob)
    if tools:
        none = "" if definitions is None or definitions.is_callable else "\n(none callable)"
        yield "tools", "\n".join(f"{tool.name}: {tool.description}" for tool in tools) + none
    elif definitions is not None:
        missing = " (their definitions are not in this store)" if tools is None else ""
        yield "tools", (", ".join(definitions.names) or "none") + missing
    elif any(item.message.calls for item in context.items):
        yield "tools", "not recorded"
    if settings.options:
        yield (
            "options",
            "\n".join(f"{name}: {encode_json(value).decode()}" for name, value in settings.options.items()),
        )


def _print_cache_check(session: Session, provider: str, *, is_json: bool) -> int:
    """Print whether the provider's prompt cache still matches; return 1 if it does not."""
    difference = read(session).cache_break(provider)
    if is_json:
        print_json(provider=provider, difference=difference)
    elif difference is None:
        echo("the request begins with the previous one, byte for byte; the provider's cache stays warm")
    else:
        echo(safe(str(difference)))
    return 0 if difference is None else 1


def entry_data(entry: Entry) -> dict[str, object]:
    """Return an entry as JSON data, without its provider evidence."""
    data: dict[str, object] = to_json_value(entry)
    data.pop("evidence", None)
    data["entry_id"] = entry.entry_id.hex()
    return {**data, "kind": entry.kind, "role": entry.role}


def _open_calls_data(session: Session) -> dict[str, object]:
    calls = [
        {"seq": c.seq, "index": c.index, "id": c.call.id, "name": c.call.name}
        for c in session.open_tool_calls
    ]
    approvals = session.pending_approvals() if calls else []
    return {"open_calls": calls, "waiting": approvals, "next_action": type(session.next_action()).__name__}


def _header_lines(session: Session, *, is_whole: bool) -> Iterator[str]:
    """Yield the lines about the session. Only the whole path shows the size of the next request, because it is measured there."""
    row = read(session).row()
    name = read(session).store.heading(row)
    is_named = name != row.session_id
    yield f"{bold(clip(name, 100))}  {dim(row.session_id)}" if is_named else bold(row.session_id)
    facts = [
        status_text(row.status),
        row.model,
        plural(row.turns, "turn"),
        format_cost(row.totals),
        format_tokens(row.totals),
    ]
    yield dim(" · ").join(filter(None, [*facts, format_time(row.updated_at)]))
    if session.leaf.seq and is_whole:
        yield dim(f"next request: {read(session).window_use()}")
    if row.parent_session:
        yield dim(f"{row.relation} of {row.parent_session} at {row.parent_seq}")
    if row.trashed_at is not None:
        yield f"in the trash since {format_time(row.trashed_at)}"
    if row.error:
        yield click.style(f"error: {clip(row.error, 200)}", fg="red")


def _log_lines(entries: Sequence[Entry], *, is_all: bool) -> Iterator[str]:
    """Yield one line per entry. The terminal is measured once, not for every line."""
    places = [f"{entry.branch}:{entry.seq}" if is_all else str(entry.seq) for entry in entries]
    room, columns = max(map(len, places), default=0), width(200)
    for entry, place in zip(entries, places, strict=True):
        name = entry.role or entry.kind
        text = f"{place:>{max(room, 5)}} {' ' if entry.internal else '•'} {name:<14} "
        yield click.style(text, fg=_ROLES.get(name)) + clip(
            describe_entry(entry), max(20, columns - len(text))
        )


def _entry_lines(entry: Entry, *, full: bool) -> Iterator[str]:
    name = entry.role or entry.kind
    if entry.message is None:
        yield dim(f"{entry.seq:>5} {name}: {clip(describe_entry(entry), width(200))}")
        return
    after = dim(f"  {entry.model}") if entry.model else ""
    if entry.finish in (INTERRUPTED, PARTIAL):
        after += click.style("  interrupted", fg="yellow")
    yield from _message_lines(
        name, entry.message, full=full, before=dim(f"{entry.seq:>5}") + " ", after=after
    )


def _message_lines(
    name: str, message: Message, *, full: bool, before: str = "", after: str = ""
) -> Iterator[str]:
    """Yield a message under its role."""
    yield ""
    yield f"{before}{click.style(name, fg=_ROLES.get(name), bold=True)}{after}"
    for part in message.parts:
        yield from ("      " + line for line in _part_lines(part, full=full))


def _part_lines(part: object, *, full: bool) -> Iterator[str]:
    match part:
        case Text(text=text):
            yield from safe(text).splitlines()
        case Reasoning(text=text):
            yield from (dim(line) for line in (safe(text).splitlines() if full else ["(reasoning)"]) if text)
        case ProviderBlock(stub=stub):
            yield from (dim(line) for line in safe(stub).splitlines()[: None if full else 1])
        case ToolCall(name=name, arguments=arguments):
            yield f"{click.style('→', fg='yellow')} {bold(safe(name))} {safe(encode_json(arguments).decode())}"
        case ToolResult() as result:
            yield from _result_lines(result, full=full)
        case Media(mime=mime, size=size, name=name):
            yield dim(f"[{name or 'media'}: {mime}, {size:,} bytes]")


_OUTCOMES = {
    "unknown": "outcome unknown",
    "denied": "denied",
    "interrupted": "interrupted",
    "dry_run": "dry run",
}


def _result_lines(result: ToolResult, *, full: bool) -> Iterator[str]:
    marks = [_OUTCOMES.get(result.outcome, ""), "error" if result.error and result.outcome == "done" else ""]
    reused = (result.details or {}).get("reused")
    if isinstance(reused, dict):
        marks.append(safe(f"reused from {reused.get('session')}@{reused.get('seq')}"))
    marked = "".join(click.style(f"[{mark}] ", fg="red") for mark in marks if mark)
    text = "\n".join(piece.text for piece in result.content if isinstance(piece, Text))
    lines = safe(text).splitlines() or [""]
    visible = lines if full else lines[:MAX_RESULT_LINES]
    yield f"← {marked}{visible[0]}"
    yield from (f"  {line}" for line in visible[1:])
    if len(visible) < len(lines):
        yield dim(f"  … {len(lines) - len(visible)} more lines; use --full")
    for piece in result.content:
        if isinstance(piece, Media):
            yield dim(f"  [{piece.mime}, {piece.size:,} bytes]")


def _open_call_lines(position: Position) -> Iterator[str]:
    """Yield the calls without results: whether they started, wait for approval, or have an unknown outcome."""
    session = position.session
    if not session.open_tool_calls:
        return
    from oakleaf.verbs.call_text import earlier_text

    reader = read(session)
    status = reader.call_status()
    row = session.row
    runner = short_holder(row.holder) if row.holder and reader.is_held() else None
    unrecorded: list[str] = []
    for call in session.open_tool_calls:
        place = (call.seq, call.index)
        mark = "not started"
        if place in status.trashed_tasks:
            mark = f"waits for its task {status.trashed_tasks[place]}, which is in the trash"
        elif place in status.task_approvals:
            mark = f"waits for approval in its task {status.task_approvals[place][0].session_id}"
        elif place in status.decided_tasks:
            mark = "its task was decided, and continues with this session"
        elif place in status.started:
            mark = "started, outcome unknown" if runner is None else "started"
        elif place in status.approval_requested - status.decided:
            elsewhere = status.decided_elsewhere.get(place)
            mark = "waits for approval" + (f"; {elsewhere} elsewhere" if elsewhere else "")
            if earlier := status.earlier.get(place):
                mark += f"; made before: {clip(earlier_text(earlier), 200)}"
        elif place in status.unaccepted - status.approved - status.denied:
            mark = "left open elsewhere; it runs once it is accepted"
        elif runner is None and place not in status.decided and not status.has_recorded_starts:
            mark = "no start recorded: it may have run"
            unrecorded.append(call.call.name)
        if runner is None and reader.original_call(call) is None:
            mark += "; its arguments hold a secret that was not stored, so it is not run again"
        yield f"      {click.style('?', fg='red', bold=True)} {bold(call.call.name)} {click.style(f'[{mark}]', fg='red')}"
    if runner is not None and not session.pending_approvals():
        follow = f"oakleaf tail -f {session.session_id} follows it, oakleaf cancel {session.session_id} ends the turn"
        notify(f"{runner} runs it: {follow}")
        return
    first = _import_first(position)
    first += "".join(
        f"oakleaf restore {task}, then " for task in dict.fromkeys(status.trashed_tasks.values())
    )
    first += (
        f"oakleaf approve {session.session_id}, then "
        if status.trashed_tasks or session.pending_approvals()
        else ""
    )
    if unrecorded:
        names = ", ".join(dict.fromkeys(unrecorded))
        notify(
            f"find out first whether {names} ran: oakleaf resume would run it. A loop of your own records its outcome "
            "with turn.result(), and with turn.run() or turn.started() that it starts"
        )
        return
    top = [reader, *reader.ancestors()][-1]
    if top.is_awaited_by_worker() and not _import_first(position):
        notify(f"{first}its worker continues")
        return
    notify(f"{first}{resume_command(session)} continues")


def _queued_inputs(session: Session) -> Iterator[tuple[int, int, str]]:
    """Yield the number, time and text of each input that waits for the turn before it to end."""
    for queued in read(session).inbox():
        message = decode("message", queued.body)
        assert isinstance(message, Message)
        yield queued.number, queued.at, message_text(message)


def _queued_lines(position: Position) -> Iterator[str]:
    """Yield the queued inputs, and say what answers them unless an open turn comes first, whose end does."""
    session = position.session
    texts = [text for _, _, text in _queued_inputs(session)]
    for text in texts:
        yield f"      … {safe(clip(' '.join(text.split()), width() - 18))} {click.style('[queued]', dim=True)}"
    if not texts or session.open_tool_calls or read(session).is_held():
        return
    first = _import_first(position)
    inputs = "the queued input" if len(texts) == 1 else f"the {len(texts)} queued inputs"
    notify(f"{first}oakleaf resume {session.session_id} answers {inputs}")


def _import_first(position: Position) -> str:
    return "" if position.bundle is None else f"oakleaf import {shlex.quote(str(position.bundle))}, then "


def _show_entry(position: Position, *, is_json: bool) -> None:
    session = position.session_at()
    if not session.leaf.seq:
        name = shlex.quote(str(position.bundle or session.session_id))
        raise CommandError(f"0 is before the first entry; oakleaf log {name} lists the entries")
    (entry,) = session.path(last=1)
    calls = read(session).calls_at(entry)
    if is_json:
        print_json(entry=entry_data(entry), usage=total(calls) if calls else None)
        return
    echo("\n".join(_entry_lines(entry, full=True)))
    spent = f" · {format_cost(total(calls))} · {format_tokens(total(calls))}" if calls else ""
    echo(
        dim(
            f"      {entry.entry_id.hex()} · turn {entry.turn} · step {entry.step} · {format_time(entry.at)}{spent}"
        )
    )
