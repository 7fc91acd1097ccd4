"""Comparing turns: which belong together, and what in them is different. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, get_args

from msgspec import Struct

from ..core.messages import Message
from .turn_reader import (
    Made,
    Read,
    Step,
    told_arguments,
    told_calls,
    told_message,
    told_reasoning,
    told_result,
)

Kind = Literal[
    "same", "reworded", "result changed", "arguments changed", "tool changed", "input changed", "missing"
]
WEIGHTS: dict[str, int] = {kind: n for n, kind in enumerate(get_args(Kind))}
MOST_WORDS = 4_000  # difflib is quadratic; longer texts are told whole
Aligned = tuple[Read | None, Read | None, list["Divergence"]]


class TextSpan(Struct, frozen=True):
    """A stretch of text that is the same on both sides, only in a, or only in b."""

    side: Literal["both", "a", "b"]
    text: str


class Divergence(Struct, frozen=True):
    """One thing that came otherwise than it did the other time."""

    kind: Kind
    subject: str
    """What differs: input, turn, answer, reasoning, calls, or the name of the tool."""
    expected: str
    """In a; of a replay: as recorded."""
    actual: str
    """In b."""
    turn_a: int | None = None
    turn_b: int | None = None
    step: int = 0
    seq_a: int | None = None
    seq_b: int | None = None

    def word_diff(self) -> list[TextSpan]:
        """Both texts word by word."""
        return word_diff(self.expected, self.actual)


def heaviest(found: Sequence[Divergence]) -> Kind:
    """One word for a turn: what weighs most in it."""
    return max((one.kind for one in found), key=lambda kind: WEIGHTS[kind], default="same")


def align(a: Sequence[Read], b: Sequence[Read]) -> Iterator[Aligned]:
    """The turns that belong together by the order of their inputs, and those only one side has."""
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


def _block(a: Sequence[Read], b: Sequence[Read]) -> Iterator[Aligned]:
    """Turns in the same place of both; those that one side has more are missing in the other."""
    for n in range(max(len(a), len(b))):
        one, other = a[n] if n < len(a) else None, b[n] if n < len(b) else None
        if one is not None and other is not None:
            yield one, other, compare_turns(one, other)
        else:
            yield one, other, [_missing(one, other)]


def _missing(one: Read | None, other: Read | None) -> Divergence:
    expected = "" if one is None else told_message(one.input)
    came = "" if other is None else told_message(other.input)
    at_a, at_b = one.turn if one else None, other.turn if other else None
    return Divergence("missing", "turn", expected, came, at_a, at_b, 0, at_a, at_b)


def _key(message: Message) -> str:
    return told_message(message)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


def compare_turns(a: Read, b: Read) -> list[Divergence]:
    if _key(a.input) != _key(b.input):
        texts = told_message(a.input), told_message(b.input)
        return [Divergence("input changed", "input", *texts, a.turn, b.turn, 0, a.turn, b.turn)]
    found: list[Divergence] = []
    for n in range(max(len(a.steps), len(b.steps))):
        one, other = a.steps[n] if n < len(a.steps) else None, b.steps[n] if n < len(b.steps) else None
        for kind, what, expected, came, seqs in _steps(one, other):
            found.append(Divergence(kind, what, expected, came, a.turn, b.turn, n + 1, *seqs))
        if WEIGHTS[heaviest(found)] >= WEIGHTS["arguments changed"]:
            break
    return found


Seqs = tuple[int | None, int | None]
Found = tuple[Kind, str, str, str, Seqs]


def _steps(a: Step | None, b: Step | None) -> Iterator[Found]:
    seqs = (None if a is None else a.seq, None if b is None else b.seq)
    names_a = [one.call.name for one in a.made] if a is not None else []
    names_b = [one.call.name for one in b.made] if b is not None else []
    if names_a != names_b:
        yield "tool changed", "calls", _told_step(a), _told_step(b), seqs
        return
    if a is None or b is None:
        yield "missing", "answer", _told_step(a), _told_step(b), seqs
        return
    if told_reasoning(a.message) != told_reasoning(b.message):
        yield "reworded", "reasoning", told_reasoning(a.message), told_reasoning(b.message), seqs
    if told_message(a.message) != told_message(b.message):
        yield "reworded", "answer", told_message(a.message), told_message(b.message), seqs
    for one, other in zip(a.made, b.made, strict=True):
        yield from _made(one, other, seqs)


def _told_step(step: Step | None) -> str:
    """The calls, or the words of a step that calls nothing."""
    if step is None:
        return ""
    return told_calls(step) or told_message(step.message)


def _made(a: Made, b: Made, seqs: Seqs) -> Iterator[Found]:
    name = a.call.name
    if told_arguments(a.call) != told_arguments(b.call):
        yield "arguments changed", name, told_arguments(a.call), told_arguments(b.call), seqs
    elif a.result != b.result:
        yield "result changed", name, told_result(a.result), told_result(b.result), (a.seq, b.seq)


def word_diff(a: str, b: str) -> list[TextSpan]:
    """Two texts word by word, blanks kept with the word behind them."""
    one, other = _split(a), _split(b)
    if max(len(one), len(other)) > MOST_WORDS:
        return [TextSpan("a", a), TextSpan("b", b)]
    found: list[TextSpan] = []
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(TextSpan("both", "".join(one[i:j])))
            continue
        found.extend([TextSpan("a", "".join(one[i:j]))] if j > i else [])
        found.extend([TextSpan("b", "".join(other[k:m]))] if m > k else [])
    return found


def _split(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)
