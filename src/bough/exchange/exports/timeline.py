"""When things happened that entries alone do not tell: the starts of calls, the ends of turns, the tasks of a session.

Knows the facts of a journal and the rows of a ledger. Does not know any format. Every time is the clock of the host that
wrote it, so an earlier thing may bear a later time: whoever draws them beside each other has to make them fit. A journal
may come from a stranger's bundle: a fact that does not say what its kind says is passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ...core.redact import Redactor
from ...core.usage import Call
from ...stores.base import Fact


class _Facts(Struct, frozen=True):
    """Whatever the facts read here may tell."""

    branch: int | None = None
    turn: int | None = None
    seq: int = 0
    indexes: tuple[int, ...] = ()
    status: str = ""
    error: str | None = None
    child: str = ""
    task: str | None = None


_PLACING = ("started", "appended", "moved", "turn_started", "turn_resumed")
_READ = frozenset((*_PLACING, "calls_started", "call_started", "turn_ended", "task_started"))


class Ended(Struct, frozen=True):
    """The end of a turn, as its runner told it."""

    status: str
    error: str | None
    at: int


class Task(Struct, frozen=True):
    """Where a session started a child."""

    branch: int
    seq: int
    key: str | None
    """Which of the session's own branches, the seq of the answer, the index of the call, and the number of the task."""


class Timeline(Struct, frozen=True):
    """What one journal tells, by places (branch, seq) of the store it was read from."""

    tools: dict[tuple[int, int, int], int]
    """When a tool call started, by branch and seq of the answer and its index there."""
    turns: dict[tuple[int, int], Ended]
    tasks: dict[str, Task]
    models: tuple[int, ...]
    """When a model was called, where that was not told with the commit before; and when a call ended unanswered."""


def build_timeline(facts: Iterable[Fact], calls: Iterable[Call], redactor: Redactor | None) -> Timeline:
    """A fact that names no branch, or no turn, is of the one named last."""
    tools: dict[tuple[int, int, int], int] = {}
    turns: dict[tuple[int, int], Ended] = {}
    tasks: dict[str, Task] = {}
    models = [call.at for call in calls if call.answer_seq is None]
    branch = turn = 0
    for fact in facts:
        told = _told(fact)
        if told is None:
            continue
        branch = branch if told.branch is None else told.branch
        turn = turn if told.turn is None else told.turn
        match fact.kind:
            case "calls_started":
                for index in told.indexes:
                    tools.setdefault((branch, told.seq, index), fact.at)
            case "call_started":
                models.append(fact.at)
            case "turn_ended":
                error = told.error if redactor is None else redactor.redact_json(told.error)
                turns[branch, turn] = Ended(told.status, error, fact.at)
            case "task_started":
                tasks[told.child] = Task(branch, told.seq, told.task)
    return Timeline(tools, turns, tasks, tuple(sorted(models)))


def _told(fact: Fact) -> _Facts | None:
    if fact.kind not in _READ:
        return None
    try:
        return msgspec.convert(fact.data, _Facts)
    except msgspec.ValidationError:
        return None


def began(call: Call, ready: int | None, models: tuple[int, ...]) -> int:
    """When a call that has ended was made; `ready` is the time of the entry it follows, if that is known.

    Its row bears the time of its end. Its start rides in the commit before it, unless a failure, a crash or a summary
    came in between: then it is the latest of those.
    """
    index = bisect_left(models, call.at)
    latest = models[index - 1] if index else 0
    if ready is None:
        return latest or call.at
    return min(max(ready, latest), call.at)
