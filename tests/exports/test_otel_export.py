"""Spans: what a session did, as OpenTelemetry tells it; one trace, the same ids whenever it is written."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, ToolContext, assistant, system, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.usage import Totals, Usage
from oakleaf.errors import ModelError
from oakleaf.exports.otel.otlp import MOST_SPANS
from oakleaf.store import Store
from support.import_sources import store
from support.random_logs import thorough_settings
from support.random_sessions import sessions
from support.sessions import exported, exported_lines, tasks_of

__all__ = ["store"]

Json = dict[str, Any]


def spans(lines: Iterable[str]) -> list[Json]:
    """The spans of all lines, their attributes as a dict."""
    span_list = []
    for line in lines:
        assert line.endswith("\n")
        assert line.count("\n") == 1
        (resource,) = json.loads(line)["resourceSpans"]
        (scope,) = resource["scopeSpans"]
        for span in scope["spans"]:
            span["attributes"] = {one["key"]: plain(one["value"]) for one in span["attributes"]}
            span_list.append(span)
    return span_list


def plain(value: Json) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [plain(one) for one in content["values"]]
    return int(content) if kind == "intValue" else content


def children_of(trace: list[Json], parent: Json | None) -> list[Json]:
    return [span for span in trace if span.get("parentSpanId") == (parent["spanId"] if parent else None)]


def span_named(trace: list[Json], name: str) -> Json:
    (only,) = [span for span in trace if span["name"] == name]
    return only


def times(span: Json) -> tuple[int, int]:
    return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])


def is_valid_trace(trace: list[Json]) -> bool:
    """One trace with one root; ids are unique, parents come first and last as long as what is in them."""
    ids = {span["spanId"]: span for span in trace}
    assert len(ids) == len(trace)
    assert len({span["traceId"] for span in trace}) == 1
    assert [span for span in trace if "parentSpanId" not in span] == trace[:1]
    span_ids: set[str] = set()
    for span in trace:
        start, end = times(span)
        assert 0 <= start <= end
        if span is not trace[0]:
            first, last = times(ids[span["parentSpanId"]])
            assert span["parentSpanId"] in span_ids
            assert first <= start
            assert end <= last
        span_ids.add(span["spanId"])
    return True


def tokens(trace: list[Json]) -> tuple[int, ...]:
    kinds = ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens")
    return tuple(sum(span["attributes"].get(f"gen_ai.usage.{kind}", 0) for span in trace) for kind in kinds)


def token_totals(totals: Totals) -> tuple[int, ...]:
    return (totals.input_tokens, totals.output_tokens, totals.cache_read_tokens, totals.cache_write_tokens)


def sample_session(store: Store) -> Session:
    session = store.start("support", [system("You help.")], title="Order 41")
    with session.turn("Where?") as turn:
        looks = assistant("I look.", ToolCall("c", "lookup", {"order": 41}))
        turn.answer(looks, usage=Usage(100, 10, 60, 30), provider="gemini", model="m-1")
        turn.result("c", "lost")
        turn.answer(assistant("It is lost."), usage=Usage(150, 20), provider="anthropic", model="m-2")
    return session


class TestTrace:
    def test_a_session_is_a_span_with_its_turns_and_their_calls_in_it(self, store: Store) -> None:
        trace = spans(exported_lines(sample_session(store), "otel"))
        assert is_valid_trace(trace)
        (root,) = children_of(trace, None)
        (turn,) = children_of(trace, root)
        assert root["name"] == "session support"
        assert turn["name"] == "invoke_agent support"
        names = [span["name"] for span in children_of(trace, turn)]
        assert names == ["chat m-1", "execute_tool lookup", "chat m-2"]
        assert [span["kind"] for span in [root, turn, *children_of(trace, turn)]] == [1, 1, 3, 1, 3]

    def test_times_are_those_of_the_entries(self, store: Store) -> None:
        session = sample_session(store)
        trace = spans(exported_lines(session, "otel"))
        at = {entry.seq: entry.at * 1_000 for entry in session.path()}
        assert times(span_named(trace, "invoke_agent support")) == (at[2], at[5])
        assert times(span_named(trace, "execute_tool lookup")) == (at[3], at[4])
        start, end = times(span_named(trace, "chat m-2"))
        assert start == at[4]
        assert at[4] < end <= at[5]

    def test_written_twice_it_is_the_same_bytes(self, store: Store) -> None:
        session = sample_session(store)
        again = store.session(session.session_id)
        assert exported_lines(session, "otel") == exported_lines(again, "otel")

    def test_moved_to_a_store_of_other_numbers_it_is_the_same_spans(self, store: Store) -> None:
        session = sample_session(store)
        session.rewind(to=1)
        session.append([user("Why?"), assistant(ToolCall("d", "lookup"))])
        session.append([tool_result("d", "r"), assistant("So.")])
        bundle = io.BytesIO()
        session.export(bundle)
        bundle.seek(0)
        other = oakleaf.open("memory:")
        for _ in range(3):
            other.start()
        other.import_bundle(bundle)
        moved = other.session(session.session_id)
        assert moved.branches() != session.branches()
        assert exported_lines(moved, "otel", content=True) == exported_lines(session, "otel", content=True)

    def test_a_session_that_goes_on_keeps_the_ids_it_had(self, store: Store) -> None:
        session = sample_session(store)
        before = [span["spanId"] for span in spans(exported_lines(session, "otel"))]
        with session.turn("Why?") as turn:
            turn.answer(assistant("Nobody knows."))
        assert [span["spanId"] for span in spans(exported_lines(session, "otel"))][: len(before)] == before

    def test_an_empty_session_is_one_span(self, store: Store) -> None:
        (span,) = spans(exported_lines(store.start(), "otel"))
        assert (span["name"], span["status"]) == ("session", {})

    def test_a_long_session_is_many_requests(self, store: Store) -> None:
        session = store.start()
        session.append([m for n in range(MOST_SPANS) for m in (user(f"q{n}"), assistant(f"a{n}"))])
        lines = exported_lines(session, "otel")
        assert [len(spans([line])) for line in lines] == [MOST_SPANS, 1]
        assert is_valid_trace(spans(lines))

    def test_a_branch_that_was_left_is_told_too(self, store: Store) -> None:
        session = sample_session(store)
        session.rewind(to=4)  # within the turn
        with session.turn() as turn:
            turn.answer(assistant("It is found."), usage=Usage(150, 5))
        trace = spans(exported_lines(session, "otel"))
        assert is_valid_trace(trace)
        assert Counter(span["name"] for span in trace)["invoke_agent support"] == 2
        assert tokens(trace) == token_totals(session.usage())

    def test_a_fork_does_not_tell_what_it_shares(self, store: Store) -> None:
        session = sample_session(store)
        fork = session.fork(at=5)
        with fork.turn("And now?") as turn:
            turn.answer(assistant("Wait."), usage=Usage(200, 5))
        trace = spans(exported_lines(fork, "otel"))
        assert is_valid_trace(trace)
        assert tokens(trace) == token_totals(fork.usage()) == (200, 5, 0, 0)
        assert {span["traceId"] for span in trace} != {
            span["traceId"] for span in spans(exported_lines(session, "otel"))
        }


class TestModelCalls:
    def test_what_the_ledger_knows_is_in_the_attributes(self, store: Store) -> None:
        first = span_named(spans(exported_lines(sample_session(store), "otel")), "chat m-1")["attributes"]
        assert first["gen_ai.operation.name"] == "chat"
        assert first["gen_ai.provider.name"] == "gcp.gemini"
        assert first["gen_ai.request.model"] == first["gen_ai.response.model"] == "m-1"
        assert first["gen_ai.usage.input_tokens"] == 100
        assert first["gen_ai.usage.output_tokens"] == 10
        assert first["gen_ai.usage.cache_read.input_tokens"] == 60
        assert first["gen_ai.usage.cache_write.input_tokens"] == 30

    def test_tokens_add_up_to_what_the_session_used(self, store: Store) -> None:
        session = sample_session(store)
        assert (
            tokens(spans(exported_lines(session, "otel")))
            == token_totals(session.usage())
            == (250, 30, 60, 30)
        )

    def test_a_call_that_failed_is_an_error_that_ends_where_the_next_begins(self, store: Store) -> None:
        session = store.start()
        with session.turn("q") as turn:
            turn.failed("too busy", usage=Usage(7, 0), provider="openai", model="m")
            turn.answer(assistant("a"), usage=Usage(8, 1), provider="openai", model="m")
        trace = spans(exported_lines(session, "otel"))
        assert is_valid_trace(trace)
        failed, good = [span for span in trace if span["name"] == "chat m"]
        assert failed["status"]["code"] == 2
        assert failed["attributes"]["error.type"] == "failed"
        assert failed["attributes"]["gen_ai.response.finish_reasons"] == ["error"]
        assert good["status"] == {}
        assert times(failed)[1] == times(good)[0]
        assert tokens(trace) == token_totals(session.usage())

    def test_a_call_cut_off_by_a_crash_is_told_as_unanswered(self, store: Store) -> None:
        session = store.start()
        session.turn("q", model="anthropic:m").__enter__()
        chat = span_named(spans(exported_lines(session, "otel")), "chat m")
        assert chat["attributes"]["error.type"] == "unanswered"
        assert "gen_ai.usage.input_tokens" not in chat["attributes"]

    def test_our_loop_tells_its_calls(self, store: Store) -> None:
        @oakleaf.tool(effect="read")
        def look() -> str:
            """Looks."""
            return "lost"

        session = store.start("support")
        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("c", "look")), "a"]), tools=[look])
        trace = spans(exported_lines(session, "otel"))
        assert is_valid_trace(trace)
        names = Counter(span["name"] for span in trace)
        assert names == {
            "session support": 1,
            "invoke_agent support": 1,
            "chat scripted": 2,
            "execute_tool look": 1,
        }
        assert tokens(trace) == token_totals(session.usage())


class TestToolCalls:
    @pytest.mark.parametrize(
        ("how", "outcome", "error"),
        [
            ({}, "done", None),
            ({"error": True}, "done", "tool_error"),
            ({"outcome": "denied", "error": True}, "denied", "denied"),
            ({"outcome": "unknown", "error": True}, "unknown", "unknown"),
            ({"outcome": "interrupted"}, "interrupted", "interrupted"),
            ({"outcome": "dry_run"}, "dry_run", None),
        ],
    )
    def test_the_outcome_is_told(self, how: dict[str, Any], outcome: str, error: str | None) -> None:
        session = oakleaf.open("memory:").start()
        session.append([user("q"), assistant(ToolCall("c", "pay")), tool_result("c", "r", **how)])
        pay = span_named(spans(exported_lines(session, "otel")), "execute_tool pay")
        assert pay["attributes"]["gen_ai.tool.call.id"] == "c"
        assert pay["attributes"]["oakleaf.outcome"] == outcome
        assert pay["attributes"].get("error.type") == error
        assert pay["status"].get("code") == (None if error is None else 2)

    def test_a_call_without_a_result_is_open(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "pay"))])
        pay = span_named(spans(exported_lines(session, "otel")), "execute_tool pay")
        assert (pay["attributes"]["oakleaf.outcome"], pay["status"]) == ("open", {})

    def test_of_two_calls_of_the_same_id_each_has_its_own_span(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "pay"), ToolCall("c", "look"))])
        session.append([tool_result("c", "1"), tool_result("c", "2", error=True)])
        trace = spans(exported_lines(session, "otel"))
        assert is_valid_trace(trace)
        assert span_named(trace, "execute_tool pay")["status"] == {}
        assert span_named(trace, "execute_tool look")["status"]["code"] == 2

    def test_one_that_waited_for_a_person_begins_when_it_was_allowed(self, store: Store) -> None:
        @oakleaf.tool(approval=True)
        def pay() -> str:
            """Pays."""
            return "paid"

        session = store.start()
        model = ScriptedModel([assistant(ToolCall("c", "pay")), "done"])
        session.send_sync("q", model=model, tools=[pay])
        assert (
            span_named(spans(exported_lines(session, "otel")), "execute_tool pay")["attributes"][
                "oakleaf.outcome"
            ]
            == "open"
        )
        session.approve(session.open_tool_calls[0])
        session.resume_sync(model=model, tools=[pay])
        start, end = times(span_named(spans(exported_lines(session, "otel")), "execute_tool pay"))
        answer, result = session.path()[2], session.path()[3]
        assert answer.at * 1_000 < start < end == result.at * 1_000

    def test_calls_of_seeds_were_made_elsewhere(self, store: Store) -> None:
        session = store.start(seeds=[user("q"), assistant(ToolCall("c", "pay")), tool_result("c", "r")])
        assert len(spans(exported_lines(session, "otel"))) == 1


class TestTurns:
    def test_a_turn_that_failed_says_how(self, store: Store) -> None:
        session = store.start("support")

        def fails(_: Any) -> Any:
            raise ModelError("m", "the model is on holiday")

        session.send_sync("q", model=ScriptedModel(fails))
        trace = spans(exported_lines(session, "otel"))
        turn = span_named(trace, "invoke_agent support")
        assert turn["attributes"]["error.type"] == "failed"
        assert "on holiday" in turn["status"]["message"]
        assert span_named(trace, "chat scripted")["attributes"]["error.type"] == "failed"
        assert trace[0]["status"]["code"] == 2


class TestTasks:
    def test_a_task_hangs_below_the_call_that_started_it_under_its_own_id(self, store: Store) -> None:
        @oakleaf.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> str:
            """Has a child do it."""
            return await ctx.task("do it", models=[ScriptedModel(["done"])], tools=[])

        session = store.start("boss")
        model = ScriptedModel([assistant(ToolCall("c", "delegate")), "all done"])
        session.send_sync("q", model=model, tools=[delegate])
        (child,) = tasks_of(session)
        trace = spans(exported_lines(session, "otel"))
        assert is_valid_trace(trace)
        (task,) = children_of(trace, span_named(trace, "execute_tool delegate"))
        assert task["attributes"]["gen_ai.conversation.id"] == child.session_id
        assert task["attributes"]["oakleaf.relation"] == "task"
        assert tokens(trace) == token_totals(session.usage("tree"))
        alone = spans(exported_lines(session, "otel", children=False))
        assert tokens(alone) == token_totals(session.usage())
        assert {span["spanId"] for span in alone} < {span["spanId"] for span in trace}

    def test_one_started_by_hand_hangs_below_its_turn(self, store: Store) -> None:
        session = sample_session(store)
        child = store.start_task(session, "helper")
        child.append([user("help"), assistant("helped")])
        trace = spans(exported_lines(session, "otel"))
        assert is_valid_trace(trace)
        assert span_named(trace, "session helper") in children_of(
            trace, span_named(trace, "invoke_agent support")
        )

    def test_tasks_nested_deeper_than_python_calls_are_told(self) -> None:
        store = oakleaf.open("memory:")
        session = top = store.start()
        for _ in range(400):
            session = store.start_task(session)
        trace = spans(exported_lines(top, "otel"))
        assert len(trace) == 401
        assert is_valid_trace(trace)


class TestContent:
    def test_by_default_nothing_of_what_was_said_is_told(self, store: Store) -> None:
        text = exported(sample_session(store), "otel")
        for phrase in ("Where?", "You help", "I look", '"order', "It is lost", "Order 41"):
            assert phrase not in text

    def test_asked_for_it_is_told_once_by_the_convention(self, store: Store) -> None:
        session = sample_session(store)
        trace = spans(exported_lines(session, "otel", content=True))
        assert is_valid_trace(trace)
        first, second = (span_named(trace, name)["attributes"] for name in ("chat m-1", "chat m-2"))
        assert json.loads(first["gen_ai.input.messages"]) == [
            {"role": "user", "parts": [{"type": "text", "content": "Where?"}]}
        ]
        call = {"type": "tool_call", "id": "c", "name": "lookup", "arguments": {"order": 41}}
        assert json.loads(first["gen_ai.output.messages"]) == [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": "I look."}, call],
                "finish_reason": "stop",
            }
        ]
        response = {"type": "tool_call_response", "id": "c", "response": "lost"}
        assert json.loads(second["gen_ai.input.messages"]) == [{"role": "tool", "parts": [response]}]
        tool = span_named(trace, "execute_tool lookup")["attributes"]
        assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"order": 41}
        assert tool["gen_ai.tool.call.result"] == "lost"
        assert "You help." in trace[0]["attributes"]["gen_ai.system_instructions"]
        assert [span["spanId"] for span in trace] == [
            span["spanId"] for span in spans(exported_lines(session, "otel"))
        ]

    def test_evidence_and_details_are_never_told(self, store: Store) -> None:
        session = store.start()
        proof = oakleaf.Evidence("anthropic", {"0": {"signature": "SIG-1"}})
        session.log.append([Draft(user("q"))])
        session.log.append([Draft(assistant(oakleaf.Reasoning("hm"), "a"), evidence=proof)])
        session.note({"mine": "NOTE-1"})
        text = exported(session, "otel", content=True, redact=False)
        assert "hm" in text
        assert "SIG-1" not in text
        assert "NOTE-1" not in text

    def test_ten_megabytes_and_hostile_text_go_through(self) -> None:
        session = oakleaf.open("memory:").start()
        session.append([user("x" * 10_000_000), assistant('nul \0 "quote" \u2028')])
        trace = spans(exported_lines(session, "otel", content=True))
        assert is_valid_trace(trace)
        assert 'nul \\u0000 \\"quote\\"' in trace[1]["attributes"]["gen_ai.output.messages"]


class TestAnyLog:
    @thorough_settings
    @given(sessions(), st.booleans())
    def test_every_log_is_a_lawful_trace_that_adds_up(self, session: Session, content: bool) -> None:
        lines = exported_lines(session, "otel", content=content)
        trace = spans(lines)
        assert is_valid_trace(trace)
        assert tokens(trace) == token_totals(session.usage())
        assert sum(span["kind"] == 3 for span in trace) == session.usage().calls
        assert lines == exported_lines(session, "otel", content=content)
        assert "DETAILS" not in "".join(lines)
        assert "SIG-" not in "".join(lines)
