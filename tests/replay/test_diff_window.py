"""The pages of a comparison are the comparison."""

from __future__ import annotations

from random import Random

import pytest

import oakleaf
from oakleaf import Session, ToolCall, assistant, system, tool_result, user
from oakleaf.replay import compared_path
from oakleaf.replay import diff_window as windows
from oakleaf.replay.diff import diff
from oakleaf.replay.diff_window import DiffWindow, diff_window


def pages(a: Session, b: Session, limit: int) -> list[DiffWindow]:
    """All pages of a comparison."""
    result = [diff_window(a, b, None, limit)]
    while result[-1].next is not None:
        result.append(diff_window(a, b, result[-1].next, limit))
        assert result[-1].rows
    return result


def grow(session: Session, random: Random, turns: int) -> None:
    for _ in range(turns):
        n = random.randrange(10**6)
        steps = [
            message
            for m in range(random.randrange(3))
            for message in (
                assistant(ToolCall(f"c{m}", "look", {"order": n})),
                tool_result(
                    f"c{m}", random.choice(["lost", "here"]), details={"state": {"n": random.randrange(3)}}
                ),
            )
        ]
        session.append([user(f"Where is {n}?"), *steps, assistant(random.choice(["Lost.", "Here."]))])


def test_a_comparison_and_its_pages_iterate_over_the_rows() -> None:
    store = oakleaf.open("memory:")
    a, b = (store.start("a", [system("You help.")]) for _ in range(2))
    for session, answers in ((a, "xyz"), (b, "xqz")):
        session.append([message for text in answers for message in (user("?"), assistant(text))])
    whole = diff(a, b)
    assert [row.kind for row in whole] == ["reworded", "same"]  # the first turn is shared
    assert [row for page in pages(a, b, 1) for row in page] == list(whole)
    assert list(diff(a, a)) == []
    assert diff(a, a)  # without rows a comparison is still a value


@pytest.mark.parametrize("seed", range(6))
def test_of_any_two_paths(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_path, "STEP", 4)
    random = Random(seed)
    store = oakleaf.open("memory:")
    session = store.start("a", [system("You help.")])
    grow(session, random, 8)
    fork = session.fork(random.randrange(session.leaf.seq))
    other = store.start("a", [system("You help." if seed % 2 else "Be brief.")])
    grow(other, Random(seed), 8)
    grow(session, random, 4)
    grow(fork, random, 2)
    for a, b in ((session, fork), (session, other), (fork, session), (session, session)):
        whole = diff(a, b)
        [page] = pages(a, b, 50)
        assert (page.a, page.b, page.shared, page.rows) == (whole.a, whole.b, whole.shared, whole.rows)
        assert (page.setup, page.is_state_same) == (whole.setup, whole.is_state_same)
        for limit in (1, 3):
            assert turns(pages(a, b, limit)) == turns([page])


def turns(result: list[DiffWindow]) -> list[list[int]]:
    """The turns of both sides. A small window may pair them otherwise, and leaves none out."""
    rows = [row for page in result for row in page.rows]
    return [[turn for row in rows if (turn := getattr(row, side))] for side in ("turn_a", "turn_b")]


def test_a_turn_longer_than_a_window_is_compared_as_far_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_path, "STEP", 4)
    monkeypatch.setattr(windows, "MAX_SCANNED", 12)
    store = oakleaf.open("memory:")
    sessions = []
    for text in ("lost", "here"):
        session = store.start("a")
        steps = [
            m for _ in range(20) for m in (assistant(ToolCall("c", "look", {})), tool_result("c", "lost"))
        ]
        session.append([user("Look."), *steps, assistant(text)])
        session.append([user("Again."), assistant(text)])
        sessions.append(session)
    result = pages(sessions[0], sessions[1], 50)
    assert [[row.input for row in page.rows] for page in result] == [["Look."], ["Again."]]
    assert result[1].rows[0].kind == "reworded"
