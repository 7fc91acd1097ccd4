"""A notebook: notes of many writers in one session, the model calls they cost, and one writer in charge."""

from __future__ import annotations

from threading import Thread

import pytest
from msgspec.structs import replace

from oakleaf import ScriptedModel, Session, StaleLeaf, Store
from oakleaf.core.redact import Redactor
from oakleaf.core.usage import Price, Usage
from oakleaf.errors import Fenced, Overloaded, SessionRunning
from oakleaf.ext import Notebook, Reservation, notebook

MODEL = ScriptedModel(["score: 1"], model="judge")


@pytest.fixture
def held(any_store: Store) -> Session:
    return any_store.start("program", session_id="ses_notes", relation="replay")


def other(store: Store, session: Session) -> Notebook:
    """The notebook as another process has it."""
    return notebook(store.session(session.session_id))


class TestNotes:
    def test_every_note_is_read_once_whoever_wrote_it(self, any_store: Store, held: Session) -> None:
        mine, theirs = notebook(held), other(any_store, held)
        mine.add({"n": 1})
        theirs.add({"n": 2})
        mine.add({"n": 3})
        assert mine.read() == theirs.read() == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert mine.read() == []
        assert [entry.turn for entry in held.path()] == [0] * len(held.path()), "no conversation"

    def test_a_note_with_a_key_is_stored_once(self, any_store: Store, held: Session) -> None:
        for notes in (notebook(held), other(any_store, held)):
            notes.add({"cell": "a"}, key="a")
        assert notebook(held).read() == [{"cell": "a"}]

    def test_a_note_is_returned_as_it_is_stored(self, any_store: Store, held: Session) -> None:
        any_store.runtime = replace(any_store.runtime, redactor=Redactor({"DB": "hunter2-hunter2-hunter2"}))
        notes = other(any_store, held)
        stored = notes.add({"text": "it is hunter2-hunter2-hunter2"})
        assert "hunter2" not in str(stored)
        assert notes.read() == [stored]

    def test_only_one_of_two_decides_on_the_same_notes(self, any_store: Store, held: Session) -> None:
        mine, theirs = notebook(held), other(any_store, held)
        mine.add({"limit": 1})
        assert mine.read() == theirs.read()
        mine.add_next({"take": "mine"})
        with pytest.raises(StaleLeaf):
            theirs.add_next({"take": "theirs"})
        assert theirs.read() == [{"take": "mine"}]
        theirs.add_next({"take": "theirs"})
        assert mine.read() == [{"take": "theirs"}], "its own note is known to it"

    def test_a_note_between_reading_and_deciding_is_seen(self, held: Session) -> None:
        """Though the same notebook wrote it."""
        notes = notebook(held)
        notes.read()
        notes.add({"n": 1})
        with pytest.raises(StaleLeaf):
            notes.add_next({"n": 2})
        assert notes.read() == [{"n": 1}]

    def test_threads_lose_no_note(self, held: Session) -> None:
        notes = notebook(held)
        threads = [Thread(target=notes.add, args=({"n": n},)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(note["n"] for note in notes.read()) == list(range(12))


class TestCalls:
    def test_a_call_that_a_crash_cuts_off_is_counted(self, held: Session) -> None:
        notes = notebook(held)
        started = notes.start_call(MODEL, "judge", Reservation(700))
        (call,) = held.model_calls()
        assert (call.call_id, call.price, call.bucket) == (started.call_id, None, "judge")
        (fact,) = [fact for fact in held.journal() if fact.kind == "model_call_started"]
        assert (fact.data["call_id"], fact.data["reserved"]) == (call.call_id, 700)

    def test_a_note_settles_the_call_that_it_cost(self, held: Session) -> None:
        notes = notebook(held)
        call = notes.start_call(MODEL, "judge", Reservation())
        done = replace(call, usage=Usage(10, 2, 0, 0), price=Price(5, "table"))
        notes.add({"score": 1}, key="k", call=done)
        notes.add({"score": 1}, key="k", call=done)
        (ledger,) = held.model_calls()
        assert (ledger.usage, ledger.price) == (done.usage, done.price)

    def test_a_refused_call_says_that_it_cost_nothing(self, held: Session) -> None:
        notes = notebook(held)
        call = notes.start_call(MODEL, "judge", Reservation(700))
        notes.fail_call(call, Overloaded("judge", "529"))
        assert [one.failed for one in held.model_calls()] == [True]
        (fact,) = [fact for fact in held.journal() if fact.kind == "model_call_failed"]
        assert fact.data["refused"] == call.call_id


class TestCharge:
    def test_one_is_in_charge_and_others_add_notes(self, any_store: Store, held: Session) -> None:
        mine, theirs = notebook(held), other(any_store, held)
        mine.take()
        with pytest.raises(SessionRunning):
            theirs.take()
        theirs.add({"n": 1})
        mine.add({"n": 2})
        assert mine.read() == [{"n": 1}, {"n": 2}]
        mine.end("interrupted", "the budget is reached")
        mine.release()
        theirs.take()
        row = any_store.session(held.session_id).row
        assert (row.status, row.error) == ("interrupted", "the budget is reached")

    def test_one_that_lost_its_charge_ends_nothing(self, any_store: Store, held: Session) -> None:
        mine = notebook(held)
        mine.take()
        any_store.session(held.session_id).interrupt()
        other(any_store, held).take()
        with pytest.raises(Fenced):
            mine.end("completed", None)
