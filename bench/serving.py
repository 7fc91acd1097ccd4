"""Measure the responses a page waits for: a real server on loopback, 100,000 entries in 5,000 branches, 50,000 sessions."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import oakleaf

from .large import large_session, many_sessions
from .measure import Plan, alternate, middle, ms
from .report import Figure, at_most

ROUNDS = 15


class ServedStore:
    """The server in a thread of this process, and one connection to it, as a browser has."""

    def __init__(self, place: Path) -> None:
        from oakleaf_server import app
        from oakleaf_server.auth import AccessSettings
        from oakleaf_server.context import ServerContext
        from oakleaf_server.uvicorn_server import open_listener

        self.store = oakleaf.open(place, synchronous="normal")
        self._listener = open_listener("127.0.0.1", 0)
        self._server = app.create_server(ServerContext(self.store, AccessSettings()))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self._wire = http.client.HTTPConnection("127.0.0.1", self._listener.getsockname()[1])

    def get(self, path: str) -> bytes:
        self._wire.request("GET", path)
        reply = self._wire.getresponse()
        body = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {body[:200]!r}")
        return body

    def close(self) -> None:
        self._wire.close()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
        self.store.close()


def figures(plan: Plan) -> Iterator[Figure]:
    yield from _list(plan)
    yield from _session(plan)


def _list(plan: Plan) -> Iterator[Figure]:
    count, place = plan.pick(50_000, 2_000), plan.path("many")
    with oakleaf.open(place, synchronous="normal") as store:
        many_sessions(store, count)
    served = ServedStore(place)
    try:
        yield _figure(served, "list", f"first page of {count:,} sessions", "/api/sessions", 100)
        yield _figure(served, "facets", f"facets of {count:,} sessions", "/api/facets", None)
        yield _figure(served, "space usage", f"usage of {count:,} sessions", "/api/usage/days", None)
    finally:
        served.close()


def _session(plan: Plan) -> Iterator[Figure]:
    entries, branches = plan.pick(100_000, 8_000), plan.pick(5_000, 400)
    place = plan.path("large")
    with oakleaf.open(place, synchronous="normal") as store:
        session = large_session(store, entries, branches)
        base, middle_seq = f"/api/sessions/{session.session_id}", session.leaf.seq // 2
    paint = (base, f"{base}/path", f"{base}/branches", f"{base}/turns")
    served = ServedStore(place)
    try:
        began = time.perf_counter()
        size = sum(len(served.get(path)) for path in paint)
        first = (time.perf_counter() - began) * 1e3
        what = f"responses for the first paint, cold, {entries:,} entries"
        yield Figure("serving first paint", what, first, "ms", at_most(1_000), {"kB": size / 1e3})
        for key, what, path in (
            ("session", "the session itself", base),
            ("window", "100 entries around the middle", f"{base}/path?around={middle_seq}"),
            ("branches", f"{branches:,} branches", f"{base}/branches"),
            (
                "outline",
                "500 lines of the tree",
                f"{base}/outline?first={middle_seq}&last={middle_seq + 499}",
            ),
            ("turns", "50 turns summed up", f"{base}/turns?before={middle_seq}"),
            ("entry", "one entry by permalink", f"{base}/entries/{middle_seq}"),
        ):
            yield _figure(served, key, what, path, 100)
    finally:
        served.close()


def _figure(served: ServedStore, key: str, what: str, path: str, most: float | None) -> Figure:
    work: Callable[[], object] = partial(served.get, path)
    size = len(served.get(path))
    times = alternate({"ours": work}, ROUNDS)["ours"]
    target = None if most is None else at_most(most)
    return Figure(f"serving {key}", what, ms(middle(times)), "ms", target, {"kB": size / 1e3})
