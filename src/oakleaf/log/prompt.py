"""The entries of a model's request at a leaf, read from the store without the other messages.

Neither compacted messages nor messages beyond a budget are read: both are as fast in a session of 100,000
entries as in one of 1,000. The entries are a path with gaps; `core.context` builds the same context from the
gapped path as from the whole path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oakleaf.core.context import Context, Item, build_context, first_shown, head_length, trim, whole_context
from oakleaf.core.entries import Entry
from oakleaf.core.fit import Budget, fit
from oakleaf.core.prompt_path import PromptPath
from oakleaf.core.tree import Leaf
from oakleaf.log.log import Log
from oakleaf.stores.base import PathSnapshot

NEWEST = 256
"""The number of entries to read first: most sessions have no more."""
HEAD = 8
"""Entries read first for the system prompt; eight times as many at each further try."""
WINDOW = 64
"""Entries read first for a budget; four times as many in all at each further try."""


def load(log: Log) -> tuple[PathSnapshot, PromptPath]:
    """Move to the session's current leaf; return row, details and the entries of the prompt.

    One read if there are few.
    """
    snapshot = log.load(newest=NEWEST)
    return snapshot, PromptPath(complete(log, snapshot.row.leaf, snapshot.entries))


def prompt_entries(log: Log, leaf: Leaf) -> list[Entry]:
    """Return the entries of a path for the context, the settings and the next action."""
    newest = log.store.path(log.session_id, leaf=leaf, newest=NEWEST).entries if leaf.seq else []
    return complete(log, leaf, newest)


def complete(log: Log, leaf: Leaf, newest: list[Entry]) -> list[Entry]:
    """Return the entries of the prompt, given the newest entries of the path."""
    if not newest or newest[0].seq == 1:
        return newest
    control = log.store.control_entries(log.session_id, leaf=leaf)
    first_kept, kept_input = first_shown(control)
    return _join(log, leaf, control, _read_from(log, leaf, newest, first_kept), kept_input)


def prompt_frame(log: Log, leaf: Leaf) -> list[Entry]:
    """Return the entries around a context: system prompt, settings, compactions and the first message."""
    if not leaf.seq:
        return []
    control = log.store.control_entries(log.session_id, leaf=leaf)
    return _in_order((*_head(log, leaf, leaf.seq), *control), leaf.seq + 1)


def read_context(log: Log, leaf: Leaf, budget: Budget | None = None, provider: str | None = None) -> Context:
    """Return the context of a model call at a leaf of the path, within an optional budget."""
    if budget is not None:
        return context_within(log, leaf, budget, provider)
    return build_context(prompt_entries(log, leaf))


def context_within(log: Log, leaf: Leaf, budget: Budget, provider: str | None = None) -> Context:
    """Return the context of a path cut to a budget.

    Reads backwards from the leaf, as far as the budget and the maximum of messages reach.
    """
    control = log.store.control_entries(log.session_id, leaf=leaf) if leaf.seq else []
    first_kept, kept_input = first_shown(control)
    tail: list[Entry] = []
    head: list[Entry] | None = None
    first = leaf.seq + 1
    while first > first_kept:
        tail = _read_from(log, leaf, tail, max(first_kept, first - WINDOW - 3 * len(tail)), first)
        first = tail[0].seq
        if first <= first_kept:
            break
        start = next((entry.seq for entry in tail if entry.is_input), None)
        if start is None:
            continue
        head = _head(log, leaf, first - 1) if head is None else head
        before = _in_order((*head, *control), first)
        whole = whole_context([*before, *tail], start)
        fitted = fit(trim(whole), budget, provider).context
        if len(fitted.items) < len(whole.items):  # all older entries are left out too
            return fitted
    return fit(build_context(_join(log, leaf, control, tail, kept_input)), budget, provider).context


class GrowingPrompt:
    """The context at the leaf of a growing log: a loop reads each entry once."""

    def __init__(self, log: Log) -> None:
        self._log, self._path, self._leaf = log, PromptPath(), Leaf(0, 0)

    def forget(self) -> list[Entry | Item]:
        """Forget the entries after the end of the turn; return the entries, to be freed."""
        values, self._path, self._leaf = self._path.values(), PromptPath(), Leaf(0, 0)
        return values

    def context(self) -> Context:
        """Return the same context as `read_context`."""
        log, leaf, before = self._log, self._log.leaf, self._leaf
        if leaf.branch != before.branch or leaf.seq < before.seq:
            self._path = PromptPath(prompt_entries(log, leaf))
        elif leaf.seq > before.seq:
            new = log.store.path(log.session_id, leaf=leaf, first=before.seq + 1)
            self._path.extend(new.entries)
        self._leaf = leaf
        return self._path.context()


def _read_from(log: Log, leaf: Leaf, tail: list[Entry], first: int, before: int | None = None) -> list[Entry]:
    """Return the newest entries from seq `first` on, given the entries from seq `before` on."""
    before = tail[0].seq if tail else leaf.seq + 1 if before is None else before
    if first >= before:
        return tail
    return [*log.store.path(log.session_id, leaf=leaf, first=first, last=before - 1).entries, *tail]


def _join(log: Log, leaf: Leaf, control: Sequence[Entry], tail: list[Entry], kept_input: int) -> list[Entry]:
    """Return the path with gaps: system prompt, settings, compactions, kept inputs and the tail."""
    first = tail[0].seq if tail else leaf.seq + 1
    if first <= 1:
        return tail
    turn = next((entry.turn for entry in reversed(tail) if entry.turn), 0)
    turn = turn or next((entry.turn for entry in log.backwards(leaf, first - 1) if entry.turn), 0)
    head = _head(log, leaf, first - 1)
    inputs = [
        entry
        for seq in {turn, kept_input}
        if 0 < seq < first
        for entry in log.store.path(log.session_id, leaf=leaf, first=seq, last=seq).entries
    ]
    return [*_in_order((*head, *control, *inputs), first), *tail]


def _head(log: Log, leaf: Leaf, last: int) -> list[Entry]:
    """Return the system prompt and the first message afterwards."""
    count = HEAD
    while True:
        entries = log.store.path(log.session_id, leaf=leaf, last=min(count, last)).entries
        length = head_length(entries)
        if length < len(entries) or count >= last:
            return entries[: length + 1]
        count *= 8


def _in_order(entries: Iterable[Entry], end: int) -> list[Entry]:
    """Return the entries before seq `end`, each once."""
    by_seq = {entry.seq: entry for entry in entries if entry.seq < end}
    return [by_seq[seq] for seq in sorted(by_seq)]
