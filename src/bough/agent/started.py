"""What is told of a turn when it starts: by whom, with which model and which tools, under which policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..core.codec import from_json
from ..log import Log
from ..models.model import Model


def about_turn(log: Log, models: Sequence[Model], tool_names: Iterable[str]) -> dict[str, Any]:
    """What is not known is left out."""
    row, policy = log.store.session(log.session_id), log.store.detail(log.session_id).policy
    trigger = {"type": row.trigger_type, "id": row.trigger_id}
    found = {
        "trigger": {name: value for name, value in trigger.items() if value is not None},
        "model": models[0].model if models else None,
        "context_window": row.context_window,
        "policy": None if policy is None else from_json(policy),
        "tool_names": list(tool_names),
    }
    return {name: value for name, value in found.items() if value not in (None, {}, [])}
