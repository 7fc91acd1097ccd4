"""A verdict rests on what was judged: a prompt that refunds everybody passes no gate, and a gate says on how much it rests."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import Message, Rates, Request, ScriptedModel, Store, ToolCall, assistant, system
from oakleaf.errors import ExitCode
from oakleaf_lab import Cell, Lab
from oakleaf_lab.errors import InvalidLab
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.scorers import ScoredTurn

OLD = "You help customers.\nRefund lost orders alone."
GENEROUS = "You help customers.\nBe generous with refunds."
SESSIONS = 40


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    """Look an order up."""
    return {"order": order, "status": "delivered"}


@oakleaf.tool(effect="unsafe", dry_run=lambda order: f"would refund order {order}")
def refund(order: int) -> str:
    """Give the money back."""
    return f"refunded order {order}"


@oakleaf.tool(effect="unsafe", dry_run=lambda order: f"would ask about order {order}")
def escalate(order: int) -> str:
    """Ask a person to decide."""
    return f"asked about order {order}"


TOOLS = [look_up, refund, escalate]


def agent(cell: Cell | None = None) -> ScriptedModel:
    """Return a model that refunds 35 of 100 orders, and with the generous prompt 97."""

    def answer(request: Request) -> str | Message:
        order = int(request.messages[0].text.split()[-1])
        draw = random.Random(sha256(f"{cell} {order}".encode()).digest()).random()
        refunds = draw < (0.97 if "generous" in request.system else 0.35)
        if len(request.messages) == 1:
            return assistant(ToolCall("c1", "look_up", {"order": order}))
        if len(request.messages) == 3:
            return assistant(ToolCall("c2", "refund" if refunds else "escalate", {"order": order}))
        return "You have your money back." if refunds else "A colleague will write."

    return ScriptedModel(answer, model="agent", rates=Rates(input=3, output=15))


def wrong_refund(turn: ScoredTurn) -> bool:
    return any(call.name == "refund" for call in turn.calls)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with oakleaf.open(tmp_path / "shop.db", synchronous="normal") as store:
        for order in range(SESSIONS):
            session = store.start("support", [system(OLD)], session_id=f"ses_{order:02d}")
            session.send_sync(f"Where is order {order}", model=agent(), tools=TOOLS)
        yield store


def run(store: Store, *fail_if: str, prompt: str | None = GENEROUS, **how: Any) -> LabReport:
    lab = Lab(store, "agent:support", prompt=prompt, baseline_model=agent, **how)
    return lab.run_sync(fail_if=fail_if, scorers=[wrong_refund])


class TestRefundsForEverybody:
    @pytest.mark.parametrize("gate", ["wrong_refund > baseline + 5%", "cost > 1.2x", "calls:escalate > 1"])
    def test_unscored_turns_leave_a_gate_undecided(self, store: Store, gate: str) -> None:
        """Turns with a call that was not recorded were dropped: both lanes were equal, and the gate passed."""
        report = run(store, gate)
        (result,) = report.gates
        assert (result.outcome, report.exit_code) == ("undecided", ExitCode.UNANSWERABLE)
        assert "of 80 replayed turns have no value" in result.why
        assert "ended at a call that was not recorded" in result.why
        assert any("--set tools=FILE.py" in line for line in report.lines())

    @pytest.mark.parametrize("gate", ["wrong_refund > baseline + 5%", "calls:refund > baseline + 5%"])
    def test_tools_make_dry_runs_the_default_and_the_gate_fails(self, store: Store, gate: str) -> None:
        report = run(store, gate, tools=TOOLS)
        assert report.experiment.mode == "dry"
        assert [result.outcome for result in report.gates] == ["failed"]
        assert report.exit_code == ExitCode.PROBLEM
        assert "over 40 turns of 40 sessions" in report.gates[0].why

    @pytest.mark.parametrize("page", ["README.md", "Makefile", "docs/lab.md", "docs/cli.md"])
    def test_the_gate_that_people_copy_catches_it(self, store: Store, page: str) -> None:
        text = (Path(__file__).parents[3] / page).read_text()
        gates = set(re.findall(r"(?:--fail-if '|GATE=\")([^'\"]+ baseline \+ [^'\"]+)['\"]", text))
        assert gates
        for gate in gates:
            assert run(store, gate, tools=TOOLS).exit_code == ExitCode.PROBLEM, gate

    def test_a_rate_of_calls_needs_no_dry_run_to_fail(self, store: Store) -> None:
        report = run(store, "calls:refund > baseline + 5%")
        assert report.exit_code == ExitCode.PROBLEM

    def test_equal_prompts_pass_with_tools(self, store: Store) -> None:
        report = run(store, "calls:refund > baseline + 15%", "calls:sue > 0", prompt=OLD, tools=[*TOOLS, sue])
        assert [result.outcome for result in report.gates] == ["passed", "passed"], report.gates


@oakleaf.tool(effect="unsafe")
def sue(order: int) -> str:
    """Go to court."""
    return "sued"


class TestRatesOfCalls:
    def test_they_are_compared_without_a_scorer(self, store: Store) -> None:
        report = run(store, tools=TOOLS)
        comparison = report.comparison("calls:refund")
        effect = comparison.effect
        assert comparison.text.startswith("refund is called in ")
        assert " of turns, " in comparison.text
        assert " in the baseline: +" in comparison.text
        assert effect.low is not None
        assert effect.low > 0.3
        rates = {lane.lane: lane.calls["refund"] for lane in report.lanes}
        assert rates["candidate"].value > 0.9
        assert rates["observed"].value < 0.5
        assert rates["baseline"].low < rates["baseline"].value < rates["baseline"].high
        lines = report.lines()
        assert comparison.text in lines
        assert any(line.startswith("calls refund") for line in lines)

    @pytest.mark.parametrize(
        ("gate", "words"),
        [
            ("calls:refnd > 5%", "did you mean calls:refund?"),
            ("calls:nothing > 5%", "tools are escalate, look_up, refund"),
            ("wrong > 5%", "which is not measured"),
        ],
    )
    def test_a_gate_of_an_unknown_tool_is_refused(self, store: Store, gate: str, words: str) -> None:
        with pytest.raises(InvalidLab) as refused:
            run(store, gate)
        assert words in refused.value.command_text
        assert list(store.all_sessions(relation="replay")) == []


class TestScorers:
    def test_a_scorer_that_raises_leaves_its_gate_undecided(self, store: Store) -> None:
        def moody(turn: ScoredTurn) -> bool:
            if turn.lane == "candidate" and turn.session_id == "ses_07":
                raise ValueError("no")
            return False

        lab = Lab(store, "agent:support", baseline_model=agent, tools=TOOLS)
        report = lab.run_sync(scorers=[moody], fail_if=["moody > 5%"])
        assert report.exit_code == ExitCode.UNANSWERABLE
        assert "1 of 80 replayed turns has no value" in report.gates[0].why
        assert "ValueError: no" in report.gates[0].why

    def test_a_session_that_was_replayed_in_part_leaves_the_gate_undecided(self, store: Store) -> None:
        def never_refunds(session: Any) -> bool:
            return not any(call.name == "refund" for turn in session.turns for call in turn.calls)

        lab = Lab(store, "agent:support", prompt=GENEROUS, baseline_model=agent)
        report = lab.run_sync(scorers=[never_refunds], fail_if=["never_refunds < 1%"])
        assert report.exit_code == ExitCode.UNANSWERABLE

    def test_a_budget_that_is_reached_leaves_every_gate_undecided(self, store: Store) -> None:
        lab = Lab(store, "agent:support", prompt=GENEROUS, baseline_model=agent, tools=TOOLS)
        gates = ["calls:refund > baseline + 5%", "failed > 1%"]
        report = lab.run_sync(fail_if=gates, max_cost_dollars=0.05)
        assert {result.outcome for result in report.gates} == {"undecided"}
        assert re.search(r"the run is incomplete: \d+ of 120 cells are done", report.gates[0].why)
        again = Lab(store, "agent:support", prompt=GENEROUS, baseline_model=agent, tools=TOOLS)
        assert [result.outcome for result in again.run_sync(fail_if=gates).gates] == ["failed", "passed"]


class TestWords:
    def test_the_report_shows_the_prompt_that_was_tested(self, store: Store) -> None:
        report = run(store, tools=TOOLS)
        lines = report.lines()
        assert "-Refund lost orders alone." in report.prompt_diff
        assert "+Be generous with refunds." in report.prompt_diff
        assert {"  -Refund lost orders alone.", "  +Be generous with refunds."} <= set(lines)

    def test_an_addition_to_the_prompt_is_shown_as_one(self, store: Store) -> None:
        report = run(store, prompt=None, prompt_patch="Be generous.", tools=TOOLS)
        assert "+Be generous." in report.prompt_diff
        assert not any(line.startswith("-") and line[:3] != "---" for line in report.prompt_diff)

    def test_tools_that_are_as_recorded_are_no_change(self, store: Store) -> None:
        assert run(store, tools=TOOLS).change == "another prompt"
        assert (
            run(store, tools=[*TOOLS, sue]).change == "another prompt, tools look_up, refund, escalate, sue"
        )

    def test_a_comparison_says_how_many_turns_it_counts(self, store: Store) -> None:
        """The table said 87 % and the text 79 %, and no word why."""
        report = run(store)
        effect = report.comparison("wrong_refund").effect
        assert 0 < effect.turns < SESSIONS
        assert (
            f"of the {effect.turns} turns with a value in both lanes"
            in report.comparison("wrong_refund").text
        )
        assert "turns with a value" not in report.comparison("tool_changed").text

    def test_a_gate_gives_its_metric_a_direction(self, store: Store) -> None:
        worse = run(store, "calls:refund > baseline", tools=TOOLS)
        assert worse.comparison("calls:refund").verdict == "worse"
        assert worse.comparison("calls:escalate").verdict is None
        better = run(store, "calls:refund < baseline - 5%", tools=TOOLS)
        assert better.comparison("calls:refund").verdict == "better"
        assert any(line.endswith(": better") for line in better.lines())
