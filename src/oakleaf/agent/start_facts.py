"""The values recorded when a session, a turn or a run of a turn starts: trigger, policy, model and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from oakleaf.core.codec import from_json
from oakleaf.core.facts import Trigger, TurnStarted
from oakleaf.log.log import Log
from oakleaf.models.base import Model
from oakleaf.stores.base import SessionDetail, SessionRow

FIRST_FACT = 1
"""The number of a journal's first fact, the start of the session."""


def turn_start(about: TurnStarted, row: SessionRow, detail: SessionDetail | None) -> TurnStarted:
    """Return the start of a turn with the stored values of the session: context window, policy, and for the
    first turn the trigger."""
    policy = None if detail is None or detail.policy is None else from_json(detail.policy)
    trigger = None if row.turns or row.trigger_type is None else Trigger(row.trigger_type, row.trigger_id)
    return replace(
        about,
        trigger=about.trigger or trigger,
        context_window=row.context_window if about.context_window is None else about.context_window,
        policy=(policy or None) if about.policy is None else about.policy,
    )


def queued_turn_start(about: TurnStarted, log: Log) -> TurnStarted:
    """Return the start of a turn for a worker, with the session's model and tools. The worker adds its own
    later."""
    row, detail = log.store.session_with_detail(log.session_id)
    return replace(turn_start(about, row, detail), model=row.model, tool_names=row.tool_names)


def runner_fields(models: Sequence[Model], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the runner's fields of a start or a resumption: another process may have another model.

    Its tools are not repeated here: the settings on the path name them.
    """
    model = models[0].model if models else None
    return {"model": model, "options": dict(options or {}) or None}


def session_data(row: SessionRow, detail: SessionDetail | None) -> dict[str, Any]:
    """Return the session's ids and workspace."""
    workspace = None if detail is None else detail.workspace
    return _without_empty(
        session_id=row.session_id,
        conversation_id=row.conversation_id,
        agent=row.agent,
        title=row.title,
        workspace=None if workspace is None else from_json(workspace),
    )


def is_one_shot_turn(log: Log) -> bool:
    """Whether the open turn was sent as the only turn of the session."""
    started = _turn_start(log)
    return started is not None and started.one_shot


def turn_limits(log: Log) -> dict[str, Any] | None:
    """Return the limits sent with the open turn."""
    started = _turn_start(log)
    return None if started is None else started.limits


def turn_trace(log: Log) -> str | None:
    """Return the `traceparent` of the open turn's sender."""
    started = _turn_start(log)
    return None if started is None else started.trace


def _turn_start(log: Log) -> TurnStarted | None:
    """Return the start of the open turn."""
    for stored in log.facts_backwards():
        if isinstance(fact := stored.fact, TurnStarted):
            return fact if fact.turn == log.cursor.turn else None
    return None


def _without_empty(**data: Any) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value not in (None, {}, [])}
