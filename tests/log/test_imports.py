"""What came with an import is known as such, on every path that reaches it."""

from __future__ import annotations

import io

import pytest

from oakleaf import Session, ToolCall, assistant, tool_result, user
from oakleaf.core.tree import Leaf
from oakleaf.log.imports import is_foreign
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore

pytestmark = pytest.mark.attack


def exported(session: Session, **options: bool) -> io.BytesIO:
    bundle = io.BytesIO()
    session.export(bundle, **options)
    bundle.seek(0)
    return bundle


def foreign(session: Session) -> list[bool]:
    return [is_foreign(session.log, entry) for entry in session.log.path().entries]


def other_store_bundle() -> io.BytesIO:
    with Store(MemoryStore()) as elsewhere:
        session = elsewhere.start("a")
        session.append([user("q"), assistant("a")])
        return exported(session)


class TestEntries:
    def test_what_was_written_here_is_not_foreign(self, store: Store) -> None:
        session = store.start("a")
        session.append([user("q"), assistant("a")])
        assert foreign(session) == [False, False]
        assert foreign(session.fork()) == [False, False]

    def test_what_came_with_a_bundle_is_foreign_and_what_follows_is_not(self, store: Store) -> None:
        session = store.session(store.import_bundle(other_store_bundle()).session_id)
        session.append([user("here"), assistant("ours")])
        assert foreign(session) == [True, True, False, False]

    def test_a_branch_that_grew_here_is_not_foreign(self, store: Store) -> None:
        session = store.session(store.import_bundle(other_store_bundle()).session_id)
        session.rewind(1)
        session.append([assistant("ours")])
        assert foreign(session) == [True, False]

    def test_a_fork_of_an_import_stands_on_foreign_entries(self, store: Store) -> None:
        session = store.session(store.import_bundle(other_store_bundle()).session_id)
        session.append([user("here"), assistant("ours")])
        fork = session.fork()
        fork.append([user("fork")])
        assert foreign(fork) == [True, True, False, False, False]

    def test_what_a_purged_session_left_is_foreign(self, store: Store) -> None:
        session = store.start("a")
        session.append([user("q"), assistant("a")])
        fork = session.fork()
        fork.append([user("fork")])
        store.delete(session.session_id)
        store.purge(session.session_id)
        assert foreign(fork) == [True, True, False]

    def test_a_fork_whose_parent_was_not_imported_brings_foreign_entries(self, store: Store) -> None:
        with Store(MemoryStore()) as elsewhere:
            parent = elsewhere.start("a")
            parent.append([user("q"), assistant(ToolCall("c", "pay"))])
            parent.append([tool_result("c", "paid"), assistant("a")])
            bundle = exported(parent.fork())
        fork = store.session(store.import_bundle(bundle).session_id)
        assert foreign(fork) == [True] * 4

    def test_an_own_session_that_is_imported_again_stays_own(self, store: Store) -> None:
        session = store.start("a")
        session.append([user("q"), assistant("a")])
        assert store.import_bundle(exported(session)).existing == (session.session_id,)
        assert foreign(session) == [False, False]

    def test_a_position_of_another_tree_is_foreign(self, store: Store) -> None:
        fork = store.start("a").fork()
        assert is_foreign(fork.log, Leaf(999, 1))


class TestTheMark:
    def test_no_bundle_holds_it(self, store: Store) -> None:
        first = other_store_bundle()
        session = store.session(store.import_bundle(first).session_id)
        assert session.row.imported_facts == session.row.facts
        assert exported(session).getvalue() == first.getvalue()

    def test_a_deep_copy_keeps_it_and_makes_none(self, store: Store) -> None:
        ours, theirs = store.start("a"), store.session(store.import_bundle(other_store_bundle()).session_id)
        ours.append([user("q"), assistant("a")])
        with Store(MemoryStore()) as other:
            assert foreign(store.copy(ours, other)) == [False, False]
            assert foreign(store.copy(theirs, other)) == [True, True]
