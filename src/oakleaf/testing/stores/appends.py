"""Creating and appending: atomic, idempotent, compared and swapped."""

from __future__ import annotations

from msgspec.structs import replace

from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Evidence
from oakleaf.core.facts import Appended, CancelRequested, Enqueued, Started, Titled
from oakleaf.core.messages import ToolCall, assistant, system, tool_result, user
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor
from oakleaf.errors import IdTaken, NotFound, StaleLeaf
from oakleaf.stores.base import Change, CommitResult, SessionDetail
from oakleaf.testing.stores.writer import SessionWriter, StoreFactory, assert_raises, call, read_everything


class CreateConformance(StoreFactory):
    def test_a_session_is_created_whole_with_its_seeds(self) -> None:
        writer = SessionWriter(
            self.open_store(),
            agent="a",
            title="t",
            tags={"x": "y"},
            tool_names=("one", "two"),
            seeds=[system("s"), user("u")],
        )
        assert writer.is_new
        assert writer.texts() == ["s", "u"]
        assert (writer.row.leaf.seq, writer.row.seed_count, writer.row.status) == (2, 2, "idle")
        assert (writer.row.tags, writer.row.tool_names, writer.row.title) == ({"x": "y"}, ("one", "two"), "t")
        facts = writer.store.journal(writer.session_id)
        assert [(stored.number, stored.fact, stored.key) for stored in facts] == [
            (1, Started(), "~start ses_a")
        ]

    def test_creating_twice_gives_the_same_session_once(self) -> None:
        store = self.open_store()
        first = SessionWriter(store, seeds=[system("s")])
        before = read_everything(store, first.session_id)
        assert not SessionWriter(store, seeds=[system("s")]).is_new
        assert read_everything(store, first.session_id) == before

    def test_an_id_that_holds_another_history_is_refused(self) -> None:
        store = self.open_store()
        SessionWriter(store, seeds=[system("s")])
        assert_raises(IdTaken, lambda: SessionWriter(store, seeds=[system("other")]))
        assert_raises(IdTaken, lambda: SessionWriter(self.open_store(space="other"), seeds=[system("s")]))

    def test_latest_or_create_is_one_verb(self) -> None:
        store = self.open_store()
        old = SessionWriter(store, "ses_old", conversation_id="c")
        newer = SessionWriter(store, "ses_new", conversation_id="c")
        for relation in ("fork", "task", "replay"):
            row = {"conversation_id": "c", "relation": relation, "parent_session": old.session_id}
            SessionWriter(store, f"ses_{relation}", **row)
        candidate = replace(newer.new, row=replace(newer.new.row, session_id="ses_candidate"))
        latest, is_new = store.latest_or_create(candidate)
        assert (latest.session_id, is_new) == ("ses_new", False)
        store.trash("ses_new", 500)
        assert store.latest_or_create(candidate)[0].session_id == "ses_old"
        lone = replace(candidate, row=replace(candidate.row, conversation_id="d"))
        assert store.latest_or_create(lone) == (store.session("ses_candidate"), True)

    def test_latest_or_create_finds_nothing_of_another_owner(self) -> None:
        store = self.open_store()
        ann = SessionWriter(store, "ses_ann", conversation_id="c", owner="ann")
        row = replace(ann.new.row, session_id="ses_bob", owner="bob")
        assert store.latest_or_create(replace(ann.new, row=row)) == (store.session("ses_bob"), True)
        assert store.latest_or_create(ann.new)[0].session_id == "ses_ann"

    def test_the_wide_part_is_kept_as_written(self) -> None:
        store = self.open_store()
        writer = SessionWriter(store)
        spec = b'{"z":1,"a":"\\u0000"}'
        new = replace(
            writer.new,
            row=replace(writer.new.row, session_id="ses_wide"),
            detail=SessionDetail(spec, b"[1]", b"{}", b'{"k":1}'),
        )
        store.create(new)
        assert store.detail("ses_wide") == SessionDetail(spec, b"[1]", b"{}", b'{"k":1}')


class AppendConformance(StoreFactory):
    def test_an_append_is_read_back_byte_for_byte(self) -> None:
        writer = SessionWriter(self.open_store())
        change = writer.change(
            user("hi \0 there"),
            assistant("x", ToolCall("c", "t", {"z": 1, "a": [None, 1.5]})),
            tool_result("c", "r"),
        )
        writer.store.commit(change)
        assert [stored.entry for stored in writer.store.entries(writer.session_id)] == list(change.entries)

    def test_evidence_stays_beside_its_entry(self) -> None:
        writer = SessionWriter(self.open_store())
        written = build_entries(
            Cursor(),
            [Draft(user("u")), Draft(assistant("a"), "m", "stop", Evidence("p", {"0": {"s": "x"}}))],
            5,
        )
        writer.commit(key="k", after=writer.leaf, entries=written.entries)
        entry = writer.store.path("ses_a").entries[-1]
        assert (entry.model, entry.finish) == ("m", "stop")
        assert entry.evidence == Evidence("p", {"0": {"s": "x"}})

    def test_a_stale_writer_writes_nothing(self) -> None:
        writer = SessionWriter(self.open_store())
        late = writer.change(user("late"), key="late")
        writer.append(user("first"))
        before = read_everything(writer.store, writer.session_id)
        error = assert_raises(StaleLeaf, lambda: writer.store.commit(late))
        assert isinstance(error, StaleLeaf)
        assert error.present == writer.leaf
        assert read_everything(writer.store, writer.session_id) == before

    def test_a_retried_step_leaves_the_same_bytes(self) -> None:
        writer = SessionWriter(self.open_store())
        change = writer.change(
            user("once"), calls=(call("c1", 0, 1),), state=b'{"a":1}', facts=(Titled("extra"),)
        )
        first = writer.store.commit(change)
        before = read_everything(writer.store, writer.session_id)
        for _ in range(5):
            again = writer.store.commit(change)
            assert (again.leaf, again.is_repeat) == (first.leaf, True)
        assert read_everything(writer.store, writer.session_id) == before

    def test_a_retry_is_known_after_others_went_on(self) -> None:
        writer = SessionWriter(self.open_store())
        change = writer.change(user("once"), key="mine")
        writer.leaf, writer.cursor = writer.store.commit(change).leaf, writer.next_cursor
        first = writer.leaf
        writer.append(assistant("and on"))
        assert writer.store.commit(change) == CommitResult(first, 2, is_repeat=True)

    def test_equal_content_is_not_a_retry(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("same"), key="one")
        writer.append(user("same"), key="two")
        assert writer.texts() == ["same", "same"]

    def test_a_key_of_ours_decides_only_when_the_leaf_has_moved(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("a"), key="~same key")
        writer.append(user("b"), key="~same key")
        assert writer.texts() == ["a", "b"]
        assert writer.store.find_change("ses_a", "~nobody's") is None

    def test_a_callers_key_is_known_whatever_the_leaf_the_fence_and_the_branch(self) -> None:
        writer = SessionWriter(self.open_store(), seeds=[user("seed")])
        store, start, cursor = writer.store, writer.leaf, writer.cursor
        assert store.find_change("ses_a", "mail-1") is None
        writer.append(user("once"), key="mail-1", facts=(Titled("extra"),))
        recorded = CommitResult(writer.leaf, 2, is_repeat=True)
        writer.append(assistant("and on"))
        before = read_everything(store, "ses_a")
        for fields in ({}, {"fence": 99}, {"after": start, "cursor": cursor}, {"after": Leaf(77, 77)}):
            assert store.commit(writer.change(user("again"), key="mail-1", **fields)) == recorded
        assert store.find_change("ses_a", "mail-1") == recorded
        assert read_everything(store, "ses_a") == before
        writer.move(start, cursor)
        assert store.commit(writer.change(user("other branch"), key="mail-1")) == recorded
        assert writer.texts() == ["seed"]

    def test_a_callers_key_is_unique_in_its_session_only(self) -> None:
        store = self.open_store()
        one, other = SessionWriter(store), SessionWriter(store, "ses_b")
        one.append(user("one"), key="k")
        other.append(user("other"), key="k")
        assert store.find_change("ses_b", "k") == CommitResult(other.leaf, 2, is_repeat=True)
        assert other.texts() == ["other"]
        assert_raises(NotFound, lambda: store.find_change("ses_none", "k"))

    def test_a_fact_without_entries_is_recorded_once_under_a_callers_key(self) -> None:
        writer = SessionWriter(self.open_store())
        change = Change(session_id="ses_a", key="start c1", at=5, fact=Enqueued("default"))
        assert not writer.store.commit(change).is_repeat
        writer.append(user("and on"))
        assert writer.store.commit(change) == CommitResult(writer.leaf, 2, is_repeat=True)
        facts = [stored.fact for stored in writer.store.journal("ses_a")]
        assert facts.count(Enqueued("default")) == 1

    def test_an_unknown_session_is_not_found(self) -> None:
        store = self.open_store()
        reads = (store.session, store.detail, store.path, store.entries, store.branches, store.journal)
        for read in (*reads, store.calls):
            assert_raises(NotFound, lambda read=read: read("ses_none"))  # type: ignore[misc]
        assert_raises(NotFound, lambda: store.commit(Change(session_id="ses_none", key="k", at=1)))

    def test_the_row_changes_with_the_change(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(
            user("u"),
            columns={"status": "running", "title": "new", "model": "m"},
            tags={"a": "b", "no": None},
        )
        row = writer.row
        assert (row.status, row.title, row.tags, row.model) == ("running", "new", {"a": "b"}, "m")
        assert row.updated_at == writer.at

    def test_a_fact_without_entries_leaves_the_leaf(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("u"))
        writer.commit(key="t", fact=Titled("x"), columns={"title": "x"})
        assert (writer.row.leaf, writer.row.title) == (writer.leaf, "x")
        stored = writer.store.journal("ses_a")[-1]
        assert (stored.key, stored.fact, stored.leaf, stored.first) == ("t", Titled("x"), None, None)

    def test_the_journal_has_no_gap_and_reads_from_a_number(self) -> None:
        writer = SessionWriter(self.open_store())
        for n in range(5):
            writer.append(user(str(n)), facts=(CancelRequested(n),))
        facts = writer.store.journal("ses_a")
        assert [fact.number for fact in facts] == list(range(1, 12))
        assert writer.row.facts == 11
        assert writer.store.journal("ses_a", after=4, limit=3) == facts[4:7]
        assert (facts[1].fact, facts[1].first) == (Appended(), 1)
        assert facts[1].leaf == Leaf(writer.leaf.branch, 1)
        assert (facts[2].fact, facts[2].leaf, facts[2].key) == (CancelRequested(0), None, None)
