"""Creating and appending: atomic, idempotent, compared and swapped."""

from __future__ import annotations

from msgspec.structs import replace

from ...core.drafts import Draft, ExtraFact, build_entries
from ...core.entries import Evidence
from ...core.messages import ToolCall, assistant, system, tool_result, user
from ...core.turns import Cursor
from ...errors import IdTaken, NotFound, StaleLeaf
from ..base import Change, CommitResult, SessionDetail
from .writer import Opening, Pen, call, everything, refused


class Creating(Opening):
    def test_a_session_is_created_whole_with_its_seeds(self) -> None:
        pen = Pen(
            self.opened(),
            agent="a",
            title="t",
            tags={"x": "y"},
            tool_names=("one", "two"),
            seeds=[system("s"), user("u")],
        )
        assert pen.is_new
        assert pen.texts() == ["s", "u"]
        assert (pen.row.leaf.seq, pen.row.seed_count, pen.row.status) == (2, 2, "idle")
        assert (pen.row.tags, pen.row.tool_names, pen.row.title) == ({"x": "y"}, ("one", "two"), "t")
        facts = pen.store.journal(pen.session_id)
        assert [(fact.number, fact.kind, fact.key) for fact in facts] == [(1, "started", "start ses_a")]

    def test_creating_twice_gives_the_same_session_once(self) -> None:
        store = self.opened()
        first = Pen(store, seeds=[system("s")])
        before = everything(store, first.session_id)
        assert not Pen(store, seeds=[system("s")]).is_new
        assert everything(store, first.session_id) == before

    def test_an_id_that_holds_another_history_is_refused(self) -> None:
        store = self.opened()
        Pen(store, seeds=[system("s")])
        refused(IdTaken, lambda: Pen(store, seeds=[system("other")]))
        refused(IdTaken, lambda: Pen(self.opened(space="other"), seeds=[system("s")]))

    def test_latest_or_create_is_one_verb(self) -> None:
        store = self.opened()
        old = Pen(store, "ses_old", conversation_id="c")
        newer = Pen(store, "ses_new", conversation_id="c")
        for relation in ("fork", "task", "replay"):
            Pen(
                store,
                f"ses_{relation}",
                conversation_id="c",
                relation=relation,
                parent_session=old.session_id,
            )
        candidate = replace(newer.new, row=replace(newer.new.row, session_id="ses_candidate"))
        row, is_new = store.latest_or_create(candidate)
        assert (row.session_id, is_new) == ("ses_new", False)
        store.trash("ses_new", 500)
        assert store.latest_or_create(candidate)[0].session_id == "ses_old"
        lone = replace(candidate, row=replace(candidate.row, conversation_id="d"))
        assert store.latest_or_create(lone) == (store.session("ses_candidate"), True)

    def test_the_wide_part_is_kept_as_written(self) -> None:
        store = self.opened()
        pen = Pen(store)
        spec = b'{"z":1,"a":"\\u0000"}'
        new = replace(
            pen.new,
            row=replace(pen.new.row, session_id="ses_wide"),
            detail=SessionDetail(spec, b"[1]", b"{}", b'{"k":1}'),
        )
        store.create(new)
        assert store.detail("ses_wide") == SessionDetail(spec, b"[1]", b"{}", b'{"k":1}')


class Appending(Opening):
    def test_an_append_is_read_back_byte_for_byte(self) -> None:
        pen = Pen(self.opened())
        change = pen.change(
            user("hi \0 there"),
            assistant("x", ToolCall("c", "t", {"z": 1, "a": [None, 1.5]})),
            tool_result("c", "r"),
        )
        pen.store.commit(change)
        assert [stored.entry for stored in pen.store.entries(pen.session_id)] == list(change.entries)

    def test_evidence_stays_beside_its_entry(self) -> None:
        pen = Pen(self.opened())
        written = build_entries(
            Cursor(),
            [Draft(user("u")), Draft(assistant("a"), "m", "stop", Evidence("p", {"0": {"s": "x"}}))],
            5,
        )
        pen.store.commit(Change(session_id="ses_a", key="k", at=5, after=pen.leaf, entries=written.entries))
        entry = pen.store.path("ses_a").entries[-1]
        assert (entry.model, entry.finish) == ("m", "stop")
        assert entry.evidence == Evidence("p", {"0": {"s": "x"}})

    def test_a_stale_writer_writes_nothing(self) -> None:
        pen = Pen(self.opened())
        late = pen.change(user("late"), key="late")
        pen.append(user("first"))
        before = everything(pen.store, pen.session_id)
        error = refused(StaleLeaf, lambda: pen.store.commit(late))
        assert isinstance(error, StaleLeaf)
        assert error.present == pen.leaf
        assert everything(pen.store, pen.session_id) == before

    def test_a_retried_step_leaves_the_same_bytes(self) -> None:
        pen = Pen(self.opened())
        change = pen.change(
            user("once"), calls=(call("c1", 0, 1),), state=b'{"a":1}', facts=(ExtraFact("extra"),)
        )
        first = pen.store.commit(change)
        before = everything(pen.store, pen.session_id)
        for _ in range(5):
            again = pen.store.commit(change)
            assert (again.leaf, again.is_repeat) == (first.leaf, True)
        assert everything(pen.store, pen.session_id) == before

    def test_a_retry_is_known_after_others_went_on(self) -> None:
        pen = Pen(self.opened())
        change = pen.change(user("once"), key="mine")
        pen.leaf, pen.cursor = pen.store.commit(change).leaf, pen.next_cursor
        first = pen.leaf
        pen.append(assistant("and on"))
        assert pen.store.commit(change) == CommitResult(first, 2, is_repeat=True)

    def test_equal_content_is_not_a_retry(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("same"), key="one")
        pen.append(user("same"), key="two")
        assert pen.texts() == ["same", "same"]

    def test_the_key_decides_only_when_the_leaf_has_moved(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("a"), key="same key")
        pen.append(user("b"), key="same key")
        assert pen.texts() == ["a", "b"]

    def test_an_unknown_session_is_not_found(self) -> None:
        store = self.opened()
        for read in (
            store.session,
            store.detail,
            store.path,
            store.entries,
            store.branches,
            store.journal,
            store.calls,
        ):
            refused(NotFound, lambda read=read: read("ses_none"))  # type: ignore[misc]
        refused(NotFound, lambda: store.commit(Change(session_id="ses_none", key="k", at=1)))

    def test_the_row_changes_with_the_change(self) -> None:
        pen = Pen(self.opened())
        pen.append(
            user("u"),
            columns={"status": "running", "title": "new", "model": "m"},
            tags={"a": "b", "no": None},
        )
        assert (pen.row.status, pen.row.title, pen.row.tags, pen.row.model) == (
            "running",
            "new",
            {"a": "b"},
            "m",
        )
        assert pen.row.updated_at == pen.at

    def test_a_fact_without_entries_leaves_the_leaf(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("u"))
        pen.store.commit(
            Change(
                session_id="ses_a",
                key="t",
                at=900,
                kind="titled",
                data={"title": "x"},
                columns={"title": "x"},
            )
        )
        assert (pen.row.leaf, pen.row.title) == (pen.leaf, "x")
        assert pen.store.journal("ses_a")[-1].data == {"title": "x"}

    def test_the_journal_has_no_gap_and_reads_from_a_number(self) -> None:
        pen = Pen(self.opened())
        for n in range(5):
            pen.append(user(str(n)), facts=(ExtraFact("more", {"n": n}),))
        facts = pen.store.journal("ses_a")
        assert [fact.number for fact in facts] == list(range(1, 12))
        assert pen.row.facts == 11
        assert pen.store.journal("ses_a", after=4, limit=3) == facts[4:7]
        assert facts[1].data == {"branch": pen.leaf.branch, "first": 1, "last": 1}
