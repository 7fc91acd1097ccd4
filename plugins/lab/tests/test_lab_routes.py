"""Lab runs over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oakleaf as library
from oakleaf.store import Store
from oakleaf_server.truncate import MAX_RESPONSE
from support.lab_record import write_run
from support.server import LocalServer


@pytest.fixture
def server(store: Store) -> Iterator[LocalServer]:
    with LocalServer(store, token="service", client_tokens={"ann": "ann-token"}) as running:
        running.client.headers["authorization"] = "Bearer service"
        yield running


class TestLab:
    def test_runs_are_listed_newest_first(self, server: LocalServer, store: Store) -> None:
        assert server.get("/api/lab")["runs"] == []
        ids = [write_run(store, count, cut=count - 1) for count in (1, 2)]
        runs = server.get("/api/lab")["runs"]
        assert [run["run_id"] for run in runs] == ids[::-1]
        assert [run["status"] for run in runs] == ["incomplete", "complete"]
        shown = server.get("/api/lab", run_id=ids[0])
        assert [run["run_id"] for run in shown["runs"]] == [shown["report"]["run_id"]] == ids[:1]
        assert server.client.get("/api/lab", params={"run_id": "lab_none"}).status_code == 404
        assert server.client.get("/api/lab", params={"output": "x.html"}).status_code == 400

    def test_a_cohort_is_saved_listed_and_removed_once_it_is_confirmed(
        self, server: LocalServer, store: Store
    ) -> None:
        session = store.start("support")
        session.append([library.user("hi")])
        saved = server.post("/api/lab/cohorts", {"cohort": "few", "query": [session.session_id]})
        assert saved["cohorts"] == [{"name": "few", "sessions": [session.session_id]}]
        assert server.post("/api/lab/cohorts", {"cohort": "few", "rm": True})["cohorts"] == saved["cohorts"]
        assert server.post("/api/lab/cohorts")["cohorts"] == saved["cohorts"]
        assert server.post("/api/lab/cohorts", {"query": ["x"]}, 400)["code"] == "invalid_argument"
        server.post("/api/lab/cohorts", {"cohort": "few", "rm": True, "yes": True})
        assert server.post("/api/lab/cohorts")["cohorts"] == []

    def test_a_run_is_read_in_pages_and_a_session_by_itself(self, server: LocalServer, store: Store) -> None:
        run_id = write_run(store, 15)
        first = server.get(f"/api/lab/{run_id}", limit=10)
        rest = server.get(f"/api/lab/{run_id}", first=10, limit=10)
        assert first["run"]["run_id"] == run_id
        assert (first["total"], len(first["sessions"]), len(rest["sessions"])) == (15, 10, 5)
        rows = first["sessions"] + rest["sessions"]
        assert [row["change"] for row in rows] == sorted((row["change"] for row in rows), reverse=True)
        session = server.get(f"/api/lab/{run_id}/sessions/{rows[0]['session_id']}")
        assert (session["total"], len(session["turns"])) == (4, 4)
        assert session["turns"][0]["candidate"][0]["replay"] == rows[0]["candidate"]["replays"][0]

    def test_what_is_no_run_or_not_in_it_is_not_found(self, server: LocalServer, store: Store) -> None:
        run_id = write_run(store, 1)
        session = store.start("support")
        for path in ("lab_none", session.session_id, f"{run_id}/sessions/{session.session_id}"):
            assert server.client.get(f"/api/lab/{path}").status_code == 404
        assert server.client.get(f"/api/lab/{run_id}", params={"first": 2}).status_code == 400

    def test_no_answer_is_larger_than_1_mb(self, server: LocalServer, store: Store) -> None:
        run_id = write_run(store, 1_000, heading="case " * 200)
        replies = [
            server.client.get(f"/api/lab{path}", timeout=120)
            for path in ("", f"/{run_id}?limit=1000", f"/{run_id}/sessions/ses_case_0000")
        ]
        assert [reply.status_code for reply in replies] == [200] * 3
        assert max(len(reply.content) for reply in replies) <= MAX_RESPONSE
        first = replies[1].json()
        rest = server.get(f"/api/lab/{run_id}", first=len(first["sessions"]), limit=1_000)
        assert first["total"] == 1_000 > len(first["sessions"])
        assert rest["sessions"][0]["session_id"] not in {row["session_id"] for row in first["sessions"]}

    def test_the_routes_stand_in_the_description_of_the_api(self, server: LocalServer) -> None:
        paths = server.client.get("/openapi.json").json()["paths"]
        described = {
            path: paths[path].get("get") or paths[path]["post"]
            for path in paths
            if path.startswith("/api/lab")
        }
        assert {path: each["operationId"] for path, each in described.items()} == {
            "/api/lab": "lab_show",
            "/api/lab/cohorts": "lab_cohort",
            "/api/lab/{run_id}": "lab_run",
            "/api/lab/{run_id}/sessions/{session_id}": "lab_session",
        }
        limit = next(one for one in described["/api/lab/{run_id}"]["parameters"] if one["name"] == "limit")
        assert (limit["schema"]["minimum"], limit["schema"]["maximum"]) == (1, 1_000)

    def test_clients_see_no_run(self, server: LocalServer, store: Store) -> None:
        run_id = write_run(store, 1)
        for path in ("", f"/{run_id}", f"/{run_id}/sessions/ses_case_0000"):
            reply = server.client.get(f"/api/lab{path}", headers={"authorization": "Bearer ann-token"})
            assert reply.status_code == 403
