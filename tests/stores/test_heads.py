"""What a store remembers of a session is only ever a guess: the row decides, whoever changed it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Store, errors, user
from oakleaf.core.drafts import Draft
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Usage
from oakleaf.stores.base import Change
from oakleaf.stores.sqlite.commit import Heads, SqliteHead


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two stores on one file, as two processes have them: what one remembers the other does not know of."""
    with oakleaf.open(tmp_path / "a.db") as one, oakleaf.open(tmp_path / "a.db") as other:
        yield one, other


def start_session(one: Store) -> oakleaf.Session:
    session = one.start()
    session.append([user("first")])  # from here on its head is remembered
    return session


def texts(session: oakleaf.Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message is not None]


class TestAWrongMemory:
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

    def test_what_another_has_indexed_meanwhile_is_indexed_again(self, two: tuple[Store, Store]) -> None:
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
            handle.log.record("call_failed", calls=[call])
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


class TestHeads:
    def test_a_change_that_does_not_grow_the_session_is_not_answered_from_memory(self) -> None:
        heads = Heads("default", None)
        heads.remember("s", SqliteHead(1, Leaf(1, 4), 7, 2, 0, True))
        grows = Change(session_id="s", key="k", at=1, after=Leaf(1, 4))
        assert heads.recall(grows) is not None
        for other in (
            Change(session_id="t", key="k", at=1, after=Leaf(1, 4)),
            Change(session_id="s", key="k", at=1, after=Leaf(1, 3)),
            Change(session_id="s", key="k", at=1),
            Change(session_id="s", key="k", at=1, after=Leaf(1, 4), move_to=Leaf(1, 2)),
        ):
            assert heads.recall(other) is None

    def test_a_head_that_would_open_a_branch_is_not_kept(self) -> None:
        heads = Heads("default", None)
        heads.remember("s", SqliteHead(1, Leaf(1, 4), 7, 2, 0, True))
        heads.remember("s", SqliteHead(1, Leaf(1, 2), 8, 2, 0, False))
        assert heads.recall(Change(session_id="s", key="k", at=1, after=Leaf(1, 2))) is None

    def test_it_does_not_grow_without_end(self) -> None:
        heads = Heads("default", None)
        for number in range(Heads.MAX_SESSIONS * 3):
            heads.remember(str(number), SqliteHead(number, Leaf(1, 1), 1, 0, 0, True))
        assert len(heads._known) <= Heads.MAX_SESSIONS
