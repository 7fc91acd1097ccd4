"""Moving: whole sessions leave a store and enter another, and nothing of them is lost, changed or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from oakleaf.core.facts import TurnStarted
from oakleaf.core.messages import assistant, user
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor
from oakleaf.errors import IdConflict, NotFound
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.transfer import ImportResult, SessionExport, SessionExports
from oakleaf.testing.stores.writer import (
    SessionWriter,
    StoreFactory,
    assert_raises,
    call,
    claims,
    delete,
    make_blob,
    media_of,
    read_everything,
)


def read_exports(store: StoreBackend, *session_ids: str, children: bool = False) -> list[Any]:
    """Dumps read to the end, as plain values."""
    with store.export_sessions(*session_ids, children=children) as dumps:
        return [
            (
                *(replace(dump.row, space=""), dump.detail, dump.branches),
                dump.inherited_calls,
                *map(list, (dump.entries, dump.calls, dump.facts, dump.inbox)),
                dump.inherited_hash(),
            )
            for dump in dumps.sessions
        ]


def move(
    source: StoreBackend, target: StoreBackend, *session_ids: str, children: bool = False
) -> ImportResult:
    with source.export_sessions(*session_ids, children=children) as dumps:
        return target.import_sessions(dumps, 900)


class TransferConformance(StoreFactory):
    def _session_to_move(self) -> SessionWriter:
        """A session with an abandoned branch, calls on both, a blob and queued input."""
        writer = SessionWriter(self.open_store(), seeds=[user("seed")], tags={"b": "2", "a": "1"})
        writer.append(user("q"), facts=(TurnStarted(2),))
        cursor, leaf = writer.cursor, writer.leaf
        blob = make_blob(b"picture")
        writer.append(assistant("a"), calls=(call("c1", 2, 3),), state=b'{"a":1}')
        writer.append(user(media_of(blob)), blobs=(blob,))
        writer.move(leaf, cursor)
        writer.append(assistant("b"), calls=(call("c2", 2, 3, tokens=None, cost=None),))
        if claims(writer.store, "enqueue"):
            writer.store.enqueue("ses_a", b'{"role":"user"}', 300)
        return writer

    def _fork_to_move(self) -> SessionWriter:
        writer = self._session_to_move()
        return writer.fork("ses_f", seeds=[user("f")])

    def test_what_is_taken_in_elsewhere_tells_the_same(self) -> None:
        writer, there = self._session_to_move(), MemoryStore()
        SessionWriter(there, "ses_other")  # so that numbers there are others
        before = read_exports(writer.store, "ses_a")
        result = move(writer.store, there, "ses_a")
        assert (result.added, result.known, result.entries, result.blobs) == (("ses_a",), (), 5, 1)
        assert read_exports(there, "ses_a") == before
        assert [entry.message for entry in there.path("ses_a").entries] == [
            entry.message for entry in writer.store.path("ses_a").entries
        ]

    def test_what_left_comes_back_under_numbers_of_this_store(self) -> None:
        writer, there = self._session_to_move(), MemoryStore()
        before = read_everything(writer.store, "ses_a")
        move(writer.store, there, "ses_a")
        delete(writer.store, "ses_a")
        SessionWriter(writer.store, "ses_other")
        move(there, writer.store, "ses_a")
        assert read_exports(writer.store, "ses_a") == read_exports(there, "ses_a")
        after = read_everything(writer.store, "ses_a")
        assert after[0].totals == before[0].totals
        assert [stored.entry for stored in after[2]] == [stored.entry for stored in before[2]]
        assert after[3][0].branch > before[3][-1].branch  # numbers of branches are never reused
        assert writer.store.blob(make_blob(b"picture").hash) == make_blob(b"picture")

    def test_it_goes_on_growing_where_it_stands(self) -> None:
        writer, there = self._session_to_move(), MemoryStore()
        move(writer.store, there, "ses_a")
        delete(writer.store, "ses_a")
        move(there, writer.store, "ses_a")
        writer.leaf = writer.row.leaf
        writer.append(user("on"))
        assert writer.texts() == ["seed", "q", "b", "on"]
        assert len(writer.store.branches("ses_a")) == 2

    def test_taken_in_twice_it_adds_nothing(self) -> None:
        writer, there = self._session_to_move(), MemoryStore()
        move(writer.store, there, "ses_a")
        before = read_everything(writer.store, "ses_a")
        result = move(there, writer.store, "ses_a")
        assert (result.added, result.known, result.entries, result.blobs) == ((), ("ses_a",), 0, 0)
        assert read_everything(writer.store, "ses_a") == before

    def test_an_id_that_holds_other_content_is_refused_with_all_that_came_along(self) -> None:
        store, there = self.open_store(), MemoryStore()
        for where, text in ((store, "ours"), (there, "theirs")):
            SessionWriter(where).append(user(text))
        SessionWriter(there, "ses_new").append(user("new"))
        before = read_everything(store, "ses_a")
        assert_raises(IdConflict, lambda: move(there, store, "ses_new", "ses_a"))
        assert read_everything(store, "ses_a") == before
        assert_raises(NotFound, lambda: store.session("ses_new"))

    def test_an_id_of_another_tenant_is_taken_and_nothing_is_told_of_it(self) -> None:
        store, there = self.open_store(), MemoryStore()
        SessionWriter(self.open_store(space="other")).append(user("same"))
        SessionWriter(there).append(user("same"))
        assert_raises(IdConflict, lambda: move(there, store, "ses_a"))
        assert_raises(NotFound, lambda: store.session("ses_a"))

    def test_a_source_that_breaks_off_leaves_nothing(self) -> None:
        store, there = self.open_store(), self._session_to_move().store
        far = MemoryStore()
        move(there, far, "ses_a")
        delete(store, "ses_a")

        def broken(dump: SessionExport) -> SessionExport:
            def entries() -> Iterator[Any]:
                for n, stored in enumerate(dump.entries):
                    if n == 3:
                        raise NotFound("the rest")
                    yield stored

            return replace(dump, entries=entries())

        with far.export_sessions("ses_a") as dumps:
            torn = SessionExports(map(broken, dumps.sessions), dumps.blobs)
            assert_raises(NotFound, lambda: store.import_sessions(torn, 900))
        assert_raises(NotFound, lambda: store.session("ses_a"))
        assert move(far, store, "ses_a").added == ("ses_a",)

    def test_a_fork_brings_what_it_stands_on(self) -> None:
        writer, there = self._fork_to_move(), MemoryStore()
        before = read_exports(writer.store, "ses_f")
        move(writer.store, there, "ses_f")
        assert read_exports(there, "ses_f") == before
        for name in ("ses_f", "ses_a"):
            writer.store.trash(name, 500)
        writer.store.purge("ses_a", with_forks=True)
        move(there, writer.store, "ses_f")
        assert read_exports(writer.store, "ses_f") == before
        assert writer.texts() == ["seed", "q", "b", "f"]
        assert [branch.session_id for branch in writer.store.branches("ses_f")] == [None, None, "ses_f"]
        assert [c.call_id for c in writer.store.inherited_calls("ses_f")] == ["c2"]
        writer.store.trash("ses_f", 600)
        assert writer.store.purge("ses_f").entries == 4

    def test_a_fork_hangs_on_its_parent_where_the_parent_is_here(self) -> None:
        writer, there = self._fork_to_move(), MemoryStore()
        before = read_exports(writer.store, "ses_f")
        move(writer.store, there, "ses_f")
        delete(writer.store, "ses_f")
        assert move(there, writer.store, "ses_f").entries == 1
        assert read_exports(writer.store, "ses_f") == before
        assert [branch.session_id for branch in writer.store.branches("ses_f")] == ["ses_a", "ses_a", "ses_f"]

    def test_a_fork_does_not_hang_on_a_parent_that_holds_something_else(self) -> None:
        writer, there = self._fork_to_move(), MemoryStore()
        before = read_exports(writer.store, "ses_f")
        move(writer.store, there, "ses_f")
        for name in ("ses_f", "ses_a"):
            writer.store.trash(name, 500)
        writer.store.purge("ses_a", with_forks=True)
        other = SessionWriter(writer.store, seeds=[user("another seed")])
        other.append(user("q"))
        assert move(there, writer.store, "ses_f").entries == 4
        assert read_exports(writer.store, "ses_f") == before

    def test_tasks_come_along_when_asked_for(self) -> None:
        writer, there = self._session_to_move(), MemoryStore()
        SessionWriter(writer.store, "ses_t2", relation="task", parent_session="ses_a", started_at=300)
        SessionWriter(writer.store, "ses_t1", relation="task", parent_session="ses_a", started_at=200)
        SessionWriter(writer.store, "ses_t3", relation="task", parent_session="ses_t1")
        SessionWriter(writer.store, "ses_f", relation="fork", parent_session="ses_a")
        assert move(writer.store, there, "ses_a", children=True).added == (
            "ses_a",
            "ses_t1",
            "ses_t3",
            "ses_t2",
        )
        assert read_exports(there, "ses_a", children=True) == read_exports(
            writer.store, "ses_a", children=True
        )

    def test_who_drives_it_is_not_told(self) -> None:
        writer = self._session_to_move()
        before = read_exports(writer.store, "ses_a")
        writer.store.lease("ses_a", "me", until=9_999, at=10)
        assert read_exports(writer.store, "ses_a") == before

    def test_it_becomes_the_owners_who_takes_it_in(self) -> None:
        writer, far = self._session_to_move(), MemoryStore()
        move(writer.store, far, "ses_a")
        delete(writer.store, "ses_a")
        ann = self.open_store(owner="ann")
        move(far, ann, "ses_a")
        assert ann.session("ses_a").owner == "ann"
        assert_raises(NotFound, lambda: self.open_store(owner="bob").session("ses_a"))

    def test_a_leaf_before_the_first_entry_is_a_place_too(self) -> None:
        writer, there = SessionWriter(self.open_store()), MemoryStore()
        start = writer.leaf
        writer.append(user("q"))
        writer.move(Leaf(start.branch, 0), Cursor())
        move(writer.store, there, "ses_a")
        assert read_exports(there, "ses_a") == read_exports(writer.store, "ses_a")

    def test_what_came_from_elsewhere_stays_marked_on_its_way_to_another_store(self) -> None:
        store, there = self.open_store(), MemoryStore()
        SessionWriter(there).append(user("q"))
        there.enqueue("ses_a", b'{"role":"user"}', 300)
        with there.export_sessions("ses_a") as exports:
            (export,) = exports.sessions
            row = replace(export.row, imported_facts=export.row.facts)
            inbox = [replace(queued, is_imported=True) for queued in export.inbox]
            marked = replace(export, row=row, inbox=inbox)
            store.import_sessions(SessionExports([marked], exports.blobs), 900)
        assert store.session("ses_a").imported_facts == store.session("ses_a").facts == 2
        store.enqueue("ses_a", b'{"role":"user"}', 301)
        assert [queued.is_imported for queued in store.inbox("ses_a")] == [True, False]
        assert [queued.is_imported for queued in store.inbox("ses_a", 1)] == [True]
        further = MemoryStore()
        move(store, further, "ses_a")
        assert further.session("ses_a").imported_facts == 2
        assert [queued.is_imported for queued in further.inbox("ses_a")] == [True, False]

    def test_a_session_that_is_present_is_the_same_whatever_is_marked(self) -> None:
        writer, there = self._session_to_move(), MemoryStore()
        move(writer.store, there, "ses_a")
        with there.export_sessions("ses_a") as exports:
            (export,) = exports.sessions
            row = replace(export.row, imported_facts=3)
            inbox = [replace(queued, is_imported=True) for queued in export.inbox]
            marked = replace(export, row=row, inbox=inbox)
            result = writer.store.import_sessions(SessionExports([marked], exports.blobs), 900)
        assert result.known == ("ses_a",)
        assert writer.row.imported_facts == 0
        assert [queued.is_imported for queued in writer.store.inbox("ses_a")] == [False]

    def test_a_change_may_raise_what_came_from_elsewhere(self) -> None:
        writer = self._session_to_move()
        writer.commit(columns={"imported_facts": 4})
        assert writer.row.imported_facts == 4
