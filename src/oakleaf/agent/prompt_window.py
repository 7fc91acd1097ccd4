"""The part of a history that a model receives: a context, trimmed to the newest whole turns, and how much of a window it fills.

Does not know providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec import Struct

from oakleaf.core import context as contexts
from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Entry
from oakleaf.core.fit import Budget, fit, measure_context
from oakleaf.core.prompt_path import PromptPath
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import group_by_turn
from oakleaf.log.log import Log
from oakleaf.log.prompt import context_within, prompt_entries
from oakleaf.models.windows import SMALL_REQUEST, window_by_name
from oakleaf.stores.base import Fact
from oakleaf.stores.message_limits import message_limits

MAX_FACTS = 144
"""Facts of the journal that are looked through for the start of a turn; beyond them those of all limits are read."""
MessageLimits = Mapping[Leaf, int]
"""The maximum number of messages of a turn's model calls, by the leaf of the turn's input. Other turns: no maximum."""


class WindowUse(Struct, frozen=True):
    """How much of a model's window a request fills, by our estimate of its tokens."""

    tokens: int
    window: int | None
    """None: it is not known, or the request is so small that it fits every model's."""

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
    windows = [session_window, (context.settings.windows or {}).get(name)]
    window = min((window for window in windows if window is not None), default=None)
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


def read_prompt_context(
    log: Log, leaf: Leaf, budget: Budget | None = None, provider: str | None = None
) -> Context:
    """Return the context of a model call at a leaf of the path, as that turn's calls were trimmed, and within a budget.

    Reads the journal back to the start of the turn only, and of the path what the context has: a loop of one's own asks
    before each of its calls.
    """
    limit = _message_limit_at(log, leaf) if leaf.seq else None
    if budget is not None and limit is None:
        return context_within(log, leaf, budget, provider)
    context = trim(contexts.build_context(prompt_entries(log, leaf)), limit)
    return context if budget is None else fit(context, budget, provider).context


class GrowingPrompt:
    """The context at the leaf of a log that grows: each entry is read once, however often a loop asks for its context."""

    def __init__(self, log: Log) -> None:
        self._log, self._path, self._leaf = log, PromptPath(), Leaf(0, 0)
        self._limit: tuple[int, int | None] = 0, None
        """A turn, and the maximum number of messages of its calls: it does not change while the turn is run."""

    def forget(self) -> list[Entry | Item]:
        """Forget what was read, once the turn has ended; return it, to be freed."""
        values, self._path, self._leaf = self._path.values(), PromptPath(), Leaf(0, 0)
        return values

    def context(self) -> Context:
        """Return what `read_prompt_context` returns."""
        log, leaf, before = self._log, self._log.leaf, self._leaf
        if leaf.branch != before.branch or leaf.seq < before.seq:
            self._path = PromptPath(prompt_entries(log, leaf))
        elif leaf.seq > before.seq:
            new = log.store.path(log.session_id, leaf=leaf, first=before.seq + 1)
            self._path.extend(new.entries)
        self._leaf = leaf
        turn = self._path.entries[-1].turn if self._path.entries else 0
        if turn != self._limit[0]:
            self._limit = turn, _message_limit_at(log, leaf)
        return trim(self._path.context(), self._limit[1])


def _message_limit_at(log: Log, leaf: Leaf) -> int | None:
    """Return the limit of the turn that a leaf is in."""
    newest = log.store.path(log.session_id, leaf=leaf, newest=1)
    turn = newest.entries[-1].turn
    branches = (part.branch for part in newest.ranges if part.first <= turn <= part.last)
    return _message_limit(log, Leaf(next(branches), turn)) if turn else None


def _message_limit(log: Log, leaf: Leaf) -> int | None:
    """Return the limit of the turn whose input is at this leaf."""
    resumed: list[Fact] = []
    started: Fact | None = None
    for fact in islice(log.facts_backwards(), MAX_FACTS):
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


def tree_message_limits(log: Log) -> dict[Leaf, int]:
    """Return the limits of the session's own turns, and of the turns below its fork."""
    limits: dict[Leaf, int] = {}
    for journal in reversed(log.store.limit_journals(log.session_id)):
        limits |= message_limits(journal)
    return limits
