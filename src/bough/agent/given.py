"""What a model was given: the context of a place, with as many messages as the turn that asked was to give.

Knows the facts that tell it. Does not know providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core import context as contexts
from ..core.context import Context
from ..core.entries import Entry
from ..core.tree import Leaf
from ..log import Log
from ..stores.store import Fact
from .limits import trimmed

Most = Mapping[Leaf, int]
"""By the place of a turn's input: how many messages its calls were given at the most. The others: all."""


def given(path: Sequence[Entry], most: Most) -> Context:
    """What a model was given behind the last entry of a whole path, or would be by the turn it belongs to."""
    turn = path[-1].turn if path else 0
    asked = Leaf(path[turn - 1].branch, turn) if turn else Leaf(0, 0)
    return trimmed(contexts.build(path), most.get(asked))


def most_messages(facts: Iterable[Fact]) -> dict[Leaf, int]:
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


def most_on_tree(log: Log) -> dict[Leaf, int]:
    """Of the session and of those it was forked from, as far as they are still there."""
    owners = dict.fromkeys(branch.session_id for branch in log.store.branches(log.session_id))
    journals = [log.store.journal(owner) for owner in owners if owner is not None]
    return {place: most for journal in journals for place, most in most_messages(journal).items()}
