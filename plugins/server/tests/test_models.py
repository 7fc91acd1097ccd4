"""Who answers over HTTP: only models that the operator offers. No body and no stored session names another."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, Store, ToolCall, user
from oakleaf.models.names import model_by_name
from oakleaf.wire import PROVIDERS
from oakleaf_server.context import ServerAgent
from support.fake_providers import FakeProviders, forbids_calls, sent_tools
from support.processes import wait_until
from support.server import CHANGE_HEADERS, LocalServer

KEY = "sk-very-secret-0123456789"


def answering(name: str, text: str) -> ScriptedModel:
    return ScriptedModel(lambda _: text, model=name)


@pytest.fixture
def store() -> Iterator[Store]:
    with oakleaf.open("memory:") as opened:
        yield opened


@pytest.fixture
def server(store: Store) -> Iterator[LocalServer]:
    agent = ServerAgent(
        (answering("own", "From the agent."),), offered=(answering("other", "From the other."),)
    )
    with LocalServer(store, agent, token="T", client_tokens={"ann": "A"}) as running:
        yield running


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProviders]:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,0.0.0.0")
    with FakeProviders() as running:
        yield running


def foreign_name(server: FakeProviders) -> str:
    return f"openai-chat:m@{server.url_for('openai-chat').replace('127.0.0.1', '0.0.0.0')}"


def answer(store: Store, session_id: str, seq: int) -> str:
    wait_until(lambda: store.session(session_id).leaf.seq == seq)
    return store.session(session_id).path()[-1].message.text


NAMES = ("scripted:/etc/shadow", "scripted:/dev/zero", "anthropic:m")
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/api/sessions", {}),
    ("/api/sessions/ses_x/send", {"text": "hi"}),
    ("/api/sessions/ses_open/resume", {}),
    ("/api/sessions/ses_x/settings", {}),
    ("/api/sessions/ses_x/fork", {}),
    ("/api/sessions/ses_x/replays", {}),
]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_server_without_tools_continues_a_history_with_calls(
    store: Store, stranger: FakeProviders, provider: str
) -> None:
    session = store.start(session_id="ses_x")
    called = [
        oakleaf.assistant(ToolCall("c", "look")),
        oakleaf.tool_result("c", "lost"),
        oakleaf.assistant("a"),
    ]
    session.append([user("q"), *called])
    agent = ServerAgent((model_by_name(f"{provider}:m@{stranger.url_for(provider)}"),))
    with LocalServer(store, agent) as server:
        server.post("/api/sessions/ses_x/send", {"text": "And now?"}, 202)
        wait_until(lambda: store.session("ses_x").transcript()[-1].message.text == "ok")
    (request,) = stranger.requests
    assert request.problems == []
    assert [name for name, _ in sent_tools(provider, request.body)] == ["look"]
    assert forbids_calls(provider, request.body)


@pytest.mark.attack
class TestOfABody:
    @pytest.mark.parametrize(("path", "body"), ROUTES)
    def test_only_an_offered_model_is_taken(
        self, server: LocalServer, stranger: FakeProviders, path: str, body: dict[str, Any]
    ) -> None:
        server.sessions.start(session_id="ses_x").append([user("q"), oakleaf.assistant("a")])
        server.sessions.start(session_id="ses_open").append([user("q")])
        before = {row.session_id: row.facts for row in server.sessions.all_sessions()}
        names = (*NAMES, foreign_name(stranger), f"openai-chat:m@{stranger.url}/v1")
        for model in names:
            refused = server.post(path, {**body, "model": model}, 400, token="T")
            assert refused["code"] == "model_refused"
            text = f"{refused['detail']} {refused['hint']}"
            assert all(word in text for word in (model, "own, other", "--offer"))
        assert stranger.requests == []
        assert {row.session_id: row.facts for row in server.sessions.all_sessions()} == before

    def test_one_of_a_chain_for_a_replay_is_refused_too(self, server: LocalServer) -> None:
        server.sessions.start(session_id="ses_x").append([user("q"), oakleaf.assistant("a")])
        body = {"model": ["own", "scripted:/etc/shadow"]}
        assert server.post("/api/sessions/ses_x/replays", body, 400, token="T")["code"] == "model_refused"


@pytest.mark.attack
class TestOfAStoredSession:
    @pytest.mark.parametrize("where", ["row", "setting"])
    @pytest.mark.parametrize("token", ["T", "A"])
    @pytest.mark.parametrize("kind", ["foreign", "script"])
    def test_the_agent_of_the_operator_answers(
        self, server: LocalServer, stranger: FakeProviders, where: str, token: str, kind: str, tmp_path: Path
    ) -> None:
        (tmp_path / "s.json").write_text('["From the script."]')
        name = foreign_name(stranger) if kind == "foreign" else f"scripted:{tmp_path}/s.json"
        session = server.sessions.start(
            session_id="ses_x", owner="ann", model=name if where == "row" else None
        )
        if where == "setting":
            session.set(model=name)
        server.post("/api/sessions/ses_x/send", {"text": "hi"}, 202, token=token)
        assert answer(server.sessions, "ses_x", session.leaf.seq + 2) == "From the agent."
        assert stranger.requests == []

    @pytest.mark.parametrize("where", ["row", "setting"])
    def test_without_an_agent_nobody_answers(self, store: Store, stranger: FakeProviders, where: str) -> None:
        session = store.start(session_id="ses_x", model=foreign_name(stranger) if where == "row" else None)
        if where == "setting":
            session.set(model=foreign_name(stranger))
        seq = session.leaf.seq
        with LocalServer(store) as server:
            refused = server.post("/api/sessions/ses_x/send", {"text": "hi"}, 400)
            assert (refused["code"], "--model" in refused["hint"]) == ("model_unavailable", True)
            view = server.get("/api/sessions/ses_x")
            assert view["responder"]["model"] is None
            server.post("/api/sessions/ses_x/replays", {"prompt": "Be brief."}, 400)
        assert (store.session("ses_x").leaf.seq, stranger.requests) == (seq, [])

    def test_a_replay_with_another_prompt_asks_the_agent(
        self, server: LocalServer, stranger: FakeProviders
    ) -> None:
        session = server.sessions.start(session_id="ses_x", model=foreign_name(stranger))
        session.append([user("q"), oakleaf.assistant("a")])
        body = {"prompt": "Be brief.", "mode": "recorded"}
        job = server.post("/api/sessions/ses_x/replays", body, 202, token="T")["job"]
        path = f"/api/jobs/{job['id']}"
        wait_until(lambda: server.get(path, token="T")["job"]["status"] != "running")
        done = server.get(path, token="T")["job"]
        assert (done["status"], done["report"]["model_after"], stranger.requests) == ("done", ["own"], [])


@pytest.mark.attack
def test_an_import_names_foreign_addresses(server: LocalServer) -> None:
    with oakleaf.open("memory:") as other:
        file = io.BytesIO()
        other.start(session_id="ses_x", model="gemini:m@http://evil.example").export(file)
    headers = {**CHANGE_HEADERS, "content-type": "application/octet-stream", "authorization": "Bearer T"}
    reply = server.client.post("/api/import", content=file.getvalue(), headers=headers)
    assert reply.json()["foreign_addresses"] == ["http://evil.example"], reply.text


class TestOffered:
    def test_it_is_listed_and_answers_by_name(self, server: LocalServer) -> None:
        assert server.get("/api", token="T")["models"] == ["own", "other"]
        assert server.get("/api", token="A")["models"] == []
        server.sessions.start(session_id="ses_x")
        server.post("/api/sessions/ses_x/send", {"text": "hi", "model": "other"}, 202, token="T")
        assert answer(server.sessions, "ses_x", 2) == "From the other."

    def test_a_setting_that_names_it_holds(self, server: LocalServer) -> None:
        session = server.sessions.start(session_id="ses_x")
        server.post("/api/sessions/ses_x/settings", {"model": "scripted:other"}, token="T")
        server.post("/api/sessions/ses_x/send", {"text": "hi"}, 202, token="T")
        assert answer(session and server.sessions, "ses_x", 3) == "From the other."

    def test_a_name_with_its_address_is_found(self, store: Store) -> None:
        with FakeProviders() as vendor:
            name = f"openai-chat:m@{vendor.url_for('openai-chat')}"
            offered = oakleaf.models.names.model_by_name(name)
            with LocalServer(store, ServerAgent(offered=(offered,))) as server:
                store.start(session_id="ses_x")
                assert server.get("/api")["models"] == [name]
                hint = server.post("/api/sessions/ses_x/send", {"text": "hi"}, 400)["hint"]
                assert name in hint
                server.post("/api/sessions/ses_x/send", {"text": "hi", "model": name}, 202)
                wait_until(lambda: store.session("ses_x").leaf.seq == 2)
