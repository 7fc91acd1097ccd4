"""Tenants, lists, the trash, leases and blobs."""

from __future__ import annotations

from typing import Any

from ...core.drafts import ExtraFact
from ...core.messages import assistant, user
from ...errors import (
    Fenced,
    InvalidPosition,
    MissingBlob,
    NotFound,
    NotTrashed,
    SessionRunning,
    SessionTrashed,
    StaleLeaf,
)
from ..base import SessionQuery, StoreBackend, UnreferencedBlobs
from ..message_limits import MessageLimit
from .writer import Opening, Pen, call, everything, handle_of, make_blob, refused


class Finding(Opening):
    def test_a_stranger_sees_nothing(self) -> None:
        pen = Pen(self.opened(owner="ann"))
        for stranger in (self.opened(space="other"), self.opened(owner="bob")):
            refused(NotFound, lambda store=stranger: store.session("ses_a"))  # type: ignore[misc]
            refused(NotFound, lambda store=stranger: store.commit(pen.change(user("x"))))  # type: ignore[misc]
            refused(NotFound, lambda store=stranger: store.trash("ses_a", 1))  # type: ignore[misc]
            refused(NotFound, lambda store=stranger: store.purge("ses_a"))  # type: ignore[misc]
            assert stranger.sessions(SessionQuery()).sessions == []
        assert self.opened().session("ses_a").owner == "ann"

    def test_sessions_page_by_key_newest_first(self) -> None:
        store = self.opened()
        for n in range(7):
            Pen(
                store,
                f"ses_{n}",
                agent="even" if n % 2 == 0 else "odd",
                tags={"n": str(n), 'it\'s "q"': "x"},
                started_at=n,
            )
        first = store.sessions(SessionQuery(limit=3))
        assert [row.session_id for row in first.sessions] == ["ses_6", "ses_5", "ses_4"]
        Pen(store, "ses_late")
        second = store.sessions(SessionQuery(limit=3, before=first.next))
        third = store.sessions(SessionQuery(limit=3, before=second.next))
        assert [row.session_id for row in second.sessions + third.sessions] == [
            "ses_3",
            "ses_2",
            "ses_1",
            "ses_0",
        ]
        assert third.next is None

    def test_sessions_are_filtered(self) -> None:
        store = self.opened()
        for n in range(6):
            Pen(
                store,
                f"ses_{n}",
                agent=f"a{n % 2}",
                tags={"n": str(n), 'it\'s "q"': "x"},
                started_at=n,
                conversation_id=f"c{n % 3}",
            )

        def found(**query: Any) -> list[str]:
            return [row.session_id[4:] for row in store.sessions(SessionQuery(**query)).sessions]

        assert found(agent="a1") == ["5", "3", "1"]
        assert found(tag=("n", "4")) == ["4"]
        assert found(tag=('it\'s "q"', "x"), agent="a0") == ["4", "2", "0"]
        assert found(started_from=2, started_before=4) == ["3", "2"]
        assert found(conversation_id="c1") == ["4", "1"]
        assert found(status="running") == []
        assert found(relation="fork") == []
        assert found(id_prefix="ses_4") == ["4"]
        assert found(id_prefix="ses_%") == []
        assert len(found(id_prefix="ses_")) == 6
        Pen(store, "ses_t", relation="task", parent_session="ses_1", title="Refund 41")
        assert found(title="Refund 41") == ["t"]
        assert len(found(include_children=False)) == 6

    def test_a_service_filters_by_owner_and_an_owner_never_reaches_another(self) -> None:
        for name in ("ann", "bob"):
            Pen(self.opened(owner=name), f"ses_{name}", owner=name)
        Pen(self.opened(), "ses_nobody")

        def found(by: str | None, owner: str | None) -> list[str]:
            page = self.opened(owner=by).sessions(SessionQuery(owner=owner))
            assert self.opened(owner=by).count(SessionQuery(owner=owner), "status").get("idle", 0) == len(
                page.sessions
            )
            return [row.session_id for row in page.sessions]

        assert found(None, None) == ["ses_nobody", "ses_bob", "ses_ann"]
        assert found(None, "ann") == ["ses_ann"]
        assert found("ann", "ann") == ["ses_ann"]
        assert found("ann", "bob") == []
        assert found(None, "nobody") == []


class Deleting(Opening):
    def _family(self) -> StoreBackend:
        store = self.opened()
        Pen(store, "ses_a")
        Pen(store, "ses_b", relation="task", parent_session="ses_a")
        Pen(store, "ses_c", relation="task", parent_session="ses_b")
        return store

    def test_delete_takes_the_children_first_and_restore_brings_them_back(self) -> None:
        store = self._family()
        assert store.trash("ses_a", 500) == ["ses_c", "ses_b", "ses_a"]
        assert store.sessions(SessionQuery()).sessions == []
        assert len(store.sessions(SessionQuery(trashed=True)).sessions) == 3
        assert store.restore("ses_a") == ["ses_c", "ses_b", "ses_a"]
        assert len(store.sessions(SessionQuery()).sessions) == 3

    def test_restore_leaves_what_was_trashed_before(self) -> None:
        store = self._family()
        store.trash("ses_c", 400)
        store.trash("ses_a", 500)
        store.restore("ses_a")
        assert store.session("ses_c").trashed_at == 400
        assert store.session("ses_b").trashed_at is None

    def test_what_is_in_the_trash_cannot_be_written(self) -> None:
        pen = Pen(self.opened())
        change = pen.change(user("x"))
        pen.store.trash("ses_a", 500)
        refused(SessionTrashed, lambda: pen.store.commit(change))
        pen.store.restore("ses_a")
        assert not pen.store.commit(change).is_repeat

    def test_purge_wants_the_trash_first(self) -> None:
        store = self._family()
        refused(NotTrashed, lambda: store.purge("ses_a"))
        store.trash("ses_a", 500)
        assert set(store.purge("ses_a").sessions) == {"ses_a", "ses_b", "ses_c"}
        refused(NotFound, lambda: store.session("ses_b"))

    def _forked(self) -> tuple[Pen, Pen]:
        pen = Pen(self.opened())
        pen.append(user("1"))
        pen.append(assistant("2"), calls=(call("kept", 1, 2),))
        at, cursor = pen.leaf, pen.cursor
        pen.append(user("3"))
        pen.append(assistant("4"), calls=(call("gone", 3, 4),))
        fork = Pen(
            pen.store, "ses_f", fork_point=(at, cursor), relation="fork", parent_session="ses_a", parent_seq=2
        )
        fork.cursor = cursor
        fork.append(user("mine"))
        return pen, fork

    def test_what_a_fork_stands_on_stays_until_it_goes(self) -> None:
        pen, fork = self._forked()
        pen.store.trash("ses_a", 500)
        purged = pen.store.purge("ses_a")
        assert (purged.entries, purged.kept_entries) == (2, 2)
        assert fork.texts() == ["1", "2", "mine"]
        assert [row.call_id for row in pen.store.inherited_calls("ses_f")] == ["kept"]
        assert [branch.session_id for branch in pen.store.branches("ses_f")] == [None, "ses_f"]
        pen.store.trash("ses_f", 600)
        assert pen.store.purge("ses_f").entries == 3

    def test_how_much_models_were_given_below_a_fork_is_told_also_when_its_source_is_gone(self) -> None:
        pen = Pen(self.opened())
        started = [ExtraFact("turn_started", {"turn": n, "max_messages": n + 4}) for n in (1, 3)]
        pen.append(user("1"), facts=(started[0],))
        pen.append(assistant("2"))
        at, cursor = pen.leaf, pen.cursor
        pen.append(user("3"), facts=(started[1],))
        for name in ("ses_f", "ses_g"):
            Pen(
                pen.store,
                name,
                fork_point=(at, cursor),
                relation="fork",
                parent_session="ses_a",
                parent_seq=2,
            )
        for gone in ("ses_a", "ses_f"):
            assert _given(pen.store, "ses_g") == (MessageLimit(1, 1, 5),)
            pen.store.trash(gone, 500)
            pen.store.purge(gone)
        assert _given(pen.store, "ses_g") == (MessageLimit(1, 1, 5),)

    def test_a_purge_leaves_what_another_fork_inherits_from_a_session_purged_before(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("1"))
        start, start_cursor = pen.leaf, pen.cursor
        pen.append(assistant("2"), calls=(call("first", 1, 2),))
        short, cursor = pen.leaf, pen.cursor
        pen.move(start, start_cursor)
        pen.append(assistant("other"), calls=(call("second", 1, 2),))
        for name, at in (("ses_f", short), ("ses_g", pen.leaf)):
            Pen(pen.store, name, fork_point=(at, cursor), relation="fork")
        for gone in ("ses_a", "ses_f"):
            pen.store.trash(gone, 500)
            pen.store.purge(gone)
        assert [row.call_id for row in pen.store.inherited_calls("ses_g")] == ["second"]

    def test_nothing_is_forked_where_what_it_would_stand_on_is_gone(self) -> None:
        """The branch is still there: another fork stands on the beginning of it."""
        pen, fork = self._forked()
        at, cursor = pen.leaf, pen.cursor
        pen.store.trash("ses_a", 500)
        pen.store.purge("ses_a")
        refused(InvalidPosition, lambda: Pen(pen.store, "ses_late", fork_point=(at, cursor), relation="fork"))
        refused(NotFound, lambda: pen.store.session("ses_late"))
        assert fork.texts() == ["1", "2", "mine"]

    def test_purge_with_forks_takes_all(self) -> None:
        pen, _ = self._forked()
        pen.store.trash("ses_a", 500)
        assert pen.store.purge("ses_a", with_forks=True).entries == 5
        refused(NotFound, lambda: pen.store.session("ses_f"))

    def test_a_purged_id_may_be_used_again_and_remembers_nothing(self) -> None:
        store = self.opened()
        pen = Pen(store)
        pen.append(user("old"))
        store.trash("ses_a", 500)
        store.purge("ses_a")
        again = Pen(store)
        assert again.is_new
        assert again.texts() == []
        assert len(store.journal("ses_a")) == 1


class Leasing(Opening):
    def test_one_runner_drives_and_a_late_one_is_fenced(self) -> None:
        pen = Pen(self.opened())
        first = pen.store.lease("ses_a", "one", until=1_000, at=10)
        assert pen.store.lease("ses_a", "one", until=2_000, at=20) == first
        refused(SessionRunning, lambda: pen.store.lease("ses_a", "two", until=3_000, at=30))
        second = pen.store.lease("ses_a", "two", until=9_000, at=2_001)
        assert second > first
        before = everything(pen.store, "ses_a")
        refused(Fenced, lambda: pen.append(user("late"), fence=first))
        assert everything(pen.store, "ses_a") == before
        pen.append(user("mine"), fence=second)
        pen.store.release("ses_a", first)
        assert pen.row.holder == "two"
        pen.store.release("ses_a", second)
        assert pen.store.session("ses_a").holder is None
        assert pen.store.lease("ses_a", "three", until=9_999, at=2_002) > second


class Drafting(Opening):
    def test_a_draft_is_replaced_as_it_grows_and_holds_while_the_session_stands_there(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("q"))
        fence = pen.store.lease("ses_a", "one", until=1_000, at=10)
        assert pen.store.draft("ses_a") is None
        for text in ("half", "half a sentence"):
            pen.store.save_draft("ses_a", pen.leaf, text, fence, 20)
        assert pen.store.draft("ses_a") == "half a sentence"
        pen.append(assistant("whole"))
        assert pen.store.draft("ses_a") is None

    def test_a_fenced_runner_cannot_draft(self) -> None:
        pen = Pen(self.opened())
        fence = pen.store.lease("ses_a", "one", until=1_000, at=10)
        pen.store.lease("ses_a", "two", until=9_000, at=2_000)
        refused(Fenced, lambda: pen.store.save_draft("ses_a", pen.leaf, "late", fence, 20))
        assert pen.store.draft("ses_a") is None


class Queueing(Opening):
    def test_queued_input_waits_in_order_and_goes_with_the_change_that_takes_it(self) -> None:
        pen = Pen(self.opened())
        assert [pen.store.enqueue("ses_a", body, 10) for body in (b"{1}", b"{2}")] == [1, 2]
        assert [(queued.number, queued.body) for queued in pen.store.inbox("ses_a")] == [
            (1, b"{1}"),
            (2, b"{2}"),
        ]
        pen.append(user("1"), inbox_number=1)
        assert [queued.number for queued in pen.store.inbox("ses_a")] == [2]

    def test_a_refused_change_leaves_the_queue_as_it_was(self) -> None:
        pen = Pen(self.opened())
        pen.store.enqueue("ses_a", b"{}", 10)
        late = pen.change(user("late"), inbox_number=1)
        pen.append(user("first"))
        refused(StaleLeaf, lambda: pen.store.commit(late))
        assert len(pen.store.inbox("ses_a")) == 1
        pen.store.trash("ses_a", 500)
        refused(SessionTrashed, lambda: pen.store.enqueue("ses_a", b"{}", 10))
        pen.store.purge("ses_a")


class KeepingBlobs(Opening):
    def test_blobs_are_kept_once_by_content_and_space(self) -> None:
        store, other = self.opened(), self.opened(space="other")
        blob = make_blob(b"\0\xff bytes")
        store.put_blob(blob, 10)
        store.put_blob(blob, 20)
        assert store.blob(blob.hash) == blob
        assert other.blob(blob.hash) is None
        assert store.blob("0" * 64) is None

    def test_an_entry_cannot_point_to_a_missing_blob(self) -> None:
        pen = Pen(self.opened())
        blob = make_blob(b"bytes")
        change = pen.change(user(handle_of(blob)))
        before = everything(pen.store, "ses_a")
        refused(MissingBlob, lambda: pen.store.commit(change))
        assert everything(pen.store, "ses_a") == before
        pen.store.put_blob(blob, 10)
        pen.store.commit(change)
        assert pen.store.entries("ses_a")[0].entry.media == (blob.hash,)

    def test_unused_blobs_are_collected_and_used_ones_stay(self) -> None:
        pen = Pen(self.opened())
        used, unused, fresh = make_blob(b"used"), make_blob(b"unused"), make_blob(b"fresh")
        pen.store.put_blob(unused, 10)
        pen.store.put_blob(fresh, 90)
        pen.append(user(handle_of(used)), blobs=(used,))
        assert pen.store.unreferenced_blobs(before=50) == UnreferencedBlobs(1, len(b"unused"))
        assert pen.store.delete_unreferenced_blobs(before=50) == 1
        assert [pen.store.blob(blob.hash) is None for blob in (used, unused, fresh)] == [False, True, False]
        pen.store.trash("ses_a", 500)
        assert pen.store.purge("ses_a").blobs == 1
        assert pen.store.blob(used.hash) is None


def _given(store: StoreBackend, session_id: str) -> tuple[MessageLimit, ...]:
    with store.export_sessions(session_id) as dumps:
        return next(iter(dumps.sessions)).inherited_limits
