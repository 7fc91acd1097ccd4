"""The pictures of the viewer, taken of the real one: `make docs` does it.

python docs/pictures.py          writes docs/pictures/home.png, session.png and diff.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import oakleaf

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.browser import ServerProcess, launch  # noqa: E402 - the tests' own, found through the path above
from support.sample_store import BUILD, CASE, build, case, waiting  # noqa: E402

Size = tuple[int, int]


def filled(folder: str) -> Path:
    place = Path(folder) / "shop.db"
    with oakleaf.open(place) as store:
        for part in (waiting, build, case):
            part(store)
        store.session(CASE).label(7, "refunded")
    return place


def replayed(place: Path) -> str:
    with oakleaf.open(place) as store:
        return next(row.session_id for row in store.all_sessions(relation="replay"))


def home(page: Page, url: str, _: Path) -> None:
    page.goto(url)
    page.locator(".home-approval").wait_for()


def session(page: Page, url: str, _: Path) -> None:
    page.goto(f"{url}/s/{BUILD}?at=6")
    page.locator(".turn-figures").first.wait_for()
    page.get_by_role("button", name="Show or hide the details").click()
    page.get_by_role("tab", name="Prompt").click()
    page.locator(".prompt-view .token-bar").wait_for()


def diff(page: Page, url: str, place: Path) -> None:
    page.goto(f"{url}/diff?a={CASE}&b={replayed(place)}")
    page.locator(".diff-row.current").wait_for()


SIZES: dict[str, Size] = {"home": (1280, 640), "session": (1480, 760), "diff": (1100, 600)}


def take() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = filled(folder)  # before the browser: while it lives, no other loop runs in this thread
        with ServerProcess(place) as server, sync_playwright() as playwright:
            chromium = launch(playwright)
            for look in (home, session, diff):
                width, height = SIZES[look.__name__]
                page = chromium.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme="dark" if look is diff else "light",
                    reduced_motion="reduce",
                )
                look(page, server.url, place)
                page.screenshot(path=HERE / "pictures" / f"{look.__name__}.png")
            chromium.close()


if __name__ == "__main__":
    take()
