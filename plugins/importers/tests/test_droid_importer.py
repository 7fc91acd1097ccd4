"""droid: messages, reminders, and the tokens that its settings tell once the session is quiet."""

from __future__ import annotations

import json
from pathlib import Path

from oakleaf.core.entries import Compaction
from oakleaf.store import Store
from support.import_sources import entries_of, import_one, store
from support.tool_sources import droid
from support.tool_sources.droid import SAMPLE

__all__ = ["store"]


class TestASession:
    def test_keeps_reminders_apart_calls_results_and_the_summary(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "droid", droid.write(tmp_path, SAMPLE))
        path = entries_of(session)
        assert [entry.role or entry.kind for entry in path] == [
            *("system", "user", "assistant", "tool", "assistant", "compaction", "note", "user"),
        ]
        compaction = path[5].payload
        assert isinstance(compaction, Compaction)
        assert compaction.summary == "They looked."
        assert path[2].evidence is not None

    def test_has_its_title_its_model_and_its_folder(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "droid", droid.write(tmp_path, SAMPLE))
        row = store.backend.session(session.session_id)
        assert (row.title, row.tags["cwd"]) == ("The shop", "/home/ann/shop")
        assert entries_of(session)[2].model == "claude-sonnet-4-5-20250929"

    def test_the_sums_grow_with_the_session_and_stay_one_row(self, store: Store, tmp_path: Path) -> None:
        place = droid.write(tmp_path, SAMPLE)
        settings = next(place.rglob("*.settings.json"))
        for tokens in (40, 130):
            used = {"inputTokens": tokens, "outputTokens": 1}
            settings.write_text(json.dumps({"model": "claude-sonnet-4-5", "tokenUsage": used}))
            session, _ = import_one(store, "droid", place)
            assert (session.usage().calls, session.usage().input_tokens) == (1, tokens)
