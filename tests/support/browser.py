"""Fixtures for a real Chromium, a real `oakleaf serve`, and a page that records every error.

`python tests/support/browser.py` finds a Chromium or installs one: `$CHROME`, one of the system, Playwright's own, apt for root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, expect, sync_playwright

T = TypeVar("T")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
MISSING = """\
no Chromium was found. Any of these helps: set $CHROME to one; install chromium or google-chrome;
python -m playwright install --only-shell chromium (and, for its libraries, install-deps as root)"""
WAIT = 60_000
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
DETAILS = """
if (location.protocol !== "about:" && !localStorage.getItem("oakleaf.pane.inspector"))
  localStorage.setItem("oakleaf.pane.inspector", "open");
"""
"""The details are closed until somebody opens them; most tests look at them."""
expect.set_options(timeout=WAIT)


def chromium_path() -> str | None:
    """Return the path of a Chromium, or None to use the one of Playwright."""
    return os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright: Playwright) -> Browser:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        return playwright.chromium.launch(executable_path=chromium_path(), args=arguments)
    except Error as error:
        raise RuntimeError(f"{MISSING}\n{error}") from None


def ensure() -> None:
    """Find a Chromium that starts, or install one."""
    for command in [*_installs(), None]:
        try:
            with sync_playwright() as playwright:
                launch(playwright).close()
            return
        except RuntimeError as missing:
            if command is None:
                raise SystemExit(str(missing)) from None
            subprocess.run(command, check=False, stdout=sys.stderr)


def _installs() -> list[list[str]]:
    """Return the commands that may install a Chromium, in the order to try them."""
    playwright = [sys.executable, "-m", "playwright"]
    commands = [[*playwright, "install", "--only-shell", "chromium"]]
    if os.geteuid() == 0:
        commands.append([*playwright, "install-deps", "chromium"])
    if os.geteuid() == 0 and shutil.which("apt-get"):
        commands.append(["apt-get", "install", "-y", "-qq", "chromium"])
    return commands


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one browser per test module; until it closes, no other event loop can run in this thread."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class ViewerPage:
    """A page that records console messages, errors and policy violations; `check` asserts that there were none."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        options = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce", **options}
        self.context: BrowserContext = browser.new_context(**options)
        self.context.add_init_script(WATCH)
        self.context.add_init_script(DETAILS)
        self.page: Page = self.context.new_page()
        self.context.set_default_timeout(WAIT)
        self.console: list[str] = []
        self.requests: list[str] = []
        self.largest_response = 0
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url.removeprefix(url)))
        self.page.on("response", self._record_size)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.console.append(f"{message.type}: {message.text}")

    def _record_size(self, response: Any) -> None:
        self.largest_response = max(self.largest_response, int(response.headers.get("content-length", 0)))

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        self.page.locator(".panes, dialog").first.wait_for()
        return self.page

    def check(self) -> None:
        assert self.console == [], self.console
        assert self.page.evaluate("window.violations") == []
        assert self.page.evaluate("window.hacked") is None
        assert self.largest_response <= 1_000_000

    def close(self) -> None:
        self.context.close()


class HasUrl(Protocol):
    """A server, in this process or in another."""

    @property
    def url(self) -> str: ...


@pytest.fixture
def viewer(browser: Browser, server: HasUrl) -> Iterator[ViewerPage]:
    """A page of the `server` fixture of the test module; the test fails if the page logged an error."""
    page = ViewerPage(browser, server.url)
    yield page
    page.check()
    page.close()


def run_in_thread(act: Callable[[], T]) -> T:
    """Run the function in a new thread, where an event loop may run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


class ServerProcess:
    """`oakleaf serve` in its own process."""

    def __init__(self, store: Path | str, *options: str, port: int = 0, home: Path | None = None) -> None:
        command = [sys.executable, "-m", "oakleaf.cli.main", "--store", str(store), "serve", "--no-open"]
        self._process = subprocess.Popen(
            [*command, "--port", str(port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=None if home is None else {**os.environ, "HOME": str(home)},
        )
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()
        self.url = self.first_line.partition("#")[0].rstrip("/")
        assert self.url.startswith("http://"), "the server did not start"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NetworkProxy:
    """A proxy between a browser and a server whose connections can be cut and restored."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._is_cut = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                end.close()
                continue
            other = socket.create_connection(("127.0.0.1", self._to))
            with self._lock:
                self._ends += [end, other]
            for pair in ((end, other), (other, end)):
                thread = threading.Thread(target=self._pump, args=pair)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass  # cut
        for end in (source, target):
            _hang_up(end)

    def cut(self) -> None:
        self._is_cut = True
        with self._lock:
            for end in self._ends:
                _hang_up(end)

    def restore(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        _hang_up(self._listener)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        for end in self._ends:
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is already closed


if __name__ == "__main__":
    ensure()
