"""The session's row decides, whoever changed it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Store, errors, user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import ModelCallFailed
from oakleaf.core.usage import Call, Usage


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two stores on one file, as two processes have them."""
    with oakleaf.open(tmp_path / "a.db") as one, oakleaf.open(tmp_path / "a.db") as other:
        yield one, other


def start_session(one: Store) -> oakleaf.Session:
    session = one.start()
    session.append([user("first")])
    return session


def texts(session: oakleaf.Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message is not None]


class TestTwoWriters:
    def test_a_leaf_moved_by_another_is_stale_and_found_again(self, two: tuple[Store, Store]) -> None:
        session = start_session(two[0])
        two[1].session(session.session_id).append([user("of another")])
        with pytest.raises(errors.StaleLeaf):
            session.append([user("late")])
        session.refresh()
        session.append([user("second")])
        assert texts(session) == ["first", "of another", "second"]
        assert session.verify() == []

    def test_facts_of_another_are_not_written_over(self, two: tuple[Store, Store]) -> None:
        """The leaf is where it was: only the number of facts tells that somebody has been here."""
        session = start_session(two[0])
        two[1].session(session.session_id).title("of another")
        session.append([user("second")])
        kinds = [fact.kind for fact in session.journal()]
        assert kinds.count("titled") == 1
        assert [fact.number for fact in session.journal()] == list(range(1, len(kinds) + 1))
        assert session.verify() == []

    def test_sessions_indexed_by_another_meanwhile_are_indexed_again(self, two: tuple[Store, Store]) -> None:
        """To index a session changes nothing of it but a flag, which the next append sets anew."""
        session = start_session(two[0])
        for number, word in enumerate(("second", "third")):
            assert not two[1].search(word).hits
            session.append([user(word)])
            assert [hit.seq for hit in two[1].search(word).hits] == [number + 2]
        session.append([user("fourth")])
        session.append([user("fifth")])  # the flag is set already
        assert [hit.seq for hit in two[1].search("fifth").hits] == [5]

    def test_calls_of_another_are_counted(self, two: tuple[Store, Store]) -> None:
        session = start_session(two[0])
        for number, sessions in enumerate((*two, *two)):
            handle = sessions.session(session.session_id)
            call = Call(f"c{number}", 0, handle.leaf.seq, None, 1, Usage(10, 1), failed=True)
            handle.log.record(ModelCallFailed(), calls=[call])
        assert session.row.totals.calls == 4
        assert session.row.totals.input_tokens == 40
        assert session.verify() == []

    def test_the_trash_is_noticed(self, two: tuple[Store, Store]) -> None:
        session = start_session(two[0])
        two[1].delete(session.session_id)
        with pytest.raises(errors.SessionTrashed):
            session.append([user("late")])
        two[1].restore(session.session_id)
        session.append([user("second")])
        assert texts(session) == ["first", "second"]

    def test_a_purge_is_noticed(self, two: tuple[Store, Store]) -> None:
        session = start_session(two[0])
        two[1].delete(session.session_id)
        two[1].purge(session.session_id)
        with pytest.raises(errors.NotFound):
            session.append([user("late")])

    def test_a_runner_that_was_taken_over_is_fenced(self, two: tuple[Store, Store]) -> None:
        session = start_session(two[0])
        store = two[0].backend
        fence = store.lease(session.session_id, "one", 100, 1)
        session.log.append([Draft(user("held"))], fence=fence)
        two[1].backend.lease(session.session_id, "other", 10_000, 5_000)
        with pytest.raises(errors.Fenced):
            session.log.append([Draft(user("late"))], fence=fence)

    def test_a_rewind_by_another_opens_a_branch(self, two: tuple[Store, Store]) -> None:
        session = start_session(two[0])
        session.append([user("second")])
        two[1].session(session.session_id).rewind(to=1)
        session.refresh()
        session.append([user("instead")])
        assert texts(session) == ["first", "instead"]
        assert len(session.branches()) == 2
        assert session.verify() == []
