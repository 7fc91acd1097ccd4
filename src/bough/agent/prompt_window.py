"""What a model was given: the context of a place, with as many messages as the turn that asked was to give.

Knows how to trim it so. Does not know providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core import context as contexts
from ..core.context import Context
from ..core.entries import Entry
from ..core.tree import Leaf
from ..log.log import Log
from ..stores.message_limits import message_limits
from .limits import trim

MessageLimits = Mapping[Leaf, int]
"""By the place of a turn's input: how many messages its calls were given at the most. The others: all."""


def prompt_context(path: Sequence[Entry], most: MessageLimits) -> Context:
    """What a model was given behind the last entry of a whole path, or would be by the turn it belongs to."""
    turn = path[-1].turn if path else 0
    asked = Leaf(path[turn - 1].branch, turn) if turn else Leaf(0, 0)
    return trim(contexts.build_context(path), most.get(asked))


def tree_message_limits(log: Log) -> dict[Leaf, int]:
    """Of the session, and of the turns it stands on, whoever ran them."""
    found = message_limits(log.store.journal(log.session_id))
    branches = log.store.branches(log.session_id)
    if all(branch.session_id == log.session_id for branch in branches):
        return found
    numbers = dict(enumerate(sorted(branch.branch for branch in branches), 1))
    with log.store.export_sessions(log.session_id) as dumps:
        below = next(iter(dumps.sessions)).inherited_limits
    return {**{Leaf(numbers[one.branch], one.turn): one.max_messages for one in below}, **found}
