"""Sessions and entries read from another tool, and a report of what could not be converted.

Pure values: this module knows no tool and no store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from hashlib import sha256
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple

from oakleaf.core.codec import to_json
from oakleaf.core.entries import Evidence, Note, Payload
from oakleaf.core.ids import escape_id
from oakleaf.core.messages import Message
from oakleaf.core.redact import Redactor
from oakleaf.core.state import State, merge_state
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.usage import MICROCENTS_PER_DOLLAR, Price, Usage, is_count
from oakleaf.errors import OakleafError, shorten

EXAMPLES = 3
MAX_EXAMPLE = 1_000
"""Characters of an example until it is redacted: of a secret that is cut off one part would stay."""
UNKNOWN_KIND = "an item of unknown kind, kept as a note"
START = ""
"""The key of the position after the seeds, before the first entry."""


class Loss(Struct):
    """The number of unconverted items of a kind, with a few examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


class LossReport(dict[str, Loss]):
    """Losses by a description for people, and how many items of the source were read and how many of them misread."""

    item_count: int = 0
    """The lines of a source that has lines."""
    misread_count: int = 0
    """The items that were not understood: of unknown kind or shape, or damaged. Other losses were left out on purpose."""

    def misread(self, description: str, example: str = "") -> None:
        """Add an item that was not understood."""
        self.misread_count += 1
        self.add(description, example)

    def add(self, description: str, example: str = "", count: int = 1) -> None:
        loss = self.setdefault(description, Loss())
        loss.count += count
        if example and len(loss.examples) < EXAMPLES:
            loss.examples.append(example[:MAX_EXAMPLE])

    def merge(self, other: LossReport) -> None:
        self.item_count += other.item_count
        self.misread_count += other.misread_count
        for description, loss in other.items():
            self.add(description, count=loss.count)
            for example in loss.examples:
                self.add(description, example, 0)

    def move_to(self, other: LossReport) -> None:
        """Add everything to another report, and start anew."""
        other.merge(self)
        self.clear()
        self.item_count = self.misread_count = 0

    def for_people(self, redactor: Redactor) -> LossReport:
        """Return the report with short examples, without secrets."""
        return LossReport(
            {
                description: Loss(loss.count, [shorten(redactor.redact_text(text)) for text in loss.examples])
                for description, loss in self.items()
            }
        )

    @property
    def counts(self) -> dict[str, int]:
        return {description: loss.count for description, loss in self.items()}


class EntryRecord(Struct, frozen=True, gc=False):
    """An entry, and the tool's record of the model call behind the entry."""

    payload: Payload
    key: str | None = None
    """A key for `after` or `refers_to` of later records."""
    after: str | None = None
    """The key of the entry before; None: the previous record."""
    refers_to: str | None = None
    """The key of another entry: the first kept by a compaction, or the last of a summarised branch."""
    at: int | None = None
    """Microseconds since 1970; None: the same as the previous record."""
    model: str | None = None
    provider: str | None = None
    finish: str | None = None
    evidence: Evidence | None = None
    usage: Usage | None = None
    """The usage of the entry's model call."""
    units: dict[str, int] | None = None
    """The call's usage beside tokens, or at another price: see `wire.Answer.units`."""
    call_id: str | None = None
    """The source's own id of the call: counted once, even if the answer has grown between two imports."""
    tools: tuple[ToolSpec, ...] | None = None
    """With settings: the model's tools from here on."""
    price: Price | None = None
    """The tool's record of the cost; None: by the price table."""

    @property
    def is_answer(self) -> bool:
        return isinstance(self.payload, Message) and self.payload.role == "assistant"


class SessionRecord(Struct, frozen=True):
    """A session of another tool: a tree of entries in the order of writing."""

    tool: str
    source: str
    """The id in the tool. The session id is derived from the tool's id, so a second import adds nothing."""
    entries: tuple[EntryRecord, ...]
    seeds: tuple[Message, ...] = ()
    """Messages before the first input, such as the system prompt."""
    leaf: str | None = None
    """The key of the current leaf; None: the last entry."""
    labels: dict[str, str] = {}
    """Labels by the entry's key."""
    title: str | None = None
    conversation_id: str | None = None
    """The id under which the writing program finds the session again; None: the session id."""
    agent: str | None = None
    started_at: int | None = None
    state: dict[str, Any] | None = None
    tags: dict[str, str] = {}
    losses: LossReport = field(default_factory=LossReport)
    tasks: tuple[SessionRecord, ...] = ()
    """Started sub-agent sessions."""
    missing: tuple[str, ...] = ()
    """Facts missing in the source, such as "tool definitions"."""
    unfinished: int = 0
    """Unfinished answers, absent in `entries`: a later import adds the answers."""

    @property
    def session_id(self) -> str:
        return f"{self.tool}-{escape_id(self.source)}"

    def family(self) -> Iterator[SessionRecord]:
        """Yield the session, the tasks, and the tasks of tasks."""
        yield self
        for task in self.tasks:
            yield from task.family()

    @property
    def item_count(self) -> int:
        """How many items were read: lines, or what became entries if the source has no lines."""
        return self.losses.item_count or max(len(self.entries), self.losses.misread_count)

    @property
    def has_content(self) -> bool:
        """Whether there is something to import."""
        return bool(self.entries or self.seeds or self.tasks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to import and nothing to report."""
        return not (self.entries or self.tasks or self.losses or self.unfinished)


def is_countable(usage: Usage) -> bool:
    return all(count is None or is_count(count) for count in astuple(usage))


def patches(state: State, values: State) -> list[State]:
    """Return the state updates that set exactly the given values. An object that would merge is deleted first."""
    deletions = {
        name: None for name, value in values.items() if merge_state(state, {name: value}).get(name) != value
    }
    return [patch for patch in (deletions, values) if patch and merge_state(state, patch) != state]


def unknown_note(tool: str, kind: object, data: object, losses: LossReport) -> Note:
    """Return a note with the unknown item, or with the text if no store could keep the item; count the item."""
    losses.misread(UNKNOWN_KIND, str(kind))
    try:
        to_json(data, "an item")
    except (OakleafError, RecursionError):
        data = repr(data).encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return Note({tool: "unknown", "kind": str(kind).replace("\0", "\ufffd"), "data": data})


def recorded_price(dollars: object, tool: str) -> Price | None:
    """Return a call's price in dollars; None for 0, the tools' price for unknown models and subscriptions."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not math.isfinite(dollars):
        return None
    microcents = int((Decimal(str(dollars)) * MICROCENTS_PER_DOLLAR).to_integral_value())
    return Price(microcents, f"recorded by {tool}") if microcents and is_count(microcents) else None


def stable_call_id(tool: str, *names: str) -> str:
    """Return an id, the same on every import, so that a call with a grown answer or usage is counted once.

    It is that of the call that a source names, or of all calls of a session of which only the sum is known.
    """
    text = " ".join((tool, *names)).encode("utf-8", "replace")
    return sha256(text).hexdigest()[:24]
