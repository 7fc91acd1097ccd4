"""The part of a history that a model is given: a context, trimmed to the newest whole turns, and how much of a window it fills.

Does not know providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ..core import context as contexts
from ..core.context import Context
from ..core.entries import Entry
from ..core.fit import Budget, fit, measure_context
from ..core.tree import Leaf
from ..core.turns import group_by_turn
from ..log.log import Log
from ..models.windows import SMALL_REQUEST, window_by_name
from ..stores.base import Fact
from ..stores.message_limits import message_limits

PAGE = 100
"""How many facts are read at a time."""
MessageLimits = Mapping[Leaf, int]
"""The maximum number of messages of a turn's model calls, by the leaf of the turn's input. Other turns: no maximum."""


class WindowUse(Struct, frozen=True):
    """How much of a model's window a request fills, by our estimate of its tokens."""

    tokens: int
    window: int | None
    """None: nobody knows it, or the request is so small that it fits every model's."""

    def __str__(self) -> str:
        if self.window is None:
            return f"about {self.tokens:,} tokens"
        return f"about {self.tokens:,} of {self.window:,} tokens ({100 * self.tokens // self.window} %)"


def measure_window(context: Context, model: str | None, session_window: int | None) -> WindowUse:
    """Return what the request fills of the window of a model, by its name.

    `session_window` is that of the session, which holds for every model of it.
    """
    name = model or ""
    tokens = measure_context(context, name.partition(":")[0] or None).tokens
    known = [session_window, (context.settings.windows or {}).get(name)]
    window = min((window for window in known if window is not None), default=None)
    if window is None and tokens > SMALL_REQUEST:
        window = window_by_name(name)
    return WindowUse(tokens, window)


def trim(context: Context, max_messages: int | None) -> Context:
    """Keep the newest whole turns, `max_messages` at most. The newest turn is always kept whole."""
    if max_messages is None:
        return context
    turns = group_by_turn(item for item in context.items if not item.pinned)
    needed = sum(item.pinned for item in context.items) + (len(turns[-1]) if turns else 0)
    return fit(context, Budget(messages=max(max_messages, needed))).context


def prompt_context(path: Sequence[Entry], limits: MessageLimits) -> Context:
    """Return the context of a model call after the last entry of a whole path, trimmed as that turn's calls were."""
    turn = path[-1].turn if path else 0
    leaf = Leaf(path[turn - 1].branch, turn) if turn else Leaf(0, 0)
    return trim(contexts.build_context(path), limits.get(leaf))


def read_prompt_context(log: Log, path: Sequence[Entry]) -> Context:
    """Return the context of a model call after the last entry of a whole path, as that turn's calls were trimmed.

    Reads the journal back to the start of the turn only: a loop of one's own asks before each of its calls.
    """
    turn = path[-1].turn if path else 0
    if not turn:
        return contexts.build_context(path)
    return trim(contexts.build_context(path), _message_limit(log, Leaf(path[turn - 1].branch, turn)))


def _message_limit(log: Log, leaf: Leaf) -> int | None:
    """Return the limit of the turn whose input is at this leaf."""
    resumed: list[Fact] = []
    started: Fact | None = None
    for fact in _journal_backwards(log):
        if fact.kind == "turn_resumed" and fact.data.get("turn") == leaf.seq:
            resumed.append(fact)
        elif fact.kind == "turn_started" and fact.data["turn"] == leaf.seq:
            started = fact
        elif fact.kind == "appended" and fact.data["first"] <= leaf.seq <= fact.data["last"]:
            if fact.data["branch"] == leaf.branch:
                newest = resumed[0] if resumed else started
                return None if newest is None else newest.data.get("max_messages")
            resumed, started = [], None  # of a turn on another branch
    return tree_message_limits(log).get(leaf)


def _journal_backwards(log: Log) -> Iterator[Fact]:
    """Yield the facts of a session, the newest first."""
    end = log.store.session(log.session_id).facts
    while end > 0:
        begin = max(0, end - PAGE)
        yield from reversed(log.store.journal(log.session_id, begin, end - begin))
        end = begin


def tree_message_limits(log: Log) -> dict[Leaf, int]:
    """Return the limits of the session's own turns, and of the turns below its fork."""
    own = message_limits(log.store.journal(log.session_id))
    branches = log.store.branches(log.session_id)
    if all(branch.session_id == log.session_id for branch in branches):
        return own
    numbers = dict(enumerate(sorted(branch.branch for branch in branches), 1))
    with log.store.export_sessions(log.session_id) as dumps:
        inherited = next(iter(dumps.sessions)).inherited_limits
    return {**{Leaf(numbers[limit.branch], limit.turn): limit.max_messages for limit in inherited}, **own}
