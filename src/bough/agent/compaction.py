"""Compaction: a summary replaces everything before the newest turn.

A model writes it if there is one; otherwise it lists every message, shortened, the same on every machine. A newest
turn larger than the budget is compacted too: if there is no older turn, its steps so far are summarised, never inside
an open batch. A summary that is not shorter than what it replaces is not made.
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
from ..errors import InvalidSummary, ModelError
from ..log.log import Log
from ..models.model import Model, Request
from ..models.prices import price_of
from ..wire import Answer
from ..wire.base import Blobs
from .events import Event
from .limits import LimitChecker, NextCall
from .writer import Writer, run_uncancelled

if TYPE_CHECKING:
    from .model_call import ModelCaller

MAX_SUMMARY = 4_000
MAX_LINE = 200
MIN_LINE = 24
INSTRUCTION = "You summarise conversations between a user and an agent, so that the agent can continue from the summary."
REQUEST = (
    "Summarise the conversation above: what was asked, what was found and done, which files were read or changed, "
    "what is still open. Keep names, numbers and decisions. Do not continue the conversation."
)
READS = frozenset(["read_file"])
CHANGES = frozenset(["write_file", "edit_file"])


class Compactor:
    """Compacts the history of a run, once per turn at most."""

    def __init__(self, writer: Writer, limits: LimitChecker) -> None:
        self._writer, self._limits = writer, limits
        self.start_turn()

    def start_turn(self) -> None:
        self._is_done = False
        self._sizes = Sizes()

    def is_needed(self, caller: ModelCaller) -> bool:
        """Whether the context of the next model call is too long."""
        max_tokens = self._limits.limits.context_tokens
        return (
            max_tokens is not None
            and not self._is_done
            and self._sizes.is_too_long(caller.context(), max_tokens)
        )

    async def compact(self) -> Event | None:
        """Append a summary; None if there is nothing it could replace, or this turn had one already."""
        if self._is_done:
            return None
        self._is_done = True
        writer, limits = self._writer, self._limits.limits
        compaction = summarise(writer.path, writer.log.cursor, limits.context_tokens)
        if compaction is None:
            return None
        calls: list[Call] = []
        if limits.summariser is not None and await self._is_affordable(limits.summariser, compaction):
            compaction, call = await self._ask_summariser(limits.summariser, compaction)
            calls.append(call)
        await writer.append(Draft(compaction), calls=calls, replaces_call=True)
        data = {
            "summary": compaction.summary,
            "first_kept": compaction.first_kept,
            "tokens_before": compaction.tokens_before,
        }
        return Event("session:compacted", data, writer.journal_number)

    async def _is_affordable(self, model: Model, compaction: Compaction) -> bool:
        """Whether the limit on the cost allows the call for a summary."""
        writer = self._writer
        next_call = NextCall(model, lambda: _summary_request(writer.path, compaction, writer.blob))
        limit = await self._limits.check_cost(next_call)
        return limit is None or limit.is_warning

    async def _ask_summariser(self, model: Model, compaction: Compaction) -> tuple[Compaction, Call]:
        """Record the call, then make it: so one that a crash cuts off is counted too."""
        writer = self._writer
        call = writer.side_call(model, "compaction")
        is_made = False
        try:
            await writer.record("call_started", calls=[call])
            is_made = True
            compaction, answer = await improve_summary(model, writer.path, compaction, writer.blob)
        except asyncio.CancelledError:
            if not is_made:
                await run_uncancelled(writer.drop_call(call.call_id))
                raise
            failed, why = [replace(call, failed=True)], {"why": "cancelled"}
            await run_uncancelled(writer.record("call_failed", data=why, calls=failed, replaces_call=True))
            raise
        usage = None if answer is None else answer.usage
        price = None if usage is None else price_of(model, usage)
        return compaction, replace(call, usage=usage or Usage(), price=price, failed=answer is None)


class Sizes:
    """The estimated tokens of each message of one path. The path only grows, so each is measured once: measuring
    encodes a message, which took 45 ms for 12,800 of them, before every step."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def is_too_long(self, context: Context, max_tokens: int) -> bool:
        for item in context.items:
            if item.seq not in self._tokens:
                self._tokens[item.seq] = measure(item.message).tokens
        return sum(self._tokens[item.seq] for item in context.items) > max_tokens


def summarise(path: Sequence[Entry], cursor: Cursor, window: int | None = None) -> Compaction | None:
    """Summarise everything before the newest turn, or the steps of a turn that is the only one, without a model.

    None if that is a single input, which is never dropped silently, or if the summary would not be shorter. A quarter
    of the window is for summaries: shortened together with earlier ones, this one stays below it.
    """
    earlier = [compaction for _, compaction in context.active_compactions(path)]
    first = earlier[-1].first_kept if earlier else 1
    unsummarised = [entry for entry in path if entry.turn and entry.seq >= first]
    tokens = _tokens(context.build_context(path).items)
    length = MAX_SUMMARY if window is None else min(MAX_SUMMARY, max(window, MIN_LINE))
    if any(entry.seq < cursor.turn for entry in unsummarised):
        # Seeds are summarised with the turns after them; the system prompt stays.
        older = [e for e in path if first <= e.seq < cursor.turn and (e.turn or e.role != "system")]
        compaction = _summarise_turns(earlier, older, cursor.turn, tokens, length)
    else:
        turn = [entry for entry in unsummarised if entry.message is not None]
        if len(turn) < 2 or turn[0].message is None:
            return None
        summary = f"{turn[0].message.text}\n\nSo far:\n{offline_summary(turn[1:], length)}"
        compaction = Compaction(summary, path[-1].seq + 1, tokens, *_files(turn))
    return compaction if _is_shorter(path, compaction) else None


def _summarise_turns(
    earlier: Sequence[Compaction], older: Sequence[Entry], first_kept: int, tokens: int, length: int
) -> Compaction:
    """One summary for earlier ones and everything since.

    Lines are shortened so that all of them fit; prose, which a person or a model wrote, stays as it is.
    """
    summarised = [line for compaction in earlier for line in compaction.summary.splitlines() if line]
    prose = [line for line in summarised if len(line) > MAX_LINE + len("assistant: ")]
    lines = [line for line in summarised if line not in prose] + list(_lines(older))
    room = max(length // 2, length - sum(len(line) + 1 for line in prose))
    summary = "\n".join([*prose, _shorten(lines, room)])
    return Compaction(summary, first_kept, tokens, *_files(older, earlier), replaces_earlier=bool(earlier))


def _is_shorter(path: Sequence[Entry], compaction: Compaction) -> bool:
    summary = measure(context.summary_item(0, compaction).message)
    return summary.tokens < _tokens(_replaced_items(path, compaction))


def _replaced_items(path: Sequence[Entry], compaction: Compaction) -> list[Item]:
    """Return the items that a model would no longer see."""
    return [
        item
        for item in context.build_context(path).items
        if (compaction.replaces_earlier if item.pinned else item.seq < compaction.first_kept)
    ]


def _tokens(items: Sequence[Item]) -> int:
    return sum(measure(item.message).tokens for item in items)


async def improve_summary(
    model: Model, path: Sequence[Entry], compaction: Compaction, blobs: Blobs
) -> tuple[Compaction, Answer | None]:
    """Let a model write the summary; return it with the model's answer. A summary that is empty or too long is not
    used."""
    answer: Answer | None = None
    try:
        async for piece in model.stream(_summary_request(path, compaction, blobs)):
            answer = piece if isinstance(piece, Answer) else answer
    except ModelError:
        return compaction, None
    text = "" if answer is None else answer.message.text
    improved = replace(compaction, summary=text, replaces_earlier=True)
    is_usable = bool(text.strip()) and _is_shorter(path, improved)
    return (improved if is_usable else compaction), answer


def _summary_request(path: Sequence[Entry], compaction: Compaction, blobs: Blobs) -> Request:
    """Build the request to summarise everything that is replaced, earlier summaries included."""
    replaced = _replaced_items(path, replace(compaction, replaces_earlier=True))
    last = Item(user(REQUEST), path[-1].seq + 1, 0)
    return Request(Context((INSTRUCTION,), (*replaced, last)), blobs)


def offline_summary(entries: Sequence[Entry], length: int = MAX_SUMMARY) -> str:
    """Summarise without a model: each message in a line, shortened, the same on every machine."""
    return _shorten(list(_lines(entries)), length) or "(no text)"


def _lines(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        text = " ".join(searchable_text(entry.payload).split()) if entry.message is not None else ""
        if text:
            yield f"{entry.role}: {text}"[: MAX_LINE + len("assistant: ")]


def _shorten(lines: list[str], length: int) -> str:
    """Shorten all lines alike; if they would be too short to read, keep only the first and the newest ones."""
    if sum(len(line) + 1 for line in lines) <= length:
        return "\n".join(lines)
    count = max(2, length // (MIN_LINE + 1))
    if len(lines) > count:
        first = count // 4
        newest = lines[len(lines) - (count - first - 1) :]
        lines = [*lines[:first], f"(… {len(lines) - count + 1} more …)", *newest]
    width = length // len(lines) - 1
    return "\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in lines)


def _files(
    entries: Sequence[Entry], earlier: Sequence[Compaction] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that were read and those that were changed, each once, in order."""
    calls = [call for entry in entries if entry.message is not None for call in entry.message.calls]
    read = [*(path for compaction in earlier for path in compaction.files_read), *_paths(calls, READS)]
    changed = [
        *(path for compaction in earlier for path in compaction.files_changed),
        *_paths(calls, CHANGES),
    ]
    return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(changed))


def _paths(calls: Sequence[ToolCall], names: frozenset[str]) -> list[str]:
    paths = [call.arguments.get("path") for call in calls if call.name in names]
    return [path for path in paths if isinstance(path, str)]


# -- compaction by hand ----------------------------------------------------------------------------


def manual_compaction(
    log: Log,
    summary: str | None,
    first_kept: int | None,
    *,
    replaces_earlier: bool,
    files_read: Sequence[str] | None = None,
    files_changed: Sequence[str] | None = None,
) -> Compaction:
    """Return the entry to append for `session.compact`; a missing summary is made as in the loop, without a model.

    Raises `InvalidSummary` if the summary is empty, replaces nothing, or is longer than what it replaces.
    """
    entries = log.path().entries
    at = log.cut(_before_newest_turn(entries, log.leaf.seq) if first_kept is None else first_kept - 1).at
    if summary is not None:
        _check_summary(entries, summary, at, replaces_earlier=replaces_earlier)
        tokens = _tokens(context.build_context(entries).items)
        compaction: Compaction | None = Compaction(summary, at + 1, tokens, replaces_earlier=replaces_earlier)
    else:
        # The input of an open turn stays whole, as in the loop.
        keeps_input = first_kept is None and log.cursor.turn
        compaction = summarise(entries, log.cursor if keeps_input else Cursor(turn=at + 1))
        if compaction is not None and not keeps_input and compaction.first_kept != at + 1:
            compaction = None
    if compaction is None:
        raise InvalidSummary(f"no summary would be shorter than the entries before {at + 1}")
    if files_read is not None:
        compaction = replace(compaction, files_read=tuple(files_read))
    return compaction if files_changed is None else replace(compaction, files_changed=tuple(files_changed))


def _check_summary(entries: Sequence[Entry], summary: str, at: int, *, replaces_earlier: bool) -> None:
    if not summary.strip():
        raise InvalidSummary("the summary is empty")
    items = context.build_context(entries).items
    replaced = [item for item in items if item.seq <= at and (replaces_earlier or not item.pinned)]
    if not replaced:
        raise InvalidSummary(f"there is nothing before entry {at + 1} to replace")
    tokens = _tokens(replaced)
    if measure(user(summary)).tokens >= tokens:
        raise InvalidSummary(f"the summary is longer than the {tokens:,} tokens it would replace")


def _before_newest_turn(entries: Sequence[Entry], last: int) -> int:
    """Return the seq before the newest turn, or the last one if there is no older turn."""
    inputs = [entry.seq for entry in entries if entry.turn == entry.seq]
    return inputs[-1] - 1 if len(inputs) > 1 else last
