"""Tenants, lists, the trash, leases and blobs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from oakleaf.core.codec import encode
from oakleaf.core.entries import Note
from oakleaf.core.messages import assistant, user
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor
from oakleaf.errors import (
    Fenced,
    InvalidArgument,
    InvalidPosition,
    MissingBlob,
    NotFound,
    NotTrashed,
    SessionRunning,
    SessionTrashed,
    StaleLeaf,
)
from oakleaf.stores.base import ACTIVITY_STEP, SessionQuery, SessionRow, StoreBackend, UnreferencedBlobs
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.testing.stores.writer import (
    SessionWriter,
    StoreFactory,
    assert_raises,
    call,
    delete,
    make_blob,
    media_of,
    read_everything,
    require,
)


class QueryConformance(StoreFactory):
    def test_a_stranger_sees_nothing(self) -> None:
        writer = SessionWriter(self.open_store(owner="ann"))
        for stranger in (self.open_store(space="other"), self.open_store(owner="bob")):
            assert_raises(NotFound, lambda store=stranger: store.session("ses_a"))  # type: ignore[misc]
            assert_raises(NotFound, lambda store=stranger: store.commit(writer.change(user("x"))))  # type: ignore[misc]
            assert stranger.sessions(SessionQuery()).sessions == []
        assert self.open_store().session("ses_a").owner == "ann"

    def test_the_store_of_another_tenant_is_the_same_store(self) -> None:
        store = self.open_store()
        acme = store.for_tenant("acme")
        SessionWriter(store, "ses_a", owner="ann")
        SessionWriter(acme, "ses_b", owner="ann")
        SessionWriter(acme, "ses_c")
        assert [row.session_id for row in acme.sessions(SessionQuery()).sessions] == ["ses_c", "ses_b"]
        for stranger in (store, acme.for_tenant("acme", "bob"), acme.for_tenant("default", "ann")):
            assert_raises(NotFound, lambda stranger=stranger: stranger.session("ses_b"))  # type: ignore[misc]
        assert acme.for_tenant("acme", "ann").session("ses_b").space == "acme"
        assert [row.session_id for row in self.open_store("acme").sessions(SessionQuery()).sessions] == [
            "ses_c",
            "ses_b",
        ]

    def test_sessions_page_by_key_newest_first(self) -> None:
        store = self.open_store()
        for n in range(7):
            SessionWriter(
                store,
                f"ses_{n}",
                agent="even" if n % 2 == 0 else "odd",
                tags={"n": str(n), 'it\'s "q"': "x"},
                started_at=n,
            )
        first = store.sessions(SessionQuery(limit=3))
        assert [row.session_id for row in first.sessions] == ["ses_6", "ses_5", "ses_4"]
        SessionWriter(store, "ses_late")
        second = store.sessions(SessionQuery(limit=3, before=first.next))
        third = store.sessions(SessionQuery(limit=3, before=second.next))
        rest = [row.session_id for row in second.sessions + third.sessions]
        assert rest == ["ses_3", "ses_2", "ses_1", "ses_0"]
        assert third.next is None

    def test_sessions_are_listed_by_activity(self) -> None:
        """An input counts at once, a step of a run once a minute, a title or a note of a status never."""
        store = self.open_store()
        writers = {name: SessionWriter(store, f"ses_{name}") for name in "abc"}

        def order() -> str:
            return "".join(_names(store, order="active", limit=2))

        assert order() == "cba"  # of one moment: the newest first
        at = 200
        writers["b"].append(user("x"), at=at)
        assert order() == "bca"
        writers["a"].append(user("y"), at=at + 1)
        writers["c"].append(columns={"title": "later"}, at=at + 2)
        assert order() == "abc"
        writers["b"].append(assistant("z"), at=at + 3)
        assert order() == "abc"
        writers["b"].append(assistant("z"), at=at + ACTIVITY_STEP)
        assert order() == "abc"
        writers["b"].append(assistant("z"), at=at + ACTIVITY_STEP + 1)
        assert order() == "bac"
        writers["c"].move(Leaf(writers["c"].leaf.branch, 0), Cursor(), at=at + ACTIVITY_STEP + 2)
        assert order() == "cba"
        writers["a"].append(user("an earlier clock"), at=5)
        assert order() == "cba"

    def test_a_list_by_tag_follows_the_tags_and_the_activity_of_its_sessions(self) -> None:
        store = self.open_store()
        writers = {
            n: SessionWriter(store, f"ses_{n}", tags={"team": "a", "long": "x" * 5_000}) for n in range(5)
        }

        def listed(value: str = "a", **query: Any) -> str:
            return "".join(_names(store, tag=("team", value), limit=2, **query))

        assert (listed(), listed(order="active"), listed("b")) == ("43210", "43210", "")
        writers[1].append(user("x"), at=200)
        assert (listed(), listed(order="active")) == ("43210", "14320")
        writers[3].append(tags={"team": "b"}, at=201)
        writers[2].append(tags={"team": None}, at=202)
        writers[0].append(tags={"other": "c"}, at=203)
        assert (listed(), listed(order="active"), listed("b")) == ("410", "140", "3")
        writers[3].append(user("y"), tags={"team": "a"}, at=204)
        assert (listed(), listed(order="active"), listed("b")) == ("4310", "3140", "")
        assert store.count(SessionQuery(tag=("team", "a")), "status") == {"idle": 4}
        assert _names(store, tag=("long", "x" * 5_000)) == ["4", "3", "2", "1", "0"]
        store.trash("ses_4", 300)
        assert (listed(), listed(trashed=True)) == ("310", "4")
        store.purge("ses_4")
        assert (listed(), listed(trashed=True)) == ("310", "")
        elsewhere = MemoryStore()
        with store.export_sessions("ses_1") as exports:
            elsewhere.import_sessions(exports, 400)
        delete(store, "ses_1")
        with elsewhere.export_sessions("ses_1") as exports:
            store.import_sessions(exports, 402)
        assert listed() == "130"

    def test_a_store_that_grows_while_it_is_listed_repeats_no_session(self) -> None:
        """By creation no session is missed either; by activity the next listing begins with the active sessions."""
        store = self.open_store()
        writers = [SessionWriter(store, f"ses_{n}", updated_at=n) for n in range(9)]
        old = {writer.session_id for writer in writers}
        queries = (SessionQuery(limit=2), SessionQuery(limit=2, order="active"))
        for at, query in zip((100, 200), queries, strict=True):
            names, active = list[str](), set[str]()
            for n, row in enumerate(_walk(store, query)):
                names.append(row.session_id)
                if n % 2 and n < 9:
                    writers[n - 1].append(user("again"), at=at + n)
                    active |= {writers[n - 1].session_id, f"ses_{at}_{n}"}
                    SessionWriter(store, f"ses_{at}_{n}", updated_at=at + n)
            assert len(names) == len(set(names))
            missing = old - {*names}
            assert missing <= active if query.order == "active" else not missing
            front = store.sessions(replace(query, order="active", limit=len(active))).sessions
            assert {row.session_id for row in front} == active

    def test_a_position_in_another_list_is_bounded_or_refused(self) -> None:
        store = self.open_store()
        for n in range(4):
            SessionWriter(store, f"ses_{n}", updated_at=n)
        for order, before in (("active", "999999999999999999-999999999999999999"), ("created", "9" * 18)):
            assert len(store.sessions(SessionQuery(order=order, before=before)).sessions) == 4  # type: ignore[arg-type]
        assert store.sessions(SessionQuery(order="active", before="0-0")).sessions == []
        for order, before in (("active", "7"), ("created", "7-7"), ("active", "7-"), ("active", "-1-2")):
            assert_raises(InvalidArgument, lambda o=order, b=before: SessionQuery(order=o, before=b))  # type: ignore
        assert_raises(InvalidArgument, lambda: SessionQuery(order="size"))  # type: ignore[arg-type]

    def test_sessions_are_filtered(self) -> None:
        store = self.open_store()
        for n in range(6):
            SessionWriter(
                store,
                f"ses_{n}",
                agent=f"a{n % 2}",
                tags={"n": str(n), 'it\'s "q"': "x"},
                started_at=n,
                conversation_id=f"c{n % 3}",
            )
        matching_ids = partial(_names, store)
        assert matching_ids(agent="a1") == ["5", "3", "1"]
        assert matching_ids(tag=("n", "4")) == ["4"]
        assert matching_ids(tag=('it\'s "q"', "x"), agent="a0") == ["4", "2", "0"]
        assert matching_ids(started_from=2, started_before=4) == ["3", "2"]
        assert matching_ids(conversation_id="c1") == ["4", "1"]
        assert matching_ids(status="running") == []
        assert matching_ids(relation="fork") == []
        assert matching_ids(id_prefix="ses_4") == ["4"]
        assert matching_ids(id_prefix="ses_%") == []
        assert len(matching_ids(id_prefix="ses_")) == 6
        task = SessionWriter(store, "ses_t", relation="task", parent_session="ses_1", title="Refund 41")
        assert matching_ids(title="Refund 41") == ["t"]
        task.append(user("a"), key="mail-1")
        task.append(assistant("b"), key="~made")
        assert matching_ids(key="mail-1") == ["t"]
        assert matching_ids(key="~made") == matching_ids(key="mail-1", agent="a1") == []
        assert len(matching_ids(include_children=False)) == 6

    def test_a_list_by_title_follows_the_titles_and_the_activity_of_its_sessions(self) -> None:
        store, long = self.open_store(), "x" * 5_000
        writers = {n: SessionWriter(store, f"ses_{n}", title="one", tags={"n": str(n % 2)}) for n in range(4)}

        def listed(title: str = "one", **query: Any) -> str:
            return "".join(_names(store, title=title, limit=2, **query))

        assert (listed(), listed(order="active"), listed("other")) == ("3210", "3210", "")
        writers[1].append(user("x"), at=200)
        assert (listed(), listed(order="active"), listed(order="active", tag=("n", "1"))) == (
            "3210",
            "1320",
            "13",
        )
        writers[3].append(columns={"title": long}, at=201)
        writers[2].append(columns={"title": None}, at=202)
        assert (listed(order="active"), listed(long), listed(id_prefix="ses_1")) == ("10", "3", "1")
        assert store.count(SessionQuery(title="one"), "status") == {"idle": 2}
        store.trash("ses_0", 300)
        assert (listed(), listed(trashed=True)) == ("1", "0")

    def test_sessions_marked_running_are_found_beside_those_of_a_status(self) -> None:
        store = self.open_store()
        for status in ("idle", "running", "interrupted"):
            SessionWriter(store, f"ses_{status}").append(columns={"status": status})
        assert _names(store, status="interrupted", or_running=True) == ["interrupted", "running"]
        counts = store.count(SessionQuery(status="idle", or_running=True), "status")
        assert counts == {"idle": 1, "running": 1}

    def test_first_inputs_are_read_for_many_sessions_at_once(self) -> None:
        """Seeds and notes are no inputs; a fork has the inherited input, a rewound session the new input."""
        store = self.open_store()
        seeded = SessionWriter(store, "ses_seeded", seeds=[user("example"), assistant("shot")])
        after_seeds = (seeded.leaf, seeded.cursor)
        seeded.append(Note({"before": True}), user("first"), assistant("b"))
        after_turn = (seeded.leaf, seeded.cursor)
        seeded.append(user("second"), assistant("d"))
        SessionWriter(store, "ses_fork", fork_point=after_turn).append(user("third"))
        SessionWriter(store, "ses_early", fork_point=after_seeds).append(user("new"))
        rewound = SessionWriter(store, "ses_rewound")
        rewound.append(user("old"), assistant("x"))
        rewound.move(Leaf(rewound.leaf.branch, 0), Cursor())
        rewound.append(user("again"))
        SessionWriter(store, "ses_empty")
        names = ["ses_seeded", "ses_fork", "ses_early", "ses_rewound", "ses_empty", "ses_missing"]
        inputs = store.first_inputs(names)
        assert {name: message.text for name, message in inputs.items()} == {
            "ses_seeded": "first",
            "ses_fork": "first",
            "ses_early": "new",
            "ses_rewound": "again",
        }
        assert store.first_inputs([]) == self.open_store(space="other").first_inputs(names) == {}
        assert self.open_store(owner="ann").first_inputs(names) == {}

    def test_heads_of_many_sessions_differ_when_something_happened(self) -> None:
        store = self.open_store()
        names = ["ses_a", "ses_b", "ses_missing"]
        first, _ = [SessionWriter(store, name) for name in names[:2]]
        before = store.heads(names)
        assert sorted(before) == ["ses_a", "ses_b"]
        first.append(user("a"))
        after = store.heads(names)
        assert after["ses_a"] != before["ses_a"]
        assert after["ses_b"] == before["ses_b"]
        row = store.session("ses_a")
        assert (after["ses_a"].facts, after["ses_a"].status) == (row.facts, row.status)
        store.trash("ses_b", row.updated_at)
        in_trash = store.heads(names)
        assert (in_trash["ses_a"].trashed_at, in_trash["ses_b"].trashed_at) == (None, row.updated_at)
        store.restore("ses_b")
        assert store.heads(names) == after
        assert store.heads([]) == self.open_store(space="other").heads(names) == {}
        assert self.open_store(owner="ann").heads(names) == {}

    def test_a_service_filters_by_owner_and_an_owner_never_reaches_another(self) -> None:
        for name in ("ann", "bob"):
            SessionWriter(self.open_store(owner=name), f"ses_{name}", owner=name)
        SessionWriter(self.open_store(), "ses_nobody")

        def matching_ids(by: str | None, owner: str | None) -> list[str]:
            names = _names(self.open_store(owner=by), owner=owner)
            counts = self.open_store(owner=by).count(SessionQuery(owner=owner), "status")
            assert counts.get("idle", 0) == len(names)
            return names

        assert matching_ids(None, None) == ["nobody", "bob", "ann"]
        assert matching_ids(None, "ann") == ["ann"]
        assert matching_ids("ann", "ann") == ["ann"]
        assert matching_ids("ann", "bob") == []
        assert matching_ids(None, "nobody") == []


class DeleteConformance(StoreFactory):
    def _family(self) -> StoreBackend:
        store = self.open_store()
        SessionWriter(store, "ses_a")
        SessionWriter(store, "ses_b", relation="task", parent_session="ses_a")
        SessionWriter(store, "ses_c", relation="task", parent_session="ses_b")
        return store

    def test_delete_takes_the_children_first_and_restore_brings_them_back(self) -> None:
        store = self._family()
        assert store.trash("ses_a", 500) == ["ses_c", "ses_b", "ses_a"]
        assert store.sessions(SessionQuery()).sessions == []
        assert len(store.sessions(SessionQuery(trashed=True)).sessions) == 3
        assert store.restore("ses_a") == ["ses_c", "ses_b", "ses_a"]
        assert len(store.sessions(SessionQuery()).sessions) == 3

    def test_a_stranger_deletes_nothing(self) -> None:
        SessionWriter(self.open_store(owner="ann"))
        for stranger in (self.open_store(space="other"), self.open_store(owner="bob")):
            for verb in (lambda store: store.trash("ses_a", 1), lambda store: store.restore("ses_a")):
                assert_raises(NotFound, lambda store=stranger, verb=verb: verb(store))  # type: ignore[misc]
        self.open_store().trash("ses_a", 1)
        for stranger in (self.open_store(space="other"), self.open_store(owner="bob")):
            assert_raises(NotFound, lambda store=stranger: store.purge("ses_a"))  # type: ignore[misc]

    def test_restore_leaves_what_was_trashed_before(self) -> None:
        store = self._family()
        store.trash("ses_c", 400)
        store.trash("ses_a", 500)
        store.restore("ses_a")
        assert store.session("ses_c").trashed_at == 400
        assert store.session("ses_b").trashed_at is None

    def test_what_is_in_the_trash_cannot_be_written(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("before"))
        attached, change = writer.change(user(media_of(make_blob(b"absent")))), writer.change(user("x"))
        writer.store.trash("ses_a", 500)
        for refused in (attached, change):
            assert_raises(SessionTrashed, lambda change=refused: writer.store.commit(change))  # type: ignore[misc]
        writer.store.restore("ses_a")
        assert not writer.store.commit(change).is_repeat

    def test_purge_wants_the_trash_first(self) -> None:
        store = self._family()
        assert_raises(NotTrashed, lambda: store.purge("ses_a"))
        store.trash("ses_a", 500)
        assert set(store.purge("ses_a").sessions) == {"ses_a", "ses_b", "ses_c"}
        assert_raises(NotFound, lambda: store.session("ses_b"))

    def _fork(self) -> tuple[SessionWriter, SessionWriter]:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        writer.append(assistant("2"), calls=(call("kept", 1, 2),))
        at, cursor = writer.leaf, writer.cursor
        writer.append(user("3"))
        writer.append(assistant("4"), calls=(call("gone", 3, 4),))
        fork = writer.fork("ses_f", (at, cursor))
        fork.cursor = cursor
        fork.append(user("mine"))
        return writer, fork

    def test_what_a_fork_stands_on_stays_until_it_goes(self) -> None:
        writer, fork = self._fork()
        writer.store.trash("ses_a", 500)
        purged = writer.store.purge("ses_a")
        assert (purged.entries, purged.kept_entries) == (2, 2)
        assert fork.texts() == ["1", "2", "mine"]
        assert [row.call_id for row in writer.store.inherited_calls("ses_f")] == ["kept"]
        assert [branch.session_id for branch in writer.store.branches("ses_f")] == [None, "ses_f"]
        writer.store.trash("ses_f", 600)
        assert writer.store.purge("ses_f").entries == 3

    def test_a_purge_leaves_what_another_fork_inherits_from_a_session_purged_before(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("1"))
        start, start_cursor = writer.leaf, writer.cursor
        writer.append(assistant("2"), calls=(call("first", 1, 2),))
        short, cursor = writer.leaf, writer.cursor
        writer.move(start, start_cursor)
        writer.append(assistant("other"), calls=(call("second", 1, 2),))
        for name, at in (("ses_f", short), ("ses_g", writer.leaf)):
            writer.fork(name, (at, cursor))
        delete(writer.store, "ses_a", "ses_f")
        assert [row.call_id for row in writer.store.inherited_calls("ses_g")] == ["second"]

    def test_nothing_is_forked_where_what_it_would_stand_on_is_gone(self) -> None:
        """The branch is still there: another fork stands on the beginning of the branch."""
        writer, fork = self._fork()
        at, cursor = writer.leaf, writer.cursor
        delete(writer.store, "ses_a")
        assert_raises(InvalidPosition, lambda: writer.fork("ses_late", (at, cursor)))
        assert_raises(NotFound, lambda: writer.store.session("ses_late"))
        assert fork.texts() == ["1", "2", "mine"]

    def test_purge_with_forks_takes_all(self) -> None:
        writer, _ = self._fork()
        writer.store.trash("ses_a", 500)
        assert writer.store.purge("ses_a", with_forks=True).entries == 5
        assert_raises(NotFound, lambda: writer.store.session("ses_f"))

    def test_a_purged_id_may_be_used_again_and_remembers_nothing(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store)
        writer.append(user("old"))
        delete(store, "ses_a")
        again = SessionWriter(store)
        assert again.is_new
        assert again.texts() == []
        assert len(store.journal("ses_a")) == 1


class LeaseConformance(StoreFactory):
    def test_one_runner_drives_and_a_late_one_is_fenced(self) -> None:
        writer = SessionWriter(self.open_store())
        first = writer.store.lease("ses_a", "one", until=1_000, at=10)
        assert writer.store.lease("ses_a", "one", until=2_000, at=20) == first
        assert_raises(SessionRunning, lambda: writer.store.lease("ses_a", "two", until=3_000, at=30))
        second = writer.store.lease("ses_a", "two", until=9_000, at=2_001)
        assert second > first
        before = read_everything(writer.store, "ses_a")
        assert_raises(Fenced, lambda: writer.append(user("late"), fence=first))
        assert read_everything(writer.store, "ses_a") == before
        writer.append(user("mine"), fence=second)
        writer.store.release("ses_a", first)
        assert writer.row.holder == "two"
        writer.store.release("ses_a", second)
        assert writer.store.session("ses_a").holder is None
        assert writer.store.lease("ses_a", "three", until=9_999, at=2_002) > second

    def test_a_lease_is_renewed_by_its_holder_only(self) -> None:
        store = SessionWriter(self.open_store()).store
        first = store.lease("ses_a", "one", until=1_000, at=10)
        assert store.renew("ses_a", first, until=2_000)
        assert store.session("ses_a").lease_until == 2_000
        second = store.lease("ses_a", "two", until=9_000, at=2_000)
        assert not store.renew("ses_a", first, until=99_000)
        row = store.session("ses_a")
        assert (row.holder, row.lease_until, row.fence) == ("two", 9_000, second)
        store.release("ses_a", second)
        assert not store.renew("ses_a", second, until=99_000)

    def test_a_lease_is_taken_from_a_holder_that_is_gone_and_from_no_later_one(self) -> None:
        store = SessionWriter(self.open_store()).store
        session_id = store.lease("ses_a", "gone", until=1_000, at=10)
        next_fence = store.lease("ses_a", "next", until=1_000, at=20, take_from=session_id)
        assert next_fence > session_id
        assert_raises(
            SessionRunning, lambda: store.lease("ses_a", "late", until=1_000, at=20, take_from=session_id)
        )
        assert store.renew("ses_a", next_fence, until=2_000)

    def test_a_change_may_take_the_lease_and_only_one_of_two_does(self) -> None:
        writer = SessionWriter(self.open_store())
        lease = {"holder": "one", "lease_until": 1_000, "fence": 1}
        writer.append(user("a"), fence=0, columns=lease)
        assert_raises(Fenced, lambda: writer.append(user("b"), fence=0, columns={**lease, "holder": "two"}))
        row = writer.store.session("ses_a")
        assert (row.holder, row.fence) == ("one", 1)
        writer.append(user("c"), fence=1)

    def test_while_a_lease_is_held_only_its_runner_appends_and_anybody_adds_notes(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        start, cursor = writer.leaf, writer.cursor
        again = writer.change(user("again"), key="again")
        writer.store.commit(again)
        writer.leaf, writer.cursor = writer.row.leaf, writer.next_cursor
        fence = writer.store.lease("ses_a", "one", until=10_000, at=10)
        before = read_everything(writer.store, "ses_a")
        assert_raises(SessionRunning, lambda: writer.append(user("x")))
        assert_raises(SessionRunning, lambda: writer.append(Note({}), user("x")))
        assert_raises(SessionRunning, lambda: writer.append(user("stale"), after=start, cursor=cursor))
        assert_raises(SessionRunning, lambda: writer.move(start, cursor))
        assert writer.store.commit(again).is_repeat
        assert read_everything(writer.store, "ses_a") == before
        writer.append(Note({"n": 1}))
        writer.append(assistant("a"), fence=fence)
        assert writer.append(user("the lease has expired"), at=10_000).leaf.seq == 5
        writer.store.release("ses_a", fence)
        writer.append(user("nobody runs it"))


class DraftConformance(StoreFactory):
    def test_a_draft_is_replaced_as_it_grows_and_holds_while_the_session_stands_there(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("q"))
        require(writer.store, "save_draft", "save drafts")
        fence = writer.store.lease("ses_a", "one", until=1_000, at=10)
        assert writer.store.draft("ses_a") is None
        for text in ("half", "half a sentence"):
            writer.store.save_draft("ses_a", writer.leaf, text, fence, 20)
        assert writer.store.draft("ses_a") == "half a sentence"
        writer.append(Note({"from": "elsewhere"}))
        assert writer.store.draft("ses_a") == "half a sentence"
        writer.append(assistant("whole"), fence=fence)
        assert writer.store.draft("ses_a") is None

    def test_a_fenced_runner_cannot_draft(self) -> None:
        writer = SessionWriter(self.open_store())
        require(writer.store, "save_draft", "save drafts")
        fence = writer.store.lease("ses_a", "one", until=1_000, at=10)
        writer.store.lease("ses_a", "two", until=9_000, at=2_000)
        assert_raises(Fenced, lambda: writer.store.save_draft("ses_a", writer.leaf, "late", fence, 20))
        assert writer.store.draft("ses_a") is None


class InboxConformance(StoreFactory):
    def test_queued_input_waits_in_order_and_goes_with_the_change_that_takes_it(self) -> None:
        writer = SessionWriter(self.open_store())
        assert [writer.store.enqueue("ses_a", body, 10) for body in (b"{1}", b"{2}")] == [1, 2]
        queued_inputs = [(queued.number, queued.body) for queued in writer.store.inbox("ses_a")]
        assert queued_inputs == [(1, b"{1}"), (2, b"{2}")]
        writer.append(user("1"), inbox_number=1)
        assert [queued.number for queued in writer.store.inbox("ses_a")] == [2]
        writer.store.enqueue("ses_a", b"{}", 30)
        assert [queued.number for queued in writer.store.inbox("ses_a", 1)] == [2]

    def test_a_refused_change_leaves_the_queue_as_it_was(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.store.enqueue("ses_a", b"{}", 10)
        late = writer.change(user("late"), inbox_number=1)
        writer.append(user("first"))
        assert_raises(StaleLeaf, lambda: writer.store.commit(late))
        assert len(writer.store.inbox("ses_a")) == 1
        writer.store.trash("ses_a", 500)
        assert_raises(SessionTrashed, lambda: writer.store.enqueue("ses_a", b"{}", 10))
        writer.store.purge("ses_a")


class BlobConformance(StoreFactory):
    def test_blobs_are_kept_once_by_content_and_space(self) -> None:
        store, other = self.open_store(), self.open_store(space="other")
        blob = make_blob(b"\0\xff bytes")
        store.put_blob(blob, 10)
        store.put_blob(blob, 20)
        assert store.blob(blob.hash) == blob
        assert other.blob(blob.hash) is None
        assert store.blob("0" * 64) is None

    def test_an_entry_cannot_point_to_a_missing_blob(self) -> None:
        writer = SessionWriter(self.open_store())
        blob = make_blob(b"bytes")
        change = writer.change(user(media_of(blob)))
        before = read_everything(writer.store, "ses_a")
        assert_raises(MissingBlob, lambda: writer.store.commit(change))
        assert read_everything(writer.store, "ses_a") == before
        writer.store.put_blob(blob, 10)
        writer.store.commit(change)
        assert writer.store.entries("ses_a")[0].entry.media == (blob.hash,)

    def test_unused_blobs_are_collected_and_used_ones_stay(self) -> None:
        writer = SessionWriter(self.open_store())
        require(writer.store, "delete_unreferenced_blobs", "delete blobs")
        used, unused, fresh = make_blob(b"used"), make_blob(b"unused"), make_blob(b"fresh")
        writer.store.put_blob(unused, 10)
        writer.store.put_blob(fresh, 90)
        writer.append(user(media_of(used)), blobs=(used,))
        assert writer.store.unreferenced_blobs(before=50) == UnreferencedBlobs(1, len(b"unused"))
        assert writer.store.delete_unreferenced_blobs(before=50) == 1
        assert writer.store.blob(unused.hash) is None
        assert (writer.store.blob(used.hash), writer.store.blob(fresh.hash)) == (used, fresh)
        writer.store.trash("ses_a", 500)
        assert writer.store.purge("ses_a").blobs == 1
        assert writer.store.blob(used.hash) is None

    def test_blobs_of_a_queued_input_stay_until_it_is_taken_or_purged(self) -> None:
        writer = SessionWriter(self.open_store())
        store, blob = writer.store, make_blob(b"queued")
        store.put_blob(blob, 10)
        for _ in range(2):
            store.enqueue("ses_a", encode(user(media_of(blob))), 20)
        assert store.unreferenced_blobs(before=50) == UnreferencedBlobs(0, 0)
        assert store.delete_unreferenced_blobs(before=50) == 0
        writer.append(user(media_of(blob)), inbox_number=1)
        assert store.entries("ses_a")[0].entry.media == (blob.hash,)
        SessionWriter(store, "ses_b")
        store.enqueue("ses_b", encode(user(media_of(blob))), 20)
        for session_id, purged in (("ses_a", 0), ("ses_b", 1)):
            store.trash(session_id, 500)
            assert store.purge(session_id).blobs == purged
        assert store.blob(blob.hash) is None


def _names(store: StoreBackend, **query: Any) -> list[str]:
    """Return the ids of a list, page by page, without the prefix."""
    return [row.session_id[4:] for row in _walk(store, SessionQuery(**query))]


def _walk(store: StoreBackend, query: SessionQuery) -> Iterator[SessionRow]:
    page = store.sessions(query)
    yield from page.sessions
    while page.next is not None:
        page = store.sessions(replace(query, before=page.next))
        yield from page.sessions
