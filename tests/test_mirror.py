"""A mirror writes the session of a program that Oakleaf does not run."""

from __future__ import annotations

import pytest

from oakleaf import Note, Session, Store, ToolCall, Usage, assistant, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ModelCallFailed, ModelCallStarted, Moved, PluginFact, ToolCallsStarted
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call
from oakleaf.errors import InvalidOperation, SessionRunning, StaleLeaf
from oakleaf.ext import Mirror, read


@pytest.fixture
def session(store: Store) -> Session:
    return store.start("a")


def made(session: Session, *, answer: int | None = None, call_id: str = "call_1") -> Call:
    return Call(call_id, 0, session.leaf.seq, answer, 1, Usage(10, 2), provider="anthropic", model="m")


class TestAppend:
    def test_entries_calls_starts_and_row_are_one_commit(self, session: Session) -> None:
        drafts = [Draft(user("q")), Draft(assistant(ToolCall("c", "look"), ToolCall("d", "pay")), model="m")]
        before = session.row.facts
        mirror = Mirror(session)
        committed = mirror.append(drafts, calls=[made(session, answer=2)], starts=[0], row={"model": "m"})
        assert (committed.leaf, session.leaf.seq, session.row.model) == (session.leaf, 2, "m")
        assert [call.answer_seq for call in session.model_calls()] == [2]
        facts = [stored.fact for stored in session.journal()[before:]]
        assert ToolCallsStarted(2, (0,)) in facts
        assert read(session).call_status().started == {(2, 0)}

    def test_a_known_key_writes_nothing(self, session: Session, store: Store) -> None:
        Mirror(session).append([Draft(user("q"))], key="k")
        again = store.session(session.session_id)
        repeated = Mirror(again).append([Draft(user("q"))], key="k")
        assert repeated.is_repeat
        assert repeated.leaf == again.leaf == session.leaf
        assert len(session.path()) == 1

    def test_nothing_to_append_is_refused(self, session: Session) -> None:
        with pytest.raises(InvalidOperation, match="nothing to append"):
            Mirror(session).append([])

    @pytest.mark.parametrize("follows_notes", [False, True])
    def test_only_a_mirror_that_follows_notes_goes_behind_them(
        self, session: Session, store: Store, follows_notes: bool
    ) -> None:
        Mirror(session).append([Draft(user("q"))])
        store.session(session.session_id).note({"seen": True})
        mirror = Mirror(session, follows_notes=follows_notes)
        call, draft = made(session, answer=session.leaf.seq + 1), Draft(assistant("a"))
        if not follows_notes:
            with pytest.raises(StaleLeaf):
                mirror.append([draft], calls=[call])
            return
        assert mirror.append([draft], calls=[call]).leaf.seq == 3
        assert [(call.after_seq, call.answer_seq) for call in session.model_calls()] == [(2, 3)]

    def test_an_entry_of_another_is_never_followed(self, session: Session, store: Store) -> None:
        store.session(session.session_id).append([user("other")])
        with pytest.raises(StaleLeaf):
            Mirror(session, follows_notes=True).append([Draft(user("q"))])

    def test_a_session_that_runs_elsewhere_is_refused(self, session: Session, store: Store) -> None:
        other = store.session(session.session_id)
        with other.turn("q") as turn:
            session.refresh()
            with pytest.raises(SessionRunning):
                Mirror(session).append([Draft(tool_result("c", "x"))])
            turn.answer(assistant("a"))


class TestRecord:
    def test_a_failed_call_replaces_the_announced_one(self, session: Session) -> None:
        mirror = Mirror(session)
        mirror.append([Draft(user("q"))])
        mirror.record(ModelCallStarted(), calls=[made(session)])
        mirror.record(
            ModelCallFailed("gone"), calls=[made(session)], replaces_call=True, row={"error": "gone"}
        )
        assert len(session.model_calls()) == 1
        assert session.row.error == "gone"

    def test_a_fact_with_a_call_is_refused_elsewhere(self, session: Session, store: Store) -> None:
        store.session(session.session_id).note({})
        fact = PluginFact("tests", "kept")
        Mirror(session).record(fact, key="k")
        for values in ({"at_leaf": True}, {"calls": [made(session)]}):
            with pytest.raises(StaleLeaf):
                Mirror(session).record(fact, **values)  # type: ignore[arg-type]
        assert [stored.fact for stored in session.journal()].count(fact) == 1


class TestMove:
    def test_a_move_and_its_drafts_are_one_commit(self, session: Session) -> None:
        mirror = Mirror(session)
        mirror.append([Draft(user("q")), Draft(assistant("a"))])
        place = Leaf(session.leaf.branch, 1)
        before = session.row.facts
        mirror.move(place, drafts=[Draft(assistant("other"))], host={"why": "edited"})
        assert [entry.message and entry.message.text for entry in session.path()] == ["q", "other"]
        moved = session.journal()[before].fact
        assert isinstance(moved, Moved)
        assert (moved.origin, moved.host) == ((place.branch, 2), {"why": "edited"})

    def test_a_move_while_others_write_is_refused(self, session: Session, store: Store) -> None:
        mirror = Mirror(session, follows_notes=True)
        mirror.append([Draft(user("q")), Draft(Note({}))])
        store.session(session.session_id).note({})
        with pytest.raises(StaleLeaf):
            mirror.move(Leaf(session.leaf.branch, 1))
