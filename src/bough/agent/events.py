"""Events of a run, and its result.

Durable events carry the number of the journal's latest fact; deltas are live only and carry none. After a lost
connection, read the journal from the last number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from ..core.usage import Totals
from .limits import LIMIT_CODE

EventType = Literal[
    "session:started",
    "session:turn_started",
    "session:delta",
    "session:answer",
    "session:tool_result",
    "session:approval_requested",
    "session:retry",
    "session:compacted",
    "session:limit_passed",
    "session:warning",
    "session:turn_completed",
]
RunStatus = Literal["completed", "waiting", "failed", "cancelled", "stopped", "idle"]


class Event(Struct, frozen=True, omit_defaults=True):
    """One thing that happened in a run; `data` carries what the type names.

    | type | data |
    |---|---|
    | session:started | session_id, conversation_id, agent, title, workspace, as far as known |
    | session:turn_started | seq, text |
    | session:delta | text, reasoning |
    | session:answer | seq, text, calls (call_id, name, arguments of each) |
    | session:tool_result | seq and index of the call, call_id, name, arguments, content, error, outcome |
    | session:approval_requested | seq and index of the call, call_id, name, arguments; of a task: session_id, task_of |
    | session:retry | model, why, seconds |
    | session:compacted | summary, first_kept, tokens_before |
    | session:limit_passed | code, limit (cost), message |
    | session:warning | code, message, session_id, call_id, name |
    | session:turn_completed | stop_reason; error (code, message) if it failed; at a limit also limit (turns, rounds, cost) |
    """

    type: EventType
    data: dict[str, Any] = {}
    journal_number: int | None = None
    """The number of the journal fact that makes it durable; None: live only."""


class RunError(Struct, frozen=True):
    """Why a run failed or was stopped."""

    code: str
    message: str


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    text: str = ""
    """The final answer's text; empty if there is none."""
    status: RunStatus
    """completed: the turn has its answer. waiting: a person must approve a call. failed: no model answered. stopped: a limit
    was reached. cancelled. idle: there was nothing to resume."""
    usage: Totals = Totals()
    """What the model calls of this run cost, its tasks not included."""
    error: RunError | None = None
    events: tuple[Event, ...] = ()


def run_result(events: Iterable[Event], usage: Totals) -> RunResult:
    """Return the result of a run that has ended, from its events."""
    events = tuple(events)
    text, stop_reason, error = "", None, None
    for event in events:
        if event.type == "session:turn_started":
            text, stop_reason, error = "", None, None
        elif event.type == "session:answer" and not event.data["calls"]:
            text = event.data["text"]
        elif event.type == "session:turn_completed":
            stop_reason = event.data["stop_reason"]
            data = event.data.get("error")
            error = None if data is None else RunError(data["code"], data["message"])
    return RunResult(text=text, status=_status(stop_reason, error), usage=usage, error=error, events=events)


def _status(stop_reason: str | None, error: RunError | None) -> RunStatus:
    if stop_reason is None:
        return "waiting"
    if error is not None:
        return "stopped" if error.code == LIMIT_CODE else "failed"
    if stop_reason == "cancelled":
        return "cancelled"
    return "idle" if stop_reason in ("nothing to resume", "empty") else "completed"
