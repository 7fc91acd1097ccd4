"""Which checkpoints a session holds and where: the fold of the adapter's own notes, in whatever branch they stand.

Knows the shapes of those notes and nothing of stores, graphs or serdes. They lie under `data["langgraph"]`:

    {"source": …, "id": …, "parent": id, "run_id": …,
     "checkpoint": …, "metadata": …, "values": {channel: value}, "at": {channel: seq}, "said": channel}
    {"writes": {"of": id, "task": id, "path": text, "made": [[index, channel, value], …]}}
    {"message": value}        a message of the graph that cannot stand as an entry of its own
    {"dropped": [id, …]}      checkpoints that are no longer told; what they held stays

A checkpoint holds the values that are new with it; `at` names, by their seq on its path, the checkpoints that hold
the others. `said` names the channel that the messages of its path are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from ...core.entries import Entry, Note
from ...core.messages import Message
from ...core.tree import Leaf
from .messages import NAME


class Kept(Struct, frozen=True):
    """One checkpoint and the place of its note."""

    checkpoint_id: str
    place: Leaf
    parent: str | None
    run_id: str | None
    is_input: bool
    """Whether it holds what was given to the graph, which the next one adds to the messages."""


class Wrote(Struct, frozen=True):
    """One pending write: where its note stands, and which of that it is."""

    place: Leaf
    nth: int
    task_path: str


class Index:
    """Built up as notes are seen; what was seen later wins."""

    def __init__(self) -> None:
        self.checkpoints: dict[str, Kept] = {}
        self.dropped: set[str] = set()
        self._writes: dict[str, dict[tuple[str, int], Wrote]] = {}

    def absorb(self, place: Leaf, told: dict[str, Any]) -> None:
        """One note more."""
        if "checkpoint" in told:
            name = told["id"]
            is_input = told["source"] == "input"
            self.checkpoints[name] = Kept(name, place, told["parent"], told.get("run_id"), is_input)
        elif "writes" in told:
            writes = told["writes"]
            held = self._writes.setdefault(writes["of"], {})
            for nth, (index, _, _) in enumerate(writes["made"]):
                held[writes["task"], index] = Wrote(place, nth, writes["path"])
        elif "dropped" in told:
            self.dropped.update(told["dropped"])

    def has_write(self, checkpoint_id: str, task: str, index: int) -> bool:
        return (task, index) in self._writes.get(checkpoint_id, ())

    def writes(self, checkpoint_id: str) -> list[tuple[str, Wrote]]:
        """Task and write, in the order in which the graph applies them."""
        held = self._writes.get(checkpoint_id, {})
        ordered = sorted(held.items(), key=lambda item: (item[1].task_path, *item[0]))
        return [(task, wrote) for (task, _), wrote in ordered]

    def told(self) -> list[Kept]:
        """The checkpoints that are not dropped, newest first: their ids grow with time."""
        found = list(self.checkpoints.values())  # at once: a graph may be running beside
        kept = (one for one in found if one.checkpoint_id not in self.dropped)
        return sorted(kept, key=lambda one: one.checkpoint_id, reverse=True)

    def places(self, checkpoint_id: str) -> list[Leaf]:
        """Where all that makes this checkpoint stands."""
        writes = list(self._writes.get(checkpoint_id, {}).values())
        return [self.checkpoints[checkpoint_id].place, *(wrote.place for wrote in writes)]


def told_by(entry: Entry) -> dict[str, Any] | None:
    """What a note of ours says; None if it is not one."""
    if not isinstance(entry.payload, Note):
        return None
    told = entry.payload.data.get(NAME)
    return told if isinstance(told, dict) else None


FILLER = {"filler": True}
"""Beside a result that the graph never had: its calls were left open, and something else followed."""


def messages_on(path: Iterable[Entry]) -> Iterator[Entry]:
    """The entries that are messages of the graph."""
    for entry in path:
        payload = entry.payload
        if isinstance(payload, Message):
            if payload.details is None or payload.details.get(NAME) != FILLER:
                yield entry
        elif "message" in (told_by(entry) or ()):
            yield entry
