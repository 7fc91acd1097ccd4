"""The viewer while something happens: answers as they are spoken, lines that break, sessions without end."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

import oakleaf
from oakleaf import assistant
from oakleaf_server.context import ServerAgent
from support import sample_store
from support.browser import NetworkProxy, ServerProcess, ViewerPage, browser, run_in_thread, viewer
from support.processes import wait_until
from support.server import LocalServer, ManualModel

__all__ = ["browser", "viewer"]

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"


@pytest.fixture
def prompter() -> ManualModel:
    return ManualModel()


@pytest.fixture
def server(tmp_path: Path, prompter: ManualModel) -> Iterator[LocalServer]:
    with (
        oakleaf.open(tmp_path / "agent.db") as store,
        LocalServer(store, ServerAgent(models=(prompter,))) as local_server,
    ):
        store.start("talker", [oakleaf.system("You talk.")], session_id="ses_talk", title="Talk")
        yield local_server


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def seqs(page: Page) -> list[int]:
    return [
        int(seq)
        for seq in page.eval_on_selector_all("article.entry", "all => all.map(one => one.dataset.seq)")
    ]


def _set_visibility(page: Page, state: str) -> None:
    page.evaluate(
        "state => { Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        state,
    )


class TestStreaming:
    def test_an_answer_is_seen_as_it_is_spoken(self, viewer: ViewerPage, prompter: ManualModel) -> None:
        page = viewer.open("/s/ses_talk")
        send(page, "Tell me a story")
        expect(page.locator(".dot.status-running").first).to_be_visible()
        prompter.send("Once ", "upon ")
        expect(page.locator(".draft .md")).to_have_text("Once upon")
        prompter.send("a **time** ", "there ")
        expect(page.locator(".draft strong")).to_have_text("time")
        prompter.finish()
        expect(page.locator("article.entry", has_text="Once upon a time")).to_have_count(1)
        expect(page.locator(".draft.is-live")).to_have_count(0)
        expect(page.get_by_role("status").filter(has_text="Assistant: Once upon a")).to_have_count(
            1
        )  # is read out
        assert seqs(page) == [1, 2, 3]

    def test_whoever_comes_late_sees_what_was_said(
        self, browser: Browser, viewer: ViewerPage, server: LocalServer, prompter: ManualModel
    ) -> None:
        page = viewer.open("/s/ses_talk")
        send(page, "Tell me a story")
        prompter.send("Once ", "upon ")
        expect(page.locator(".draft .md")).to_have_text("Once upon")
        late = ViewerPage(browser, server.url)
        other = late.open("/s/ses_talk")
        expect(other.locator(".draft .md")).to_have_text("Once upon")
        prompter.send("a time ", "there ")
        for one in (page, other):
            expect(one.locator(".draft .md")).to_have_text(re.compile("^Once upon a time"))
        prompter.finish()
        for one in (page, other):
            expect(one.locator("article.entry", has_text="Once upon a time")).to_have_count(1)
        late.check()
        late.close()

    def test_a_cut_connection_goes_on_without_a_gap_or_a_double(
        self, browser: Browser, server: LocalServer, prompter: ManualModel
    ) -> None:
        with NetworkProxy(server.port) as cable:
            viewer = ViewerPage(browser, cable.url)
            page = viewer.open("/s/ses_talk")
            send(page, "Tell me a story")
            prompter.send("Once ", "upon ")
            expect(page.locator(".draft .md")).to_have_text("Once upon")
            cable.cut()
            expect(page.locator(".banner")).to_be_visible()
            page.get_by_role("radio", name="Inputs").click()
            expect(page.locator(".tree .bar")).to_contain_text("cannot reach the server")
            prompter.send("a time ", "there was ")
            prompter.finish()
            wait_until(lambda: server.sessions.session("ses_talk").leaf.seq == 3)
            run_in_thread(lambda: server.sessions.session("ses_talk").note({"while": "cut"}))
            cable.restore()
            expect(page.locator(".banner")).to_be_hidden()
            expect(page.locator(".tree .bar")).to_contain_text("1 branch")
            expect(page.locator(".tree .entry-row", has_text="Tell me a story")).to_be_visible()
            expect(page.locator("article.entry", has_text="Once upon a time there was")).to_have_count(1)
            expect(page.locator("article.kind-note")).to_have_count(1)
            assert seqs(page) == [1, 2, 3, 4]
            send(page, "And then?")
            prompter.send("The end.")
            prompter.finish()
            expect(page.locator("article.entry", has_text="The end.")).to_have_count(1)
            assert seqs(page) == [1, 2, 3, 4, 5, 6]
            assert all("ERR_" in line or "Failed to load" in line for line in viewer.console)
            viewer.close()

    def test_a_session_that_is_purged_while_it_is_open_says_so(
        self, browser: Browser, server: LocalServer
    ) -> None:
        """It tried to reconnect for ever."""
        viewer = ViewerPage(browser, server.url)
        page = viewer.open("/s/ses_talk")
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        server.sessions.delete("ses_talk")
        server.sessions.purge("ses_talk")
        expect(page.locator(".banner")).to_contain_text("deleted permanently")
        expect(page.locator(".composer")).to_be_hidden()
        expect(page.locator("article.entry")).to_have_count(1)
        viewer.close()

    def test_a_session_that_another_process_trashes_restores_renames_and_tags_says_so(
        self, viewer: ViewerPage, server: LocalServer
    ) -> None:
        """It said so only when a message was refused."""
        page = viewer.open("/s/ses_talk")
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        server.sessions.delete("ses_talk")
        expect(page.locator(".composer-note")).to_contain_text("in the trash")
        expect(page.get_by_label("Message")).to_be_hidden()
        expect(page.locator(".session-row")).to_have_count(0, timeout=3_000)  # before the list asks by itself
        server.sessions.restore("ses_talk")
        expect(page.get_by_label("Message")).to_be_visible()
        expect(page.locator(".composer-note")).not_to_contain_text("in the trash")
        server.sessions.session("ses_talk").title("A chat")
        expect(page.locator("h1")).to_have_text("A chat")
        expect(page).to_have_title("A chat · Oakleaf")
        expect(page.locator(".session-row .ellipsis").first).to_have_text("A chat", timeout=3_000)
        server.sessions.session("ses_talk").tag(team="blue")
        expect(page.locator(".head-facts")).to_contain_text("team=blue")

    def test_a_tab_notices_the_trash_also_when_it_was_hidden_cut_off_or_polls(
        self, browser: Browser, server: LocalServer
    ) -> None:
        sessions = server.sessions
        with NetworkProxy(server.port) as cable:
            viewer = ViewerPage(browser, cable.url)
            page = viewer.open("/s/ses_talk")
            note, message = page.locator(".composer-note"), page.get_by_label("Message")
            expect(page.locator("body")).to_have_attribute("data-live", "yes")
            cable.cut()
            expect(page.locator(".banner")).to_be_visible()
            sessions.delete("ses_talk")
            cable.restore()
            expect(note).to_contain_text("in the trash")
            for change, state in ((sessions.restore, "visible"), (sessions.delete, "hidden")):
                _set_visibility(page, "hidden")
                wait_until(lambda: not server.context.live._watchers)
                change("ses_talk")
                _set_visibility(page, "visible")
                expect(message).to_be_visible(visible=state == "visible")
            others = [viewer.context.new_page() for _ in range(3)]
            for other in others:  # the fourth finds no free stream
                other.goto(f"{viewer.url}/s/ses_talk")
                expect(other.locator(".composer-note")).to_contain_text("in the trash")
            sessions.restore("ses_talk")
            for tab in (page, *others):
                expect(tab.get_by_label("Message")).to_be_visible()
            viewer.close()

    def test_what_another_process_writes_is_seen_too(self, viewer: ViewerPage, server: LocalServer) -> None:
        page = viewer.open("/s/ses_talk")
        expect(page.locator("article.entry")).to_have_count(1)
        store = server.sessions.backend

        def elsewhere() -> None:
            with oakleaf.open(store.url) as other:  # type: ignore[attr-defined]
                other.session("ses_talk").append([oakleaf.user("From afar"), assistant("I am *here*.")])

        run_in_thread(elsewhere)
        expect(page.locator("article.entry em", has_text="here")).to_be_visible()
        expect(page.locator(".tree .entry-row", has_text="From afar")).to_be_visible()

    def test_eight_tabs_all_load_and_all_see_what_comes(
        self, viewer: ViewerPage, server: LocalServer
    ) -> None:
        """A browser opens six connections to a server; each tab once held one of them for ever."""
        tabs = [viewer.open("/s/ses_talk"), *(viewer.context.new_page() for _ in range(7))]
        for tab in tabs[1:]:
            tab.goto(f"{viewer.url}/s/ses_talk")
            expect(tab.locator("article.entry")).to_have_count(1)
        server.sessions.session("ses_talk").append([oakleaf.user("To all of you")])
        for tab in tabs:
            expect(tab.locator("article.entry", has_text="To all of you")).to_be_visible()

    def test_what_comes_while_the_page_loads_is_seen(self, viewer: ViewerPage, server: LocalServer) -> None:
        """A tab that had read the path, but not yet the session, listened only for what came after both."""
        held: list[Route] = []

        def hold_first(route: Route) -> None:
            held.append(route)
            if len(held) > 1:
                route.continue_()

        viewer.page.route(re.compile(r"/api/sessions/ses_talk$"), hold_first)
        page = viewer.open("/s/ses_talk")
        expect(page.locator("article.entry")).to_have_count(1)
        server.sessions.session("ses_talk").append([oakleaf.user("While you load")])
        held[0].continue_()
        expect(page.locator("article.entry", has_text="While you load")).to_be_visible(timeout=10_000)

    def test_what_comes_while_the_path_is_read_again_is_seen(
        self, viewer: ViewerPage, server: LocalServer
    ) -> None:
        """It was added to the path that the one being read then replaced."""
        session = server.sessions.session("ses_talk")
        session.append([oakleaf.user("One")])
        page = viewer.open("/s/ses_talk")
        expect(page.locator("article.entry", has_text="One")).to_be_visible()
        held: list[tuple[Route, APIResponse]] = []
        page.route("**/api/sessions/ses_talk/path*", lambda route: held.append((route, route.fetch())))
        with page.expect_request("**/api/sessions/ses_talk/path*"):
            page.keyboard.press("i")  # hides internal entries
        wait_until(lambda: page.evaluate("1") and held)
        session.append([assistant("Two")])
        expect(page.locator("article.entry", has_text="Two")).to_be_visible()
        route, answer = held[0]
        route.fulfill(response=answer)
        expect(page.locator(".head-tools .tool-shut")).to_have_count(1)
        expect(page.locator("article.entry", has_text="One")).to_be_visible()
        expect(page.locator("article.entry", has_text="Two")).to_be_visible()

    def test_a_hidden_tab_closes_its_stream_and_catches_up_when_it_is_seen_again(
        self, viewer: ViewerPage, server: LocalServer
    ) -> None:
        page = viewer.open("/s/ses_talk")
        expect(page.locator("article.entry")).to_have_count(1)
        for state, texts in (("hidden", 1), ("visible", 2)):
            _set_visibility(page, state)
            if state == "hidden":
                wait_until(lambda: not server.context.live._watchers)
                server.sessions.session("ses_talk").append([oakleaf.user("While you were away")])
            expect(page.locator("article.entry")).to_have_count(texts)

    def test_the_first_message_of_a_fork_is_on_its_trunk(
        self, viewer: ViewerPage, server: LocalServer, prompter: ManualModel
    ) -> None:
        session = server.sessions.session("ses_talk")
        session.append([oakleaf.user("Hello"), assistant("Good day.")])
        page = viewer.open(f"/s/{session.fork(title='Other').session_id}")
        expect(page.locator(".responder")).to_have_text("prompter will answerwithout tools")
        send(page, "And then?")
        prompter.send("Then this.")
        prompter.finish()
        expect(page.locator(".tree .entry-row.on-path", has_text="Then this.")).to_be_visible()
        expect(page.locator(".tree .side-row")).to_have_count(0)

    def test_stopping_leaves_a_session_that_can_be_spoken_to(
        self, viewer: ViewerPage, prompter: ManualModel
    ) -> None:
        page = viewer.open("/s/ses_talk")
        send(page, "Tell me a story")
        prompter.send("Once upon ")
        expect(page.locator(".draft .md")).to_have_text("Once upon")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("article.entry .badge", has_text="cancelled")).to_be_visible()
        send(page, "Again")
        prompter.send("A new one.")
        prompter.finish()
        expect(page.locator("article.entry", has_text="A new one.")).to_have_count(1)

    def test_input_while_it_runs_is_queued(self, viewer: ViewerPage, prompter: ManualModel) -> None:
        page = viewer.open("/s/ses_talk")
        send(page, "First")
        expect(page.get_by_role("button", name="Queue")).to_be_visible()
        send(page, "Second")
        expect(page.locator(".composer-note")).to_contain_text("1 queued")
        prompter.send("One.")
        prompter.finish()
        expect(page.locator("article.entry", has_text="Second")).to_have_count(1)
        prompter.send("Two.")
        prompter.finish()
        expect(page.locator("article.entry", has_text="Two.")).to_have_count(1)
        assert seqs(page) == [1, 2, 3, 4, 5]

    def test_scrolling_up_stays_where_it_is_while_more_comes(
        self, viewer: ViewerPage, server: LocalServer
    ) -> None:
        session = server.sessions.session("ses_talk")
        for n in range(40):
            session.append([oakleaf.user(f"Question {n}"), assistant(f"Answer {n}. " + "words " * 60)])
        page = viewer.open("/s/ses_talk?at=21")
        row = page.locator("article.selected")
        expect(row).to_contain_text("Answer 9.")
        before = row.bounding_box()
        session.append([oakleaf.user("Show later messages"), assistant("Later still")])
        expect(page.locator(".session-head")).to_contain_text("41 turns")
        assert row.bounding_box() == before


class TestFailure:
    def test_a_failed_call_stands_in_its_place_with_its_reason(
        self, viewer: ViewerPage, server: LocalServer
    ) -> None:
        page = viewer.open("/s/ses_talk")
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        failure = page.get_by_role("group", name="Failed model call")
        errors = page.locator(".errors-button")
        expect(failure).to_have_count(0)
        run_in_thread(lambda: _fail(server.sessions.session("ses_talk"), "the provider is on fire"))
        for _ in range(2):  # live, and read again
            expect(failure).to_contain_text("the provider is on fire")
            expect(failure).to_contain_text("Resume calls the model again")
            expect(page.locator("article.is-input .call-failure")).to_have_count(1)
            expect(errors).to_have_text("1")
            expect(page.locator(".turn-figures .error-text")).to_have_text("1 error")
            page.reload()

    def test_page_turn_and_list_count_the_same_errors(self, viewer: ViewerPage, server: LocalServer) -> None:
        """The page left out failed model calls and broken answers, the turn left out unknown outcomes."""
        session = server.sessions.session("ses_talk")
        session.append([oakleaf.user("Look twice")])
        calls = [oakleaf.ToolCall("c1", "look", {}), oakleaf.ToolCall("c2", "look", {})]
        session.append([assistant(*calls)])
        session.append([oakleaf.tool_result("c1", "no", error=True)])
        session.append([oakleaf.tool_result("c2", "maybe", outcome="unknown")])
        session.append([assistant("Nothing.")])
        run_in_thread(lambda: _fail(session, "gone"))
        page = viewer.open("/s/ses_talk")
        expect(page.locator(".errors-button")).to_have_text("3")
        expect(page.locator(".turn-figures .error-text")).to_have_text(["2 errors", "1 error"])
        run_in_thread(lambda: _fail(session, "still gone"))
        expect(page.locator(".call-failure", has_text="still gone")).to_have_count(1)
        expect(page.locator(".errors-button")).to_have_text("3")  # two failures in one place


def _fail(session: oakleaf.Session, reason: str) -> None:
    """Send an input whose model call fails, or fail once more in the open turn."""

    def fail(request: object) -> str:
        raise RuntimeError(reason)

    with suppress(RuntimeError):
        if session.row.status == "failed":
            session.resume_sync(model=oakleaf.ScriptedModel(fail))
        else:
            session.send_sync("Go", model=oakleaf.ScriptedModel(fail))


class TestFollowing:
    def test_a_burst_takes_no_request_per_entry(self, viewer: ViewerPage, server: LocalServer) -> None:
        session = server.sessions.session("ses_talk")
        page = viewer.open("/s/ses_talk")
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        expect(page.locator(".inspected")).to_have_attribute("aria-busy", "false")
        page.get_by_role("button", name="Show or hide the details").click()
        before = len(viewer.requests)
        with page.expect_response(re.compile("figures=")):
            for n in range(20):
                session.append([assistant(f"Answer {n}")])
        expect(page.locator("article", has_text="Answer 19")).to_be_visible()
        expect(page.locator(".tree .entry-row", has_text="Answer 19")).to_be_visible()
        own = [path for path in viewer.requests[before:] if "/ses_talk" in path]
        assert len(own) <= 3


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("long") / "agent.db"
    size = {"entries": 100_000, "branches": 5_000} if SOAK else {"entries": 12_000, "branches": 600}
    run_in_thread(lambda: sample_store.huge(place, **size))
    return place


class TestLongSession:
    def test_opens_anywhere_without_loading_what_lies_between(
        self, browser: Browser, long_store: Path
    ) -> None:
        with oakleaf.open(long_store) as store:
            session = store.session("ses_huge")
            end, middle = session.leaf.seq, session.leaf.seq // 2
            [entry] = session.log.store.path("ses_huge", first=middle, last=middle).entries
        with ServerProcess(long_store) as process:
            viewer = ViewerPage(browser, process.url)
            page = viewer.open(f"/s/ses_huge?at={entry.branch}:{entry.seq}")
            expect(page.locator("article.selected")).to_be_visible()
            expect(page.locator(".tree .entry-row.selected")).to_be_visible()
            assert abs(int(page.locator("article.selected").get_attribute("data-seq") or 0) - middle) <= 1
            page.keyboard.press("g")
            page.keyboard.press("l")
            expect(page.locator(f'article[data-seq="{end}"]')).to_be_visible()
            windows = [path for path in viewer.requests if "/path" in path]
            assert len(windows) <= 8
            assert page.locator("article.entry").count() < 60
            assert page.locator(".tree-row").count() < 150
            page.keyboard.press("p")
            messages = page.locator(".prompt-message")
            expect(messages.last).to_be_visible()
            first_count = messages.count()
            assert 40 <= first_count <= 60
            page.get_by_role("button", name="Show earlier messages").click()
            wait_until(lambda: messages.count() >= 2 * first_count - 10)
            viewer.check()
            viewer.close()

    def test_keeps_its_place_when_more_is_loaded_above(self, browser: Browser, long_store: Path) -> None:
        with ServerProcess(long_store) as process:
            viewer = ViewerPage(browser, process.url)
            page = viewer.open("/s/ses_huge?at=6000")
            selected = page.locator("article.selected")
            expect(selected).to_be_visible()

            def place() -> int:
                return int(selected.get_attribute("data-seq") or 0)

            places = [place()]
            for _ in range(60):
                page.keyboard.press("k")
                wait_until(lambda: place() < places[-1])
                places.append(place())
                expect(selected).to_be_in_viewport()
            assert all(1 <= a - b <= 2 for a, b in pairwise(places))
            viewer.check()
            viewer.close()
