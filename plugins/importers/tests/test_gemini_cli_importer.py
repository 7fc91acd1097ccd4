"""gemini-cli: messages that are written again, rewinds, compactions, and an answer that may not be finished."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oakleaf.core.entries import Compaction
from oakleaf.core.messages import Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import (
    assert_sound,
    entries_of,
    import_all,
    import_one,
    memory_store,
    message_texts,
    store,
)
from support.tool_sources import gemini_cli, stored_counts
from support.tool_sources.gemini_cli import MAIN, QUIET, SAMPLE, head, message

__all__ = ["store"]


class TestASession:
    def test_keeps_thoughts_calls_and_results_once(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "gemini-cli", gemini_cli.write(tmp_path, SAMPLE))
        path = entries_of(session)
        assert [entry.role or entry.kind for entry in path] == [
            *("system", "user", "assistant", "tool", "tool", "assistant", "note", "note"),
            *("user", "assistant", "note", "compaction", "user"),
        ]
        assert path[2].message is not None
        assert path[2].message.parts == (
            Reasoning("Plan\nRead it."),
            Text("I look."),
            ToolCall("c1", "read_file", {"path": "c1"}),
            ToolCall("c2", "read_file", {"path": "c2"}),
        )
        assert [r.error for e in path if e.message for r in e.message.results] == [False, True]

    def test_a_rewind_is_a_branch_and_a_summary_a_compaction(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "gemini-cli", gemini_cli.write(tmp_path, SAMPLE))
        assert "Mended." not in message_texts(session)
        assert len(session.branches()) == 2
        compaction = entries_of(session)[11].payload
        assert isinstance(compaction, Compaction)
        assert (compaction.summary, compaction.first_kept) == ("They painted a shop.", 9)

    def test_ids_that_are_no_texts_do_not_end_the_import(self, store: Store, tmp_path: Path) -> None:
        strange = [
            {"id": {"a": 1}, "type": "user", "content": "x"},
            {"id": [], "type": "user", "content": "y"},
        ]
        lines = [*SAMPLE, {"file": "main", "$set": {"messages": strange}}]
        session, _ = import_one(store, "gemini-cli", gemini_cli.write(tmp_path, lines))
        assert_sound(session)

    def test_has_its_summary_as_title_and_its_sub_agent_as_task(self, store: Store, tmp_path: Path) -> None:
        import_one(store, "gemini-cli", gemini_cli.write(tmp_path, SAMPLE))
        assert store.backend.session(f"gemini-cli-{MAIN}").title == "Paint the shop"
        assert store.backend.session(f"gemini-cli-{gemini_cli.SUB}").relation == "task"

    @pytest.mark.parametrize("is_recorded", [True, False])
    def test_of_a_sub_agent_keeps_results_of_calls_without_ids(
        self, store: Store, tmp_path: Path, is_recorded: bool
    ) -> None:
        """Gemini 2.5 gives calls no ids, and gemini-cli gives the responses some."""
        names = ("a.py", "b.py")
        made = [{"functionCall": {"name": "read_file", "args": {"path": name}}} for name in names]
        answers = [
            {"functionResponse": {"id": f"p-{n}", "name": "read_file", "response": {"output": name}}}
            for n, name in enumerate(names)
        ]
        records = [
            {"id": f"p-{n}", "name": "read_file", "args": {}, "status": "success", "result": [answer]}
            for n, answer in enumerate(answers)
        ]
        more = {"toolCalls": records} if is_recorded else {}
        lines = [
            head(gemini_cli.SUB, kind="subagent"),
            message("a", "user", 1, [{"text": "Look."}]),
            message("b", "gemini", 2, made, model="gemini-2.5-pro", **more),
            message("c", "user", 3, answers),
            message("d", "gemini", 4, made, model="gemini-2.5-pro", **more),
            message("e", "user", 5, answers),
        ]
        session, report = import_one(store, "gemini-cli", gemini_cli.write(tmp_path, lines))
        results = [r for entry in session.path() if entry.message for r in entry.message.results]
        assert [(r.content, r.error) for r in results] == [((Text(name),), False) for name in names] * 2
        assert report.losses == {}

    def test_of_an_older_version_is_one_object(self, store: Store, tmp_path: Path) -> None:
        messages = [message("a", "user", 1, "Hi"), message("b", "gemini", 2, "Hello", model="gemini-2.5-pro")]
        path = tmp_path / "chats/session-2025.json"
        path.parent.mkdir()
        path.write_text(json.dumps({**head("old"), "messages": messages}))
        os.utime(path, (QUIET, QUIET))
        session, _ = import_one(store, "gemini-cli", tmp_path)
        assert message_texts(session) == ["Hi", "Hello"]

    def test_that_is_being_written_keeps_back_its_last_answer_and_counts_each_call_once(
        self, tmp_path: Path
    ) -> None:
        with memory_store() as growing, memory_store() as whole:
            for end in range(1, len(SAMPLE) + 1):
                place = gemini_cli.write(tmp_path / "in", SAMPLE[:end])
                for path in place.rglob("*.jsonl"):
                    os.utime(path)
                list(growing.import_from("gemini-cli", str(place)))
            assert stored_counts(growing).model_calls == 4
            place = gemini_cli.write(tmp_path / "in", SAMPLE)
            import_all(growing, "gemini-cli", place)
            import_all(whole, "gemini-cli", place)
            assert stored_counts(growing) == stored_counts(whole)

    def test_an_answer_whose_calls_took_long_is_replaced_and_counted_once(self, tmp_path: Path) -> None:
        with memory_store() as growing, memory_store() as whole:
            for end in (4, 6, len(SAMPLE)):  # the first state is quiet: its last answer is taken as finished
                import_all(growing, "gemini-cli", gemini_cli.write(tmp_path / "in", SAMPLE[:end]))
            import_all(whole, "gemini-cli", tmp_path / "in")
            grown, at_once = stored_counts(growing), stored_counts(whole)
            assert (grown.model_calls, grown.tokens) == (at_once.model_calls, at_once.tokens)
            assert message_texts(growing.session(f"gemini-cli-{MAIN}")) == message_texts(
                whole.session(f"gemini-cli-{MAIN}")
            )
