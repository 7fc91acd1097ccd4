"""A write request of a log, and the result of the write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from oakleaf.core.drafts import Draft, EntryBatch, NewEntry
from oakleaf.core.entries import Entry, Payload, Settings
from oakleaf.core.facts import Fact, Moved, StoredFact, TurnEnded, TurnStarted
from oakleaf.core.state import state_updates
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor
from oakleaf.core.usage import Call
from oakleaf.stores.base import Change, Effect


class LeftBehind(Struct, frozen=True):
    """How the entries left behind by a rewind matter for the place of the rewind."""

    changes_state: bool
    narrows_tools: bool


class Cut(Struct, frozen=True):
    """A requested position, and the legal position used instead."""

    at: int
    requested: int

    @property
    def has_moved(self) -> bool:
        return self.at != self.requested


class Asked(Struct, frozen=True):
    """What is asked for under a caller's key."""

    key: str | None = None
    digest: str | None = None
    """None without a key."""


NOTHING_ASKED = Asked()


class Place(Struct, frozen=True):
    """A cut of a path, with everything needed for a move or a fork."""

    cut: Cut
    leaf: Leaf
    """The entry of the cut as a leaf."""
    cursor: Cursor = Cursor()
    left_behind: LeftBehind | None = None
    """None if too many entries come after the cut to have been read."""

    @property
    def at(self) -> int:
        return self.cut.at


class Request(Struct, frozen=True, kw_only=True):
    """One atomic write: entries, a move of the leaf, or a fact alone, with all columns and further facts."""

    drafts: tuple[Draft, ...] = ()
    move_to: Leaf | Place | None = None
    """Where the leaf moves before the drafts are appended."""
    fact: Fact | None = None
    """The fact alone, if the request neither appends nor moves; or the `Moved`, whose origin the log sets."""
    about: TurnStarted | TurnEnded | None = None
    """Fields of the turn fact of the drafts; the log sets the turn and the status."""
    facts: tuple[Fact, ...] = ()
    """Further facts."""
    starts: tuple[int, ...] = ()
    """The indexes of the last draft's tool calls to start at once."""
    calls: tuple[Call, ...] = ()
    replaces_call: bool = False
    drops_call: str | None = None
    """The id of an announced but unmade model call."""
    row: Mapping[str, Any] = {}
    tags: Mapping[str, str | None] = {}
    after: Leaf | None = None
    """The leaf before the drafts; None: the log's."""
    at_leaf: bool = False
    """Whether a fact alone is refused as stale if the leaf has moved."""
    inbox_number: int | None = None
    """The number of the queued input to remove."""
    key: str | None = None
    digest: str | None = None
    """Of what was asked for under the caller's key; None: a repeat is not compared."""
    fence: int | None = None
    follows_notes: bool = False
    """Whether a request without a fence goes behind notes of others.

    True for a program that runs the session by itself.
    """
    effect: Callable[[Sequence[NewEntry]], Effect] | None = None
    """The effect of the change, made from the written entries: notes of others may come before."""

    @property
    def has_settings(self) -> bool:
        return any(type(draft.payload) is Settings for draft in self.drafts)


class Plan(Struct, frozen=True):
    """A change to commit, and the position of the log after the commit."""

    change: Change
    written: EntryBatch | None = None
    state: bytes | None = None
    drafts: tuple[Draft, ...] = ()


class Committed(Struct, frozen=True, gc=False):
    """The written entries and facts of a commit, and the leaf afterwards."""

    leaf: Leaf
    payloads: tuple[Payload, ...] = ()
    new_entries: tuple[NewEntry, ...] = ()
    fact_number: int = 0
    """The number of the journal's latest fact."""
    is_repeat: bool = False
    """True for a known key: the result is the first commit's, and nothing was written."""
    change: Change | None = None
    """The committed change; None for a repeat."""
    recorded: StoredFact | None = None
    """Of a repeat, the fact of the first commit."""

    @property
    def facts(self) -> list[StoredFact]:
        """Return the facts of the commit, like a read of the journal."""
        change = self.change
        return [] if change is None else change.stored_facts(self.fact_number - len(change.facts), self.leaf)

    @property
    def cut(self) -> Cut:
        """Return where a move of the leaf went, and what was asked for."""
        fact: object
        if self.change is not None:
            assert self.change.move_to is not None
            at, fact = self.change.move_to.seq, self.change.fact
        else:
            assert self.recorded is not None
            first, fact = self.recorded.first, self.recorded.fact
            at = self.leaf.seq if first is None else first - 1
        assert isinstance(fact, Moved)
        return Cut(at, at if fact.requested is None else fact.requested)

    @property
    def entries(self) -> list[Entry]:
        """Return the entries of the commit, like a read of the path.

        Decoded on access, so an append does not wait for the decoding.
        """
        return [entry.to_entry(self.leaf.branch) for entry in self.new_entries]


def left_behind(entries: Sequence[Entry]) -> LeftBehind:
    """Return the effects of a rewind past the entries."""
    return LeftBehind(
        changes_state=have_updates(entries),
        narrows_tools=any(
            isinstance(entry.payload, Settings) and entry.payload.tools is not None for entry in entries
        ),
    )


def have_updates(items: Iterable[Entry | Draft]) -> bool:
    """Whether an entry or draft changes the state."""
    return any(state_updates(item.payload) for item in items)
