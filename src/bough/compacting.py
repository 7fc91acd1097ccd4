"""A compaction by hand: what it would replace, and whether its summary may stand for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .core import context
from .core.entries import Compaction, Entry
from .core.fit import measure
from .core.messages import user
from .errors import BadSummary
from .log import Log


def compaction(log: Log, summary: str, first_kept: int | None, *, folds: bool, **files: Any) -> Compaction:
    """The entry to append; refused if the summary is empty, replaces nothing, or is longer than what it replaces."""
    entries = log.path().entries
    built = context.build(entries)
    cut = log.cut(_before_newest_turn(entries, log.leaf.seq) if first_kept is None else first_kept - 1)
    replaced = [item for item in built.items if item.seq <= cut.at and (folds or not item.pinned)]
    if not summary.strip():
        raise BadSummary("the summary is empty")
    if not replaced:
        raise BadSummary(f"nothing lies before message {cut.at + 1} that it could replace")
    before = sum(measure(item.message).tokens for item in replaced)
    if measure(user(summary)).tokens >= before:
        raise BadSummary(f"the summary is longer than the {before:,} tokens it would replace")
    tokens = sum(measure(item.message).tokens for item in built.items)
    return Compaction(summary, cut.at + 1, tokens, folds=folds, **files)


def _before_newest_turn(entries: Sequence[Entry], last: int) -> int:
    """The seq before the newest turn, or the end if there is no older one."""
    inputs = [entry.seq for entry in entries if entry.turn == entry.seq]
    return inputs[-1] - 1 if len(inputs) > 1 else last
