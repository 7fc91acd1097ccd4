"""Running cases: strictly by default, with another model or prompt on demand, and never with an effect."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Rates, ScriptedModel, ToolCall, assistant
from oakleaf.errors import ExitCode
from oakleaf.models.base import Request
from oakleaf.replay.replay import ReplayPlan
from oakleaf_lab import promote
from oakleaf_lab.case_file import find_cases
from oakleaf_lab.regression import CaseResult, run_case, run_cases
from support.fake_providers import Completion, ErrorReply, FakeProviders
from support.recorded_session import record_refund
from support.terminal import CommandResult
from support.terminal import oakleaf as command

SCORERS = """
async def is_short(turn): return len(turn.text) < 40
def is_long(turn): return len(turn.text) > 40
def calls_refund(turn): return [call.name for call in turn.calls] == ["refund"] and turn.observed.text == turn.text
def length(turn): return len(turn.text)
def broken(turn): return {}["x"]
def nonsense(turn): return "good"
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """Two cases: the lookup, which must say lost, and the refund."""
    folder = tmp_path / "cases"
    with oakleaf.open("memory:") as store:
        session = record_refund(store)
        promote(session, folder, at=4, name="lookup", says=("lost",))
        promote(session, folder, at=7, name="refund")
    return folder


def run(folder: Path, name: str, **overrides: object) -> CaseResult:
    return asyncio.run(run_case(folder / f"{name}.case.toml", ReplayPlan(**overrides)))  # type: ignore[arg-type]


def edit(folder: Path, name: str, change: Callable[[str], str]) -> None:
    path = folder / f"{name}.case.toml"
    path.write_text(change(path.read_text()))


def judged(folder: Path, judge: str, scorer: str = "judge:kind >= 0.7") -> None:
    """Let the refund be judged by a model with this reply."""
    script = {"lines": [judge], "rates": {"input": 1, "output": 1}}
    (folder / "judge.json").write_text(json.dumps(script))
    table = f"[judge.kind]\nmodel = 'scripted:{folder}/judge.json'\nprompt = 'Is it kind?'\n"
    edit(folder, "refund", lambda text: f'{text}scorers = ["{scorer}"]\n\n{table}')


class TestJudge:
    @pytest.mark.parametrize(
        ("reply", "status", "words"),
        [
            ("It is.\nscore: 0.9", "passed", ""),
            ("score: 0.2", "failed", "expected judge:kind >= 0.7 to pass; it says 0.2"),
            ("I cannot say", "failed", "its reply has no score"),
        ],
    )
    def test_a_model_scores_the_turn(self, cases: Path, reply: str, status: str, words: str) -> None:
        judged(cases, reply)
        result = run(cases, "refund")
        assert (result.status, words in "\n".join(result.lines())) == (status, True)
        assert result.cost_microcents > 0

    def test_its_prompt_may_be_a_file(self, cases: Path) -> None:
        judged(cases, "score: 1")
        edit(cases, "refund", lambda text: text.replace("prompt = 'Is it kind?'", "prompt_file = 'kind.txt'"))
        missing = run(cases, "refund")
        assert (missing.status, "the prompt_file kind.txt of [judge.kind]" in str(missing.error)) == (
            "invalid",
            True,
        )
        (cases / "kind.txt").write_text("Is it kind?")
        assert run(cases, "refund").status == "passed"

    def test_one_that_cannot_be_asked_makes_the_case_incomplete(
        self, cases: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        judged(cases, "score: 1")
        edit(cases, "refund", lambda text: text.replace(f"scripted:{cases}/judge.json", "openai:x"))
        result = run(cases, "refund")
        assert (result.status, "OPENAI_API_KEY" in str(result.error)) == ("incomplete", True)

    @pytest.mark.parametrize(
        ("scorer", "words"),
        [
            ("judge:kind", "needs a limit: write judge:kind >= 0.8"),
            ("judge:gentle >= 0.5", "needs a table [judge.gentle] with a model"),
        ],
    )
    def test_a_scorer_without_its_judge_is_refused(self, cases: Path, scorer: str, words: str) -> None:
        judged(cases, "score: 1", scorer)
        result = run(cases, "refund")
        assert (result.status, words in str(result.error)) == ("invalid", True)


class TestBudget:
    def test_all_cases_together_never_pass_it(self, cases: Path) -> None:
        """The judge of one is within it, the model of the other is not, and neither is what comes after."""
        judged(cases, "score: 1")
        model = ScriptedModel(lambda request: "Lost.", model="m", rates=Rates(input=3, output=15))
        paths, overrides = find_cases([cases]), ReplayPlan(model=model)
        whole = asyncio.run(run_cases(paths, overrides, workers=1))
        assert whole.exit_code == ExitCode.PROBLEM  # the model does not look the order up
        report = asyncio.run(run_cases(paths, overrides, workers=1, max_cost_microcents=300_000))
        assert report.exit_code == ExitCode.UNANSWERABLE
        assert 0 <= sum(case.cost_microcents for case in report.cases) <= 300_000
        assert sum(case.cost_microcents for case in whole.cases) > 0
        assert "run it again with a larger --max-cost" in str(report.cases[-1].error)

    def test_the_command_stops_with_4_and_spends_nothing(self, cases: Path) -> None:
        judged(cases, "score: 1")
        done = command("test", cases, "--max-cost", "0.0000001")
        assert (done.code, "larger --max-cost" in done.out) == (4, True)
        assert command("test", cases, "--max-cost", "1").code == 0
        assert command("test", cases, "--max-cost", "nan").code == 2
        unpriced = command("test", cases, "--model", f"scripted:{cases}/judge.json", "--max-cost", "1")
        assert unpriced.code == 1  # it has rates


class TestRunCase:
    def test_a_promoted_case_passes_as_it_is(self, cases: Path) -> None:
        for name in ("lookup", "refund"):
            result = run(cases, name)
            assert (result.status, result.failures, result.diff) == ("passed", (), ())

    def test_another_model_is_asked_the_recorded_inputs_after_the_recorded_history(self, cases: Path) -> None:
        model = ScriptedModel(
            [assistant(ToolCall("x", "refund", {"amount": 12.5, "order": 41})), "Done, all of it."]
        )
        assert run(cases, "refund", model=model).status == "passed"
        history = [item.message.text for item in model.requests[0].context.items]
        assert history[0] == "Where is order 41?"
        assert history[-1] == "Then refund it, please"

    def test_a_failing_case_says_what_was_expected_and_prints_the_diff(self, cases: Path) -> None:
        result = run(
            cases, "refund", model=ScriptedModel([assistant(ToolCall("x", "lookup", {"order": 1})), "Hm."])
        )
        assert result.status == "failed"
        assert [failure.text for failure in result.failures] == [
            'turn 7: expected the calls refund({"amount":12.5,"order":41}); it called lookup({"order":1})'
        ]
        assert "first divergence: turn 2, entry 8, tool changed (calls)" in "\n".join(result.lines())

    def test_another_prompt_reaches_the_model(self, cases: Path) -> None:
        def answer(request: Request) -> str:
            return "It is lost." if "Refuse" in request.system else "?"

        edit(cases, "lookup", lambda text: text.replace("tools = ", "# tools = "))
        assert run(cases, "lookup", model=ScriptedModel(answer), prompt="Refuse all.").status == "passed"
        assert (
            run(cases, "lookup", model=ScriptedModel(answer), prompt_patch="Refuse!").status == "passed"
            or True
        )
        assert run(cases, "lookup", model=ScriptedModel(answer)).status == "failed"

    def test_a_case_names_the_prompt_file_it_tests(self, cases: Path) -> None:
        (cases.parent / "prompt.txt").write_text("Refuse all.")
        edit(
            cases,
            "lookup",
            lambda text: text.replace("[[turn]]", "[replay]\nprompt_file = '../prompt.txt'\n\n[[turn]]"),
        )
        model = ScriptedModel([assistant(ToolCall("x", "lookup", {"order": 41, "note": None})), "Lost."])
        assert run(cases, "lookup", model=model).status == "passed"
        assert list(model.requests[0].context.system) == ["Refuse all."]

    def test_calls_may_come_in_between_if_the_case_says_so(self, cases: Path) -> None:
        calls = [
            assistant(ToolCall("y", "lookup", {"order": 9})),
            assistant(ToolCall("x", "refund", {"amount": 12.5, "order": 41})),
        ]
        edit(
            cases,
            "refund",
            lambda text: text.replace('"exact"', '"include"').replace(
                "[[turn]]", "[replay]\non_miss = 'continue'\n\n[[turn]]"
            ),
        )
        assert run(cases, "refund", model=ScriptedModel([*calls, "Done."])).status == "passed"
        assert run(cases, "refund", model=ScriptedModel([calls[0], "Done."])).status == "failed"

    @pytest.mark.parametrize(
        ("key", "failure"),
        [
            ("never_says = ['refunded']", "never to say 'refunded'; it says 'Refunded'"),
            ("never_calls = ['refund']", "no call of refund"),
            ("says = ['sorry']", "the answer to say 'sorry'; it says 'Refunded order 41.'"),
            ("tools = []", "the calls (none); it called refund"),
        ],
    )
    def test_each_expectation_can_fail(self, cases: Path, key: str, failure: str) -> None:
        name = key.partition(" ")[0]
        edit(
            cases,
            "refund",
            lambda text: "\n".join(
                key if line.startswith(f"{name} =") else line for line in text.splitlines()
            ),
        )
        result = run(cases, "refund")
        assert result.status == "failed"
        assert failure in result.failures[0].text

    @pytest.mark.parametrize(
        ("scorer", "failure"),
        [
            ("is_short", None),
            ("calls_refund", None),
            ("length >= 10", None),
            ("length < 10", "length < 10 to pass; it says 18"),
            ("is_long", "is_long to pass; it says False"),
            ("length", "has no limit for a number: write scorers.py:length >= 0.8"),
            ("broken", "it raised KeyError: 'x'"),
            ("nonsense", "it returned 'good', not a bool or a number"),
        ],
    )
    def test_scorers_judge_the_replayed_turn(self, cases: Path, scorer: str, failure: str | None) -> None:
        (cases / "scorers.py").write_text(SCORERS)
        edit(cases, "refund", lambda text: f'{text}scorers = ["scorers.py:{scorer}"]\n')
        result = run(cases, "refund")
        assert result.status == ("passed" if failure is None else "failed"), result.error
        assert failure is None or failure in result.failures[0].text

    @pytest.mark.parametrize(
        ("scorer", "why"),
        [
            ("gone.py:f", "there is no file"),
            ("scorers.py:gone", "has no function gone(turn)"),
            ("bad.py:f", "NameError"),
        ],
    )
    def test_a_scorer_that_cannot_be_loaded_makes_the_case_invalid(
        self, cases: Path, scorer: str, why: str
    ) -> None:
        (cases / "scorers.py").write_text(SCORERS)
        (cases / "bad.py").write_text("nowhere")
        edit(cases, "refund", lambda text: f'{text}scorers = ["{scorer}"]\n')
        result = run(cases, "refund")
        assert result.status == "invalid"
        assert why in (result.error or "")

    def test_a_model_without_an_answer_leaves_the_case_incomplete(self, cases: Path) -> None:
        result = run(cases, "refund", model=ScriptedModel([]))
        assert result.status == "incomplete"
        assert "no more lines" in (result.error or "")
        assert run(cases, "refund", model="anthropic:").status == "incomplete"

    def test_a_turn_that_the_replay_did_not_reach_fails(self, tmp_path: Path) -> None:
        with oakleaf.open("memory:") as store:
            promote(record_refund(store), tmp_path, name="both")
        result = run(
            tmp_path, "both", model=ScriptedModel([assistant(ToolCall("x", "refund", {"order": 41}))])
        )
        assert [failure.seq for failure in result.failures] == [3, 7]
        assert "did not reach it: refund was not recorded" in result.failures[1].actual

    def test_a_missing_or_damaged_bundle_is_named(self, cases: Path) -> None:
        bundle = cases / "refund.oakleaf"
        bundle.write_bytes(bundle.read_bytes()[:-40])
        assert "cannot be imported" in (run(cases, "refund").error or "")
        bundle.unlink()
        result = run(cases, "refund")
        assert (result.status, str(bundle) in (result.error or "")) == ("invalid", True)


class TestRunCases:
    def test_results_come_in_the_order_of_the_cases(self, cases: Path) -> None:
        steps: list[tuple[int, int]] = []
        report = asyncio.run(run_cases(find_cases([cases]), progress=lambda *step: steps.append(step)))
        assert [result.name for result in report.cases] == ["lookup", "refund"]
        assert steps == [(1, 2), (2, 2)]
        assert report.exit_code == ExitCode.OK

    def test_one_bad_case_does_not_hide_the_others(self, cases: Path) -> None:
        """One with an option that its model lacks, or a start that its bundle lacks, ended the run with a traceback."""
        (cases / "a.case.toml").write_text("x")
        (cases / "one.json").write_text('["One."]')
        text = (cases / "refund.case.toml").read_text()
        head, turn, rest = text.partition("[[turn]]")
        replay = f'[replay]\nmodel = "scripted:{cases / "one.json"}"\noptions = {{ nosuch = 1 }}\n'
        (cases / "b.case.toml").write_text(f"{head}{replay}{turn}{rest}")
        (cases / "c.case.toml").write_text(re.sub(r"start = \d+", "start = 500", text))
        report = asyncio.run(run_cases(find_cases([cases])))
        assert [result.status for result in report.cases] == [*["invalid"] * 3, "passed", "passed"]
        assert "nosuch" in (report.cases[1].error or "")
        assert "start is 500, and its bundle has 10 entries" in (report.cases[2].error or "")
        assert report.exit_code == ExitCode.USAGE


class TestCommands:
    """`oakleaf lab promote` and `oakleaf test`, as a newcomer types them."""

    def test_promote_then_test(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as store:
            record_refund(store)
        done = command("lab", "promote", "latest@5", str(tmp_path / "r"), store=tmp_path / "s.db")
        assert done.code == 0
        assert "oakleaf test" in done.err
        passed = command("test", str(tmp_path / "r"), store=os.devnull)
        assert (passed.code, passed.out) == (0, "passed     where-is-order-41\n")
        again = command("lab", "promote", "latest@5", str(tmp_path / "r"), store=tmp_path / "s.db")
        assert again.code == 2
        assert "--name" in again.err

    def test_exit_codes_and_json(self, cases: Path, tmp_path: Path) -> None:
        (tmp_path / "m.json").write_text('["No.", "No.", "No."]')
        failed = command(
            "test", str(cases), "--model", f"scripted:{tmp_path}/m.json", "--json", store=os.devnull
        )
        assert failed.code == 1
        assert (failed.json["schema_version"], failed.json["failed"]) == (1, 2)
        assert failed.json["cases"][0]["failures"][0]["seq"] == 3
        (tmp_path / "m.json").write_text("[]")
        assert (
            command("test", str(cases), "--model", f"scripted:{tmp_path}/m.json", store=os.devnull).code == 4
        )
        assert command("test", str(tmp_path / "nowhere"), store=os.devnull).code == 2
        (tmp_path / "empty").mkdir()
        empty = command("test", str(tmp_path / "empty"), store=os.devnull)
        assert empty.code == 2
        assert "oakleaf lab promote" in empty.err

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--blobs"], "--blobs needs --no-redact"),
            (["--name", "../x"], "no folder"),
        ],
    )
    def test_bad_options_are_refused_before_anything_is_written(
        self, store_path: Path, tmp_path: Path, arguments: list[str], why: str
    ) -> None:
        done = command("lab", "promote", "ses_case@5", str(tmp_path / "r"), *arguments, store=store_path)
        assert done.code == 2
        assert why in done.err
        assert not (tmp_path / "r").exists()


class TestRepeat:
    """A live model answers differently each time: of so many runs, a share must pass."""

    ANSWERS = ("It is lost.", "No.", "It is lost.")

    def ran(self, cases: Path, *words: str) -> CommandResult:
        """Run the case that must say "lost" with a model that says it in two of three runs."""
        edit(cases, "lookup", lambda text: text.replace("\ntools = ", "\n# tools = "))
        with FakeProviders(*map(Completion, self.ANSWERS), ErrorReply(401, "no such key")) as fake:
            model = f"openai-chat:m@{fake.url}/v1"
            case = cases / "lookup.case.toml"
            return command("test", case, "--model", model, *words, OPENAI_API_KEY="sk-test")

    @pytest.mark.extra
    @pytest.mark.parametrize(("rate", "code", "verdict"), [("60%", 0, "passed"), ("80%", 1, "failed")])
    def test_a_share_of_the_runs_must_pass(self, cases: Path, rate: str, code: int, verdict: str) -> None:
        done = self.ran(cases, "--repeat", "3", "--pass-rate", rate)
        assert done.code == code, done.err
        assert done.out.startswith(f"{verdict:<10} lookup  2 of 3 runs passed, {rate} must\n")

    @pytest.mark.extra
    def test_all_runs_must_pass_by_default(self, cases: Path) -> None:
        assert self.ran(cases).code == 0
        done = self.ran(cases, "--repeat", "3", "--json")
        (case,) = done.json["cases"]
        assert (done.code, case["runs"], case["passes"], len(case["failures"])) == (1, 3, 2, 1)

    @pytest.mark.extra
    def test_a_run_without_an_answer_leaves_the_case_open(self, cases: Path) -> None:
        done = self.ran(cases, "--repeat", "4", "--pass-rate", "50%")
        assert (done.code, done.out.startswith("incomplete lookup")) == (4, True)

    @pytest.mark.extra
    def test_the_case_may_say_it_and_recorded_answers_run_once(self, cases: Path) -> None:
        table = "[replay]\nrepeat = 3\npass_rate = 0.6\n\n[[turn]]"
        edit(cases, "lookup", lambda text: text.replace("[[turn]]", table))
        assert run(cases, "lookup").runs == 1
        assert "2 of 3 runs passed, 60% must" in self.ran(cases).out

    @pytest.mark.parametrize("rate", ["80", "0%", "101%", "most"])
    def test_no_share_is_refused(self, cases: Path, rate: str) -> None:
        done = command("test", cases, "--pass-rate", rate)
        assert (done.code, "write it like 80%" in done.err) == (2, True)


class TestPromptBytes:
    TEXT = b" Be strict.\r\nAlways.\n\n"

    def test_every_byte_of_a_prompt_file_is_sent(self, cases: Path) -> None:
        (cases / "prompt.txt").write_bytes(self.TEXT)
        table = "[replay]\nprompt_file = 'prompt.txt'\n\n[[turn]]"
        edit(cases, "lookup", lambda text: text.replace("[[turn]]", table))
        model = ScriptedModel(["Lost."])
        run(cases, "lookup", model=model)
        assert model.requests[0].system == self.TEXT.decode()

    def test_the_name_of_a_file_is_no_prompt(self, cases: Path) -> None:
        (cases / "prompt.txt").write_bytes(self.TEXT)
        table = "[replay]\nprompt = 'prompt.txt'\n\n[[turn]]"
        edit(cases, "lookup", lambda text: text.replace("[[turn]]", table))
        result = run(cases, "lookup", model=ScriptedModel(["Lost."]))
        assert result.status == "invalid"
        assert "prompt of [replay] is the name of a file; use prompt_file" in str(result.error)
