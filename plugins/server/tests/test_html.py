"""A session as one HTML file: what stands in it, and what a browser shows of it with the network off."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import oakleaf
from oakleaf import user
from oakleaf.errors import InvalidArgument, PageTooLarge, UnknownExportOption
from oakleaf_server import offline_page as html
from support import sample_store
from support.browser import ServerProcess, ViewerPage, browser, run_in_thread
from support.sample_store import BUILD, CASE, HOSTILE, TASK, WAITING
from support.terminal import oakleaf as run

__all__ = ["browser"]

CANARY = "xyzzy-1234567890-abcdef"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gallery") / "agent.db"
    return run_in_thread(lambda: sample_store.fill(place))


@pytest.fixture(scope="module")
def pages(store: Path) -> Path:
    """A folder with every session as it would be shared, and those of `whole-…` as they are."""
    with oakleaf.open(store) as sessions:
        for name in (CASE, BUILD, HOSTILE, WAITING):
            sessions.session(name).export(store.with_name(f"{name}.html"), "html")
            sessions.session(name).export(
                store.with_name(f"whole-{name}.html"), "html", redact=False, blobs=True
            )
    return store.parent


@pytest.fixture
def viewer(browser: Browser, pages: Path) -> Iterator[ViewerPage]:
    """A page of a file, offline; nothing but the file itself may be asked for."""
    page = ViewerPage(browser, pages.as_uri() + "/", offline=True)
    yield page
    page.check()
    assert [request for request in page.requests if not re.match(r"[\w-]+\.html|data:|blob:", request)] == []
    page.close()


class Elements(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self._is_inside = False
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))
        self._is_inside = True

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            tag, attrs, text = self.elements[-1]
            self.elements[-1] = (tag, attrs, text + data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [
            text
            for name, attrs, text in self.elements
            if name == tag and attributes.items() <= {**attrs}.items()
        ]


def embedded_bundle(page: bytes) -> bytes:
    return b"".join(
        base64.b64decode(piece) for piece in Elements(page).texts("script", **{"class": "bundle"})
    )


def export_bundle_and_page(session: oakleaf.Session, **how: bool) -> tuple[bytes, bytes]:
    """The bundle, and the page with one inside."""
    bundle, page = BytesIO(), BytesIO()
    session.export(bundle, **how)
    session.export(page, "html", **how)
    return bundle.getvalue(), page.getvalue()


class TestFile:
    @pytest.mark.parametrize("name", [CASE, BUILD, HOSTILE, WAITING])
    def test_the_bundle_inside_is_byte_for_byte_the_export(self, store: Path, name: str) -> None:
        with oakleaf.open(store) as sessions:
            session = sessions.session(name)
            for how in (
                {"redact": True},
                {"redact": False},
                {"redact": False, "blobs": True},
                {"redact": True, "children": False},
            ):
                bundle, page = export_bundle_and_page(session, **how)
                assert embedded_bundle(page) == bundle

    def test_it_is_redacted_unless_told_otherwise(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as sessions:
            sessions.start(session_id="ses_k", title=f"about {CANARY}").append([user(f"it is {CANARY}")])
        with oakleaf.open(tmp_path / "s.db", secrets={"KEY": CANARY}) as sessions:
            session = sessions.session("ses_k")
            path = session.export(tmp_path / "shared.html", "html")
            session.export(tmp_path / "whole.html", "html", redact=False)
        shared, whole = (tmp_path / "shared.html").read_bytes(), (tmp_path / "whole.html").read_bytes()
        assert path.report.redactions == {"KEY": 2}
        assert path.bytes == len(shared)
        assert CANARY.encode() not in shared + embedded_bundle(shared)
        assert CANARY.encode() in embedded_bundle(whole)

    def test_any_store_takes_the_bundle_inside_in(self, store: Path, tmp_path: Path) -> None:
        with oakleaf.open(store) as sessions, oakleaf.open(tmp_path / "there.db") as there:
            bundle, page = export_bundle_and_page(sessions.session(BUILD), redact=False, blobs=True)
            report = there.import_bundle(BytesIO(embedded_bundle(page)))
            assert report.added == (BUILD, TASK)
            assert export_bundle_and_page(there.session(BUILD), redact=False, blobs=True) == (bundle, page)

    def test_the_same_session_gives_the_same_bytes(self, store: Path) -> None:
        with oakleaf.open(store) as sessions:
            one = export_bundle_and_page(sessions.session(BUILD), redact=True)
        with oakleaf.open(store) as sessions:
            assert export_bundle_and_page(sessions.session(BUILD), redact=True) == one

    def test_blobs_are_not_put_in_where_secrets_are_hidden(self, store: Path, tmp_path: Path) -> None:
        with oakleaf.open(store) as sessions, pytest.raises(InvalidArgument, match="cannot be searched"):
            sessions.session(BUILD).export(tmp_path / "x.html", "html", blobs=True)
        assert list(tmp_path.iterdir()) == []

    def test_what_is_too_large_for_a_browser_is_refused_with_words(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as sessions:
            session = sessions.start()
            picture = sessions.put_blob(os.urandom(html.MAX_BUNDLE_BYTES * 4 // 5), "image/png", "large.png")
            session.append([user(picture)])
            with pytest.raises(PageTooLarge, match="oakleaf export --format bundle"):
                session.export(tmp_path / "x.html", "html", redact=False, blobs=True)
            assert not list(tmp_path.glob("*x.html*"))
            session.export(tmp_path / "x.html", "html", redact=False)

    def test_nothing_in_a_session_can_end_the_element_it_stands_in(self, pages: Path) -> None:
        elements = Elements((pages / f"whole-{HOSTILE}.html").read_bytes())
        tags = [tag for tag, _, _ in elements.elements]
        assert tags[:13] == [
            "html",
            "head",
            "meta",
            "meta",
            "meta",
            "meta",
            "meta",
            "title",
            "link",
            "style",
            "script",
            "body",
            "noscript",
        ]
        assert set(tags[13:]) == {"script"}
        scripts = [
            one for kind in ("bundle", "requests") for one in elements.texts("script", **{"class": kind})
        ]
        assert scripts == elements.texts("script", type="application/octet-stream")

    def test_the_policy_names_the_one_script_and_the_one_style_and_lets_nothing_out(
        self, pages: Path
    ) -> None:
        elements = Elements((pages / f"{CASE}.html").read_bytes())
        policy = next(str(attrs["content"]) for tag, attrs, _ in elements.elements if "http-equiv" in attrs)
        [script], [style] = elements.texts("script", type="module"), elements.texts("style")
        hashes = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)
        ]
        assert policy == (
            f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
            "connect-src 'none'; base-uri 'none'; form-action 'none'"
        )

    def test_the_suffix_says_that_a_page_is_meant(self, store: Path, tmp_path: Path) -> None:
        with oakleaf.open(store) as sessions:
            assert sessions.session(CASE).export(tmp_path / "x.html", None).format == "html"
            with pytest.raises(UnknownExportOption, match="it takes blobs, children, redact, progress"):
                sessions.session(CASE).export(tmp_path / "x.html", "html", lines=3)

    def test_the_server_need_not_be_installed(self, store: Path, tmp_path: Path) -> None:
        code = (
            "import sys, oakleaf\n"
            "sys.modules['litestar'] = sys.modules['uvicorn'] = None\n"
            f"oakleaf.open({str(store)!r}).session({CASE!r}).export({str(tmp_path / 'x.html')!r}, 'html')\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert (tmp_path / "x.html").stat().st_size > 100_000


class TestVerb:
    def test_export_html_writes_a_page_that_is_redacted(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as sessions:
            sessions.start(session_id="ses_k").append([user(f"it is {CANARY}")])
        done = run(
            "export", "ses_k", "--format", "html", store=tmp_path / "s.db", home=tmp_path, MY_API_KEY=CANARY
        )
        assert done.code == 0, done.err
        assert "masked 1" in done.err
        assert CANARY.encode() not in embedded_bundle((tmp_path / "ses_k.html").read_bytes())
        whole = run(
            "export",
            "ses_k",
            "--format",
            "html",
            "--no-redact",
            "-o",
            tmp_path / "w.html",
            "--json",
            store=tmp_path / "s.db",
        )
        assert whole.json["bytes"] == (tmp_path / "w.html").stat().st_size
        assert CANARY.encode() in embedded_bundle((tmp_path / "w.html").read_bytes())

    def test_it_holds_the_whole_session_and_says_so(self, store: Path, tmp_path: Path) -> None:
        done = run("export", f"{CASE}@3", "--format", "html", store=store, home=tmp_path)
        assert (done.code, "whole session" in done.err) == (2, True)
        done = run("export", CASE, "--format", "html", "--blobs", store=store, home=tmp_path)
        assert (done.code, "--no-redact" in done.err) == (2, True)
        assert list(tmp_path.glob("*.html")) == []


def open_page(viewer: ViewerPage, name: str, at: str = "") -> Page:
    page = viewer.open(f"{name}.html{at}")
    expect(page.locator("article.entry.selected")).to_be_visible()
    return page


class TestPage:
    def test_transcript_and_tree_show_without_a_network(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, CASE)
        expect(page).to_have_title("Order 41 · Oakleaf")
        expect(page.locator(".transcript")).to_contain_text("I have refunded 25 to your card.")
        expect(page.locator(".card-name", has_text="look_up")).to_be_visible()
        expect(page.locator(".tree-rows")).to_contain_text("Where is order 41?")
        expect(page.locator(".head-facts")).to_contain_text("$0.00432")
        assert viewer.requests == [f"{CASE}.html"]

    @pytest.mark.parametrize("name", [BUILD, TASK])
    def test_it_shows_what_the_server_shows(
        self, browser: Browser, pages: Path, store: Path, name: str
    ) -> None:
        """Both tall enough to show every row."""
        tall = {"viewport": {"width": 1400, "height": 9_000}}
        with ServerProcess(store) as process:
            there = ViewerPage(browser, process.url, **tall)
            here = ViewerPage(browser, pages.as_uri() + "/", offline=True, **tall)
            live = there.open(f"/s/{name}?at=2")
            copy = here.open(f"whole-{BUILD}.html#/s/{name}?at=2")
            for part in ("", "Usage", "JSON"):
                assert visible_texts(copy, part) == visible_texts(live, part)
            for one in (there, here):
                one.check()
                one.close()

    def test_a_permalink_opens_at_its_entry_and_follows_what_is_selected(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, f"whole-{CASE}", f"#/s/{CASE}?at=1:4")
        expect(page.locator("article.selected")).to_have_attribute("data-place", "1:4")
        page.locator('article[data-place="1:6"] .entry-label').click()
        expect(page).to_have_url(re.compile(rf"#/s/{CASE}\?at=1:6$"))
        page.reload()
        expect(page.locator("article.selected")).to_have_attribute("data-place", "1:6")
        page.locator('article[data-place="1:8"] a.seq').click()
        expect(page.locator("article.selected")).to_have_attribute("data-place", "1:8")
        page.go_back()
        expect(page.locator("article.selected")).to_have_attribute("data-place", "1:6")
        page.goto(f"{viewer.url}whole-{CASE}.html#/s/ses_nowhere")
        expect(page.locator(".error-text")).to_have_text("Session ses_nowhere is not in this copy")

    def test_the_inspector_shows_the_json_the_cost_and_what_the_model_saw(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, CASE, "#/?at=1:4")
        expect(page.locator(".inspected")).to_contain_text("Model call")
        page.get_by_role("tab", name="JSON").click()
        expect(page.locator(".inspected .json")).to_contain_text('name: "look_up"')
        with page.expect_download() as saved:
            page.get_by_role("link", name="Download raw JSON").click()
        assert b'"look_up"' in saved.value.path().read_bytes()
        page.get_by_role("tab", name="Usage").click()
        expect(page.locator("table.usage")).to_contain_text("$0.00432")
        page.get_by_role("tab", name="Prompt").click()
        expect(page.locator(".prompt-message")).to_contain_text("Where is order 41?")
        expect(page.locator(".prompt-tools")).to_contain_text("look_up")
        expect(open_page(viewer, CASE, "#/?at=1:1").locator(".error-text")).to_contain_text("oakleaf import")

    def test_a_branch_that_was_left_can_be_looked_at(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, BUILD)
        page.locator(".tree-row", has_text="Could you try way 1?").click()
        page.locator(".tree-row", has_text="Way 1 does not work").click()
        expect(page.locator(".viewing-bar")).to_contain_text("Viewing 1:23; the current leaf is 3:29")
        expect(page.locator("article.selected")).to_contain_text("Way 1 does not work")
        page.get_by_role("button", name="Back to the current leaf").click()
        expect(page.locator(".transcript")).to_contain_text("Months beyond December are refused.")

    def test_a_fork_shows_what_it_stands_on_and_an_empty_session_that_it_is(
        self, viewer: ViewerPage, store: Path, pages: Path
    ) -> None:
        with oakleaf.open(store) as sessions:
            [fork] = sessions.sessions(relation="fork").sessions
            sessions.session(fork.session_id).export(pages / "fork.html", "html")
            sessions.start("nobody yet").export(pages / "empty.html", "html")
        page = open_page(viewer, "fork")
        expect(page.locator(".transcript")).to_contain_text("Where is order 41?")
        expect(page.locator(".transcript")).to_contain_text("Offer a voucher first.")
        page = viewer.open("empty.html")
        expect(page.locator("h1")).to_have_text("nobody yet")
        expect(page.locator("article")).to_have_count(0)

    def test_a_task_inside_is_a_click_away_and_so_is_the_way_back(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, BUILD)
        page.locator(".tree-row.related", has_text="Review dates.py").click()
        expect(page.locator(".transcript")).to_contain_text("two names could be clearer")
        page.locator(".tree-row.related", has_text="Fix the failing date tests").click()
        expect(page.locator("h1")).to_have_text("Fix the failing date tests")

    def test_search_finds_words_in_messages_calls_and_results(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, BUILD)
        page.keyboard.press("/")
        page.get_by_role("combobox").fill('role:tool "replaced 1 place" -nothing')
        expect(page.locator(".hit:not(.session-hit)")).to_have_count(1)
        expect(page.locator(".hit mark")).to_have_text("replaced 1 place")
        page.keyboard.press("Enter")
        expect(page.locator("article.selected")).to_contain_text("edit_file")
        page.keyboard.press("/")
        page.get_by_role("combobox").fill("agent:coder")
        expect(page.locator("dialog.search")).to_contain_text("not agent:")

    def test_pictures_are_inside_or_said_to_be_missing(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, f"whole-{BUILD}", f"#/s/{BUILD}?at=1:20")
        picture = page.locator("img.media")
        expect(picture).to_be_visible()
        assert picture.evaluate("one => one.naturalWidth") == 160
        assert str(picture.get_attribute("src")).startswith("data:image/png;base64,")
        page = open_page(viewer, BUILD, "#/?at=1:20")
        expect(page.locator(".missing", has_text="plot.png")).to_contain_text("not in this copy")

    def test_long_texts_end_early_and_can_be_opened(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, BUILD, "#/?at=1:17")
        row = page.locator('article[data-place="1:17"]')
        row.get_by_role("button", name=re.compile("cat build.log")).click()
        row.get_by_role("button", name=re.compile("Show all")).click()
        expect(row).to_contain_text("line 1999 of a long log")

    def test_nothing_offers_to_change_what_is_a_copy(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, WAITING)
        expect(page.locator(".approval")).to_contain_text("needs approval")
        expect(page.get_by_role("button", name="Copy link")).to_be_visible()
        verbs = "Approve|Deny|Fork|Rewind|Replay|Undo|Redo|Compact|Compare|Send|Rename|Move"
        expect(page.get_by_role("button", name=re.compile(verbs))).to_have_count(0)
        page.keyboard.press("f")
        expect(page.locator("dialog")).to_have_count(0)

    def test_what_waits_in_a_task_is_said_and_leads_there(self, viewer: ViewerPage, pages: Path) -> None:
        calls = oakleaf.assistant(
            oakleaf.ToolCall("c1", "delegate_payment", {"amount": 40, "account": "ANN-7"})
        )

        def export() -> None:
            with oakleaf.open("memory:") as sessions:
                session = sessions.start("support", [oakleaf.system("You help.")])
                model = oakleaf.ScriptedModel([calls])
                session.send_sync("Pay Ann 40", model=model, tools=[sample_store.delegate_payment])
                session.export(pages / "delegating.html", "html")
                session.approve(session.pending_approvals()[0])
                session.export(pages / "decided.html", "html")

        run_in_thread(export)
        page = open_page(viewer, "delegating")
        expect(page.locator(".card .badge")).to_have_text("task needs approval")
        expect(page.locator(".approval")).to_contain_text(re.compile("pay_out needs approval in task ses_"))
        page.locator(".approval a.task").click()
        expect(page.locator("article.selected .card .badge")).to_have_text("needs approval")
        page = open_page(viewer, "decided")
        expect(page.locator(".card .badge")).to_have_text("task decided")
        expect(page.locator(".approval")).to_have_count(0)

    def test_the_bundle_inside_can_be_saved(self, viewer: ViewerPage, pages: Path) -> None:
        page = open_page(viewer, BUILD)
        with page.expect_download() as saved:
            page.get_by_role("link", name="download bundle").click()
        assert re.fullmatch(r"ses_\w+\.oakleaf", saved.value.suggested_filename)
        assert saved.value.path().read_bytes() == embedded_bundle((pages / f"{BUILD}.html").read_bytes())

    def test_hostile_text_is_read_and_runs_nothing(self, viewer: ViewerPage) -> None:
        page = open_page(viewer, f"whole-{HOSTILE}")
        for seq in (*range(2, 33, 4), 33, 36):
            page.goto(f"{viewer.url}whole-{HOSTILE}.html#/s/{HOSTILE}?at=1:{seq}")
            expect(page.locator("article.selected")).to_have_attribute("data-place", f"1:{seq}")
        page.goto(f"{viewer.url}whole-{HOSTILE}.html#/s/{HOSTILE}?at=1:3")
        expect(page.locator("article.selected")).to_contain_text("<script>window.hacked = 1</script>")
        assert page.locator("a[href^='javascript'], a[href^='data:text'], .transcript script").count() == 0

    def test_it_is_usable_on_a_narrow_screen(self, browser: Browser, pages: Path) -> None:
        narrow = ViewerPage(
            browser, pages.as_uri() + "/", offline=True, viewport={"width": 400, "height": 800}
        )
        page = open_page(narrow, CASE)
        expect(page.locator(".tab-bar button:visible")).to_have_text(["Tree", "Transcript", "Details"])
        page.get_by_role("button", name="Details").click()
        expect(page.locator(".inspected")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        narrow.check()
        narrow.close()


def visible_texts(page: Page, tab: str) -> list[str]:
    """All that is to be read of a session once everything is loaded; with a tab, of the inspector."""
    expect(page.locator("article.entry.selected")).to_be_visible()
    if tab:
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".inspected")).to_have_attribute("aria-busy", "false")
        return [_without_branches(page.locator(".inspected").inner_text())]
    page.get_by_role("radio", name="All").click()
    expect(page.locator(".tree-line", has_text=re.compile("^…$"))).to_have_count(0)
    expect(page.locator(".waiting:visible")).to_have_count(0)
    return [
        _without_branches(page.locator(part).inner_text()) for part in ("h1", ".transcript", ".tree-rows")
    ]


def _without_branches(text: str) -> str:
    """A store numbers the branches of all its sessions, a bundle those of each; and a copy offers no changes."""
    return re.sub(r"\d+:(?=\d)|branch: \d+|\s*Undo this compaction", "", text)
