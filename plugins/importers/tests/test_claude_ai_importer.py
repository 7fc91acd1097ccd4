"""Claude.ai exports: branches by parent, and the steps within one message."""

from __future__ import annotations

from pathlib import Path

from oakleaf.core.entries import Note
from oakleaf.core.messages import Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import entries_of, import_all, import_one, memory_store, message_texts, store
from support.tool_sources import claude_ai, stored_counts
from support.tool_sources.claude_ai import ROOT, SAMPLE, message, text

__all__ = ["store"]


class TestAConversation:
    def test_splits_a_message_into_answers_and_results(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "claude-ai", claude_ai.write(tmp_path, SAMPLE))
        path = [
            entry.message for entry in entries_of(store.session("claude-ai-34bd-calendar")) if entry.message
        ]
        assert [each.role for each in path] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert path[1].parts == (
            Reasoning("Look first."),
            Text("I look."),
            ToolCall("toolu_1", "calendar:list", {"days": 7}),
            ToolCall("toolu_2", "calendar:list", {"days": 14}),
        )
        assert [result.error for each in path for result in each.results] == [False, True]

    def test_an_edited_question_is_a_branch(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "claude-ai", claude_ai.write(tmp_path, SAMPLE))
        session = store.session("claude-ai-34bd-calendar")
        assert message_texts(session)[-2:] == ["Keep them.A long paste.", "Good."]
        assert len(session.branches()) == 2
        assert isinstance(entries_of(session)[-1].payload, Note)

    def test_without_parents_is_one_line_and_a_result_without_an_id_finds_its_call(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, report = import_one(store, "claude-ai", claude_ai.write(tmp_path, SAMPLE[1:]))
        path = [entry.message for entry in entries_of(session) if entry.message]
        assert [each.role for each in path] == ["user", "assistant", "tool", "assistant"]
        assert path[1].calls[0].id == path[2].results[0].call_id
        assert report.losses["a file that is not in the export"].count == 1

    def test_the_oldest_exports_have_only_the_text(self, store: Store, tmp_path: Path) -> None:
        lines = [message("a", ROOT, "human", 1, text("Hi")), message("b", "a", "assistant", 2, text("Hello"))]
        for line in lines:
            del line["content"]
        record = {"uuid": "u", "name": "Old", "chat_messages": lines}
        session, _ = import_one(store, "claude-ai", claude_ai.write(tmp_path, [record]))
        assert message_texts(session) == ["Hi", "Hello"]

    def test_a_later_export_adds_only_what_is_new(self, tmp_path: Path) -> None:
        messages = SAMPLE[0]["chat_messages"]
        with memory_store() as growing, memory_store() as whole:
            for end in range(1, len(messages) + 1):
                record = {**SAMPLE[0], "chat_messages": messages[:end]}
                import_all(growing, "claude-ai", claude_ai.write(tmp_path, [record]))
            import_all(whole, "claude-ai", claude_ai.write(tmp_path, SAMPLE[:1]))
            assert stored_counts(growing) == stored_counts(whole)
