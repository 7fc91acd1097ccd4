"""Measure the viewer in a real Chromium: from an address to its first content, and the responses of a very long session at once."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import oakleaf

from .large import large_session, many_sessions
from .measure import Plan, middle
from .report import Figure, at_most

ROUNDS = 5
AT_ONCE = 40
CONTENT = """selector => new Promise((resolve) => {
  const look = () => document.querySelector(selector) ? resolve(performance.now()) : requestAnimationFrame(look);
  look();
})"""


class ServerProcess:
    """`oakleaf serve` in its own process, whose memory is its own."""

    def __init__(self, place: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "oakleaf.cli.main",
            "--store",
            str(place),
            "serve",
            "--no-open",
            "--port",
            "0",
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip().partition("#")[0].rstrip("/")

    def get(self, path: str) -> None:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=600)
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {body[:200]!r}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def peak_memory(self) -> float:
        """Megabytes, as Linux counts them; 0 elsewhere."""
        status = Path(f"/proc/{self._process.pid}/status")
        text = status.read_text() if status.exists() else ""
        peak = re.search(r"VmHWM:\s+(\d+)", text)
        return int(peak[1]) / 1024 if peak else 0.0

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def figures(plan: Plan) -> Iterator[Figure]:
    """Yield the figures. The first ones need Playwright and a Chromium: `make .venv/.browser`."""
    yield from _first_content(plan)
    yield from _at_once(plan)


def _first_content(plan: Plan) -> Iterator[Figure]:
    from playwright.sync_api import sync_playwright

    count, entries = plan.pick(10_000, 1_000), plan.pick(100_000, 8_000)
    many, large = plan.path("viewer-many"), plan.path("viewer-large")
    with oakleaf.open(many, synchronous="normal") as store:
        many_sessions(store, count)
    with oakleaf.open(large, synchronous="normal") as store:
        session = large_session(store, entries, plan.pick(5_000, 400))
        path, middle_seq = f"/s/{session.session_id}", session.leaf.seq // 2
    pages = [
        ("home", f"home page, {count:,} sessions", many, "/", ".home-line"),
        ("list", f"list of {count:,} sessions", many, "/", ".session-row"),
        ("session", f"end of a session of {entries:,} entries", large, path, "article.entry"),
        ("link", f"entry in the middle of {entries:,}", large, f"{path}?at={middle_seq}", "article.selected"),
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        for place in (many, large):
            server = ServerProcess(place)
            for key, what, of, address, selector in pages:
                if of == place:
                    times, work = [], []
                    for _ in range(ROUNDS):  # each time without anything cached
                        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
                        before = cpu_ms(server.pid)
                        page.goto(server.url + address, wait_until="commit")
                        times.append(page.evaluate(CONTENT, selector))
                        work.append(cpu_ms(server.pid) - before)
                        page.context.close()
                    name = f"first content: {what}"
                    beside = {"server CPU ms": middle(work)}
                    yield Figure(f"viewer {key}", name, middle(times), "ms", at_most(1_000), beside)
            server.close()
        chromium.close()


def cpu_ms(pid: int) -> int:
    """Return the processor time that a process has used, on Linux: it does not depend on what else runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")


def _chromium() -> str | None:
    """Return a Chromium of the system; None for Playwright's own."""
    return next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _at_once(plan: Plan) -> Iterator[Figure]:
    """What 40 requests at once for the request of a model call, and for a comparison, take."""
    for entries in (1_000, plan.pick(100_000, 8_000)):
        place = plan.path(f"viewer-long-{entries}")
        with oakleaf.open(place, synchronous="normal") as store:
            session = large_session(store, entries, 1)
            fork = session.fork(session.leaf.seq - 400)
            fork.append([oakleaf.user("And now?"), oakleaf.assistant("Now it is here.")])
        base = f"/api/sessions/{session.session_id}"
        for key, path in (
            ("request", f"{base}/request"),
            ("diff", f"/api/diff?a={session.session_id}&b={fork.session_id}"),
            ("calls", f"{base}/calls?first=1"),
            ("turns", f"{base}/turns"),
        ):
            server = ServerProcess(place)
            began = time.perf_counter()
            threads = [threading.Thread(target=server.get, args=(path,)) for _ in range(AT_ONCE)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - began
            what = f"{AT_ONCE} at once, {entries:,} entries: {key}"
            yield Figure(
                f"viewer {key} {entries}", what, seconds * 1e3, "ms", None, {"MB": server.peak_memory}
            )
            server.close()
