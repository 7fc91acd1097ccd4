"""Compaction when no model is to be had: a summary that is the same everywhere.

Who said what, shortened. A tail larger than the budget still compacts: if there is no older turn, what the
newest one has said so far is summarised, never inside an open batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import context
from ..core.entries import Compaction, Entry
from ..core.fit import measure
from ..core.turns import Cursor

MOST = 4_000


def summarise(path: Sequence[Entry], cursor: Cursor) -> Compaction | None:
    """What takes the place of everything before the newest turn, or of the steps of a turn that is all there is.

    None if nothing but one input lies there: it is never dropped silently.
    """
    tokens = sum(measure(item.message).tokens for item in context.build(path).items)
    older = [entry for entry in path if entry.turn and entry.seq < cursor.turn]
    if older:
        return Compaction(offline_summary(older), cursor.turn, tokens)
    turn = [entry for entry in path if entry.turn == cursor.turn and entry.message is not None]
    if len(turn) < 2 or turn[0].message is None:
        return None
    summary = f"{turn[0].message.text}\n\nSo far:\n{offline_summary(turn[1:])}"
    return Compaction(summary, path[-1].seq + 1, tokens)


def offline_summary(entries: Sequence[Entry], most: int = MOST) -> str:
    """A summary made without a model: who said what, shortened. The same everywhere."""
    lines = [
        f"{entry.role}: {' '.join(entry.message.text.split())[:200]}"
        for entry in entries
        if entry.message is not None and entry.message.text.strip()
    ]
    text = "\n".join(lines)
    return text[:most] or "(nothing was said)"
