"""A compaction by hand: what it would replace, and whether its summary may stand for it.

Without a summary of somebody's one is made as the loop makes it when no model is to be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..core import context
from ..core.entries import Compaction, Entry
from ..core.fit import measure
from ..core.messages import user
from ..core.turns import Cursor
from ..errors import InvalidSummary
from ..log.log import Log


def compaction(
    log: Log, summary: str | None, first_kept: int | None, *, replaces_earlier: bool, **files: Any
) -> Compaction:
    """The entry to append; refused if the summary is empty, replaces nothing, or is longer than what it replaces."""
    entries = log.path().entries
    cut = log.cut(_before_newest_turn(entries, log.leaf.seq) if first_kept is None else first_kept - 1)
    if summary is not None:
        return _given(entries, summary, cut.at, replaces_earlier=replaces_earlier, **files)
    from .compaction import summarise  # late: few sessions are compacted, all are opened

    is_waiting = first_kept is None and log.cursor.turn  # then its input stays whole, as in the loop
    made = summarise(entries, log.cursor if is_waiting else Cursor(turn=cut.at + 1))
    if made is None or not (is_waiting or made.first_kept == cut.at + 1):
        raise InvalidSummary(f"nothing lies before message {cut.at + 1} that a summary would be shorter than")
    return replace(made, **files)


def _given(
    entries: Sequence[Entry], summary: str, at: int, *, replaces_earlier: bool, **files: Any
) -> Compaction:
    built = context.build_context(entries)
    replaced = [item for item in built.items if item.seq <= at and (replaces_earlier or not item.pinned)]
    if not summary.strip():
        raise InvalidSummary("the summary is empty")
    if not replaced:
        raise InvalidSummary(f"nothing lies before message {at + 1} that it could replace")
    before = sum(measure(item.message).tokens for item in replaced)
    if measure(user(summary)).tokens >= before:
        raise InvalidSummary(f"the summary is longer than the {before:,} tokens it would replace")
    tokens = sum(measure(item.message).tokens for item in built.items)
    return Compaction(summary, at + 1, tokens, replaces_earlier=replaces_earlier, **files)


def _before_newest_turn(entries: Sequence[Entry], last: int) -> int:
    """The seq before the newest turn, or the end if there is no older one."""
    inputs = [entry.seq for entry in entries if entry.turn == entry.seq]
    return inputs[-1] - 1 if len(inputs) > 1 else last
