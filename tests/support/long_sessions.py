"""A short and a long session in SQLite, and the check that work in the long one costs no more.

SQLite counts the steps of each statement, so a row that is read and not returned counts, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Price, Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.usage import Call, Usage
from support.statement_steps import Steps

SHORT, LONG = 1_000, 20_000
MIDDLE = 500
"""An entry that both have."""


def fill(path: Path, entries: int) -> None:
    """Write a session with a compaction near its end, and a fork of it there; both with a ledger."""
    with oakleaf.open(path, synchronous="normal") as store:
        session = store.start("support", [system("You help.")], title="long", session_id="ses_long")
        while session.leaf.seq < entries:
            append(session, [message for n in range(100) for message in turn(session.leaf.seq + n)])
        session.label(2, "first")
        session.compact("Orders were lost.", first_kept=session.leaf.seq - 7)
        fork = session.fork(session.leaf.seq - 9)
        append(session, [user("And the last?"), assistant("It is lost.")])
        append(fork, [user("And the last?"), assistant("It is here.")])
        fork.title("fork")


def turn(n: int) -> list[oakleaf.Message]:
    return [
        user(f"Where is {n}?"),
        assistant(ToolCall("c", "look", {"order": n})),
        tool_result("c", "lost"),
        assistant(f"Order {n} is lost."),
    ]


def append(session: Session, messages: list[oakleaf.Message]) -> None:
    """Append with a ledger row for each answer, as a run does."""
    at = session.leaf.seq
    calls = [
        Call(f"c{at + n}", 0, at + n - 1, at + n, 1, Usage(9, 1), model="m", price=Price(1, "1"))
        for n, message in enumerate(messages, 1)
        if message.role == "assistant"
    ]
    session.log.append([Draft(message) for message in messages], calls=calls)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("long")
    paths = folder / "short.db", folder / "long.db"
    for path, entries in zip(paths, (SHORT, LONG), strict=True):
        fill(path, entries)
    return paths


def check(counts: list[int]) -> None:
    short, long = counts
    assert 0 < long <= 1.2 * short + 300, (short, long)


def check_steps(
    use: Callable[[oakleaf.Store], object], stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(count_steps(use, stores, monkeypatch))


def count_steps(
    use: Callable[[oakleaf.Store], object], stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    counts = []
    for path in stores:
        with monkeypatch.context() as patch:
            steps = Steps(patch)
            with oakleaf.open(path, synchronous="normal") as store:
                use(store)
        counts.append(steps.steps)
    return counts
