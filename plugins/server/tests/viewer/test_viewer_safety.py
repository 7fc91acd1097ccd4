"""The viewer in a real browser: nothing in a session can act, everybody can use it, and it asks who is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, Page, expect

import oakleaf
from support import sample_store
from support.browser import ServerProcess, ViewerPage, browser, run_in_thread, viewer
from support.sample_store import BUILD, CASE, HOSTILE, WAITING
from support.viewer_server import server, store

__all__ = ["browser", "server", "store", "viewer"]


class TestHostile:
    def test_text_is_only_ever_text_and_no_link_leads_to_a_script(
        self, viewer: ViewerPage, store: Path
    ) -> None:
        with oakleaf.open(store) as sessions:
            length = len(sessions.session(HOSTILE).path())
        page = viewer.open(f"/s/{HOSTILE}?at=2")
        page.keyboard.press("t")
        kinds = set()
        selected = page.locator("article.selected")
        for _ in range(length):
            expect(selected).to_be_visible()
            kinds.add(selected.inner_text())
            for fold in selected.locator("summary").all():
                fold.click()
            elements = page.locator("article script, article b, article i, article svg[onload], .pane iframe")
            assert elements.count() == 0
            targets = page.eval_on_selector_all("article a[href]", "all => all.map(a => a.protocol)")
            assert set(targets) <= {"http:", "https:", "mailto:"}
            page.keyboard.press("j")
        expect(page.locator("article").last).to_have_class(re.compile("selected"))
        assert len(kinds) > length / 2  # the results stand with their calls
        viewer.open(f"/s/{HOSTILE}?at=6")
        expect(page.locator("article.selected")).to_contain_text("javascript:window.hacked=3")
        viewer.check()

    def test_what_steers_terminals_and_writing_is_shown(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{HOSTILE}?at=14")
        text = page.locator("article.selected .md").inner_text()
        assert "‹U+202E›" in text
        assert "\\x1b[31m" in text
        assert not re.search("[\x00\x1b\u202e\u2066]", text)

    def test_a_blob_of_html_or_svg_is_saved_not_shown(self, viewer: ViewerPage) -> None:
        page = viewer.open(f"/s/{HOSTILE}?at=32")
        links = page.locator("article.selected a.file")
        expect(links).to_have_count(2)
        assert all(link.get_attribute("download") is not None for link in links.all())
        assert page.locator("article.selected img").count() == 0


def _serious(page: Page, how: str) -> list[Any]:
    report = page.evaluate(f"axe.run({how})")
    return [
        (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in report["violations"]
        if one["impact"] in ("serious", "critical")
    ]


class TestLook:
    @pytest.mark.parametrize(
        "path",
        [
            "/",
            f"/s/{BUILD}?at=10",
            f"/s/{WAITING}",
            f"/s/{HOSTILE}?at=22",
            f"/diff?a={CASE}&b={BUILD}",
            "/usage",
        ],
    )
    def test_axe_finds_nothing_serious_by_day_or_by_night_on_any_screen(
        self, browser: Browser, server: ServerProcess, path: str
    ) -> None:
        viewer = ViewerPage(browser, server.url, color_scheme="light")
        page = viewer.open(path)
        page.wait_for_load_state("networkidle") if path in ("/", "/usage") else page.locator(
            "article.selected, .diff-row"
        ).first.wait_for()
        page.evaluate(AXE_FILE_PATH.read_text())
        assert _serious(page, "{resultTypes: ['violations']}") == []
        page.emulate_media(color_scheme="dark")  # the same page in other colours, and nothing else
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 200
        assert _serious(page, "{resultTypes: ['violations'], runOnly: ['color-contrast']}") == []
        page.set_viewport_size({"width": 400, "height": 800})
        assert _serious(page, "{resultTypes: ['violations']}") == []
        viewer.close()

    def test_four_hundred_pixels_are_enough(self, browser: Browser, server: ServerProcess) -> None:
        viewer = ViewerPage(browser, server.url, viewport={"width": 400, "height": 800})
        page = viewer.open(f"/s/{BUILD}?at=10")
        expect(page.locator("article.selected")).to_be_visible()
        for tab, selector in [
            ("Sessions", ".session-row"),
            ("Tree", ".entry-row"),
            ("Details", ".inspected"),
            ("Transcript", "article"),
        ]:
            page.locator(".tab-bar").get_by_role("button", name=tab).click()
            expect(page.locator(selector).first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
        for path in ("/", "/usage", f"/diff?a={CASE}&b={BUILD}"):
            viewer.open(path)
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
        viewer.check()
        viewer.close()

    def test_the_switch_is_stronger_than_the_system(self, viewer: ViewerPage) -> None:
        page = viewer.open("/")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_role("button", name=re.compile("^Theme")).click()
        assert page.evaluate(ground) != light
        page.reload()
        assert page.evaluate(ground) != light


class TestTokens:
    def test_a_token_in_the_fragment_is_handed_in_and_forgotten(self, browser: Browser, store: Path) -> None:
        with ServerProcess(store, "--token", "S3CRET-TOKEN") as process:
            viewer = ViewerPage(browser, process.url)
            page = viewer.page
            page.goto(process.first_line)
            expect(page.locator(f'.session-row[data-id="{CASE}"]')).to_be_visible()
            assert "S3CRET" not in page.url
            viewer.check()
            viewer.close()

    def test_without_one_it_is_asked_for(self, browser: Browser, store: Path) -> None:
        with ServerProcess(store, "--token", "S3CRET-TOKEN") as process:
            viewer = ViewerPage(browser, process.url)
            page = viewer.open("/")
            expect(page.get_by_role("button", name="Cancel")).to_have_count(0)  # it would leave an empty page
            page.get_by_role("textbox", name="Token").fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("The token is not valid")
            page.get_by_role("textbox", name="Token").fill("S3CRET-TOKEN")
            page.keyboard.press("Enter")
            expect(page.locator(f'.session-row[data-id="{CASE}"]')).to_be_visible()
            viewer.close()

    def test_a_client_sees_what_is_public_and_speaks(self, browser: Browser, tmp_path: Path) -> None:
        def fill() -> None:
            with oakleaf.open(tmp_path / "agent.db") as store:
                for owner in ("ann", "bob"):
                    session = store.start(
                        "support", [oakleaf.system("Secret prompt")], owner=owner, title=f"Of {owner}"
                    )
                    model = sample_store.support_model()
                    session.send_sync(
                        "Where is order 41?", model=model, tools=[sample_store.look_up, sample_store.refund]
                    )

        run_in_thread(fill)
        script = tmp_path / "answers.json"
        script.write_text('["a", "b", "c", "The fourth answer."]')
        options = [
            "--token",
            "S3CRET-TOKEN",
            "--client-token",
            "ann=ANNS-TOKEN",
            "--model",
            f"scripted:{script}",
        ]
        with ServerProcess(tmp_path / "agent.db", *options) as process:
            viewer = ViewerPage(browser, process.url)
            page = viewer.open("/#token=ANNS-TOKEN")
            expect(page.locator(".session-heading")).to_have_text(["Of ann"])
            page.locator(".session-row a").click()
            expect(page.locator("article.entry")).to_have_count(2)
            expect(page.locator("article.entry").last).to_contain_text("I have refunded 25")
            expect(page.locator(".tree, .inspector, .card")).to_have_count(0)
            page.get_by_label("Message").fill("And now?")
            page.keyboard.press("Enter")
            expect(page.locator("article.entry", has_text="The fourth answer.")).to_have_count(1)
            assert "Secret prompt" not in page.content()
            viewer.check()
            viewer.close()
