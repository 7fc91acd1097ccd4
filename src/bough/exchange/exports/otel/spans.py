"""A session as the spans of one trace: the session, its turns, and in each its calls of models and of tools.

Knows the GenAI semantic conventions of OpenTelemetry (`gen_ai.*`), and what of a session answers to them. Does not know
how spans are written (`otlp`). Spans tell what the session itself did, branches it left included, and nothing it shares
with the session it was forked from: that is in the other's trace, and would be counted twice. Names, kinds and
attributes hold no content, unless that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ....core.codec import to_json
from ....core.entries import Compaction, Entry
from ....core.messages import ToolCall, ToolResult
from ....core.redact import Redactor
from ....core.tree import Branch
from ....core.turns import is_completed
from ....core.usage import Call
from ....log.log import Log
from ....stores.base import SessionQuery, SessionRow
from ..path_reader import redact_entries
from ..timeline import Timeline, began, build_timeline
from .content import given, instructions, said, text_of

INTERNAL, CLIENT = 1, 3
_PROVIDERS = {"openai-chat": "openai", "gemini": "gcp.gemini"}
"""Our names where the conventions have another one."""
_FATES = frozenset(["denied", "interrupted", "unknown", "not_recorded"])
"""Outcomes of a tool call that are errors. A dry run did what was asked of it."""

Place = tuple[int, int]


class Span(Struct, frozen=True):
    """One thing that took time, and what happened within it."""

    place: str
    """Where it stands, by the session's id and numbers that are the same in every store; its id is made of that."""
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
        """The same, as long as what is within it: clocks of several hosts need not agree."""
        held = (*self.inner, *inner)
        start = min([self.start, *(span.start for span in held)])
        end = max([start, self.end, *(span.end for span in held)])
        ordered = tuple(sorted(held, key=lambda span: (span.start, span.place)))
        return replace(self, start=start, end=end, inner=ordered)


class Story(Struct, frozen=True):
    """All that is read of one session to tell it."""

    row: SessionRow
    lines: dict[int, int]
    """Its own branches, by which of them it is: a store's numbers are not another's."""
    parents: dict[int, Place | None]
    entries: dict[Place, Entry]
    calls: list[Call]
    moments: Timeline
    redactor: Redactor | None

    def hide(self, text: str | None) -> str | None:
        return text if text is None or self.redactor is None else self.redactor.redact_text(text)

    def entry(self, branch: int, seq: int) -> Entry | None:
        """What stands there on that branch, or on the own ones it hangs on."""
        while (found := self.entries.get((branch, seq))) is None:
            parent = self.parents.get(branch)
            if parent is None or seq > parent[1]:
                return None
            branch = parent[0]
        return found

    def common(self, operation: str | None = None) -> dict[str, Any]:
        told = {"gen_ai.operation.name": operation, "gen_ai.conversation.id": self.row.session_id}
        return _known({**told, "gen_ai.agent.name": self.hide(self.row.agent)})


def session_span(log: Log, *, content: bool, children: bool, redactor: Redactor | None) -> Span:
    """The whole session, with its tasks below the calls that started them; the deepest are told first."""
    logs = _family(log) if children else [log]
    within: dict[str, list[Span]] = {}
    span = None
    for one in reversed(logs):
        story = _read(one, redactor)
        span = _told(story, within.pop(one.session_id, ()), content)
        within.setdefault(story.row.parent_session or "", []).append(span)
    assert span is not None
    return span


def _family(log: Log) -> list[Log]:
    """It and its tasks and theirs; a ring of parents, which only a forged store holds, is walked once."""
    known, waiting = {log.session_id}, [log]
    for one in waiting:
        query = SessionQuery(parent_session=one.session_id, relation="task", limit=100_000)
        for row in log.store.sessions(query).sessions:
            if row.session_id not in known:
                known.add(row.session_id)
                waiting.append(Log(log.store, row, log.runtime))
    return waiting


def _told(story: Story, tasks: Iterable[Span], content: bool) -> Span:
    within: dict[str, list[Span]] = {}
    for task in tasks:
        within.setdefault(_asked_by(story, task.place), []).append(task)
    loose: dict[Place, list[Span]] = {}
    for place, span in [*_tool_spans(story, content), *_model_spans(story, content)]:
        loose.setdefault(place, []).append(span.around(within.pop(span.place, ())))
    turns = []
    for place, turn in _turns(story).items():
        span = _turn_span(story, turn, content)
        turns.append(span.around([*loose.pop(place, ()), *within.pop(span.place, ())]))
    rest = [span for spans in [*loose.values(), *within.values()] for span in spans]
    return _whole(story, content).around([*turns, *rest])


def _read(log: Log, redactor: Redactor | None) -> Story:
    """The entries first: whoever writes meanwhile adds to what is read after them, and it is not missed there."""
    store, session_id = log.store, log.session_id
    opened = (one.entry.to_entry(one.branch) for one in store.entries(session_id))
    entries = {(entry.branch, entry.seq): entry for entry in redact_entries(opened, redactor)}
    own = [branch for branch in store.branches(session_id) if branch.session_id == session_id]
    calls = store.calls(session_id)
    return Story(
        row=store.session(session_id),
        lines={name: number for number, name in enumerate(sorted(one.branch for one in own), 1)},
        parents={branch.branch: _parent(branch) for branch in own},
        entries=entries,
        calls=calls,
        moments=build_timeline(store.journal(session_id), calls, redactor),
        redactor=redactor,
    )


def _parent(branch: Branch) -> Place | None:
    return None if branch.parent is None else (branch.parent, branch.parent_seq)


def _asked_by(story: Story, child_id: str) -> str:
    """The place of the call, or of the turn, a task was started from; empty if that is not told."""
    task = story.moments.tasks.get(child_id)
    if task is None:
        return ""
    if task.key is not None:
        return f"{story.row.session_id}/{task.key.rpartition('/')[0]}"
    entry = story.entry(task.branch, task.seq)
    return _turn_place(story, (entry.branch, entry.turn)) if entry is not None else ""


# -- turns -----------------------------------------------------------------------------------------


def _turns(story: Story) -> dict[Place, list[Entry]]:
    """By branch and turn: what a branch holds of a turn that was begun on another is told as a turn of its own."""
    found: dict[Place, list[Entry]] = {}
    for entry in story.entries.values():
        if entry.turn:
            found.setdefault((entry.branch, entry.turn), []).append(entry)
    return found


def _turn_place(story: Story, place: Place) -> str:
    return f"{story.row.session_id}/{story.lines[place[0]]}/{place[1]}"


def _turn_span(story: Story, turn: Sequence[Entry], content: bool) -> Span:
    first, last = turn[0], turn[-1]
    ended = story.moments.turns.get((first.branch, first.turn))
    span = Span(
        place=_turn_place(story, (first.branch, first.turn)),
        name=_named("invoke_agent", story.hide(story.row.agent)),
        start=first.at,
        end=last.at,
        attributes={**story.common("invoke_agent"), "bough.turn": first.turn},
    )
    if content:
        inputs = [entry for entry in turn if entry.seq == entry.turn]
        answers = [last] if last.role == "assistant" and is_completed(turn) else []
        span.attributes.update(_known({**given(inputs), **said(answers)}))
    if ended is None:
        return span
    if ended.status == "completed":
        return replace(span, end=max(span.end, ended.at))
    return replace(span, end=max(span.end, ended.at), error=ended.status, message=ended.error)


def _whole(story: Story, content: bool) -> Span:
    row = story.row
    seeds = [entry for entry in story.entries.values() if _is_seed(story, entry)]
    told: dict[str, Any] = {"bough.relation": row.relation, "bough.status": row.status}
    if content:
        told |= {"bough.title": story.hide(row.title), **instructions(seeds)}
    times = [entry.at for entry in story.entries.values()]
    return Span(
        place=row.session_id,
        name=_named("session", story.hide(row.agent)),
        start=row.started_at,
        end=max([row.started_at, row.completed_at or 0, *times]),
        attributes={**story.common(), **_known(told)},
        error="failed" if row.status == "failed" else None,
        message=story.hide(row.error),
    )


def _is_seed(story: Story, entry: Entry) -> bool:
    return not entry.turn and entry.seq <= story.row.seed_count


# -- calls of models -------------------------------------------------------------------------------


def _model_spans(story: Story, content: bool) -> Iterator[tuple[Place, Span]]:
    """One for each row of the ledger, whatever became of it, with the turn it belongs to."""
    for call in story.calls:
        answer = None if call.answer_seq is None else story.entry(call.branch, call.answer_seq)
        asked = story.entry(call.branch, call.after_seq)
        near = answer or asked
        place = (near.branch, near.turn) if near is not None else (0, 0)
        yield place, _model_span(story, call, asked, answer, content)


def _model_span(story: Story, call: Call, asked: Entry | None, answer: Entry | None, content: bool) -> Span:
    start, end = _took(story, call, asked)
    error = _model_error(call)
    span = Span(
        place=f"{story.row.session_id}/call/{call.call_id}",
        name=_named("chat", call.model),
        start=start,
        end=end,
        attributes={**story.common("chat"), **_known(_spent(call, answer))},
        kind=CLIENT,
        error=error,
    )
    if content:
        span.attributes.update(_known({**given(_since(story, call)), **said([answer] if answer else [])}))
    return span


def _took(story: Story, call: Call, asked: Entry | None) -> Place:
    """When a call began and ended. The row of a side call, or of one without an end, bears the time it began."""
    if call.purpose != "answer":
        made = story.entries.get((call.branch, call.after_seq + 1))
        has_made = made is not None and isinstance(made.payload, Compaction)
        return call.at, max(call.at, made.at) if made is not None and has_made else call.at
    if call.answer_seq is None and not call.failed:
        return call.at, call.at
    return began(call, asked.at if asked is not None else None, story.moments.models), call.at


def _model_error(call: Call) -> str | None:
    if call.failed:
        return "failed"
    return "unanswered" if call.answer_seq is None and call.purpose == "answer" else None


def _spent(call: Call, answer: Entry | None) -> dict[str, Any]:
    finish = answer.finish if answer is not None else "error" if _model_error(call) else None
    return {
        "gen_ai.provider.name": _PROVIDERS.get(call.provider or "", call.provider) or "unknown",
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": answer.model if answer is not None else None,
        "gen_ai.response.finish_reasons": [finish] if finish is not None else None,
        "gen_ai.usage.input_tokens": call.usage.input_tokens,
        "gen_ai.usage.output_tokens": call.usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.usage.cache_read_tokens,
        "gen_ai.usage.cache_write.input_tokens": call.usage.cache_write_tokens,
        "bough.cost_microcents": call.price.microcents if call.price is not None else None,
        "bough.purpose": call.purpose,
        "bough.bucket": call.bucket,
        "bough.seq": call.answer_seq,
    }


def _since(story: Story, call: Call) -> list[Entry]:
    """What was new to the model: the messages behind the answer before. All it was given would be told again and again."""
    found: list[Entry] = []
    seq = call.after_seq
    while (entry := story.entry(call.branch, seq)) is not None and entry.role != "assistant":
        if not (entry.role == "system" and _is_seed(story, entry)):  # the session's own instructions
            found.append(entry)
        seq -= 1
    return found[::-1]


# -- calls of tools --------------------------------------------------------------------------------


def _tool_spans(story: Story, content: bool) -> Iterator[tuple[Place, Span]]:
    """One for each call a model asked for, answered or not; those of seeds were made elsewhere, if ever."""
    results = _results(story)
    for place, entry in story.entries.items():
        if entry.message is None or _is_seed(story, entry):
            continue
        for index, call in enumerate(entry.message.calls):
            found = results.get((*place, index))
            yield (entry.branch, entry.turn), _tool_span(story, entry, index, call, found, content)


def _tool_span(
    story: Story,
    entry: Entry,
    index: int,
    call: ToolCall,
    found: tuple[Entry, ToolResult] | None,
    content: bool,
) -> Span:
    start = story.moments.tools.get((entry.branch, entry.seq, index), entry.at)
    result = None if found is None else found[1]
    told: dict[str, Any] = {
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
        "bough.outcome": "open" if result is None else result.outcome,
        "bough.seq": entry.seq,
    }
    if content:
        written = (
            call.malformed if call.malformed is not None else to_json(call.arguments, call.name).decode()
        )
        told["gen_ai.tool.call.arguments"] = written
        told["gen_ai.tool.call.result"] = None if result is None else text_of(result)
    return Span(
        place=f"{story.row.session_id}/{story.lines[entry.branch]}/{entry.seq}/{index}",
        name=_named("execute_tool", call.name),
        start=start,
        end=start if found is None else max(start, found[0].at),
        attributes={**story.common("execute_tool"), **_known(told)},
        error=_tool_error(result),
    )


def _tool_error(result: ToolResult | None) -> str | None:
    if result is None:
        return None
    return result.outcome if result.outcome in _FATES else "tool_error" if result.error else None


def _results(story: Story) -> dict[tuple[int, int, int], tuple[Entry, ToolResult]]:
    """The first result of each call, by branch and seq of the answer and the index of the call."""
    found: dict[tuple[int, int, int], tuple[Entry, ToolResult]] = {}
    waiting: list[tuple[str, tuple[int, int, int]]] = []
    behind: dict[Place, list[tuple[str, tuple[int, int, int]]]] = {}
    anchors = {place for place in story.parents.values() if place is not None}
    branch = 0
    for place, entry in story.entries.items():
        if entry.branch != branch:
            branch = entry.branch
            parent = story.parents.get(branch)
            waiting = list(behind.get(parent, ())) if parent is not None else []
        message = entry.message
        if message is not None and message.calls:
            waiting = [(call.id, (*place, index)) for index, call in enumerate(message.calls)]
        for result in message.results if message is not None else ():
            named = next((one for one in waiting if one[0] == result.call_id), None)
            if named is not None:
                waiting.remove(named)
                found.setdefault(named[1], (entry, result))
        if place in anchors:
            behind[place] = list(waiting)
    return found


def _named(operation: str, what: str | None) -> str:
    return f"{operation} {what}" if what else operation


def _known(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None}
