"""The definitions of the tools a model was given are on the path: once per distinct set, in whatever way a turn runs."""

from __future__ import annotations

import io
from typing import Any

import pytest

import oakleaf
from oakleaf import Broken, ScriptedModel, Session, Settings, ToolCall, assistant, system, tool_result, user
from oakleaf.core.context import fold_settings
from oakleaf.errors import MissingBlob
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS, find_provider
from support.fake_providers import forbids_calls, sent_tools
from support.sessions import tasks_of


@oakleaf.tool(effect="read")
def look(order: int) -> str:
    """Look an order up."""
    return f"order {order} is lost"


@oakleaf.tool(effect="unsafe")
def refund(order: int) -> str:
    """Give the money back."""
    return "refunded"


CALL = assistant(ToolCall("c", "look", {"order": 41}))


def kinds(session: Session) -> list[str]:
    return [entry.role or entry.kind for entry in session.path()]


def definitions(session: Session) -> Any:
    return fold_settings(session.path()).tool_definitions


def sent_requests(model: ScriptedModel) -> list[dict[str, Any]]:
    anthropic = find_provider("anthropic")
    return [anthropic.project(request.context, request.blobs) for request in model.requests]


def sent_names(provider: str, request: dict[str, Any]) -> list[str]:
    return [name for name, _ in sent_tools(provider, request)]


class TestPath:
    def test_they_come_before_the_first_input_and_again_only_when_they_change(self, session: Session) -> None:
        for tools in ([look], [look], [look, refund], [look, refund], [], []):
            session.send_sync("q", model=ScriptedModel(["a"]), tools=tools)
        turn = ["user", "assistant"]
        assert kinds(session) == [
            *("system", "settings", *turn, *turn, "settings", *turn, *turn, "settings", *turn, *turn)
        ]
        named = [entry.payload.tool_definitions.names for entry in session.path() if entry.kind == "settings"]
        assert named == [("look",), ("look", "refund"), ()]
        assert session.verify() == []
        assert session.row.turns == 6
        assert [entry.role for entry in session.transcript()] == turn * 6

    def test_without_tools_nothing_is_written(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel(["a"]))
        assert kinds(session) == ["system", "user", "assistant"]
        assert "tools" not in session.request("anthropic")

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_the_request_that_was_sent_is_the_request_at_its_leaf(
        self, session: Session, provider: str
    ) -> None:
        model = ScriptedModel([CALL, "It is lost."])
        session.send_sync("Where is order 41?", model=model, tools=[look, refund])
        project = find_provider(provider).project
        requests = [project(request.context, request.blobs) for request in model.requests]
        assert requests == [session.request(provider, at=at) for at in (3, 5)]
        assert all(request["tools"] for request in requests)
        assert model.requests[0].tools == (look.spec, refund.spec)

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_a_run_without_tools_sends_the_last_ones(self, session: Session, provider: str) -> None:
        session.send_sync("q", model=ScriptedModel([CALL, "It is lost."]), tools=[look])
        for model in (ScriptedModel(["a"]), ScriptedModel(["a"])):
            session.send_sync("q", model=model)
            (request,) = model.requests
            sent = find_provider(provider).project(request.context, request.blobs)
            assert sent == session.request(provider, at=session.leaf.seq - 1)
            assert (sent_names(provider, sent), forbids_calls(provider, sent)) == (["look"], True)
            assert request.tools == ()
        assert kinds(session)[6:] == ["settings", "user", "assistant", "user", "assistant"]
        model = ScriptedModel(["a"])
        session.send_sync("q", model=model, tools=[look])
        assert model.requests[0].tools == (look.spec,)

    @pytest.mark.parametrize("provider", PROVIDERS)
    def test_an_own_loop_without_definitions_names_its_calls(self, session: Session, provider: str) -> None:
        session.append([user("q"), CALL, tool_result("c", "lost")])
        request = session.request(provider)
        assert (sent_names(provider, request), forbids_calls(provider, request)) == (["look"], True)
        assert kinds(session) == ["system", "user", "assistant", "tool"]

    def test_a_turn_resumed_with_other_tools_tells_them_before_the_next_call(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([CALL, Broken("away")]), tools=[look])
        model = ScriptedModel(["done"])
        session.resume_sync(model=model, tools=[look, refund])
        assert kinds(session)[-3:] == ["tool", "settings", "assistant"]
        assert definitions(session).names == ("look", "refund")
        assert sent_requests(model) == [session.request("anthropic", at=session.leaf.seq - 1)]
        assert session.verify() == []

    def test_tools_that_are_narrowed_are_told_narrowed(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel(["a"]), tools=[look, refund])
        session.set(tools=["look"])
        model = ScriptedModel(["a"])
        session.send_sync("q", model=model, tools=[look, refund])
        assert definitions(session).names == ("look",)
        assert [tool["name"] for tool in sent_requests(model)[0]["tools"]] == ["look"]

    def test_a_rewind_and_a_fork_have_those_of_their_position(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel(["a"]), tools=[look])
        leaf = session.leaf.seq
        session.send_sync("q", model=ScriptedModel(["a"]), tools=[refund])
        fork = session.fork(at=leaf)
        assert definitions(fork).names == ("look",)
        session.rewind(to=leaf)
        session.send_sync("q", model=ScriptedModel(["a"]), tools=[look])
        assert kinds(session)[leaf:] == ["user", "assistant"], "they are those of the position"
        assert session.verify() == fork.verify() == []

    def test_an_input_sent_again_under_its_key_finds_its_turn(self, store: Store, session: Session) -> None:
        for _ in range(2):
            result = session.send_sync("q", model=ScriptedModel(["a"]), tools=[look], key="mail 1")
            assert result.text == "a"
        assert kinds(session) == ["system", "settings", "user", "assistant"]

    def test_a_task_records_its_own(self, session: Session) -> None:
        @oakleaf.tool(effect="read")
        async def delegate(ctx: oakleaf.ToolContext) -> str:
            return await ctx.task("find it", models=[ScriptedModel([CALL, "found"])], tools=[look])

        call = assistant(ToolCall("c", "delegate"))
        session.send_sync("q", model=ScriptedModel([call, "done"]), tools=[delegate])
        (child,) = tasks_of(session)
        assert (definitions(session).names, definitions(child).names) == (("delegate",), ("look",))

    def test_a_secret_in_a_definition_is_neither_stored_nor_sent(self) -> None:
        @oakleaf.tool(effect="read")
        def call_bank() -> str:
            """Use the key sk-ant-0123456789abcdefghijklmnop."""
            return "ok"

        model = ScriptedModel(["a"])
        session = oakleaf.open("memory:").start()
        session.send_sync("q", model=model, tools=[call_bank])
        assert model.requests[0].tools[0].description == "Use the key [redacted]."
        assert session.request("anthropic", at=2) == sent_requests(model)[0]


class TestBlob:
    def test_equal_sets_share_one_blob_that_lives_as_long_as_a_session_names_it(self, store: Store) -> None:
        sessions = [store.start(), store.start()]
        for session in sessions:
            session.send_sync("q", model=ScriptedModel(["a"]), tools=[look])
        hashes = {definitions(session).hash for session in sessions}
        assert len(hashes) == 1
        assert store.gc(grace=-(10**18)) == 0
        for session, remains in zip(sessions, (True, False), strict=True):
            store.delete(session.session_id)
            store.purge(session.session_id)
            store.gc(grace=-(10**18))
            assert (store.backend.blob(*hashes) is not None) == remains

    def test_settings_that_name_a_blob_that_is_not_there_are_refused(self, session: Session) -> None:
        from oakleaf.core.tool_definitions import define_tools

        with pytest.raises(MissingBlob):
            session.append([Settings(tool_definitions=define_tools([look.spec]).definitions)])

    def test_a_bundle_has_it_without_being_asked_for_media(self, store: Store) -> None:
        session = store.start("support", [system("You help.")])
        session.send_sync("q", model=ScriptedModel(["a"]), tools=[look])
        bundle = io.BytesIO()
        exported = session.export(bundle).report
        assert (exported.counts.blobs, exported.omitted_blobs) == (1, 0)
        with oakleaf.open("memory:") as other:
            bundle.seek(0)
            moved = other.session(other.import_bundle(bundle).session_id)
            assert moved.request("openai") == session.request("openai")
            assert moved.verify() == []
            again = io.BytesIO()
            moved.export(again)
            assert again.getvalue() == bundle.getvalue()


class TestOwnLoop:
    def test_session_turn_records_tools_functions_and_dicts(self, session: Session) -> None:
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        weather = {"name": "weather", "description": "Look outside.", "input_schema": schema}
        chat = {"type": "function", "function": {"name": "say", "parameters": schema}}
        for _ in range(2):
            with session.turn("q", tools=[look, add, weather, chat], model="anthropic:m") as turn:
                request = session.request("anthropic")
                turn.answer(assistant("a"))
        assert [tool["name"] for tool in request["tools"]] == ["look", "add", "weather", "say"]
        assert request["tools"][2] == weather
        assert kinds(session) == ["system", "settings", *["user", "assistant"] * 2]
        assert [call.after_seq for call in session.model_calls()] == [3, 5]
        with session.turn("q", tools=[]) as turn:
            assert "tools" not in session.request("anthropic"), "nothing has called tools"
            turn.answer(assistant("a"))
        assert session.verify() == []

    def test_a_turn_that_is_continued_with_other_tools_tells_them_once_no_call_is_open(
        self, session: Session
    ) -> None:
        session.append([user("q"), CALL])
        with session.turn(tools=[refund]) as turn:
            turn.run(turn.open_tool_calls[0], look)
            assert [tool["name"] for tool in session.request("anthropic")["tools"]] == ["refund"]
            turn.answer(assistant("a"))
        assert kinds(session)[-3:] == ["tool", "settings", "assistant"]
        assert session.verify() == []

    @pytest.mark.parametrize(
        ("tool", "what"),
        [
            ({"description": "no name"}, "name, description and parameters"),
            ({"name": "x", "cache_control": {}}, "its definition has cache_control"),
            ({"name": "x", "parameters": "{}"}, "Expected `object`"),
        ],
    )
    def test_what_is_no_definition_is_refused_before_anything_is_written(
        self, session: Session, tool: Any, what: str
    ) -> None:
        with pytest.raises(oakleaf.OakleafError, match=what):
            session.turn("q", tools=[tool])
        assert kinds(session) == ["system"]


class TestReplay:
    def test_recorded_answers_repeat_the_definitions_of_the_recording(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([CALL, "It is lost."]), tools=[look])
        session.send_sync("q", model=ScriptedModel(["yes"]), tools=[look, refund])
        assert session.replay_sync().is_identical

    def test_a_recording_without_tools_is_replayed_without(self, session: Session) -> None:
        session.send_sync("q", model=ScriptedModel([CALL, "It is lost."]), tools=[look])
        session.send_sync("q", model=ScriptedModel(["yes"]))
        assert session.replay_sync().is_identical
        model = ScriptedModel([CALL, "no", "no"])
        session.replay_sync(model=model)
        assert [request.tools for request in model.requests] == [(look.spec,), (look.spec,), ()]

    def test_another_model_is_given_the_recorded_definitions_or_the_tools_that_are_passed(
        self, session: Session
    ) -> None:
        session.send_sync("q", model=ScriptedModel([CALL, "It is lost."]), tools=[look, refund])
        model = ScriptedModel(["no"])
        session.replay_sync(model=model)
        assert model.requests[0].tools == (look.spec, refund.spec)
        model = ScriptedModel(["no"])
        report = session.replay_sync(model=model, tools=[refund])
        assert model.requests[0].tools == (refund.spec,)
        replay = session.log.store.path(report.replay).entries
        assert fold_settings(replay).tool_definitions.names == ("refund",)
