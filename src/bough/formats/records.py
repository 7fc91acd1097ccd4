"""Sessions and entries read from another tool, and a report of what could not be converted.

Pure values: this module knows no tool and no store.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from ..core.entries import Evidence, Payload
from ..core.messages import Message
from ..core.state import State, merge_state
from ..core.tool_definitions import ToolSpec
from ..core.usage import Price, Usage
from ..errors import shorten

EXAMPLES = 3
START = ""
"""The key of the position after the seeds, before the first entry."""


class Loss(Struct):
    """How often one kind of content could not be converted as it was, with a few examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


class LossReport(dict[str, Loss]):
    """Losses by a description for people."""

    def add(self, description: str, example: str = "", count: int = 1) -> None:
        loss = self.setdefault(description, Loss())
        loss.count += count
        if example and len(loss.examples) < EXAMPLES:
            loss.examples.append(shorten(example))

    def merge(self, other: LossReport) -> None:
        for description, loss in other.items():
            self.add(description, count=loss.count)
            for example in loss.examples:
                self.add(description, example, 0)

    @property
    def counts(self) -> dict[str, int]:
        return {description: loss.count for description, loss in self.items()}


class EntryRecord(Struct, frozen=True):
    """One entry, and what the tool recorded about the model call that made it."""

    payload: Payload
    key: str | None = None
    """A key that later records may name in `after` or `refers_to`."""
    after: str | None = None
    """The key of the entry it follows; None: the previous record."""
    refers_to: str | None = None
    """The key of another entry: the first one a compaction keeps, or the last one of the branch a summary describes."""
    at: int | None = None
    """Microseconds since 1970; None: the same as the previous record."""
    model: str | None = None
    provider: str | None = None
    finish: str | None = None
    evidence: Evidence | None = None
    usage: Usage | None = None
    """What the model call that produced this entry used."""
    units: dict[str, int] | None = None
    """What that call used beside tokens, or at another price: see `wire.Answer.units`."""
    call_id: str | None = None
    """The source's own id of that call: it is counted once, even if its answer has grown between two imports."""
    tools: tuple[ToolSpec, ...] | None = None
    """With settings: the tools as the model was given them from here on."""
    price: Price | None = None
    """What it cost, as the tool recorded it; None: by the price table."""


class SessionRecord(Struct, frozen=True):
    """One session of another tool: its entries in the order they were written, as a tree."""

    tool: str
    source: str
    """Its id in the tool. The session id is derived from it, so importing the same session twice adds nothing."""
    entries: tuple[EntryRecord, ...]
    seeds: tuple[Message, ...] = ()
    """Messages before the first input, such as the system prompt."""
    leaf: str | None = None
    """The key of the current leaf; None: the last entry."""
    labels: dict[str, str] = {}
    """Labels by the key of the entry they name."""
    title: str | None = None
    agent: str | None = None
    started_at: int | None = None
    state: dict[str, Any] | None = None
    tags: dict[str, str] = {}
    losses: LossReport = field(default_factory=LossReport)
    tasks: tuple[SessionRecord, ...] = ()
    """Sub-agent sessions it started."""
    missing: tuple[str, ...] = ()
    """What the source does not say, such as "tool definitions"."""
    unfinished: int = 0
    """Answers that are still being written, and not in `entries`: a later import adds them."""

    @property
    def session_id(self) -> str:
        return f"{self.tool}-{self.source}"


def patches(state: State, values: State) -> list[State]:
    """Return the state updates that set exactly these values. An object that would merge is deleted first."""
    deletions = {
        name: None for name, value in values.items() if merge_state(state, {name: value}).get(name) != value
    }
    return [patch for patch in (deletions, values) if patch and merge_state(state, patch) != state]
