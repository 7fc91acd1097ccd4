"""Promotion: one turn of a session becomes a bundle and an expectation, without secrets and without what came later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import ToolCall, assistant, tool_result, user
from oakleaf.core.redact import Redactor
from oakleaf.store import Store
from oakleaf_lab import promote
from oakleaf_lab.case_file import read_case
from oakleaf_lab.errors import AttachmentsMissing, CaseExists, NothingExpected, NothingToPromote
from oakleaf_lab.regression import run_case
from support.recorded_session import record_refund
from support.sessions import tasks_of

SECRET = "hunter2-hunter2-hunter2"


class TestPromote:
    def test_a_turn_becomes_a_case_that_expects_its_calls(self, store: Store, tmp_path: Path) -> None:
        session = record_refund(store)
        written = promote(session, tmp_path, at=5, says=("lost",))
        case = read_case(Path(written.case))
        assert written.name == "where-is-order-41"
        assert [turn.tools for turn in case.turn] == [('lookup({"note":null,"order":41})',)]
        assert case.turn[0].says == ("lost",)
        assert written.unmet == ()

    def test_the_bundle_ends_with_the_promoted_turn(self, store: Store, tmp_path: Path) -> None:
        session = record_refund(store)
        before = session.row
        written = promote(session, tmp_path, at=5)
        with oakleaf.open("memory:") as other:
            promoted = other.session(other.import_bundle(written.bundle).session_id)
            assert [e.seq for e in promoted.path() if e.is_input] == [3]
            assert promoted.verify() == []
        assert b"Refunded" not in Path(written.bundle).read_bytes()
        assert session.row == before
        assert tasks_of(session) == []

    def test_a_turn_of_any_session_is_promoted_wherever_its_branches_are(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Only the first session of a store had branches with the numbers of its copy; the turns of others were not found."""
        other = store.start("other")
        other.append([user("hello"), assistant("Hello.")])
        session = record_refund(store)
        session.undo()
        session.append([user("Never mind"), assistant("Good.")])
        fork = session.fork()
        fork.append([user("Thanks"), assistant("You are welcome.")])
        for promoted, at, count in (
            (session, 5, 1),
            (session, None, 2),
            (fork, 3, 1),
            (fork, None, 3),
        ):
            written = promote(promoted, tmp_path, at=at, name="case", overwrite=True)
            assert written.turns == count
            assert asyncio.run(run_case(Path(written.case))).status == "passed"
            assert b"Refunded" not in Path(written.bundle).read_bytes()

    def test_without_an_entry_every_turn_is_expected(self, store: Store, tmp_path: Path) -> None:
        written = promote(record_refund(store), tmp_path, says=("refunded",))
        turns = read_case(Path(written.case)).turn
        assert [len(turn.tools or ()) for turn in turns] == [1, 1]
        assert [turn.says for turn in turns] == [(), ("refunded",)]

    def test_entries_of_other_branches_stay_out(self, store: Store, tmp_path: Path) -> None:
        session = record_refund(store)
        session.undo()
        session.append([user("Never mind"), assistant("Good.")])
        written = promote(session, tmp_path)
        assert b"Refunded" not in Path(written.bundle).read_bytes()
        assert written.turns == 2

    @pytest.mark.parametrize("at", [None, 5])
    def test_the_same_source_gives_the_same_bytes(self, tmp_path: Path, at: int | None) -> None:
        with oakleaf.open("memory:") as store:
            session = record_refund(store)
            one, two = (promote(session, tmp_path / name, at=at) for name in ("a", "b"))
        for first, second in ((one.bundle, two.bundle), (one.case, two.case)):
            assert Path(first).read_bytes() == Path(second).read_bytes()

    def test_a_forbidden_call_of_the_recording_is_not_also_expected(
        self, store: Store, tmp_path: Path
    ) -> None:
        written = promote(record_refund(store), tmp_path, at=8, never_calls=("refund",))
        assert read_case(Path(written.case)).turn[0].tools is None
        assert written.unmet == (
            'turn 7: expected no call of refund; it called refund({"amount":12.5,"order":41})',
        )

    def test_secrets_that_are_known_now_are_masked(self, store: Store, tmp_path: Path) -> None:
        session = record_refund(store, secret=SECRET)
        session.log.runtime = replace(session.log.runtime, redactor=Redactor({"DB": SECRET}))
        written = promote(session, tmp_path / "masked", at=5)
        assert written.redactions == {"DB": 1}
        for path in (written.bundle, written.case):
            assert "hunter2" not in Path(path).read_text()
            assert session.session_id not in Path(path).read_text()
        plain = promote(session, tmp_path / "plain", at=5, redact=False)
        assert "hunter2" in Path(plain.bundle).read_text()

    def test_an_existing_case_is_not_replaced_unasked(self, store: Store, tmp_path: Path) -> None:
        session = record_refund(store)
        written = promote(session, tmp_path, at=5)
        Path(written.case).write_text("mine")
        with pytest.raises(CaseExists):
            promote(session, tmp_path, at=5)
        assert Path(written.case).read_text() == "mine"
        promote(session, tmp_path, at=5, overwrite=True)
        assert read_case(Path(written.case)).turn

    def test_a_turn_with_an_attachment_is_refused_unless_it_is_included(
        self, store: Store, tmp_path: Path
    ) -> None:
        """It wrote a case that could not run, and said nothing."""
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        picture = {"type": "image", "source": source}
        session = store.start("a")
        session.append([user("Hello"), assistant("Hello.")])
        question = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
        session.append([question, assistant("A cat.")])
        for at in (None, 3):
            with pytest.raises(
                AttachmentsMissing, match="1 attachment, which the bundle leaves out"
            ) as refused:
                promote(session, tmp_path / "cases", at=at)
            assert "add --no-redact --blobs" in refused.value.command_text
        assert not (tmp_path / "cases").exists()
        assert promote(session, tmp_path, at=1, name="text").turns == 1
        whole = promote(session, tmp_path, name="whole", redact=False, blobs=True)
        assert asyncio.run(run_case(Path(whole.case))).status == "passed"

    def test_what_is_no_complete_turn_is_refused(self, store: Store, tmp_path: Path) -> None:
        session = store.start("a", [oakleaf.system("Hi")])
        with pytest.raises(NothingToPromote, match=r"no turn.*session\.send"):
            promote(session, tmp_path / "cases")
        session.append([user("x"), assistant(ToolCall("c", "f", {}))])
        with pytest.raises(NothingToPromote, match="have no results"):
            promote(session, tmp_path / "cases")
        with pytest.raises(NothingToPromote, match="turns start at 2"):
            promote(session, tmp_path / "cases", at=1)
        assert not (tmp_path / "cases").exists()

    def test_a_turn_without_an_answer_expects_only_what_is_named(self, store: Store, tmp_path: Path) -> None:
        """It became a case that expects no calls, and passed."""
        session = store.start("a")
        session.append([user("hi"), assistant("Hello.")])
        session.append([user("Refund it"), assistant(ToolCall("c", "lookup", {})), tool_result("c", "lost")])
        for at in (None, 5):
            with pytest.raises(NothingExpected, match=r"turn 3 of .* has no answer") as refused:
                promote(session, tmp_path / "cases", at=at)
            assert f"oakleaf resume {session.session_id}" in refused.value.command_text
        with pytest.raises(NothingExpected):
            promote(session, tmp_path / "cases", tools=False)
        assert not (tmp_path / "cases").exists()

        written = promote(session, tmp_path, at=3, says=("refunded",))
        case = read_case(Path(written.case))
        assert [(turn.tools, turn.says) for turn in case.turn] == [(None, ("refunded",))]
        assert "no answer" in Path(written.case).read_text()
        assert written.unmet == ("turn 3: expected the answer to say 'refunded'; it says nothing",)
        assert asyncio.run(run_case(Path(written.case))).status == "failed"

        session.append([user("Never mind"), assistant("Good.")])
        whole = promote(session, tmp_path, name="whole")
        assert [turn.tools for turn in read_case(Path(whole.case)).turn] == [(), None, ()]
        with pytest.raises(NothingExpected) as skipped:
            promote(session, tmp_path / "cases", at=3)
        assert "oakleaf resume" not in skipped.value.command_text
