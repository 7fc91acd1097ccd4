"""Compare turns: which correspond to each other, and what in them differs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, get_args

from msgspec import Struct

from ..core.messages import Message
from .turn_reader import (
    CallView,
    Step,
    TurnView,
    arguments_text,
    calls_text,
    message_text,
    reasoning_text,
    result_text,
)

Kind = Literal[
    "same", "reworded", "result changed", "arguments changed", "tool changed", "input changed", "missing"
]
WEIGHTS: dict[str, int] = {kind: n for n, kind in enumerate(get_args(Kind))}
MAX_WORDS = 4_000  # difflib is quadratic; longer texts are shown whole
Aligned = tuple[TurnView | None, TurnView | None, list["Divergence"]]


class TextSpan(Struct, frozen=True):
    """A stretch of text that is the same on both sides, only in a, or only in b."""

    side: Literal["both", "a", "b"]
    text: str


class Divergence(Struct, frozen=True):
    """One difference between two runs of a turn."""

    kind: Kind
    subject: str
    """What differs: input, turn, answer, reasoning, calls, or the name of the tool."""
    expected: str
    """In a; for a replay: the recording."""
    actual: str
    """In b."""
    turn_a: int | None = None
    turn_b: int | None = None
    step: int = 0
    seq_a: int | None = None
    seq_b: int | None = None

    def word_diff(self) -> list[TextSpan]:
        """Compare both texts word by word."""
        return word_diff(self.expected, self.actual)


def heaviest_kind(divergences: Sequence[Divergence]) -> Kind:
    """The kind of the most important difference of a turn."""
    return max(
        (divergence.kind for divergence in divergences), key=lambda kind: WEIGHTS[kind], default="same"
    )


def align(a: Sequence[TurnView], b: Sequence[TurnView]) -> Iterator[Aligned]:
    """Pair the turns of both sides by the order of their inputs; a turn that only one side has is paired with None."""
    keys_a, keys_b = [_key(turn.input) for turn in a], [_key(turn.input) for turn in b]
    head = _common(keys_a, keys_b)
    tail = _common(keys_a[head:][::-1], keys_b[head:][::-1])
    end_a, end_b = len(a) - tail, len(b) - tail
    for one, other in zip(a[:head], b[:head], strict=True):
        yield one, other, compare_turns(one, other)
    matcher = SequenceMatcher(None, keys_a[head:end_a], keys_b[head:end_b], autojunk=False)
    for _, i, j, k, m in matcher.get_opcodes():
        yield from _block(a[head + i : head + j], b[head + k : head + m])
    for one, other in zip(a[end_a:], b[end_b:], strict=True):
        yield one, other, compare_turns(one, other)


def _block(a: Sequence[TurnView], b: Sequence[TurnView]) -> Iterator[Aligned]:
    """Pair turns by position; the surplus of one side is missing on the other."""
    for n in range(max(len(a), len(b))):
        one, other = a[n] if n < len(a) else None, b[n] if n < len(b) else None
        if one is not None and other is not None:
            yield one, other, compare_turns(one, other)
        else:
            yield one, other, [_missing(one, other)]


def _missing(one: TurnView | None, other: TurnView | None) -> Divergence:
    expected = "" if one is None else message_text(one.input)
    came = "" if other is None else message_text(other.input)
    at_a, at_b = one.turn if one else None, other.turn if other else None
    return Divergence("missing", "turn", expected, came, at_a, at_b, 0, at_a, at_b)


def _key(message: Message) -> str:
    return message_text(message)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


def compare_turns(a: TurnView, b: TurnView) -> list[Divergence]:
    if _key(a.input) != _key(b.input):
        texts = message_text(a.input), message_text(b.input)
        return [Divergence("input changed", "input", *texts, a.turn, b.turn, 0, a.turn, b.turn)]
    divergences: list[Divergence] = []
    for n in range(max(len(a.steps), len(b.steps))):
        one, other = a.steps[n] if n < len(a.steps) else None, b.steps[n] if n < len(b.steps) else None
        for kind, what, expected, came, seqs in _compare_steps(one, other):
            divergences.append(Divergence(kind, what, expected, came, a.turn, b.turn, n + 1, *seqs))
        if WEIGHTS[heaviest_kind(divergences)] >= WEIGHTS["arguments changed"]:
            break
    return divergences


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
    for one, other in zip(a.calls, b.calls, strict=True):
        yield from _compare_calls(one, other, seqs)


def _step_text(step: Step | None) -> str:
    """The calls of a step, or its text if it calls nothing."""
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
    """Compare two texts word by word; blanks belong to the word behind them."""
    one, other = _split(a), _split(b)
    if max(len(one), len(other)) > MAX_WORDS:
        return [TextSpan("a", a), TextSpan("b", b)]
    spans: list[TextSpan] = []
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            spans.append(TextSpan("both", "".join(one[i:j])))
            continue
        spans.extend([TextSpan("a", "".join(one[i:j]))] if j > i else [])
        spans.extend([TextSpan("b", "".join(other[k:m]))] if m > k else [])
    return spans


def _split(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)
