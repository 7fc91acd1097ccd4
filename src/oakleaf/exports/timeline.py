"""Reconstruct times that entries do not hold: when calls started, when turns ended, and where tasks began.

Reads the journal and the ledger. Every time comes from the clock of the host that wrote it, so an earlier event may have a
later time; callers that draw them side by side must adjust. A journal may come from an untrusted bundle: a fact without
the fields of its kind is skipped. Knows no format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from oakleaf.core.redact import Redactor
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Call
from oakleaf.stores.base import Fact


class _Facts(Struct, frozen=True):
    """All fields of the facts read here."""

    branch: int | None = None
    turn: int | None = None
    seq: int = 0
    indexes: tuple[int, ...] = ()
    status: str = ""
    error: str | None = None
    child: str = ""
    task: str | None = None


_to_facts = converter(_Facts)


_POSITION_KINDS = ("started", "appended", "moved", "turn_started", "turn_resumed")
_USED_KINDS = frozenset((*_POSITION_KINDS, "calls_started", "call_started", "turn_ended", "task_started"))


class TurnEnding(Struct, frozen=True):
    """The end of a turn as its runner recorded it."""

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
    """The times of one journal, by position (branch, seq) in its store."""

    tools: dict[tuple[int, int, int], int]
    """When each tool call started, by branch and seq of the answer and its index there."""
    turns: dict[tuple[int, int], TurnEnding]
    tasks: dict[str, TaskStart]
    models: tuple[int, ...]
    """When a model was called, if the commit before does not say so; and when a call ended without an answer."""


def build_timeline(facts: Iterable[Fact], calls: Iterable[Call], redactor: Redactor | None) -> Timeline:
    """Build the timeline. A fact without a branch or turn belongs to the last one named."""
    tools: dict[tuple[int, int, int], int] = {}
    turns: dict[tuple[int, int], TurnEnding] = {}
    tasks: dict[str, TaskStart] = {}
    models = [call.at for call in calls if call.answer_seq is None]
    branch = turn = 0
    for fact in facts:
        moment = _read_fact(fact)
        if moment is None:
            continue
        branch = branch if moment.branch is None else moment.branch
        turn = turn if moment.turn is None else moment.turn
        match fact.kind:
            case "calls_started":
                for index in moment.indexes:
                    tools.setdefault((branch, moment.seq, index), fact.at)
            case "call_started":
                models.append(fact.at)
            case "turn_ended":
                error = moment.error if redactor is None else redactor.redact_json(moment.error)
                turns[branch, turn] = TurnEnding(moment.status, error, fact.at)
            case "task_started":
                tasks[moment.child] = TaskStart(branch, moment.seq, moment.task)
    return Timeline(tools, turns, tasks, tuple(sorted(models)))


def _read_fact(fact: Fact) -> _Facts | None:
    if fact.kind not in _USED_KINDS:
        return None
    try:
        return _to_facts(fact.data)
    except msgspec.ValidationError:
        return None


def call_start(call: Call, ready: int | None, models: tuple[int, ...]) -> int:
    """When a call that has ended was made; `ready` is the time of the entry it follows, if that is known.

    Its row bears the time of its end. Its start rides in the commit before it, unless a failure, a crash or a summary
    came in between: then it is the latest of those.
    """
    index = bisect_left(models, call.at)
    latest = models[index - 1] if index else 0
    if ready is None:
        return latest or call.at
    return min(max(ready, latest), call.at)
