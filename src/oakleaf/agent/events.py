"""Events of a session, and the result of a run.

Every fact of the journal is one event with the fact's number, so numbers have no gap; deltas, retries and warnings are
live only and have none. The names are the same in Python and over HTTP. After a lost connection, read the journal
from the last number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self, get_args

from msgspec import Struct, to_builtins

from oakleaf.agent.limits import LIMIT_CODE
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.facts import (
    AnyFact,
    Appended,
    ApprovalRequested,
    Approved,
    CancelRequested,
    Denied,
    Enqueued,
    Labelled,
    LeftStatus,
    ModelCallDropped,
    ModelCallFailed,
    ModelCallStarted,
    Moved,
    RunnerEnded,
    SessionEnded,
    Started,
    StoredFact,
    Tagged,
    TaskDecided,
    TaskStarted,
    TaskWaits,
    Titled,
    ToolCallsStarted,
    TurnEnded,
    TurnLeft,
    TurnRefused,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.messages import Message
from oakleaf.core.usage import Totals
from oakleaf.errors import TurnFailed, TurnLimit

LiveEventType = Literal[
    "session:delta", "session:draft", "session:retry", "session:limit_passed", "session:warning"
]
FactEventType = Literal[
    "session:started",
    "session:input",
    "session:turn_started",
    "session:turn_resumed",
    "session:answer",
    "session:tool_result",
    "session:compacted",
    "session:note",
    "session:settings",
    "session:appended",
    "session:call_started",
    "session:call_failed",
    "session:call_dropped",
    "session:calls_started",
    "session:approval_requested",
    "session:approved",
    "session:denied",
    "session:waiting",
    "session:task_started",
    "session:task_decided",
    "session:enqueued",
    "session:cancel_requested",
    "session:interrupted",
    "session:moved",
    "session:titled",
    "session:tagged",
    "session:labelled",
    "session:ended",
    "session:recorded",
    "session:turn_completed",
]
EventType = FactEventType | LiveEventType
FACT_EVENT_TYPES: tuple[FactEventType, ...] = get_args(FactEventType)
RunStatus = Literal["completed", "waiting", "failed", "cancelled", "interrupted", "stopped", "idle"]


class Event(Struct, frozen=True, omit_defaults=True):
    """One event of a session; the type names the fields of `data`.

    | type | data |
    |---|---|
    | session:started | session_id, conversation_id, agent, title, workspace, as far as known |
    | session:input, session:turn_started | seq, text |
    | session:delta | text, reasoning |
    | session:draft | text, reasoning: the whole answer in flight so far, in place of the one before; empty if none is |
    | session:answer | seq, text, calls (call_id, name, arguments of each), finish |
    | session:tool_result | seq and index of the call, call_id, name, arguments, content, error, outcome |
    | session:approval_requested | seq and index of the call, call_id, name, arguments; of a task: session_id, task_of; earlier: the same call on a path that was left, with its result |
    | session:retry | model, why, seconds |
    | session:compacted | summary, first_kept, tokens_before, shortened (how many results), limit (tokens) |
    | session:limit_passed | code, limit (cost), message: the limit was passed, as on_exceed says |
    | session:warning | code, message, session_id, call_id, name; code turn_limit_near: the last turns before the cap |
    | session:turn_completed | stop_reason; error (code, message) if it failed; at a limit also limit (turns, rounds, cost) |
    | any other | the data of its fact |
    """

    type: EventType
    data: dict[str, Any] = {}
    journal_number: int | None = None
    """The number of the journal fact; None: live only."""


Emit = Callable[[Event], None]
"""Called by a run with each event, at once."""


class StopRun(BaseException):
    """Raised to end a run early, by `Emit` or by a run asked to stop. What is durable stays, and another run
    continues."""


def ignore(event: Event) -> None:
    """Ignore an event."""


BROKEN_FINISHES = ("interrupted", "cancelled", "error")
_TYPES: dict[type, FactEventType] = {
    Started: "session:started",
    Moved: "session:moved",
    TurnStarted: "session:turn_started",
    TurnResumed: "session:turn_resumed",
    TurnEnded: "session:turn_completed",
    TurnRefused: "session:turn_completed",
    RunnerEnded: "session:interrupted",
    ModelCallStarted: "session:call_started",
    ModelCallFailed: "session:call_failed",
    ModelCallDropped: "session:call_dropped",
    ToolCallsStarted: "session:calls_started",
    ApprovalRequested: "session:approval_requested",
    TaskWaits: "session:approval_requested",
    Approved: "session:approved",
    Denied: "session:denied",
    TaskStarted: "session:task_started",
    TaskDecided: "session:task_decided",
    Enqueued: "session:enqueued",
    CancelRequested: "session:cancel_requested",
    Titled: "session:titled",
    Tagged: "session:tagged",
    Labelled: "session:labelled",
    SessionEnded: "session:ended",
}
_LEFT: dict[LeftStatus, FactEventType] = {
    "waiting": "session:waiting",
    "interrupted": "session:interrupted",
    "failed": "session:turn_completed",
    "cancelled": "session:turn_completed",
}
_ENTRIES: dict[str, FactEventType] = {
    "user": "session:input",
    "assistant": "session:answer",
    "tool": "session:tool_result",
    "compaction": "session:compacted",
    "note": "session:note",
    "settings": "session:settings",
}


def fact_event(stored: StoredFact, entries: Sequence[Entry]) -> Event:
    """Return the event of a fact; `entries` come from the fact's change."""
    entries = _without_settings(entries)
    fact = stored.fact
    type_ = _event_type(fact, entries)
    if type_ in ("session:input", "session:answer") and len(entries) == 1:
        message = entries[0].message
        assert message is not None
        data = {"seq": entries[0].seq, "text": message.text}
        data |= answer_data(message, entries[0].finish) if type_ == "session:answer" else {}
    elif type_ == "session:turn_completed":
        data = _completion(fact)
    else:
        data = stored.view
    return Event(type_, data, stored.number)


def _completion(fact: AnyFact) -> dict[str, Any]:
    match fact:
        case TurnRefused(error=refusal):
            return {"stop_reason": "error", "error": to_builtins(refusal)}
        case TurnEnded(error=str(why)) | TurnLeft(error=str(why)):
            return {"stop_reason": "error", "error": {"code": "turn_failed", "message": why}}
        case TurnEnded(status=status) | TurnLeft(status=status):
            return {"stop_reason": status}
    return {}


def fact_event_type(stored: StoredFact, entries: Sequence[Entry]) -> FactEventType:
    return _event_type(stored.fact, entries)


def _event_type(fact: AnyFact, entries: Sequence[Entry]) -> FactEventType:
    if isinstance(fact, Appended):
        named = (entry.role or entry.kind for entry in _without_settings(entries))
        types = {_ENTRIES.get(name, "session:appended") for name in named}
        return types.pop() if len(types) == 1 else "session:appended"
    if isinstance(fact, TurnLeft):
        return _LEFT[fact.status]
    return _TYPES.get(type(fact), "session:recorded")


def _without_settings(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Leave out the settings appended with an input: the event belongs to the input."""
    return [entry for entry in entries if not isinstance(entry.payload, Settings)] or entries


def answer_data(message: Message, finish: str | None) -> dict[str, Any]:
    """Return the event data of an answer beside seq and text."""
    calls = [{"call_id": call.id, "name": call.name, "arguments": call.arguments} for call in message.calls]
    return {"calls": calls, "finish": finish}


def is_whole_answer(event: Event) -> bool:
    """Whether the event is a model's whole answer: not an interrupted answer, nor the closing remark of a
    turn."""
    return event.type == "session:answer" and event.data.get("finish", "error") not in BROKEN_FINISHES


class RunError(Struct, frozen=True):
    """The reason of a failed or stopped run."""

    code: str
    message: str
    limit: str | None = None
    """The limit that was reached: turns, rounds or cost."""


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    session_id: str
    answer: str | None = None
    """The final answer's text; None if there is none."""
    status: RunStatus
    """completed: the turn has its answer. waiting: a person must approve a call. failed: no model answered. stopped: a limit
    was reached. cancelled. interrupted: `Run.stop()` left the turn to another run. idle: there was nothing to resume."""
    usage: Totals = Totals()
    """The cost of this run's model calls, without the tasks."""
    error: RunError | None = None
    events: tuple[Event, ...] = ()

    @property
    def text(self) -> str:
        """The final answer's text. Raises `TurnFailed` if the turn failed; empty if it waits, was cancelled
        or had nothing to resume."""
        if self.answer is None and self.status == "failed":
            self.raise_for_status()
        return self.answer or ""

    def raise_for_status(self) -> Self:
        """Raise `TurnLimit` or `TurnFailed` unless the turn is completed, or there was nothing to resume."""
        if self.status in ("completed", "idle"):
            return self
        reason = _REASONS.get(self.status, self.status) if self.error is None else self.error.message
        if self.status == "stopped":
            limit = (self.error and self.error.limit) or "turns"
            raise TurnLimit(self.session_id, reason, limit=limit, result=self)
        raise TurnFailed(self.session_id, reason, _NEXT[self.status], self.status)


_REASONS = {
    "waiting": "a tool call waits for a person",
    "cancelled": "it was cancelled",
    "interrupted": "its run was stopped",
}
_NEXT = {
    "failed": "continue it with session.resume(…)",
    "waiting": "decide with session.approve(call), then session.resume(…)",
    "cancelled": "send the next input",
    "interrupted": "continue it with session.resume(…)",
}


def run_result(session_id: str, events: Iterable[Event], usage: Totals) -> RunResult:
    """Return the result of an ended run from the events."""
    events = tuple(events)
    text, stop_reason, error = None, None, None
    for event in events:
        if event.type == "session:turn_started":
            text, stop_reason, error = None, None, None
        elif is_whole_answer(event) and not event.data["calls"]:
            text = event.data["text"]
        elif event.type == "session:turn_completed":
            stop_reason = event.data["stop_reason"]
            data = event.data.get("error")
            error = None if data is None else RunError(data["code"], data["message"], data.get("limit"))
    return RunResult(
        session_id=session_id,
        answer=text,
        status=_status(stop_reason, error),
        usage=usage,
        error=error,
        events=events,
    )


def _status(stop_reason: str | None, error: RunError | None) -> RunStatus:
    if stop_reason is None:
        return "waiting"
    if error is not None:
        return "stopped" if error.code == LIMIT_CODE else "failed"
    if stop_reason == "cancelled":
        return "cancelled"
    if stop_reason == "interrupted":
        return "interrupted"
    return "idle" if stop_reason in ("nothing to resume", "empty") else "completed"
