"""Cline and Roo Code: messages of both layouts, and the requests that the screen showed."""

from __future__ import annotations

from pathlib import Path

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Reasoning, Text
from oakleaf.store import Store
from support.import_sources import entries_of, import_all, import_one, store
from support.tool_sources import cline, roo_code
from support.tool_sources.cline import SAMPLE, SESSION, TASK

__all__ = ["store"]


class TestASessionOfCline:
    def test_keeps_calls_results_cost_and_the_signature_of_anthropic(
        self, store: Store, tmp_path: Path
    ) -> None:
        import_all(store, "cline", cline.write(tmp_path, SAMPLE))
        session = store.session(f"cline-{SESSION}")
        path = entries_of(session)
        roles = [entry.role or entry.kind for entry in path]
        assert roles == ["user", "assistant", "tool", "tool", "note", "assistant"]
        assert path[1].evidence is not None
        assert path[1].evidence.parts == {"0": {"signature": "sig"}}
        assert [r.error for e in path if e.message for r in e.message.results] == [False, True]
        (call,) = session.model_calls()
        assert call.price is not None
        assert (call.price.microcents, call.price.version) == (13_000_000, "recorded by cline")

    def test_has_its_title_and_its_sub_agent_as_task(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "cline", cline.write(tmp_path, SAMPLE))
        row = store.backend.session(f"cline-{SESSION}")
        assert (row.title, row.tags["cwd"]) == ("The shop", "/home/ann/shop")
        assert store.backend.session("cline-agent_1").relation == "task"


class TestATask:
    def test_a_request_belongs_to_the_answer_after_it_and_one_without_is_a_note(
        self, store: Store, tmp_path: Path
    ) -> None:
        import_all(store, "cline", cline.write(tmp_path, SAMPLE))
        session = store.session(f"cline-{TASK}")
        path = entries_of(session)
        assert [entry.role or entry.kind for entry in path] == [
            "user",
            "assistant",
            "tool",
            "note",
            "assistant",
        ]
        assert isinstance(path[3].payload, Note)
        calls = session.model_calls()
        assert [call.answer_seq for call in calls] == [2, None, 5]
        assert [call.model for call in calls] == ["claude-sonnet-4-5"] * 3

    def test_without_times_requests_and_answers_are_matched_in_order(
        self, store: Store, tmp_path: Path
    ) -> None:
        records = [
            {key: value for key, value in record.items() if key != "ts" or record["file"] == "screen"}
            for record in SAMPLE
            if record["file"] in ("task", "screen")
        ]
        import_all(store, "cline", cline.write(tmp_path, records))
        calls = store.session(f"cline-{TASK}").model_calls()
        assert [call.answer_seq for call in calls] == [2, 4]


class TestATaskOfRooCode:
    def test_keeps_reasoning_the_model_and_the_summary(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "roo-code", roo_code.write(tmp_path, roo_code.SAMPLE))
        path = entries_of(session)
        assert path[1].message is not None
        assert path[1].message.parts[:2] == (Reasoning("Look."), Text("I look."))
        assert path[1].model == "claude-sonnet-4-5"
        assert [e.payload.summary for e in path if isinstance(e.payload, Compaction)] == ["They looked."]

    def test_one_that_a_task_started_is_its_task(self, store: Store, tmp_path: Path) -> None:
        import_one(store, "roo-code", roo_code.write(tmp_path, roo_code.SAMPLE))
        row = store.backend.session(f"roo-code-{roo_code.CHILD}")
        assert (row.relation, row.parent_session) == ("task", f"roo-code-{roo_code.MAIN}")
