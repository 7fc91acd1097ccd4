"""Lab runs in a real browser: 500 sessions, sorted and filtered; a click opens the comparison; one file shows the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, expect

import oakleaf
import oakleaf_lab
from oakleaf import ScriptedModel
from oakleaf_lab import Lab
from oakleaf_lab.page import report_html
from oakleaf_lab.report_page import session_summaries
from support.browser import ServerProcess, ViewerPage, browser, run_in_thread, viewer
from support.lab_record import write_run
from support.lab_sessions import answer, noisy, record_sessions

__all__ = ["browser", "viewer"]
SESSIONS = 500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a real run of two sessions, and a run of 500 as it would be stored."""
    path = tmp_path_factory.mktemp("lab") / "agent.db"

    def fill() -> None:
        with oakleaf.open(path) as store:
            record_sessions(store, 2, turns=1)
            changed = noisy(1, tool_changed=1.0, name="new")
            lab = Lab(store, "agent:support", baseline_model=noisy(1, tool_changed=0), model=changed)
            lab.run_sync(fail_if=["tool_changed > 10%", "failed > 10%"])
            write_run(store, SESSIONS)

    run_in_thread(fill)
    return path


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    with ServerProcess(store) as process:
        yield process


def run_ids(store: Path) -> tuple[str, str]:
    """Return the run of 500 sessions and the real one."""
    with oakleaf.open(store) as sessions:
        large, real = (row.session_id for row in oakleaf_lab.runs(sessions))
        return large, real


class TestRuns:
    def test_the_list_leads_to_a_run(self, viewer: ViewerPage, store: Path) -> None:
        page = viewer.open("/")
        page.get_by_role("link", name="Lab").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("link", name=run_ids(store)[0]).click()
        expect(page.get_by_role("heading", name="Lab: agent:support")).to_be_visible()


class TestRun:
    def test_500_sessions_are_sorted_filtered_and_opened(self, viewer: ViewerPage, store: Path) -> None:
        run_id = run_ids(store)[0]
        with oakleaf.open(store) as sessions:
            rows = session_summaries(oakleaf_lab.report(sessions, run_id))
        page = viewer.open(f"/lab/{run_id}")
        session_rows = page.locator(".lab-session")
        expect(page.get_by_role("radio", name=re.compile("^all"))).to_have_text("all 500")
        expect(session_rows).to_have_count(100)
        assert [session_rows.nth(n).get_attribute("data-id") for n in range(5)] == [
            row.session_id for row in rows[:5]
        ]
        expect(page.locator(".lab-effects .real").first).to_contain_text("95 % interval")
        page.get_by_role("button", name="400 more sessions").click()
        expect(session_rows).to_have_count(500)
        requests = [address for address in viewer.requests if address.startswith("/api/lab/")]
        assert len(requests) == 1, "all came in one answer"

        failed = [row for row in rows if "failed" in row.candidate.classes]
        page.get_by_role("radio", name=re.compile("^failed")).click()
        expect(session_rows).to_have_count(len(failed))
        expect(page).to_have_url(re.compile(r"\?kind=failed$"))
        page.reload()
        expect(session_rows).to_have_count(len(failed))

        page.get_by_role("radio", name=re.compile("^all")).click()
        page.get_by_role("radio", name="Cost rises most").click()
        dearest = max(rows, key=lambda row: row.candidate.cost_microcents - row.baseline.cost_microcents)
        expect(session_rows.first).to_have_attribute("data-id", dearest.session_id)
        session_rows.first.get_by_role("button").click()
        expect(page.locator(".lab-turn")).to_have_count(4)
        expect(page.locator(".lab-turn").first).to_contain_text("onerror")  # as text

    def test_prompt_calls_and_direction_are_shown(self, viewer: ViewerPage, store: Path) -> None:
        large, real = run_ids(store)
        page = viewer.open(f"/lab/{large}")
        expect(page.locator(".lab-prompt .added")).to_have_text("+Be brief.\n")
        expect(
            page.locator(".lab-effects .real", has_text="turns fail").locator(".badge.is-error")
        ).to_have_text("worse")
        page = viewer.open(f"/lab/{real}")
        row = page.locator(".lab-lanes tr", has_text="calls track")
        expect(row.locator("td").last).to_contain_text("100 %")

    def test_a_click_opens_the_comparison(self, viewer: ViewerPage, store: Path) -> None:
        page = viewer.open(f"/lab/{run_ids(store)[1]}")
        page.locator(".lab-session a").first.click()
        expect(page).to_have_url(re.compile(r"/diff\?a=ses_case_00\d&b=ses_"))
        expect(page.locator(".diff-row.kind-tool")).to_contain_text("look_up")
        page.go_back()
        expect(page.locator(".lab-session")).to_have_count(2)

    def test_calls_without_a_price_are_not_free(self, browser: Browser, tmp_path: Path) -> None:
        def fill() -> str:
            with oakleaf.open(tmp_path / "agent.db") as store:
                record_sessions(store, 1, turns=1)
                unpriced = ScriptedModel(answer, model="unpriced")
                return Lab(store, "agent:support", baseline_model=unpriced).run_sync().run_id

        run_id = run_in_thread(fill)
        with ServerProcess(tmp_path / "agent.db") as process:
            viewer = ViewerPage(browser, process.url)
            row = viewer.open(f"/lab/{run_id}").locator(".lab-session")
            expect(row).to_contain_text("unpriced → unpriced")
            row.get_by_role("button", name="Turns").click()
            expect(viewer.page.locator(".lab-replayed .muted").first).to_contain_text("unpriced")
            viewer.check()
            viewer.close()

    def test_the_gates_that_were_checked_are_shown(self, viewer: ViewerPage, store: Path) -> None:
        page = viewer.open(f"/lab/{run_ids(store)[1]}")
        gates = page.locator(".lab-effects").first.locator("li")
        expect(gates).to_have_count(2)
        expect(gates.first).to_have_text(
            "failed tool_changed > 10%: 100.0 % against a bound of 10.0 %, over 2 turns of 2 sessions"
        )
        expect(gates.last).to_contain_text("passed failed > 10%")

    def test_a_phone_shows_it_without_scrolling_sideways(
        self, browser: Browser, server: ServerProcess, store: Path
    ) -> None:
        phone = ViewerPage(browser, server.url, viewport={"width": 390, "height": 800})
        page = phone.open(f"/lab/{run_ids(store)[0]}")
        page.locator(".lab-session").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        expect(page.get_by_role("button", name="Keyboard shortcuts")).to_be_in_viewport()
        phone.check()
        phone.close()

    def test_axe_finds_nothing_serious(self, viewer: ViewerPage, store: Path) -> None:
        page = viewer.open(f"/lab/{run_ids(store)[1]}")
        page.locator(".lab-session button").first.click()
        page.locator(".lab-turn").first.wait_for()
        page.evaluate(AXE_FILE_PATH.read_text())
        problems = page.evaluate("axe.run()")["violations"]
        assert [each["id"] for each in problems if each["impact"] in ("serious", "critical")] == []

    def test_a_run_that_is_not_there_says_so(self, viewer: ViewerPage) -> None:
        page = viewer.open("/lab/lab_none")
        expect(page.locator(".error-text")).to_contain_text("lab_none")
        viewer.console.clear()  # the browser reports the 404 itself


def test_one_file_shows_the_same_and_asks_for_nothing(browser: Browser, store: Path, tmp_path: Path) -> None:
    run_id = run_ids(store)[0]
    with oakleaf.open(store) as sessions:
        (tmp_path / "lab.html").write_bytes(b"".join(report_html(oakleaf_lab.report(sessions, run_id), None)))
    file = ViewerPage(browser, tmp_path.as_uri())
    file.page.goto(f"{tmp_path.as_uri()}/lab.html")
    rows = file.page.locator(".lab-session")
    expect(rows).to_have_count(100)
    file.page.get_by_role("radio", name=re.compile("^tool changed")).click()
    rows.last.scroll_into_view_if_needed()
    expect(rows.last).to_be_in_viewport()
    rows.last.get_by_role("button").click()
    expect(file.page.locator(".lab-turn").first).to_contain_text("onerror")
    assert [request for request in file.requests if not request.startswith(("/lab.html", "data:"))] == []
    file.check()
    file.close()
