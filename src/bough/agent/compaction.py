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


def summarise(path: Sequence[Entry], cursor: Cursor) -> Compaction:
    """What takes the place of everything before the newest turn, or before its latest step."""
    built = context.build(path)
    older = [entry for entry in path if entry.seq < cursor.turn and entry.turn]
    first_kept = cursor.turn if older else path[-1].seq + 1
    tokens = sum(measure(item.message).tokens for item in built.items)
    return Compaction(offline_summary(older or path), first_kept, tokens)


def offline_summary(entries: Sequence[Entry], most: int = MOST) -> str:
    """A summary made without a model: who said what, shortened. The same everywhere."""
    lines = [
        f"{entry.role}: {' '.join(entry.message.text.split())[:200]}"
        for entry in entries
        if entry.message is not None and entry.message.text.strip()
    ]
    text = "\n".join(lines)
    return text[:most] or "(nothing was said)"
