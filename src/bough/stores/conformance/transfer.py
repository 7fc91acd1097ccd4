"""Moving: whole sessions leave a store and enter another, and nothing of them is lost, changed or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from ...core.drafts import ExtraFact
from ...core.messages import assistant, user
from ...core.tree import Leaf
from ...core.turns import Cursor
from ...errors import IdConflict, NotFound
from ..base import StoreBackend
from ..memory.store import MemoryStore
from ..transfer import ImportResult, SessionExport, SessionExports
from .writer import Opening, Pen, call, everything, handle_of, make_blob, refused


def told(store: StoreBackend, *session_ids: str, children: bool = False) -> list[Any]:
    """Dumps read to their end, as plain values."""
    with store.export_sessions(*session_ids, children=children) as dumps:
        return [
            (
                *(
                    replace(dump.row, space=""),
                    dump.detail,
                    dump.branches,
                    dump.inherited_calls,
                    dump.inherited_limits,
                ),
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


class Moving(Opening):
    def _session_to_move(self) -> Pen:
        """A session with an abandoned branch, calls on both, a blob and queued input."""
        pen = Pen(self.opened(), seeds=[user("seed")], tags={"b": "2", "a": "1"})
        pen.append(user("q"), facts=(ExtraFact("turn_started", {"turn": 2, "max_messages": 9}),))
        cursor, leaf = pen.cursor, pen.leaf
        blob = make_blob(b"picture")
        pen.append(assistant("a"), calls=(call("c1", 2, 3),), state=b'{"a":1}')
        pen.append(user(handle_of(blob)), blobs=(blob,))
        pen.move(leaf, cursor, data={"from": [pen.leaf.branch, pen.leaf.seq]})
        pen.append(assistant("b"), calls=(call("c2", 2, 3, tokens=None, cost=None),))
        pen.store.enqueue("ses_a", b'{"role":"user"}', 300)
        return pen

    def _fork_to_move(self) -> Pen:
        pen = self._session_to_move()
        return Pen(
            pen.store,
            "ses_f",
            fork_point=(pen.leaf, pen.cursor),
            seeds=[user("f")],
            relation="fork",
            parent_session="ses_a",
        )

    def test_what_is_taken_in_elsewhere_tells_the_same(self) -> None:
        pen, there = self._session_to_move(), MemoryStore()
        Pen(there, "ses_other")  # so that numbers there are others
        before = told(pen.store, "ses_a")
        taken = move(pen.store, there, "ses_a")
        assert (taken.added, taken.known, taken.entries, taken.blobs) == (("ses_a",), (), 5, 1)
        assert told(there, "ses_a") == before
        assert [entry.message for entry in there.path("ses_a").entries] == [
            entry.message for entry in pen.store.path("ses_a").entries
        ]

    def test_what_left_comes_back_under_numbers_of_this_store(self) -> None:
        pen, there = self._session_to_move(), MemoryStore()
        before = everything(pen.store, "ses_a")
        move(pen.store, there, "ses_a")
        pen.store.trash("ses_a", 500)
        pen.store.purge("ses_a")
        Pen(pen.store, "ses_other")
        move(there, pen.store, "ses_a")
        assert told(pen.store, "ses_a") == told(there, "ses_a")
        after = everything(pen.store, "ses_a")
        assert after[0].totals == before[0].totals
        assert [stored.entry for stored in after[2]] == [stored.entry for stored in before[2]]
        assert after[3][0].branch > before[3][-1].branch  # numbers of branches are never reused
        assert pen.store.blob(make_blob(b"picture").hash) == make_blob(b"picture")

    def test_it_goes_on_growing_where_it_stands(self) -> None:
        pen, there = self._session_to_move(), MemoryStore()
        move(pen.store, there, "ses_a")
        pen.store.trash("ses_a", 500)
        pen.store.purge("ses_a")
        move(there, pen.store, "ses_a")
        pen.leaf = pen.row.leaf
        pen.append(user("on"))
        assert pen.texts() == ["seed", "q", "b", "on"]
        assert len(pen.store.branches("ses_a")) == 2

    def test_taken_in_twice_it_adds_nothing(self) -> None:
        pen, there = self._session_to_move(), MemoryStore()
        move(pen.store, there, "ses_a")
        before = everything(pen.store, "ses_a")
        taken = move(there, pen.store, "ses_a")
        assert (taken.added, taken.known, taken.entries, taken.blobs) == ((), ("ses_a",), 0, 0)
        assert everything(pen.store, "ses_a") == before

    def test_an_id_that_holds_other_content_is_refused_with_all_that_came_along(self) -> None:
        store, there = self.opened(), MemoryStore()
        for where, text in ((store, "ours"), (there, "theirs")):
            Pen(where).append(user(text))
        Pen(there, "ses_new").append(user("new"))
        before = everything(store, "ses_a")
        refused(IdConflict, lambda: move(there, store, "ses_new", "ses_a"))
        assert everything(store, "ses_a") == before
        refused(NotFound, lambda: store.session("ses_new"))

    def test_an_id_of_another_tenant_is_taken_and_nothing_is_told_of_it(self) -> None:
        store, there = self.opened(), MemoryStore()
        Pen(self.opened(space="other")).append(user("same"))
        Pen(there).append(user("same"))
        refused(IdConflict, lambda: move(there, store, "ses_a"))
        refused(NotFound, lambda: store.session("ses_a"))

    def test_a_source_that_breaks_off_leaves_nothing(self) -> None:
        store, there = self.opened(), self._session_to_move().store
        far = MemoryStore()
        move(there, far, "ses_a")
        store.trash("ses_a", 500)
        store.purge("ses_a")

        def broken(dump: SessionExport) -> SessionExport:
            def entries() -> Iterator[Any]:
                for n, stored in enumerate(dump.entries):
                    if n == 3:
                        raise NotFound("the rest")
                    yield stored

            return replace(dump, entries=entries())

        with far.export_sessions("ses_a") as dumps:
            torn = SessionExports(map(broken, dumps.sessions), dumps.blobs)
            refused(NotFound, lambda: store.import_sessions(torn, 900))
        refused(NotFound, lambda: store.session("ses_a"))
        assert move(far, store, "ses_a").added == ("ses_a",)

    def test_a_fork_brings_what_it_stands_on(self) -> None:
        pen, there = self._fork_to_move(), MemoryStore()
        before = told(pen.store, "ses_f")
        move(pen.store, there, "ses_f")
        assert told(there, "ses_f") == before
        for name in ("ses_f", "ses_a"):
            pen.store.trash(name, 500)
        pen.store.purge("ses_a", with_forks=True)
        move(there, pen.store, "ses_f")
        assert told(pen.store, "ses_f") == before
        assert pen.texts() == ["seed", "q", "b", "f"]
        assert [branch.session_id for branch in pen.store.branches("ses_f")] == [None, None, "ses_f"]
        assert [c.call_id for c in pen.store.inherited_calls("ses_f")] == ["c2"]
        pen.store.trash("ses_f", 600)
        assert pen.store.purge("ses_f").entries == 4

    def test_a_fork_hangs_on_its_parent_where_the_parent_is_here(self) -> None:
        pen, there = self._fork_to_move(), MemoryStore()
        before = told(pen.store, "ses_f")
        move(pen.store, there, "ses_f")
        pen.store.trash("ses_f", 500)
        pen.store.purge("ses_f")
        assert move(there, pen.store, "ses_f").entries == 1
        assert told(pen.store, "ses_f") == before
        assert [branch.session_id for branch in pen.store.branches("ses_f")] == ["ses_a", "ses_a", "ses_f"]

    def test_a_fork_does_not_hang_on_a_parent_that_holds_something_else(self) -> None:
        pen, there = self._fork_to_move(), MemoryStore()
        before = told(pen.store, "ses_f")
        move(pen.store, there, "ses_f")
        for name in ("ses_f", "ses_a"):
            pen.store.trash(name, 500)
        pen.store.purge("ses_a", with_forks=True)
        other = Pen(pen.store, seeds=[user("another seed")])
        other.append(user("q"))
        assert move(there, pen.store, "ses_f").entries == 4
        assert told(pen.store, "ses_f") == before

    def test_tasks_come_along_when_asked_for(self) -> None:
        pen, there = self._session_to_move(), MemoryStore()
        Pen(pen.store, "ses_t2", relation="task", parent_session="ses_a", started_at=300)
        Pen(pen.store, "ses_t1", relation="task", parent_session="ses_a", started_at=200)
        Pen(pen.store, "ses_t3", relation="task", parent_session="ses_t1")
        Pen(pen.store, "ses_f", relation="fork", parent_session="ses_a")
        assert move(pen.store, there, "ses_a", children=True).added == ("ses_a", "ses_t1", "ses_t3", "ses_t2")
        assert told(there, "ses_a", children=True) == told(pen.store, "ses_a", children=True)

    def test_who_drives_it_is_not_told(self) -> None:
        pen = self._session_to_move()
        before = told(pen.store, "ses_a")
        pen.store.lease("ses_a", "me", until=9_999, at=10)
        assert told(pen.store, "ses_a") == before

    def test_it_becomes_the_owners_who_takes_it_in(self) -> None:
        pen, far = self._session_to_move(), MemoryStore()
        move(pen.store, far, "ses_a")
        pen.store.trash("ses_a", 500)
        pen.store.purge("ses_a")
        ann = self.opened(owner="ann")
        move(far, ann, "ses_a")
        assert ann.session("ses_a").owner == "ann"
        refused(NotFound, lambda: self.opened(owner="bob").session("ses_a"))

    def test_a_leaf_before_the_first_entry_is_a_place_too(self) -> None:
        pen, there = Pen(self.opened()), MemoryStore()
        start = pen.leaf
        pen.append(user("q"))
        pen.move(Leaf(start.branch, 0), Cursor())
        move(pen.store, there, "ses_a")
        assert told(there, "ses_a") == told(pen.store, "ses_a")
