"""The lab: a cohort replayed in lanes, continued after any interruption, within its budget, without effects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import oakleaf
import oakleaf_lab
from oakleaf import ScriptedModel, Store, ToolCall, assistant
from oakleaf.core.facts import StoredFact
from oakleaf.errors import ExitCode, InvalidArgument, ModelUnavailable
from oakleaf.verbs.base import Caller, Step
from oakleaf.verbs.erase import Erase
from oakleaf.verbs.seal import read_receipts
from oakleaf_lab.cell import turn_milliseconds
from oakleaf_lab.errors import EmptyCohort, InvalidLab
from oakleaf_lab.experiment import AfterDivergence
from oakleaf_lab.function_identity import function_identity
from oakleaf_lab.lab import Lab
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.plugin import keep_without, quoting_sessions
from oakleaf_lab.record import LabRecord
from oakleaf_lab.scorers import ScoredTurn
from support.fake_providers import FakeProviders
from support.lab_sessions import RATES, answer, look_up, noisy, record_sessions, track, write_cohort


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four recorded sessions of three turns."""
    with oakleaf.open(write_cohort(tmp_path / "lab.db", 4), synchronous="normal") as store:
        yield store


def run(
    store: Store, seed: int = 1, planted: float = 0.0, after: AfterDivergence = "stop", **how: Any
) -> LabReport:
    lab = Lab(
        store,
        "agent:support",
        baseline_model=noisy(seed),
        model=noisy(seed, planted=planted, name="new"),
        after_divergence=after,
    )
    return lab.run_sync(**how)


class TestLanes:
    @pytest.mark.smoke
    def test_each_session_is_observed_and_replayed_in_both_lanes(self, store: Store) -> None:
        sources = [row.session_id for row in store.all_sessions()][::-1]
        lab = Lab(store, "agent:support", baseline_model=noisy(1), model=noisy(1), repeat=2)
        report = lab.run_sync()
        assert report.status == "complete"
        assert [lane.cells for lane in report.lanes] == [4, 8, 8]
        assert [session.session_id for session in report.sessions] == sources
        for session in report.sessions:
            for replay in (*session.baseline, *session.candidate):
                row = store.session(replay).row
                assert (row.relation, row.parent_session) == ("replay", session.session_id)
                assert row.tags["lab"] == report.run_id

    def test_the_same_model_does_the_same(self, store: Store) -> None:
        exact = ScriptedModel(answer, model="exact", rates=RATES)
        report = Lab(store, "agent:support", baseline_model=exact).run_sync()
        for lane in report.lanes[1:]:
            assert lane.classes["same"].value == 1.0
            assert lane.usage.cost_microcents == report.lane("observed").usage.cost_microcents

    @pytest.mark.extra
    def test_models_of_client_objects_answer(self, store: Store) -> None:
        from anthropic import AsyncAnthropic
        from openai import AsyncOpenAI

        with FakeProviders() as server:
            claude = oakleaf.model("claude-x", client=AsyncAnthropic(api_key="k", base_url=server.url))
            gpt = oakleaf.model(
                "openai-chat:x", client=AsyncOpenAI(api_key="k", base_url=server.url_for("openai"))
            )
            report = Lab(store, "agent:support", baseline_model=claude, model=gpt).run_sync()
        assert report.status == "complete"
        assert {len(server.bodies(name)) for name in ("anthropic", "openai-chat")} == {12}

    @pytest.mark.extra
    def test_a_session_of_a_client_object_needs_a_model(self, store: Store) -> None:
        session = store.start("support", session_id="own", model="anthropic:m@client:AsyncAnthropic")
        session.append([oakleaf.user("Hi."), assistant("Hello.")])
        with pytest.raises(EmptyCohort, match="m@client:AsyncAnthropic, which cannot be called by that name"):
            Lab(store, "own", model=noisy(1))

    def test_strict_repeats_the_recorded_answers_and_calls_no_model(self, store: Store) -> None:
        report = Lab(store, "agent:support", mode="strict").run_sync()
        assert report.lane("candidate").classes["same"].value == 1.0
        assert report.spent_microcents == 0

    @pytest.mark.parametrize("after", ["stop", "continue"])
    def test_a_call_that_was_not_recorded_ends_the_session_or_only_the_turn(
        self, store: Store, after: Any
    ) -> None:
        always = noisy(1, tool_changed=1.0, name="other")
        exact = ScriptedModel(answer, model="exact", rates=RATES)
        lab = Lab(store, "ses_case_000", baseline_model=exact, model=always, after_divergence=after)
        candidate = lab.run_sync().lane("candidate")
        assert candidate.turns == (1 if after == "stop" else 3)
        assert candidate.classes["tool_changed"].value == 1.0

    def test_what_the_model_says_decides_the_class(self, store: Store) -> None:
        def line(request: oakleaf.Request) -> Any:
            reply = answer(request)
            if isinstance(reply, str):
                return reply.replace("is lost", "got lost") if " 0 " in reply else reply
            call = reply.calls[0]
            if call.arguments["order"] == 1:
                return assistant(oakleaf.ToolCall(call.id, "look_up", {"order": 99}))
            return "I do not know." if call.arguments["order"] == 2 else reply

        new = ScriptedModel(line, model="new", rates=RATES)
        exact = ScriptedModel(answer, model="exact", rates=RATES)
        lab = Lab(store, "ses_case_000", baseline_model=exact, model=new, after_divergence="continue")
        (session,) = lab.run_sync().sessions
        kinds = [turn.candidate[0].kind for turn in session.turns]
        assert kinds == ["reworded", "arguments changed", "tool changed"]

    def test_a_turn_that_waits_for_approval_is_the_same_if_the_model_makes_the_same_call(
        self, store: Store
    ) -> None:
        @oakleaf.tool(approval=True)
        def refund(order: int) -> str:
            """Give the money back."""
            return "refunded"

        def asks(request: oakleaf.Request) -> Any:
            return assistant(ToolCall("c1", "refund", {"order": 41}))

        model = ScriptedModel(asks, model="exact", rates=RATES)
        waiting = store.start("bank", session_id="ses_waiting")
        waiting.send_sync("Refund order 41", model=model, tools=[refund])
        refuses = ScriptedModel(lambda request: "I must not.", model="new", rates=RATES)
        (session,) = Lab(store, "ses_waiting", baseline_model=model, model=refuses).run_sync().sessions
        assert [turn.baseline[0].kind for turn in session.turns] == ["same"]
        assert [turn.candidate[0].kind for turn in session.turns] == ["tool changed"]

    def test_why_turns_failed_is_said(self, store: Store) -> None:
        """It said "failed 100 %" and no word of why."""
        silent = ScriptedModel([], model="silent", rates=RATES)
        report = Lab(store, "agent:support", baseline_model=noisy(1), model=silent).run_sync()
        assert report.lane("candidate").classes["failed"].value == 1.0
        assert all("its script has no more lines" in session.failures[0] for session in report.sessions)
        assert any(line.startswith("failed turns: 4 sessions: silent gave") for line in report.lines())

    def test_the_sources_do_not_change(self, store: Store) -> None:
        sources = [row.session_id for row in store.all_sessions()][::-1]
        before = [msgspec.json.encode(store.session(each).path()) for each in sources]
        rows = [store.session(each).row for each in sources]
        run(store)
        assert [msgspec.json.encode(store.session(each).path()) for each in sources] == before
        assert [store.session(each).row for each in sources] == rows


class TestContinuing:
    def test_a_complete_run_is_not_run_again(self, store: Store) -> None:
        first = run(store)
        calls = store.backend.daily_usage()
        assert run(store) == first
        assert store.backend.daily_usage() == calls

    def test_again_runs_it_anew(self, store: Store) -> None:
        labs = [Lab(store, "agent:support", baseline_model=noisy(1), again=True) for _ in range(1)]
        first = labs[0].run_sync()
        second = Lab(store, "agent:support", baseline_model=noisy(1), again=True).run_sync()
        assert first.run_id != second.run_id
        assert second.spent_microcents == first.spent_microcents > 0

    def test_a_model_that_cannot_be_reached_makes_it_incomplete_and_the_same_lab_goes_on(
        self, store: Store
    ) -> None:
        whole = run(store)
        calls = 0

        def break_once() -> None:
            nonlocal calls
            calls += 1
            if calls == 9:
                raise ModelUnavailable("new", "no connection", "try again")

        how: dict[str, Any] = {
            "baseline_model": noisy(1),
            "model": noisy(1, name="other", on_call=break_once),
        }
        report = Lab(store, "agent:support", **how).run_sync(workers=1)
        assert (report.status, report.exit_code) == ("incomplete", 4)
        assert "no connection" in (report.why or "")
        final = Lab(store, "agent:support", **how).run_sync(workers=1)
        assert final.status == "complete"
        assert final.spent_microcents == whole.spent_microcents
        assert [turn.candidate[0].kind for s in final.sessions for turn in s.turns] == [
            turn.candidate[0].kind for s in whole.sessions for turn in s.turns
        ]


class TestGates:
    def test_they_are_stored_with_the_run_and_shown_after_a_restart(self, tmp_path: Path) -> None:
        path = write_cohort(tmp_path / "lab.db", 4)
        gates = ["tool_changed > 1%", "failed > baseline", "polite < 2"]

        def polite(turn: ScoredTurn) -> bool:
            return "sorry" in turn.text

        with oakleaf.open(path, synchronous="normal") as store:
            # Every turn has a class, so that the gates on classes are decided.
            report = run(store, planted=0.5, after="continue", fail_if=gates, scorers=[polite])
            assert [gate.outcome for gate in report.gates] == ["failed", "passed", "failed"]
        with oakleaf.open(path) as store:
            assert oakleaf_lab.report(store, report.run_id).gates == report.gates
            run(store, planted=0.5, after="continue")  # printing the report again does not forget them
            assert oakleaf_lab.report(store, report.run_id).gates == report.gates
            run(store, planted=0.5, after="continue", fail_if=["missing > 1%"])
            assert [gate.gate for gate in oakleaf_lab.report(store, report.run_id).gates] == ["missing > 1%"]

    @pytest.mark.parametrize("gate", ["cost > 1.2x", "cost > 0.5", "cost < baseline"])
    def test_one_of_cost_is_not_decided_where_calls_have_no_price(self, store: Store, gate: str) -> None:
        """They counted as free: a model without a price passed every gate, and was said to cost 0 times as much."""
        lab = Lab(
            store,
            "agent:support",
            baseline_model=ScriptedModel(answer, model="exact", rates=RATES),
            model=ScriptedModel(answer, model="unpriced"),
        )
        report = lab.run_sync(fail_if=[gate])
        assert [result.outcome for result in report.gates] == ["undecided"]
        assert report.exit_code == ExitCode.UNANSWERABLE
        assert report.lane("candidate").usage.unpriced_calls == report.lane("candidate").usage.calls
        assert not any("cost" in line and "times" in line for line in report.lines())

    def test_of_an_incomplete_run_none_is_decided(self, store: Store) -> None:
        report = run(store, fail_if=["same < 1%"], max_cost_microcents=1_000_000)
        assert [gate.outcome for gate in oakleaf_lab.report(store, report.run_id).gates] == ["undecided"]


class TestLatency:
    @pytest.mark.parametrize("decision", ["approve", "deny"])
    def test_it_is_without_the_wait_for_a_person(self, decision: str) -> None:
        clock = count(2_000_000_000_000_000, 1_000)

        @oakleaf.tool(effect="unsafe", approval=True)
        def refund(order: int) -> str:
            """Give the money back."""
            return "refunded"

        with oakleaf.open("memory:") as store:
            store.runtime = replace(store.runtime, now=lambda: next(clock))
            session = store.start("support")
            model = ScriptedModel([assistant(ToolCall("c", "refund", {"order": 1})), "Done."])
            session.send_sync("Refund it", model=model, tools=[refund])
            (call,) = session.open_tool_calls
            for _ in range(60_000):  # a minute
                next(clock)
            session.approve(call, allow=decision == "approve")
            session.resume_sync(model=model, tools=[refund])
            report = Lab(store, "agent:support", mode="strict").run_sync()
            assert 0 < (report.lane("observed").latency_ms or 0) < 1_000

    def test_nor_with_the_time_in_which_nothing_ran_it(self) -> None:
        facts = [
            StoredFact(1, "turn_started", None, 0, b'{"turn":1}'),
            StoredFact(2, "appended", None, 2_000),
            StoredFact(3, "renamed", None, 50_000),
            StoredFact(4, "turn_resumed", None, 100_000, b'{"turn":1}'),
            StoredFact(5, "appended", None, 103_000),
        ]
        with oakleaf.open("memory:") as store:
            session = store.start("a")
            session.append([oakleaf.user("x"), assistant("y")])
            first, last = session.path()
        path = [replace(first, at=0), replace(last, at=103_000)]
        assert turn_milliseconds(path, facts) == {1: 5}


class TestBudget:
    @pytest.mark.parametrize("workers", [1, 4])
    def test_the_limit_is_never_passed(self, store: Store, workers: int) -> None:
        limit = 2_500_000
        report = run(store, workers=workers, max_cost_microcents=limit)
        ledger = sum(
            call.price.microcents
            for row in store.all_sessions(relation="replay")
            for call in store.session(row.session_id).model_calls()
            if call.price is not None
        )
        assert report.status == "incomplete"
        assert 0 < ledger <= limit
        assert report.spent_microcents == ledger
        assert "larger --max-cost" in (report.why or "")

    def test_a_run_that_goes_on_says_so_in_its_plan_and_one_in_the_trash_is_forgotten(
        self, store: Store
    ) -> None:
        first = run(store, max_cost_microcents=1_000_000)
        oakleaf_lab.save_cohort(store, "all", "agent:support")

        def lab(*cohort: str) -> Lab:
            return Lab(store, *cohort, baseline_model=noisy(1), model=noisy(1, name="new"))

        assert lab("agent:support").plan_lines()[0].startswith(f"continues  {first.run_id}, planned at ")
        assert lab("all").planned_at is None
        store.delete(first.run_id)
        assert lab("agent:support").planned_at is None
        anew = lab("agent:support").run_sync()
        assert (anew.status, anew.run_id != first.run_id) == ("complete", True)

    def test_with_a_larger_one_the_same_lab_goes_on(self, store: Store) -> None:
        first = run(store, max_cost_microcents=1_000_000)
        final = run(store)
        assert (first.status, final.status) == ("incomplete", "complete")
        assert final.run_id == first.run_id

    def test_one_smaller_than_the_first_call_spends_nothing(self, store: Store) -> None:
        report = run(store, max_cost_microcents=1)
        assert (report.status, report.spent_microcents) == ("incomplete", 0)

    def test_it_is_given_in_dollars_or_in_microcents_but_not_as_two_amounts(self, store: Store) -> None:
        report = run(store, max_cost_dollars=0.00000001)
        assert (report.status, report.spent_microcents) == ("incomplete", 0)
        with pytest.raises(InvalidArgument, match="max_cost_dollars"):
            run(store, max_cost_dollars=1, max_cost_microcents=1)
        assert run(store, max_cost_dollars=1_000).status == "complete"

    def test_a_model_without_a_price_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidLab, match="has no price"):
            Lab(store, "agent:support", baseline_model=ScriptedModel(answer)).run_sync(max_cost_microcents=5)


class TestInterruption:
    @pytest.mark.parametrize("after", [1, 7, 16])
    def test_cancelled_it_stores_the_answers_in_flight_and_goes_on(self, store: Store, after: int) -> None:

        calls = 0
        reached = asyncio.Event()

        def count() -> None:
            nonlocal calls
            calls += 1
            if calls == after:
                reached.set()

        def lab(store: Store, on_call: Any = lambda: None) -> Lab:
            old = noisy(3, on_call=on_call)
            return Lab(
                store,
                "agent:support",
                baseline_model=old,
                model=noisy(3, planted=0.3, name="new", on_call=on_call),
            )

        async def cancelled() -> None:
            task = asyncio.create_task(lab(store, count).run(workers=2))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        report = lab(store).run_sync(workers=2)
        assert report.status == "complete"
        with oakleaf.open("memory:") as other:
            record_sessions(other, 4)
            whole = lab(other).run_sync(workers=2)
        assert report.spent_microcents == whole.spent_microcents
        assert report.comparisons[:7] == whole.comparisons[:7]


class TestFunctionOfTheCell:
    def test_another_lambda_is_another_experiment(self, store: Store) -> None:
        """Both are called `<lambda>`: the second was given the report of the first."""

        def answering(text: str) -> Any:
            return lambda cell: ScriptedModel(lambda request: text, model="m", rates=RATES)

        first = Lab(store, "agent:support", baseline_model=answering("Lost."), model=answering("Lost."))
        second = Lab(store, "agent:support", baseline_model=answering("Lost."), model=answering("Refunded."))
        again = Lab(store, "agent:support", baseline_model=answering("Lost."), model=answering("Lost."))
        assert first.run_id == again.run_id != second.run_id

    def test_identity_is_code_defaults_closure_and_bound_values(self) -> None:
        class Candidate:
            def __init__(self, share: float) -> None:
                self.share = share

            def __call__(self, cell: Any) -> float:
                return self.share

        def answer(cell: Any, share: float = 0.1) -> float:
            return share

        same = [function_identity(Candidate(0.1)), function_identity(Candidate(0.1))]
        others = [
            function_identity(each)
            for each in (
                Candidate(0.2),
                answer,
                partial(answer, share=0.3),
                partial(answer, share=0.4),
                lambda cell: 1,
                lambda cell: 2,
                Candidate(0.1).__call__,
                Candidate(0.2).__call__,
            )
        ]
        assert same[0] == same[1]
        assert len({same[0], *others}) == 9


class TestBadInput:
    def test_an_empty_cohort_says_why(self, store: Store) -> None:
        with pytest.raises(
            EmptyCohort, match="4 with model recorded-model, which cannot be called by that name"
        ):
            Lab(store, "agent:support")
        with pytest.raises(EmptyCohort, match="name the baseline's model"):
            Lab(store, "agent:support")
        with pytest.raises(EmptyCohort, match="can be replayed"):
            Lab(store, "agent:nobody", baseline_model=noisy(1))

    @pytest.mark.parametrize("gate", ["tool_changed", "tool_changed > many", "> 5%", "cost => 2x"])
    def test_a_gate_that_does_not_parse_says_how_to_write_one(self, store: Store, gate: str) -> None:
        with pytest.raises(InvalidLab, match="write one like"):
            run(store, fail_if=[gate])

    def test_a_gate_on_something_unmeasured_names_what_is_measured(self, store: Store) -> None:
        with pytest.raises(InvalidLab, match="did you mean tool_changed"):
            run(store, fail_if=["tools_changed > 5%"])

    def test_strict_changes_nothing(self, store: Store) -> None:
        with pytest.raises(InvalidLab, match="mode strict"):
            Lab(store, "agent:support", mode="strict", prompt="Be brief.")


class TestErasure:
    def test_a_run_loses_the_cells_of_an_erased_customer_alone(self, store: Store) -> None:
        """What it says of other customers is in a new run, with its scores."""
        report = run(store)
        gone, *others = [one.session_id for one in report.sessions]
        others_before = [one for one in report.sessions if one.session_id != gone]
        row = store.session(report.run_id).row
        keep_without(store, row, {gone})
        keep_without(store, row, {gone})  # it goes on after an interruption
        store.delete(report.run_id)
        store.purge(report.run_id)
        assert list(quoting_sessions(store, {gone})) == []
        ((kept, _),) = quoting_sessions(store, {others[0]})
        record = LabRecord.load(store, kept.session_id)
        assert {cell.source for cell in record.cells} == set(others)
        assert {score.cell.source for score in record.scores.values()} <= set(others)
        assert (record.is_complete, kept.status) == (True, "completed")
        assert len(record.cells) == 3 * len(others_before)

    def test_an_interrupted_erasure_goes_on_with_the_runs(self, store: Store, tmp_path: Path) -> None:
        class Killed(Caller):
            @contextmanager
            def progress(self, label: str, unit: str = "") -> Iterator[Step]:
                def stop(done: int, total: int | None, note: str = "") -> None:
                    raise KeyboardInterrupt

                yield stop

        session = store.start("support", session_id="ses_ann", owner="ann")
        session.send_sync("Where is order 7?", model=ScriptedModel(answer), tools=[look_up, track])
        report, receipt = run(store), tmp_path / "ann.json"
        sealed, erase = store.seal(), Erase(owner="ann", receipt=str(receipt))
        with pytest.raises(KeyboardInterrupt):
            erase.run(Killed(store))
        assert erase(store).lab_runs == [report.run_id]
        assert list(quoting_sessions(store, {"ses_ann"})) == []
        assert store.check_seal(sealed, purged=read_receipts([str(receipt)])).removed == []
