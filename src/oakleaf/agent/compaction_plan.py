"""Choose the entries to replace in a compaction, to make the next request fit: a pure function of the path.

From the mildest to the hardest: older turns become a summary; then the first steps of the present turn; then the
results of its newest step are shortened; then all of its steps become a summary, and the summary gets shorter. The input
of the turn always stays whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.agent.summary import MAX_SUMMARY, MIN_LINE, MIN_SUMMARY, list_files, summarise_items
from oakleaf.core import context
from oakleaf.core.context import Item
from oakleaf.core.entries import Compaction, Entry
from oakleaf.core.fit import BYTES_PER_TOKEN, measure, measure_item
from oakleaf.core.messages import Message, Text
from oakleaf.core.shorten import MEDIA_LENGTH, shorten_results

LEFT_OUT = "(left out)"
"""The shortest summary, for when there is no room for more: MIN_SUMMARY characters may be four bytes each."""
MIN_RESULT = 200
"""Characters of a result: a shorter result is summarised, not shortened."""


class Sizes:
    """The estimated tokens of each message of one path. The path only grows, so each message is measured
    once: measuring encodes a message, which took 45 ms for 12,800 of them, before every step."""

    def __init__(self, provider: str | None = None) -> None:
        self.provider = provider
        """The asked provider: only evidence of this provider counts beside the messages. None: all evidence
        counts."""
        self._tokens: dict[int, tuple[object, int]] = {}

    def tokens(self, item: Item) -> int:
        parts = item.message.parts
        cached = self._tokens.get(item.seq)
        if cached is None or cached[0] is not parts:
            cached = self._tokens[item.seq] = parts, measure_item(item, self.provider).tokens
        return cached[1]

    def total(self, items: Sequence[Item]) -> int:
        return sum(map(self.tokens, items))


class CompactionPlan(Struct, frozen=True):
    """A compaction, and the estimated tokens of the next request."""

    compaction: Compaction
    tokens: int


def plan_compaction(
    path: Sequence[Entry], prompt_tokens: int, goal: int, limit: int, sizes: Sizes | None = None
) -> CompactionPlan | None:
    """Return the mildest compaction to at most `goal` tokens. Without one, return the compaction with the
    fewest tokens, if these are at most `limit`. None: there is none.

    `prompt_tokens` are those of the system prompt and the tool definitions.
    """
    best: CompactionPlan | None = None
    for plan in _Planner(path, prompt_tokens, sizes or Sizes()).plans(goal, limit):
        if plan.tokens <= goal:
            return plan
        if plan.tokens <= limit and (best is None or plan.tokens < best.tokens):
            best = plan
    return best


class _Planner:
    """The history by kind: summaries, older items, the newest input, and later steps."""

    def __init__(self, path: Sequence[Entry], prompt_tokens: int, sizes: Sizes) -> None:
        self.path, self.prompt_tokens, self.sizes = path, prompt_tokens, sizes
        self.items = context.whole_context(path).items
        self.turn = newest_turn(path)
        self.earlier = [compaction for _, compaction in context.active_compactions(path)]
        self.has_summary = any(item.pinned for item in self.items)
        self.older = [item for item in self.items if not item.pinned and item.seq < self.turn]
        self.steps = _steps(item for item in self.items if item.seq > self.turn and not item.pinned)
        self.is_cut = context.read_replacement(path).first_kept > self.turn
        newest_input = map(context.context_item, (entry for entry in path if entry.seq == self.turn))
        self.kept_tokens = prompt_tokens + sizes.total([item for item in newest_input if item is not None])
        self.total = prompt_tokens + sizes.total(self.items)

    def plans(self, goal: int, limit: int) -> Iterator[CompactionPlan]:
        for plan in self._plans(goal, limit):
            if plan.tokens < self.total:
                yield plan

    def _plans(self, goal: int, limit: int) -> Iterator[CompactionPlan]:
        # In characters: a quarter of the limit is for the summary.
        length = min(MAX_SUMMARY, max(limit, MIN_LINE))
        if self.older:
            yield self._replace(0, length)
        if len(self.steps) > 1:
            counts = {self._count_to_replace(min(goal, limit * 3 // 4), length), len(self.steps) - 1}
            for count in sorted(counts):
                yield self._replace(count, length)
        if self.steps and any(item.message.role == "tool" for item in self.steps[-1]):
            yield self._shorten_results(goal, length)
        if self.steps or self.older or self.has_summary:
            for shorter in (length, length // 2, length // 8, MIN_SUMMARY):
                yield self._replace(len(self.steps), shorter, keeps_prose=shorter == length)
            yield self._replace(len(self.steps), 0)

    def _count_to_replace(self, goal: int, length: int) -> int:
        """Return the number of the turn's steps to replace by a summary. The newest step stays."""
        room = goal - self.kept_tokens - length // 3
        count = len(self.steps) - 1
        for step in reversed(self.steps):
            room -= self.sizes.total(step)
            if room < 0 or not count:
                break
            count -= 1
        return min(count + 1, len(self.steps) - 1)

    def _replace(self, count: int, length: int, *, keeps_prose: bool = True) -> CompactionPlan:
        """Replace all items before the turn and the first `count` steps. With a length of 0 the summary is a
        word."""
        replaced = [*self.older, *(item for step in self.steps[:count] for item in step)]
        rest = [item for step in self.steps[count:] for item in step]
        is_cut = count > 0 or self.is_cut
        compaction = Compaction(
            summarise_items(self.earlier, replaced, length, keeps_prose=keeps_prose) if length else LEFT_OUT,
            (rest[0].seq if rest else self.path[-1].seq + 1) if is_cut else self.turn,
            self.total - self.prompt_tokens,
            *list_files([item.message for item in replaced], self.earlier),
            replaces_earlier=bool(self.earlier),
            kept_input=self.turn if is_cut else 0,
        )
        tokens = self.kept_tokens + summary_tokens(compaction) + self.sizes.total(rest)
        return CompactionPlan(compaction, tokens)

    def _shorten_results(self, goal: int, length: int) -> CompactionPlan:
        """Keep the newest step with shortened results. Earlier items are replaced, if there are any."""
        if self.older or len(self.steps) > 1:
            plan = self._replace(len(self.steps) - 1, length)
        else:
            plan = CompactionPlan(Compaction("", 1, self.total - self.prompt_tokens), self.total)
        items = [item for item in self.steps[-1] if item.message.role == "tool"]
        others = plan.tokens - self.sizes.total(items)
        originals = [self._message(item) for item in items]
        length = _common_length(originals, goal - others)
        shortened = []
        tokens = others
        for item, original in zip(items, originals, strict=True):
            is_longer = _longest_result(original) > length
            shortened += [(item.seq, length)] if is_longer else []
            tokens += _shortened_tokens(original, length) if is_longer else self.sizes.tokens(item)
        return CompactionPlan(replace(plan.compaction, shortened=tuple(shortened)), tokens)

    def _message(self, item: Item) -> Message:
        """Return the appended message of an item, before any compaction shortened the results."""
        index = bisect_left(self.path, item.seq, key=lambda entry: entry.seq)  # replaced messages are missing
        message = self.path[index].message
        assert message is not None
        return message


def summary_tokens(compaction: Compaction) -> int:
    """Return the estimated tokens of the message with the summary."""
    return measure(context.summary_item(0, compaction).message).tokens


def newest_turn(path: Sequence[Entry]) -> int:
    """Return the seq of the newest input, or the seq after the path without an input."""
    inputs = (entry.seq for entry in reversed(path) if entry.turn == entry.seq)
    return next(inputs, path[-1].seq + 1 if path else 1)


def _steps(items: Iterable[Item]) -> list[list[Item]]:
    """Group the items of a turn by step: an answer with the results of the calls."""
    steps: list[list[Item]] = []
    for item in items:
        if steps and item.message.role != "assistant":
            steps[-1].append(item)
        else:
            steps.append([item])
    return steps


def _common_length(messages: Sequence[Message], max_tokens: int) -> int:
    """Return the characters to show of each result for all messages to fit into `max_tokens`, if possible."""
    shortest, longest = MIN_RESULT, max(map(_longest_result, messages))
    longest = min(longest, max(shortest, max_tokens * BYTES_PER_TOKEN))
    while shortest < longest:
        length = (shortest + longest + 1) // 2
        if sum(_shortened_tokens(message, length) for message in messages) <= max_tokens:
            shortest = length
        else:
            longest = length - 1
    return shortest


def _longest_result(message: Message) -> int:
    return max(
        sum(len(piece.text) if isinstance(piece, Text) else MEDIA_LENGTH for piece in result.content)
        for result in message.results
    )


def _shortened_tokens(message: Message, length: int) -> int:
    return measure(shorten_results(message, length)).tokens
