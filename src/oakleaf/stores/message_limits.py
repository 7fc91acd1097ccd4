"""How many messages the calls of a turn were given at most, by the position of its input.

The journal of the session that ran the turn records it. Of a session that was purged, or never imported, only these facts
of the journal are kept, because its forks inherit the turns. Knows facts; does not know contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from oakleaf.core.tree import Branch, Leaf
from oakleaf.stores.values import Fact


class MessageLimit(Struct, frozen=True, gc=False, order=True):
    """The limit of an inherited turn, which the session did not run itself."""

    branch: int
    turn: int
    max_messages: int


def message_limits(facts: Iterable[Fact]) -> dict[Leaf, int]:
    """Return the limits of one journal by position. The fact before a turn's start appended its input; a resume may change it."""
    limits: dict[Leaf, int | None] = {}
    inputs: dict[int, Leaf] = {}
    branch = 0
    for fact in facts:
        if fact.kind == "appended":
            branch = fact.data["branch"]
        elif fact.kind == "turn_started":
            inputs[fact.data["turn"]] = Leaf(branch, fact.data["turn"])
        if fact.kind in ("turn_started", "turn_resumed") and (turn := fact.data.get("turn")) in inputs:
            limits[inputs[turn]] = fact.data.get("max_messages")
    return {place: limit for place, limit in limits.items() if limit is not None}


def select_inherited_limits(
    journals: Iterable[Iterable[Fact]], branches: Iterable[Branch], numbers: Mapping[int, int]
) -> tuple[MessageLimit, ...]:
    """Return the limits of other sessions' turns that are inherited, in an export's numbers."""
    last_seqs = {branch.branch: branch.tail for branch in branches if branch.session_id is None}
    limits = [
        MessageLimit(numbers[place.branch], place.seq, limit)
        for journal in journals
        for place, limit in message_limits(journal).items()
        if place.branch in numbers and place.seq <= last_seqs.get(numbers[place.branch], -1)
    ]
    return tuple(sorted(limits))


def retained_limit_facts(journal: Iterable[Fact], is_kept: Callable[[Leaf], bool]) -> list[Fact]:
    """Return what stays of the journal of a purged session, for the forks that inherit its entries."""
    retained = {place: limit for place, limit in message_limits(journal).items() if is_kept(place)}
    return list(
        limits_as_facts(MessageLimit(place.branch, place.seq, limit) for place, limit in retained.items())
    )


def limits_as_facts(limits: Iterable[MessageLimit]) -> Iterator[Fact]:
    """Yield the facts that record these limits, as the journal of an absent session."""
    for n, limit in enumerate(limits):
        yield Fact(2 * n + 1, "appended", None, {"branch": limit.branch}, 0)
        yield Fact(
            2 * n + 2, "turn_started", None, {"turn": limit.turn, "max_messages": limit.max_messages}, 0
        )
