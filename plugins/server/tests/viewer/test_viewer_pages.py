"""A page of a plugin in a real browser: it loads when it is opened, and a broken script breaks that page alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from support.browser import ServerProcess, ViewerPage, browser
from support.page_plugin import FILES, GARDEN, write_plugin

__all__ = ["browser"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("plugins")
    write_plugin(folder, "garden_plugin", GARDEN, FILES, "garden")
    weeds = GARDEN.replace("garden_plugin", "weeds_plugin").replace("Bed", "Weed")
    write_plugin(folder, "weeds_plugin", weeds, {**FILES, "words.js": "export const shout = (;\n"}, "weeds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with ServerProcess(folder / "agent.db") as process:
            yield process


def test_a_page_of_a_plugin_opens_from_the_navigation(browser: Browser, server: ServerProcess) -> None:
    viewer = ViewerPage(browser, server.url)
    page = viewer.open("/")
    assert not [path for path in viewer.requests if path.endswith("/garden.js")]
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Garden").first.click()
    expect(page.get_by_role("heading", name="ALL")).to_be_visible()
    expect(page).to_have_title("Garden · Oakleaf")
    expect(page.locator(".bed")).to_have_css("color", "rgb(1, 2, 3)")
    viewer.open("/garden/roses.red")
    expect(page.get_by_role("heading", name="ROSES.RED")).to_be_visible()
    viewer.check()
    viewer.close()


def test_a_broken_script_breaks_its_own_page_alone(browser: Browser, server: ServerProcess) -> None:
    viewer = ViewerPage(browser, server.url)
    page = viewer.open("/weeds")
    expect(page.locator(".error-text")).to_contain_text("Unexpected token")
    page.get_by_role("link", name="All sessions").click()
    expect(page).to_have_title("Oakleaf")
    viewer.open("/garden")
    expect(page.get_by_role("heading", name="ALL")).to_be_visible()
    viewer.open("/nothing")
    expect(page.get_by_text("There is no such page")).to_be_visible()
    viewer.close()
