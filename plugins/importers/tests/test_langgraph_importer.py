"""Threads of LangGraph in a file of its SqliteSaver; states its own serializer packs are in `frameworks/test_importers`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from oakleaf.core.entries import Note
from oakleaf.core.messages import Media, Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import (
    Record,
    entries_of,
    import_all,
    import_one,
    message_texts,
    store,
    write_sqlite,
)

__all__ = ["store"]

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n and the rest").decode()
SPENT = {"input_tokens": 10, "output_tokens": 3, "input_token_details": {"cache_read": 4}}
ABOUT = {"model_name": "claude-x", "model_provider": "anthropic", "stop_reason": "tool_use"}
CALL = {"name": "look", "args": {"order": 41}, "id": "c1", "type": "tool_call"}

SYSTEM: Record = {"type": "system", "content": "You help.", "id": "m0"}
QUESTION: Record = {
    "type": "human",
    "id": "m1",
    "content": [
        {"type": "text", "text": "Where is 41?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ],
}
LOOKED: Record = {
    "type": "ai",
    "id": "m2",
    "content": [
        {"type": "thinking", "thinking": "Look first.", "signature": "sig"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
    ],
    "tool_calls": [CALL],
    "usage_metadata": SPENT,
    "response_metadata": ABOUT,
}
TOOL_RESULT: Record = {
    "type": "tool",
    "id": "m3",
    "content": "lost",
    "tool_call_id": "c1",
    "status": "success",
}
ANSWER: Record = {"type": "ai", "id": "m4", "content": "It is lost.", "usage_metadata": SPENT}
MORE: Record = {"type": "human", "id": "m5", "content": "And 42?"}


def checkpoint(n: int, messages: list[Record], space: str = "", **channels: Any) -> Record:
    values = {"messages": messages, "branch:to:agent": None, **channels}
    state = {"v": 4, "id": str(n), "ts": f"2026-03-01T10:00:{n:02d}+00:00", "channel_values": values}
    where = {"thread_id": "t1", "checkpoint_ns": space, "checkpoint_id": f"{n:04d}", "type": "msgpack"}
    return {"table": "checkpoints", **where, "checkpoint": state}


def pack_rows(rows: list[Record]) -> list[Record]:
    """The rows with their states as LangGraph packs them: each message as an extension with its class and fields."""
    return [{**row, "checkpoint": _pack(row.get("checkpoint"))} for row in rows]


def _pack(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    state = json.loads(json.dumps(value).replace("\\ud800", ""))
    values = state.get("channel_values")
    if isinstance(values, dict) and isinstance(values.get("messages"), list):
        values["messages"] = [_message(message) for message in values["messages"]]
    try:
        return msgspec.msgpack.encode(state)
    except OverflowError:
        return b""


def _message(fields: Any) -> Any:
    try:
        content = msgspec.msgpack.encode(
            ("langchain_core.messages", "Message", fields, "model_validate_json")
        )
    except OverflowError:
        return None
    return msgspec.msgpack.Ext(5, content)


LINE = [SYSTEM, QUESTION, LOOKED, TOOL_RESULT, ANSWER]
SAMPLE: list[Record] = [
    checkpoint(1, [], __start__={"messages": []}),
    checkpoint(2, LINE[:2]),
    checkpoint(3, LINE[:3], mood="calm", cart={"a": 1}),
    checkpoint(4, LINE[:4], mood="calm", cart={"a": 1}),
    checkpoint(5, LINE, mood="glad", cart={"b": 2}),
]


class TestAThread:
    def test_keeps_messages_calls_results_and_reasoning(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", pack_rows(SAMPLE)))
        path = [e.message for e in entries_of(session) if e.message is not None]
        assert [m.role for m in path] == ["system", "user", "assistant", "tool", "assistant"]
        assert isinstance(path[1].parts[1], Media)
        assert path[2].parts == (
            Reasoning("Look first."),
            Text("I look."),
            ToolCall("c1", "look", {"order": 41}),
        )
        assert report.losses == {}

    def test_keeps_usage_model_finish_and_when_each_was_first_there(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, _ = import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", pack_rows(SAMPLE)))
        usage = session.usage()
        assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
            2,
            20,
            6,
            8,
        )
        entries = [e for e in entries_of(session) if e.message is not None]
        assert [e.at % 60_000_000 // 1_000_000 for e in entries] == [2, 2, 3, 4, 5]
        assert (entries[2].model, entries[2].finish) == ("claude-x", "tool_use")

    def test_signatures_go_back_to_their_issuer(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", pack_rows(SAMPLE)))
        blocks = [block for m in session.messages("anthropic") for block in m["content"]]
        assert [b["signature"] for b in blocks if b["type"] == "thinking"] == ["sig"]

    def test_its_other_channels_are_the_state_at_each_place(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", pack_rows(SAMPLE)))
        assert session.state == {"mood": "glad", "cart": {"b": 2}}
        first = next(e for e in entries_of(session) if isinstance(e.payload, Note))
        assert isinstance(first.payload, Note)
        assert first.payload.state == {"mood": "calm", "cart": {"a": 1}}

    def test_checkpoints_that_part_are_branches(self, store: Store, tmp_path: Path) -> None:
        other = {**ANSWER, "content": "It is here."}
        rows = [
            *SAMPLE,
            checkpoint(6, [*LINE, MORE], mood="glad"),
            checkpoint(7, [*LINE[:4], other], mood="odd"),
        ]
        session, _ = import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", pack_rows(rows)))
        assert message_texts(store.session("langgraph-t1"))[-1] == "It is here."
        assert session.state == {"mood": "odd"}
        assert len(session.branches()) == 2

    def test_a_subgraph_is_a_task(self, store: Store, tmp_path: Path) -> None:
        below = checkpoint(3, [MORE], "helper:8f3a")
        (report,) = import_all(
            store, "langgraph", write_sqlite(tmp_path / "a.db", pack_rows([*SAMPLE, below]))
        )
        assert report.added == ("langgraph-t1", "langgraph-t1:helper:8f3a")
        assert store.backend.session("langgraph-t1:helper:8f3a").agent == "helper"

    def test_of_the_time_of_json_is_read(self, store: Store, tmp_path: Path) -> None:
        wrapped = {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"]}
        row = checkpoint(1, [{**wrapped, "kwargs": {"content": "Hi", "type": "human"}}])
        import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", [{**row, "type": "json"}]))
        assert message_texts(store.session("langgraph-t1")) == ["Hi"]

    def test_says_what_it_lost(self, store: Store, tmp_path: Path) -> None:
        strange = [{"type": "goblin", "content": "x"}, {"type": "human", "content": [{"type": "smell"}, "x"]}]
        rows = pack_rows([*SAMPLE, checkpoint(6, [*LINE, *strange])])
        pickled = {**rows[0], "checkpoint_id": "0000", "type": "pickle", "checkpoint": b"\x80\x04."}
        _, report = import_one(store, "langgraph", write_sqlite(tmp_path / "a.db", [*rows, pickled]))
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "a checkpoint that cannot be read": 1,
            "an item of unknown kind, kept as a note": 1,
            "a part of a message of unknown shape": 1,
        }
