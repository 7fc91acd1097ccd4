"""goose: answers of several rows, compactions, both layouts, and the sums of a running session."""

from __future__ import annotations

from pathlib import Path

from oakleaf.core.entries import Compaction
from oakleaf.core.messages import Reasoning, Text
from oakleaf.store import Store
from support.import_sources import entries_of, import_all, import_one, memory_store, store
from support.tool_sources import goose, stored_counts
from support.tool_sources.goose import SAMPLE, SESSION

__all__ = ["store"]


class TestASession:
    def test_joins_the_rows_of_an_answer_and_leaves_out_what_is_only_for_the_user(
        self, store: Store, tmp_path: Path
    ) -> None:
        session, _ = import_one(store, "goose", goose.write(tmp_path, SAMPLE))
        path = entries_of(session)
        assert [entry.role or entry.kind for entry in path] == [
            *("user", "assistant", "tool", "tool", "assistant", "compaction", "note", "user", "assistant"),
        ]
        assert path[1].message is not None
        assert path[1].message.parts[:2] == (Reasoning("Look first."), Text("I look."))
        assert [call.id for call in path[1].message.calls] == ["c1", "c2"]
        assert path[2].message is not None
        assert path[2].message.results[0].content == (Text("shop.py"),)

    def test_a_summary_that_hides_what_was_before_is_a_compaction(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "goose", goose.write(tmp_path, SAMPLE))
        compaction = entries_of(session)[5].payload
        assert isinstance(compaction, Compaction)
        assert compaction.summary == "They looked."

    def test_the_sums_grow_with_the_session_and_stay_one_row(self, store: Store, tmp_path: Path) -> None:
        for tokens in (100, 1_200):
            about = {**SAMPLE[0], "accumulated_input_tokens": tokens}
            session, _ = import_one(store, "goose", goose.write(tmp_path, [about, *SAMPLE[1:]]))
            assert (session.usage().calls, session.usage().input_tokens) == (1, tokens)

    def test_the_file_of_an_older_version_gives_the_same(self, tmp_path: Path) -> None:
        with memory_store() as first, memory_store() as second:
            import_all(first, "goose", goose.write(tmp_path / "db", SAMPLE))
            path = goose.write_lines(tmp_path / "lines", SAMPLE)
            import_all(second, "goose", path)
            before, after = stored_counts(first), stored_counts(second)
            assert before[:4] == after[:4]
            assert second.backend.session(f"goose-{SESSION}").title == "The shop"
