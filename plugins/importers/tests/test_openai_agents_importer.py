"""Sessions of OpenAI Agents in a SQLite file; those its own code writes are in `frameworks/test_importers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oakleaf.core.messages import Text, ToolCall
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

ITEMS: list[Record] = [
    {"role": "user", "content": "Where is 41?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        "provider_data": {"model": "gpt-5-mini"},
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"order":41}'},
    {"type": "function_call_output", "call_id": "c1", "output": "lost"},
    {"role": "assistant", "content": "It is lost."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Bye."},
]


def rows(items: list[Record], session: str = "s1", first: int = 1) -> list[Record]:
    at = "2026-03-01 10:00:00"
    return [
        {"table": "agent_messages", "id": n, "session_id": session, "message_data": item, "created_at": at}
        for n, item in enumerate(items, first)
    ]


def structure_rows(branch: str, ids: list[int], turns: list[int], first: int) -> list[Record]:
    return [
        {
            "table": "message_structure",
            "id": first + n,
            "session_id": "s1",
            "message_id": number,
            "branch_id": branch,
            "sequence_number": n,
            "user_turn_number": turn,
        }
        for n, (number, turn) in enumerate(zip(ids, turns, strict=True), 1)
    ]


def usage_row(branch: str, turn: int, tokens: tuple[int, int], **more: Any) -> Record:
    cached = {"input_tokens_details": {"cached_tokens": 5}}
    base = {
        "table": "turn_usage",
        "id": turn,
        "session_id": "s1",
        "branch_id": branch,
        "user_turn_number": turn,
    }
    return base | {"requests": 1, "input_tokens": tokens[0], "output_tokens": tokens[1]} | cached | more


ABOUT = {"table": "agent_sessions", "session_id": "s1", "created_at": "2026-03-01 09:59:00"}
PLAIN = [ABOUT, *rows(ITEMS)]
OTHER = [{"role": "user", "content": "And 42?"}, {"role": "assistant", "content": "Here."}]
BRANCHED = [
    *PLAIN,
    *rows(OTHER, first=9),
    *structure_rows("main", list(range(1, 9)), [1, 1, 1, 1, 1, 1, 2, 2], 0),
    *structure_rows("other", [1, 2, 3, 4, 5, 6, 9, 10], [1, 1, 1, 1, 1, 1, 2, 2], 100),
    usage_row("main", 1, (30, 6), requests=2),
    usage_row("main", 2, (40, 1)),
    usage_row("other", 2, (50, 2)),
]


class TestAPlainSession:
    def test_becomes_one_with_its_items_as_answers_calls_and_results(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, report = import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", PLAIN))
        path = [entry.message for entry in entries_of(session) if entry.message is not None]
        assert [m.role for m in path] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert path[1].parts[1:] == (Text("I look."), ToolCall("c1", "look", {"order": 41}))
        assert [entry.model for entry in entries_of(session)][:2] == [None, "gpt-5-mini"]
        assert store.backend.session(session.session_id).started_at == 1_772_359_140_000_000
        assert report.losses == {}

    def test_it_is_found_under_the_id_its_program_gave_it(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", PLAIN))
        latest = store.latest("s1")
        assert latest is not None
        assert latest.session_id == session.session_id

    def test_reasoning_goes_back_to_openai(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", PLAIN))
        assert [
            i.get("encrypted_content") for i in session.messages("openai") if i.get("type") == "reasoning"
        ] == ["gAAA"]

    def test_each_of_a_file_is_told(self, store: Store, tmp_path: Path) -> None:
        reports = import_all(
            store, "openai-agents", write_sqlite(tmp_path / "a.db", [*PLAIN, *rows(OTHER, "s2", 20)])
        )
        assert [report.source for report in reports] == ["s1", "s2"]

    def test_a_status_that_openai_would_refuse_is_not_sent_back(self, store: Store, tmp_path: Path) -> None:
        """The campaign of mangled sources found it: `verify` told of a request that OpenAI refuses."""
        items = [ITEMS[0], {**ITEMS[2], "status": "\0"}]
        session, _ = import_one(
            store, "openai-agents", write_sqlite(tmp_path / "a.db", [ABOUT, *rows(items)])
        )
        assert session.verify() == []

    def test_says_what_it_lost(self, store: Store, tmp_path: Path) -> None:
        strange = [
            {"__enc__": 1, "payload": "x"},
            {"type": "web_search_call", "id": "ws_1"},
            {"type": "compaction"},
        ]
        _, report = import_one(
            store, "openai-agents", write_sqlite(tmp_path / "a.db", [*PLAIN, *rows(strange, first=20)])
        )
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "an item encrypted by the application": 1,
            "a search the provider ran": 1,
            "an item of unknown kind, kept as a note": 1,
        }


class TestBranches:
    def test_share_what_they_list_both(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", BRANCHED))
        assert [branch.parent_seq for branch in session.branches()] == [0, 4]
        assert message_texts(store.session("openai-agents-s1"))[-2:] == ["And 42?", "Here."]

    def test_usage_is_that_of_their_turns(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", BRANCHED))
        usage = session.usage()
        assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
            3,
            120,
            9,
            15,
        )
        assert session.usage("path").input_tokens == 80
        assert list(report.losses) == ["how a turn's tokens are distributed over its model calls"]

    def test_one_made_since_grows(self, store: Store, tmp_path: Path) -> None:
        import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", PLAIN))
        _, report = import_one(store, "openai-agents", write_sqlite(tmp_path / "a.db", BRANCHED))
        assert report.entries == 2
