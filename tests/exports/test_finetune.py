"""Fine-tuning: whole turns a model may learn from, in OpenAI's chat format, and what was left out."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given

import oakleaf
from oakleaf import Attachment, Evidence, Reasoning, Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry
from oakleaf.core.redact import Redactor
from oakleaf.core.redact_entries import redact_entries
from oakleaf.exports.finetune import Skipped, finetune
from oakleaf.store import Store
from oakleaf.wire.offered_tools import NOT_RECORDED
from oakleaf.wire.openai_chat.rules import violations
from support.import_sources import store
from support.random_logs import path_of, paths, thorough_settings

__all__ = ["store"]


class Done(NamedTuple):
    text: str
    turns: int
    skipped: tuple[Skipped, ...]


def finetune_path(path: list[Entry]) -> Done:
    text, report = finetune(path)
    return Done(text, report.turns, report.skipped)


def finetune_session(session: Session, **options: Any) -> Done:
    file = io.BytesIO()
    report = session.export(file, "finetune", **options).report
    assert report.is_empty == (not file.getvalue())
    return Done(file.getvalue().decode(), report.turns, report.skipped)


def messages(session: Session) -> list[dict[str, Any]]:
    text = finetune_session(session).text
    result: list[dict[str, Any]] = json.loads(text)["messages"] if text else []
    return result


def roles(session: Session) -> list[str]:
    return [message["role"] for message in messages(session)]


class TestTheLine:
    def test_a_path_is_one_line_of_messages_that_ends_with_an_answer(self, store: Store) -> None:
        session = store.start("support", [system("You help.")])
        session.append(
            [user("Where is it?"), assistant(Reasoning("hm"), ToolCall("c", "lookup", {"order": 41}))]
        )
        session.append([tool_result("c", "lost"), assistant("It is lost.")])
        session.append([user("Refund it."), assistant("Done.")])
        done = finetune_session(session)
        assert (done.turns, done.skipped) == (2, ())
        assert done.text.endswith("\n")
        assert done.text.count("\n") == 1
        function = {"name": "lookup", "arguments": '{"order":41}'}
        parameters = {"type": "object", "properties": {}}
        not_recorded = {"name": "lookup", "description": NOT_RECORDED, "parameters": parameters}
        assert json.loads(done.text) == {
            "messages": [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": "Where is it?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "lost"},
                {"role": "assistant", "content": "It is lost."},
                {"role": "user", "content": "Refund it."},
                {"role": "assistant", "content": "Done."},
            ],
            "tools": [{"type": "function", "function": not_recorded}],
        }

    def test_tools_that_are_handed_in_are_defined(self, store: Store) -> None:
        @oakleaf.tool(effect="read")
        def lookup(order: int) -> str:
            """Find an order."""
            return str(order)

        session = store.start()
        session.append([user("q"), assistant("a")])
        (defined,) = json.loads(finetune_session(session, tools=[lookup]).text)["tools"]
        assert defined["type"] == "function"
        assert (defined["function"]["name"], defined["function"]["description"]) == (
            "lookup",
            "Find an order.",
        )
        assert defined["function"]["parameters"]["properties"] == {"order": {"type": "integer"}}
        assert json.loads(finetune_session(session, tools=[lookup.function]).text)["tools"] == [defined]

    def test_media_are_named_and_not_included(self, store: Store) -> None:
        session = store.start()
        picture = Attachment(b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "image/png", "cat.png")
        session.append([user("look", picture), assistant(ToolCall("c", "t")), tool_result("c", picture)])
        session.append([assistant("a cat")])
        stub = "[image/png, 58 bytes, cat.png: not included]"
        question, _, result, _ = messages(session)
        assert question["content"] == [{"type": "text", "text": "look"}, {"type": "text", "text": stub}]
        assert result["content"] == stub

    def test_the_prompt_in_force_at_the_leaf_heads_the_line(self, store: Store) -> None:
        session = store.start(None, [system("old")])
        session.append([user("q"), assistant("a")])
        session.set(prompt="new")
        assert messages(session)[0] == {"role": "system", "content": "new"}

    def test_a_summary_stands_for_the_turns_it_replaced(self, store: Store) -> None:
        session = store.start()
        session.append([user("a long question " * 20), assistant("a")])
        session.append([user("b"), assistant("b")])
        session.compact("They asked.")
        done = finetune_session(session)
        assert (done.turns, done.skipped) == (
            1,
            (Skipped(1, "it, or its beginning, is replaced by a summary"),),
        )
        assert "They asked." in messages(session)[0]["content"]

    def test_a_session_without_a_whole_turn_gives_no_line(self, store: Store) -> None:
        session = store.start(None, [system("s")])
        assert finetune_session(session).text == ""
        session.append([user("anybody?")])
        done = finetune_session(session)
        assert (done.text, done.turns, done.skipped) == ("", 0, (Skipped(2, "it has no final answer"),))


class TestWhatIsSkipped:
    @pytest.mark.parametrize(
        ("outcome", "why"),
        [
            ("unknown", "the outcome of a call is unknown"),
            ("interrupted", "a call was interrupted"),
            ("not_recorded", "a call of this replay was never made"),
        ],
    )
    def test_nobody_learns_from_a_call_nobody_knows_the_end_of(self, outcome: Any, why: str) -> None:
        path = path_of(
            *(user("pay"), assistant(ToolCall("c", "pay")), tool_result("c", "?", outcome=outcome)),
            *(assistant("paid, perhaps"), user("q"), assistant("a")),
        )
        done = finetune_path(path)
        assert (done.turns, done.skipped) == (1, (Skipped(1, why),))
        assert [message["content"] for message in json.loads(done.text)["messages"]] == ["q", "a"]

    def test_a_denied_call_is_a_lesson(self) -> None:
        path = path_of(
            user("pay"), assistant(ToolCall("c", "pay")), tool_result("c", outcome="denied"), assistant("no")
        )
        assert finetune_path(path).turns == 1

    @pytest.mark.parametrize(
        "finish", ["partial", "cancelled", "error", "length", "max_tokens", "MAX_TOKENS"]
    )
    def test_an_answer_that_was_cut_off_takes_its_turn_with_it(self, store: Store, finish: str) -> None:
        session = store.start()
        session.append([user("q")])
        session.log.append([Draft(assistant("half an"), finish=finish)])
        session.append([user("again"), assistant("whole")])
        assert finetune_session(session).skipped == (Skipped(1, "an answer was cut off"),)
        assert roles(session) == ["user", "assistant"]

    def test_a_turn_that_says_nothing_in_the_end_is_left_out(self, store: Store) -> None:
        session = store.start()
        ended = [user("q"), assistant("x", ToolCall("c", "stop")), tool_result("c", "ok", ends_turn=True)]
        session.append([*ended, user("w"), assistant(" "), user("v"), assistant("a")])
        done = finetune_session(session)
        assert done.skipped == (Skipped(1, "a tool ended it"), Skipped(5, "its last answer is empty"))
        assert done.turns == 1

    def test_a_turn_that_is_still_open_is_left_out(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant("a"), user("w"), assistant(ToolCall("c", "t"))])
        assert finetune_session(session).skipped == (Skipped(3, "it has no final answer"),)
        assert roles(session) == ["user", "assistant"]

    def test_what_no_answer_follows_is_not_at_the_end(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant("a"), user("w"), assistant("b")])
        session.rewind(to=2, summary="It led nowhere.")
        assert finetune_session(session).skipped == (Skipped(3, "no answer follows it"),)
        assert roles(session) == ["user", "assistant"]

    def test_a_branch_that_was_left_is_not_in_it(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant("a"), user("LEFT"), assistant("LEFT")])
        session.rewind(to=2)
        assert "LEFT" not in finetune_session(session).text


class TestWhatStaysOut:
    def test_neither_evidence_nor_reasoning_nor_details(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "t"))])
        session.append([tool_result("c", "r", details={"k": "CANARY"})])
        evidence = Evidence("anthropic", {"0": {"signature": "CANARY"}})
        session.log.append([Draft(assistant(Reasoning("CANARY"), "a"), evidence=evidence)])
        assert "CANARY" not in finetune_session(session, redact=False).text
        assert finetune_session(session).turns == 1


@thorough_settings
@given(paths())
def test_every_log_gives_a_line_the_provider_accepts_or_none(path: list[Entry]) -> None:
    done = finetune_path(list(redact_entries(path, Redactor(unnamed=["snowman ☃ 🎄"]))))
    assert "SIG-" not in done.text
    assert "DETAILS" not in done.text
    assert "snowman" not in done.text
    inputs = {entry.seq for entry in path if entry.turn == entry.seq}
    assert done.turns + len(inputs & {one.seq for one in done.skipped}) == len(inputs)
    if done.text:
        line = json.loads(done.text)
        assert violations(line) == []
        last = line["messages"][-1]
        assert last["role"] == "assistant"
        assert last["content"].strip()
        assert "tool_calls" not in last
        assert ";base64," not in done.text
        assert "[no result was recorded" not in done.text
        assert "[outcome unknown" not in done.text
