"""Logs of Inspect: what `oakleaf export --format inspect` writes is read back, and so are Inspect's own logs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from backports.zstd import zipfile
from hypothesis import Phase, given, settings

from oakleaf import ToolCall, assistant, system
from oakleaf.core.entries import Compaction
from oakleaf.core.usage import Usage
from oakleaf.errors import InvalidSource
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_importers.formats.zstd import ZIP_METHOD
from support.import_sources import entries_of, import_all, import_one, memory_store, store
from support.random_sessions import sessions
from support.sessions import exported
from support.tool_sources import inspect_log, stored_counts
from support.tool_sources.inspect_log import SAMPLE

__all__ = ["store"]

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"


def chats(session: Session) -> list[Any]:
    """Return the messages of the exported log, without their ids, and without the model, which a call may tell later."""
    (sample,) = json.loads(exported(session, "inspect", redact=False))["samples"]
    return [
        {key: value for key, value in chat.items() if key not in ("id", "model")}
        for chat in sample["messages"]
    ]


def import_export(store: Store, session: Session, folder: Path) -> Session:
    path = folder / "log.json"
    path.write_text(exported(session, "inspect", redact=False))
    imported, _ = import_one(store, "inspect", path)
    return imported


class TestWhatWeWrite:
    def test_is_read_back_with_messages_calls_results_usage_and_cost(
        self, store: Store, tmp_path: Path
    ) -> None:
        session = store.start("support", [system("You help.")], title="Order 41")
        with session.turn("Where?") as turn:
            looks = assistant("I look.", ToolCall("c", "lookup", {"order": 41}), ToolCall("d", "lookup", {}))
            turn.answer(looks, usage=Usage(100, 10, 60, 30), provider="anthropic", model="claude-sonnet-4-5")
            turn.result("c", "lost")
            turn.result("d", "gone", error=True)
            turn.answer(
                assistant("It is lost."),
                usage=Usage(150, 20),
                provider="anthropic",
                model="claude-sonnet-4-5",
            )
        imported = import_export(store, session, tmp_path)
        assert chats(imported) == chats(session)
        assert [e.role for e in entries_of(imported)] == [e.role for e in entries_of(session)]
        assert [(e.model, e.at) for e in entries_of(imported) if e.role == "assistant"] == [
            (e.model, e.at) for e in entries_of(session) if e.role == "assistant"
        ]
        before, after = session.usage(), imported.usage()
        assert after == before
        assert store.backend.session(imported.session_id).title == "Order 41"

    def test_a_compaction_stays_where_it_was(self, store: Store, tmp_path: Path) -> None:
        session = store.start("support")
        for number in range(3):
            with session.turn(f"Question {number}") as turn:
                turn.answer(assistant(f"Answer {number}"))
        session.compact("They talked.", first_kept=5)
        with session.turn("More?") as turn:
            turn.answer(assistant("No."))
        imported = import_export(store, session, tmp_path)
        kinds = [entry.kind for entry in entries_of(imported)]
        assert kinds == [entry.kind for entry in entries_of(session)]
        compaction = entries_of(imported)[6].payload
        assert isinstance(compaction, Compaction)
        assert (compaction.summary, compaction.first_kept) == ("They talked.", 5)

    def test_an_error_without_a_text_stays_without_one(self, store: Store, tmp_path: Path) -> None:
        """The outcome that stands for it in the log became its text."""
        session = store.start("support")
        with session.turn("Pay") as turn:
            turn.answer(assistant(ToolCall("c1", "pay"), ToolCall("c2", "pay")))
            turn.result("c1", "", error=True)
            turn.result("c2", "", error=True, outcome="denied")
            turn.answer(assistant("No."))
        imported = import_export(store, session, tmp_path)
        assert chats(imported) == chats(session)
        results = [r for e in entries_of(imported) if e.message for r in e.message.results]
        assert [(r.content, r.error, r.outcome) for r in results] == [
            ((), True, "done"),
            ((), True, "denied"),
        ]

    @settings(max_examples=400 if SOAK else 12, phases=[Phase.generate])
    @given(sessions())
    def test_of_any_session_gives_the_same_messages_and_tokens(self, session: Session) -> None:
        with tempfile.TemporaryDirectory() as folder, memory_store() as other:
            path = Path(folder, "log.json")
            path.write_text(exported(session, "inspect", redact=False))
            if not any(entry.message for entry in session.path()):
                return
            imported, _ = import_one(other, "inspect", path)
            names = ("role", "content", "tool_calls", "tool_call_id")
            assert [[chat.get(name) for name in names] for chat in chats(imported)] == [
                [chat.get(name) for name in names] for chat in chats(session)
            ]


class TestInspectsOwnLogs:
    def test_an_archive_gives_the_same_as_a_json_file(self, tmp_path: Path) -> None:
        with memory_store() as first, memory_store() as second:
            import_all(first, "inspect", inspect_log.write(tmp_path / "in", SAMPLE))
            import_all(second, "inspect", inspect_log.write_archive(tmp_path / "log.eval", SAMPLE))
            assert stored_counts(first) == stored_counts(second)

    def test_compressed_with_zstd_give_the_same(self, tmp_path: Path) -> None:
        with memory_store() as first, memory_store() as second:
            import_all(first, "inspect", inspect_log.write_archive(tmp_path / "one.eval", SAMPLE))
            place = inspect_log.write_archive(tmp_path / "two.eval", SAMPLE, zipfile.ZipFile, ZIP_METHOD)
            import_all(second, "inspect", place)
            assert stored_counts(first) == stored_counts(second)

    def test_compressed_with_zstd_name_what_is_missing(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inspect_log.write_archive(tmp_path / "a.eval", SAMPLE)
        place = inspect_log.write_archive(tmp_path / "b.eval", SAMPLE, zipfile.ZipFile, ZIP_METHOD)
        for name in ("backports.zstd", "backports.zstd.zipfile", "compression.zstd"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InvalidSource, match=r"compressed with zstd; pip install '.*\[zstd\]'"):
            import_all(store, "inspect", place)
        (*_, report) = import_all(store, "inspect", tmp_path)  # the others are read
        assert report.losses["a file that cannot be read"].count == 1

    def test_compressed_with_zstd_and_damaged_are_counted(self, store: Store, tmp_path: Path) -> None:
        place = inspect_log.write_archive(tmp_path / "a.eval", SAMPLE, zipfile.ZipFile, ZIP_METHOD)
        body = bytearray(place.read_bytes())
        start = body.index(b"\x28\xb5\x2f\xfd", body.index(b"samples/"))
        body[start + 12 : start + 60] = bytes(48)
        place.write_bytes(body)
        import_all(store, "inspect", place)
        (loss,) = [report for report in store.import_from("inspect", str(place)) if report.losses]
        assert "a sample that cannot be read" in loss.losses

    def test_keep_scores_errors_and_images(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "inspect", inspect_log.write(tmp_path, SAMPLE))
        path = entries_of(store.session("inspect-ev1-s1-1"))
        assert [entry.role or entry.kind for entry in path] == [
            *("system", "user", "note", "assistant", "tool", "tool", "note", "assistant", "note"),
        ]
        assert path[5].message is not None
        assert path[5].message.results[0].error
        message = entries_of(store.session("inspect-ev1-s2-1"))[0].message
        assert message is not None
        assert [media.mime for media in message.media] == ["image/png"]

    @pytest.mark.parametrize("body", [b"{", b"[]", b'{"eval": 1}', b"PK\x03\x04 and nothing"])
    def test_a_file_that_is_none_is_refused_with_a_reason(
        self, store: Store, tmp_path: Path, body: bytes
    ) -> None:
        path = tmp_path / "log.eval"
        path.write_bytes(body)
        with pytest.raises(InvalidSource):
            import_all(store, "inspect", path)
