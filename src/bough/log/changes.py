"""What goes into a change beside its entries, and what comes back from an append or a cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct

from ..core.codec import check_text, to_json
from ..core.drafts import ExtraFact, NewEntry
from ..core.entries import Entry, Payload
from ..core.tree import Leaf
from ..core.usage import MAX_COUNT, Call
from ..core.usage import check_call as check_call
from ..errors import InvalidArgument, InvalidCount
from ..stores.base import Status

STATUSES: tuple[str, ...] = get_args(Status)


class AppendResult(Struct, frozen=True, gc=False):
    """What an append wrote: where the session stands now, and the entries."""

    leaf: Leaf
    payloads: tuple[Payload, ...]
    new_entries: tuple[NewEntry, ...]
    fact_number: int = 0
    """The number of its journal's latest fact."""
    repeated: bool = False
    """The key was known: this is what was written then, and nothing was written now."""

    @property
    def entries(self) -> list[Entry]:
        """The entries as they are read back: opened only when asked for, an append need not wait for it."""
        return [entry.to_entry(self.leaf.branch) for entry in self.new_entries]


class Cut(Struct, frozen=True):
    """A place asked for and the legal place it came to."""

    at: int
    requested: int

    @property
    def has_moved(self) -> bool:
        return self.at != self.requested


def check(
    key: str | None, calls: Sequence[Call], data: Mapping[str, Any] | None, row: Mapping[str, Any] | None
) -> None:
    """What the caller says beside its entries is held to the same rules as they are."""
    check_text(key, "key")
    for call in calls:
        check_call(call)
    if data:
        to_json(dict(data), "journal data")
    for name, value in (row or {}).items():
        if name == "status" and value not in STATUSES:
            raise InvalidArgument(name, value, f"one of {', '.join(STATUSES)}")
        if isinstance(value, str):
            check_text(value, name)
        elif isinstance(value, int) and not 0 <= value <= MAX_COUNT:
            raise InvalidCount(name, value)


def with_data(facts: tuple[ExtraFact, ...], data: Mapping[str, Any] | None) -> tuple[ExtraFact, ...]:
    """What is told of the turn goes into the fact that it started, or that it ended."""
    if not data:
        return facts
    return tuple(
        ExtraFact(fact.kind, {**fact.data, **data}) if fact.kind in ("turn_started", "turn_ended") else fact
        for fact in facts
    )


def turn_status(facts: Sequence[ExtraFact]) -> dict[str, Any]:
    """The row follows the turn: an input makes it running, and no longer completed; the final answer idle again."""
    if not facts:
        return {}
    kinds = [fact.kind for fact in facts]
    found = {"status": "running" if kinds[-1] == "turn_started" else "idle", "error": None}
    return {**found, "completed_at": None} if "turn_started" in kinds else found
