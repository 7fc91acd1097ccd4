"""opencode: steps, compactions, sub-agents, both layouts, and an answer that is still being written."""

from __future__ import annotations

import copy
from pathlib import Path

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Media, Reasoning, Text
from oakleaf.store import Store
from support.import_sources import entries_of, import_all, import_one, memory_store, store
from support.tool_sources import opencode, opencode_2, stored_counts
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


class TestASessionOfVersion2:
    def test_keeps_answers_results_and_what_the_user_ran(self, store: Store, tmp_path: Path) -> None:
        session, _ = import_one(store, "opencode", opencode.write(tmp_path, opencode_2.SAMPLE))
        path = entries_of(session)
        roles = [entry.role or entry.kind for entry in path]
        assert roles == [
            *("user", "assistant", "tool", "tool", "note", "assistant"),
            *("system", "system", "compaction", "user", "assistant"),
        ]
        assert path[1].evidence is not None
        assert path[1].evidence.parts == {"0": {"signature": "sig"}}
        (shown,) = path[2].message.results if path[2].message else ()
        assert [type(part) for part in shown.content] == [Text, Media]
        assert shown.details == {"opencode": {"metadata": {"exit": 0}}}
        (failed,) = path[3].message.results if path[3].message else ()
        assert (failed.error, failed.content) == (True, (Text("no such file"),))
        assert path[8].payload == Compaction("They looked.\n\nA shop.", 9, replaces_earlier=True)

    def test_is_read_beside_those_of_version_1(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "opencode", opencode.write(tmp_path, [*SAMPLE, *opencode_2.SAMPLE]))
        names = {row.session_id for row in store.all_sessions()}
        assert names == {"opencode-ses_a", "opencode-ses_b", "opencode-ses_c", "opencode-ses_d"}

    def test_that_version_1_began_is_one_session(self, tmp_path: Path) -> None:
        moved = {**SAMPLE[0], "table": "session_v2"}
        copied = opencode_2.message("msg_1", A, 1, "user", text="What is here?")
        later = opencode_2.message("msg_z", A, 60, "user", text="And now?")
        with memory_store() as store:
            import_all(store, "opencode", opencode.write(tmp_path / "1", SAMPLE))
            before = entries_of(store.session(f"opencode-{A}"))
            import_all(store, "opencode", opencode.write(tmp_path / "2", [*SAMPLE, moved, copied, later]))
            after = entries_of(store.session(f"opencode-{A}"))
            assert [e.entry_id for e in after[: len(before)]] == [e.entry_id for e in before]
            assert [e.message.text for e in after[len(before) :] if e.message] == ["And now?"]

    def test_names_the_file_of_a_result_that_is_elsewhere(self, store: Store, tmp_path: Path) -> None:
        file = {"type": "file", "uri": "file:///home/ann/plot.png", "mime": "image/png", "name": "plot.png"}
        call = opencode_2.tool("toolu_9", 3, "completed", file)
        sample = [opencode_2.SAMPLE[0], opencode_2.answer("msg_c2", "ses_c", 2, [call], 0, opencode.tokens())]
        session, report = import_one(store, "opencode", opencode.write(tmp_path, sample))
        (result,) = [part for entry in session.path() if entry.message for part in entry.message.results]
        assert result.content == (Text("[file plot.png: not in the session]"),)
        assert report.losses["a file that is not in the session"].count == 1
