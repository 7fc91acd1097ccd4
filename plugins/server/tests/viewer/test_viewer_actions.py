"""What one can do in the viewer, done in a real browser against a real server, and looked up in the store."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Locator, Page, Route, expect

import oakleaf
from oakleaf.session import Session
from support import sample_store
from support.browser import ServerProcess, ViewerPage, browser, run_in_thread, viewer
from support.sample_store import delegate_payment, look_up, refund, strict_support_model
from support.sessions import tasks_of

__all__ = ["browser", "viewer"]

ANSWERS = [
    {
        "text": "Let me look.",
        "calls": [{"id": "c1", "name": "pay_out", "arguments": {"amount": 40, "account": "ANN-7"}}],
    },
    "It is **paid**.",
    "You are welcome.",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("actions")


@pytest.fixture(scope="module")
def script(folder: Path) -> str:
    (folder / "answers.json").write_text(json.dumps(ANSWERS))
    return f"scripted:{folder / 'answers.json'}"


@pytest.fixture(scope="module")
def server(folder: Path, script: str) -> Iterator[ServerProcess]:
    (folder / "silent.json").write_text("[]")
    options = (
        "--model",
        script,
        "--offer",
        f"scripted:{folder / 'silent.json'}",
        "--set",
        f"tools={sample_store.__file__}",
    )
    with ServerProcess(folder / "agent.db", *options) as process:
        yield process


class ServedStore:
    """The store of the server, opened in a thread because the browser occupies the event loop of this one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self, title: str, turns: int = 2) -> str:
        """A support case of so many turns."""

        def start(store: oakleaf.Store) -> str:
            session = store.start("support", [oakleaf.system(sample_store.PROMPT)], title=title)
            for text in ("Where is order 41?", "When will I have the money?", "Thank you!")[:turns]:
                session.send_sync(text, model=sample_store.support_model(), tools=[look_up, refund])
            return session.session_id

        return self.read(start)

    def make_delegating(self, title: str) -> str:
        """A case whose colleague, a task of it, waits for a person."""
        calls = oakleaf.assistant(
            oakleaf.ToolCall("c1", "delegate_payment", {"amount": 40, "account": "ANN-7"})
        )

        def start(store: oakleaf.Store) -> str:
            session = store.start("support", [oakleaf.system(sample_store.PROMPT)], title=title)
            session.send_sync("Pay Ann 40", model=oakleaf.ScriptedModel([calls]), tools=[delegate_payment])
            return session.session_id

        return self.read(start)

    def read(self, look: Callable[[oakleaf.Store], str]) -> str:
        def open_and_look() -> str:
            with oakleaf.open(self.path) as store:
                return look(store)

        return run_in_thread(open_and_look)

    def of(self, session_id: str, look: Callable[[Session], object]) -> str:
        return self.read(lambda store: str(look(store.session(session_id))))

    def seq(self, session_id: str) -> int:
        return int(self.of(session_id, lambda session: session.leaf.seq))


@pytest.fixture
def served_store(folder: Path) -> ServedStore:
    return ServedStore(folder / "agent.db")


class Clock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.at = 1_700_000_000_000_000

    def advance(self, *, seconds: int) -> None:
        self.at += seconds * 1_000_000


def family(session: Session) -> list[Session]:
    return [session, *tasks_of(session)]


def children(session: Session) -> str:
    return json.dumps([child.session_id for child in tasks_of(session)])


class TestList:
    def test_a_title_is_changed_in_its_row(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("Before", 0)
        page = viewer.open("/")
        row = page.locator(f'.session-row[data-id="{session_id}"]')
        row.hover()
        row.get_by_role("button", name="Rename Before").click()
        page.keyboard.type("After")
        page.keyboard.press("Enter")
        expect(row.locator(".session-heading .ellipsis")).to_have_text("After")
        assert served_store.of(session_id, lambda session: session.row.title) == "After"

    def test_archiving_can_be_undone(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("To be archived", 0)
        page = viewer.open("/")
        row = page.locator(f'.session-row[data-id="{session_id}"]')
        row.hover()
        row.get_by_role("button", name="Move To be archived to trash").click()
        expect(row).to_have_count(0)
        assert served_store.of(session_id, lambda session: session.row.trashed_at) != "None"
        page.locator(".notice").get_by_role("button", name="Undo").click()
        expect(row).to_have_count(1)
        assert served_store.of(session_id, lambda session: session.row.trashed_at) == "None"

    def test_the_page_of_a_session_in_the_trash_says_so_and_restores_it(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Thrown away while open", 0)
        page = viewer.open(f"/s/{session_id}")
        message = page.get_by_label("Message")
        row = page.locator(f'.session-row[data-id="{session_id}"]')
        row.hover()
        row.get_by_role("button", name="to trash").click()
        expect(message).to_be_hidden()
        expect(page.locator(".composer-note")).to_contain_text("in the trash")
        page.locator(".composer-note").get_by_role("button", name="Restore").click()
        expect(message).to_be_visible()
        assert served_store.of(session_id, lambda session: session.row.trashed_at) == "None"

    def test_the_trash_can_be_looked_through(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("Thrown away", 0)
        served_store.read(lambda store: str(store.delete(session_id)))
        page = viewer.open("/")
        expect(page.locator(".session-row").first).to_be_visible()
        expect(page.locator(f'.session-row[data-id="{session_id}"]')).to_have_count(0)
        page.get_by_label("Trash", exact=True).check()
        row = page.locator(f'.session-row[data-id="{session_id}"]')
        row.hover()
        row.get_by_role("button", name="Restore").click()
        expect(row).to_have_count(0)
        assert served_store.of(session_id, lambda session: session.row.trashed_at) == "None"

    def test_pages_come_as_one_scrolls_each_session_once(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        def fill(store: oakleaf.Store) -> str:
            for n in range(130):
                store.start("many", title=f"Session {n:03d}")
            return ""

        served_store.read(fill)
        page = viewer.open("/?agent=many")
        expect(page.locator(".session-row").first).to_contain_text("Session 129")
        assert len([path for path in viewer.requests if path.startswith("/api/sessions?query=agent")]) == 1
        names: list[str] = []
        for _ in range(200):
            if "Session 000" in names:
                break
            names += [
                title for title in page.locator(".session-heading").all_inner_texts() if title not in names
            ]
            page.evaluate("document.querySelector('.session-rows').scrollBy(0, 400)")
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert names == [f"Session {n:03d}" for n in reversed(range(130))]
        assert page.locator(".session-row").count() < 60


class TestMoving:
    def test_fork_here_makes_a_session_with_other_settings(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Fork me")
        page = viewer.open(f"/s/{session_id}?at=8")
        page.get_by_role("button", name="Fork here").click()
        page.get_by_label("Title", exact=True).fill("The other way")
        page.get_by_label("Append to prompt").fill("Offer a voucher.")
        page.get_by_role("button", name="Fork", exact=True).click()
        expect(page.locator("h1")).to_have_text("The other way")
        expect(page.locator("article.kind-settings").last).to_contain_text("Offer a voucher.")
        assert session_id not in page.url
        assert served_store.seq(session_id) == 10
        page.locator(".tree .related", has_text="fork of").click()
        expect(page.locator("h1")).to_have_text("Fork me")
        expect(page.locator(".tree .related", has_text="The other way")).to_be_visible()

    def test_rewind_undo_and_redo_move_the_leaf(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("Move me")
        page = viewer.open(f"/s/{session_id}?at=8")
        page.get_by_role("button", name="Rewind here").click()
        page.get_by_role("button", name="Rewind", exact=True).click()
        expect(page.locator(".notice")).to_contain_text("The current leaf is")
        expect(page.locator("article", has_text="Within three working days")).to_have_count(0)
        assert served_store.seq(session_id) == 8
        page.get_by_role("button", name="Redo", exact=True).first.click()
        expect(page.locator("article", has_text="Within three working days")).to_have_count(1)
        assert served_store.seq(session_id) == 10
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Undo the latest turn").click()
        expect(page.locator("article", has_text="Within three working days")).to_have_count(0)
        assert served_store.seq(session_id) == 8

    def test_a_compaction_is_made_and_undone(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("Compact me")
        page = viewer.open(f"/s/{session_id}")
        page.get_by_role("button", name="More").click()
        page.get_by_role("menuitem", name="Compact").click()
        page.get_by_label("Summary").fill("It was lost and refunded.")
        page.get_by_role("button", name="Compact", exact=True).last.click()
        row = page.locator("article.kind-compaction")
        expect(row).to_contain_text("It was lost and refunded.")
        row.get_by_role("button", name="Undo this compaction").click()
        expect(page.locator("article.kind-uncompaction")).to_be_visible()
        assert "It was lost" not in served_store.of(session_id, lambda session: session.messages("anthropic"))

    def test_only_the_compaction_that_holds_can_be_undone(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        """Every compaction had the button, one that was undone too, and each undid the latest."""
        session_id = served_store.make("Compact me twice", 3)
        served_store.of(session_id, lambda session: session.compact("The first.", first_kept=9))
        served_store.of(session_id, lambda session: session.compact("The second.", first_kept=11))
        page = viewer.open(f"/s/{session_id}")
        rows = page.locator("article.kind-compaction")
        undo = page.get_by_role("button", name="Undo this compaction")
        expect(rows).to_have_count(2)
        fold = rows.last.locator("details.fold")
        fold.locator("summary").click()
        served_store.of(session_id, lambda session: session.note({"while": "it is read"}))
        expect(page.locator("article.kind-note")).to_have_count(1)
        expect(fold).to_have_attribute("open", "")
        for row in (rows.last, rows.first):
            expect(undo).to_have_count(1)
            row.get_by_role("button", name="Undo this compaction").click()
        expect(undo).to_have_count(0)
        expect(page.locator("article.kind-uncompaction")).to_have_count(2)

    def test_a_message_that_was_not_sent_is_there_when_its_session_is_opened_again(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        """It was lost by a look at another session."""
        first, other = served_store.make("Write to me", 0), served_store.make("Look at this one", 0)
        page = viewer.open(f"/s/{first}")
        page.get_by_label("Message").fill("A long question")
        page.locator(f'.session-row[data-id="{other}"] a').click()
        expect(page.locator("h1")).to_have_text("Look at this one")
        expect(page.get_by_label("Message")).to_have_value("")
        page.go_back()
        expect(page.get_by_label("Message")).to_have_value("A long question")
        page.reload()
        expect(page.get_by_label("Message")).to_have_value("A long question")
        page.get_by_label("Message").fill("")
        page.reload()
        expect(page.get_by_label("Message")).to_have_value("")

    def test_a_session_without_entries_and_one_of_a_program_say_so(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.read(lambda store: store.start(title="Nothing yet").session_id)
        page = viewer.open(f"/s/{session_id}")
        expect(page.locator(".transcript")).to_contain_text("No entries yet")
        served_store.of(session_id, lambda session: session.append([oakleaf.user("Where is order 41?")]))
        expect(page.locator("article.entry")).to_have_count(1)
        expect(page.locator(".transcript")).not_to_contain_text("No entries yet")
        expect(page.locator(".state-bar")).to_contain_text("Unfinished")  # nobody knows who writes it

    def test_an_input_is_edited_and_sent_again_on_a_new_branch(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Ask again", 0)
        page = viewer.open(f"/s/{session_id}")
        page.get_by_label("Message").fill("Pay An 40")
        page.keyboard.press("Enter")
        page.locator(".approval").get_by_role("button", name="Deny").click()
        expect(page.locator("article strong", has_text="paid")).to_be_visible()
        row = page.locator("article.is-input")
        row.locator(".entry-body").click()
        expect(page).to_have_url(re.compile("at="))
        old_place = str(row.get_attribute("data-place"))
        row.hover()
        row.get_by_role("button", name="Edit and resend").click()
        expect(page.locator(".editing-note")).to_contain_text("Sending starts a new branch")
        expect(page.get_by_label("Message")).to_have_value("Pay An 40")
        page.get_by_label("Message").fill("Pay Ann 40")
        page.keyboard.press("Enter")
        expect(page.locator("article.is-input")).to_contain_text("Pay Ann 40")
        expect(page.locator(".tree .side-row")).to_have_count(1)
        # Details, address and actions are those of the new branch.
        selected = page.locator("article.selected")
        expect(selected).to_have_count(1)
        place = str(selected.get_attribute("data-place"))
        assert place.partition(":")[0] != old_place.partition(":")[0]
        assert f"at={old_place}" not in page.url
        page.get_by_role("tab", name="Entry").click()
        expect(page.locator(".inspected .facts").first).to_contain_text(place)
        page.locator(".inspected").get_by_role("button", name="Fork here").click()
        expect(page.get_by_role("dialog")).to_contain_text(f"Fork at {place}")
        page.keyboard.press("Escape")

    def test_what_another_process_moved_meanwhile_is_refused_and_shown(
        self, browser: Browser, server: ServerProcess, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Race me")
        viewer = ViewerPage(browser, server.url)
        page = viewer.open(f"/s/{session_id}?at=3")
        expect(page.get_by_role("button", name="Rewind here")).to_be_visible()
        page.get_by_role("button", name="Rewind here").click()
        served_store.of(session_id, lambda session: session.undo())
        page.get_by_role("button", name="Rewind", exact=True).click()
        expect(page.get_by_role("alert").filter(has_text=re.compile("leaf|moved"))).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("article", has_text="Within three working days")).to_have_count(0)
        viewer.close()


class TestKeyboard:
    @pytest.mark.parametrize(("key", "outcome"), [("a", "done"), ("d", "denied")])
    def test_a_key_decides_about_the_call_that_waits(
        self, viewer: ViewerPage, served_store: ServedStore, key: str, outcome: str
    ) -> None:
        session_id = served_store.make(f"Pay by {key}", 0)
        page = viewer.open(f"/s/{session_id}")
        page.get_by_label("Message").fill("Pay Ann 40")
        page.keyboard.press("Enter")
        expect(page.locator(".approval")).to_have_count(1)
        expect(page).to_have_title(re.compile(r"^\(1\) "))
        icon = page.locator("link[rel=icon]")
        expect(icon).to_have_attribute("data-waiting", "true")
        page.get_by_label("Message").press("Escape")
        page.keyboard.press(key)
        expect(page.locator(".card")).to_have_attribute("data-outcome", outcome)
        expect(page).not_to_have_title(re.compile(r"^\("))
        expect(icon).to_have_attribute("data-waiting", "false")

    def test_a_list_is_one_tab_stop_and_unfolding_keeps_the_focus(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        def fill(store: oakleaf.Store) -> str:
            for n in range(60):
                store.start("by-keys", title=f"Session {n:02d}")
            return ""

        served_store.read(fill)
        session_id = served_store.make("By keys alone")
        page = viewer.open(f"/s/{session_id}?agent=by-keys")
        head = page.locator(".card-head").first
        expect(head).to_be_visible()
        head.focus()
        state = head.get_attribute("aria-expanded")
        for _ in range(3):
            page.keyboard.press("Enter")
            expect(head).to_be_focused()
        expect(head).to_have_attribute("aria-expanded", str(state))
        sessions = page.locator(".session-rows")
        expect(sessions.locator(".session-row").first).to_contain_text("Session 59")
        sessions.focus()
        page.keyboard.press("End")  # the sessions after the first 50 are loaded now
        expect(sessions.locator(".session-row:has(a:focus)")).to_contain_text("Session 09")
        for name, row in ((".tree-rows", ".tree-row"), (".session-rows", ".session-row > a")):
            rows = page.locator(name)
            rows.focus()
            page.keyboard.press("End")
            expect(rows.locator(row).last).to_be_focused()
            expect(rows).to_have_attribute("tabindex", "-1")
            page.keyboard.press("ArrowUp")
            expect(rows.locator(row).last).not_to_be_focused()
            page.keyboard.press("Home")
            expect(rows.locator(row).first).to_be_focused()
            page.keyboard.press("Tab")
            expect(rows.locator(":focus")).to_have_count(0)
        page.locator(".transcript").focus()
        page.keyboard.press("Home")
        expect(page.locator("article.selected")).to_have_attribute("data-seq", "1")
        page.keyboard.press("s")
        expect(page).not_to_have_url(re.compile(session_id))


class TestReplay:
    def test_runs_dry_by_default_and_leads_to_the_comparison(
        self, viewer: ViewerPage, served_store: ServedStore, script: str
    ) -> None:
        session_id = served_store.make("Replay me", 1)
        page = viewer.open(f"/s/{session_id}?at=1")
        page.get_by_role("button", name="Replay from here").click()
        expect(page.get_by_label("Tools")).to_have_value("dry")
        page.locator("dialog select[name=model]").select_option(script)
        page.get_by_label("Append to prompt").fill("Be strict.")
        page.get_by_role("button", name="Replay", exact=True).click()
        expect(page.locator(".job")).to_contain_text("Different outcome.")
        expect(page.locator(".job")).to_contain_text("Cost: unpriced.")
        page.get_by_role("link", name="Compare").click()
        expect(page.locator(".diff-head h1")).to_have_text("Different")
        expect(page.locator(".setup")).to_contain_text("Be strict.")
        expect(page).to_have_url(re.compile(rf"/diff\?a={session_id}&b=ses_"))
        assert served_store.seq(session_id) == 8

    def test_that_got_no_answer_has_no_outcome(
        self, viewer: ViewerPage, served_store: ServedStore, folder: Path
    ) -> None:
        page = viewer.open(f"/s/{served_store.make('Replay me in vain', 1)}?at=1")
        page.get_by_role("button", name="Replay from here").click()
        page.locator("dialog select[name=model]").select_option(f"scripted:{folder / 'silent.json'}")
        page.get_by_role("button", name="Replay", exact=True).click()
        expect(page.locator(".job")).to_contain_text("Unknown outcome. Stopped: ")
        page.get_by_role("link", name="Compare").click()
        expect(page.locator(".diff-head h1")).to_have_text("Unknown")

    def test_of_the_recorded_answers_comes_out_the_same(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Replay me as I was", 1)
        page = viewer.open(f"/s/{session_id}?at=1")
        page.get_by_role("button", name="Replay from here").click()
        page.get_by_role("button", name="Replay", exact=True).click()
        expect(page.locator(".job")).to_contain_text("Same outcome.")
        page.get_by_role("link", name="Compare").click()
        expect(page.locator(".diff-head h1")).to_have_text("Identical")

    def test_compare_with_a_related_session(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        """Or with any other, found by its title."""
        served_store.make("Not related to me", 0)
        session_id = served_store.make("Compare me", 1)
        how = {
            "prompt": sample_store.STRICT,
            "tools": [look_up, refund],
            "mode": "dry",
            "on_miss": "continue",
        }
        served_store.of(
            session_id, lambda session: session.replay_sync(model=strict_support_model(), **how).replay
        )
        page = viewer.open(f"/s/{session_id}?at=1")
        page.locator(".inspected").get_by_role("button", name="Compare with…").click()
        page.get_by_label("Find a session").fill("me not related")
        expect(page.locator("dialog .line")).to_have_text([re.compile("Not related to me")])
        page.get_by_label("Find a session").fill("")
        page.locator("dialog .line", has_text="replayCompare me").click()
        expect(page.locator(".diff-head h1")).to_have_text("Different")


class TestRunning:
    def test_a_payment_that_was_left_behind_is_said_and_shown_when_it_is_asked_for_again(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Pay Ann once", 0)
        page = viewer.open(f"/s/{session_id}")
        for text in ("Pay Ann 40", "Pay Ann 40, please"):
            page.get_by_label("Message").fill(text)
            page.keyboard.press("Enter")
            expect(page.locator(".approval")).to_contain_text("pay_out needs approval")
            if text == "Pay Ann 40":
                expect(page.locator(".approval-earlier")).to_have_count(0)
                page.locator(".approval").get_by_role("button", name="Approve").click()
                expect(page.locator("article strong", has_text="paid")).to_be_visible()
                page.get_by_role("button", name="More").click()
                page.get_by_role("menuitem", name="Undo the latest turn").click()
                expect(page.locator("#notices")).to_contain_text(
                    "Left behind, and not undone: a call of pay_out"
                )
        earlier = page.locator(".approval .approval-earlier")
        expect(earlier).to_contain_text("Made before, on a path that was left: pay_out at 4")
        expect(page.locator(".approval .approval-earlier")).to_be_visible()
        page.locator(".approval").get_by_role("button", name="Deny").click()
        expect(page.locator(".approval")).to_have_count(0)

    def test_an_approval_given_in_the_page_lets_the_waiting_agent_go_on(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Pay Ann", 0)
        page = viewer.open(f"/s/{session_id}")
        page.get_by_label("Message").fill("Pay Ann 40")
        page.keyboard.press("Enter")
        expect(page.locator(".approval")).to_contain_text("pay_out needs approval")
        expect(page.locator(".card .badge")).to_have_text("needs approval")
        expect(page.locator(".approval .arguments")).to_have_text("amount40accountANN-7")
        page.locator(".approval").get_by_role("button", name="Approve").click()
        expect(page.locator(".card")).to_have_attribute("data-outcome", "done")
        expect(page.locator("article strong", has_text="paid")).to_be_visible()
        expect(page.locator(".approval")).to_have_count(0)
        page.get_by_label("Message").fill("Thanks")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("article", has_text="You are welcome.")).to_be_visible()
        places = page.eval_on_selector_all("article.entry", "all => all.map(one => one.dataset.seq)")
        assert places == ["1", "2", "3", "4", "6", "7", "8"]
        line = page.locator(f'.session-row[data-id="{session_id}"] .session-facts')
        assert line.evaluate(
            "one => one.scrollWidth <= one.clientWidth"
        )  # the time of a long model was cut off

    @pytest.mark.attack
    def test_what_an_import_left_open_is_shown_and_asked_about(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        def take_in(store: oakleaf.Store) -> str:
            bundle = io.BytesIO()
            with oakleaf.open("memory:") as elsewhere:
                theirs = elsewhere.start("support", title="Theirs")
                theirs.append(
                    [oakleaf.user("q"), oakleaf.assistant(oakleaf.ToolCall("c1", "refund", {"order": 7}))]
                )
                theirs.export(bundle)
            bundle.seek(0)
            return store.import_bundle(bundle).session_id

        session_id = served_store.read(take_in)
        page = viewer.open(f"/s/{session_id}")
        expect(page.locator(".card .badge")).to_have_text("left open elsewhere")
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator("dialog")).to_contain_text('refund {"order":7}')
        assert served_store.seq(session_id) == 2
        page.get_by_role("button", name="Let it run").click()
        expect(page.locator(".card")).to_have_attribute("data-outcome", "done")
        (refused,) = viewer.console  # the browser logs it
        assert "409" in refused
        viewer.console.clear()

    def test_a_denied_call_says_so(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("Do not pay", 0)
        page = viewer.open(f"/s/{session_id}")
        page.get_by_label("Message").fill("Pay Ann 40")
        page.keyboard.press("Enter")
        page.locator(".approval").get_by_role("button", name="Deny").click()
        expect(page.locator(".card .badge")).to_have_text("denied")

    def test_waiting_for_a_person_is_not_running(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        """The card and the turn counted ten minutes of waiting as work of the tool, and a denied call as failed."""

        def wait_and_pay(store: oakleaf.Store) -> str:
            clock = Clock()
            store.runtime = replace(store.runtime, now=lambda: clock.at)

            @oakleaf.tool(approval=True)
            def pay(amount: int) -> str:
                clock.advance(seconds=4)
                return f"paid {amount}"

            def answer(_: object) -> oakleaf.Message | str:
                clock.advance(seconds=2)
                return next(answers)

            @oakleaf.tool
            def look() -> str:
                clock.advance(seconds=3)
                return "seen"

            calls = [oakleaf.ToolCall(f"c{n}", "pay", {"amount": n}) for n in (1, 2)]
            answers = iter(
                [oakleaf.assistant("Paying both.", *calls, oakleaf.ToolCall("c3", "look")), "One was paid."]
            )
            model = oakleaf.ScriptedModel(answer)
            session = store.start("support", title="Waits")
            session.send_sync("Pay both", model=model, tools=[pay, look])
            first, second = session.pending_approvals()
            clock.advance(seconds=600)
            session.approve(first)
            clock.advance(seconds=60)
            session.approve(second, allow=False)
            session.resume_sync(model=model, tools=[pay, look])
            return session.session_id

        page = viewer.open(f"/s/{served_store.read(wait_and_pay)}")
        paid, denied, seen = (page.locator(".card").nth(n) for n in range(3))
        expect(paid.locator(".card-wait")).to_have_text("10 min 3 s")
        expect(paid.locator(".card-time")).to_have_text("4.0 s")
        expect(seen.locator(".card-time")).to_have_text("3.0 s")
        expect(seen.locator(".card-wait")).to_have_count(0)
        expect(denied.locator(".card-wait")).to_have_text("11 min 3 s")
        expect(denied.locator(".card-time")).to_have_count(0)
        expect(denied.locator(".badge")).to_have_text("denied")
        figures = page.locator(".turn-figures")
        expect(figures.locator("summary")).to_have_text(
            re.compile(r"^11 s · waited 11 min 0 s · 2 steps · 3 tool calls · 1 denied · \S+$")
        )
        figures.locator("summary").click()
        expect(figures.locator(".waterfall-row")).to_have_text(
            [
                re.compile("2.0 s"),
                "look3.0 s",
                "paydenied · waited 11 min 3 s",
                "pay4.0 s · waited 10 min 3 s",
                re.compile("2.0 s"),
            ]
        )
        widths = figures.locator(".waterfall-bar span").evaluate_all(
            "all => all.map((bar) => bar.style.width)"
        )
        assert [round(11 * float(width.rstrip("%")) / 100) for width in widths] == [2, 3, 4, 2]
        expect(page.locator(".errors-button")).to_be_hidden()

    def test_who_decides_too_late_is_told_so(
        self, browser: Browser, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Two decide", 0)
        page = viewer.open(f"/s/{session_id}")
        page.get_by_label("Message").fill("Pay Ann 40")
        page.keyboard.press("Enter")
        expect(page.locator(".approval")).to_be_visible()
        late = ViewerPage(browser, viewer.url)
        other = late.open(f"/s/{session_id}")
        held: list[Route] = []
        other.route("**/approve", lambda route: held.append(route))
        other.locator(".approval").get_by_role("button", name="Deny").click()
        page.locator(".approval").get_by_role("button", name="Approve").click()
        expect(other.locator(".card")).to_have_attribute("data-outcome", "done")
        held[0].continue_()
        expect(other.locator(".notice")).to_have_text(
            "pay_out waits no more: someone else decided, or the turn ended"
        )
        late.close()

    def test_what_waits_in_a_task_is_approved_from_the_page_of_its_parent_and_both_end(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make_delegating("Have Ann paid")
        (child_id,) = json.loads(served_store.of(session_id, children))
        page = viewer.open("/")
        line = page.locator(".session-row", has_text="Have Ann paid")
        expect(line.get_by_role("img", name="waiting")).to_be_visible()
        page = viewer.open(f"/s/{session_id}")
        card = page.locator(".card")
        expect(card.locator(".badge")).to_have_text("task needs approval")
        approval = page.locator(".approval")
        expect(approval).to_contain_text(f"pay_out needs approval in task {child_id}")
        expect(approval.locator(".arguments")).to_have_text("amount40accountANN-7")
        expect(page.locator(".sub-agent")).to_contain_text("waiting")
        approval.get_by_role("link", name=child_id).click()
        expect(page.locator("article.selected .card .badge")).to_have_text("needs approval")
        page.go_back()
        expect(card.locator(".badge")).to_have_text(
            "task needs approval"
        )  # the page of the parent is there again
        page.locator(".approval").get_by_role("button", name="Approve").click()
        expect(page.locator(".card")).to_have_attribute("data-outcome", "done")
        expect(page.locator("article strong", has_text="paid")).to_be_visible()
        expect(page.locator(".approval")).to_have_count(0)
        assert served_store.of(
            session_id, lambda session: [one.path()[-1].message.text for one in family(session)]
        ) == str(["It is **paid**.", "The colleague paid."])

    @pytest.mark.parametrize("word", ["Approve", "Deny"])
    def test_a_word_given_on_the_page_of_a_task_lets_its_parent_go_on(
        self, viewer: ViewerPage, served_store: ServedStore, word: str
    ) -> None:
        session_id = served_store.make_delegating(f"Have Ann paid: {word}")
        (child_id,) = json.loads(served_store.of(session_id, children))
        page = viewer.open(f"/s/{child_id}")
        page.locator(".approval").get_by_role("button", name=word).click()
        expect(page.locator("article", has_text="The colleague paid.")).to_be_visible()
        page.goto(f"{viewer.url}/s/{session_id}")
        expect(page.locator("article strong", has_text="paid")).to_be_visible()

    def test_a_turn_whose_process_is_gone_is_interrupted_and_resumed_by_one_click(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Left alone", 0)

        def leave(session: Session) -> None:
            session.append([oakleaf.user("Is anybody there?")])
            now = session.log.runtime.now()
            session.log.store.lease(session_id, "elsewhere:1#1", now - 1, now - 2)

        served_store.of(session_id, leave)
        page = viewer.open(f"/s/{session_id}")
        expect(page.get_by_role("group", name="Interrupted")).to_contain_text("Interrupted")
        expect(page.locator(".next-action")).to_have_count(0)
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".card .badge")).to_have_text("needs approval")

    def test_a_model_that_has_nothing_to_say_is_told(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Too long", 3)
        page = viewer.open(f"/s/{session_id}")
        page.get_by_label("Message").fill("And now?")
        page.keyboard.press("Enter")
        expect(page.locator(".session-head .dot.status-failed")).to_be_visible()
        expect(page.locator(".session-head .badge.is-error")).to_contain_text("script has 3 lines")


class Clicks:
    """Counts the clicks that a task takes."""

    def __init__(self, page: Page) -> None:
        self.page, self.count = page, 0

    def on(self, target: Locator) -> None:
        target.click()
        self.count += 1


class TestClicks:
    """How far everyday tasks are from the home page or the session's page."""

    def test_approving_is_one(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        served_store.make_delegating("Approve me at home")
        clicks = Clicks(viewer.open("/"))
        waiting = clicks.page.locator(".home-approval", has_text="Approve me at home")
        clicks.on(waiting.get_by_role("button", name="Approve"))
        expect(waiting).to_have_count(0)
        assert clicks.count == 1

    def test_finding_a_failure_and_its_reason_is_three(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("It went wrong", 1)

        def fail(session: Session) -> None:
            call = oakleaf.ToolCall("f1", "shell", {"command": "make"})
            lines = "\n".join(f"line {n}" for n in range(50))
            session.append([oakleaf.user("Build it"), oakleaf.assistant(call)])
            session.append([oakleaf.tool_result("f1", f"{lines}\nmake: no rule for 'all'", error=True)])
            session.append([oakleaf.assistant("I cannot build it.")])
            broken = oakleaf.ScriptedModel(lambda request: 1 / 0)  # type: ignore[arg-type,return-value]
            with suppress(ZeroDivisionError):
                session.send_sync("Again", model=broken)

        served_store.of(session_id, fail)
        clicks = Clicks(viewer.open("/"))
        clicks.on(clicks.page.locator(".home-line", has_text="It went wrong").first)
        expect(clicks.page.locator(".session-head .badge.is-error")).to_contain_text("division by zero")
        assert clicks.count <= 3
        why = Clicks(clicks.page)
        why.on(why.page.get_by_role("button", name="Go to one of"))
        expect(why.page.locator("article.selected .card pre")).to_contain_text("no rule for 'all'")
        assert why.count == 1

    def test_seeing_what_the_model_saw_is_one(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        clicks = Clicks(viewer.open(f"/s/{served_store.make('Look at me', 1)}"))
        last = clicks.page.locator("article.role-assistant").last
        clicks.on(last.get_by_role("button", name="What the model saw"))
        expect(clicks.page.locator(".prompt-dialog .prompt-message").first).to_contain_text(
            "Where is order 41?"
        )
        assert clicks.count == 1

    def test_comparing_two_forks_is_two(self, viewer: ViewerPage, served_store: ServedStore) -> None:
        session_id = served_store.make("Two ways", 1)
        served_store.of(session_id, lambda session: session.fork(title="The second way"))
        clicks = Clicks(viewer.open(f"/s/{session_id}"))
        clicks.on(clicks.page.locator(".head-tools").get_by_role("button", name="Compare with…"))
        clicks.on(clicks.page.locator("dialog .line", has_text="The second way"))
        expect(clicks.page.locator(".diff-head h1")).to_be_visible()
        assert clicks.count <= 3

    def test_a_session_that_is_still_read_offers_no_actions(
        self, viewer: ViewerPage, served_store: ServedStore
    ) -> None:
        session_id = served_store.make("Slow to read", 1)
        held: list[Route] = []
        viewer.page.route(re.compile(f"/api/sessions/{session_id}$"), lambda route: held.append(route))
        page = viewer.open(f"/s/{session_id}")
        expect(page.locator("article").first).to_be_visible()
        compare = page.locator(".head-tools").get_by_role("button", name="Compare with…")
        expect(compare).to_have_count(0)
        held.pop(0).continue_()
        compare.click()
        expect(page.get_by_role("dialog", name="Compare with")).to_be_visible()

    def test_exporting_is_two(self, viewer: ViewerPage, served_store: ServedStore, tmp_path: Path) -> None:
        session_id = served_store.make("Share me", 1)
        page = viewer.open(f"/s/{session_id}")
        for label, name, content in (
            ("Web page", f"{session_id}.html", "<!doctype html>"),
            ("Markdown", f"{session_id}.md", "# Share me"),
            ("Bundle", f"{session_id}.oakleaf", ""),
        ):
            clicks = Clicks(page)
            with page.expect_download() as download:
                clicks.on(page.get_by_role("button", name="Export or share"))
                clicks.on(page.locator("dialog a", has_text=label))
            assert clicks.count == 2
            assert download.value.suggested_filename == name
            download.value.save_as(tmp_path / name)
            assert (tmp_path / name).read_bytes().startswith(content.encode())
            expect(page.locator("dialog")).to_have_count(0)
