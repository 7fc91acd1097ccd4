"""The workload of every figure: turns of an agent loop, the same on every machine.

A turn is 8 messages in 5 steps: [user ~400 B] · 3 × [answer with a tool call ~300 B, result ~2 kB, every
10th ~20 kB] · [answer ~800 B]. The text is drawn from a seeded vocabulary with the frequencies of a
language, so it compresses about as real text does. Does not know any store.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

from msgspec import Struct

from oakleaf.core.messages import Message, Text, ToolCall, assistant, tool_result, user
from oakleaf.core.usage import Usage

MESSAGES_PER_TURN = 8
STEPS_PER_TURN = 5
WORDS, CORPUS = 6_000, 200_000
SYLLABLES = "an ba ce di en fo ge hu in ka le mi no or pe ra si ta un ver wo ter ing ion st th qu er es at"


class Step(Struct, frozen=True):
    """One commit: its messages, and the usage if a model was called."""

    messages: tuple[Message, ...]
    usage: Usage | None = None


def corpus(seed: int) -> str:
    random, syllables = Random(seed), SYLLABLES.split()
    words = ["".join(random.choices(syllables, k=random.randint(1, 4))) for _ in range(WORDS)]
    weights = list(accumulate(1 / (rank + 3) for rank in range(WORDS)))
    sample = random.choices(words, cum_weights=weights, k=CORPUS)
    marks = random.choices(["", "", "", "", "", "", "", ",", ".", ":\n", " 17", ' "x"'], k=CORPUS)
    return " ".join(word + mark for word, mark in zip(sample, marks, strict=True))


class Workload:
    def __init__(self, seed: int = 11) -> None:
        self._random = Random(seed)
        self._corpus = corpus(seed)
        self._results = 0

    def _text(self, size: int) -> str:
        size = int(size * self._random.uniform(0.8, 1.2))
        begin = self._random.randrange(len(self._corpus) - size)
        return self._corpus[begin : begin + size]

    def _usage(self) -> Usage:
        read = self._random.randrange(500, 90_000)
        return Usage(read, self._random.randrange(20, 900), read // 2, read // 10)

    def _tool_step(self) -> Step:
        self._results += 1
        call_id = f"toolu_{self._random.getrandbits(96):024x}"
        arguments = {"path": f"src/module_{self._results % 97}.py", "lines": [1, 80], "query": self._text(30)}
        answer = assistant(self._text(70), ToolCall(call_id, "read_file", arguments))
        size = 20_000 if self._results % 10 == 0 else 2_000
        return Step((answer, tool_result(call_id, self._text(size - 100))), self._usage())

    def turn(self) -> list[Step]:
        opening = Step((user(self._text(330)),))
        return [
            opening,
            *(self._tool_step() for _ in range(3)),
            Step((assistant(self._text(700)),), self._usage()),
        ]

    def turns(self, count: int) -> list[list[Step]]:
        return [self.turn() for _ in range(count)]


def turns_of(messages: int, seed: int = 11) -> list[list[Step]]:
    return Workload(seed).turns(messages // MESSAGES_PER_TURN)


def result_of(message: Message) -> tuple[str, str]:
    """Return the call id and the text of a tool message, which a caller has before it builds the message."""
    result = message.results[0]
    return result.call_id, "".join(piece.text for piece in result.content if isinstance(piece, Text))
