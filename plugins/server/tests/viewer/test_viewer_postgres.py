"""The viewer on PostgreSQL: the main walk through it, in a real browser. What it shows in detail is tested on SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import oakleaf
from oakleaf.store import Store
from oakleaf_server.context import ServerAgent
from support import sample_store
from support.browser import ViewerPage, browser, run_in_thread, viewer
from support.postgres import Database, DatabaseHost
from support.sample_store import BUILD, CASE, WAITING, look_up, model_by_answer_count, pay_out, refund
from support.server import LocalServer, ManualModel

__all__ = ["browser", "viewer"]


@pytest.fixture(scope="module")
def store(postgres: DatabaseHost) -> Iterator[Store]:
    """A database of its own: those of other tests are emptied."""
    url = run_in_thread(lambda: sample_store.fill(Database(postgres, "viewer").url))
    with oakleaf.open(url) as sessions:
        yield sessions


@pytest.fixture(scope="module")
def prompter() -> ManualModel:
    return ManualModel()


@pytest.fixture(scope="module")
def server(store: Store, prompter: ManualModel) -> Iterator[LocalServer]:
    paid = model_by_answer_count("", "It is **paid**.", model="payer")
    with LocalServer(
        store, ServerAgent(models=(paid, prompter), tools=(look_up, refund, pay_out))
    ) as local_server:
        yield local_server


class TestLooking:
    def test_list_tree_transcript_and_inspector(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        page.get_by_label("Filter by title or tag").fill("date tests")
        expect(page.locator(".session-row")).to_have_count(1)
        page.locator(".session-row a").click()
        expect(page.locator("h1")).to_have_text("Fix the failing date tests")
        expect(page.locator("article.selected")).to_contain_text("Months beyond December are refused.")
        page.locator(".tree-row", has_text="Could you try way 1?").click()
        page.locator(".tree-row", has_text="Way 1 does not work").click()
        expect(page.locator(".viewing-bar")).to_contain_text("the current leaf is")
        page.get_by_role("button", name="Back to the current leaf").click()
        page.goto(f"{viewer.url}/s/{CASE}?at=6")
        expect(page.locator("article.selected .card-name")).to_have_text("refund")
        page.get_by_role("tab", name="Prompt").click()
        expect(page.locator(".inspected")).to_contain_text("Extends the request after")
        page.get_by_role("tab", name="Usage").click()
        expect(page.locator("table.usage")).to_contain_text("$0.00432")

    def test_search_diff_and_usage(self, viewer: ViewerPage, store: Store) -> None:
        page = viewer.open("/")
        page.keyboard.press("/")
        page.get_by_role("combobox").fill("tool:refund role:tool")
        expect(page.locator(".hit").first).to_contain_text("refunded")
        page.locator(".hit", has_text="Order 41").last.click()
        expect(page.locator("article.selected .card-name")).to_have_text("refund")
        replay = run_in_thread(lambda: next(row.session_id for row in store.all_sessions(relation="replay")))
        page.goto(f"{viewer.url}/diff?a={CASE}&b={replay}")
        expect(page.locator(".diff-row.current .badge").first).to_have_text("tool changed")
        page.goto(f"{viewer.url}/usage")
        expect(page.locator("svg.plot rect")).to_have_count(1)
        expect(page.locator("table").last.locator("tbody tr", has_text="Order 41").first).to_contain_text(
            "kB"
        )


class TestActing:
    def test_fork_label_and_rewind(self, viewer: ViewerPage, store: Store) -> None:
        page = viewer.open(f"/s/{CASE}?at=7")
        page.get_by_role("button", name="Fork here").click()
        page.get_by_label("Title", exact=True).fill("The other way")
        page.get_by_role("button", name="Fork", exact=True).click()
        expect(page.locator("h1")).to_have_text("The other way")
        page.goto(f"{viewer.url}/s/{BUILD}?at=24")
        page.get_by_role("button", name="Label").click()
        page.get_by_label("Label").last.fill("the suite is green")
        page.keyboard.press("Enter")
        expect(page.locator(".tree .label-badge")).to_have_text("the suite is green")
        page.get_by_role("button", name="Rewind here").click()
        page.get_by_role("button", name="Rewind", exact=True).click()
        expect(page.locator(".notice").last).to_contain_text("The current leaf is")
        assert run_in_thread(lambda: store.session(BUILD).leaf.seq) == 24
        page.get_by_role("button", name="Redo", exact=True).first.click()
        expect(page.locator("article", has_text="Months beyond December")).to_have_count(1)

    def test_an_approval_lets_the_waiting_agent_go_on(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{WAITING}")
        page.locator(".approval").get_by_role("button", name="Approve").click()
        expect(page.locator(".card")).to_have_attribute("data-outcome", "done")
        expect(page.locator("article strong", has_text="paid")).to_be_visible()

    def test_an_answer_is_seen_as_it_is_spoken(self, viewer: ViewerPage, prompter: ManualModel) -> None:
        page = viewer.open("/")
        page.get_by_role("main").get_by_role("button", name="New session").click()
        page.locator("dialog").get_by_label("Title").fill("Talk")
        page.locator("dialog").get_by_label("Model").select_option("scripted:prompter")
        page.get_by_role("button", name="Start").click()
        expect(page.locator("h1")).to_have_text("Talk")
        page.get_by_label("Message").fill("Speak")
        page.keyboard.press("Enter")
        prompter.send("Once upon ", "a time ")
        expect(page.locator(".draft")).to_contain_text("Once upon a time")
        prompter.send("there was an end.")
        prompter.finish()
        expect(page.locator("article.entry").last).to_contain_text("there was an end.")
        expect(page.locator(".session-row.selected")).to_contain_text(re.compile("1 turn"))
        expect(page.locator(".draft.is-live")).to_have_count(0)
