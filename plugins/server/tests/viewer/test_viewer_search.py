"""Finding one's way in the viewer: labels, lists that change under one's hands, searches while the index grows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from playwright.sync_api import Browser, Page, expect

import oakleaf
from oakleaf import ScriptedModel, assistant, user
from oakleaf.store import Store
from support import sample_store
from support.browser import ViewerPage, browser, run_in_thread, viewer
from support.sample_store import BUILD
from support.server import LocalServer

__all__ = ["browser", "viewer"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    place = run_in_thread(lambda: sample_store.fill(tmp_path / "agent.db"))
    with oakleaf.open(place, synchronous="normal") as sessions:
        yield sessions


@pytest.fixture
def server(store: Store) -> Iterator[LocalServer]:
    with LocalServer(store) as local_server:
        yield local_server


def label(page: Page, words: str) -> None:
    page.keyboard.press("l")
    page.locator("dialog").get_by_label("Label").fill(words)
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)


class TestLabels:
    def test_a_label_is_seen_in_tree_and_transcript_and_leads_back(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=24")
        expect(page.locator("article.selected")).to_be_visible()
        label(page, "suite is green")
        expect(page.locator("article.selected .label-badge")).to_have_text("suite is green")
        expect(page.locator(".tree .label-badge")).to_have_text("suite is green")
        page.locator(".tree-row", has_text="Could you try way 1?").click()
        page.locator(".tree-row", has_text="Way 1 does not work").click()
        expect(page.locator("article.selected")).to_contain_text("Way 1")
        label(page, "dead end")
        page.get_by_role("button", name="Back to the current leaf").click()
        side = page.locator(".side-row", has_text="Could you try way 1?")
        expect(side.locator(".label-badge")).to_have_text("dead end")
        page.reload()
        expect(page.locator(".tree .label-badge").first).to_be_visible()
        page.get_by_role("button", name="Jump to one of 2 labels").click()
        page.get_by_label("Filter labels").fill("dead")
        expect(page.locator("dialog .line")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator(".viewing-bar")).to_be_visible()
        expect(page.locator("article.selected")).to_contain_text("Way 1 does not work")

    def test_an_empty_label_takes_it_away(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=24")
        expect(page.locator("article.selected")).to_be_visible()
        label(page, "soon gone")
        expect(page.locator(".tree .label-badge")).to_have_count(1)
        label(page, "")
        expect(page.locator(".label-badge")).to_have_count(0)

    def test_a_label_shows_an_entry_that_the_filter_of_the_tree_leaves_out(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=25")
        expect(page.locator("article.selected")).to_contain_text("BUG-17")
        label(page, "the ticket")
        page.get_by_role("radio", name="Inputs").click()
        expect(page.locator(".tree-row", has_text="the ticket")).to_be_visible()


class TestList:
    def test_keeps_focus_and_place_when_others_start_sessions(self, viewer: ViewerPage, store: Store) -> None:
        run_in_thread(lambda: [store.start("many", title=f"Session {n:02d}") for n in range(60)])
        page = viewer.open("/")
        page.locator(".session-row a").first.wait_for()
        page.locator(".session-rows").evaluate("one => one.scrollTo(0, 640)")
        row = page.locator(".session-row", has_text="Session 45")
        row.locator("a").focus()
        before = row.bounding_box()
        run_in_thread(lambda: [store.start("many", title=f"Newer {n}") for n in range(3)])
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator(".bar.slim")).to_contain_text("68 sessions")
        assert row.bounding_box() == before
        expect(row.locator("a")).to_be_focused()

    def test_the_end_of_a_session_is_whole_in_view_when_it_opens(
        self, viewer: ViewerPage, store: Store
    ) -> None:
        def long() -> None:
            session = store.start("long", session_id="ses_long")
            for n in range(150):
                session.append([user(f"Question {n}"), assistant(f"Answer {n}. " * (n % 30))])
                session.append([user(f"Aside {n}"), assistant("No.")])
                session.rewind(session.leaf.seq - 2)

        run_in_thread(long)
        page = viewer.open("/s/ses_long")
        expect(page.locator("article.selected")).to_contain_text("Answer 149")
        expect(page.locator(".tree-row .leaf")).to_be_in_viewport()
        expect(page.locator("article.selected")).to_be_in_viewport(ratio=1)
        bottom = "one => one.scrollTop + one.clientHeight - one.scrollHeight"
        assert abs(page.locator(".transcript").evaluate(bottom)) <= 1

    def test_a_server_that_is_gone_is_told_in_the_list(self, browser: Browser, store: Store) -> None:
        with LocalServer(store) as server:
            viewer = ViewerPage(browser, server.url)
            page = viewer.open("/")
            expect(page.locator(".session-row").first).to_be_visible()
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator(".bar.slim")).to_contain_text("cannot reach the server. Retrying")
        viewer.close()


class TestSearch:
    def test_shows_what_is_found_while_the_index_grows(self, viewer: ViewerPage, tmp_path: Path) -> None:
        other = apsw.Connection(str(tmp_path / "agent.db"))
        other.execute("begin immediate")  # nobody can write to the index meanwhile
        page = viewer.open("/")
        page.keyboard.press("/")
        page.get_by_role("combobox").fill("changelog")
        expect(page.locator("dialog.search p")).to_contain_text("Indexing 7 sessions")
        expect(page.locator(".hit")).to_have_count(0)
        other.execute("rollback")
        expect(page.locator(".hit").first).to_contain_text(re.compile("changelog", re.IGNORECASE))
        expect(page.locator("dialog.search p")).to_have_text("")
        other.close()

    def test_replays_are_found_only_when_asked_and_marked(self, viewer: ViewerPage, store: Store) -> None:
        def replayed() -> None:
            session = store.start("support")
            session.send_sync("A walrus?", model=ScriptedModel(["Yes."]))
            session.replay_sync(model=ScriptedModel(["No."]), mode="dry")

        run_in_thread(replayed)
        page = viewer.open("/")
        page.keyboard.press("/")
        page.get_by_role("combobox").fill("walrus role:user")
        expect(page.locator(".hit:not(.session-hit)")).to_have_count(1)
        expect(page.locator(".hit .badge.relation")).to_have_count(0)
        page.get_by_role("button", name="replays").click()
        expect(page.locator(".hit .badge.relation")).to_have_text("replay")
