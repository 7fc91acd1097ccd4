"""Copilot CLI: events become a transcript, rewinds branches, shutdowns the ledger."""

from __future__ import annotations

from pathlib import Path

from oakleaf.core.entries import Compaction
from oakleaf.core.messages import Reasoning, Text, ToolCall
from oakleaf.store import Store
from support.import_sources import entries_of, import_one, message_texts, store
from support.tool_sources import copilot_cli
from support.tool_sources.copilot_cli import SAMPLE, SESSION, event, shutdown

__all__ = ["store"]


class TestASession:
    def test_keeps_reasoning_calls_results_and_errors(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "copilot-cli", copilot_cli.write(tmp_path, SAMPLE))
        path = entries_of(session)
        assert [entry.role or entry.kind for entry in path] == [
            *("system", "user", "assistant", "tool", "tool", "assistant", "note", "note"),
            *("user", "assistant", "compaction", "note"),
        ]
        assert path[2].message is not None
        assert path[2].message.parts == (
            Reasoning("Look first."),
            Text("I look."),
            ToolCall("c1", "bash", {"command": "ls"}),
            ToolCall("c2", "task", {"prompt": "Find it."}),
        )
        assert [r.error for e in path if e.message for r in e.message.results] == [False, True]
        assert path[2].model == "gpt-5"

    def test_a_rewind_is_a_branch_and_a_summary_a_compaction(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "copilot-cli", copilot_cli.write(tmp_path, SAMPLE))
        assert "Mended." not in message_texts(session)
        assert len(session.branches()) == 2
        compactions = [e.payload for e in entries_of(session) if isinstance(e.payload, Compaction)]
        assert [(each.summary, each.tokens_before) for each in compactions] == [("They painted.", 900)]

    def test_a_sub_agent_is_a_task_that_begins_with_its_prompt(self, store: Store, tmp_path: Path) -> None:
        import_one(store, "copilot-cli", copilot_cli.write(tmp_path, SAMPLE))
        task = store.session(f"copilot-cli-{SESSION}-c2")
        assert message_texts(task) == ["Find it.", "Found."]
        row = store.backend.session(task.session_id)
        assert (row.relation, row.agent) == ("task", "explore")

    def test_sums_of_another_process_are_counted_whole(self, store: Store, tmp_path: Path) -> None:
        later = {**shutdown(0, inputTokens=10, outputTokens=1), "sessionStartTime": 1_772_359_300_000}
        records = [*SAMPLE, event("e21", "session.shutdown", 18, later)]
        session, _ = import_one(store, "copilot-cli", copilot_cli.write(tmp_path, records))
        assert session.usage("own").input_tokens == 24_859
