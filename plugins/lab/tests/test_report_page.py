"""The report of a lab run as rows and as one HTML file: complete, in order, and unable to load or run anything else."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import oakleaf
import oakleaf_lab
from oakleaf.core.redact import Redactor
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.page import report_html
from oakleaf_lab.report_page import report_summary, session_summaries
from support.lab_record import HOSTILE, write_run
from support.lab_sessions import record_sessions
from support.terminal import oakleaf as command


@pytest.fixture(scope="module")
def report() -> LabReport:
    with oakleaf.open("memory:") as store:
        return oakleaf_lab.report(store, write_run(store, 40))


def embedded(page: bytes) -> Any:
    pieces = re.findall(rb'<script type="application/octet-stream" class="data">(.*?)</script>', page)
    return json.loads(b"".join(map(b64decode, pieces)))


class TestRows:
    def test_every_session_is_a_row_and_the_most_changed_come_first(self, report: LabReport) -> None:
        rows = session_summaries(report)
        assert {row.session_id for row in rows} == {session.session_id for session in report.sessions}
        assert [row.change for row in rows] == sorted((row.change for row in rows), reverse=True)

    def test_a_row_sums_up_its_turns(self, report: LabReport) -> None:
        (row,) = (row for row in session_summaries(report) if row.session_id == report.sessions[7].session_id)
        turns = [turn.candidate[0] for turn in report.sessions[7].turns]
        assert sum(row.candidate.classes.values()) == row.turns == len(turns)
        assert row.candidate.cost_microcents == sum(turn.cost_microcents for turn in turns)
        assert row.candidate.milliseconds == sum(turn.milliseconds for turn in turns)

    def test_the_summary_has_everything_but_the_sessions(self, report: LabReport) -> None:
        summary = report_summary(report)
        assert summary["change"] == "another prompt"
        assert "sessions" not in summary
        assert [each["is_difference"] for each in summary["comparisons"]] == [
            each.effect.is_difference for each in report.comparisons
        ]


class TestHtml:
    def test_the_same_report_gives_the_same_bytes(self, report: LabReport) -> None:
        assert b"".join(report_html(report, None)) == b"".join(report_html(report, None))

    def test_every_turn_is_inside(self, report: LabReport) -> None:
        data = embedded(b"".join(report_html(report, None)))
        assert len(data["sessions"]) == 40
        assert sum(len(row["turn_reports"]) for row in data["sessions"]) == 160

    def test_only_its_own_script_and_style_may_run_and_nothing_may_be_loaded(self, report: LabReport) -> None:
        page = b"".join(report_html(report, None)).decode()
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
        assert policy is not None
        for tag in ("script", "style"):
            content = re.search(rf'<{tag}(?: type="module")?>(.*?)</{tag}>', page, re.DOTALL)
            assert content is not None
            digest = b64encode(sha256(content[1].encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy[1]
        assert "default-src 'none'" in policy[1]
        assert "connect-src 'none'" in policy[1]
        assert not re.search(r'(?:src|href)="(?!data:)', page)
        assert HOSTILE not in page

    def test_secrets_are_masked(self, report: LabReport) -> None:
        page = b"".join(report_html(report, Redactor({"ORDER": "Where is order 3?"})))
        texts = {turn["input"] for row in embedded(page)["sessions"] for turn in row["turn_reports"]}
        assert not any("Where is order 3?" in text for text in texts)
        assert any("[redacted ORDER]" in text for text in texts)


class TestCommand:
    def test_show_writes_the_page(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as store:
            run_id = write_run(store, 12, cut=2)
        done = command("lab", "show", run_id[:10], "--output", tmp_path / "lab.html", store=tmp_path / "s.db")
        assert done.code == 0, done.err
        assert "12 sessions" in done.err
        assert embedded((tmp_path / "lab.html").read_bytes())["run"]["status"] == "incomplete"
        data = command("lab", "show", "latest", "--output", tmp_path / "lab.json", store=tmp_path / "s.db")
        assert data.code == 0, data.err
        assert json.loads((tmp_path / "lab.json").read_text())["exit_code"] == 4
        alone = command("lab", "show", "--output", tmp_path / "runs.html", store=tmp_path / "s.db")
        assert (alone.code, "a RUN to write the report of" in alone.err) == (2, True)

    def test_a_run_writes_its_report_by_the_ending(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as store:
            record_sessions(store, 2, turns=1)
        words = ["lab", "run", "agent:support", "--set", "mode=strict"]
        words += ["--fail-if", "failed > 1%", "--output"]
        for name in ("lab.html", "lab.json", "lab.txt"):
            done = command(*words, tmp_path / name, store=tmp_path / "s.db")
            assert (done.code, done.out) == (0, ""), done.err
            assert (
                "passed     failed > 1%: 0.0 % against a bound of 1.0 %, over 2 turns of 2 sessions"
                in done.err
            )
            assert f"{name}: 2 sessions" in done.err
        assert len(embedded((tmp_path / "lab.html").read_bytes())["sessions"]) == 2
        assert json.loads((tmp_path / "lab.json").read_text())["exit_code"] == 0
        assert (tmp_path / "lab.txt").read_text().startswith("lab_")
