"""qwen-code: records by parent, what the tool wrote in the user's role, compactions, sub-agents."""

from __future__ import annotations

from pathlib import Path

from oakleaf.core.entries import Compaction
from oakleaf.core.messages import Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import entries_of, import_one, message_texts, store
from support.tool_sources import qwen_code
from support.tool_sources.qwen_code import SAMPLE, SESSION

__all__ = ["store"]


class TestASession:
    def test_keeps_calls_and_results_and_goes_back_where_the_parent_is(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, report = import_one(store, "qwen-code", qwen_code.write(tmp_path, SAMPLE))
        path = entries_of(session)
        assert [entry.role or entry.kind for entry in path] == [
            *("user", "assistant", "tool", "assistant", "user", "assistant", "note", "compaction", "system"),
        ]
        assert path[1].message is not None
        assert path[1].message.parts == (
            Reasoning("Look first."),
            Text("I look."),
            ToolCall("c1", "run_shell_command", {"command": "ls"}),
        )
        assert "Mended." not in message_texts(session)
        assert report.losses["a bookkeeping record of the tool"].count == 3

    def test_keeps_title_folder_branch_and_the_summary_of_a_compaction(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, _ = import_one(store, "qwen-code", qwen_code.write(tmp_path, SAMPLE))
        row = store.backend.session(session.session_id)
        assert (row.title, row.tags["cwd"], row.tags["git_branch"]) == ("The shop", "/home/ann/shop", "main")
        compaction = entries_of(session)[7].payload
        assert isinstance(compaction, Compaction)
        assert compaction.summary == "They painted.\n\nGot it."

    def test_a_sub_agent_is_a_task(self, store: Store, tmp_path: Path) -> None:
        import_one(store, "qwen-code", qwen_code.write(tmp_path, SAMPLE))
        row = store.backend.session(f"qwen-code-{SESSION}-agent-a")
        assert (row.relation, row.agent) == ("task", "Explore")
