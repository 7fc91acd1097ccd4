"""Compare turns: pair those that correspond, and list how they differ. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal, get_args

from msgspec import Struct

from oakleaf.core.turn_reader import (
    CallView,
    Step,
    TurnView,
    arguments_text,
    calls_text,
    message_text,
    reasoning_text,
    result_text,
)
from oakleaf.core.usage import Totals

Kind = Literal[
    "same", "reworded", "result changed", "arguments changed", "tool changed", "input changed", "missing"
]
WEIGHTS: dict[str, int] = {kind: n for n, kind in enumerate(get_args(Kind))}
MAX_WORDS = 4_000
"""difflib is quadratic; longer texts are not compared word by word."""
Aligned = tuple[TurnView | None, TurnView | None, list["Divergence"]]


class TextSpan(Struct, frozen=True):
    """A stretch of text, the same on both sides, only in a, or only in b."""

    side: Literal["both", "a", "b"]
    text: str


class Divergence(Struct, frozen=True):
    """A difference between two versions of a turn."""

    kind: Kind
    subject: str
    """What differs: input, turn, answer, reasoning, calls, or the name of the tool."""
    expected: str
    """The text in a; in a replay, the recording."""
    actual: str
    """The text in b."""
    turn_a: int | None = None
    turn_b: int | None = None
    step: int = 0
    seq_a: int | None = None
    seq_b: int | None = None

    def word_diff(self) -> list[TextSpan]:
        """Compare both texts word by word."""
        return word_diff(self.expected, self.actual)


class DiffRow(Struct, frozen=True):
    """A turn of both sides."""

    kind: Kind
    input: str
    turn_a: int | None = None
    """The seq of the turn's input in a; None: a has no such turn."""
    turn_b: int | None = None
    number_a: int | None = None
    """The number of the turn in a: people count from 1."""
    number_b: int | None = None
    differences: tuple[Divergence, ...] = ()
    """In order. After a change of calls, the rest of the turn is a consequence and is not listed."""
    a: Totals = Totals()
    b: Totals = Totals()


def heaviest_kind(divergences: Sequence[Divergence]) -> Kind:
    """Return the kind of the most important difference of a turn."""
    return max(
        (divergence.kind for divergence in divergences), key=lambda kind: WEIGHTS[kind], default="same"
    )


def align(a: Sequence[TurnView], b: Sequence[TurnView]) -> Iterator[Aligned]:
    """Pair the turns of both sides by the order of inputs; a turn without a counterpart is paired with None."""
    keys_a, keys_b = [message_text(turn.input) for turn in a], [message_text(turn.input) for turn in b]
    head = _count_common(keys_a, keys_b)
    tail = _count_common(keys_a[head:][::-1], keys_b[head:][::-1])
    end_a, end_b = len(a) - tail, len(b) - tail
    for turn_a, turn_b in zip(a[:head], b[:head], strict=True):
        yield turn_a, turn_b, compare_turns(turn_a, turn_b)
    matcher = SequenceMatcher(None, keys_a[head:end_a], keys_b[head:end_b], autojunk=False)
    for _, i, j, k, m in matcher.get_opcodes():
        yield from _pair_by_position(a[head + i : head + j], b[head + k : head + m])
    for turn_a, turn_b in zip(a[end_a:], b[end_b:], strict=True):
        yield turn_a, turn_b, compare_turns(turn_a, turn_b)


def _pair_by_position(a: Sequence[TurnView], b: Sequence[TurnView]) -> Iterator[Aligned]:
    """Pair turns by position; a surplus turn is missing on the other."""
    for turn_a, turn_b in zip_longest(a, b):
        if turn_a is not None and turn_b is not None:
            yield turn_a, turn_b, compare_turns(turn_a, turn_b)
        else:
            yield turn_a, turn_b, [_missing_turn(turn_a, turn_b)]


def _missing_turn(turn_a: TurnView | None, turn_b: TurnView | None) -> Divergence:
    expected = "" if turn_a is None else message_text(turn_a.input)
    actual = "" if turn_b is None else message_text(turn_b.input)
    seq_a, seq_b = turn_a.turn if turn_a else None, turn_b.turn if turn_b else None
    return Divergence("missing", "turn", expected, actual, seq_a, seq_b, 0, seq_a, seq_b)


def _count_common(a: Sequence[str], b: Sequence[str]) -> int:
    differing = (n for n, (key_a, key_b) in enumerate(zip(a, b, strict=False)) if key_a != key_b)
    return next(differing, min(len(a), len(b)))


def compare_turns(a: TurnView, b: TurnView) -> list[Divergence]:
    texts = message_text(a.input), message_text(b.input)
    if texts[0] != texts[1]:
        return [Divergence("input changed", "input", *texts, a.turn, b.turn, 0, a.turn, b.turn)]
    divergences: list[Divergence] = []
    for number, (step_a, step_b) in enumerate(zip_longest(a.steps, b.steps), 1):
        for kind, subject, expected, actual, seqs in _compare_steps(step_a, step_b):
            divergences.append(Divergence(kind, subject, expected, actual, a.turn, b.turn, number, *seqs))
        if WEIGHTS[heaviest_kind(divergences)] >= WEIGHTS["arguments changed"]:
            break
        if _is_refused(step_b):  # a waits at the same call: neither side has anything to compare after it
            break
    return divergences


def _is_refused(step: Step | None) -> bool:
    """Whether a replay had no result for a call of the step."""
    results = (view.result for view in step.calls) if step is not None else ()
    return any(result is not None and result.outcome == "not_recorded" for result in results)


Seqs = tuple[int | None, int | None]
StepDifference = tuple[Kind, str, str, str, Seqs]


def _compare_steps(a: Step | None, b: Step | None) -> Iterator[StepDifference]:
    seqs = (None if a is None else a.seq, None if b is None else b.seq)
    names_a = [view.call.name for view in a.calls] if a is not None else []
    names_b = [view.call.name for view in b.calls] if b is not None else []
    if names_a != names_b:
        yield "tool changed", "calls", _step_text(a), _step_text(b), seqs
        return
    if a is None or b is None:
        yield "missing", "answer", _step_text(a), _step_text(b), seqs
        return
    if reasoning_text(a.message) != reasoning_text(b.message):
        yield "reworded", "reasoning", reasoning_text(a.message), reasoning_text(b.message), seqs
    if message_text(a.message) != message_text(b.message):
        yield "reworded", "answer", message_text(a.message), message_text(b.message), seqs
    for call_a, call_b in zip(a.calls, b.calls, strict=True):
        yield from _compare_calls(call_a, call_b, seqs)


def _step_text(step: Step | None) -> str:
    """Return the calls of a step, or the text of a step without calls."""
    if step is None:
        return ""
    return calls_text(step) or message_text(step.message)


def _compare_calls(a: CallView, b: CallView, seqs: Seqs) -> Iterator[StepDifference]:
    name = a.call.name
    if arguments_text(a.call) != arguments_text(b.call):
        yield "arguments changed", name, arguments_text(a.call), arguments_text(b.call), seqs
    elif a.result != b.result:
        yield "result changed", name, result_text(a.result), result_text(b.result), (a.seq, b.seq)


def word_diff(a: str, b: str) -> list[TextSpan]:
    """Compare two texts word by word; whitespace belongs to the next word."""
    words_a, words_b = _split(a), _split(b)
    if max(len(words_a), len(words_b)) > MAX_WORDS:
        return [TextSpan("a", a), TextSpan("b", b)]
    spans: list[TextSpan] = []
    for kind, i, j, k, m in SequenceMatcher(None, words_a, words_b, autojunk=False).get_opcodes():
        if kind == "equal":
            spans.append(TextSpan("both", "".join(words_a[i:j])))
            continue
        spans.extend([TextSpan("a", "".join(words_a[i:j]))] if j > i else [])
        spans.extend([TextSpan("b", "".join(words_b[k:m]))] if m > k else [])
    return spans


def _split(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)
