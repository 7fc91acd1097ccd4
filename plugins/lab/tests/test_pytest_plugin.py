"""The pytest plugin, in a pytest of its own as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf
import oakleaf_lab
from support.recorded_session import record_refund


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two promoted cases."""
    with oakleaf.open("memory:") as store:
        session = record_refund(store)
        oakleaf_lab.promote(session, tmp_path / "regressions", at=4, name="lookup", says=["lost"])
        oakleaf_lab.promote(session, tmp_path / "regressions", at=7, name="refund")
        session.export(tmp_path / "whole.oakleaf")
    return tmp_path


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
    ]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_cases_and_fixtures_run_under_pytest(project: Path) -> None:
    (project / "test_agent.py").write_text(
        """
from oakleaf import ToolCall, assistant

REFUND = ToolCall("x", "refund", {"order": 41, "amount": 12.5})


def test_a_store_is_empty_and_a_model_answers(oakleaf_store, scripted_model):
    session = oakleaf_store.start("a")
    assert session.send_sync("Hi", model=scripted_model(["Hello."])).text == "Hello."


def test_a_case_is_replayed(replayed, scripted_model, oakleaf_store):
    model = scripted_model([assistant(REFUND), "Gone."])
    replay = replayed("regressions/refund.case.toml", model=model)
    assert (replay.text, replay.tool_calls, replay.failures) == ("Gone.", [REFUND], [])
    assert oakleaf_store.session(replay.session.session_id).row.relation == "replay"
    assert replayed("regressions/refund.case.toml").report.is_same


def test_a_bundle_is_replayed(replayed):
    replay = replayed("whole.oakleaf")
    assert replay.report.is_same
    assert [call.name for call in replay.tool_calls] == ["lookup", "refund"]
    assert [call.name for call in replayed("whole.oakleaf", start=6).tool_calls] == ["refund"]
"""
    )
    code, output = run(project, "-v")
    assert code == 0, output
    assert "regressions/lookup.case.toml::lookup PASSED" in output
    assert "5 passed" in output


def test_a_failing_case_prints_the_diff(project: Path) -> None:
    (project / "m.json").write_text('[{"calls": [{"name": "lookup", "arguments": {"order": 7}}]}, "?", "?"]')
    (project / "bad.case.toml").write_text("format = 1")
    code, output = run(project, f"--oakleaf-model=scripted:{project}/m.json", "--oakleaf-prompt", "Be brief.")
    assert code == 1
    assert 'expected the calls lookup({"note":null,"order":41}); it called lookup({"order":7})' in output
    assert "first divergence: turn 1" in output
    assert "Traceback" not in output
    assert "is not a regression case" in output


def test_a_model_that_does_not_exist_is_refused_before_anything_runs(project: Path) -> None:
    code, output = run(project, "--oakleaf-model", "scripted:gone.json")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "the script cannot be read" in output


def test_unused_it_imports_names_that_load_late_only(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    own = {name for name in sys.modules if name.startswith('oakleaf')}\n"
        "    assert own == {'oakleaf', 'oakleaf.late_names', 'oakleaf_lab', 'oakleaf_lab.pytest_plugin'}\n"
        "    assert 'msgspec' not in sys.modules\n"
    )
    code, output = run(tmp_path, "-p", "no:hypothesispytest", "-p", "no:xdist")
    assert code == 0, output
