"""Taking in what another tool told: the frame every importer stands on, and the command."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from oakleaf import plugins
from oakleaf.core.entries import BranchSummary, Compaction, Note, Settings
from oakleaf.core.facts import Titled
from oakleaf.core.messages import Attachment, Message, ToolCall, assistant, system, tool_result, user
from oakleaf.core.redact import Redactor
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Usage
from oakleaf.errors import InvalidSource, UnknownImporter
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.ingest import MASKED, NO_RESULT, ToolImportResult, import_session, preview_session
from oakleaf.ingest.records import MAX_EXAMPLE, START, EntryRecord, LossReport, SessionRecord
from oakleaf.install import EXTRAS_OF_NAMES
from oakleaf.log.imports import is_foreign
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_importers.formats.json_values import parse_time
from oakleaf_postgres.store.store import PostgresStore
from support.import_sources import assert_sound, entries_of, memory_store, message_texts, write_jsonl
from support.runtime import deterministic_runtime
from support.terminal import oakleaf
from support.tool_sources import codex

BASE = 1_770_000_000_000_000
TOOLS = [name for name in plugins.names(plugins.IMPORTERS) if name != "redis"]
CALL = assistant("I look.", ToolCall("c", "look", {"order": 41}))


def entry_records(*messages: Message) -> tuple[EntryRecord, ...]:
    return tuple(EntryRecord(message, at=BASE + n * 1_000_000) for n, message in enumerate(messages, 1))


def session_record(*messages: Message, source: str = "one", **about: object) -> SessionRecord:
    return SessionRecord("chat", source, entry_records(*messages), (system("You help."),), **about)  # type: ignore[arg-type]


def steps_of_a_turn() -> tuple[EntryRecord, ...]:
    messages = (user("a"), CALL, tool_result("c", "x"), CALL, tool_result("c", "y"), assistant("done"))
    return tuple(
        EntryRecord(
            message,
            key=str(n),
            after=str(n - 1) if n else None,
            at=BASE + n * 1_000_000,
            usage=Usage(n, n) if message.role == "assistant" else None,
        )
        for n, message in enumerate(messages)
    )


def import_record(store: Store, record: SessionRecord, **how: bool) -> ToolImportResult:
    report = import_session(store.backend, store.runtime, record, **how)
    if report.error is None:
        assert_sound(store.session(report.session_id))
    return report


class TestTakingIn:
    def test_keeps_order_times_and_what_the_source_is(self, store: Store) -> None:
        report = import_record(
            store, session_record(user("a"), assistant("b"), title="Two words", tags={"cwd": "/x"})
        )
        session, row = store.session("chat-one"), store.backend.session("chat-one")
        assert message_texts(session) == ["You help.", "a", "b"]
        assert [entry.at - BASE for entry in entries_of(session)[1:]] == [1_000_000, 2_000_000]
        assert (row.title, row.relation, row.tags) == (
            "Two words",
            "import",
            {"imported_from": "chat", "cwd": "/x"},
        )
        assert (report.added, report.existing, report.entries) == (("chat-one",), (), 3)

    def test_twice_adds_nothing(self, store: Store) -> None:
        record = session_record(user("a"), CALL, tool_result("c", "b"), assistant("d"))
        import_record(store, record)
        before = store.backend.session("chat-one")
        again = import_record(store, record)
        assert (again.added, again.existing, again.entries) == ((), ("chat-one",), 0)
        assert store.backend.session("chat-one") == before

    def test_without_any_time_is_dated_when_it_was_taken_in(self, store: Store) -> None:
        import_record(store, SessionRecord("chat", "one", (EntryRecord(user("a")),)))
        assert store.backend.session("chat-one").started_at >= 1_000_000_000_000_000
        assert import_record(store, SessionRecord("chat", "one", (EntryRecord(user("a")),))).entries == 0

    def test_under_a_fresh_id_stands_beside(self, store: Store) -> None:
        import_record(store, session_record(user("a")))
        report = import_record(store, session_record(user("a")), new_id=True)
        assert report.session_id != "chat-one"
        assert message_texts(store.session(report.session_id)) == ["You help.", "a"]

    def test_of_what_is_in_the_trash_is_refused_with_a_reason(self, store: Store) -> None:
        import_record(store, session_record(user("a")))
        store.delete("chat-one")
        report = import_record(store, session_record(user("a"), assistant("b")))
        assert "trash" in (report.error or "")

    def test_a_session_no_store_can_keep_is_refused_and_the_next_is_not(self, store: Store) -> None:
        assert import_record(store, session_record(user("a"), source="x" * 10_000)).error
        assert import_record(store, session_record(user("a"), source="")).error is None
        assert import_record(store, session_record(user("a"))).error is None

    def test_a_message_no_store_can_keep_is_counted_and_the_rest_is_not_lost(self, store: Store) -> None:
        report = import_record(store, session_record(user("a"), user("half \ud800"), assistant("b")))
        assert message_texts(store.session("chat-one")) == ["You help.", "a", "b"]
        assert [loss.count for loss in report.losses.values()] == [1]

    def test_a_secret_is_hidden_as_everywhere(self) -> None:
        from oakleaf import open as open_store

        with open_store("memory:", secrets=["correct horse battery"]) as store:
            import_record(store, session_record(user("it is correct horse battery")))
            assert "horse" not in message_texts(store.session("chat-one"))[-1]

    def test_what_was_masked_is_in_the_report(self) -> None:
        from oakleaf import open as open_store

        key = "sk-ant-" + "a" * 30
        with open_store("memory:", secrets=["correct horse battery"]) as store:
            record = session_record(
                user("correct horse battery, correct horse battery"), assistant(key), user("no"), title=key
            )
            report = import_record(store, record)
            assert {what: loss.count for what, loss in report.losses.items()} == {MASKED: 3}

    def test_an_answer_that_no_store_can_keep_was_paid_for(self, store: Store) -> None:
        answer = EntryRecord(assistant("half \ud800"), usage=Usage(10, 2), model="m", provider="p")
        import_record(store, SessionRecord("chat", "one", (*entry_records(user("a")), answer)))
        (call,) = store.session("chat-one").model_calls()
        assert (call.usage, call.answer_seq) == (Usage(10, 2), None)

    def test_the_definitions_of_tools_are_stored_and_grow(self, store: Store) -> None:
        look = ToolSpec("look", "Look up an order.", {"type": "object", "properties": {}})
        find = ToolSpec("find", "Find one.", {"type": "object", "properties": {}})
        records = [
            *entry_records(user("a")),
            EntryRecord(Settings(options={"effort": "low"}), tools=(look,)),
            EntryRecord(assistant("b"), model="m"),
            EntryRecord(Settings(), tools=(look, find)),
            EntryRecord(user("c")),
        ]
        for many in (2, 5):
            import_record(store, SessionRecord("chat", "one", tuple(records[:many])))
        request = store.session("chat-one").request("anthropic")
        assert [tool["name"] for tool in request["tools"]] == ["look", "find"]
        assert store.backend.session("chat-one").model == "m"

    def test_usage_is_charged_to_its_answer_and_to_what_is_none(self, store: Store) -> None:
        answer = EntryRecord(assistant("b"), usage=Usage(10, 2), model="m", provider="p")
        summary = EntryRecord(Compaction("s", 0), usage=Usage(30, 4))
        note = EntryRecord(Note({"why": "failed"}), usage=Usage(5, 0))
        import_record(store, SessionRecord("chat", "one", (*entry_records(user("a")), answer, summary, note)))
        calls = store.session("chat-one").model_calls()
        assert [(call.purpose, call.answer_seq) for call in calls] == [
            ("answer", 2),
            ("compaction", None),
            ("note", None),
        ]
        assert store.session("chat-one").usage().input_tokens == 45

    def test_the_steps_of_a_turn_come_in_one_change_with_their_own_times_and_usage(
        self, store: Store
    ) -> None:
        steps = steps_of_a_turn()
        import_record(store, SessionRecord("chat", "one", steps))
        session = store.session("chat-one")
        assert [entry.at - BASE for entry in entries_of(session)] == [n * 1_000_000 for n in range(6)]
        assert [(call.after_seq, call.answer_seq, call.at - BASE) for call in session.model_calls()] == [
            (1, 2, 1_000_000),
            (3, 4, 3_000_000),
            (5, 6, 5_000_000),
        ]
        facts = [(fact.kind, fact.at - BASE) for fact in store.backend.journal("chat-one")]
        assert facts[1:5] == [
            ("appended", 0),
            ("turn_started", 0),
            ("appended", 5_000_000),
            ("turn_ended", 5_000_000),
        ]

    @pytest.mark.parametrize(
        ("bad", "texts"),
        [
            (1, ["a", "I look.", "y", "done"]),
            (2, ["a", "I look.", NO_RESULT, "I look.", "y", "done"]),
            (3, ["a", "I look.", "x", "done"]),
            (4, ["a", "I look.", "x", "I look.", NO_RESULT, "done"]),
            (5, ["a", "I look.", "x", "I look.", "y"]),
        ],
    )
    def test_one_bad_step_does_not_cost_the_others(self, store: Store, bad: int, texts: list[str]) -> None:
        steps = list(steps_of_a_turn())
        half = "half \ud800"
        payload = tool_result("c", half) if bad in (2, 4) else assistant(half, ToolCall("c", "look", {}))
        steps[bad] = replace(steps[bad], payload=payload)
        report = import_record(store, SessionRecord("chat", "one", tuple(steps)))
        session = store.session("chat-one")
        assert report.losses["an invalid message"].count == 1
        assert len(session.model_calls()) == 3  # a bad answer was paid for as well
        assert [
            entry.message.results[0].content[0].text if entry.message.results else entry.message.text  # type: ignore[union-attr]
            for entry in entries_of(session)
        ] == texts

    @pytest.mark.parametrize("bad", [1, 3, 5])
    def test_usage_that_is_no_count_is_told_once(self, store: Store, bad: int) -> None:
        steps = list(steps_of_a_turn())
        steps[bad] = replace(steps[bad], usage=Usage(-1, 2))
        report = import_record(store, SessionRecord("chat", "one", tuple(steps)))
        assert {what: loss.count for what, loss in report.losses.items()} == {
            "usage that is not a count of tokens": 1
        }
        assert (len(store.session("chat-one").model_calls()), report.entries) == (2, 6)

    def test_of_nothing_is_refused_and_what_was_lost_is_told(self, store: Store) -> None:
        losses = LossReport()
        losses.add("a line that is not JSON")
        report = import_record(store, SessionRecord("chat", "empty", (), losses=losses))
        assert "no messages" in (report.error or "")
        assert [loss.count for loss in report.losses.values()] == [1]
        assert store.sessions().sessions == []


class TestCalls:
    def test_without_a_result_get_one_that_says_so(self, store: Store) -> None:
        report = import_record(store, session_record(user("a"), CALL, user("and?"), assistant("b")))
        results = [
            r for e in entries_of(store.session("chat-one")) for r in (e.message.results if e.message else ())
        ]
        assert [piece.text for result in results for piece in result.content] == [NO_RESULT]  # type: ignore[union-attr]
        assert [loss.count for loss in report.losses.values()] == [1]

    def test_open_at_the_end_stay_open_so_that_their_results_can_come(self, store: Store) -> None:
        report = import_record(store, session_record(user("a"), CALL))
        assert (report.losses, store.backend.session("chat-one").status) == ({}, "interrupted")
        grown = import_record(store, session_record(user("a"), CALL, tool_result("c", "41 is lost")))
        assert grown.entries == 1

    def test_a_result_without_its_call_is_counted(self, store: Store) -> None:
        report = import_record(store, session_record(user("a"), tool_result("nobody", "x"), assistant("b")))
        assert message_texts(store.session("chat-one")) == ["You help.", "a", "b"]
        assert [loss.count for loss in report.losses.values()] == [1]

    def test_a_second_result_is_counted(self, store: Store) -> None:
        report = import_record(
            store, session_record(user("a"), CALL, tool_result("c", "x"), tool_result("c", "y"))
        )
        assert [loss.count for loss in report.losses.values()] == [1]


def tree(*more: EntryRecord) -> SessionRecord:
    """Two answers to one question, the first one gone on with."""
    grown = (
        EntryRecord(user("q"), "q", START),
        EntryRecord(assistant("one"), "a1", "q"),
        EntryRecord(user("more"), "m1", "a1"),
        EntryRecord(assistant("two"), "a2", "q"),
    )
    return SessionRecord("chat", "one", (*grown, *more))


class TestATree:
    def test_keeps_its_branches_and_stands_at_what_was_told_last(self, store: Store) -> None:
        import_record(store, tree())
        session = store.session("chat-one")
        assert message_texts(session) == ["q", "two"]
        assert [branch.parent_seq for branch in session.branches()] == [0, 1]

    def test_stands_where_it_stood(self, store: Store) -> None:
        record = tree()
        import_record(store, SessionRecord("chat", "one", record.entries, leaf="m1"))
        assert message_texts(store.session("chat-one")) == ["q", "one", "more"]

    def test_a_ring_or_a_parent_that_is_not_there_is_counted_and_follows_the_one_before(
        self, store: Store
    ) -> None:
        ring = (
            EntryRecord(user("a"), "a", "b"),
            EntryRecord(assistant("b"), "b", "a"),
            EntryRecord(user("c"), "c", "gone"),
        )
        report = import_record(store, SessionRecord("chat", "one", ring))
        assert message_texts(store.session("chat-one")) == ["a", "b", "c"]
        assert [loss.count for loss in report.losses.values()] == [2]

    def test_a_compaction_keeps_from_the_entry_it_names(self, store: Store) -> None:
        import_record(store, tree(EntryRecord(Compaction("sum", 0), refers_to="a2"), EntryRecord(user("on"))))
        compaction = entries_of(store.session("chat-one"))[2].payload
        assert isinstance(compaction, Compaction)
        assert compaction.first_kept == 2

    @pytest.mark.parametrize("key", ["m1", "nobody", START, None])
    def test_a_compaction_that_names_none_of_its_path_keeps_nothing(
        self, store: Store, key: str | None
    ) -> None:
        import_record(store, tree(EntryRecord(Compaction("sum", 0), refers_to=key), EntryRecord(user("on"))))
        compaction = entries_of(store.session("chat-one"))[2].payload
        assert isinstance(compaction, Compaction)
        assert compaction.first_kept == 3

    def test_a_summary_of_a_branch_names_where_it_was_left(self, store: Store) -> None:
        import_record(store, tree(EntryRecord(BranchSummary("found gold", 0, ""), refers_to="m1")))
        session = store.session("chat-one")
        summary = entries_of(session)[-1].payload
        assert isinstance(summary, BranchSummary)
        first = min(branch.branch for branch in session.branches())
        cursor = session.log.cursor_at(Leaf(first, 3))
        assert (summary.leaf_seq, summary.leaf_id) == (3, cursor.entry_id.hex())

    def test_labels_are_kept_at_their_places(self, store: Store) -> None:
        record = tree()
        report = import_record(
            store, SessionRecord("chat", "one", record.entries, labels={"a1": "good", "nobody": "x"})
        )
        assert list(store.session("chat-one").labels().values()) == ["good"]
        assert [loss.count for loss in report.losses.values()] == [1]


class TestGrowth:
    def test_adds_what_was_told_since(self, store: Store) -> None:
        import_record(store, session_record(user("a"), assistant("b")))
        report = import_record(
            store,
            session_record(user("a"), assistant("b"), user("c"), CALL, tool_result("c", "d"), assistant("e")),
        )
        assert (report.added, report.existing, report.entries) == ((), ("chat-one",), 4)
        assert message_texts(store.session("chat-one")) == ["You help.", "a", "b", "c", "I look.", "", "e"]
        assert store.backend.session("chat-one").status == "idle"

    @pytest.mark.attack
    def test_what_it_adds_is_from_elsewhere_too(self, store: Store) -> None:
        import_record(store, session_record(user("q"), assistant("a")))
        grown = session_record(user("q"), assistant("a"), user("more"), assistant("b"))
        session = store.session(import_record(store, grown).session_id)
        assert session.row.imported_facts == session.row.facts
        assert all(is_foreign(session.log, entry) for entry in session.path())
        session.append([user("here")])
        assert not is_foreign(session.log, session.path()[-1])

    def test_on_another_branch_grows_there(self, store: Store) -> None:
        import_record(store, tree())
        report = import_record(
            store, tree(EntryRecord(user("again"), "m2", "a1"), EntryRecord(assistant("three")))
        )
        session = store.session("chat-one")
        assert report.entries == 2
        assert message_texts(session) == ["q", "one", "again", "three"]
        assert len(session.branches()) == 3

    def test_brings_blobs_and_usage_and_a_title(self, store: Store) -> None:
        import_record(store, session_record(user("a")))
        picture = user(Attachment(b"\x89PNG\r\n\x1a\n", "image/png"))
        answer = EntryRecord(assistant("b"), usage=Usage(7, 1))
        record = SessionRecord(
            "chat", "one", (*entry_records(user("a"), picture), answer), (system("You help."),), title="Later"
        )
        import_record(store, record)
        session = store.session("chat-one")
        (media,) = [media for entry in entries_of(session) if entry.message for media in entry.message.media]
        assert store.blob(media) == b"\x89PNG\r\n\x1a\n"
        assert (session.usage().input_tokens, store.backend.session("chat-one").title) == (7, "Later")

    def test_an_answer_that_was_cut_short_is_told_again_on_a_branch_of_its_own(self, store: Store) -> None:
        import_record(store, session_record(user("a"), assistant("I")))
        report = import_record(store, session_record(user("a"), assistant("I know."), user("c")))
        assert (report.error, report.entries) == (None, 2)
        assert message_texts(store.session("chat-one")) == ["You help.", "a", "I know.", "c"]

    def test_of_one_that_was_gone_on_with_here_is_refused(self, store: Store) -> None:
        import_record(store, session_record(user("a"), assistant("b")))
        store.session("chat-one").append([user("mine")])
        report = import_record(store, session_record(user("a"), assistant("b"), user("theirs")))
        assert "chat-one" in (report.error or "")
        assert message_texts(store.session("chat-one"))[-1] == "mine"

    def test_of_one_that_was_gone_on_with_only_here_is_not_and_nothing_is_moved(self, store: Store) -> None:
        import_record(store, session_record(user("a"), assistant("b")))
        store.session("chat-one").append([user("mine")])
        report = import_record(store, session_record(user("a"), assistant("b")))
        assert (report.error, report.entries) == (None, 0)
        assert message_texts(store.session("chat-one"))[-1] == "mine"

    def test_that_broke_off_in_the_middle_is_gone_on_with(self, store: Store) -> None:
        import_record(store, session_record(user("a"), assistant("b")))
        store.session("chat-one").append([user("c")])  # as a growth writes it that was killed behind it
        report = import_record(store, session_record(user("a"), assistant("b"), user("c"), assistant("d")))
        assert report.entries == 1
        assert message_texts(store.session("chat-one"))[-2:] == ["c", "d"]

    def test_of_where_it_stands_moves_it(self, store: Store) -> None:
        grown = tree()
        import_record(store, grown)
        report = import_record(store, SessionRecord("chat", "one", grown.entries, leaf="m1"))
        assert report.entries == 0
        assert message_texts(store.session("chat-one")) == ["q", "one", "more"]

    def test_what_was_free_when_it_was_taken_in_is_charged_once_it_is_told(self, store: Store) -> None:
        records = entry_records(user("a"))
        import_record(store, SessionRecord("chat", "one", (*records, EntryRecord(assistant("b")))))
        for _ in range(2):
            import_record(
                store,
                SessionRecord("chat", "one", (*records, EntryRecord(assistant("b"), usage=Usage(7, 1)))),
            )
        assert store.session("chat-one").usage().input_tokens == 7

    def test_of_one_that_is_driven_here_is_refused_with_a_reason(self, store: Store) -> None:
        import_record(store, tree())
        store.backend.lease("chat-one", "there:1#x", store.runtime.now() + 10**9, store.runtime.now())
        store.session("chat-one").log.record(Titled(), row={"status": "running"})
        report = import_record(store, tree(EntryRecord(user("again"), "m2", "a1")))
        assert "chat-one" in (report.error or "")

    def test_of_one_that_was_only_named_here_is_not(self, store: Store) -> None:
        import_record(store, session_record(user("a"), assistant("b")))
        store.session("chat-one").log.record(Titled(), row={"title": "Mine"})
        import_record(store, session_record(user("a"), assistant("b"), user("c"), title="Theirs"))
        assert message_texts(store.session("chat-one"))[-1] == "c"
        assert store.backend.session("chat-one").title == "Mine"

    def test_of_another_session_under_its_name_is_refused(self, store: Store) -> None:
        import_record(store, session_record(user("a")))
        report = import_record(
            store, SessionRecord("chat", "one", entry_records(user("z"), assistant("y")), (system("Other."),))
        )
        assert "chat-one" in (report.error or "")


class TestTasks:
    def family(self, *messages: Message, tasks: int = 1) -> SessionRecord:
        below = tuple(
            session_record(user("do it"), *messages, source=f"task {n}", agent="helper") for n in range(tasks)
        )
        return session_record(user("a"), assistant("b"), tasks=below)

    def test_come_with_the_session_that_started_them(self, store: Store) -> None:
        report = import_record(store, self.family(assistant("done")))
        row = store.backend.session("chat-task 0")
        assert report.added == ("chat-one", "chat-task 0")
        assert (row.relation, row.parent_session, row.conversation_id) == ("task", "chat-one", "chat-one")
        assert_sound(store.session("chat-task 0"))

    def test_grow_with_it_and_new_ones_are_added(self, store: Store) -> None:
        import_record(store, self.family())
        report = import_record(store, self.family(assistant("done"), tasks=2))
        assert (report.added, report.entries) == (("chat-task 1",), 4)
        assert message_texts(store.session("chat-task 0"))[-1] == "done"
        assert import_record(store, self.family(assistant("done"), tasks=2)).entries == 0


class TestTenants:
    def test_an_id_that_is_another_tenants_is_refused_and_nothing_of_it_is_told(
        self, postgres_store: PostgresStore, database: object
    ) -> None:
        with Store(PostgresStore(database.url, owner="ann"), deterministic_runtime()) as ann:  # type: ignore[attr-defined]
            import_record(ann, session_record(user("secret of ann")))
        with Store(PostgresStore(database.url, owner="bob"), deterministic_runtime()) as bob:  # type: ignore[attr-defined]
            report = import_record(bob, session_record(user("secret of ann"), assistant("b")))
        assert report.error
        assert "secret" not in report.error

    def test_what_is_taken_in_belongs_to_whoever_took_it(self) -> None:
        with Store(MemoryStore(owner="ann"), deterministic_runtime()) as ann:
            import_record(ann, session_record(user("a")))
            assert ann.backend.session("chat-one").owner == "ann"


class TestTimes:
    @pytest.mark.parametrize(
        ("value", "micro"),
        [
            ("2026-03-01T10:00:00.25Z", 1_772_359_200_250_000),
            ("2026-03-01 10:00:00", 1_772_359_200_000_000),
            ("2026-03-01T11:00:00+01:00", 1_772_359_200_000_000),
            (1_772_359_200, 1_772_359_200_000_000),
            (1_772_359_200.5, 1_772_359_200_500_000),
            (1_772_359_200_000, 1_772_359_200_000_000),
        ],
    )
    def test_are_read_as_tools_write_them(self, value: object, micro: int) -> None:
        assert parse_time(value) == micro

    @pytest.mark.parametrize(
        "value", [None, True, "", "noon", [], {}, -1, 2**4000, float("nan"), "0001-01-01"]
    )
    def test_that_are_none_are_none(self, value: object) -> None:
        assert parse_time(value) is None


class TestLosses:
    def test_hold_few_and_short_examples(self) -> None:
        losses = LossReport()
        for _ in range(10):
            losses.add("a thing", "x" * 10_000_000)
        assert max(map(len, losses["a thing"].examples)) <= MAX_EXAMPLE
        loss = losses.for_people(Redactor())["a thing"]
        assert (loss.count, len(loss.examples)) == (10, 3)
        assert max(map(len, loss.examples)) < 100

    @pytest.mark.parametrize("before", range(60, 90, 3))
    def test_hold_no_half_of_a_secret(self, before: int) -> None:
        losses = LossReport()
        losses.add("a thing", "." * before + "correct horse battery")
        (example,) = losses.for_people(Redactor({"PASS": "correct horse battery"}))["a thing"].examples
        assert "co" not in example


def test_the_install_line_knows_every_tool() -> None:
    assert sorted(EXTRAS_OF_NAMES[plugins.IMPORTERS]) == plugins.names(plugins.IMPORTERS)


class TestPlaces:
    def test_a_tool_of_a_similar_name_is_suggested(self) -> None:
        with memory_store() as store:
            with pytest.raises(UnknownImporter, match=r"did you mean claude-ai or claude-code\?"):
                store.import_from("claude", "x")
            with pytest.raises(UnknownImporter, match="did you mean codex"):
                store.import_from("codx", "x")

    def test_an_unknown_tool_is_refused_with_those_that_are_known(self) -> None:
        with memory_store() as store, pytest.raises(UnknownImporter, match="chat, "):
            store.import_from("abacus", "x")

    @pytest.mark.parametrize("tool", TOOLS)
    def test_a_place_that_is_not_there_is_refused(self, tool: str, tmp_path: Path) -> None:
        with memory_store() as store, pytest.raises(InvalidSource, match="nothing was changed"):
            list(store.import_from(tool, str(tmp_path / "gone")))

    @pytest.mark.parametrize("tool", TOOLS)
    def test_an_empty_folder_is_refused(self, tool: str, tmp_path: Path) -> None:
        with memory_store() as store, pytest.raises(InvalidSource, match="nothing was changed"):
            list(store.import_from(tool, str(tmp_path)))

    def test_a_tool_without_a_default_path_needs_a_source(self) -> None:
        with memory_store() as store, pytest.raises(InvalidSource, match="name a JSON Lines file"):
            store.import_from("chat")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with two chats and a file that is none."""
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    write_jsonl(tmp_path / "logs/one.jsonl", messages)
    write_jsonl(tmp_path / "logs/two.jsonl", [*messages, {"role": "goblin"}])
    (tmp_path / "logs/broken.jsonl").write_bytes(b'{"role": "user", "con\n\xff\xfe\n[1]\n')
    return tmp_path / "logs"


class TestTheCommand:
    def test_takes_in_a_folder_and_says_what_was_lost(self, logs: Path, tmp_path: Path) -> None:
        done = oakleaf("import", "--from", "chat", str(logs), store=tmp_path / "s.db")
        assert done.code == 1, done.err
        assert "chat-broken  failed: it contains no messages" in done.out
        assert [line.split("  ")[0] for line in done.out.splitlines()] == [
            "chat-broken",
            "chat-one",
            "chat-two",
        ]
        assert "2 sessions imported, 0 updated, 0 imported before, 5 entries" in done.err
        assert "lost 1 × an item of unknown kind, kept as a note" in done.err

    def test_again_takes_in_nothing(self, logs: Path, tmp_path: Path) -> None:
        oakleaf("import", "--from", "chat", str(logs), store=tmp_path / "s.db")
        done = oakleaf("import", "--from", "chat", str(logs), store=tmp_path / "s.db")
        assert "0 sessions imported, 0 updated, 2 imported before, 0 entries" in done.err

    def test_dry_tells_and_writes_nothing(self, logs: Path, tmp_path: Path) -> None:
        done = oakleaf("import", "--from", "chat", str(logs), "--dry-run", "--json", store=tmp_path / "s.db")
        assert (done.code, done.json["dry_run"], len(done.json["imported"])) == (1, True, 3)
        assert not (tmp_path / "s.db").exists()

    def test_dry_compares_with_the_store(self, store: Store) -> None:
        """It reported every session as new, whatever the store had."""
        import_record(store, session_record(user("a"), assistant("b")))
        import_record(store, session_record(user("a"), source="trashed"))
        store.delete("chat-trashed")
        before = store.backend.session("chat-one")

        def preview(record: SessionRecord, **how: bool) -> ToolImportResult:
            return preview_session(store.backend, store.runtime, record, **how)

        again = preview(session_record(user("a"), assistant("b")))
        assert (again.added, again.existing, again.entries) == ((), ("chat-one",), 0)
        grown = session_record(user("a"), assistant("b"), user("c"))
        assert (preview(grown).added, preview(grown).entries) == ((), 1)
        assert preview(grown, new_id=True).added
        assert "trash" in (preview(session_record(user("x"), source="trashed")).error or "")
        store.session("chat-one").append([user("mine")])
        assert preview(grown).error
        assert preview(session_record(user("z"), source="new")).added == ("chat-new",)
        assert store.backend.session("chat-one").leaf.seq == before.leaf.seq + 1
        assert [row.session_id for row in store.sessions().sessions] == ["chat-one"]

    def test_says_what_a_source_does_not_say(self, tmp_path: Path) -> None:
        from support.claude_transcripts import shop_transcript

        transcript = shop_transcript()
        transcript.user("more")
        transcript.answer({"type": "text", "text": "half"}, stop=None)
        transcript.write(tmp_path / "in" / "s.jsonl")
        done = oakleaf("import", "--from", "claude-code", str(tmp_path / "in"), store=tmp_path / "s.db")
        assert "(being written)" in done.out
        assert "1 answer still being written; import again to add it" in done.err
        assert "not in the source: system prompt (1 session), tool definitions (1 session)" in done.err
        listed = oakleaf("ls", store=tmp_path / "s.db").out
        assert "claude-sonnet-4-5" in listed
        assert "Fixing the shop (⇣ claude-code)" in listed

    def test_with_an_option_of_oakleaf_itself_says_where_it_belongs(self, tmp_path: Path) -> None:
        """It was answered with: Did you mean --json?"""
        done = oakleaf("import", "--store", "x.db", "--from", "chat", "x", store=tmp_path / "s.db")
        assert done.code == 2
        assert "--store belongs before the command: oakleaf --store VALUE import …" in done.err
        assert "mean" not in done.err

    def test_as_json_tells_each_session(self, logs: Path, tmp_path: Path) -> None:
        done = oakleaf("import", "--from", "chat", str(logs / "two.jsonl"), "--json", store=tmp_path / "s.db")
        (one,) = json.loads(done.out)["imported"]
        assert (one["session_id"], one["entries"], one["added"]) == ("chat-two", 3, ["chat-two"])
        assert sum(loss["count"] for loss in one["losses"].values()) == 1

    def test_with_a_report_says_what_share_was_understood(self, tmp_path: Path) -> None:
        strange = {"timestamp": "x", "type": "beam", "payload": {}, "thread": codex.MAIN}
        place = codex.write(tmp_path / "in", [*codex.SAMPLE[:20], strange])
        with (place / f"rollout-{codex.MAIN}.jsonl").open("a") as file:
            file.write("{half a line")
        command = ("import", "--from", "codex", str(place), "--report")
        done = oakleaf(*command, store=tmp_path / "s.db")
        assert "understood 90.9 % of 22 lines" in done.out
        assert "understood 90.9 % of 22 lines" in done.err
        (one,) = json.loads(oakleaf(*command, "--json", store=tmp_path / "s.db").out)["imported"]
        assert (one["items"], one["misread"]) == (22, 2)
        assert oakleaf("import", "x.oakleaf", "--report", store=tmp_path / "s.db").code == 2

    def test_refused_for_one_ends_with_1_and_the_others_are_taken_in(
        self, logs: Path, tmp_path: Path
    ) -> None:
        oakleaf("import", "--from", "chat", str(logs / "one.jsonl"), store=tmp_path / "s.db")
        write_jsonl(logs / "one.jsonl", [{"role": "user", "content": "Quite another"}])
        done = oakleaf("import", "--from", "chat", str(logs), store=tmp_path / "s.db")
        assert done.code == 1
        assert "failed: session id 'chat-one' belongs to other content" in done.out
        assert "--new-id" in done.out
        assert "1 session imported" in done.err

    def test_of_nothing_ends_with_an_error_and_makes_no_store(self, tmp_path: Path) -> None:
        done = oakleaf("import", "--from", "chat", str(tmp_path / "gone"), store=tmp_path / "s.db")
        assert done.code == 1
        assert "there is no such file or folder" in done.err

    def test_shows_no_escape_sequence_of_a_title(self, tmp_path: Path) -> None:
        chat = {"messages": [{"role": "user", "content": "a"}], "title": "red \x1b[31m"}
        path = write_jsonl(tmp_path / "one.jsonl", [chat])
        done = oakleaf("import", "--from", "chat", str(path), store=tmp_path / "s.db")
        assert "\x1b" not in done.out


class TestTheListOfImporters:
    def test_marks_a_format_that_was_not_checked_for_a_year(self) -> None:
        newest = date(2026, 3, 1)
        importer = Importer(source="", sessions=iter, checked=newest)  # type: ignore[arg-type]
        assert importer.is_checked(newest)
        assert not importer.is_checked(newest + timedelta(days=365))
        assert not replace(importer, checked=None).is_checked(newest)

    def test_has_a_row_for_every_tool(self, tmp_path: Path) -> None:
        done = oakleaf("importers", "--json", store=tmp_path / "s.db")
        listed = {one["tool"]: one for one in json.loads(done.out)["importers"]}
        assert list(listed) == plugins.names(plugins.IMPORTERS)
        assert listed["codex"]["looks_in"] == ["~/.codex/sessions", "~/.codex/archived_sessions"]
        assert [one["problem"] for one in listed.values()] == [None] * len(listed)
        shown = oakleaf("importers", store=tmp_path / "s.db").out
        assert "not in the last year" in next(line for line in shown.splitlines() if "goose" in line)
