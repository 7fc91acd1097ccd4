"""A secret that a model streams in pieces is in no event, no draft and no cancelled answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import oakleaf
from oakleaf import Session, Usage, assistant
from oakleaf.models.base import Delta, Request
from oakleaf.store import Store
from oakleaf.wire import Answer
from support.stopped_runs import run_and_cancel

KEY = "sk-ant-" + "a1" * 20
PHRASE = "correct horse battery staple"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nabc def\nghi\n-----END RSA PRIVATE KEY-----"


@pytest.fixture
def store() -> Iterator[Store]:
    with oakleaf.open("memory:", secrets={"phrase": PHRASE}) as opened:
        yield opened


class Pieces:
    """A model that streams these pieces, and then ends or hangs."""

    provider, model, rates = "scripted", "pieces", None

    def __init__(self, pieces: Sequence[str], *, reasons: bool = False, hangs: bool = False) -> None:
        self.pieces, self.reasons, self.hangs = pieces, reasons, hangs

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        for piece in self.pieces:
            yield Delta(reasoning=piece) if self.reasons else Delta(piece)
        if self.hangs:
            await asyncio.sleep(60)
        yield Answer(assistant("".join(self.pieces)), Usage(1, 1, 0, 0), None, "scripted", "pieces", "stop")


def live(events: Sequence[Any], what: str = "text") -> str:
    return "".join(event.data.get(what, "") for event in events if event.type == "session:delta")


@pytest.mark.parametrize("secret", [KEY, PHRASE, PEM], ids=["key", "with blanks", "of many lines"])
@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("reasons", [False, True], ids=["text", "reasoning"])
def test_a_secret_in_pieces_is_in_no_event(session: Session, secret: str, size: int, reasons: bool) -> None:
    whole = f"it is {secret} and no more"
    pieces = [whole[n : n + size] for n in range(0, len(whole), size)]
    events = session.send_sync("q", model=Pieces(pieces, reasons=reasons)).events
    text = live(events, "reasoning" if reasons else "text")
    assert text.startswith("it is [redacted")
    assert text.endswith("] and no more")


def test_text_that_begins_like_a_secret_is_shown_whole(session: Session) -> None:
    whole = "correct horse battery, correct horse, -----BEGIN the day"
    assert live(session.send_sync("q", model=Pieces(list(whole))).events) == whole


def test_the_head_of_a_key_does_not_hold_later_text_back(session: Session) -> None:
    pieces = [PEM.partition("\n")[0], *[" is how it begins,"] * 1_000]
    run = session.send("q", model=Pieces(pieces, hangs=True))
    events = run_and_cancel(run, "session:delta", 0.5)
    assert live(events).endswith("is how it begins,")


def test_half_a_secret_is_in_no_draft_and_no_cancelled_answer(session: Session) -> None:
    run = session.send("q", model=Pieces(["word " * 200, KEY[:12]], hangs=True))
    events = run_and_cancel(run, "session:delta", 0.05)
    assert live(events) == "word " * 200
    assert session.path()[-1].message.text == "word " * 200 + "(cancelled)"
