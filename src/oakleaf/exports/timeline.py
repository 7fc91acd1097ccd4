"""Reconstruct times that entries do not hold: when calls started, when turns ended, and where tasks began.

Reads the journal and the ledger. Every time comes from the clock of the host that wrote it, so an earlier event may have a
later time; callers that draw them side by side must adjust. Knows no format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from msgspec import Struct

from oakleaf.core.facts import (
    ModelCallStarted,
    StoredFact,
    TaskStarted,
    ToolCallsStarted,
    TurnEnded,
    TurnLeft,
)
from oakleaf.core.redact import Redactor
from oakleaf.core.usage import Call


class TurnEnding(Struct, frozen=True):
    """The end of a turn as recorded by the runner."""

    status: str
    error: str | None
    at: int


class TaskStart(Struct, frozen=True):
    """Where a session started a child."""

    branch: int
    seq: int
    key: str | None
    """Index of the session's own branch, seq of the answer, index of the call, and number of the task."""


class Timeline(Struct, frozen=True):
    """The times of a journal, by position (branch, seq) in the store."""

    tools: dict[tuple[int, int, int], int]
    """When each tool call started, by branch and seq of the answer and its index there."""
    turns: dict[tuple[int, int], TurnEnding]
    tasks: dict[str, TaskStart]
    models: tuple[int, ...]
    """When a model was called, if the commit before does not say so; and when a call ended without an answer."""


def build_timeline(facts: Iterable[StoredFact], calls: Iterable[Call], redactor: Redactor | None) -> Timeline:
    """Build the timeline. A fact without a leaf or turn belongs to the last one named."""
    tools: dict[tuple[int, int, int], int] = {}
    turns: dict[tuple[int, int], TurnEnding] = {}
    tasks: dict[str, TaskStart] = {}
    models = [call.at for call in calls if call.answer_seq is None]
    branch = 0
    for stored in facts:
        branch = branch if stored.leaf is None else stored.leaf.branch
        match stored.fact:
            case ToolCallsStarted(seq=seq, indexes=indexes):
                for index in indexes:
                    tools.setdefault((branch, seq, index), stored.at)
            case ModelCallStarted():
                models.append(stored.at)
            case TurnEnded() | TurnLeft() as end:
                error = end.error if redactor is None else redactor.redact_json(end.error)
                turns[branch, end.turn] = TurnEnding(end.status, error, stored.at)
            case TaskStarted(child=child, seq=seq, task=task):
                tasks[child] = TaskStart(branch, seq, task)
    return Timeline(tools, turns, tasks, tuple(sorted(models)))


def call_start(call: Call, ready: int | None, models: tuple[int, ...]) -> int:
    """Return the start of an ended call; `ready` is the known time of the entry before.

    Its row bears the time of its end. Its start rides in the commit before it, unless a failure, a crash or a summary
    came in between: then it is the latest of those.
    """
    index = bisect_left(models, call.at)
    latest = models[index - 1] if index else 0
    if ready is None:
        return latest or call.at
    return min(max(ready, latest), call.at)
