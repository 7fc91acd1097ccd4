"""Calls without results: how far each is, and what a person is asked about, here and in tasks.

Knows what is told of them, and which session goes on when there was a word. Does not drive any.
"""

from __future__ import annotations

from typing import Any

from ..agent.call_status import CallPosition, CallStatus, ancestors, read_call_status
from ..core.turns import OpenCall
from ..session import Session
from .json_views import to_json
from .schemas import Json
from .truncate import truncate_value

MOST = 200


def open_call_views(session: Session, known: CallStatus) -> list[Json]:
    """The calls without results, and how far each is."""
    row = session.row
    is_driven = row.status == "running" and row.holder is not None
    return [
        {**_told(call), "state": _state(known, (call.seq, call.index), is_driven)}
        for call in session.open_tool_calls[:MOST]
    ]


def pending_approvals(session: Session, known: CallStatus) -> list[Json]:
    """What a person is asked about: its own calls, and those of tasks, which name the call that had started them."""
    found: list[Json] = []
    for call in session.open_tool_calls:
        place = (call.seq, call.index)
        task_of = {"seq": call.seq, "index": call.index}
        for asked in known.task_approvals.get(place, ()):
            found.append({"session_id": asked.session_id, **_told(asked), "parent_call": task_of})
        if place in known.approval_requested - known.decided:
            found.append({"session_id": session.session_id, **_told(call), "parent_call": None})
    return found[:MOST]


def _state(known: CallStatus, place: CallPosition, is_driven: bool) -> str:
    if place in known.trashed_tasks:
        return "task_in_trash"
    if place in known.task_approvals:
        return "waits_for_task"
    if place in known.started:
        left = "task_decided" if place in known.decided_tasks else "unknown"
        return "running" if is_driven else left
    if place in known.denied:
        return "denied"
    if place in known.approved:
        return "approved"
    return "waits_for_approval" if place in known.approval_requested else "not_started"


def _told(call: OpenCall) -> Json:
    arguments, cut = truncate_value(to_json(call.call.arguments), 20_000)
    told: dict[str, Any] = {
        "seq": call.seq,
        "index": call.index,
        "id": call.call.id,
        "name": call.call.name,
        "arguments": arguments,
    }
    return {**told, "omitted_chars": cut} if cut else told


def session_to_resume(session: Session) -> Session:
    """Who is resumed after a word: a task by the session that waits for it, the topmost if there are several."""
    found = session
    for parent in ancestors(session.log):
        if found.session_id not in read_call_status(parent).tasks:
            break  # it was left behind, and nobody would hear of its answer
        found = Session(parent)
    return found
