"""A tool runs on what the model said, never on what is stored in its place."""

from __future__ import annotations

import base64
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
import oakleaf.agent.run  # so that no child has to load it
from oakleaf import Happened, ScriptedModel, Session, ToolCall, ToolContext, assistant
from oakleaf.core.facts import ToolCallsStarted
from oakleaf.core.redact import Redactor
from oakleaf.errors import InvalidOperation
from oakleaf.log.original_calls import MAX_CALLS, OriginalCalls
from oakleaf.store import Store

KEY = "AKIA" + "A1B2" * 4
PASSWORD = "correct horse battery staple"
IMAGE = base64.b64encode(b"\x89PNG" + bytes(range(200))).decode()
URLS = [f"data:image/png;base64,{IMAGE}", f"data:text/plain;charset=utf-8;base64,{IMAGE}"]
ARGUMENTS = {"text": f"key = {KEY}", "nested": [{KEY: f"{KEY}{KEY}"}], "urls": URLS}
context = multiprocessing.get_context("fork")


class Recorder:
    """Tools that record what they are called with."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def tool(self, *, approval: bool = False, **how: Any) -> oakleaf.Tool:
        def write(text: str, nested: list[dict[str, str]], urls: list[str], ctx: ToolContext) -> str:
            """Writes."""
            assert ctx.call.arguments == {"text": text, "nested": nested, "urls": urls}
            self.runs.append({"text": text, "nested": nested, "urls": urls})
            return "written"

        return oakleaf.tool(effect="idempotent", approval=approval, **how)(write)


def calling(arguments: dict[str, Any] = ARGUMENTS) -> Any:
    return assistant(ToolCall("c", "write", arguments))


def another_process(store: Store, **named: str) -> Store:
    """The same store, as a process sees it that has not heard the model, but knows these secrets."""
    redactor = Redactor(named)
    return Store(store.backend, replace(store.runtime, redactor=redactor, original_calls=OriginalCalls()))


def result_of(session: Session) -> oakleaf.ToolResult:
    session.refresh()
    return next(
        entry.message.results[0] for entry in session.path() if entry.role == "tool" and entry.message
    )


def stored_call(session: Session) -> ToolCall:
    return next(call for entry in session.path() if entry.message for call in entry.message.calls)


def test_a_tool_is_run_with_what_the_model_said_and_the_redacted_form_is_stored(store: Store) -> None:
    tools, session = Recorder(), store.start()
    run = session.send_sync("go", model=ScriptedModel([calling(), "done"]), tools=[tools.tool()])
    assert tools.runs == [ARGUMENTS]
    assert result_of(session).outcome == "done"
    call = stored_call(session)
    assert call.arguments["text"] == "key = [redacted]"
    assert call.placeholders.count("[redacted]") == 4
    assert KEY not in str(run.events) + str(session.journal())
    assert session.verify() == []
    assert len(store.runtime.original_calls) == 0  # nothing is kept for longer than its batch is open


def test_after_an_approval_the_same_process_runs_what_the_model_said(store: Store) -> None:
    tools, session = Recorder(), store.start()
    model, tool = ScriptedModel([calling(), "done"]), tools.tool(approval=True)
    session.send_sync("go", model=model, tools=[tool])
    other = store.session(session.session_id)
    (approval,) = other.pending_approvals()
    assert KEY not in str(approval)
    other.approve(approval)
    other.resume_sync(model=model, tools=[tool])
    assert tools.runs == [ARGUMENTS]


def test_a_call_is_approved_as_it_is_shown_or_as_it_was_made(store: Store) -> None:
    tools, session = Recorder(), store.start()
    tool = tools.tool(approval=True)
    session.send_sync("go", model=ScriptedModel([calling()]), tools=[tool])
    with session.turn() as turn:
        (call,) = turn.open_tool_calls
    with pytest.raises(oakleaf.errors.InvalidPosition):
        session.approve(replace(call, call=ToolCall("c", "write", {"text": "another"})))
    session.approve(call)
    session.resume_sync(model=ScriptedModel(["done"]), tools=[tool])
    assert tools.runs == [ARGUMENTS]


def test_another_process_does_not_run_a_call_whose_arguments_it_does_not_know(store: Store) -> None:
    tools, session = Recorder(), store.start()
    model, tool = ScriptedModel([calling(), "done"]), tools.tool(approval=True)
    session.send_sync("go", model=model, tools=[tool])
    later = another_process(store).session(session.session_id)
    later.approve(*later.pending_approvals())
    later.resume_sync(model=model, tools=[tool])
    result = result_of(later)
    assert tools.runs == []
    assert (result.error, result.outcome) == (True, "interrupted")
    assert "Not run" in str(result.content)
    assert "[redacted]" in str(result.content)


def test_another_process_fills_in_the_named_secrets_it_knows(store: Store) -> None:
    tools, arguments = (
        Recorder(),
        {"text": f"{PASSWORD}, {PASSWORD}", "nested": [{PASSWORD: "x"}], "urls": URLS},
    )
    store.runtime = replace(store.runtime, redactor=Redactor({"PASSWORD": PASSWORD}))
    model, tool = ScriptedModel([calling(arguments), "done"]), tools.tool(approval=True)
    session = store.start()
    session.send_sync("go", model=model, tools=[tool])
    assert PASSWORD not in str(stored_call(session))
    later = another_process(store, PASSWORD=PASSWORD).session(session.session_id)
    later.approve(*later.pending_approvals())
    later.resume_sync(model=model, tools=[tool])
    assert tools.runs == [arguments]


@pytest.mark.parametrize(
    ("text", "knows"),
    [
        pytest.param(PASSWORD, {"OTHER": "another secret"}, id="another name"),
        pytest.param(f"{PASSWORD} {KEY}", {"PASSWORD": PASSWORD}, id="a key without a name beside it"),
        pytest.param(
            f"{PASSWORD} [redacted PASSWORD]", {"PASSWORD": PASSWORD}, id="the model wrote the placeholder"
        ),
    ],
)
def test_one_hidden_value_that_cannot_be_filled_in_keeps_the_call_from_running(
    text: str, knows: dict[str, str]
) -> None:
    store = oakleaf.open("memory:", secrets={"PASSWORD": PASSWORD})
    session = store.start()
    session.append([oakleaf.user("go"), calling({"text": text})])
    (call,) = session.open_tool_calls
    assert another_process(store, **knows).session(session.session_id).log.original_call(call) is None


def test_a_secret_given_without_a_name_is_not_filled_in_by_its_place_in_the_list() -> None:
    store = oakleaf.open("memory:", secrets=[PASSWORD])
    session = store.start()
    session.append([oakleaf.user("go"), calling({"text": PASSWORD})])
    (call,) = session.open_tool_calls
    assert call.call.placeholders == ("[redacted secret 1]",)
    store.runtime = replace(store.runtime, original_calls=OriginalCalls())
    assert store.session(session.session_id).log.original_call(call) is None


def test_text_like_a_placeholder_hides_nothing(store: Store) -> None:
    arguments = {
        "text": "[redacted] [redacted PASSWORD]",
        "nested": [],
        "urls": [f"[oakleaf-blob:{'0' * 64};image/png;1]"],
    }
    tools, session = Recorder(), store.start()
    model, tool = ScriptedModel([calling(arguments), "done"]), tools.tool(approval=True)
    session.send_sync("go", model=model, tools=[tool])
    later = another_process(store, PASSWORD=PASSWORD).session(session.session_id)
    later.approve(*later.pending_approvals())
    later.resume_sync(model=model, tools=[tool])
    assert tools.runs == [arguments]


def test_a_data_url_comes_back_to_the_tool_after_a_restart(store: Store) -> None:
    tools, arguments = (
        Recorder(),
        {"text": f"see {URLS[0]}, {URLS[1]}.", "nested": [{"a": URLS[0]}], "urls": URLS},
    )
    session = store.start()
    model, tool = ScriptedModel([calling(arguments), "done"]), tools.tool(approval=True)
    session.send_sync("go", model=model, tools=[tool])
    assert IMAGE not in str(stored_call(session).arguments)
    later = another_process(store).session(session.session_id)
    later.approve(*later.pending_approvals())
    later.resume_sync(model=model, tools=[tool])
    assert tools.runs == [arguments]


def test_base64_that_could_not_be_restored_as_it_was_stays_in_the_arguments(store: Store) -> None:
    mixed = "data:image/png;base64," + "+_" * 50  # letters of both alphabets
    ends = "data:image/png;base64," + "A" * 65 + "B=="  # bits that no byte has
    session = store.start()
    session.append([oakleaf.user("go"), calling({"text": [mixed, ends]})])
    assert stored_call(session).arguments == {"text": [mixed, ends]}
    assert not stored_call(session).is_hidden


def test_verify_is_given_what_the_model_said_or_is_not_called(store: Store) -> None:
    tools, checked = Recorder(), []

    def verify(text: str, nested: list[dict[str, str]], urls: list[str]) -> Happened:
        checked.append(text)
        return Happened("was written")

    tool = replace(tools.tool(verify=verify), effect="unsafe")
    session = store.start()
    session.append([oakleaf.user("go"), calling()])
    session.log.record(ToolCallsStarted(2, (0,)))
    hidden = another_process(store).session(session.session_id)
    hidden.resume_sync(model=ScriptedModel(["done"]), tools=[tool])
    assert (checked, tools.runs, result_of(hidden).outcome) == ([], [], "unknown")
    known = store.start()
    known.append([oakleaf.user("go"), calling()])
    known.log.record(ToolCallsStarted(2, (0,)))
    known.resume_sync(model=ScriptedModel(["done"]), tools=[tool])
    assert (checked, tools.runs, result_of(known).outcome) == ([ARGUMENTS["text"]], [], "done")


class TestOwnLoop:
    def test_the_answer_and_the_open_calls_are_what_the_model_said(self, store: Store) -> None:
        session = store.start()
        with session.turn("go") as turn:
            answer = turn.answer(assistant(f"with {KEY}", ToolCall("c", "write", ARGUMENTS)))
            assert answer.calls == (ToolCall("c", "write", ARGUMENTS),)
            assert [call.call for call in turn.open_tool_calls] == [ToolCall("c", "write", ARGUMENTS)]
            assert KEY not in str(session.open_tool_calls)

    def test_after_a_crash_the_call_says_that_its_arguments_are_hidden(self, store: Store) -> None:
        session = store.start()
        with session.turn("go") as turn:
            turn.answer(assistant(ToolCall("c", "write", ARGUMENTS), ToolCall("d", "look", {"url": URLS[0]})))
        with another_process(store).session(session.session_id).turn() as turn:
            hidden, whole = turn.open_tool_calls
            assert hidden.call.is_hidden
            assert hidden.call.arguments["text"] == "key = [redacted]"
            assert whole.call == ToolCall("d", "look", {"url": URLS[0]})
            with pytest.raises(InvalidOperation, match="cannot be run"):
                turn.started(hidden)

    def test_running_a_call_runs_what_the_model_said_or_says_that_it_did_not(self, store: Store) -> None:
        runs: list[dict[str, Any]] = []

        def write(**arguments: Any) -> str:
            runs.append(arguments)
            return "written"

        session = store.start()
        with session.turn("go") as turn:
            turn.answer(assistant(*(ToolCall(name, "write", ARGUMENTS) for name in "abc")))
            turn.run(turn.open_tool_calls[0], write)
            turn.started(turn.open_tool_calls[0])
        later = another_process(store).session(session.session_id)
        with later.turn() as turn:
            for call in turn.open_tool_calls:
                turn.run(call, write)
        outcomes = [r.outcome for e in later.path() if e.message for r in e.message.results]
        assert (runs, outcomes) == ([ARGUMENTS], ["done", "unknown", "interrupted"])


class TestReplay:
    def test_recorded_results_are_found_by_the_stored_arguments(self, store: Store) -> None:
        tools, session = Recorder(), store.start()
        session.send_sync("go", model=ScriptedModel([calling(), "done"]), tools=[tools.tool()])
        strict = session.replay_sync()
        assert (strict.missed_calls, strict.is_identical) == ((), True)
        again = session.replay_sync(model=ScriptedModel([calling(), "done"]), tools=[tools.tool()])
        assert (again.missed_calls, again.is_same) == ((), True)
        assert len(tools.runs) == 1

    def test_a_live_tool_runs_on_what_the_model_says_and_never_on_what_was_recorded(
        self, store: Store
    ) -> None:
        tools, session = Recorder(), store.start()
        session.send_sync("go", model=ScriptedModel([calling(), "done"]), tools=[tools.tool()])
        live = {"tools": [tools.tool()], "mode": "live", "live": ["write"]}
        session.replay_sync(model=ScriptedModel([calling(), "done"]), **live)
        assert tools.runs == [ARGUMENTS, ARGUMENTS]
        another_process(store).session(session.session_id).replay_sync(**live)
        assert tools.runs == [ARGUMENTS, ARGUMENTS]

    def test_a_dry_run_is_told_what_the_model_said(self, store: Store) -> None:
        tools, dry = Recorder(), []

        def plan(text: str, nested: list[dict[str, str]], urls: list[str]) -> str:
            dry.append(text)
            return "would write"

        session = store.start()
        session.send_sync("go", model=ScriptedModel(["nothing to do"]))
        tool = tools.tool(dry_run=plan)
        session.replay_sync(model=ScriptedModel([calling(), "done"]), tools=[tool], mode="dry")
        assert (dry, tools.runs) == ([ARGUMENTS["text"]], [])


def test_a_bundle_keeps_what_is_hidden_hidden(store: Store, tmp_path: Path) -> None:
    session = store.start()
    session.append([oakleaf.user("go"), calling()])
    session.export(tmp_path / "s.oakleaf", blobs=True)
    other = oakleaf.open("memory:")
    moved = other.session(other.import_bundle(tmp_path / "s.oakleaf").session_id)
    assert moved.open_tool_calls == session.open_tool_calls
    assert moved.log.original_call(moved.open_tool_calls[0]) is None


def _run_until_killed(path: Path, effects: Path) -> None:
    @oakleaf.tool(effect="idempotent")
    def write(text: str) -> str:
        """Writes."""
        effects.write_text(text)
        os.kill(os.getpid(), signal.SIGKILL)
        return "unreachable"

    store = oakleaf.open(path)
    session = store.start(session_id="ses_killed")
    session.send_sync("go", model=ScriptedModel([calling({"text": f"key = {KEY}"})]), tools=[write])


def test_killed_inside_a_tool_with_a_secret_the_call_is_not_repeated_on_placeholders(tmp_path: Path) -> None:
    path, effects = tmp_path / "agent.db", tmp_path / "effects"
    process = context.Process(target=_run_until_killed, args=(path, effects))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert effects.read_text() == f"key = {KEY}"
    effects.unlink()

    @oakleaf.tool(effect="idempotent")
    def write(text: str) -> str:
        """Writes."""
        effects.write_text(text)
        return "written"

    with oakleaf.open(path) as store:
        session = store.session("ses_killed")
        session.resume_sync(model=ScriptedModel(["I see."]), tools=[write])
        result = result_of(session)
        assert (result.error, result.outcome) == (True, "unknown")
        assert not effects.exists()
        assert session.row.status == "idle"


def test_the_memory_of_calls_is_bounded() -> None:
    calls, leaf = OriginalCalls(), oakleaf.Leaf(1, 1)
    for index in range(MAX_CALLS + 10):
        calls.add("s", leaf, index, ToolCall("c", "t"), ToolCall("c", "t", {"n": index}))
    assert calls.find("s", leaf, 0, ToolCall("c", "t")) is None
    assert calls.find("s", leaf, MAX_CALLS + 9, ToolCall("c", "t")) is not None
    assert calls.find("s", leaf, MAX_CALLS + 9, ToolCall("c", "another")) is None
