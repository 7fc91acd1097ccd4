"""Build the spans of one trace: the session, its turns, and their model and tool calls.

Follows the GenAI semantic conventions of OpenTelemetry (`gen_ai.*`). Spans cover what the session itself did, abandoned
branches included, but nothing it inherited: that is in the other session's trace and would be counted twice. Names, kinds
and attributes hold no content unless requested. `otlp` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Session, telemetry
from oakleaf.core.codec import to_json
from oakleaf.core.entries import Compaction, Entry
from oakleaf.core.messages import ToolCall, ToolResult
from oakleaf.core.redact import Redactor
from oakleaf.core.redact_entries import redact_entries
from oakleaf.core.tree import Branch
from oakleaf.core.turns import is_completed
from oakleaf.core.usage import Call
from oakleaf.exports.otel.content import input_messages, instructions, output_messages
from oakleaf.exports.timeline import Timeline, build_timeline, call_start
from oakleaf.exports.values import result_text, without_none
from oakleaf.ext import store_of
from oakleaf.stores.base import SessionRow

INTERNAL, CLIENT = 1, 3
_FATES = frozenset(["denied", "interrupted", "unknown", "not_recorded"])
"""Outcomes of a tool call that are errors. A dry run did what was requested."""

Place = tuple[int, int]


class Span(Struct, frozen=True):
    """A span and the inner spans."""

    place: str
    """Its position, by session id and numbers that are equal in every store; its id is a hash of it."""
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    kind: int = INTERNAL
    error: str | None = None
    """The class of the error it ended with."""
    message: str | None = None
    inner: tuple[Span, ...] = ()

    def around(self, inner: Iterable[Span]) -> Span:
        """Return the span extended over the inner spans: clocks of several hosts may disagree."""
        children = (*self.inner, *inner)
        start = min([self.start, *(span.start for span in children)])
        end = max([start, self.end, *(span.end for span in children)])
        ordered = tuple(sorted(children, key=lambda span: (span.start, span.place)))
        return replace(self, start=start, end=end, inner=ordered)


class SessionTrace(Struct, frozen=True):
    """The readings of a session."""

    row: SessionRow
    lines: dict[int, int]
    """The index of each own branch: branch numbers differ between stores."""
    parents: dict[int, Place | None]
    entries: dict[Place, Entry]
    calls: list[Call]
    moments: Timeline
    redactor: Redactor | None

    def hide(self, text: str | None) -> str | None:
        return text if text is None or self.redactor is None else self.redactor.redact_text(text)

    def entry(self, branch: int, seq: int) -> Entry | None:
        """Return the entry at the position on the branch, or on the continued branches."""
        while (entry := self.entries.get((branch, seq))) is None:
            parent = self.parents.get(branch)
            if parent is None or seq > parent[1]:
                return None
            branch = parent[0]
        return entry

    def common(self, operation: str | None = None) -> dict[str, Any]:
        return telemetry.place_attributes(operation, self.row.session_id, self.hide(self.row.agent))


def session_span(session: Session, *, content: bool, children: bool, redactor: Redactor | None) -> Span:
    """Return the span of a session, with the tasks inside the starting calls."""
    sessions = _family(session) if children else [session]
    within: dict[str, list[Span]] = {}
    span = None
    for one in reversed(sessions):
        trace_data = _read(one, redactor)
        span = _session_tree(trace_data, within.pop(one.session_id, ()), content)
        within.setdefault(trace_data.row.parent_session or "", []).append(span)
    assert span is not None
    return span


def _family(session: Session) -> list[Session]:
    """Return the session and all tasks, nested tasks included; a cycle of parents, possible in a forged
    store, is walked once.
    """
    store, session_ids, waiting = store_of(session), {session.session_id}, [session]
    for one in waiting:
        for row in store.all_sessions(parent_session=one.session_id, relation="task"):
            if row.session_id not in session_ids:
                session_ids.add(row.session_id)
                waiting.append(store.session(row.session_id))
    return waiting


def _session_tree(trace_data: SessionTrace, tasks: Iterable[Span], content: bool) -> Span:
    within: dict[str, list[Span]] = {}
    for task in tasks:
        within.setdefault(_starting_position(trace_data, task.place), []).append(task)
    loose: dict[Place, list[Span]] = {}
    for place, span in [*_tool_spans(trace_data, content), *_model_spans(trace_data, content)]:
        loose.setdefault(place, []).append(span.around(within.pop(span.place, ())))
    turns = []
    for place, turn in _turns(trace_data).items():
        span = _turn_span(trace_data, turn, content)
        turns.append(span.around([*loose.pop(place, ()), *within.pop(span.place, ())]))
    rest = [span for spans in [*loose.values(), *within.values()] for span in spans]
    return _session_span(trace_data, content).around([*turns, *rest])


def _read(session: Session, redactor: Redactor | None) -> SessionTrace:
    """Read the entries first: a concurrent writer's additions are then missing everywhere or nowhere."""
    entries = {(entry.branch, entry.seq): entry for entry in redact_entries(session.entries(), redactor)}
    own = [branch for branch in session.branches() if branch.session_id == session.session_id]
    calls = session.model_calls()
    return SessionTrace(
        row=session.row,
        lines={name: number for number, name in enumerate(sorted(one.branch for one in own), 1)},
        parents={branch.branch: _parent(branch) for branch in own},
        entries=entries,
        calls=calls,
        moments=build_timeline(session.journal(), calls, redactor),
        redactor=redactor,
    )


def _parent(branch: Branch) -> Place | None:
    return None if branch.parent is None else (branch.parent, branch.parent_seq)


def _starting_position(trace_data: SessionTrace, child_id: str) -> str:
    """Return the position of the call or turn at the start of a task; empty if unknown."""
    task = trace_data.moments.tasks.get(child_id)
    if task is None:
        return ""
    if task.key is not None:
        return f"{trace_data.row.session_id}/{task.key.rpartition('/')[0]}"
    entry = trace_data.entry(task.branch, task.seq)
    return _turn_place(trace_data, (entry.branch, entry.turn)) if entry is not None else ""


# -- turns -----------------------------------------------------------------------------------------


def _turns(trace_data: SessionTrace) -> dict[Place, list[Entry]]:
    """Group entries by branch and turn; a turn continued on another branch counts as a turn there."""
    turns: dict[Place, list[Entry]] = {}
    for entry in trace_data.entries.values():
        if entry.turn:
            turns.setdefault((entry.branch, entry.turn), []).append(entry)
    return turns


def _turn_place(trace_data: SessionTrace, place: Place) -> str:
    return f"{trace_data.row.session_id}/{trace_data.lines[place[0]]}/{place[1]}"


def _turn_span(trace_data: SessionTrace, turn: Sequence[Entry], content: bool) -> Span:
    first, last = turn[0], turn[-1]
    ended = trace_data.moments.turns.get((first.branch, first.turn))
    span = Span(
        place=_turn_place(trace_data, (first.branch, first.turn)),
        name=telemetry.span_name("invoke_agent", trace_data.hide(trace_data.row.agent)),
        start=first.at,
        end=last.at,
        attributes={**trace_data.common("invoke_agent"), "oakleaf.turn": first.turn},
    )
    if content:
        inputs = [entry for entry in turn if entry.seq == entry.turn]
        answers = [last] if last.role == "assistant" and is_completed(turn) else []
        span.attributes.update(input_messages(inputs) | output_messages(answers))
    if ended is None:
        return span
    if ended.status == "completed":
        return replace(span, end=max(span.end, ended.at))
    return replace(span, end=max(span.end, ended.at), error=ended.status, message=ended.error)


def _session_span(trace_data: SessionTrace, content: bool) -> Span:
    row = trace_data.row
    seeds = [entry for entry in trace_data.entries.values() if _is_seed(trace_data, entry)]
    attributes: dict[str, Any] = {"oakleaf.relation": row.relation, "oakleaf.status": row.status}
    if content:
        attributes |= {"oakleaf.title": trace_data.hide(row.title), **instructions(seeds)}
    times = [entry.at for entry in trace_data.entries.values()]
    return Span(
        place=row.session_id,
        name=telemetry.span_name("session", trace_data.hide(row.agent)),
        start=row.started_at,
        end=max([row.started_at, row.completed_at or 0, *times]),
        attributes={**trace_data.common(), **without_none(attributes)},
        error="failed" if row.status == "failed" else None,
        message=trace_data.hide(row.error),
    )


def _is_seed(trace_data: SessionTrace, entry: Entry) -> bool:
    return not entry.turn and entry.seq <= trace_data.row.seed_count


# -- calls of models -------------------------------------------------------------------------------


def _model_spans(trace_data: SessionTrace, content: bool) -> Iterator[tuple[Place, Span]]:
    """Yield a span per ledger row, with the row's turn."""
    for call in trace_data.calls:
        answer = None if call.answer_seq is None else trace_data.entry(call.branch, call.answer_seq)
        before = trace_data.entry(call.branch, call.after_seq)
        near = answer or before
        place = (near.branch, near.turn) if near is not None else (0, 0)
        yield place, _model_span(trace_data, call, before, answer, content)


def _model_span(
    trace_data: SessionTrace, call: Call, before: Entry | None, answer: Entry | None, content: bool
) -> Span:
    start, end = _call_times(trace_data, call, before)
    error = _model_error(call)
    span = Span(
        place=f"{trace_data.row.session_id}/call/{call.call_id}",
        name=telemetry.span_name("chat", call.model),
        start=start,
        end=end,
        attributes={**trace_data.common("chat"), **without_none(_usage_attributes(call, answer))},
        kind=CLIENT,
        error=error,
    )
    if content:
        answers = [answer] if answer else []
        span.attributes.update(input_messages(_since(trace_data, call)) | output_messages(answers))
    return span


def _call_times(trace_data: SessionTrace, call: Call, before: Entry | None) -> Place:
    """Return when a call started and ended. The row of a side call, or of one without an end, holds its start."""
    if call.purpose != "answer":
        entry = trace_data.entries.get((call.branch, call.after_seq + 1))
        has_made = entry is not None and isinstance(entry.payload, Compaction)
        return call.at, max(call.at, entry.at) if entry is not None and has_made else call.at
    if call.answer_seq is None and not call.failed:
        return call.at, call.at
    return call_start(call, before.at if before is not None else None, trace_data.moments.models), call.at


def _model_error(call: Call) -> str | None:
    if call.failed:
        return "failed"
    return "unanswered" if call.answer_seq is None and call.purpose == "answer" else None


def _usage_attributes(call: Call, answer: Entry | None) -> dict[str, Any]:
    finish = answer.finish if answer is not None else "error" if _model_error(call) else None
    return {
        **telemetry.request_attributes(call.provider, call.model),
        "gen_ai.response.model": answer.model if answer is not None else None,
        **telemetry.answer_attributes(call, finish),
    }


def _since(trace_data: SessionTrace, call: Call) -> list[Entry]:
    """Return the messages since the previous answer; the full context would repeat in every span."""
    entries: list[Entry] = []
    seq = call.after_seq
    while (entry := trace_data.entry(call.branch, seq)) is not None and entry.role != "assistant":
        if not (entry.role == "system" and _is_seed(trace_data, entry)):  # the session's own instructions
            entries.append(entry)
        seq -= 1
    return entries[::-1]


# -- calls of tools --------------------------------------------------------------------------------


def _tool_spans(trace_data: SessionTrace, content: bool) -> Iterator[tuple[Place, Span]]:
    """Yield a span per tool call, answered or not; the calls of seeds were made elsewhere."""
    results = _results(trace_data)
    for place, entry in trace_data.entries.items():
        if entry.message is None or _is_seed(trace_data, entry):
            continue
        for index, call in enumerate(entry.message.calls):
            result = results.get((*place, index))
            yield (entry.branch, entry.turn), _tool_span(trace_data, entry, index, call, result, content)


def _tool_span(
    trace_data: SessionTrace,
    entry: Entry,
    index: int,
    call: ToolCall,
    answered: tuple[Entry, ToolResult] | None,
    content: bool,
) -> Span:
    start = trace_data.moments.tools.get((entry.branch, entry.seq, index), entry.at)
    result = None if answered is None else answered[1]
    attributes: dict[str, Any] = {
        **telemetry.tool_attributes(call.name, call.id),
        "oakleaf.outcome": "open" if result is None else result.outcome,
        "oakleaf.seq": entry.seq,
    }
    if content:
        written = (
            call.malformed if call.malformed is not None else to_json(call.arguments, call.name).decode()
        )
        attributes["gen_ai.tool.call.arguments"] = written
        attributes["gen_ai.tool.call.result"] = None if result is None else result_text(result)
    return Span(
        place=f"{trace_data.row.session_id}/{trace_data.lines[entry.branch]}/{entry.seq}/{index}",
        name=telemetry.span_name("execute_tool", call.name),
        start=start,
        end=start if answered is None else max(start, answered[0].at),
        attributes={**trace_data.common("execute_tool"), **without_none(attributes)},
        error=_tool_error(result),
    )


def _tool_error(result: ToolResult | None) -> str | None:
    if result is None:
        return None
    return result.outcome if result.outcome in _FATES else "tool_error" if result.error else None


def _results(trace_data: SessionTrace) -> dict[tuple[int, int, int], tuple[Entry, ToolResult]]:
    """Return the first result of each call, by branch and seq of the answer and the index of the call."""
    results: dict[tuple[int, int, int], tuple[Entry, ToolResult]] = {}
    waiting: list[tuple[str, tuple[int, int, int]]] = []
    behind: dict[Place, list[tuple[str, tuple[int, int, int]]]] = {}
    anchors = {place for place in trace_data.parents.values() if place is not None}
    branch = 0
    for place, entry in trace_data.entries.items():
        if entry.branch != branch:
            branch = entry.branch
            parent = trace_data.parents.get(branch)
            waiting = list(behind.get(parent, ())) if parent is not None else []
        message = entry.message
        if message is not None and message.calls:
            waiting = [(call.id, (*place, index)) for index, call in enumerate(message.calls)]
        for result in message.results if message is not None else ():
            named = next((one for one in waiting if one[0] == result.call_id), None)
            if named is not None:
                waiting.remove(named)
                results.setdefault(named[1], (entry, result))
        if place in anchors:
            behind[place] = list(waiting)
    return results
