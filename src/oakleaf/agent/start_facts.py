"""The data recorded when a session, a turn or a run of a turn starts: trigger, policy, model and tools.

What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oakleaf.core.codec import from_json
from oakleaf.log.log import Log
from oakleaf.models.base import Model
from oakleaf.stores.base import SessionDetail, SessionRow

FIRST_FACT = 1
"""The number of a journal's first fact: that the session was started."""


def turn_start_data(row: SessionRow, detail: SessionDetail | None) -> dict[str, Any]:
    """Return the data of a turn's start that is stored with the session: context window, policy, and the trigger that
    the session was started with, for its first turn."""
    policy = None if detail is None else detail.policy
    trigger = _without_empty(type=row.trigger_type, id=row.trigger_id)
    return _without_empty(
        trigger=None if row.turns else trigger,
        context_window=row.context_window,
        policy=None if policy is None else from_json(policy),
    )


def queued_turn_data(log: Log) -> dict[str, Any]:
    """Return the data of a turn that a worker will run: the session's model and tools. The worker adds its own later."""
    row, detail = log.store.session_with_detail(log.session_id)
    own = _without_empty(model=row.model, tool_names=list(row.tool_names))
    return {**turn_start_data(row, detail), **own}


def runner_data(models: Sequence[Model], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the data of the process that runs or resumes a turn, which may have another model.

    Its tools are not repeated here: the settings on the path name them.
    """
    model = models[0].model if models else None
    return _without_empty(model=model, options=options)


def session_data(row: SessionRow, detail: SessionDetail | None) -> dict[str, Any]:
    """Return the session's ids and the workspace it runs against."""
    workspace = None if detail is None else detail.workspace
    return _without_empty(
        session_id=row.session_id,
        conversation_id=row.conversation_id,
        agent=row.agent,
        title=row.title,
        workspace=None if workspace is None else from_json(workspace),
    )


def is_one_shot_turn(log: Log) -> bool:
    """Whether the open turn was sent as the only one of its session."""
    return bool(_turn_start(log).get("one_shot"))


def turn_limits(log: Log) -> dict[str, Any] | None:
    """Return the limits that the open turn was sent with."""
    return _turn_start(log).get("limits")


def _turn_start(log: Log) -> dict[str, Any]:
    """Return the data that the open turn was started with."""
    for fact in log.facts_backwards():
        if fact.kind == "turn_started":
            return fact.data if fact.data["turn"] == log.cursor.turn else {}
    return {}


def _without_empty(**data: Any) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value not in (None, {}, [])}
