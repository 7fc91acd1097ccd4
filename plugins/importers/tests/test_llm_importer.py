"""logs.db of llm: the tree of messages it keeps since 0.32, and the rows of responses it kept before."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given

from oakleaf.core.entries import Settings
from oakleaf.core.messages import Media, Reasoning, Text, ToolCall
from oakleaf.errors import InvalidSource
from oakleaf.store import Store
from support.import_sources import (
    Record,
    assert_sound,
    assert_survived,
    entries_of,
    file_contents,
    import_all,
    import_one,
    mangled_records,
    memory_store,
    message_texts,
    store,
    write_sqlite,
)

__all__ = ["store"]

PNG = b"\x89PNG\r\n\x1a\n and the rest"


def row(table: str, **columns: Any) -> Record:
    return {"table": table, **columns}


def message(name: str, parent: str | None, role: str) -> Record:
    return row("messages", hash=name, parent_hash=parent, role=role, provider_metadata=None)


def part(owner: str, position: int, kind: str, words: str | None = None, **payload: Any) -> Record:
    return row("parts", message_hash=owner, position=position, type=kind, text=words, payload=payload or None)


def turn(name: str, parent: str, tip: str, tokens: tuple[int | None, int | None], second: int = 0) -> Record:
    at = f"2026-03-01T10:00:{second:02d}+00:00"
    about = {"model": "mock-large", "resolved_model": None, "options_json": None, "schema_id": None}
    spent = {"input_tokens": tokens[0], "output_tokens": tokens[1], "token_details": {"cached_tokens": 4}}
    where = {"thread_id": "t1", "parent_message_hash": parent, "tip_message_hash": tip}
    return row("turns", id=name, **where, **about, **spent, duration_ms=500, datetime_utc=at)


THREAD = row(
    "threads",
    id="t1",
    name="Order 41",
    tip_message_hash="m5",
    forked_from=None,
    datetime_utc="2026-03-01 10:00:00",
)
SIGNED = {"anthropic": {"signature": "sig"}}
TREE: list[Record] = [
    THREAD,
    message("m1", None, "system"),
    message("m2", "m1", "user"),
    message("m3", "m2", "assistant"),
    message("m4", "m3", "tool"),
    message("m5", "m4", "assistant"),
    part("m1", 0, "text", "You help."),
    part("m2", 0, "text", text_ref=[{"fragment": 1}, {"literal": "\nWhere is 41?"}]),
    part("m2", 1, "attachment", attachment={"id": "a1"}),
    part("m3", 0, "reasoning", "Look first.", provider_metadata=SIGNED),
    part("m3", 1, "text", "I look."),
    part("m3", 2, "tool_call", name="look", arguments={"order": 41}),
    part("m3", 3, "tool_call", name="weigh", arguments={}, tool_call_id="c2"),
    part("m4", 0, "tool_result", name="look", output="lost"),
    part("m4", 1, "tool_result", name="weigh", output="no scales", tool_call_id="c2", exception="KeyError"),
    part("m5", 0, "text", "It is lost."),
    row("fragments", id=1, content="The book of orders"),
    row("attachments", id="a1", type="image/png", path=None, url=None, content=PNG),
    turn("r1", "m2", "m3", (10, 3)),
    turn("r2", "m4", "m5", (20, 5), 2),
]
FORK = [message("m6", "m1", "user"), message("m7", "m6", "assistant"), part("m6", 0, "text", "Where is 42?")]
FORK += [part("m7", 0, "text", "Here."), turn("r3", "m6", "m7", (8, 1), 4)]


def response(name: str, prompt: str | None, answer: str | None, **more: Any) -> Record:
    about = {"model": "mock-small", "system": "You help.", "conversation_id": "c9", "options_json": {}}
    spent = {"input_tokens": 10, "output_tokens": 2, "datetime_utc": f"2025-03-01T10:00:0{name[-1]}"}
    return row("responses", id=name, prompt=prompt, response=answer, **{**about, **spent, **more})


ROWS: list[Record] = [
    row("conversations", id="c9", name="Old times", model="mock-small"),
    response("q1", "Where is 41?", "I look."),
    response("q2", None, "It is lost."),
    row("tool_calls", id=1, response_id="q1", name="look", arguments={"order": 41}, tool_call_id="x"),
    row("tool_results", id=1, response_id="q2", name="look", output="lost", tool_call_id="x", exception=None),
    row("prompt_fragments", response_id="q1", fragment_id=1, order=0),
    row("fragments", id=1, content="The book of orders"),
    row("prompt_attachments", response_id="q1", attachment_id="a1", order=0),
    row("attachments", id="a1", type="image/png", path=None, url="https://example.com/a.png", content=None),
]


class TestAThread:
    def test_becomes_a_session_with_its_parts(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", TREE))
        path = [entry.message for entry in entries_of(session) if entry.message is not None]
        assert [m.role for m in path] == ["system", "user", "assistant", "tool", "tool", "assistant"]
        assert path[1].parts[0] == Text("The book of orders\nWhere is 41?")
        assert isinstance(path[1].parts[1], Media)
        assert store.blob(path[1].parts[1]) == PNG
        assert path[2].parts[:2] == (Reasoning("Look first."), Text("I look."))
        assert [call.name for call in path[2].calls] == ["look", "weigh"]
        assert [(r.call_id, r.error) for m in path for r in m.results] == [("m3 0", False), ("c2", True)]
        assert report.losses == {}

    def test_keeps_title_times_model_and_usage(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", TREE))
        usage = session.usage()
        assert (usage.calls, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (
            2,
            30,
            8,
            8,
        )
        assert store.backend.session("llm-t1").title == "Order 41"
        answers = [entry for entry in entries_of(session) if entry.role == "assistant"]
        assert [(e.model, e.at % 60_000_000) for e in answers] == [
            ("mock-large", 500_000),
            ("mock-large", 2_500_000),
        ]

    def test_signatures_go_back_to_their_issuer(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", TREE))
        blocks = [block for m in session.messages("anthropic") for block in m["content"]]
        assert [b["signature"] for b in blocks if b["type"] == "thinking"] == ["sig"]

    def test_a_turn_from_an_earlier_message_is_a_branch(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", [*TREE, *FORK]))
        assert message_texts(store.session(session.session_id))[-1] == "It is lost."
        assert [branch.parent_seq for branch in session.branches()] == [0, 1]
        assert session.usage().input_tokens == 38

    def test_grows(self, store: Store, tmp_path: Path) -> None:
        start = [{**THREAD, "tip_message_hash": "m3"}, *TREE[1:-1]]
        import_one(store, "llm", write_sqlite(tmp_path / "logs.db", start))
        import_one(store, "llm", write_sqlite(tmp_path / "logs.db", TREE))
        moved = {**THREAD, "tip_message_hash": "m7"}
        session, report = import_one(
            store, "llm", write_sqlite(tmp_path / "logs.db", [moved, *TREE[1:], *FORK])
        )
        assert report.entries == 2
        assert message_texts(store.session(session.session_id)) == ["You help.", "Where is 42?", "Here."]

    def test_says_what_it_lost(self, store: Store, tmp_path: Path) -> None:
        strange = [part("m5", 1, "hologram"), part("m5", 2, "tool_call", name="search", server_executed=True)]
        response = {**turn("r4", "m4", "m5", (1, 1)), "options_json": {"temperature": 1}, "schema_id": "s"}
        _, report = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", [*TREE, *strange, response]))
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "an item of unknown kind, kept as a note": 1,
            "a tool call the provider ran": 1,
            "usage of an answer that already has one": 1,
            "the options of a model call": 1,
            "the output schema of an answer": 1,
        }

    def test_a_ring_of_parents_ends(self, store: Store, tmp_path: Path) -> None:
        ring = [{**TREE[1], "parent_hash": "m5"}, THREAD, *TREE[2:]]
        session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", ring))
        assert_sound(session)


class TestAnOlderConversation:
    def test_becomes_a_session_with_its_calls(self, store: Store, tmp_path: Path) -> None:
        session, report = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", ROWS))
        path = [entry.message for entry in entries_of(session) if entry.message is not None]
        assert [m.role for m in path] == ["system", "user", "assistant", "tool", "assistant"]
        assert path[1].text == "The book of orders\nWhere is 41?[image/png: https://example.com/a.png]"
        assert path[2].calls == (ToolCall("x", "look", {"order": 41}),)
        assert (session.usage().calls, session.usage().input_tokens) == (2, 20)
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "an attachment stored elsewhere; only its location is kept": 1
        }

    def test_its_options_and_tools_are_settings_where_they_change(self, store: Store, tmp_path: Path) -> None:
        schema = {"type": "object", "properties": {"order": {"type": "integer"}}}
        rows = [
            *ROWS,
            row("tools", id=7, name="look", description="Look up an order.", input_schema=schema),
            row("tool_responses", tool_id=7, response_id="q1"),
            row("tool_responses", tool_id=7, response_id="q2"),
            response("q3", "And 42?", "Here.", options_json={"temperature": 0.5, "mood": "good"}),
        ]
        session, report = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", rows))
        settings = [e.payload for e in entries_of(session) if isinstance(e.payload, Settings)]
        assert [
            (one.options, one.tool_definitions.names if one.tool_definitions else None) for one in settings
        ] == [
            (None, ("look",)),
            ({"temperature": 0.5}, ()),
        ]
        assert session.request("anthropic", at=2)["tools"][0]["input_schema"] == schema
        assert report.losses["an option of a model call that is not known here"].examples == ["mood='good'"]

    def test_another_prompt_is_told_where_it_began(self, store: Store, tmp_path: Path) -> None:
        more = response("q3", "And 42?", "Here.", system="You are brief.")
        session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", [*ROWS, more]))
        assert message_texts(store.session(session.session_id))[-3:] == ["You are brief.", "And 42?", "Here."]

    def test_a_response_of_none_is_a_session_of_its_own(self, store: Store, tmp_path: Path) -> None:
        alone = response("q7", "Hi", "Hello", conversation_id=None)
        reports = import_all(store, "llm", write_sqlite(tmp_path / "logs.db", [*ROWS, alone]))
        assert [report.session_id for report in reports] == ["llm-c9", "llm-q7"]

    def test_that_went_on_in_the_tree_is_told_once_with_all_it_cost(
        self, store: Store, tmp_path: Path
    ) -> None:
        old = [response("q1", "Where is 41?", "I look.", conversation_id="t1")]
        tree = [record for record in TREE if record.get("id") != "r1"]
        session, _ = import_one(store, "llm", write_sqlite(tmp_path / "logs.db", [*tree, *old]))
        assert (session.usage().calls, session.usage().input_tokens) == (2, 30)


class TestTheFile:
    @pytest.mark.parametrize("rows", [TREE, ROWS])
    def test_is_not_changed_and_nothing_appears_beside_it(
        self, store: Store, tmp_path: Path, rows: list[Record]
    ) -> None:
        (tmp_path / "in").mkdir()
        write_sqlite(tmp_path / "in/logs.db", rows)
        before = file_contents(tmp_path / "in")
        import_all(store, "llm", tmp_path / "in")
        assert file_contents(tmp_path / "in") == before

    def test_that_was_written_with_a_log_gets_none_from_being_read(
        self, store: Store, tmp_path: Path
    ) -> None:
        path = write_sqlite(tmp_path / "logs.db", TREE)
        with contextlib.closing(apsw.Connection(str(path))) as writer:
            writer.execute("pragma journal_mode = wal")
        before = file_contents(tmp_path)
        assert list(before) == ["logs.db"]
        import_one(store, "llm", path)
        assert file_contents(tmp_path) == before

    def test_whose_writer_died_is_read_with_its_log(self, store: Store, tmp_path: Path) -> None:
        path = write_sqlite(tmp_path / "logs.db", TREE)
        (tmp_path / "in").mkdir()
        with contextlib.closing(apsw.Connection(str(path))) as writer:
            writer.execute("pragma journal_mode = wal")
            writer.execute("update threads set name = 'Renamed'")
            for suffix in ("", "-wal"):  # as a kill leaves them
                shutil.copy(f"{path}{suffix}", tmp_path / "in")
        before = file_contents(tmp_path / "in")
        import_one(store, "llm", tmp_path / "in")
        assert store.backend.session("llm-t1").title == "Renamed"
        assert file_contents(tmp_path / "in") == before

    def test_that_is_being_written_is_read_with_its_log(self, tmp_path: Path) -> None:
        path = write_sqlite(tmp_path / "logs.db", TREE)
        with contextlib.closing(apsw.Connection(str(path))) as writer, memory_store() as store:
            writer.execute("pragma journal_mode = wal")
            writer.execute("update threads set name = 'Renamed'")
            before = file_contents(tmp_path)
            import_one(store, "llm", path)
            assert store.backend.session("llm-t1").title == "Renamed"
            assert file_contents(tmp_path) == before
            assert any(name.endswith("-wal") for name in before)

    @pytest.mark.parametrize("body", [b"", b"SQLite format 3\0" + b"\xff" * 5_000, b"hello", b"\0" * 4096])
    def test_that_is_no_database_is_refused(self, tmp_path: Path, body: bytes) -> None:
        (tmp_path / "logs.db").write_bytes(body)
        with memory_store() as store, pytest.raises(InvalidSource):
            list(store.import_from("llm", str(tmp_path)))

    @given(mangled_records(TREE))
    def test_with_a_mangled_tree_gives_a_sound_session_or_a_reason(self, rows: list[Record]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert_survived("llm", write_sqlite(Path(folder, "logs.db"), rows))

    @given(mangled_records(ROWS))
    def test_with_mangled_rows_gives_a_sound_session_or_a_reason(self, rows: list[Record]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert_survived("llm", write_sqlite(Path(folder, "logs.db"), rows))
