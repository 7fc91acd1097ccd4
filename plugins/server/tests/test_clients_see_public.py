"""Clients: whatever they ask, they see the public entries of their owner and nothing else."""

from __future__ import annotations

import json

import psycopg
import pytest

import oakleaf
from oakleaf import Limits, ScriptedModel, assistant, user
from oakleaf.errors import short_holder
from oakleaf.store import Store
from oakleaf_server.context import ServerAgent
from oakleaf_server.routes import runs
from support.postgres import Database
from support.postgres_attacks import IDENTITY
from support.secret_session import ANN, SECRET, SERVICE, TOKENS, start_with_secrets
from support.server import LocalServer, bearer


def sessions_of_ann(store: Store) -> dict[str, str]:
    """Sessions of every relation that belong to one owner, one in the trash, and one of nobody, by what they are."""
    own = store.session(start_with_secrets(store, "ann", "ann"))
    fork = own.fork()
    task = store.start_task(own, owner="ann")
    task.append([user("the tool call"), assistant("its result")])
    replay = store.start(owner="ann", relation="replay", parent_session=own.session_id)
    trashed = store.start(owner="ann")
    store.delete(trashed.session_id)
    nobody = store.start()
    sessions = {
        "own": own,
        "fork": fork,
        "task": task,
        "replay": replay,
        "trashed": trashed,
        "nobody's": nobody,
    }
    sessions["task of a fork"] = store.start_task(fork, owner="ann")
    sessions["fork of a task"] = task.fork()
    return {name: session.session_id for name, session in sessions.items()}


class TestClients:
    """A token of the level client sees the public entries of its owner, whatever it asks."""

    def test_a_client_sees_its_own_public_entries(self, store: Store) -> None:
        mine, theirs = start_with_secrets(store, "ann", "ann"), start_with_secrets(store, "bob", "bob")
        with LocalServer(store, **TOKENS) as server:
            assert [row["id"] for row in server.get("/api/sessions", token=ANN)["sessions"]] == [mine]
            entries = server.get(f"/api/sessions/{mine}/path", token=ANN)["entries"]
            assert [(e["role"], e["text"]) for e in entries] == [
                ("user", "ann asks"),
                ("assistant", "ann is answered"),
            ]
            assert set(entries[0]) == {"seq", "role", "at", "text"}
            assert server.get(f"/api/sessions/{theirs}", 404, token=ANN)["code"] == "not_found"
            assert len(server.get("/api/sessions", token=SERVICE)["sessions"]) == 2
            of_bob = server.get("/api/sessions", token=SERVICE, query="owner:bob")["sessions"]
            assert [row["id"] for row in of_bob] == [theirs]
            for hidden in ("model", "tag", "parent", "conversation", "owner"):  # a filter would be a question
                assert len(server.get("/api/sessions", token=ANN, query=f"{hidden}:x=y")["sessions"]) == 1

    def test_no_address_shows_a_client_what_is_not_its_own(self, store: Store) -> None:
        mine, theirs = start_with_secrets(store, "ann", "ann"), start_with_secrets(store, "bob", "bob")
        media = store.put_blob(SECRET.encode(), "text/plain")
        with LocalServer(store, internal_token="int", **TOKENS) as server:
            paths = server.client.get("/openapi.json").json()["paths"]
            added = tuple(f"/api/{page['name']}" for page in server.get("/api", token=SERVICE)["pages"])
            count, answered_paths = 0, set()
            for path, methods in paths.items():
                if "get" not in methods or path.endswith("/events") or path.startswith(added):
                    continue
                takes = {parameter["name"] for parameter in methods["get"].get("parameters", ())}
                for name in (mine, theirs):
                    fits = {
                        "session_id": name,
                        "session": name,
                        "place": "1:3",
                        "digest": media.hash,
                        "job_id": "job_x",
                    }
                    query = {
                        "query": SECRET,
                        "a": mine,
                        "b": theirs,
                        "leaf": "1:3",
                        "public": "false",
                        "after": None,
                    }
                    reply = server.client.get(
                        path.format(**fits),
                        params={k: v for k, v in query.items() if v and k in takes},
                        headers={**bearer(ANN), "x-internal-token": "int"},
                    )
                    count += 1
                    assert SECRET not in reply.text, path
                    assert "bob" not in reply.text.replace(theirs, ""), path
                    if reply.status_code == 200:
                        answered_paths.add(path)
                    else:
                        assert reply.status_code in (403, 404), (path, reply.text)
            assert count > 40
            assert answered_paths == {
                "/api",
                "/api/sessions",
                "/api/sessions/{session_id}",
                "/api/sessions/{session_id}/path",
                "/healthz",
                "/readyz",
            }

    def test_a_client_changes_nothing_but_by_sending(self, store: Store) -> None:
        mine = start_with_secrets(store, "ann", "ann")
        with LocalServer(store, **TOKENS) as server:
            paths = server.client.get("/openapi.json").json()["paths"]
            before = store.session(mine).row
            for path, methods in paths.items():
                for method in set(methods) & {"post", "patch", "delete"}:
                    if path.endswith(("/send", "/login")):
                        continue
                    kind = "application/octet-stream" if path == "/api/import" else "application/json"
                    reply = server.client.request(
                        method.upper(),
                        path.format(session_id=mine, session=mine, job_id="x", tool="claude-code"),
                        content=b"{}",
                        headers={**bearer(ANN), "x-oakleaf": "1", "content-type": kind},
                    )
                    assert (reply.status_code, reply.json()["code"]) == (403, "service_only"), path
            assert store.session(mine).row == before

    def test_trashed_sessions_and_replays_are_not_there_for_a_client(self, store: Store) -> None:
        mine = start_with_secrets(store, "ann", "ann")
        store.delete(mine)
        with LocalServer(store, **TOKENS) as server:
            server.get(f"/api/sessions/{mine}", 404, token=ANN)
            server.get(f"/api/sessions/{mine}/path", 404, token=ANN)
            assert server.get("/api/sessions", token=ANN, query="is:trashed")["sessions"] == []

    @pytest.mark.attack
    def test_a_client_neither_reads_nor_sends_into_tasks_and_replays(self, store: Store) -> None:
        """A task's input and answer are its parent's tool call and result, which are internal."""
        sessions = sessions_of_ann(store)
        agent = ServerAgent((ScriptedModel(["answered"]),))
        with LocalServer(store, agent, **TOKENS) as server:
            listed = {row["id"] for row in server.get("/api/sessions", token=ANN)["sessions"]}
            for name, session_id in sessions.items():
                before = store.session(session_id).row
                status = 200 if name in ("own", "fork", "fork of a task") else 404
                path = f"/api/sessions/{session_id}"
                assert (session_id in listed) is (status == 200), name
                server.get(path, status, token=ANN)
                server.get(f"{path}/path", status, token=ANN)
                if status == 404:
                    server.get(f"{path}/events", 404, token=ANN)
                    for body in ({"text": "mine"}, {"text": "mine", "queue": True}):
                        server.post(f"{path}/send", body, 404, token=ANN)
                    assert store.session(session_id).row == before, name
                    assert store.backend.inbox(session_id) == []

    def test_a_client_sees_over_http_what_row_level_security_shows_it(self, database: Database) -> None:
        with oakleaf.open(database.url) as store, psycopg.connect(database.client_url) as role:
            sessions_of_ann(store)
            role.execute(IDENTITY)
            rows = {row[0] for row in role.execute("select session_id from oakleaf.public_session")}
            messages = role.execute("select session_id, seq, text from oakleaf.public_message").fetchall()
            with LocalServer(store, **TOKENS) as server:
                listed = {row["id"] for row in server.get("/api/sessions", token=ANN)["sessions"]}
                read = [
                    (session_id, entry["seq"], entry["text"])
                    for session_id in listed
                    for entry in server.get(f"/api/sessions/{session_id}/path", token=ANN)["entries"]
                ]
        assert listed == rows
        assert len(rows) == 3
        assert sorted(read) == sorted(messages)

    @pytest.mark.attack
    def test_a_client_learns_nothing_from_a_refusal(self, store: Store) -> None:
        mine = store.session(start_with_secrets(store, "ann", "ann"))
        path = f"/api/sessions/{mine.session_id}/send"
        agent = ServerAgent((ScriptedModel(["never"]),), limits=Limits(turns=1))
        with LocalServer(store, agent, **TOKENS) as server:
            refused = server.post(path, {"text": "more"}, 409, token=ANN)
            assert (refused["code"], refused["detail"]) == ("turn_limit", "the session takes no more input")
            with mine.turn("q"):
                refused = server.post(path, {"text": "more"}, 409, token=ANN)
                told = server.post(path, {"text": "more"}, 409, token=SERVICE)
            holder = short_holder(store.runtime.holder())
            assert refused["code"] == "session_running"
            assert holder not in json.dumps(refused)
            assert holder in told["detail"]

    @pytest.mark.attack
    def test_a_client_fills_no_queue(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "MAX_QUEUED", 3)
        mine = store.session(start_with_secrets(store, "ann", "ann"))
        path, body = f"/api/sessions/{mine.session_id}/send", {"text": "more", "queue": True}
        agent = ServerAgent((ScriptedModel(["never"]),))
        with LocalServer(store, agent, **TOKENS) as server, mine.turn("q"):
            for _ in range(3):
                server.post(path, body, 202, token=ANN)
            assert server.post(path, body, 409, token=ANN)["code"] == "inputs_queued"
            server.post(path, body, 202, token=SERVICE)
            assert len(store.backend.inbox(mine.session_id)) == 4

    def test_a_client_cannot_name_a_branch_of_another(self, store: Store) -> None:
        mine, theirs = (
            store.session(start_with_secrets(store, "ann", "ann")),
            store.session(start_with_secrets(store, "bob", "bob")),
        )
        with LocalServer(store, **TOKENS) as server:
            reply = server.get(f"/api/sessions/{mine.session_id}/path", token=ANN, leaf=str(theirs.leaf))
            assert "bob" not in json.dumps(reply)
            problem = server.get(
                f"/api/sessions/{mine.session_id}/path", 404, token=SERVICE, leaf=str(theirs.leaf)
            )
            assert problem["code"] == "invalid_position"
