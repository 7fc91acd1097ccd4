"""Scorers: functions of a turn or a session, and a judge, each stored once and never the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oakleaf
import oakleaf_lab
from oakleaf import ScriptedModel, Store
from oakleaf_lab import Lab
from oakleaf_lab.errors import InvalidLab
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.scorers import Judge, ScoredSession, ScoredTurn, read_score
from support.lab_sessions import RATES, answer, noisy, write_cohort


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four recorded sessions of three turns."""
    with oakleaf.open(write_cohort(tmp_path / "lab.db", 4), synchronous="normal") as store:
        yield store


def apologises(turn: ScoredTurn) -> bool:
    return "sorry" in turn.text


async def tool_count(session: ScoredSession) -> float:
    await asyncio.sleep(0)
    return sum(len(turn.calls) for turn in session.turns) / len(session.turns)


def run(store: Store, scorers: Any = (), judge: Judge | None = None, **how: Any) -> LabReport:
    lab = Lab(
        store,
        "ses_case_000",
        "ses_case_001",
        baseline_model=noisy(1, tool_changed=0),
        model=noisy(2, tool_changed=0, name="new"),
    )
    return lab.run_sync(scorers=scorers, judge=judge, **how)


def test_a_function_of_a_turn_scores_each_turn_of_each_lane(store: Store) -> None:
    report = run(store, [apologises])
    assert {lane.lane: lane.scores["apologises"].count for lane in report.lanes} == dict.fromkeys(
        ("observed", "baseline", "candidate"), 6
    )
    assert report.lane("observed").scores["apologises"].mean == 0.0
    reworded = report.lane("candidate").classes["reworded"].value
    assert report.lane("candidate").scores["apologises"].mean == pytest.approx(reworded) != 0
    turns = [turn for session in report.sessions for turn in session.turns]
    assert {turn.candidate[0].scores["apologises"] for turn in turns} == {0.0, 1.0}


def test_a_function_of_a_session_may_be_async(store: Store) -> None:
    report = run(store, [tool_count])
    assert report.lane("candidate").scores["tool_count"].mean == 1.0
    assert report.lane("candidate").scores["tool_count"].count == 2


def test_it_sees_the_turn_beside_the_recorded_one(store: Store) -> None:
    turns: list[ScoredTurn] = []

    def look(turn: ScoredTurn) -> bool:
        turns.append(turn)
        return True

    run(store, [look])
    turn = next(turn for turn in turns if turn.lane == "candidate")
    assert turn.input.startswith("Where is order")
    assert [call.name for call in turn.calls] == ["look_up"]
    assert turn.observed is not None
    assert turn.observed.lane == "observed"
    assert turn.observed.input == turn.input


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("good", "it returned 'good'"),
        (None, "it returned None"),
        (float("nan"), "it returned nan"),
        (ZeroDivisionError("no"), "ZeroDivisionError: no"),
    ],
)
def test_one_that_raises_or_returns_nonsense_is_counted_and_named_and_the_run_goes_on(
    store: Store, value: object, problem: str
) -> None:
    def broken(turn: ScoredTurn) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    report = run(store, [broken, apologises])
    assert report.status == "complete"
    (why,) = report.lane("candidate").scores["broken"].failures
    assert why.startswith(problem)
    assert report.lane("candidate").scores["broken"].failures[why] == 6
    assert any("scorer broken had no value in 6 cases" in line for line in report.lines())
    assert report.lane("candidate").scores["apologises"].count == 6


def test_no_secret_is_in_the_report_of_a_run_nor_half_of_one_in_the_store(tmp_path: Path) -> None:
    """The report of the process that ran it had what the scorer and the judge said, as they said it."""
    secret, padding = "correct horse battery staple", "x" * 70

    def broken(turn: ScoredTurn) -> bool:
        raise ValueError("y" * 170 + secret)

    path = write_cohort(tmp_path / "lab.db", 4)
    with oakleaf.open(path, secrets={"SHOP": secret}) as store:
        lab = Lab(
            store, "ses_case_000", baseline_model=noisy(1), model=noisy(2), prompt=f"Log in with {secret}."
        )
        judge = Judge(ScriptedModel(lambda request: padding + secret, model="judge", rates=RATES))
        report = lab.run_sync(scorers=[broken], judge=judge)
        shown = oakleaf_lab.report(store, report.run_id)
    text = msgspec.json.encode(report).decode()
    assert "horse" not in text
    assert "[redacted SHOP]" in text
    assert report.experiment == shown.experiment
    assert b"correct horse" not in path.read_bytes()


def test_scores_are_stored_with_the_run_and_made_once(store: Store) -> None:
    calls = 0

    def counted(turn: ScoredTurn) -> bool:
        nonlocal calls
        calls += 1
        return True

    first = run(store, [counted])
    assert calls == 18
    assert run(store, [counted]) == first
    assert calls == 18
    assert oakleaf_lab.report(store, first.run_id).lane("baseline").scores == first.lane("baseline").scores


def test_a_later_scorer_scores_what_was_replayed_before(store: Store) -> None:
    first = run(store)
    second = run(store, [apologises])
    assert second.run_id == first.run_id
    assert second.spent_microcents == first.spent_microcents
    assert second.lane("candidate").scores["apologises"].count == 6


def test_a_gate_can_name_a_scorer(store: Store) -> None:
    report = run(store, [apologises], fail_if=["apologises > 1%"])
    assert [gate.outcome for gate in report.gates] == ["failed"]
    assert report.exit_code == 1


@pytest.mark.parametrize("function", [lambda answer: True, print, 3])
def test_what_is_no_scorer_is_refused_before_anything_runs(store: Store, function: Any) -> None:
    with pytest.raises(InvalidLab, match="parameter is named turn or session"):
        run(store, [function])
    assert oakleaf_lab.runs(store) == []


class TestJudge:
    def test_its_calls_are_in_the_ledger_in_a_bucket_of_their_own(self, store: Store) -> None:
        judge = Judge(ScriptedModel(lambda request: "Fine.\nscore: 0.75", model="judge", rates=RATES))
        report = run(store, judge=judge)
        calls = store.session(report.run_id).model_calls()
        assert {(call.bucket, call.purpose, call.model) for call in calls} == {("judge", "judge", "judge")}
        assert len(calls) == 18
        assert all(call.price is not None for call in calls)
        assert report.lane("candidate").scores["judge"].mean == 0.75
        replays = sum(lane.usage.cost_microcents for lane in report.lanes[1:])
        judged = sum(call.price.microcents for call in calls if call.price is not None)
        assert report.spent_microcents == replays + judged

    def test_it_is_given_its_prompt_and_the_turn(self, store: Store) -> None:
        model = ScriptedModel(lambda request: "score: 1", model="judge", rates=RATES)
        run(store, judge=Judge(model, "Is it polite?"))
        request = model.requests[0]
        assert request.system.startswith("Is it polite?")
        text = request.messages[0].text
        assert "Where is order" in text
        assert "look_up(order=" in text
        assert "is lost" in text

    def test_a_reply_without_a_score_is_counted(self, store: Store) -> None:
        report = run(store, judge=Judge(ScriptedModel(lambda request: "Lovely!", model="judge", rates=RATES)))
        (why,) = report.lane("candidate").scores["judge"].failures
        assert "no score: 'Lovely!'" in why

    def test_it_is_not_asked_twice(self, store: Store) -> None:
        model = ScriptedModel(lambda request: "score: 1", model="judge", rates=RATES)
        first = run(store, judge=Judge(model))
        assert run(store, judge=Judge(model)) == first
        assert len(model.requests) == 18

    def test_it_counts_against_the_budget(self, store: Store) -> None:
        dear = ScriptedModel(
            lambda request: "score: 1", model="judge", rates=oakleaf.Rates(input=300, output=900)
        )
        limit = 50_000_000
        report = run(store, judge=Judge(dear), max_cost_microcents=limit)
        assert report.status == "incomplete"
        assert report.spent_microcents <= limit
        final = run(store, judge=Judge(dear))
        assert final.status == "complete"
        assert len(dear.requests) == 18

    @pytest.mark.parametrize(
        ("reply", "value"),
        [("score: 0.5", 0.5), ("Good.\n**Score:** 1", 1.0), ("0.25", 0.25), ("score: 0 … score: 0.9", 0.9)],
    )
    def test_a_score_is_read_from_the_reply(self, reply: str, value: float) -> None:
        assert read_score(reply) == (value, None)

    @pytest.mark.parametrize("reply", ["", "great", "score: 7", "I give it 3 of 5"])
    def test_nonsense_is_no_score(self, reply: str) -> None:
        assert read_score(reply)[0] is None


def test_the_same_model_scores_the_same(store: Store) -> None:
    exact = ScriptedModel(answer, model="exact", rates=RATES)
    report = Lab(store, "ses_case_000", baseline_model=exact).run_sync(scorers=[apologises])
    means = [lane.scores["apologises"].mean for lane in report.lanes]
    assert means == [0.0, 0.0, 0.0]
