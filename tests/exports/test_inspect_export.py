"""Logs for Inspect: the path of a session as one sample. That Inspect reads them is shown in `frameworks/test_inspect`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

import oakleaf
from oakleaf import (
    Attachment,
    Reasoning,
    ScriptedModel,
    Session,
    ToolCall,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.context import build_context
from oakleaf.core.drafts import Draft
from oakleaf.core.usage import Price, Totals, Usage
from oakleaf.errors import ModelError
from oakleaf.store import Store
from support.import_sources import store
from support.random_logs import thorough_settings
from support.random_sessions import sessions
from support.sessions import exported

__all__ = ["store"]

Json = dict[str, Any]


def read(session: Session, **how: bool) -> Json:
    text = exported(session, "inspect", **how)
    assert text.endswith("}\n")
    log: Json = json.loads(text)
    return log


def sample(session: Session, **how: bool) -> Json:
    (only,) = read(session, **how)["samples"]
    return only


def events(session: Session, kind: str) -> list[Json]:
    return [event for event in sample(session)["events"] if event["event"] == kind]


def inputs(sample_record: Json) -> list[list[Json]]:
    """What each model event was given, out of the pool."""
    pool = sample_record["events_data"]["messages"]
    models = [event for event in sample_record["events"] if event["event"] == "model"]
    return [
        [pool[n] for first, end in event.get("input_refs", ()) for n in range(first, end)] for event in models
    ]


def texts(messages: list[Json]) -> list[Any]:
    return [message["content"] for message in messages]


def sample_session(store: Store) -> Session:
    session = store.start("support", [system("You help.")], title="Order 41")
    with session.turn("Where?") as turn:
        looks = assistant("I look.", ToolCall("c", "lookup", {"order": 41}))
        turn.answer(looks, usage=Usage(100, 10, 60, 30), provider="anthropic", model="m-1")
        turn.result("c", "lost")
        turn.answer(assistant("It is lost."), usage=Usage(150, 20), provider="anthropic", model="m-1")
    return session


class TestLog:
    def test_a_session_is_a_log_of_one_sample(self, store: Store) -> None:
        session = sample_session(store)
        log = read(session)
        assert (log["version"], log["status"]) == (2, "success")
        assert log["eval"]["task"] == "support"
        assert log["eval"]["model"] == "anthropic/m-1"
        assert log["eval"]["metadata"]["title"] == "Order 41"
        (one,) = log["samples"]
        assert (one["id"], one["epoch"], one["target"]) == (session.session_id, 1, "")
        assert texts(one["input"]) == ["You help.", "Where?"]
        assert texts(one["messages"]) == ["You help.", "Where?", "I look.", "lost", "It is lost."]
        assert one["output"]["choices"][0]["message"] == one["messages"][-1]
        assert "scores" not in one

    def test_the_header_comes_before_the_samples(self, store: Store) -> None:
        assert (
            list(read(sample_session(store)))[-1] == "samples"
        )  # Inspect reads it alone where it lists logs

    def test_written_twice_it_is_the_same_bytes(self, store: Store) -> None:
        session = sample_session(store)
        assert exported(session, "inspect") == exported(session, "inspect")

    def test_a_message_is_named_as_the_command_line_names_its_entry(self, store: Store) -> None:
        session = sample_session(store)
        names = [message["id"] for message in sample(session)["messages"]]
        assert names == [f"{session.session_id}@{seq}" for seq in range(1, 6)]

    def test_times_are_those_of_the_entries(self, store: Store) -> None:
        one = sample(sample_session(store))
        model, tool = one["events"][1], one["events"][2]
        assert one["started_at"] < model["timestamp"] < model["completed"] == tool["timestamp"]
        assert tool["completed"] < one["completed_at"]
        assert tool["working_time"] > 0

    def test_only_the_path_is_told(self, store: Store) -> None:
        session = sample_session(store)
        session.rewind(to=1)
        session.append([user("Why?"), assistant("So.")])
        assert texts(sample(session)["messages"]) == ["You help.", "Why?", "So."]

    def test_a_fork_tells_what_it_shares(self, store: Store) -> None:
        fork = sample_session(store).fork(at=5)
        assert texts(sample(fork)["messages"])[-1] == "It is lost."

    def test_an_empty_session_is_an_empty_sample(self, store: Store) -> None:
        one = sample(store.start())
        assert (one["input"], one["messages"], one["events"], one["output"]) == ([], [], [], {})

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("completed", "success"),
            ("failed", "error"),
            ("cancelled", "cancelled"),
            ("interrupted", "cancelled"),
        ],
    )
    def test_the_status_is_that_of_the_session(self, store: Store, status: Any, expected: str) -> None:
        session = sample_session(store)
        session.end(status, "because" if status == "failed" else None)
        log = read(session)
        assert log["status"] == expected
        assert ("error" in log) == (status == "failed")
        if status == "failed":
            assert log["samples"][0]["error"]["message"] == "because"

    def test_a_handle_that_stands_before_the_end_tells_nothing_of_how_it_went_on(self, store: Store) -> None:
        session = sample_session(store)
        before = exported(session, "inspect")
        later = store.session(session.session_id)
        later.append([user("And now?")])
        later.end("failed", "because")
        assert exported(session, "inspect") == before

    def test_a_session_in_mid_turn_is_one_that_has_started(self, store: Store) -> None:
        session = store.start()
        session.turn("q").__enter__()
        assert read(session)["status"] == "started"


class TestUsage:
    def test_what_came_from_the_cache_is_counted_beside_the_input_as_inspect_does(self, store: Store) -> None:
        session = sample_session(store)
        (used,) = read(session)["stats"]["model_usage"].values()
        assert used == {
            "input_tokens": 160,
            "output_tokens": 30,
            "total_tokens": 280,
            "input_tokens_cache_read": 60,
            "input_tokens_cache_write": 30,
        }
        assert sample(session)["model_usage"] == {"anthropic/m-1": used}

    def test_usage_that_was_not_reported_is_left_out(self, store: Store) -> None:
        """Inspect would show zeros."""
        session = store.start("a")
        with session.turn("q", model="openai:m") as turn:
            turn.failed("cut")
            turn.answer(assistant("a"))
        log = read(session)
        assert log["stats"]["model_usage"] == {}
        events = [event for event in log["samples"][0]["events"] if event["event"] == "model"]
        assert len(events) == 2
        assert not any("usage" in event["output"] for event in events)

    def test_money_is_told_in_dollars(self) -> None:
        session = oakleaf.open("memory:").start()
        log = session.log
        log.append([Draft(user("q"))])
        call = oakleaf.Call("c1", 0, 1, 2, 0, Usage(1, 1), model="m", price=Price(250_000_000, "v"))
        log.append([Draft(assistant("a"))], calls=[call])
        assert read(session)["stats"]["model_usage"]["none/m"]["total_cost"] == 2.5

    def test_a_call_that_failed_is_an_event_with_an_error(self, store: Store) -> None:
        session = store.start()
        with session.turn("q") as turn:
            turn.failed("too busy", usage=Usage(7, 0), model="m")
            turn.answer(assistant("a"), usage=Usage(8, 1), model="m")
        failed, good = events(session, "model")
        assert (failed["error"], failed["output"]["choices"]) == ("the call failed", [])
        assert "error" not in good
        assert failed["completed"] == good["timestamp"]
        assert read(session)["stats"]["model_usage"]["none/m"]["total_tokens"] == 16


class TestEvents:
    def test_a_turn_is_a_span_with_its_calls_in_it(self, store: Store) -> None:
        session = sample_session(store)
        events = sample(session)["events"]
        assert [event["event"] for event in events] == [
            "span_begin",
            "model",
            "tool",
            "model",
            "span_end",
        ]
        assert events[0]["name"] == "user turn 1"  # a turn of Inspect is one answer
        assert {event["span_id"] for event in events[1:-1]} == {events[0]["id"]} == {events[-1]["id"]}
        assert len({event["uuid"] for event in events}) == len(events)

    def test_a_model_was_given_what_the_context_was_then(self, store: Store) -> None:
        session = sample_session(store)
        one = sample(session)
        assert [texts(messages) for messages in inputs(one)] == [
            ["You help.", "Where?"],
            ["You help.", "Where?", "I look.", "lost"],
        ]

    @pytest.mark.parametrize("most", [None, 2])
    def test_a_model_of_our_loop_was_given_just_that(self, store: Store, most: int | None) -> None:
        requests: list[list[str]] = []

        def answer(request: Any) -> Any:
            context = request.context
            requests.append([*context.system, *(_words(item.message) for item in context.items)])
            return (
                assistant("I look.", ToolCall("c", "look"))
                if len(requests) == 1
                else f"answer {len(requests)}"
            )

        @oakleaf.tool(effect="read")
        def look() -> str:
            """Looks."""
            return "lost"

        session = store.start("support", [system("You help.")])
        for text in ("one", "two", "three"):
            limits = oakleaf.Limits(max_messages=most)
            session.send_sync(text, model=ScriptedModel(answer), tools=[look], limits=limits)
        assert [texts(messages) for messages in inputs(sample(session))] == requests
        assert (len(requests[-1]) == 8) == (most is None)

    def test_behind_a_compaction_it_was_given_the_summary(self, store: Store) -> None:
        session = sample_session(store)
        session.append([user("Thanks."), assistant("Welcome.")])
        session.compact("They asked for order 41.")
        session.append([user("And 42?"), assistant("Found.")])
        one = sample(session)
        system_text, summary, *rest = texts(inputs(one)[-1])
        assert system_text == "You help."
        assert "They asked for order 41." in summary
        assert rest == ["Thanks.", "Welcome.", "And 42?"]
        (compaction,) = events(session, "compaction")
        assert compaction["metadata"]["summary"] == "They asked for order 41."

    def test_a_message_is_written_into_the_pool_once(self, store: Store) -> None:
        session = store.start()
        session.append([m for n in range(50) for m in (user(f"q{n}"), assistant(f"a{n}"))])
        one = sample(session)
        assert len(one["events_data"]["messages"]) == 99
        assert inputs(one)[-1] == one["messages"][:-1]

    def test_a_turn_that_failed_says_how(self, store: Store) -> None:
        def fails(_: Any) -> Any:
            raise ModelError("m", "the model is on holiday")

        session = store.start()
        session.send_sync("q", model=ScriptedModel(fails))
        (info,) = events(session, "info")
        assert (info["data"]["status"], info["data"]["error"]) == ("failed", "the model is on holiday")
        (model,) = events(session, "model")
        assert model["error"] == "the call failed"
        assert model["span_id"] == info["span_id"]

    def test_settings_are_told(self, store: Store) -> None:
        session = store.start()
        session.set(prompt="Be brief.", tools=("look",))
        session.append([user("q"), assistant("a")])
        (info,) = events(session, "info")
        assert info["data"] == {"settings": {"prompt": "Be brief.", "tools": ["look"]}}
        (model,) = events(session, "model")
        assert [tool["name"] for tool in model["tools"]] == ["look"]
        assert texts(inputs(sample(session))[0]) == ["Be brief.", "q"]


def _words(message: oakleaf.Message) -> str:
    pieces = [piece for result in message.results for piece in result.content]
    return message.text or "".join(piece.text for piece in pieces if isinstance(piece, oakleaf.Text))


class TestTools:
    @pytest.mark.parametrize(
        ("how", "type_", "outcome"),
        [
            ({}, None, None),
            ({"error": True}, "unknown", None),
            ({"outcome": "denied", "error": True}, "approval", "denied"),
            ({"outcome": "interrupted"}, "cancelled", "interrupted"),
            ({"outcome": "unknown"}, "unknown", "unknown"),
            ({"outcome": "dry_run"}, None, "dry_run"),
        ],
    )
    def test_the_outcome_of_a_call_is_told(
        self, how: dict[str, Any], type_: str | None, outcome: str | None
    ) -> None:
        session = oakleaf.open("memory:").start()
        session.append([user("q"), assistant(ToolCall("c", "pay", {"n": 1})), tool_result("c", "r", **how)])
        (event,) = events(session, "tool")
        message = sample(session)["messages"][-1]
        for record in (event, message):
            assert record.get("error") == (type_ and {"type": type_, "message": "r"})
            assert record.get("metadata") == (outcome and {"outcome": outcome})
        assert (event["function"], event["arguments"], event["result"]) == ("pay", {"n": 1}, "r")
        assert (message["function"], message["tool_call_id"]) == ("pay", "c")

    def test_a_call_without_a_result_is_open(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "pay"))])
        (event,) = events(session, "tool")
        assert event["metadata"] == {"outcome": "open"}
        assert "completed" not in event

    def test_several_results_of_one_message_are_several_messages(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "pay"), ToolCall("c", "look"))])
        results = tool_result("c", "1").parts + tool_result("c", "2").parts
        session.append([oakleaf.Message("tool", results)])
        first, second = sample(session)["messages"][-2:]
        assert (first["function"], first["content"]) == ("pay", "1")
        assert (second["function"], second["content"]) == ("look", "2")
        assert first["id"] != second["id"]

    def test_arguments_that_are_no_json_are_told_as_an_error_of_parsing(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "pay", malformed='{"n": '))])
        (call,) = sample(session)["messages"][-1]["tool_calls"]
        assert call["arguments"] == {}
        assert call["parse_error"].endswith('{"n": ')


class TestContent:
    def test_reasoning_and_media_are_told_and_bytes_are_not(self, store: Store) -> None:
        session = store.start()
        photo = Attachment(b"\x89PNG\r\n\x1a\n", "image/png", "cat.png")
        session.append([user("Look:", photo), assistant(Reasoning("hm"), "A cat.")])
        asks, answers = sample(session)["messages"]
        assert texts([asks]) == [
            [
                {"type": "text", "text": "Look:"},
                {"type": "text", "text": "[image/png, 8 bytes, cat.png: not included]"},
            ]
        ]
        assert answers["content"] == [
            {"type": "reasoning", "reasoning": "hm"},
            {"type": "text", "text": "A cat."},
        ]

    def test_ten_megabytes_and_hostile_text_go_through(self) -> None:
        session = oakleaf.open("memory:").start()
        session.append([user("x" * 10_000_000), assistant('nul \0 "quote" \u2028')])
        asks, answers = texts(sample(session)["messages"])
        assert (len(asks), answers) == (10_000_000, 'nul \0 "quote" \u2028')


def log_tokens(log: Json) -> tuple[int, int]:
    used = log["stats"]["model_usage"].values()
    return sum(one["total_tokens"] for one in used), sum(one["output_tokens"] for one in used)


def session_tokens(totals: Totals) -> tuple[int, int]:
    return totals.input_tokens + totals.output_tokens, totals.output_tokens


class TestAnyLog:
    @thorough_settings
    @given(sessions())
    def test_every_path_is_told_whole_and_adds_up(self, session: Session) -> None:
        text = exported(session, "inspect")
        assert "DETAILS" not in text
        assert "SIG-" not in text
        assert text == exported(session, "inspect")
        log = json.loads(text)
        (one,) = log["samples"]
        path = session.path()
        assert len(one["messages"]) == sum(len(e.message.results) or 1 for e in path if e.message)
        assert log_tokens(log) == session_tokens(session.usage("path"))
        assert len({event["uuid"] for event in one["events"]}) == len(one["events"])
        answers = [entry for entry in path if entry.turn and entry.role == "assistant"]
        events = [event for event in one["events"] if event["event"] == "model"]
        assert sum(bool(event["output"]["choices"]) for event in events) == len(answers)
        answer_inputs = [
            messages
            for event, messages in zip(events, inputs(one), strict=True)
            if event["output"]["choices"]
        ]
        for entry, messages in zip(answers, answer_inputs, strict=True):
            context = build_context(path[: entry.seq - 1])
            count = len(context.system) + sum(len(item.message.results) or 1 for item in context.items)
            assert len(messages) == count
            assert [message["role"] for message in messages][len(context.system) :] == [
                item.message.role for item in context.items for _ in item.message.results or [0]
            ]
