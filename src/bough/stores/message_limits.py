"""How many messages the calls of a turn were given at the most, by the place of its input.

The journal of whoever ran the turn tells it. Of a session that is gone, or was never here, only that much of its
journal is kept: what a fork stands on was given to a model as it was given. Knows facts; does not know contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from ..core.tree import Branch, Leaf
from .base import Fact

LIMIT_FACT_KINDS = ("appended", "turn_started", "turn_resumed")
"""The facts that tell it."""


class MessageLimit(Struct, frozen=True, gc=False, order=True):
    """Of a turn that a session stands on and did not run itself."""

    branch: int
    turn: int
    max_messages: int


def message_limits(facts: Iterable[Fact]) -> dict[Leaf, int]:
    """Of one journal. The input of a turn was appended by the fact before; who goes on with it may give another number."""
    found: dict[Leaf, int | None] = {}
    inputs: dict[int, Leaf] = {}
    branch = 0
    for fact in facts:
        if fact.kind == "appended":
            branch = fact.data["branch"]
        elif fact.kind == "turn_started":
            inputs[fact.data["turn"]] = Leaf(branch, fact.data["turn"])
        if fact.kind in ("turn_started", "turn_resumed") and (turn := fact.data.get("turn")) in inputs:
            found[inputs[turn]] = fact.data.get("max_messages")
    return {place: most for place, most in found.items() if most is not None}


def select_inherited_limits(
    journals: Iterable[Iterable[Fact]], branches: Iterable[Branch], numbers: Mapping[int, int]
) -> tuple[MessageLimit, ...]:
    """Of other sessions' turns those that belong to what is stood on, by the numbers of a dump."""
    reach = {branch.branch: branch.tail for branch in branches if branch.session_id is None}
    found = [
        MessageLimit(numbers[place.branch], place.seq, most)
        for journal in journals
        for place, most in message_limits(journal).items()
        if place.branch in numbers and place.seq <= reach.get(numbers[place.branch], -1)
    ]
    return tuple(sorted(found))


def retained_limit_facts(journal: Iterable[Fact], stays: Callable[[Leaf], bool]) -> list[Fact]:
    """What is left of a journal whose session goes, for those who stand on its entries."""
    kept = {place: most for place, most in message_limits(journal).items() if stays(place)}
    return list(limits_as_facts(MessageLimit(place.branch, place.seq, most) for place, most in kept.items()))


def limits_as_facts(given: Iterable[MessageLimit]) -> Iterator[Fact]:
    """As a journal of a session that is not here tells it, and nothing else."""
    for n, one in enumerate(given):
        yield Fact(2 * n + 1, "appended", None, {"branch": one.branch}, 0)
        yield Fact(2 * n + 2, "turn_started", None, {"turn": one.turn, "max_messages": one.max_messages}, 0)
