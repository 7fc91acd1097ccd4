"""A session as another tool told it: entries in its order, each perhaps behind another than the one before.

Pure values; knows no tool and no store. What a tool keeps and we cannot hold is counted here, by what it was.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from ..core.entries import Evidence, Payload
from ..core.messages import Message
from ..core.state import State, merge_state
from ..core.usage import Usage
from ..errors.root import shorten

EXAMPLES = 3
START = ""
"""The key of the place behind the seeds."""


class Loss(Struct):
    """What could not be taken over as it was: how often, and where for instance."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


class LossReport(dict[str, Loss]):
    """By what it was, in words that a person reads."""

    def add(self, description: str, example: str = "", count: int = 1) -> None:
        lost = self.setdefault(description, Loss())
        lost.count += count
        if example and len(lost.examples) < EXAMPLES:
            lost.examples.append(shorten(example))

    def merge(self, other: LossReport) -> None:
        for what, lost in other.items():
            self.add(what, count=lost.count)
            for example in lost.examples:
                self.add(what, example, 0)

    @property
    def counts(self) -> dict[str, int]:
        return {what: lost.count for what, lost in self.items()}


class EntryRecord(Struct, frozen=True):
    """One entry, and what is known of its making."""

    payload: Payload
    key: str | None = None
    """What it is called there, if others are told to follow it."""
    after: str | None = None
    """The key of what it follows; None: what was told before it."""
    refers_to: str | None = None
    """The key of an entry it speaks of: the first a compaction keeps, the last of a branch that was left."""
    at: int | None = None
    """Microseconds since 1970; None: as what was told before it."""
    model: str | None = None
    provider: str | None = None
    finish: str | None = None
    evidence: Evidence | None = None
    usage: Usage | None = None
    """Of the model call it is the answer of."""


class SessionRecord(Struct, frozen=True):
    """One session of another tool."""

    tool: str
    source: str
    """Its name there: with the tool's it makes the id it has here, so that taking it in twice adds nothing."""
    entries: tuple[EntryRecord, ...]
    seeds: tuple[Message, ...] = ()
    """What the model saw before the first input."""
    leaf: str | None = None
    """The key of where it stands; None: at what was told last."""
    labels: dict[str, str] = {}
    """Names that were given to places, by their keys."""
    title: str | None = None
    agent: str | None = None
    started_at: int | None = None
    state: dict[str, Any] | None = None
    tags: dict[str, str] = {}
    losses: LossReport = field(default_factory=LossReport)
    tasks: tuple[SessionRecord, ...] = ()
    """Sessions it started."""

    @property
    def session_id(self) -> str:
        return f"{self.tool}-{self.source}"


def patches(state: State, values: State) -> list[State]:
    """The updates that give the state these values, each whole: an object that would merge is taken away first."""
    gone = {
        name: None for name, value in values.items() if merge_state(state, {name: value}).get(name) != value
    }
    return [patch for patch in (gone, values) if patch and merge_state(state, patch) != state]
