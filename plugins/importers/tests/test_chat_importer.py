"""Plain chats: JSON lines of messages in any provider's shape, and of whole conversations."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

from hypothesis import given

from oakleaf.core.messages import Media, ToolCall
from oakleaf.store import Store
from support.import_sources import (
    Record,
    assert_survived,
    entries_of,
    import_all,
    import_one,
    mangled_records,
    message_texts,
    store,
    write_jsonl,
)

__all__ = ["store"]

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n and the rest").decode()

LINES: list[Record] = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Where is 41?", "timestamp": "2026-03-01T10:00:00Z"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"order":41}'}}
        ],
        "model": "gpt-5-mini",
        "timestamp": "2026-03-01T10:00:01Z",
    },
    {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    {"role": "assistant", "content": "It is lost.", "timestamp": 1_772_359_205},
]
TUNED: Record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SHARED: Record = {
    "id": "x7",
    "title": "Shared",
    "conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}],
}


class TestAFileOfMessages:
    def test_keeps_what_its_server_requires_back(self, store: Store, tmp_path: Path) -> None:
        file = {"type": "file", "file": {"file_id": "file-1"}}
        lines = [
            {"role": "user", "content": [{"type": "text", "text": "see"}, file]},
            {**LINES[2], "reasoning_content": "hm"},
            LINES[3],
        ]
        session, _ = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", lines))
        messages = session.messages("openai-chat")
        assert messages[0] == lines[0]
        assert messages[1]["reasoning_content"] == "hm"

    def test_is_one_session_named_after_it(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", LINES))
        path = entries_of(session)
        assert session.session_id == "chat-case"
        assert [entry.role for entry in path] == ["system", "user", "assistant", "tool", "assistant"]
        assert path[2].message is not None
        assert path[2].message.calls == (ToolCall("c1", "look", {"order": 41}),)
        assert (path[2].model, report.losses) == ("gpt-5-mini", {})

    def test_keeps_the_times_there_are(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", LINES))
        seconds = [entry.at // 1_000_000 - 1_772_359_200 for entry in entries_of(session)]
        assert seconds == [0, 0, 1, 1, 5]

    def test_its_prompt_is_a_seed(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", LINES))
        assert store.backend.session(session.session_id).seed_count == 1

    def test_may_be_of_anthropics_shape(self, store: Store, tmp_path: Path) -> None:
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "seen", "is_error": True}
        lines = [
            {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        session, _ = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", lines))
        first, _, third = (entry.message for entry in entries_of(session))
        assert first is not None
        assert isinstance(first.parts[1], Media)
        assert third is not None
        assert [r.error for r in third.results] == [True]

    def test_or_of_geminis(self, store: Store, tmp_path: Path) -> None:
        lines = [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]
        session, _ = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", lines))
        assert [entry.role for entry in entries_of(session)] == ["user", "assistant"]


class TestAFileOfConversations:
    def test_is_a_session_for_each(self, store: Store, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "set.jsonl", [TUNED, SHARED, TUNED])
        reports = import_all(store, "chat", path)
        assert [report.session_id for report in reports] == ["chat-set-1", "chat-set-x7", "chat-set-3"]
        assert [message_texts(store.session(report.session_id)) for report in reports] == [
            ["a", "b"],
            ["c", "d"],
            ["a", "b"],
        ]
        assert store.backend.session("chat-set-x7").title == "Shared"

    def test_a_line_that_is_none_is_counted(self, store: Store, tmp_path: Path) -> None:
        reports = import_all(store, "chat", write_jsonl(tmp_path / "set.jsonl", [TUNED, {"a": 1}, SHARED]))
        assert [report.losses.keys() & {"a line without a conversation"} != set() for report in reports] == [
            False,
            True,
        ]

    def test_two_of_one_name_that_differ_are_told_apart_by_a_refusal(
        self, store: Store, tmp_path: Path
    ) -> None:
        other = {**SHARED, "conversations": [{"from": "human", "value": "else"}]}
        reports = import_all(store, "chat", write_jsonl(tmp_path / "set.jsonl", [SHARED, other]))
        assert [report.error is None for report in reports] == [True, False]


class TestTheSource:
    def test_with_a_very_long_line_is_read(self, store: Store, tmp_path: Path) -> None:
        long = {"role": "user", "content": "x" * 10_000_000}
        session, _ = import_one(store, "chat", write_jsonl(tmp_path / "case.jsonl", [long]))
        assert len(entries_of(session)[0].message.text) == 10_000_000  # type: ignore[union-attr]

    @given(mangled_records([TUNED, SHARED, TUNED]))
    def test_of_conversations_however_mangled_gives_sound_sessions_or_a_reason(
        self, records: list[Record]
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert_survived("chat", write_jsonl(Path(folder, "case.jsonl"), records))
