"""What the journal knows of the calls of an open batch: started, asked about, approved, denied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..core.turns import OpenCall
from ..log import Log
from .tools import Tool

Place = tuple[int, int]


class Calls(Struct, frozen=True):
    """Places are (seq of the answer, index of the call in it)."""

    started: frozenset[Place] = frozenset()
    asked: frozenset[Place] = frozenset()
    approved: frozenset[Place] = frozenset()
    denied: frozenset[Place] = frozenset()

    def is_waiting(self, call: OpenCall, tools: Mapping[str, Tool]) -> bool:
        """Whether a person must say yes or no first."""
        tool, place = tools.get(call.call.name), (call.seq, call.index)
        if place in self.started | self.approved | self.denied:
            return False
        return place in self.asked or (tool is not None and tool.approval)

    def to_ask(self, waiting: Sequence[OpenCall], tools: Mapping[str, Tool]) -> list[OpenCall]:
        return [c for c in waiting if self.is_waiting(c, tools) and (c.seq, c.index) not in self.asked]


def read_calls(log: Log) -> Calls:
    """From the facts since the answer that made the calls; older ones concern other batches."""
    waiting = log.cursor.open_calls
    if not waiting:
        return Calls()
    found: dict[str, set[Place]] = {
        kind: set() for kind in ("calls_started", "approval_asked", "approved", "denied")
    }
    for fact in reversed(log.store.journal(log.session_id, log.batch_since)):
        if fact.kind == "calls_started":
            found[fact.kind].update((fact.data["seq"], index) for index in fact.data["indexes"])
        elif fact.kind in found:
            found[fact.kind].add((fact.data["seq"], fact.data["index"]))
        elif fact.kind == "appended" and fact.data["first"] <= waiting[0].seq <= fact.data["last"]:
            break
    return Calls(*(frozenset(places) for places in found.values()))
