"""Show a transcript or one entry: show."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated

from msgspec import Struct

from oakleaf.core.codec import decode
from oakleaf.core.messages import Message
from oakleaf.core.turn_reader import message_text
from oakleaf.core.turns import OpenCall
from oakleaf.core.usage import Totals, format_cost, format_tokens, total
from oakleaf.errors import InvalidArgument, InvalidReference, plural, short_holder
from oakleaf.ext import CallStatus, WindowUse, read
from oakleaf.session import Session
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.call_text import earlier_text
from oakleaf.verbs.entries import EntryView, entry_lines, path_views, transcript_lines, turn_number
from oakleaf.verbs.fields import Count, Help, Number, Ref
from oakleaf.verbs.reference import Position
from oakleaf.verbs.resume_command import resume_command
from oakleaf.verbs.screen import Line, Screen, clip, format_time, plain, safe, style
from oakleaf.verbs.views import SessionView, row_view, status_text

PIECE = 4_000
"""Characters of a piece of a long entry."""


class OpenCallView(Struct, frozen=True, kw_only=True):
    """A tool call without a result."""

    seq: int
    index: int
    id: str
    name: str
    state: str
    """What became of it, in words."""


class QueuedView(Struct, frozen=True, kw_only=True):
    """An input that waits for the turn before it to end."""

    number: int
    at: int
    text: str


class Shown(Struct, frozen=True, kw_only=True):
    session: SessionView
    total: int
    """The number of entries on the path."""
    entries: list[EntryView]
    reference: str | None = None
    """Of a single entry: its name wherever the path leads."""
    turn_number: int | None = None
    """Of a single entry: the number of its turn, counted from 1."""
    on_path: bool | None = None
    """Of a single entry: whether it is on the session's path."""
    usage: Totals | None = None
    """Of a single entry: the model calls that it answers."""
    text: str | None = None
    """Of a single entry read in pieces: its text from `offset` on, instead of `entries`."""
    next_offset: int | None = None
    """The `offset` of the next piece; null after the last."""
    window_use: WindowUse | None = None
    """Of a whole path: the share of the model's window that the next request fills."""
    open_calls: list[OpenCallView] = []
    queued: list[QueuedView] = []
    next_action: str | None = None
    """CallModel, RunTools or Rest; null for a single entry."""
    advice: list[str] = []
    """What continues an open turn."""


class Show(Verb, frozen=True):
    """Show a session's transcript, or one of its entries.

    With @7 only entry 7 is shown, in full. A window of a long session: --last 20, or --since 40 --until 60.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    examples = ("oakleaf show latest -n 20", "oakleaf show ses_3f@7")

    session: Ref = "latest"
    full: Annotated[bool, Help("Print tool results in full, and reasoning.")] = False
    trace: Annotated[bool, Help("Print settings, notes and summaries too.")] = False
    last: Annotated[Count | None, Help("Only the newest N entries.", short="n")] = None
    since: Annotated[Number, Help("Only entries after entry N.", metavar="N")] = 0
    until: Annotated[Count | None, Help("Only entries up to entry N.", metavar="N")] = None
    offset: Annotated[
        Number | None,
        Help("With @7: only the text of the entry from this character on, in a piece.", remote=True),
    ] = None

    def run(self, caller: Caller) -> Shown:
        position = caller.position(self.session)
        if position.leaf is not None:
            return self._one(position)
        if self.offset is not None:
            raise InvalidArgument("offset", self.offset, "nothing, unless session names an entry: ses_3f@7")
        session, reader = position.session, read(position.session)
        row, end = reader.row(), session.leaf.seq
        is_whole = not self.since and self.until is None and self.last is None
        last = self.last or caller.most
        until = end if self.until is None else min(self.until, end)
        first = max(self.since, 0 if last is None else until - last) + 1
        entries = reader.entries(first, until) if first <= until else []
        inputs = list(_queued(session))
        calls, advice = _open_calls(position)
        return Shown(
            session=row_view(row, reader.store.heading(row)),
            total=end,
            entries=path_views(reader, entries),
            window_use=reader.window_use() if is_whole and end else None,
            open_calls=calls,
            queued=inputs,
            next_action=type(session.next_action()).__name__,
            advice=[*advice, *_queue_advice(position, inputs)],
        )

    def _one(self, position: Position) -> Shown:
        """Return the entry that a reference names."""
        if self.last is not None or self.since or self.until is not None:
            quoted = shlex.quote(self.session)
            raise InvalidReference(
                f"{self.session} is a single entry",
                f"to list the entries up to it use oakleaf log {quoted} -n {self.last or 20}",
            )
        session = position.session_at()
        reader, row = read(session), position.session.row
        if not session.leaf.seq:
            name = shlex.quote(str(position.bundle or session.session_id))
            raise InvalidReference("0 is before the first entry", f"oakleaf log {name} lists the entries")
        (entry,) = reader.entries(newest=1)
        calls = reader.calls_at(entry)
        (view,) = path_views(reader, [entry])
        one = Shown(
            session=row_view(row, reader.store.heading(row)),
            total=position.session.leaf.seq,
            entries=[view],
            reference=f"{row.session_id}@{entry.branch}:{entry.seq}",
            turn_number=turn_number(reader, entry),
            on_path=position.is_on_path,
            usage=total(calls) if calls else None,
        )
        return one if self.offset is None else _piece(one, view, self.offset)

    # -- for people ----------------------------------------------------------------------------------------

    def lines(self, result: Shown, screen: Screen) -> Iterator[Line]:
        if result.text is not None:
            yield from safe(result.text).splitlines()
            return
        if result.reference is not None:
            yield from entry_lines(result.entries[0], screen, full=True)
            yield from (style(plain(line), "dim") for line in screen.facts(_entry_facts(result), "      "))
            return
        yield from _header(result, screen)
        yield from transcript_lines(result.entries, screen, full=self.full, trace=self.trace)
        for call in result.open_calls:
            state = style(f"[{safe(call.state)}]", "red")
            yield f"      {style('?', 'red', 'bold')} {style(safe(call.name), 'bold')} {state}"
        for one in result.queued:
            yield f"      … {screen.fit(safe(one.text), 18)} {style('[queued]', 'dim')}"

    def notes(self, result: Shown, screen: Screen) -> Iterator[str]:
        if result.next_offset is not None:
            yield f"more: offset={result.next_offset}"
        if result.reference is None and result.text is None:
            yield from window_notes(self.session, result.entries, result.total)
        yield from result.advice


def window_notes(reference: str, entries: list[EntryView], total: int) -> Iterator[str]:
    """Yield which part of a path is shown, and how to read what is before it."""
    if entries and entries[0].seq > 1:
        first, last = entries[0].seq, entries[-1].seq
        before = f"oakleaf show {shlex.quote(reference)} --until {first - 1} -n {len(entries)}"
        yield f"entries {first:,} to {last:,} of {total:,}; {before} shows those before"


def _header(result: Shown, screen: Screen) -> Iterator[str]:
    """Yield the lines about the session."""
    session = result.session
    named = session.heading != session.id
    name = screen.fit(safe(session.heading), len(session.id) + 2) if named else session.id
    yield f"{style(name, 'bold')}  {style(session.id, 'dim')}" if named else style(name, "bold")
    totals = session.totals or Totals()
    facts = [
        status_text(session.status),
        safe(session.model or ""),
        plural(session.turns, "turn"),
        format_cost(totals),
        format_tokens(totals),
        screen.time(session.updated_at),
    ]
    yield from screen.facts(facts)
    if result.window_use is not None:
        yield style(f"next request: {result.window_use}", "dim")
    if session.relation and session.parent_session:
        yield style(f"{session.relation} of {session.parent_session} at {session.parent_seq}", "dim")
    if session.trashed_at:
        yield f"in the trash since {format_time(session.trashed_at)}"
    if session.error:
        yield style(f"error: {clip(safe(session.error), 200)}", "red")


def _entry_facts(result: Shown) -> list[str]:
    entry, spent = result.entries[0], result.usage
    turn = f"turn {result.turn_number}" if result.turn_number else ""
    step = f"step {entry.step}" if entry.step else ""
    facts = [entry.entry_id, turn, step, format_time(entry.at)]
    facts += [] if spent is None else [format_cost(spent), format_tokens(spent)]
    return facts


def _piece(one: Shown, view: EntryView, offset: int) -> Shown:
    lines = Screen().print(entry_lines(view, Screen(), full=True))
    whole = plain("\n".join(lines)).lstrip("\n")
    end = offset + PIECE
    return Shown(
        session=one.session,
        total=one.total,
        entries=[],
        text=whole[offset:end],
        next_offset=end if end < len(whole) else None,
    )


# -- what is open ------------------------------------------------------------------------------------------


def _open_calls(position: Position) -> tuple[list[OpenCallView], list[str]]:
    """Return the calls without a result, and what continues their turn."""
    session = position.session
    calls = session.open_tool_calls
    if not calls:
        return [], []
    reader = read(session)
    status, holder = reader.call_status(), session.row.holder
    runner = short_holder(holder) if holder and reader.is_held() else None
    views, unrecorded = [], list[str]()
    for call in calls:
        state = _state(call, status, is_running=runner is not None)
        if state == _UNRECORDED:
            unrecorded.append(call.call.name)
        if runner is None and reader.original_call(call) is None:
            state += "; its arguments hold a secret that was not stored, so it is not run again"
        views.append(
            OpenCallView(seq=call.seq, index=call.index, id=call.call.id, name=call.call.name, state=state)
        )
    return views, [_advice(position, status, runner, unrecorded)]


_UNRECORDED = "no start recorded: it may have run"


def _state(call: OpenCall, status: CallStatus, *, is_running: bool) -> str:
    """Return what became of a call, in words."""
    place = (call.seq, call.index)
    if place in status.trashed_tasks:
        return f"waits for its task {status.trashed_tasks[place]}, which is in the trash"
    if place in status.task_approvals:
        return f"waits for approval in its task {status.task_approvals[place][0].session_id}"
    if place in status.decided_tasks:
        return "its task was decided, and continues with this session"
    if place in status.started:
        return "started" if is_running else "started, outcome unknown"
    if place in status.approval_requested - status.decided:
        elsewhere = status.decided_elsewhere.get(place)
        state = "waits for approval" + (f"; {elsewhere} elsewhere" if elsewhere else "")
        earlier = status.earlier.get(place)
        return f"{state}; made before: {clip(earlier_text(earlier), 200)}" if earlier else state
    if place in status.unaccepted - status.approved - status.denied:
        return "left open elsewhere; it runs once it is accepted"
    if not is_running and place not in status.decided and not status.has_recorded_starts:
        return _UNRECORDED
    return "not started"


def _advice(position: Position, status: CallStatus, runner: str | None, unrecorded: list[str]) -> str:
    session, reader = position.session, read(position.session)
    waiting = session.pending_approvals()
    if runner is not None and not waiting:
        follow = f"oakleaf tail -f {session.session_id} follows it, oakleaf cancel {session.session_id} ends the turn"
        return f"{runner} runs it: {follow}"
    if unrecorded:
        names = ", ".join(dict.fromkeys(unrecorded))
        return (
            f"find out first whether {names} ran: oakleaf resume would run it. A loop of your own records its outcome "
            "with turn.result(), and with turn.run() or turn.started() that it starts"
        )
    imported = _import_first(position)
    restored = "".join(
        f"oakleaf restore {task}, then " for task in dict.fromkeys(status.trashed_tasks.values())
    )
    approved = f"oakleaf approve {session.session_id}, then " if status.trashed_tasks or waiting else ""
    top = [reader, *reader.ancestors()][-1]
    if top.is_awaited_by_worker() and not imported:
        return f"{restored}{approved}its worker continues"
    return f"{imported}{restored}{approved}{resume_command(session)} continues"


def _queued(session: Session) -> Iterator[QueuedView]:
    for queued in read(session).inbox():
        message = decode("message", queued.body)
        assert isinstance(message, Message)
        yield QueuedView(number=queued.number, at=queued.at, text=message_text(message))


def _queue_advice(position: Position, queued: list[QueuedView]) -> Iterator[str]:
    """Yield what answers the queued inputs, unless an open turn comes first, whose end does."""
    session = position.session
    if not queued or session.open_tool_calls or read(session).is_held():
        return
    inputs = "the queued input" if len(queued) == 1 else f"the {len(queued)} queued inputs"
    yield f"{_import_first(position)}oakleaf resume {session.session_id} answers {inputs}"


def _import_first(position: Position) -> str:
    return "" if position.bundle is None else f"oakleaf import {shlex.quote(str(position.bundle))}, then "
