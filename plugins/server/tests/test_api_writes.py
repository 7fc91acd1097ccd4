"""The addresses of the API that change something, compare, count or move sessions."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from test_api_reads import server, session_url, start_sample_session

import oakleaf
from oakleaf import Broken, Limits, Session, ToolCall, assistant, user
from oakleaf.core.facts import ApprovalRequested, Approved, TurnStarted
from oakleaf.errors import ToolsMissing
from oakleaf.ext import with_approval
from oakleaf.log import lease
from oakleaf.models.scripted import ScriptedModel, Slow
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.testing.stores.writer import read_everything
from oakleaf_server.context import ServerAgent
from support.generated_client import GeneratedClient
from support.processes import wait_until
from support.server import CHANGE_HEADERS, LocalServer
from support.sessions import tasks_of
from support.soak import SOAK
from support.tool_source import Shop

__all__ = ["server"]


def send_to_both(server: LocalServer, store: Store) -> Session:
    """A session whose two tasks wait for an approval each."""
    session = store.start()
    server.post(f"{session_url(session)}/send", {"text": "refund both"}, 202)
    wait_until(lambda: len(server.get(session_url(session))["pending_approvals"]) == 2)
    wait_until(lambda: not server.get(session_url(session))["is_running_here"])
    return session


def approve(
    server: LocalServer, session: Session, *calls: str, status: int = 200, **more: Any
) -> dict[str, Any]:
    body = {"call": list(calls), "yes": True, **more}
    answer: dict[str, Any] = server.post(f"{session_url(session)}/approve", body, status)
    return answer


@pytest.mark.parametrize(
    ("header", "recorded"),
    [("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True), ("00-0-0-01", False), ("", False)],
)
def test_the_header_traceparent_is_recorded_with_the_turn(store: Store, header: str, recorded: bool) -> None:
    session = store.start()
    with LocalServer(store, ServerAgent(models=[ScriptedModel(["Hello."])])) as server:
        headers = {**CHANGE_HEADERS, "traceparent": header}
        reply = server.client.post(f"{session_url(session)}/send", json={"text": "Hi"}, headers=headers)
        assert reply.status_code == 202, reply.text
    (started,) = (fact.fact for fact in session.journal() if isinstance(fact.fact, TurnStarted))
    assert started.trace == (header if recorded else None)


def upload(server: LocalServer, bundle: io.BytesIO) -> None:
    headers = {**CHANGE_HEADERS, "content-type": "application/octet-stream"}
    reply = server.client.post("/api/import", content=bundle.getvalue(), headers=headers)
    assert reply.status_code == 201, reply.text


class TestMoving:
    def test_fork_rewind_undo_and_redo(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        leaf = session.leaf
        forked = server.post(
            f"{session_url(session)}@4/fork", {"prompt": "Be strict.", "title": "strict"}, 201
        )
        assert (forked["cut"], forked["session"]["parent_seq"]) == ({"at": 4, "requested": 4}, 4)
        cut = server.post(f"{session_url(session)}@3/fork", {}, 201)["cut"]
        assert cut == {"at": 2, "requested": 3}
        moved = server.post(f"{session_url(session)}@5/rewind", {"leaf": str(leaf)})
        assert moved["leaf"] == f"{leaf.branch}:5"
        stale = server.post(f"{session_url(session)}@2/rewind", {"leaf": str(leaf)}, 409)
        assert stale["code"] == "stale_leaf"
        assert server.post(f"{session_url(session)}/redo")["leaf"] == str(leaf)
        assert server.post(f"{session_url(session)}/undo")["leaf"] == f"{leaf.branch}:5"
        assert server.post(f"{session_url(session)}@{leaf}/rewind")["leaf"] == str(leaf)
        assert server.post(f"{session_url(session)}/rewind", {"to_turn": 1})["leaf"] == f"{leaf.branch}:5"
        server.post(f"{session_url(session)}@99/rewind", {}, 404)
        server.post(f"{session_url(session)}/rewind", {}, 404)

    @pytest.mark.parametrize(
        ("request_", "body", "other"),
        [
            ("{}@5/rewind", {}, "{}@2/rewind"),
            ("{}/undo", {}, "{}@5/rewind"),
            ("{}/compact", {"summary": "It is lost."}, "{}/undo"),
            ("{}/settings", {"prompt": "Be brief."}, "{}/undo"),
            ("{}@5/fork", {"title": "strict"}, "{}@2/fork"),
        ],
    )
    def test_a_change_asked_for_again_under_its_key_is_made_once(
        self, server: LocalServer, request_: str, body: dict[str, Any], other: str
    ) -> None:
        session = start_sample_session(server.sessions)
        url, leaf = session_url(session), str(session.leaf)
        body = {**body, "leaf": leaf} if "fork" not in request_ else body
        headers = {**CHANGE_HEADERS, "idempotency-key": "mail-17"}

        def ask(path: str, body: dict[str, Any]) -> Any:
            return server.client.post(path.format(url), json=body, headers=headers)

        first = ask(request_, body)
        facts = session.row.facts
        assert first.is_success, first.text
        assert ask(request_, body).json() == first.json()
        assert session.row.facts == facts
        assert (ask(other, {}).json()["code"], session.row.facts) == ("key_reused", facts)

    def test_redo_and_uncompact_are_made_once_under_a_key(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        headers = {**CHANGE_HEADERS, "idempotency-key": "again"}
        for before, verb in (("undo", "redo"), ("compact", "uncompact")):
            server.post(f"{session_url(session)}/{before}")
            headers["idempotency-key"] = verb
            replies = [
                server.client.post(f"{session_url(session)}/{verb}", json={}, headers=headers)
                for _ in range(2)
            ]
            assert replies[0].is_success, replies[0].text
            assert replies[0].json() == replies[1].json()

    def test_a_text_over_http_is_a_text_and_names_no_file(self, server: LocalServer, tmp_path: Path) -> None:
        (tmp_path / "new.txt").write_text("Be strict.")
        session = start_sample_session(server.sessions)
        for text in (f"@{tmp_path}/new.txt", f"{tmp_path}/new.txt", " Be strict.\r\n\n"):
            forked = server.post(f"{session_url(session)}@4/fork", {"prompt": text}, 201)["session"]
            assert server.sessions.session(forked["id"]).context().system == (text,)

    def test_a_secret_in_an_id_is_refused_and_finds_nothing(self, server: LocalServer) -> None:
        key = "ghp_" + "a1B2" * 9
        for body in ({"owner": key}, {"conversation_id": key}, {"session_id": key}):
            refused = server.post("/api/sessions", body, 400)
            assert refused["code"] == "secret_in_name"
            assert key not in str(refused)
        assert server.get(f"/api/sessions?query=owner:{key}")["sessions"] == []
        assert server.get(f"/api/sessions?query=conversation:{key}")["sessions"] == []

    def test_a_session_started_over_http_records_the_workspace_of_its_caller(
        self, server: LocalServer
    ) -> None:
        workspace = {
            "working_dir": "/w",
            "active_file": "a.py",
            "selection": {"file": "a.py", "start_line": 1, "end_line": 2},
            "git_ref": "trunk",
            "fs_scope_tier": "project",
            "variables": {"who": "Ann"},
        }
        body = {"session_id": "ses_w", "prompt": "For {{ctx.who}}.", "workspace": workspace}
        server.post("/api/sessions", body, 201)
        session = server.sessions.session("ses_w")
        assert json.loads(session.log.store.detail("ses_w").workspace or b"") == workspace
        assert session.context().system == ("For Ann.",)
        with server.watch("/api/sessions/ses_w/events", after=0) as stream:
            stream.wait(lambda: stream.data_of("started"))
        assert stream.data_of("started")[0]["data"]["workspace"] == workspace

    @pytest.mark.attack
    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"variables": {"token": "ghp_" + "a1B2" * 9}}, "variable 'token'"),
            ({"variables": {"token": 5}}, "variables"),
            ({"fs_scope_tier": "evil"}, "fs_scope_tier"),
            ({"selection": {"file": "a", "start_line": 3, "end_line": 2}}, "end_line"),
            ({"folder": "/x"}, "folder"),
            ({"working_dir": ""}, "working_dir"),
        ],
    )
    def test_a_workspace_that_is_wrong_or_holds_a_secret_starts_no_session(
        self, server: LocalServer, fields: dict[str, Any], problem: str
    ) -> None:
        body = {"session_id": "ses_w", "workspace": {"working_dir": "/w", **fields}}
        refused = server.post("/api/sessions", body, 400)
        assert problem in json.dumps(refused)
        assert "a1B2" not in json.dumps(refused)
        server.get("/api/sessions/ses_w", 404)

    def test_compact_uncompact_and_settings(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        answer = server.post(f"{session_url(session)}/compact", {"summary": "He asked; it is lost."})
        assert answer["compaction"]["first_kept"] == 6
        assert server.post(f"{session_url(session)}/uncompact")["cancels"] == 8
        assert server.post(f"{session_url(session)}/uncompact", {}, 409)["code"] == "nothing_to_undo"
        assert (
            server.post(f"{session_url(session)}/compact", {"summary": " "}, 400)["code"] == "invalid_summary"
        )
        server.post(f"{session_url(session)}/settings", {"prompt": "Be brief.", "tools": ["track"]})
        settings = server.get(session_url(session))["settings"]
        assert (settings["prompt"], settings["tools"]) == ("Be brief.", ["track"])
        widened = server.post(f"{session_url(session)}/settings", {"tools": ["track", "refund"]}, 400)
        assert widened["code"] == "tools_not_allowed"
        assert "may use track" in widened["detail"]

    def test_options_hold_from_where_they_are_set_and_a_wrong_one_changes_nothing(
        self, server: LocalServer
    ) -> None:
        session = start_sample_session(server.sessions)
        url = session_url(session)
        server.post(f"{url}/settings", {"options": {"temperature": 0, "seed": 7}})
        assert server.get(url)["settings"]["options"] == {"temperature": 0, "seed": 7}
        forked = server.post(f"{url}/fork", {"options": {"seed": None}}, 201)["session"]["id"]
        assert server.get(f"/api/sessions/{forked}")["settings"]["options"] == {"temperature": 0}
        session.refresh()
        before = session.leaf
        for path in ("settings", "fork"):
            refused = server.post(f"{url}/{path}", {"options": {"temperature": 9}}, 400)
            assert refused["code"] == "invalid_option"
            assert "temperature=9 is invalid" in refused["detail"]
        session.refresh()
        assert session.leaf == before

    def test_compact_makes_its_summary_without_a_model_as_the_library_does(self, server: LocalServer) -> None:
        here, there = (
            server.sessions.start(seeds=[user("q " * 400), assistant("a " * 400)]) for _ in range(2)
        )
        for session in (here, there):
            session.append([user("one " * 200), assistant("1"), user("two"), assistant("2")])
        compaction = server.post(f"{session_url(here)}/compact", {})["compaction"]
        assert compaction["summary"] == there.compact().summary

    def test_nothing_is_moved_while_somebody_drives(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        session.append([user("x")])
        now = server.sessions.runtime.now()
        session.log.store.lease(session.session_id, "elsewhere:7#1", now + 10**12, now)
        for verb, body in (
            ("@2/rewind", {}),
            ("/undo", {}),
            ("/settings", {"prompt": "x"}),
            ("/compact", {"summary": "x"}),
            ("/send", {"text": "x"}),
        ):
            reply = server.client.post(f"{session_url(session)}{verb}", json=body, headers=CHANGE_HEADERS)
            assert (reply.status_code, reply.json()["code"]) == (409, "session_running"), verb
        assert server.change("DELETE", session_url(session), status=409)["code"] == "session_running"
        queued = server.post(f"{session_url(session)}/send", {"text": "later", "queue": True}, 202)
        assert queued["queued"] == 1
        assert server.get(session_url(session))["queued"] == 1


@oakleaf.tool(effect="unsafe", approval=True)
def refund(order: int) -> dict[str, int]:
    """Pay it back."""
    return {"refunded": order}


def say_next(*lines: Any) -> ScriptedModel:
    """Says the line that comes after what was said already."""
    return ScriptedModel(
        lambda request: lines[sum(item.message.role == "assistant" for item in request.context.items)]
    )


@oakleaf.tool(effect="idempotent")
async def delegate(order: int, ctx: oakleaf.ToolContext) -> str:
    """Have a child pay it back."""
    asks = assistant(ToolCall("r", "refund", {"order": order}))
    return await ctx.task("Pay it back.", models=[say_next(asks, "It is paid back.")], tools=[refund])


DELEGATES = assistant(ToolCall("d1", "delegate", {"order": 1}), ToolCall("d2", "delegate", {"order": 2}))


TOKEN, CLIENT_TOKEN = "operator" * 4, "ann" * 8


class TestEffectsOfOtherPaths:
    """A server whose tool pays: what a fork or a rewind leaves behind, and who may have it repeated."""

    @pytest.fixture
    def paid(self) -> list[int]:
        return []

    @pytest.fixture
    def paying(self, store: Store, paid: list[int]) -> Any:
        @oakleaf.tool
        def pay(order: int) -> str:
            """Pays."""
            paid.append(order)
            return f"paid {order}"

        asks = assistant(ToolCall("p", "pay", {"order": 41}))
        agent = ServerAgent((say_next(asks, "Paid."),), (pay,))
        with LocalServer(store, agent, token=TOKEN, client_tokens={"ann": CLIENT_TOKEN}) as server:
            server.client.headers["authorization"] = f"Bearer {TOKEN}"
            yield server

    def paid_session(self, server: LocalServer, store: Store) -> Session:
        session = store.start(owner="ann")
        server.post(f"{session_url(session)}/send", {"text": "pay"}, 202)
        wait_until(lambda: session.row.status == "idle" and session.row.holder is None)
        return session

    def test_a_move_says_what_it_leaves_and_the_same_call_waits_with_its_result(
        self, paying: LocalServer, store: Store, paid: list[int]
    ) -> None:
        session = self.paid_session(paying, store)
        url = session_url(session)
        for moved in (paying.post(f"{url}@0/fork", {}, 201), paying.post(f"{url}/undo")):
            (left,) = moved["left_behind"]
            assert (left["name"], left["arguments"], left["session"]) == (
                "pay",
                {"order": 41},
                session.session_id,
            )
            assert left["content"] == [{"type": "text", "text": "paid 41"}]
        paying.post(f"{url}/send", {"text": "pay again"}, 202)
        wait_until(lambda: session.row.status == "waiting" and session.row.holder is None)
        (pending,) = paying.get(url)["pending_approvals"]
        assert (pending["earlier"], paid) == (left, [41])
        approve(paying, session, f"{session.session_id}@{pending['seq']}.0")
        wait_until(lambda: session.row.status == "idle" and session.row.holder is None)
        assert paid == [41, 41]

    @pytest.mark.parametrize(("effects", "count"), [("repeat", 2), ("reuse", 1)])
    @pytest.mark.parametrize("where", ["settings", "send"])
    def test_the_operator_decides_beforehand(
        self, paying: LocalServer, store: Store, paid: list[int], where: str, effects: str, count: int
    ) -> None:
        session = self.paid_session(paying, store)
        given = {"effects": effects}
        fork = store.session(paying.post(f"{session_url(session)}@0/fork", {}, 201)["session"]["id"])
        if where == "settings":
            paying.post(f"{session_url(fork)}/settings", given)
        paying.post(f"{session_url(fork)}/send", {"text": "pay"} | (given if where == "send" else {}), 202)
        wait_until(lambda: fork.row.status == "idle" and fork.row.holder is None)
        assert len(paid) == count
        assert paying.get(session_url(fork))["settings"]["effects"] == effects

    @pytest.mark.attack
    def test_a_client_cannot_have_a_payment_repeated(
        self, paying: LocalServer, store: Store, paid: list[int]
    ) -> None:
        session = self.paid_session(paying, store)
        session.refresh()
        session.undo()
        headers = {**CHANGE_HEADERS, "authorization": f"Bearer {CLIENT_TOKEN}"}
        body = {"text": "pay", "effects": "repeat"}
        reply = paying.client.post(f"{session_url(session)}/send", json=body, headers=headers)
        assert reply.status_code == 202
        wait_until(lambda: session.row.status == "waiting" and session.row.holder is None)
        assert (paid, session.row.status) == ([41], "waiting")

    def test_what_is_no_decision_is_refused(self, paying: LocalServer, store: Store) -> None:
        session = store.start()
        for verb, body in (("settings", {}), ("send", {"text": "hi"})):
            refused = paying.post(f"{session_url(session)}/{verb}", {**body, "effects": "never"}, 400)
            assert "never" in refused["detail"]


class TestRunning:
    def test_an_input_sent_again_with_its_idempotency_key_is_there_once(self, store: Store) -> None:
        model = ScriptedModel([Broken("away"), "Hello.", "More."])
        agent = ServerAgent((model,), limits=Limits(tries=1))
        with LocalServer(store, agent) as server:
            session = store.start()

            def send(key: str, text: str = "hi", status: int = 202) -> Any:
                headers = {**CHANGE_HEADERS, "idempotency-key": key}
                body = json.dumps({"text": text, "queue": True})
                reply = server.client.post(f"{session_url(session)}/send", content=body, headers=headers)
                assert reply.status_code == status, reply.text
                return reply.json()

            first = send("mail-1")
            wait_until(lambda: session.row.status == "failed" and session.row.holder is None)
            assert send("mail-1") == first, "its turn is open and goes on"
            wait_until(lambda: session.row.status == "idle" and session.row.holder is None)
            before = read_everything(store.backend, session.session_id)
            assert send("mail-1") == first, "its turn has ended"
            assert read_everything(store.backend, session.session_id) == before
            assert [entry.message.text for entry in store.session(session.session_id).path()] == [
                "hi",
                "Hello.",
            ]
            assert send("~mine", status=400)["code"] == "invalid_argument"
            assert send("mail-1", "another text", status=422)["code"] == "key_reused"
            send("mail-2", "more")
            wait_until(
                lambda: session.row.leaf.seq == 4 and not server.get(session_url(session))["is_running_here"]
            )
            session.enqueue("queued first")
            assert send("mail-3", "later", status=409)["code"] == "inputs_queued"
            assert session.row.leaf.seq == 4, "what is refused is not stored"

    def test_options_are_sent_with_an_input_and_those_of_the_server_fill_what_is_missing(
        self, store: Store
    ) -> None:
        model = ScriptedModel(["one", "two"])
        with LocalServer(store, ServerAgent((model,), options={"temperature": 1, "seed": 7})) as server:
            session = store.start()
            url = session_url(session)
            refused = server.post(f"{url}/send", {"text": "q", "options": {"temperature": 9}}, 400)
            assert refused["code"] == "invalid_option"
            server.post(f"{url}/send", {"text": "q", "options": {"temperature": 0}}, 202)
            wait_until(lambda: session.row.status == "idle" and session.row.holder is None)
            server.post(f"{url}/send", {"text": "r"}, 202)
            wait_until(lambda: len(model.requests) == 2)
        options = [request.context.settings.options for request in model.requests]
        assert options == [{"temperature": 0, "seed": 7}] * 2

    def test_an_input_is_durable_when_send_answers_and_is_answered(self, store: Store) -> None:
        with LocalServer(store, ServerAgent((ScriptedModel(["Hello."]),))) as server:
            session = store.start()
            answer = server.post(f"{session_url(session)}/send", {"text": "hi"}, 202)
            assert session.log.store.path(session.session_id).entries[0].message == user("hi")
            wait_until(lambda: session.row.status == "idle" and session.row.leaf.seq == 2)
            assert answer["last_fact"] == 1
            server.post(f"{session_url(session)}/send", {"text": "  "}, 400)
            assert server.post(f"{session_url(session)}/resume", {}, 409)["code"] == "nothing_open"

    def test_a_send_records_its_trigger_and_policy(self, store: Store) -> None:
        with LocalServer(store, ServerAgent((ScriptedModel(["Hello."]),))) as server:
            session = store.start()
            about = {"trigger": {"type": "email", "id": "1"}, "policy": {"refunds": "ask"}}
            server.post(f"{session_url(session)}/send", {"text": "hi", **about}, 202)
            wait_until(lambda: session.row.status == "idle" and session.row.leaf.seq == 2)
            (started,) = [fact.data for fact in session.journal() if fact.kind == "turn_started"]
            assert {name: started[name] for name in about} == about
            bad = {"text": "hi", "trigger": {"id": "1"}}
            assert server.post(f"{session_url(session)}/send", bad, 400)["code"] == "invalid_argument"

    def test_without_a_model_nothing_is_sent(self, server: LocalServer) -> None:
        session = server.sessions.start()
        assert server.post(f"{session_url(session)}/send", {"text": "hi"}, 400)["code"] == "model_unavailable"
        assert session.row.leaf.seq == 0

    def test_a_run_is_cancelled_and_stays_valid(self, store: Store) -> None:
        with LocalServer(store, ServerAgent((ScriptedModel([Slow(30, "late"), "next"]),))) as server:
            session = store.start()
            server.post(f"{session_url(session)}/send", {"text": "hi"}, 202)
            assert server.get(session_url(session))["is_running_here"]
            assert (
                server.post(f"{session_url(session)}/send", {"text": "again"}, 409)["code"]
                == "session_running"
            )
            assert server.post(f"{session_url(session)}/cancel")["cancelled"]
            wait_until(lambda: session.row.status == "cancelled")
            wait_until(lambda: not server.get(session_url(session))["is_running_here"])
            assert not server.post(f"{session_url(session)}/cancel")["requested"]
            assert store.session(session.session_id).verify() == []

    def test_a_run_elsewhere_is_cancelled_too(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease, "TICK_SECONDS", 0.02)
        session = store.start()
        model = ScriptedModel([Slow(30, "late")])
        elsewhere = threading.Thread(target=lambda: session.send_sync("hi", model=model))
        elsewhere.start()
        with LocalServer(store, ServerAgent((model,))) as server:
            wait_until(lambda: session.row.status == "running")
            assert server.post(f"{session_url(session)}/cancel")["cancelled"]
            wait_until(lambda: session.row.status == "cancelled")
        elsewhere.join()
        assert session.verify() == []

    def test_a_call_that_waits_is_approved_or_denied_once(self, store: Store) -> None:
        calls = assistant(ToolCall("c1", "refund", {"order": 1}), ToolCall("c2", "refund", {"order": 2}))
        with LocalServer(store, ServerAgent((ScriptedModel([calls, "Done."]),), (refund,))) as server:
            session = store.start()
            server.post(f"{session_url(session)}/send", {"text": "refund both"}, 202)
            wait_until(
                lambda: (
                    len(
                        [
                            c
                            for c in server.get(session_url(session))["open_tool_calls"]
                            if c["state"] == "waits_for_approval"
                        ]
                    )
                    == 2
                )
            )
            wait_until(lambda: not server.get(session_url(session))["is_running_here"])
            more = {"text": "something else"}
            refused = server.post(f"{session_url(session)}/send", more, 409)
            assert (refused["code"], session.row.leaf.seq) == ("approval_pending", 3)
            first, second = (f"{session.session_id}@3.{index}" for index in range(2))
            assert approve(server, session, first)["pending"] == 1
            assert approve(server, session, first, status=409)["code"] == "not_waiting"
            assert approve(server, session, second, deny=True)["resumed"]
            wait_until(lambda: store.session(session.session_id).leaf.seq == 6)
            results = [
                r for e in store.session(session.session_id).path() if e.message for r in e.message.results
            ]
            assert sorted(r.outcome for r in results) == ["denied", "done"]

    def test_an_approval_by_a_server_without_the_tool_only_records_it_and_the_one_with_it_runs_the_call(
        self, store: Store
    ) -> None:
        calls = assistant(ToolCall("c1", "refund", {"order": 1}))
        model = say_next(calls, "Done.")
        session = store.start()
        session.send_sync("refund it", model=model, tools=[refund])
        with LocalServer(store, ServerAgent((model,))) as server:
            answer = approve(server, session, f"{session.session_id}@3.0")
            assert (answer["pending"], answer["resumed"]) == (0, False)
            problem = server.post(f"{session_url(session)}/resume", {}, 409)
            assert (problem["code"], "refund" in problem["detail"]) == ("tools_missing", True)
        again = store.session(session.session_id)
        assert [call.call.id for call in again.open_tool_calls] == ["c1"]
        with pytest.raises(ToolsMissing, match="refund"):
            again.resume_sync(model=model)
        assert again.row.status == "waiting"
        assert again.resume_sync(model=model, tools=[refund]).text == "Done."
        assert [result.outcome for e in again.path() if e.message for result in e.message.results] == ["done"]

    @pytest.mark.attack
    def test_what_an_import_left_open_runs_once_it_is_accepted(self, store: Store) -> None:
        with Store(MemoryStore()) as elsewhere:
            theirs = elsewhere.start()
            theirs.append([user("q"), assistant(ToolCall("c1", "pay", {"n": 1}))])
            theirs.enqueue("and everybody else")
            bundle = io.BytesIO()
            theirs.export(bundle)
        paid: list[int] = []

        @oakleaf.tool
        def pay(n: int) -> str:
            paid.append(n)
            return "paid"

        model = ScriptedModel(["Paid.", "Done."])
        with LocalServer(store, ServerAgent((model,), (pay,))) as server:
            upload(server, bundle)
            address = session_url(theirs)
            assert server.get(address)["open_tool_calls"][0]["state"] == "not_accepted"
            for verb, body in (("resume", {}), ("send", {"text": "mine"})):
                refused = server.post(f"{address}/{verb}", body, 409)
                assert refused["code"] == "import_not_accepted"
                assert "accept_imported" in refused["hint"]
            assert [queued["text"] for queued in refused["plan"]["inputs"]] == ["and everybody else"]
            plan = server.post(f"{address}/resume", {}, 409)["plan"]
            assert [(call["name"], call["arguments"]) for call in plan["calls"]] == [("pay", {"n": 1})]
            assert paid == []
            server.post(f"{address}/resume", {"accept_imported": True}, 202)
            wait_until(lambda: store.session(theirs.session_id).transcript()[-1].message.text == "Done.")
        assert paid == [1]

    @pytest.mark.attack
    def test_an_approval_inside_a_bundle_is_shown_and_asked_again(self, store: Store) -> None:
        with Store(MemoryStore()) as elsewhere:
            theirs = elsewhere.start()
            theirs.append([user("q"), assistant(ToolCall("c1", "refund", {"order": 1}))])
            theirs.log.record(ApprovalRequested(2, 0))
            theirs.log.record(Approved(2, 0))
            bundle = io.BytesIO()
            theirs.export(bundle)
        with LocalServer(store, ServerAgent((ScriptedModel(["Done."]),), (refund,))) as server:
            upload(server, bundle)
            (pending,) = server.get(session_url(theirs))["pending_approvals"]
            assert pending["decided_elsewhere"] == "approved"
            assert approve(server, theirs, f"{theirs.session_id}@2.0")["resumed"]

    @pytest.mark.parametrize("asked_at", ["parent", "child"])
    def test_a_call_that_waits_in_a_task_is_told_and_approved_wherever_one_stands_and_the_parent_goes_on(
        self, store: Store, asked_at: str
    ) -> None:
        with LocalServer(store, ServerAgent((say_next(DELEGATES, "Done."),), (delegate,))) as server:
            session = send_to_both(server, store)
            read = server.get(session_url(session))
            listed = server.get("/api/sessions?query=status:waiting")["sessions"]
            assert [row["id"] for row in listed] == [session.session_id]
            assert [call["state"] for call in read["open_tool_calls"]] == ["waits_for_task", "waits_for_task"]
            children = {child.session_id for child in tasks_of(session)}
            assert {approval["session_id"] for approval in read["pending_approvals"]} == children
            calls = [
                (a["name"], a["arguments"], a["seq"], a["index"], a["parent_call"])
                for a in read["pending_approvals"]
            ]
            assert calls == [("refund", {"order": n + 1}, 3, 0, {"seq": 3, "index": n}) for n in range(2)]

            for remaining, approval in zip((1, 0), read["pending_approvals"], strict=True):
                child = store.session(approval["session_id"])
                asked = child if asked_at == "child" else session
                answer = approve(server, asked, f"{child.session_id}@3.0")
                assert (answer["pending"], answer["resumed"]) == (remaining, not remaining)
            wait_until(lambda: store.session(session.session_id).leaf.seq == 6)
            wait_until(lambda: not server.get(session_url(session))["is_running_here"])
            results = [
                r for e in store.session(session.session_id).path() if e.message for r in e.message.results
            ]
            assert [r.content[0].text for r in results] == ["It is paid back."] * 2
            assert [child.row.status for child in tasks_of(session)] == ["idle", "idle"]
            assert server.get(session_url(session))["pending_approvals"] == []

    def test_a_word_to_the_call_above_is_refused_and_says_what_to_name(self, store: Store) -> None:
        with LocalServer(store, ServerAgent((say_next(DELEGATES, "Done."),), (delegate,))) as server:
            session = send_to_both(server, store)
            stranger = start_sample_session(store)
            for other in (session, stranger):
                refused = approve(server, session, f"{other.session_id}@3.0", status=409)
                assert (refused["code"], "lists the calls that wait" in refused["hint"]) == (
                    "not_waiting",
                    True,
                )

    def test_a_task_in_the_trash_is_told_and_resume_says_what_helps(self, store: Store) -> None:
        with LocalServer(store, ServerAgent((say_next(DELEGATES, "Done."),), (delegate,))) as server:
            session = send_to_both(server, store)
            children = [child.session_id for child in tasks_of(session)]
            for child in children:
                store.delete(child)
            read = server.get(session_url(session))
            assert [call["state"] for call in read["open_tool_calls"]] == ["task_in_trash", "task_in_trash"]
            assert read["pending_approvals"] == []
            refused = server.post(f"{session_url(session)}/resume", {}, 409)
            assert any(f"oakleaf restore {child}" in refused["hint"] for child in children)

    def test_a_task_with_a_word_goes_on_with_resume_and_is_not_unknown(self, store: Store) -> None:
        with LocalServer(store, ServerAgent((say_next(DELEGATES, "Done."),), (delegate,))) as server:
            session = send_to_both(server, store)
            for approval in server.get(session_url(session))["pending_approvals"]:
                call = f"{approval['session_id']}@3.0"
                assert not approve(server, session, call, deny=True, resume=False)["resumed"]
            read = server.get(session_url(session))
            assert [call["state"] for call in read["open_tool_calls"]] == ["task_decided", "task_decided"]
            server.post(f"{session_url(session)}/resume", {}, 202)
            wait_until(lambda: store.session(session.session_id).leaf.seq == 6)

    def test_a_word_that_comes_while_a_sibling_runs_is_taken_up_by_the_run(self, store: Store) -> None:
        ended = threading.Event()

        @oakleaf.tool(effect="read")
        def dig() -> str:
            """Takes its time."""
            return str(ended.wait(20))

        calls = assistant(ToolCall("c1", "delegate", {"order": 1}), ToolCall("c2", "dig"))
        with LocalServer(store, ServerAgent((say_next(calls, "Done."),), (delegate, dig))) as server:
            session = store.start()
            server.post(f"{session_url(session)}/send", {"text": "both"}, 202)
            wait_until(lambda: len(server.get(session_url(session))["pending_approvals"]) == 1)
            (approval,) = server.get(session_url(session))["pending_approvals"]
            answer = approve(server, session, f"{approval['session_id']}@3.0")
            assert (answer["pending"], answer["resumed"]) == (0, False)
            ended.set()
            wait_until(lambda: store.session(session.session_id).leaf.seq == 6)

    @pytest.mark.parametrize("name", ["refund", "delegate"])
    def test_a_word_given_the_moment_it_is_asked_for_is_never_lost(self, store: Store, name: str) -> None:
        """A run that is about to rest when the word comes has looked for it already."""
        calls = assistant(ToolCall("c1", name, {"order": 1}))
        with LocalServer(store, ServerAgent((say_next(calls, "Done."),), (refund, delegate))) as server:
            for _ in range(8):
                session = store.start()
                server.post(f"{session_url(session)}/send", {"text": "refund it"}, 202)
                wait_until(lambda at=session: at.pending_approvals())
                (approval,) = session.pending_approvals()
                approve(server, session, f"{approval.session_id}@{approval.seq}.0")
                wait_until(lambda at=session: store.session(at.session_id).leaf.seq == 5)

    def test_a_limit_is_told_and_its_input_is_not_stored(self, store: Store) -> None:
        limits = oakleaf.Limits(turns=1)
        with LocalServer(store, ServerAgent((ScriptedModel(["a", "b"]),), (), limits)) as server:
            session = store.start()
            server.post(f"{session_url(session)}/send", {"text": "one"}, 202)
            wait_until(lambda: store.session(session.session_id).leaf.seq == 2)
            wait_until(lambda: not server.get(session_url(session))["is_running_here"])
            assert server.post(f"{session_url(session)}/send", {"text": "two"}, 409)["code"] == "turn_limit"
            assert store.session(session.session_id).leaf.seq == 2

    def test_a_replay_is_not_driven_on(self, store: Store) -> None:
        session = start_sample_session(store)
        report = asyncio.run(session.replay())
        with LocalServer(store, ServerAgent((ScriptedModel(["a"]),))) as server:
            assert (
                server.post(f"/api/sessions/{report.replay}/send", {"text": "x"}, 409)["code"]
                == "session_is_replay"
            )


class TestReplayAndDiff:
    def test_a_replay_is_a_job_with_a_report(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        job = server.post(f"{session_url(session)}/replays", {}, 202)["job"]
        with server.watch(f"/api/jobs/{job['id']}/events") as stream:
            stream.wait(lambda: stream.data_of("end"))
            (end,) = stream.data_of("end")
        assert (end["status"], end["report"]["same"], end["report"]["mode"]) == ("done", True, "dry")
        assert server.get(f"/api/jobs/{job['id']}")["job"] == end
        same = server.get("/api/diff", a=session.session_id, b=end["report"]["replay"])
        assert (same["same"], same["next"]) == (True, None)
        assert server.get("/api/jobs/none", 404)["code"] == "no_job"
        server.post(f"{session_url(session)}/replays", {"mode": "live"}, 400)
        failed = server.post(f"{session_url(session)}/replays", {"start": 99}, 202)["job"]["id"]
        wait_until(lambda: server.get(f"/api/jobs/{failed}")["job"]["status"] == "failed")
        assert server.get(f"/api/jobs/{failed}")["job"]["problem"]["code"] == "invalid_position"

    def test_a_diff_tells_the_first_divergence(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        fork = session.fork(at=2)
        fork.append([assistant("It is here.")])
        fork.append([user("Thanks")])
        diff = server.get("/api/diff", a=session.session_id, b=fork.session_id, limit=1)
        assert (diff["same"], diff["shared"], len(diff["rows"])) == (False, 2, 1)
        assert diff["counts"] == {diff["rows"][0]["kind"]: 1}
        rest = server.get("/api/diff", a=session.session_id, b=fork.session_id, limit=1, page=diff["next"])
        assert (rest["rows"][0]["input"], rest["next"]) == ("Thanks", None)
        for wrong in ("x", "1", "1-2-3"):
            problem = server.get("/api/diff", 400, a=session.session_id, b=fork.session_id, page=wrong)
            assert problem["code"] == "invalid_argument"
        place = f"{session.session_id}@{session.log.leaf_at(2)}"
        assert server.get("/api/diff", a=place, b=f"{fork.session_id}@2")["same"]
        server.get("/api/diff", 404, a=session.session_id, b="ses_none")
        server.get("/api/diff", 400, a=session.session_id)


class TestUsageAndSearch:
    def test_usage_of_a_session_and_of_the_space(self, store: Store) -> None:
        session = store.start("support")
        session.send_sync("hi", model=ScriptedModel(["there"], model="m1"))
        with LocalServer(store) as server:
            name = session.session_id
            own = server.get("/api/usage", session=name, by="model")
            assert (own["total"]["calls"], own["usage"][0]["name"]) == (1, "m1")
            assert server.get("/api/usage", session=name, view="path", since="2")["total"]["calls"] == 0
            assert server.get("/api/usage", session=f"{name}@1", view="path")["total"]["calls"] == 0
            assert server.get("/api/usage", 400, session=name, view="all")["code"] == "invalid_argument"
            store.delete(name)
            assert server.get("/api/usage")["total"] == own["total"]
            space = server.get("/api/usage/days")
            assert space["total"] == own["total"]
            assert [row["name"] for row in space["agents"]] == ["support"]
            assert space["days"][0]["name"].startswith("20")
            assert server.get("/api/usage", since="2100-01-01")["total"]["calls"] == 0

    def test_storage_is_what_its_own_branches_hold(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        storage = server.get(f"{session_url(session)}/storage")
        assert (storage["entries"], storage["branches"], storage["blobs"]) == (7, 1, 0)
        assert storage["bytes"] > 300

    def test_a_hit_names_the_place_that_opens_it(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        (hit,) = server.get("/api/search", query="welcome role:assistant")["hits"]
        assert hit["reference"] == f"{session.session_id}@7"
        begin, end = hit["marks"][0]
        assert hit["snippet"][begin:end].lower() == "welcome"
        assert server.get("/api/search", query="nowhere-at-all")["hits"] == []


class TestExchange:
    def test_a_bundle_goes_out_with_the_internal_token_and_comes_in_again(self, server: LocalServer) -> None:
        session = start_sample_session(server.sessions)
        address = f"/sessions/{session.session_id}/export"
        assert server.get(address, 403)["code"] == "bad_internal_token"
        out = server.client.get(address, headers={"x-internal-token": "inside"})
        direct = io.BytesIO()
        session.export(direct)
        assert out.content == direct.getvalue()
        assert out.headers["content-disposition"].endswith('.oakleaf"')
        word = session.path()[0].message.text.split()[0]
        hidden = server.client.get(f"{address}?hide={word}&hide=Ann", headers={"x-internal-token": "inside"})
        assert (hidden.status_code, f'"redacted":"{session.session_id}"' in hidden.text) == (200, True)
        assert hidden.text.count("[redacted word]") >= 1
        headers = {"x-oakleaf": "1", "content-type": "application/octet-stream"}
        again = server.client.post("/api/import", content=out.content, headers=headers)
        assert (again.status_code, again.json()["added"]) == (200, [])
        beside = server.client.post("/api/import?new_id=true", content=out.content, headers=headers)
        assert (beside.status_code, beside.json()["entries"]) == (201, 7)
        broken = server.client.post("/api/import", content=out.content[:-20], headers=headers)
        assert (broken.status_code, broken.json()["code"]) == (400, "invalid_bundle")
        assert "/tmp" not in broken.text
        assert server.client.post("/api/import", content=b"{}", headers=CHANGE_HEADERS).status_code == 415

    def test_without_an_internal_token_set_nothing_goes_out(self, store: Store) -> None:
        session = start_sample_session(store)
        with LocalServer(store) as server:
            for token in ("", "inside"):
                reply = server.client.get(
                    f"/sessions/{session.session_id}/export", headers={"x-internal-token": token}
                )
                assert (reply.status_code, reply.json()["code"]) == (403, "export_disabled")

    def test_a_bundle_larger_than_allowed_is_refused(self, store: Store) -> None:
        with LocalServer(store, max_import_bytes=1_000) as server:
            headers = {"x-oakleaf": "1", "content-type": "application/octet-stream"}
            reply = server.client.post("/api/import", content=(b"x" * 600 for _ in range(3)), headers=headers)
            assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


class TestOpenApi:
    def test_a_stranger_finds_every_address_described(self, server: LocalServer) -> None:
        schema = server.client.get("/openapi.json").json()
        assert schema["openapi"].startswith("3.")
        names = []
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                names.append(operation["operationId"])
                assert operation["summary"], (path, method)
                assert operation["tags"], (path, method)
                assert "Asynccallable" not in operation["summary"]
        assert len(set(names)) == len(names) > 40

    def test_the_description_is_valid(self, server: LocalServer) -> None:
        description = server.client.get("/openapi.json").json()
        assert [error.message for error in OpenAPIV31SpecValidator(description).iter_errors()] == []

    def test_a_client_generated_from_it_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with (
            oakleaf.open("memory:") as store,
            LocalServer(store, ServerAgent((ScriptedModel(lambda _: "ok"),))) as server,
        ):
            self._use_generated_client(server, tmp_path, monkeypatch)

    def _use_generated_client(
        self, server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        description = server.client.get("/openapi.json").content
        client = GeneratedClient(description, tmp_path, "oakleaf_client")
        monkeypatch.syspath_prepend(tmp_path)
        models, call = client.models, partial(client.call, server.url)

        body = models.StartBody(title="By a generated client", prompt="Be brief.")
        session_id = call("sessions.start_session", body=body).session.id
        call("running.send", session_id, body=models.SendBody(text="hello"))
        wait_until(lambda: call("entries.path", session_id).entries[-1].role == "assistant")
        entries = call("entries.path", session_id).entries
        assert [entry.payload["role"] for entry in entries if entry.kind == "message"][-2:] == [
            "user",
            "assistant",
        ]
        answer = call("sessions.read_session", session_id)
        assert (answer.session.title, answer.session.status) == ("By a generated client", "idle")
        assert answer.session.totals.calls == call("look.usage", session=session_id).total.calls == 1
        assert session_id in [row.id for row in call("look.ls").sessions]
        [hit] = [hit for hit in call("look.search", query="hello").hits if hit.session_id == session_id]
        assert hit.snippet == "hello"
        assert call("usage.calls", session_id, first=1, last=9).calls[0].answer_seq == entries[-1].seq
        assert call("maintain.rm", session_id, yes=True).trashed == [session_id]

    def test_whatever_is_asked_the_answer_is_as_described_and_never_a_500(self, tmp_path: Path) -> None:
        checks = (
            "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance"
        )
        with (
            oakleaf.open("memory:") as store,
            LocalServer(store, ServerAgent((ScriptedModel(lambda _: "ok"),))) as server,
        ):
            store.start(session_id="0").append([user("hi"), assistant("ho")])  # the first id that is tried
            done = subprocess.run(
                [
                    Path(sys.executable).with_name("st"),
                    *("run", f"{server.url}/openapi.json", "--header", "X-Oakleaf: 1", "--checks", checks),
                    *(
                        "--exclude-path-regex",
                        "events$",
                        "--phases",
                        "coverage,fuzzing" if SOAK else "coverage",
                    ),
                    *("--max-examples", "3", "--seed", "7", "--no-color"),
                ],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        assert done.returncode == 0, done.stdout[-4_000:]


def test_an_agent_may_have_a_source_of_tools() -> None:
    call = ToolCall("c1", "look", {"place": "the cellar"})
    agent = ServerAgent(models=(ScriptedModel([assistant(call), "done"]),), tools=(Shop(),))
    with oakleaf.open("memory:") as store, LocalServer(store, agent) as server:
        session = store.start()
        server.post(f"/api/sessions/{session.session_id}/send", {"text": "go"}, 202)
        wait_until(lambda: session.refresh().status in ("idle", "failed"))
        results = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert [result.content for result in results] == [(oakleaf.Text("nothing in the cellar"),)]


class TestWhoDecides:
    """The name of a decision is that of the token's holder. A name in the body counts only where the operator says so."""

    def decide(self, store: Store, body: dict[str, Any], sent: str | None, **access: Any) -> tuple[int, Any]:
        session = store.start()
        model = ScriptedModel([assistant("I refund.", ToolCall("r1", "refund", {"order": 1}))])
        session.send_sync("Refund", model=model, tools=with_approval([refund], True))
        headers = {**CHANGE_HEADERS, **({} if sent is None else {"authorization": f"Bearer {sent}"})}
        with LocalServer(store, **access) as server:
            url = f"{session_url(session)}/approve"
            reply = server.client.post(url, json={"yes": True, **body}, headers=headers)
        facts = [stored.fact for stored in session.journal()]
        return reply.status_code, [
            (one.by, one.reason, one.surface) for one in facts if isinstance(one, Approved)
        ] or reply.json()

    def test_the_holder_of_a_persons_token_decides(self, store: Store) -> None:
        access: dict[str, Any] = {"token": "service", "persons": {"ann": "hers"}}
        done = self.decide(store, {"reason": "agreed"}, "hers", **access)
        assert done == (200, [("ann", "agreed", "HTTP")])
        assert self.decide(store, {"by": "ann"}, "hers", **access) == (200, [("ann", None, "HTTP")])

    def test_a_service_without_a_word_of_the_operator_names_nobody(self, store: Store) -> None:
        assert self.decide(store, {}, "service", token="service") == (200, [(None, None, "HTTP")])
        status, refused = self.decide(store, {"by": "ann"}, "service", token="service")
        assert (status, refused["code"]) == (403, "name_refused")
        assert "the token is of nobody by name" in refused["detail"]
        status, refused = self.decide(store, {"by": "ann"}, None)
        assert (status, refused["code"]) == (403, "name_refused")

    @pytest.mark.attack
    def test_a_person_decides_in_no_other_name(self, store: Store) -> None:
        access: dict[str, Any] = {"token": "service", "persons": {"ann": "hers"}, "accepts_names": True}
        status, refused = self.decide(store, {"by": "bob"}, "hers", **access)
        assert (status, refused["code"]) == (403, "name_refused")
        assert "the token is of ann" in refused["detail"]

    def test_a_service_that_knows_its_users_names_them(self, store: Store) -> None:
        access: dict[str, Any] = {"token": "service", "accepts_names": True}
        assert self.decide(store, {"by": "bob"}, "service", **access) == (200, [("bob", None, "HTTP")])
