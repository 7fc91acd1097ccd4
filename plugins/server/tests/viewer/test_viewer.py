"""The viewer in a real browser: what it shows, and where one can go."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Browser, expect

import oakleaf
from support.browser import ServerProcess, ViewerPage, browser, run_in_thread, viewer
from support.claude_transcripts import shop_transcript
from support.processes import wait_until
from support.sample_store import BUILD, CASE, TASK, WAITING
from support.viewer_server import server, store

__all__ = ["browser", "server", "store", "viewer"]


def place_of(store: Path, session_id: str, seq: int) -> str:
    with oakleaf.open(store) as sessions:
        entry = sessions.session(session_id).path()[seq - 1]
        return f"{entry.branch}:{entry.seq}"


def test_an_address_that_is_no_page_says_so(viewer: ViewerPage) -> None:
    page = viewer.open("/nowhere")
    expect(page.get_by_role("main")).to_contain_text("There is no such page")
    page.get_by_role("link", name="All sessions").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()


def test_a_link_that_was_cut_within_a_letter_says_that_there_is_no_such_session(
    browser: Browser, server: ServerProcess
) -> None:
    """The page stayed empty."""
    viewer = ViewerPage(browser, server.url)
    page = viewer.open("/s/ses_%E0%A4")
    expect(page.locator(".center")).to_contain_text("No session")
    viewer.close()


def test_a_session_whose_id_has_a_dot_opens_at_its_address(browser: Browser, tmp_path: Path) -> None:
    """Those of LangGraph's subgraphs have one; it was taken for the name of a file."""
    with oakleaf.open(tmp_path / "agent.db") as sessions:
        sessions.start(session_id="ses_1.sub", title="A subgraph")
    with ServerProcess(tmp_path / "agent.db") as process:
        viewer = ViewerPage(browser, process.url)
        page = viewer.open("/s/ses_1.sub")
        expect(page.get_by_role("heading", name="A subgraph")).to_be_visible()
        viewer.check()
        viewer.close()


def test_the_reason_of_a_failure_stays_within_its_pane(browser: Browser, tmp_path: Path) -> None:
    """It covered the details, and was cut off on a small screen."""
    reason = "the provider is overloaded, and says so at some length; " * 4

    def fail(request: object) -> str:
        raise RuntimeError(reason)

    def fill() -> None:
        with oakleaf.open(tmp_path / "agent.db") as sessions, suppress(RuntimeError):
            sessions.start(session_id="ses_failed").send_sync("Go", model=oakleaf.ScriptedModel(fail))

    run_in_thread(fill)
    with ServerProcess(tmp_path / "agent.db") as process:
        for width in (1400, 390):
            viewer = ViewerPage(browser, process.url, viewport={"width": width, "height": 844})
            page = viewer.open("/s/ses_failed")
            badge, head = page.locator(".session-head .badge.is-error"), page.locator(".session-head")
            expect(badge).to_contain_text("overloaded")
            [inner, outer] = [part.bounding_box() for part in (badge, head)]
            assert inner is not None
            assert outer is not None
            assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
            viewer.close()


class TestSessions:
    def test_a_row_tells_what_a_person_wants_to_know(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        row = page.locator(f'.session-row[data-id="{CASE}"]')
        expect(row).to_contain_text("Order 41")
        for fact in ("support", "3 turns", "$0.00432", "now"):
            expect(row).to_contain_text(fact)
        expect(row.get_by_role("img", name="idle")).to_be_visible()
        expect(page.locator(".session-row", has_text="another try").locator(".relation")).to_have_text("fork")

    def test_facets_count_and_stand_in_the_address(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        page.get_by_role("button", name="Filters").click()
        page.get_by_role("button", name=re.compile("^coder 1$")).click()
        expect(page.locator(".session-row")).to_have_count(1)
        expect(page).to_have_url(re.compile(r"\?agent=coder$"))
        page.reload()
        expect(page.locator(".session-row")).to_have_count(1)
        page.locator(".session-row a").first.click()
        expect(page).to_have_url(re.compile(rf"/s/{BUILD}\?agent=coder"))

    def test_replays_and_tasks_are_found_by_their_relation(self, viewer: ViewerPage) -> None:
        page = viewer.open("/?relation=replay")
        expect(page.locator(".session-row .relation")).to_have_text(["replay"])

    def test_words_of_a_title_or_a_tag_filter_as_one_types_and_stand_in_the_address(
        self, viewer: ViewerPage
    ) -> None:
        page = viewer.open(f"/s/{CASE}?at=6")
        box = page.get_by_label("Filter by title or tag")
        box.press_sequentially("try 41")
        expect(page.locator(".session-heading .ellipsis")).to_have_text(["Order 41, another try"])
        expect(page.locator(".bar.slim")).to_contain_text("1 found")
        expect(page).to_have_url(re.compile(r"text=try\+41"))
        expect(box).to_be_focused()
        page.reload()
        expect(page.locator(".session-row")).to_have_count(1)
        box.fill("team=blue")
        expect(page.locator(".session-heading .ellipsis")).to_have_text(["Order 41"])
        box.fill("")
        expect(page.locator(".bar.slim")).to_contain_text("sessions")
        expect(page.locator("article.selected")).to_have_attribute("data-seq", "6")

    def test_a_session_that_is_not_there_is_said_to_be_so(
        self, browser: Browser, server: ServerProcess
    ) -> None:
        viewer = ViewerPage(browser, server.url)
        page = viewer.open("/s/ses_nowhere")
        expect(page.locator(".error-text")).to_contain_text("ses_nowhere")
        expect(page.get_by_text("oakleaf ls lists the sessions")).to_have_text(
            "oakleaf ls lists the sessions"
        )
        viewer.close()


class TestWelcome:
    def test_an_empty_store_is_filled_at_a_click(self, browser: Browser, tmp_path: Path) -> None:
        with ServerProcess(tmp_path / "new.db", home=tmp_path) as process:
            viewer = ViewerPage(browser, process.url, viewport={"width": 1024, "height": 700})
            page = viewer.open("/")
            steps = page.locator(".steps")
            expect(steps.locator("h2").first).to_have_text("Import your Claude Code sessions")
            expect(steps).to_contain_text("oakleaf demo --open")
            button = steps.get_by_role("button", name="Import", exact=True)
            button.click()
            expect(steps.get_by_role("status")).to_contain_text(
                "claude-code"
            )  # none yet: says where it looked
            shop_transcript().write(tmp_path / ".claude/projects/-home-ann-shop/1.jsonl")
            button.click()
            expect(page.locator(".home-line")).to_contain_text("Fixing the shop")
            expect(page.locator(".home .day")).to_have_text("March 1")
            page.locator(".home-line").click()
            expect(page.locator("article", has_text="Fixed.")).to_be_visible()
            viewer.close()


class TestHome:
    def test_shows_what_needs_a_person_and_what_it_cost(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        tiles = page.locator(".tile")
        expect(tiles.filter(has_text="Waiting for approval").locator(".tile-value")).to_have_text("1")
        expect(tiles.filter(has_text="Failed")).to_have_class(re.compile("is-zero"))
        expect(tiles.filter(has_text="Cost today").locator(".tile-value")).to_have_text(
            re.compile(r"^\$0\.1")
        )
        expect(page.locator(".home-approval .arguments")).to_have_text("amount40accountANN-7")
        toggle = page.get_by_role("button", name="Show or hide the list of sessions")
        expect(toggle).to_be_visible()
        page.get_by_role("link", name="Usage").click()
        expect(toggle).to_be_hidden()  # the page has no list
        page.get_by_role("link", name="Home").click()
        expect(page.locator(".session-rows .day")).to_have_text(["Today"])
        expect(page.locator(".hint")).to_contain_text("oakleaf import --from claude-code")
        page.locator(".hint").get_by_role("button", name="Dismiss").click()
        page.reload()
        expect(tiles.first).to_be_visible()
        expect(page.locator(".hint")).to_have_count(0)


class TestPanes:
    def test_are_collapsed_and_resized_and_stay_so(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}")
        tree, width = page.locator(".tree"), "e => Math.round(e.getBoundingClientRect().width)"
        edge = page.get_by_role("separator", name="Width of the tree")
        before = tree.evaluate(width)
        edge.focus()
        page.keyboard.press("ArrowRight")
        box = edge.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 4, 300)
        page.mouse.down()
        page.mouse.move(box["x"] + 40, 300)
        page.mouse.up()
        assert tree.evaluate(width) == before + 60
        page.get_by_role("button", name="Show or hide the details").click()
        expect(page.locator(".inspector")).to_be_hidden()
        page.reload()
        expect(page.locator("article.selected")).to_be_visible()
        assert tree.evaluate(width) == before + 60
        expect(page.locator(".inspector")).to_be_hidden()

    def test_reading_has_the_largest_share_and_the_tree_beside_it(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{WAITING}")
        expect(page.locator(".approval")).to_be_visible()
        page.get_by_role("button", name="Show or hide the details").click()  # closed, as they are at first
        for size, least in ((1440, 800), (1150, 800), (900, 600)):
            page.set_viewport_size({"width": size, "height": 800})
            expect(page.locator(".tree")).to_be_visible()
            middle = page.locator(".middle").bounding_box()
            assert middle is not None
            assert middle["width"] >= least

    def test_are_three_below_1400_pixels_and_tabs_below_900(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{WAITING}")
        expect(page.locator(".approval")).to_be_visible()
        panes = [".pane.sessions", ".tree", ".middle", ".pane.inspector"]
        for size, visible in ((1440, 4), (1300, 3), (1024, 3), (890, 1)):
            page.set_viewport_size({"width": size, "height": 800})
            assert sum(page.locator(pane).is_visible() for pane in panes) == visible
        expect(page.locator(".approval")).to_have_count(1)  # asked once
        expect(page.locator(".approval")).to_be_visible()
        page.set_viewport_size({"width": 1300, "height": 800})
        page.get_by_role("button", name="Show or hide the list of sessions").click()
        page.locator(".session-row a", has_text="Order 41").last.click()
        expect(page.locator(".pane.sessions")).to_be_hidden()


class TestTranscript:
    def test_markdown_is_rendered(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=8")
        answer = page.locator("article.selected")
        expect(answer.locator("strong")).to_have_text("one reason")
        expect(answer.locator("table th")).to_have_text(["file", "before", "after"])
        expect(answer.locator("ol li")).to_have_count(2)
        expect(answer.locator("pre .hl-keyword").first).to_have_text("def")
        expect(answer.locator("blockquote a")).to_have_attribute("href", "https://example.com/style")

    def test_every_outcome_has_a_word_an_icon_and_a_colour(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=10")
        cards = page.locator("article.selected .card")
        expect(cards).to_have_count(6)
        words = ["", "outcome unknown", "denied", "interrupted", "dry run", "not recorded"]
        expect(cards.locator(".badge")).to_have_text(words)
        colours = {
            badge.evaluate("e => getComputedStyle(e).color") for badge in cards.locator(".badge").all()
        }
        assert len(colours) >= 4
        assert all(badge.locator("svg").count() == 1 for badge in cards.locator(".badge").all())

    def test_commands_files_and_edits_look_like_what_they_are(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=3")
        first = page.locator("article.selected")
        expect(first.locator(".card-name").first).to_have_text("$")
        expect(first.locator(".card-line").first).to_have_text("pytest tests/test_dates.py -q --tb=short")
        expect(first.locator(".card").nth(1).locator(".hl-keyword").first).to_have_text("def")
        expect(first.locator(".card").first.locator(".badge")).to_have_text("error")
        edit = page.locator("article", has=page.locator(".filediff"))
        expect(edit.locator(".diff-a").first).to_contain_text("TODO: check")
        expect(edit.locator(".diff-b").first).to_contain_text("if not 1 <= month <= 12")

    def test_one_key_takes_all_cards_through_three_states(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=10")
        cards = page.locator("article.selected .card")
        expect(cards.first).to_have_attribute("data-state", "preview")
        page.keyboard.press("t")
        expect(cards.first).to_have_attribute("data-state", "full")
        expect(cards.first.locator(".json")).to_have_count(2)
        page.keyboard.press("t")
        expect(cards.first).to_have_attribute("data-state", "none")
        expect(page.locator(".card-body")).to_have_count(0)
        page.keyboard.press("o")
        expect(cards.first).to_have_attribute("data-state", "preview")
        page.keyboard.press("t")

    def test_what_was_cut_can_be_seen_whole(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=17")
        card = page.locator("article.selected .card")
        card.get_by_role("button", name=re.compile("^Show .* more lines$")).click()
        expect(card.locator("pre").last).to_contain_text("line 1999 of a long log")
        expect(card.get_by_role("button", name=re.compile("^Show"))).to_have_count(0)
        expect(page.locator(".composer-note")).to_contain_text("No model can answer here")

    def test_reasoning_is_folded_and_pictures_come_from_blobs(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}?at=3")
        reasoning = page.locator("article.selected details.reasoning")
        expect(reasoning).not_to_have_attribute("open", "")
        reasoning.locator("summary").click()
        expect(reasoning.locator(".md")).to_contain_text("Then fix it.")
        viewer.open(f"/s/{BUILD}?at=20")
        picture = page.locator("img.media")
        expect(picture).to_be_visible()
        wait_until(lambda: picture.evaluate("image => image.naturalWidth") == 160)

    def test_the_actions_of_the_first_entry_are_not_cut_off(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}?at=1")
        actions = page.locator("article.selected .entry-tools").bounding_box()
        transcript = page.locator(".transcript").bounding_box()
        assert actions is not None
        assert transcript is not None
        assert actions["y"] >= transcript["y"]

    def test_no_tools_are_called_none(self, browser: Browser, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "agent.db") as store:
            session = store.start()
            session.set(tools=[])
        with ServerProcess(tmp_path / "agent.db") as process:
            viewer = ViewerPage(browser, process.url)
            page = viewer.open(f"/s/{session.session_id}")
            expect(page.locator("article.kind-settings dd")).to_have_text("none")
            viewer.check()
            viewer.close()

    def test_internal_entries_go_and_come(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}")
        expect(page.locator("article.role-system")).to_have_count(1)
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitemcheckbox", name="Internal entries shown").click()
        expect(page.locator("article")).to_have_count(6)
        expect(page.locator("article.role-system, .card")).to_have_count(0)
        page.keyboard.press("i")
        expect(page.locator("article.role-system")).to_have_count(1)

    def test_a_compaction_opens_to_what_it_replaced(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}")
        row = page.locator("article.kind-compaction")
        row.locator("summary").click()
        expect(row.locator(".replaced .line").nth(1)).to_contain_text("The date tests fail")
        row.locator(".replaced .line").nth(1).click()
        expect(page.locator("article.selected")).to_contain_text("The date tests fail since yesterday")


class TestTree:
    def test_looking_at_another_branch_moves_nothing(self, viewer: ViewerPage, store: Path) -> None:
        page = viewer.open(f"/s/{BUILD}")
        stands = place_of(store, BUILD, 29)
        expect(page.locator(".tree .leaf")).to_be_visible()
        page.locator(".side-row", has_text="Could you try way 1?").click()
        page.locator(".entry-row", has_text="Way 1 does not work").click()
        expect(page.locator(".viewing-bar")).to_contain_text(f"the current leaf is {stands}")
        expect(page.locator("article.selected")).to_contain_text("Way 1 does not work")
        expect(page.locator(".composer-bar")).to_be_hidden()
        page.get_by_role("button", name="Back to the current leaf").click()
        expect(page.locator(".viewing-bar")).to_be_hidden()
        expect(page.locator("article.selected")).to_contain_text("Months beyond December")
        assert place_of(store, BUILD, 29) == stands

    def test_filters_leave_lines_out(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}")
        expect(page.locator(".entry-row")).to_have_count(8)
        page.get_by_role("radio", name="Inputs").click()
        expect(page.locator(".entry-row.role-user")).to_have_count(3)
        page.get_by_role("radio", name="All").click()
        expect(page.locator(".entry-row")).to_have_count(12)
        page.get_by_role("radio", name="Messages").click()

    def test_related_sessions_are_linked_both_ways(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}")
        page.locator(".tree .related", has_text="Review dates.py").click()
        expect(page).to_have_url(re.compile(f"/s/{TASK}"))
        page.locator(".tree .related", has_text="task of").click()
        expect(page).to_have_url(re.compile(f"/s/{BUILD}"))
        expect(page.locator(".session-head h1")).to_have_text("Fix the failing date tests")


class TestPermalink:
    def test_opens_at_its_entry_on_the_path_and_off_it(self, viewer: ViewerPage, store: Path) -> None:
        page = viewer.open(f"/s/{BUILD}?at={place_of(store, BUILD, 9)}")
        expect(page.locator("article.selected")).to_contain_text("Now release it.")
        expect(page.locator(".viewing-bar")).to_be_hidden()
        page.locator(".side-row", has_text="way 1").click()
        page.locator(".entry-row", has_text="Could you try way 1").click()
        expect(page.locator("article.selected")).to_contain_text("Could you try way 1?")
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator("article.selected")).to_contain_text("Could you try way 1?")
        expect(page.locator(".viewing-bar")).to_be_visible()

    def test_follows_the_selection_and_the_browsers_history(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}")
        page.locator("article", has_text="Where is order 41?").first.click()
        expect(page).to_have_url(re.compile(r"at=\d+:3$"))
        page.locator(f'.session-row[data-id="{WAITING}"] a').click()
        expect(page.locator("h1")).to_have_text("Pay Ann")
        page.go_back()
        expect(page.locator("article.selected")).to_contain_text("Where is order 41?")

    def test_to_a_result_selects_its_card(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}?at=5")
        expect(page.locator("article.selected .card-name")).to_have_text("look_up")

    def test_to_nothing_says_so(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}?at=999:5")
        expect(page.locator(".notice")).to_contain_text("no entry 999:5")
        expect(page.locator("article.selected")).to_contain_text("You are welcome")


class TestKeys:
    def test_walk_by_entry_and_by_turn(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}?at=3")
        selected = page.locator("article.selected")
        expect(selected).to_contain_text("Where is order 41?")
        for key, words in [
            ("j", "Let me look"),
            ("j", "The carrier lost it"),
            ("k", "Let me look"),
            ("]", "When will I have the money?"),
            ("]", "Thank you!"),
            ("[", "When will I"),
            ("[", "Where is order"),
        ]:
            page.keyboard.press(key)
            expect(selected).to_contain_text(words)
        page.keyboard.press("g")
        page.keyboard.press("l")
        expect(selected).to_contain_text("You are welcome")

    def test_pressed_faster_than_the_server_answers_none_is_lost(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}?at=3")
        selected = page.locator("article.selected")
        expect(selected).to_contain_text("Where is order 41?")
        page.evaluate(
            "() => { for (const key of ']]') document.activeElement.dispatchEvent("
            "new KeyboardEvent('keydown', { key, bubbles: true })); }"
        )
        expect(selected).to_contain_text("Thank you!")

    def test_help_opens_and_escape_closes(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)

    def test_the_tree_is_walked_with_arrows(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{BUILD}")
        side = page.locator(".side-row", has_text="way 1")
        side.focus()
        page.keyboard.press("ArrowRight")
        expect(side).to_have_attribute("aria-expanded", "true")
        page.locator(".entry-row", has_text="Could you try way 1").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".viewing-bar")).to_be_visible()


class TestInspector:
    def test_shows_what_the_model_saw_for_every_provider(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{CASE}?at=6")
        page.get_by_role("tab", name="Prompt").click()
        panel = page.get_by_role("tabpanel")
        expect(panel).to_contain_text("Extends the request after")
        expect(panel.locator(".token-bar span").first).to_be_visible()
        page.get_by_label("Provider").select_option("gemini")
        expect(panel.locator(".prompt-message.role-model")).to_have_count(1)
        page.get_by_label("Provider").select_option("anthropic")
        expect(panel).to_contain_text("3 messages")
        expect(panel.locator(".prompt-message.role-assistant .is-call")).to_contain_text("look_up")
        panel.get_by_role("radio", name="JSON").click()
        expect(panel.locator(".prompt-view > .json")).to_contain_text("max_tokens")
        panel.get_by_role("radio", name="Text").click()
        panel.get_by_role("button", name="Wide").click()
        wide = page.get_by_role("dialog", name="What the model saw")
        expect(wide.locator(".prompt-message")).to_have_count(3)
        assert (wide.bounding_box() or {"width": 0})["width"] > 1_000
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Usage").click()
        expect(panel.locator("th[scope=col]")).to_have_text(["entry", "turn", "path", "tree"])
        page.get_by_role("tab", name="JSON").click()
        expect(panel.locator(".json").first).to_contain_text("tool_call")
        page.get_by_role("tab", name="Entry", exact=True).click()
        expect(panel).to_contain_text(re.compile(rf"oakleaf fork {CASE}@\d+:6"))


class TestSearch:
    def test_finds_marks_and_opens_at_the_entry(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        page.keyboard.press("/")
        page.get_by_role("combobox").fill("carrier role:tool")
        hit = page.locator(".hit", has_text="Order 41").first
        expect(hit.locator("mark").first).to_have_text("carrier")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        expect(page.locator("article.selected .card-name")).to_have_text("look_up")

    def test_switches_to_a_session_by_its_title_and_finds_words_in_one(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        page.keyboard.press("Control+k")
        expect(page.locator(".session-hit")).to_have_count(5)  # the last active ones
        page.keyboard.type("date tests")
        expect(page.locator(".session-hit")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Fix the failing date tests")
        page.keyboard.press("Control+k")
        expect(page.locator(".remembered .chip")).to_have_text(["date tests"])
        page.locator(".chips").get_by_role("button", name="this session").click()
        page.keyboard.type(" spikes")
        expect(page.locator(".hit:not(.session-hit)")).to_have_count(1)
        page.keyboard.press("Escape")
        page.keyboard.press("Control+f")
        page.get_by_label("Find in this session").fill("parser")
        expect(page.locator(".find-bar")).to_contain_text("1 of 4")
        page.keyboard.press("Enter")
        expect(page.locator(".find-bar")).to_contain_text("2 of 4")
        assert page.evaluate("CSS.highlights.get('find').size") > 0
        page.keyboard.press("Escape")
        expect(page.locator(".find-bar")).to_be_hidden()

    def test_a_bad_filter_is_explained(self, browser: Browser, server: ServerProcess) -> None:
        viewer = ViewerPage(browser, server.url)
        page = viewer.open("/")
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill("role:king")
        expect(page.locator("dialog.search p")).to_contain_text("role")
        viewer.close()


class TestUsagePage:
    def test_plots_and_tells_storage(self, viewer: ViewerPage) -> None:
        page = viewer.open("/usage")
        expect(page.locator(".figures dd").first).to_have_text(re.compile(r"^\$0\.1"))
        expect(page.locator("svg.plot rect")).to_have_count(1)
        expect(page.locator(".hbar-name", has_text="scripted-large")).to_be_visible()
        expect(page.locator(".hbar-name", has_text="scripted-small")).to_have_count(0)  # replays stay apart
        sizes = page.locator("table").last.locator("tbody tr")
        expect(sizes.filter(has_text="Order 41").first).to_contain_text("kB")
        expect(sizes.first).to_contain_text("<img src=x")  # the largest
        expect(page.locator("section", has_text="Storage").locator(".figures").last).to_contain_text(
            "sessions7"
        )


class TestDiff:
    def test_of_a_replay_stands_at_the_first_divergence(self, viewer: ViewerPage, store: Path) -> None:
        with oakleaf.open(store) as sessions:
            replay = next(row.session_id for row in sessions.all_sessions(relation="replay"))
        page = viewer.open(f"/diff?a={CASE}&b={replay}")
        rows = page.locator(".diff-row")
        expect(rows.locator("header .badge")).to_have_text(["tool changed", "reworded", "reworded"])
        expect(page.locator(".diff-row.current .badge").first).to_have_text("tool changed")
        expect(page.locator(".setup")).to_contain_text("Never refund by yourself")
        expect(page.locator(".diff-head")).to_contain_text("$0.00432")
        page.keyboard.press("n")
        page.keyboard.press("n")
        expect(page.locator(".diff-row.current del")).to_contain_text("Is there anything else?")
        page.keyboard.press("p")
        expect(page.locator(".diff-row.current")).to_contain_text("When will I have the money?")
        rows.first.locator("summary").click()
        expect(rows.first.locator(".side-turn").first).to_contain_text("refund you right away")
        expect(rows.first.locator(".side-turn").last).to_contain_text("A colleague will check")
