"""Tool calls without results: their state, and pending approvals of a session and its tasks. Does not run anything."""

from __future__ import annotations

from typing import Any

from oakleaf.core.turns import OpenCall
from oakleaf.ext import CallStatus, EarlierCall, read
from oakleaf.session import Session
from oakleaf.verbs.views import earlier_view
from oakleaf_server.json_views import to_json
from oakleaf_server.schemas import Json
from oakleaf_server.truncate import truncate_value

MAX_CALLS = 200


def open_call_views(session: Session, status: CallStatus) -> list[Json]:
    """Return the calls without results with the state of each."""
    row = session.row
    is_driven = row.status == "running" and read(session).is_held()
    return [
        {**_call_view(call), "state": _state(status, (call.seq, call.index), is_driven)}
        for call in session.open_tool_calls[:MAX_CALLS]
    ]


def pending_approvals(session: Session, status: CallStatus) -> list[Json]:
    """Return the session's own pending approvals and the tasks' approvals, each with the call at the task's start."""
    approvals: list[Json] = []
    for call in session.open_tool_calls:
        position = (call.seq, call.index)
        parent_call = {"seq": call.seq, "index": call.index}
        for task_call in status.task_approvals.get(position, ()):
            approvals.append(
                {
                    "session_id": task_call.session_id,
                    **_call_view(task_call),
                    "parent_call": parent_call,
                    "decided_elsewhere": task_call.decided_elsewhere,
                    "earlier": _earlier_view(task_call.earlier),
                }
            )
        if position in status.approval_requested - status.decided:
            view = {"session_id": session.session_id, **_call_view(call), "parent_call": None}
            view["decided_elsewhere"] = status.decided_elsewhere.get(position)
            approvals.append({**view, "earlier": _earlier_view(status.earlier.get(position))})
    return approvals[:MAX_CALLS]


def _state(status: CallStatus, position: tuple[int, int], is_driven: bool) -> str:
    if position in status.trashed_tasks:
        return "task_in_trash"
    if position in status.task_approvals:
        return "waits_for_task"
    if position in status.started:
        state = "task_decided" if position in status.decided_tasks else "unknown"
        return "running" if is_driven else state
    if position in status.denied:
        return "denied"
    if position in status.approved:
        return "approved"
    if position in status.approval_requested:
        return "waits_for_approval"
    if position in status.unaccepted:
        return "not_accepted"
    return "not_started" if status.has_recorded_starts else "no_start_recorded"


def _call_view(call: OpenCall) -> Json:
    arguments, omitted = truncate_value(to_json(call.call.arguments), 20_000)
    view: dict[str, Any] = {
        "seq": call.seq,
        "index": call.index,
        "id": call.call.id,
        "name": call.call.name,
        "arguments": arguments,
    }
    return {**view, "omitted_chars": omitted} if omitted else view


def left_behind_views(session: Session) -> list[Json]:
    """Return the calls left behind by the session's path, in the form of approvals."""
    return [view for call in session.left_behind() if (view := _earlier_view(call)) is not None]


def _earlier_view(call: EarlierCall | None) -> Json | None:
    """Return a call on an abandoned path, and the result; both cut to readable length."""
    if call is None:
        return None
    view, omitted = truncate_value(to_json(earlier_view(call)), 4_000)
    return {**view, "omitted_chars": omitted} if omitted else view
