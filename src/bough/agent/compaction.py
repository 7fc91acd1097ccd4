"""Compaction: a summary in place of what lies before the newest turn.

Written by a model if there is one, else without: who said what, shortened, the same everywhere. A tail larger
than the budget still compacts: if there is no older turn, what the newest one has said so far is summarised,
never inside an open batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..core import context
from ..core.context import Context, Item
from ..core.entries import Compaction, Entry
from ..core.fit import measure
from ..core.messages import user
from ..core.turns import Cursor
from ..errors import ModelError
from ..models.model import Model, Request
from ..wire import Answer
from ..wire.shapes import Blobs

MOST = 4_000
INSTRUCTION = (
    "You summarise conversations between a user and an agent, so that the agent can go on from the summary."
)
ASKED = (
    "Summarise the conversation above: what was asked, what was found and done, which files were read or changed, "
    "what is still open. Keep names, numbers and decisions. Do not continue the conversation."
)


def is_too_long(path: Sequence[Entry], most: int | None) -> bool:
    """Whether the next call would be given more than that, by estimate."""
    if most is None:
        return False
    return sum(measure(item.message).tokens for item in context.build(path).items) > most


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


async def better(
    model: Model, path: Sequence[Entry], made: Compaction, blobs: Blobs
) -> tuple[Compaction, Answer | None]:
    """A summary by a model, and the answer it came in; the one made without if it is not fit to stand for it."""
    answer: Answer | None = None
    try:
        async for piece in model.stream(_request(path, made, blobs)):
            answer = piece if isinstance(piece, Answer) else answer
    except ModelError:
        return made, None
    said = "" if answer is None else answer.message.text
    is_fit = bool(said.strip()) and measure(user(said)).tokens < made.tokens_before
    return (replace(made, summary=said, folds=True) if is_fit else made), answer


def _request(path: Sequence[Entry], made: Compaction, blobs: Blobs) -> Request:
    """Everything that goes, earlier summaries included, and then to sum it up."""
    items = [item for item in context.build(path).items if item.pinned or item.seq < made.first_kept]
    last = Item(user(ASKED), path[-1].seq + 1, 0)
    return Request(Context((INSTRUCTION,), (*items, last)), blobs)


def offline_summary(entries: Sequence[Entry], most: int = MOST) -> str:
    """A summary made without a model: who said what, shortened. The same everywhere."""
    lines = [
        f"{entry.role}: {' '.join(entry.message.text.split())[:200]}"
        for entry in entries
        if entry.message is not None and entry.message.text.strip()
    ]
    text = "\n".join(lines)
    return text[:most] or "(nothing was said)"
