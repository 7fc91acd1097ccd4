"""What is told of a session and of a turn when they start: by whom, where, with which model, tools and policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..core.codec import from_json
from ..log.log import Log
from ..models.model import Model
from .limits import Limits

FIRST_FACT = 1
"""The number of a journal's first fact: that the session was started."""


def turn_start_data(
    log: Log, models: Sequence[Model], tool_names: Iterable[str], limits: Limits
) -> dict[str, Any]:
    """By whoever runs it. What is not known is left out."""
    return {**_about_row(log), **runner_data(models, tool_names, limits)}


def queued_turn_data(log: Log) -> dict[str, Any]:
    """By whoever has somebody else run it: the session's own model and tools; who takes it up tells of his."""
    row = log.store.session(log.session_id)
    return _known(**_about_row(log), model=row.model, tool_names=list(row.tool_names))


def runner_data(models: Sequence[Model], tool_names: Iterable[str], limits: Limits) -> dict[str, Any]:
    """What is told by a process that goes on with a turn: it may have another model and other tools."""
    model = models[0].model if models else None
    return _known(model=model, tool_names=list(tool_names), max_messages=limits.max_messages)


def _about_row(log: Log) -> dict[str, Any]:
    row, detail = log.store.session_with_detail(log.session_id)
    policy = detail.policy
    return _known(
        trigger=_known(type=row.trigger_type, id=row.trigger_id),
        context_window=row.context_window,
        policy=None if policy is None else from_json(policy),
    )


def _known(**found: Any) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value not in (None, {}, [])}


def session_data(log: Log) -> dict[str, Any]:
    """Who it is and the workspace it runs against, as they were given. What is not known is left out."""
    row, detail = log.store.session_with_detail(log.session_id)
    workspace = detail.workspace
    found = {
        "session_id": row.session_id,
        "conversation_id": row.conversation_id,
        "agent": row.agent,
        "title": row.title,
        "workspace": None if workspace is None else from_json(workspace),
    }
    return {name: value for name, value in found.items() if value is not None}


def is_one_shot_turn(log: Log) -> bool:
    """Whether the turn that is open was sent as the only one."""
    for fact in reversed(log.store.journal(log.session_id)):
        if fact.kind == "turn_started":
            return fact.data["turn"] == log.cursor.turn and bool(fact.data.get("one_shot"))
    return False
