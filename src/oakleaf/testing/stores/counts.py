"""Counting sessions, money and bytes, and what stands beside the messages of a path."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from oakleaf.core.entries import Note, Settings
from oakleaf.core.facts import Labelled, Titled
from oakleaf.core.messages import assistant, user
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor
from oakleaf.core.usage import Totals
from oakleaf.errors import InvalidArgument, InvalidText, NotFound
from oakleaf.stores.base import SessionQuery
from oakleaf.stores.counts import DAY, QUARTER, StorageSize, UsageSums
from oakleaf.testing.stores.writer import (
    SessionWriter,
    StoreFactory,
    assert_raises,
    call,
    make_blob,
    media_of,
)


class CountConformance(StoreFactory):
    def test_sessions_are_counted_by_the_values_of_a_column(self) -> None:
        store = self.open_store()
        for n in range(5):
            SessionWriter(
                store, f"ses_{n}", agent="a" if n < 3 else None, model="m" if n else None, started_at=n
            )
        SessionWriter(self.open_store(space="other"), "ses_other", agent="a")
        store.trash("ses_4", 1)
        assert store.count(SessionQuery(), "agent") == {"a": 3, "": 1}
        assert store.count(SessionQuery(limit=1), "status") == {"idle": 4}
        assert store.count(SessionQuery(agent="a"), "model") == {"m": 2, "": 1}
        assert store.count(SessionQuery(model="m"), "agent") == {"a": 2, "": 1}
        assert store.count(SessionQuery(trashed=True), "relation") == {"": 1}
        assert store.count(SessionQuery(agent="nobody"), "agent") == {}
        rows = store.sessions(SessionQuery(model="m")).sessions
        assert [row.session_id for row in rows] == ["ses_3", "ses_2", "ses_1"]

    def test_a_count_may_stop_at_the_last_active_sessions(self) -> None:
        store = self.open_store()
        for n in range(6):
            SessionWriter(store, f"ses_{n}", agent=f"a{n % 2}", started_at=n)
        store.trash("ses_5", 1)
        SessionWriter(self.open_store(space="other"), "ses_other", started_at=9)
        assert store.count(SessionQuery(), "agent", 3) == {"a0": 2, "a1": 1}
        assert store.count(SessionQuery(agent="a1"), "agent", 1) == {"a1": 1}
        assert store.count(SessionQuery(), "agent", 100) == store.count(SessionQuery(), "agent")
        for limit in (0, -1, 100_001, True):
            assert_raises(InvalidArgument, partial(store.count, SessionQuery(), "agent", limit))
            assert_raises(InvalidArgument, partial(store.status_counts, limit))

    def test_statuses_are_counted_up_to_a_number_of_each(self) -> None:
        store = self.open_store()
        for n in range(4):
            writer = SessionWriter(store, f"ses_{n}", owner="ann" if n == 3 else None, started_at=n)
            if n == 2:
                writer.append(user("x"), columns={"status": "failed"})
        store.trash("ses_0", 1)
        SessionWriter(self.open_store(space="other"), "ses_other")
        assert store.status_counts(100) == {"idle": 2, "failed": 1}
        assert store.status_counts(1) == {"idle": 1, "failed": 1}
        assert self.open_store(owner="ann").status_counts(100) == {"idle": 1}
        assert self.open_store(space="third").status_counts(100) == {}

    def test_an_owner_counts_only_what_is_his(self) -> None:
        SessionWriter(self.open_store(owner="ann"), "ses_ann")
        SessionWriter(self.open_store(owner="bob"), "ses_bob").append(user("x"), calls=(call("c", 0, None),))
        assert self.open_store(owner="ann").count(SessionQuery(), "status") == {"idle": 1}
        assert self.open_store(owner="ann").daily_usage() == []
        assert len(self.open_store().daily_usage()) == 1
        assert len(self.open_store(owner="bob").daily_usage()) == 1
        assert_raises(NotFound, lambda: self.open_store(owner="ann").storage_size("ses_bob"))
        assert_raises(NotFound, lambda: self.open_store(owner="ann").control_entries("ses_bob"))

    def test_spending_is_summed_by_day_agent_model_and_bucket(self) -> None:
        store = self.open_store()
        one, other = SessionWriter(store, "ses_1", agent="a", owner="ann"), SessionWriter(store, "ses_2")
        today = replace(call("c1", 1, 2), at=3 * DAY + 5)
        one.append(user("x"), assistant("y"), calls=(today, replace(today, call_id="c2")))
        later = replace(call("c3", 3, None, tokens=None, cost=None), at=4 * DAY)
        one.append(user("x"), calls=(later, replace(later, call_id="c4", bucket="replay", model=None)))
        other.append(user("x"), calls=(replace(today, call_id="c5"),))
        store.trash("ses_2", 1)
        spent = [(s.day, s.agent, s.model, s.bucket, s.totals) for s in store.daily_usage()]
        assert spent == [
            (3, None, "m", "live", Totals(1, 10, 1, 2, 3, 5)),
            (3, "a", "m", "live", Totals(2, 20, 2, 4, 6, 10)),
            (4, "a", None, "replay", Totals(1, unpriced_calls=1, unknown_calls=1)),
            (4, "a", "m", "live", Totals(1, unpriced_calls=1, unknown_calls=1)),
        ]
        assert [s.day for s in store.daily_usage(4 * DAY)] == [4, 4]
        unknown = Totals(1, unpriced_calls=1, unknown_calls=1)
        assert store.usage_by("session") == UsageSums(
            {"ses_1": Totals(3, 20, 2, 4, 6, 10, 1, 1), "ses_2": Totals(1, 10, 1, 2, 3, 5)},
            {"ses_1": unknown},
        )
        quarter = str(4 * DAY // QUARTER)
        assert store.usage_by("quarter", 4 * DAY) == UsageSums({quarter: unknown}, {quarter: unknown})
        assert store.usage_by("agent", 4 * DAY) == UsageSums({"a": unknown}, {"a": unknown})
        expected: dict[str, dict[str, int]] = {
            "agent": {"a": 3, "": 1},
            "model": {"m": 4},
            "owner": {"ann": 3, "": 1},
            "bucket": {"live": 4},
        }
        for by, calls in expected.items():
            assert {name: sums.calls for name, sums in store.usage_by(by).live.items()} == calls
        assert store.usage_by("model").replays == {"": unknown}
        assert store.usage_by("purpose").live.keys() == {"answer"}

    def test_spaces_are_those_with_sessions_and_an_owner_sees_none(self) -> None:
        """A store that keeps a caller within one space says None."""
        store = self.open_store()
        assert store.spaces() in ([], None)
        for space in ("default", "b'eta", "acme", "Éa"):
            SessionWriter(self.open_store(space=space), f"ses_{space.encode().hex()}")
        self.open_store(space="acme").trash(f"ses_{b'acme'.hex()}", 1)
        names = store.spaces()
        if names is not None:
            assert sorted(names) == names == ["acme", "b'eta", "default", "Éa"]
            assert self.open_store(space="acme").spaces() == self.open_store(space="none").spaces() == names
        assert self.open_store(owner="ann").spaces() is None

    def test_spending_is_summed_by_the_values_of_a_tag(self) -> None:
        store, name = self.open_store(), "te am.\"'$é"
        tags = {
            "ses_1": {name: "blue", "tier": "1"},
            "ses_2": {name: "blue"},
            "ses_3": {"tier": name},
            "ses_4": {},
        }
        for number, (session_id, of_session) in enumerate(tags.items()):
            writer = SessionWriter(store, session_id, tags=of_session)
            live = call(f"c{number}", 1, 2)
            calls = (live, replace(live, call_id=f"r{number}", bucket="replay"))
            writer.append(user("x"), assistant("y"), calls=calls)
        SessionWriter(self.open_store(space="other"), "ses_other", tags={name: "blue"}).append(
            user("x"), calls=(call("c", 1, None),)
        )
        store.trash("ses_2", 1)
        sums = store.usage_by(f"tag:{name}")
        assert {value: each.calls for value, each in sums.live.items()} == {"blue": 2, "": 2}
        assert sums.replays == sums.live
        assert {value: each.calls for value, each in store.usage_by("tag:tier").live.items()} == {
            "1": 1, name: 1, "": 2,
        }  # fmt: skip
        assert store.usage_by("tag:absent").live.keys() == {""}
        for refused in ("tag:", "tag", "owners", ""):
            assert_raises(InvalidArgument, lambda: store.usage_by(refused))  # noqa: B023
        assert_raises(InvalidText, lambda: store.usage_by("tag:a\0b"))

    def test_a_session_holds_its_own_branches_and_their_blobs_once(self) -> None:
        store = self.open_store()
        assert store.storage_size(SessionWriter(store, "ses_empty").session_id) == StorageSize(branches=1)
        writer, blob = SessionWriter(store), make_blob(b"0123456789")
        writer.append(user("x", media_of(blob)), blobs=(blob,))
        at = writer.cursor
        writer.append(assistant("y"))
        writer.move(Leaf(writer.leaf.branch, 1), at)
        writer.append(assistant("z"), user(media_of(blob)))
        stored = store.entries("ses_a")
        assert store.storage_size("ses_a") == StorageSize(
            4, sum(len(one.entry.body) for one in stored), 2, 1, 10
        )
        SessionWriter(store, "ses_fork", fork_point=(Leaf(writer.leaf.branch, 2), Cursor()))
        assert store.storage_size("ses_fork") == StorageSize(branches=1)

    def test_control_entries_are_those_of_the_path_that_are_neither_messages_nor_notes(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store)
        writer.append(user("x"))
        at = writer.cursor
        writer.append(Settings(model="left"))
        writer.move(Leaf(writer.leaf.branch, 1), at)
        writer.append(Note({"n": 1}), assistant("y"), Settings(model="m"))
        assert [entry.seq for entry in store.control_entries("ses_a")] == [4]
        assert [entry.payload for entry in store.control_entries("ses_a")] == [Settings(model="m")]
        assert store.control_entries("ses_a", leaf=Leaf(writer.leaf.branch, 3)) == []
        assert_raises(NotFound, lambda: store.control_entries("ses_none", leaf=writer.leaf))

    def test_inputs_are_those_of_the_path_and_seeds_are_none(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store, seeds=[user("seed")])
        writer.append(user("1"))
        at = writer.cursor
        first = writer.leaf
        writer.append(assistant("left"), user("left"))
        writer.move(first, at)
        writer.append(assistant("a"), Note({"n": 1}), user("2"))
        inputs = [entry.seq for entry in store.path("ses_a").entries if entry.turn == entry.seq]
        assert store.inputs("ses_a") == inputs == [2, 5]
        assert store.inputs("ses_a", leaf=Leaf(writer.leaf.branch, 4)) == [2]
        assert store.inputs("ses_a", leaf=Leaf(first.branch, 4)) == [2, 4]
        assert_raises(NotFound, lambda: store.inputs("ses_none", leaf=writer.leaf))

    def test_facts_of_a_kind_are_those_of_the_journal_in_its_order(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store)
        for n in range(3):
            writer.append(user(f"x{n}"), assistant("y"))
            writer.commit(fact=Labelled(1, n, "here"))
        expected = [stored for stored in store.journal("ses_a") if isinstance(stored.fact, Labelled)]
        assert [stored.fact for stored in expected] == [Labelled(1, n, "here") for n in range(3)]
        assert store.facts_of("ses_a", Labelled) == expected
        assert store.facts_of("ses_a", Titled) == []
        assert_raises(NotFound, lambda: store.facts_of("ses_none", Labelled))
