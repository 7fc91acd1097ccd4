"""What the journal knows of the calls of an open batch: started, asked about, approved, denied, waiting for a task.

A call whose task waits for a person waits too. Its fact names the session and the call that the person is asked
about, however deep that lies; whether it still waits is read there, where the word is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..core.turns import OpenCall
from ..errors import NotFound
from ..log.log import Log
from ..stores.base import Fact
from .ancestors import in_trash
from .approvals import Asked
from .tools.tool import Tool

Place = tuple[int, int]


class Calls(Struct, frozen=True):
    """Places are (seq of the answer, index of the call in it)."""

    started: frozenset[Place] = frozenset()
    asked: frozenset[Place] = frozenset()
    approved: frozenset[Place] = frozenset()
    denied: frozenset[Place] = frozenset()
    below: Mapping[Place, tuple[Asked, ...]] = {}
    """What the tasks of a call wait for."""
    in_trash: Mapping[Place, str] = {}
    """Calls that have a task which lies in the trash, and what brings it back when it is restored."""
    answered_below: frozenset[Place] = frozenset()
    """Calls that have a task which was given a word and has not gone on yet."""
    tasks: tuple[str, ...] = ()
    """The sessions of the tasks that the batch has started."""

    @property
    def settled(self) -> frozenset[Place]:
        """Those on which a person has nothing to say any more."""
        return self.started | self.approved | self.denied

    def is_waiting(self, call: OpenCall, tools: Mapping[str, Tool]) -> bool:
        """Whether a person must say yes or no first, to it or to what its tasks want."""
        tool, place = tools.get(call.call.name), (call.seq, call.index)
        if place in self.in_trash or (place in self.below and place not in self.answered_below):
            return True
        if place in self.settled:
            return False
        return place in self.asked or (tool is not None and tool.approval)

    def to_ask(self, waiting: Sequence[OpenCall], tools: Mapping[str, Tool]) -> list[OpenCall]:
        known = self.asked.union(self.below, self.in_trash)
        return [c for c in waiting if self.is_waiting(c, tools) and (c.seq, c.index) not in known]

    def about(self, waiting: Sequence[OpenCall], session_id: str) -> Iterator[Asked]:
        """What a person is asked about, of these calls and of their tasks, in call order."""
        for call in waiting:
            place = (call.seq, call.index)
            yield from self.below.get(place, ())
            if place in self.asked - self.settled:
                yield Asked(call.seq, call.index, call.call, session_id)


def read_calls(log: Log) -> Calls:
    """From the facts since the answer that made the calls; older ones concern other batches."""
    known, waits = _told(log)
    if not waits:
        return known
    return _below(log, known, waits)


def _told(log: Log) -> tuple[Calls, list[Fact]]:
    """What its own journal tells, and the facts about tasks that wait, oldest first."""
    waiting = log.cursor.open_calls
    if not waiting:
        return Calls(), []
    found: dict[str, set[Place]] = {
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
    return Calls(started, asked, approved, denied, tasks=tuple(reversed(tasks))), waits[::-1]


def _below(log: Log, known: Calls, waits: Iterable[Fact]) -> Calls:
    """Of what tasks were waiting for: what still waits, what can go on because there was a word, what is in the trash."""
    below: dict[Place, tuple[Asked, ...]] = {}
    trashed: dict[Place, str] = {}
    answered: set[Place] = set()
    for fact in waits:
        place, asked = (fact.data["seq"], fact.data["index"]), fact.data["asked"]
        try:
            row = log.store.session(fact.data["session"])
        except NotFound:
            continue
        lies = in_trash(log, row)
        for call, in_task in _open_in(Log(log.store, row, log.runtime)):
            if (call.seq, call.index) != (asked["seq"], asked["index"]):
                continue
            if lies is not None:
                trashed[place] = lies
            elif (call.seq, call.index) in in_task.settled:
                answered.add(place)
            else:
                waiting = Asked(call.seq, call.index, call.call, row.session_id)
                below[place] = (*below.get(place, ()), waiting)
    return replace(known, below=below, in_trash=trashed, answered_below=frozenset(answered))


def _open_in(task: Log) -> Iterator[tuple[OpenCall, Calls]]:
    known, _ = _told(task)  # of what it was named for; journals that name each other would have no end
    yield from ((call, known) for call in task.cursor.open_calls)


def asked_about(log: Log) -> list[Asked]:
    """The calls that wait for a person, here and in the tasks of open calls, as they are now."""
    log.refresh()
    return list(read_calls(log).about(log.cursor.open_calls, log.session_id))


def is_awaited(log: Log) -> bool:
    """Whether it is a worker's task that waits for words here: `waiting` told its queue, and nobody has gone on since."""
    for fact in reversed(log.store.journal(log.session_id)):
        if fact.kind in ("waiting", "turn_started", "turn_resumed"):
            return "queue" in fact.data
    return False
