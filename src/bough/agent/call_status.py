"""What the journal knows of the calls of an open batch: started, asked about, approved, denied, waiting for a task.

A call whose task waits for a person waits too. Its fact names the session and the call that the person is asked
about, however deep that lies; whether it still waits is read there, where the word is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from ..core.turns import OpenCall
from ..errors import NotFound
from ..log.log import Log
from ..stores.base import Fact, SessionRow, StoreBackend
from .tools.tool import PendingApproval, Tool

MAX_TASK_DEPTH = 4
CallPosition = tuple[int, int]


class CallStatus(Struct, frozen=True):
    """Places are (seq of the answer, index of the call in it)."""

    started: frozenset[CallPosition] = frozenset()
    approval_requested: frozenset[CallPosition] = frozenset()
    approved: frozenset[CallPosition] = frozenset()
    denied: frozenset[CallPosition] = frozenset()
    task_approvals: Mapping[CallPosition, tuple[PendingApproval, ...]] = {}
    """What the tasks of a call wait for."""
    trashed_tasks: Mapping[CallPosition, str] = {}
    """Calls that have a task which lies in the trash, and what brings it back when it is restored."""
    decided_tasks: frozenset[CallPosition] = frozenset()
    """Calls that have a task which was given a word and has not gone on yet."""
    tasks: tuple[str, ...] = ()
    """The sessions of the tasks that the batch has started."""

    @property
    def decided(self) -> frozenset[CallPosition]:
        """Those on which a person has nothing to say any more."""
        return self.started | self.approved | self.denied

    def is_waiting(self, call: OpenCall, tools: Mapping[str, Tool]) -> bool:
        """Whether a person must say yes or no first, to it or to what its tasks want."""
        tool, place = tools.get(call.call.name), (call.seq, call.index)
        if place in self.trashed_tasks or (place in self.task_approvals and place not in self.decided_tasks):
            return True
        if place in self.decided:
            return False
        return place in self.approval_requested or (tool is not None and tool.approval)

    def needing_request(self, waiting: Sequence[OpenCall], tools: Mapping[str, Tool]) -> list[OpenCall]:
        known = self.approval_requested.union(self.task_approvals, self.trashed_tasks)
        return [c for c in waiting if self.is_waiting(c, tools) and (c.seq, c.index) not in known]

    def pending_approvals(self, waiting: Sequence[OpenCall], session_id: str) -> Iterator[PendingApproval]:
        """What a person is asked about, of these calls and of their tasks, in call order."""
        for call in waiting:
            place = (call.seq, call.index)
            yield from self.task_approvals.get(place, ())
            if place in self.approval_requested - self.decided:
                yield PendingApproval(call.seq, call.index, call.call, session_id)


def read_call_status(log: Log) -> CallStatus:
    """From the facts since the answer that made the calls; older ones concern other batches."""
    known, waits = _told(log)
    if not waits:
        return known
    return _below(log, known, waits)


def _told(log: Log) -> tuple[CallStatus, list[Fact]]:
    """What its own journal tells, and the facts about tasks that wait, oldest first."""
    waiting = log.cursor.open_calls
    if not waiting:
        return CallStatus(), []
    found: dict[str, set[CallPosition]] = {
        kind: set() for kind in ("calls_started", "approval_asked", "approved", "denied")
    }
    waits: list[Fact] = []
    tasks: list[str] = []
    for fact in reversed(log.store.journal(log.session_id, log.batch_since)):
        if fact.kind == "calls_started":
            found[fact.kind].update((fact.data["seq"], index) for index in fact.data["indexes"])
        elif fact.kind in found:
            found[fact.kind].add((fact.data["seq"], fact.data["index"]))
        elif fact.kind == "task_waits":
            waits.append(fact)
        elif fact.kind == "task_started":
            tasks.append(fact.data["child"])
        elif fact.kind == "appended" and fact.data["first"] <= waiting[0].seq <= fact.data["last"]:
            break
    started, asked, approved, denied = (frozenset(places) for places in found.values())
    return CallStatus(started, asked, approved, denied, tasks=tuple(reversed(tasks))), waits[::-1]


def _below(log: Log, known: CallStatus, waits: Iterable[Fact]) -> CallStatus:
    """Of what tasks were waiting for: what still waits, what can go on because there was a word, what is in the trash."""
    below: dict[CallPosition, tuple[PendingApproval, ...]] = {}
    trashed: dict[CallPosition, str] = {}
    answered: set[CallPosition] = set()
    for fact in waits:
        place, asked = (fact.data["seq"], fact.data["index"]), fact.data["asked"]
        try:
            row = log.store.session(fact.data["session"])
        except NotFound:
            continue
        lies = topmost_trashed(log, row)
        for call, in_task in _open_in(Log(log.store, row, log.runtime)):
            if (call.seq, call.index) != (asked["seq"], asked["index"]):
                continue
            if lies is not None:
                trashed[place] = lies
            elif (call.seq, call.index) in in_task.decided:
                answered.add(place)
            else:
                waiting = PendingApproval(call.seq, call.index, call.call, row.session_id)
                below[place] = (*below.get(place, ()), waiting)
    return replace(known, task_approvals=below, trashed_tasks=trashed, decided_tasks=frozenset(answered))


def _open_in(task: Log) -> Iterator[tuple[OpenCall, CallStatus]]:
    known, _ = _told(task)  # of what it was named for; journals that name each other would have no end
    yield from ((call, known) for call in task.cursor.open_calls)


def pending_approvals(log: Log) -> list[PendingApproval]:
    """The calls that wait for a person, here and in the tasks of open calls, as they are now."""
    log.refresh()
    return list(read_call_status(log).pending_approvals(log.cursor.open_calls, log.session_id))


def is_awaited_by_worker(log: Log) -> bool:
    """Whether it is a worker's task that waits for words here: `waiting` told its queue, and nobody has gone on since."""
    for fact in reversed(log.store.journal(log.session_id)):
        if fact.kind in ("waiting", "turn_started", "turn_resumed"):
            return "queue" in fact.data
    return False


# -- tasks and the sessions that started them ------------------------------------------------------


def ancestors(log: Log) -> list[Log]:
    """The sessions it is a task of: its parent first, the one that is no task last."""
    row = log.store.session(log.session_id)
    return [Log(log.store, parent, log.runtime) for parent in _rows_above(log.store, row)]


def topmost_trashed(log: Log, task: SessionRow) -> str | None:
    """The topmost session in the trash between a task and `log`: to restore it brings back those below it."""
    line = [task, *_rows_above(log.store, task)]
    between = takewhile(lambda row: row.session_id != log.session_id, line)
    trashed = [row.session_id for row in between if row.trashed_at is not None]
    return trashed[-1] if trashed else None


def _rows_above(store: StoreBackend, row: SessionRow) -> Iterator[SessionRow]:
    for _ in range(MAX_TASK_DEPTH + 1):  # a ring that somebody forged has an end too
        if row.relation != "task" or row.parent_session is None:
            return
        try:
            row = store.session(row.parent_session)
        except NotFound:
            return
        yield row
