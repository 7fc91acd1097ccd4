"""State: the fold of the updates recorded by tools and notes along the path.

An update is a JSON merge patch (RFC 7396): a value sets its key, null removes it, objects merge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oakleaf.core.entries import Entry, Note, Payload
from oakleaf.core.messages import Message, ToolResult

State = dict[str, Any]


def state_updates(payload: Payload) -> list[State]:
    """Return an entry's updates, in order."""
    if type(payload) is Note:
        return [] if payload.state is None else [payload.state]
    if type(payload) is not Message or payload.role != "tool":
        return []
    patches = [
        part.details.get("state") for part in payload.parts if type(part) is ToolResult and part.details
    ]
    return [patch for patch in patches if isinstance(patch, dict)]


def merge_state(state: State, update: State) -> State:
    """Return a new state; neither argument is changed."""
    merged = dict(state)
    for key, value in update.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = merge_state(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def derive_updates(path: Iterable[Entry | Message]) -> list[State]:
    """Return the state updates of tools and notes in the entries or messages, in order."""
    payloads = (item.payload if isinstance(item, Entry) else item for item in path)
    return [update for payload in payloads for update in state_updates(payload)]


def fold_state(path: Iterable[Entry], state: State | None = None) -> State:
    state = {} if state is None else state
    for update in derive_updates(path):
        state = merge_state(state, update)
    return state
