"""An agent killed at every commit and around every effect goes on as if nothing had happened."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest

import oakleaf
import oakleaf.agent.run  # so that no child has to load it
from oakleaf import Usage
from oakleaf.models.prices import price
from oakleaf.wire import PROVIDERS, find_provider
from support import crash_agent
from support.processes import effect_keys, run_to_end_or_death

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"


run = partial(run_to_end_or_death, crash_agent.run_agent)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[str | None, str]], int]:
    """The uninterrupted run: its public transcript, and how many points there are to die at."""
    price(Usage(1, 1), "anthropic", "claude-opus-4-5")  # loads the price table, once for all children
    place = tmp_path_factory.mktemp("whole") / "agent.db"
    lines = run(place)
    with oakleaf.open(place) as store:
        transcript = public(store)
    assert [text for _, text in transcript] == [
        *("look around", "I looked.", "do it", "I did it.", "ask somebody", "I asked."),
        *("and now at length", "All said."),
    ]
    return transcript, int(lines[-1].split()[1])


def public(store: oakleaf.Store) -> list[tuple[str | None, str]]:
    session = store.session("ses_crash")
    return [(entry.role, entry.message.text) for entry in session.transcript() if entry.message]


def check(place: Path, lines: list[str], transcript: list[tuple[str | None, str]], kills: int) -> None:
    effect_keys(lines)
    with oakleaf.open(place) as store:
        assert list(store.verify()) == []
        assert public(store) == transcript
        for row in store.all_sessions():
            session = store.session(row.session_id)
            for provider in PROVIDERS:
                assert find_provider(provider).violations(session.request(provider)) == []
            assert row.status == "idle"
        calls = [call for row in store.all_sessions() for call in store.session(row.session_id).model_calls()]
        model_calls = lines.count("model")
        assert model_calls <= len(calls) <= model_calls + kills, (
            "every call made is in the ledger, and one more per kill at most"
        )
        results = [r for e in store.session("ses_crash").path() if e.message for r in e.message.results]
        unknown = sum(result.outcome == "unknown" for result in results)
        assert unknown <= kills * 4


def test_killed_at_every_point_it_goes_on(
    whole: tuple[list[tuple[str | None, str]], int], tmp_path: Path
) -> None:
    transcript, points = whole
    tries = range(1, points + 1) if SOAK else range(1, points + 1, 13)
    hit = 0
    for kill_at in tries:
        place = tmp_path / f"{kill_at}.db"
        lines = run(place, kill_at)
        hit += any(line.startswith("killed") for line in lines)
        lines += run(place)
        check(place, lines, transcript, kills=1)
    print(f"{points} points, {len(tries)} tried, {hit} hit")
    assert hit == len(tries)


def test_killed_again_and_again_it_still_goes_on(
    whole: tuple[list[tuple[str | None, str]], int], tmp_path: Path
) -> None:
    transcript, points = whole
    for seed in range(20 if SOAK else 3):
        rng = random.Random(seed)
        place, all_lines, kills = tmp_path / f"again {seed}.db", [], 0
        for _ in range(6):
            lines = run(place, rng.randrange(1, points // 2))
            all_lines += lines
            kills += any(line.startswith("killed") for line in lines)
        all_lines += run(place)
        check(place, all_lines, transcript, kills)


def test_killed_at_any_moment_it_still_goes_on(
    whole: tuple[list[tuple[str | None, str]], int], tmp_path: Path
) -> None:
    transcript, _ = whole
    for seed in range(60 if SOAK else 4):
        rng = random.Random(seed)
        place = tmp_path / f"moment {seed}.db"
        lines = run(place, after=rng.uniform(0.01, 0.4))
        lines += run(place, after=rng.uniform(0.01, 0.4))
        check(place, lines + run(place), transcript, kills=2)


def test_killed_at_every_point_a_turn_that_was_taken_back_pays_no_second_time(tmp_path: Path) -> None:
    """Whatever was lost of the first try, the second one asks a person before it pays."""
    again = partial(run_to_end_or_death, crash_agent.run_again)
    points = int(again(tmp_path / "whole.db")[-1].split()[1])
    for kill_at in range(1, points + 1):
        place = tmp_path / f"{kill_at}.db"
        lines = again(place, kill_at)
        lines += again(place)
        assert sum(line.startswith("effect") for line in lines) <= 1
        with oakleaf.open(place) as store:
            session = store.session("ses_crash")
            (approval,) = session.pending_approvals()
            assert approval.earlier in session.left_behind()
            assert list(store.verify()) == []
