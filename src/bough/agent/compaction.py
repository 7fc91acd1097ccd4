"""Compaction: a summary in place of what lies before the newest turn.

Written by a model if there is one, else without: who said, asked and found what, shortened, the same everywhere.
A tail larger than the budget still compacts: if there is no older turn, what the newest one has said so far is
summarised, never inside an open batch. A summary that is no shorter than what it replaces is not made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..core import context
from ..core.context import Context, Item
from ..core.drafts import Draft
from ..core.entries import Compaction, Entry
from ..core.fit import measure
from ..core.messages import ToolCall, user
from ..core.search_text import searchable_text
from ..core.turns import Cursor
from ..core.usage import Call, Usage
from ..errors import ModelError
from ..models.model import Model, Request
from ..models.prices import price_of
from ..wire import Answer
from ..wire.base import Blobs
from .cancellation import run_uncancelled
from .events import Event

if TYPE_CHECKING:
    from .loop import Loop

MOST = 4_000
LONGEST_LINE = 200
SHORTEST_LINE = 24
INSTRUCTION = (
    "You summarise conversations between a user and an agent, so that the agent can go on from the summary."
)
ASKED = (
    "Summarise the conversation above: what was asked, what was found and done, which files were read or changed, "
    "what is still open. Keep names, numbers and decisions. Do not continue the conversation."
)
READS = frozenset(["read_file"])
CHANGES = frozenset(["write_file", "edit_file"])


async def compact(loop: Loop) -> Event | None:
    """Append a summary; None if there is nothing it could take the place of."""
    made = summarise(loop.path, loop.log.cursor, loop.limits.context_tokens)
    if made is None:
        return None
    calls: list[Call] = []
    model = loop.limits.summariser
    if model is not None and not await loop.is_spent():
        made, call = await _asked(loop, model, made)
        calls.append(call)
    await loop.append(Draft(made), calls=calls, replaces_call=True)
    told = {"first_kept": made.first_kept, "tokens_before": made.tokens_before}
    return Event("session:compacted", told, loop.n)


async def _asked(loop: Loop, model: Model, made: Compaction) -> tuple[Compaction, Call]:
    """The call is counted before it is made, so that one cut off by a crash is counted too."""
    call = loop.side_call(model, "compaction")
    await loop.record("call_started", calls=[call])
    try:
        made, answer = await better(model, loop.path, made, loop.blob)
    except asyncio.CancelledError:
        failed = [replace(call, failed=True)]
        why = {"why": "cancelled"}
        await run_uncancelled(loop.record("call_failed", data=why, calls=failed, replaces_call=True))
        raise
    usage = None if answer is None else answer.usage
    cost = None if usage is None else price_of(model, usage)
    return made, replace(call, usage=usage or Usage(), price=cost, failed=answer is None)


class Sizes:
    """How long the messages of one path are, by estimate. The path only grows, so each is measured once: to measure
    one it is encoded, which took 45 ms for 12,800 of them, before every step.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def is_too_long(self, given: Context, most: int) -> bool:
        """Whether that is more than so many tokens."""
        for item in given.items:
            if item.seq not in self._tokens:
                self._tokens[item.seq] = measure(item.message).tokens
        return sum(self._tokens[item.seq] for item in given.items) > most


def summarise(path: Sequence[Entry], cursor: Cursor, window: int | None = None) -> Compaction | None:
    """What takes the place of everything before the newest turn, or of the steps of a turn that is all there is.

    None if nothing but one input lies there, which is never dropped silently, or if it would be no shorter.
    A quarter of the window is for summaries: with what an earlier one told, all of it shorter, it stays below.
    """
    earlier = [compaction for _, compaction in context.active_compactions(path)]
    first = earlier[-1].first_kept if earlier else 1
    untold = [entry for entry in path if entry.turn and entry.seq >= first]
    older = [entry for entry in untold if entry.seq < cursor.turn]
    tokens = _tokens(context.build_context(path).items)
    most = MOST if window is None else min(MOST, max(window, SHORTEST_LINE))
    if older:
        # Seeds go with the turns behind them; the system prompt stays.
        told = [e for e in path if first <= e.seq < cursor.turn and (e.turn or e.role != "system")]
        made = _of_turns(earlier, told, cursor.turn, tokens, most)
    else:
        turn = [entry for entry in untold if entry.message is not None]
        if len(turn) < 2 or turn[0].message is None:
            return None
        summary = f"{turn[0].message.text}\n\nSo far:\n{offline_summary(turn[1:], most)}"
        made = Compaction(summary, path[-1].seq + 1, tokens, *_files(turn))
    return made if _is_shorter(path, made) else None


def _of_turns(
    earlier: Sequence[Compaction], older: Sequence[Entry], first_kept: int, tokens: int, most: int
) -> Compaction:
    """One summary for all that earlier ones told and all that came since.

    Lines are made shorter so that all of them have room; prose, which somebody wrote, stays as it is.
    """
    told = [line for compaction in earlier for line in compaction.summary.splitlines() if line]
    prose = [line for line in told if len(line) > LONGEST_LINE + len("assistant: ")]
    lines = [line for line in told if line not in prose] + list(_lines(older))
    room = max(most // 2, most - sum(len(line) + 1 for line in prose))
    summary = "\n".join([*prose, _shortened(lines, room)])
    return Compaction(summary, first_kept, tokens, *_files(older, earlier), replaces_earlier=bool(earlier))


def _is_shorter(path: Sequence[Entry], made: Compaction) -> bool:
    return measure(context.summary_item(0, made).message).tokens < _tokens(_replaced(path, made))


def _replaced(path: Sequence[Entry], made: Compaction) -> list[Item]:
    """What a model would no longer see."""
    items = context.build_context(path).items
    return [item for item in items if (made.replaces_earlier if item.pinned else item.seq < made.first_kept)]


def _tokens(items: Sequence[Item]) -> int:
    return sum(measure(item.message).tokens for item in items)


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
    asked = replace(made, summary=said, replaces_earlier=True)
    is_fit = bool(said.strip()) and _is_shorter(path, asked)
    return (asked if is_fit else made), answer


def _request(path: Sequence[Entry], made: Compaction, blobs: Blobs) -> Request:
    """Everything that goes, earlier summaries included, and then to sum it up."""
    last = Item(user(ASKED), path[-1].seq + 1, 0)
    return Request(
        Context((INSTRUCTION,), (*_replaced(path, replace(made, replaces_earlier=True)), last)), blobs
    )


def offline_summary(entries: Sequence[Entry], most: int = MOST) -> str:
    """A summary made without a model: who said, asked and found what, shortened. The same everywhere."""
    return _shortened(list(_lines(entries)), most) or "(nothing was said)"


def _lines(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        said = " ".join(searchable_text(entry.payload).split()) if entry.message is not None else ""
        if said:
            yield f"{entry.role}: {said}"[: LONGEST_LINE + len("assistant: ")]


def _shortened(lines: list[str], most: int) -> str:
    """All of them, each as long as all can be; so many that they would say nothing: the first and the newest ones."""
    if sum(len(line) + 1 for line in lines) <= most:
        return "\n".join(lines)
    fits = max(2, most // (SHORTEST_LINE + 1))
    if len(lines) > fits:
        first = fits // 4
        newest = lines[len(lines) - (fits - first - 1) :]
        lines = [*lines[:first], f"(… {len(lines) - fits + 1} more …)", *newest]
    each = most // len(lines) - 1
    return "\n".join(line if len(line) <= each else f"{line[: each - 1]}…" for line in lines)


def _files(
    entries: Sequence[Entry], earlier: Sequence[Compaction] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that were read and those that were changed, each once, in order."""
    calls = [call for entry in entries if entry.message is not None for call in entry.message.calls]
    read = [*(path for one in earlier for path in one.files_read), *_paths(calls, READS)]
    changed = [*(path for one in earlier for path in one.files_changed), *_paths(calls, CHANGES)]
    return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(changed))


def _paths(calls: Sequence[ToolCall], names: frozenset[str]) -> list[str]:
    found = [call.arguments.get("path") for call in calls if call.name in names]
    return [path for path in found if isinstance(path, str)]
