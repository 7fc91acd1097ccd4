"""opencode: steps, compactions, sub-agents, both layouts, and an answer that is still being written."""

from __future__ import annotations

import copy
from pathlib import Path

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Media, Reasoning, Text
from oakleaf.store import Store
from support.import_sources import entries_of, import_all, import_one, memory_store, store
from support.tool_sources import opencode, stored_counts
from support.tool_sources.opencode import SAMPLE, A

__all__ = ["store"]


class TestASession:
    def test_keeps_steps_with_their_calls_results_and_signatures(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "opencode", opencode.write(tmp_path, SAMPLE))
        path = entries_of(session)
        roles = [entry.role or entry.kind for entry in path]
        assert roles == [
            *("user", "system", "note", "assistant", "tool", "tool", "assistant"),
            *("compaction", "user", "note"),
        ]
        assert path[3].message is not None
        assert path[3].message.parts[:2] == (Reasoning("Look first."), Text("I look."))
        assert path[5].message is not None
        assert (path[5].message.results[0].error, path[5].message.results[0].content) == (
            True,
            (Text("no such file"),),
        )
        blocks = [
            block for m in session.messages("anthropic") for block in m["content"] if isinstance(block, dict)
        ]
        assert path[3].evidence is not None
        assert path[3].evidence.parts == {"0": {"signature": "sig"}}
        assert blocks

    def test_an_image_is_a_blob_and_what_opencode_added_is_not_the_users(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, _ = import_one(store, "opencode", opencode.write(tmp_path, SAMPLE))
        first, second = (entry.message for entry in entries_of(session)[:2])
        assert first is not None
        assert second is not None
        assert [type(part) for part in first.parts] == [Text, Media]
        assert second.text == "Called the Read tool"

    def test_a_compaction_keeps_from_the_message_it_names_and_was_paid_for(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, _ = import_one(store, "opencode", opencode.write(tmp_path, SAMPLE))
        compaction = entries_of(session)[7].payload
        assert isinstance(compaction, Compaction)
        assert (compaction.summary, compaction.first_kept) == ("They looked.", 7)
        assert "compaction" in [call.purpose for call in session.model_calls()]

    def test_an_answer_that_failed_is_a_note_that_says_why(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "opencode", opencode.write(tmp_path, SAMPLE))
        note = entries_of(session)[-1].payload
        assert isinstance(note, Note)
        assert note.data["error"] == "no"

    def test_a_sub_agent_is_a_task(self, store: Store, tmp_path: Path) -> None:
        import_one(store, "opencode", opencode.write(tmp_path, SAMPLE))
        row = store.backend.session("opencode-ses_b")
        assert (row.relation, row.parent_session, row.agent) == ("task", "opencode-ses_a", "explore")

    def test_the_leaf_is_before_the_message_the_user_went_back_to(self, store: Store, tmp_path: Path) -> None:
        back = [{**SAMPLE[0], "revert": {"messageID": "msg_6"}}, *SAMPLE[1:]]
        session, _ = import_one(store, "opencode", opencode.write(tmp_path, back))
        assert entries_of(session)[-1].kind == "compaction"

    def test_an_answer_that_is_being_written_is_left_for_the_next_import(self, tmp_path: Path) -> None:
        unfinished = copy.deepcopy(SAMPLE[:11])
        del unfinished[5]["data"]["time"]["completed"]
        with memory_store() as growing, memory_store() as whole:
            _, report = import_one(growing, "opencode", opencode.write(tmp_path / "1", unfinished))
            assert report.unfinished == 1
            assert stored_counts(growing).calls == 0
            import_all(growing, "opencode", opencode.write(tmp_path / "2", SAMPLE))
            import_all(whole, "opencode", opencode.write(tmp_path / "2", SAMPLE))
            assert stored_counts(growing) == stored_counts(whole)

    def test_the_files_of_older_versions_give_the_same(self, tmp_path: Path) -> None:
        with memory_store() as first, memory_store() as second:
            import_all(first, "opencode", opencode.write(tmp_path / "db", SAMPLE))
            import_all(second, "opencode", opencode.write_files(tmp_path / "files", SAMPLE))
            assert stored_counts(first) == stored_counts(second)
            assert [e.entry_id for e in first.session(f"opencode-{A}").path()] == [
                e.entry_id for e in second.session(f"opencode-{A}").path()
            ]
