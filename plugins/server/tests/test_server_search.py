"""Search over HTTP beside an index that is behind, and a list filtered by words."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

import oakleaf
from oakleaf import user
from oakleaf.log import session_list
from oakleaf.store import Store
from oakleaf.stores.search import IndexProgress
from oakleaf.stores.sqlite.store import SqliteStore
from oakleaf_server import verb_routes
from oakleaf_server.search_indexer import SearchIndexer
from support.processes import wait_until
from support.server import LocalServer


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer when indexing has ended, however busy the machine is."""
    monkeypatch.setattr(verb_routes, "INDEX_WAIT", 60)


class TestSearch:
    @pytest.mark.usefixtures("patient")
    def test_finds_what_was_said_a_moment_ago(self, store: Store) -> None:
        with LocalServer(store) as server:
            for word in ("whale", "heron"):
                store.start("sea").append([user(f"a {word} passed")])
                page = server.get("/api/search", query=word)
                assert (len(page["hits"]), page["unindexed_sessions"]) == (1, 0)

    def test_answers_before_a_long_index_is_whole_and_counts_what_is_missing(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db", synchronous="normal") as sessions:
            for n in range(5):
                sessions.start("sea", title=f"Trip {n}").append([user("a whale passed")])
            other = apsw.Connection(str(tmp_path / "s.db"))
            other.execute("begin immediate")  # nobody else can write to the index meanwhile
            with LocalServer(sessions) as server:
                page = server.get("/api/search", query="whale")
                assert (page["hits"], page["unindexed_sessions"]) == ([], 5)
                other.execute("rollback")
                wait_until(lambda: len(server.get("/api/search", query="whale")["hits"]) == 5)
            other.close()

    @pytest.mark.usefixtures("patient")
    def test_a_store_that_cannot_be_indexed_is_searched_as_far_as_it_is(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db", synchronous="normal") as sessions:
            session = sessions.start("sea")
            session.append([user("a whale passed")])
            sessions.index()
            session.append([user(" ".join(f"w{n:x}" for n in range(30_000))) for _ in range(3)])
            assert isinstance(sessions.backend, SqliteStore)
            writer = sessions.backend._connections._writer
            writer.execute(f"pragma max_page_count = {writer.execute('pragma page_count').get}")
            with LocalServer(sessions) as server:
                page = server.get("/api/search", query="whale")
        assert (len(page["hits"]), page["unindexed_sessions"]) == (1, 1)
        assert "no space left to write" in page["index_error"]


class TestIndexing:
    def test_runs_once_however_many_wait_and_ends_with_the_server(self) -> None:
        begun: list[IndexProgress] = []
        step = threading.Semaphore(0)

        def index(progress: IndexProgress) -> int:
            begun.append(progress)
            for n in range(1, 1_000):
                step.acquire()
                progress(n, 1_000 - n)
            return 1_000

        indexer = SearchIndexer(index)
        with ThreadPoolExecutor(5) as searches:
            assert list(searches.map(indexer.catch_up, [0.01] * 5)) == [None] * 5
        ending = threading.Thread(target=indexer.close)
        ending.start()
        while ending.is_alive():
            step.release()
            ending.join(0.001)
        assert len(begun) == 1


class TestWords:
    def test_leave_the_sessions_whose_headings_hold_them_all(self, store: Store) -> None:
        for title in ("Order 41, lost", "order 42", "Lost parcel of ORDER 43", None):
            store.start("support", title=title)
        store.start("support").append([user("Where is my lost order?")])
        with LocalServer(store) as server:
            sessions = server.get("/api/sessions", query="LOST order")["sessions"]
            assert [one["heading"] for one in sessions] == [
                "Where is my lost order?",
                "Lost parcel of ORDER 43",
                "Order 41, lost",
            ]
            assert len(server.get("/api/sessions", query=" ")["sessions"]) == 5
            assert server.get("/api/sessions", query="lost agent:other")["sessions"] == []

    def test_are_looked_for_in_pieces_and_no_session_is_told_twice_or_missed(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session_list, "STEP", 3)
        monkeypatch.setattr(session_list, "MAX_WORK", 7)
        for n in range(40):
            store.start("support", title=f"{'whale' if n % 5 == 0 else 'heron'} {n}")
        with LocalServer(store) as server:
            for limit in (1, 3, 50):
                names, page, requests = list[str](), None, 0
                while requests == 0 or page is not None:
                    about = {"query": "whale", "limit": limit} | ({} if page is None else {"page": page})
                    answer = server.get("/api/sessions", **about)
                    names += [one["title"] for one in answer["sessions"]]
                    page, requests = answer["next"], requests + 1
                assert names == [f"whale {n}" for n in range(35, -1, -5)]


class TestStorage:
    def test_is_summed_over_all_sessions_a_page_at_a_time(self, store: Store) -> None:
        for n in range(5):
            store.start("a", title=f"Session {n}").append([user("x" * 1_000 * n)] * 2)
        store.delete(store.start("a", title="thrown away").session_id)
        with LocalServer(store) as server:
            whole = server.get("/api/storage")
            single = [
                server.get(f"/api/sessions/{row.session_id}/storage")
                for row in store.all_sessions(trashed=False)
            ]
            for name in ("entries", "bytes", "branches", "blobs", "blob_bytes"):
                assert whole[name] == sum(one[name] for one in single)
            assert (whole["sessions"], whole["next"], whole["entries"]) == (5, None, 10)
            assert [one["heading"] for one in whole["largest"]][:2] == ["Session 4", "Session 3"]
            first = server.get("/api/storage", limit=2)
            second = server.get("/api/storage", limit=10, page=first["next"])
            assert first["bytes"] + second["bytes"] == whole["bytes"]
            assert server.get("/api/storage", query="is:trashed")["sessions"] == 1
