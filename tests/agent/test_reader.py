"""Readers of sessions and stores: the same as the handles read, in parts, and no way to write."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import oakleaf
from oakleaf import NotFound, Session, ToolCall, Usage, assistant, ext, tool_result, user
from oakleaf.core.facts import Moved
from oakleaf.core.fit import Budget, fit
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import turn_number
from oakleaf.errors import InvalidArgument, InvalidPosition, KeyReused, SessionRunning, SessionTrashed
from oakleaf.log.log import Log
from oakleaf.log.runtime import Runtime
from oakleaf.store import Store
from oakleaf.stores.base import SessionQuery, StoreBackend
from support import sample_store

SESSIONS = (sample_store.CASE, sample_store.BUILD, sample_store.HOSTILE, sample_store.WAITING)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = sample_store.fill(tmp_path_factory.mktemp("readers") / "agent.db")
    with oakleaf.open(path) as store:
        yield store


@pytest.fixture(params=SESSIONS)
def stored(request: pytest.FixtureRequest, sample: Store) -> Session:
    return sample.session(request.param)


def public_members(value: object) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(value, name)) for name in dir(value) if not name.startswith("_"))


class TestNothingWrites:
    def test_no_reader_leads_to_a_log_or_a_store(self, sample: Store) -> None:
        reader = ext.read(sample.session(sample_store.CASE))
        for _, member in (*public_members(reader), *public_members(ext.read_store(sample))):
            assert not isinstance(member, Log | StoreBackend | Runtime)

    def test_no_reader_has_a_method_that_writes(self, sample: Store) -> None:
        writing = {
            name
            for kind in (StoreBackend, Log)
            for name, member in inspect.getmembers(kind, callable)
            if not name.startswith("_")
            and any(word in (inspect.getdoc(member) or "") for word in ("Commit", "Append", "Move", "Write"))
        } | {"commit", "create", "lease", "renew", "release", "save_draft", "enqueue", "put_blob", "append"}
        for reader in (ext.read(sample.session(sample_store.CASE)), ext.read_store(sample)):
            assert not writing & {name for name, _ in public_members(reader)}


class TestPath:
    def test_parts_of_a_path_are_those_of_the_whole(self, stored: Session) -> None:
        reader, path = ext.read(stored), stored.path()
        assert reader.entries() == path
        assert reader.entries(2, 4) == [entry for entry in path if 2 <= entry.seq <= 4]
        assert reader.entries(newest=3) == path[-3:]
        assert [*reader.backwards()] == path[::-1]
        assert [*reader.backwards(2)] == path[1::-1]
        assert all(not entry.internal for entry in reader.entries(public=True))

    def test_a_position_has_the_branch_that_holds_it(self, stored: Session) -> None:
        reader = ext.read(stored)
        for entry in stored.path():
            leaf = Leaf(entry.branch, entry.seq)
            assert (reader.leaf_at(entry.seq), reader.contains(leaf)) == (leaf, True)
        assert not reader.contains(Leaf(10**6, 1))
        with pytest.raises(InvalidPosition):
            reader.leaf_at(stored.leaf.seq + 1)

    def test_a_reader_elsewhere_leaves_the_session_where_it_is(self, stored: Session) -> None:
        reader, leaf = ext.read(stored), stored.leaf
        there = reader.at(reader.leaf_at(2))
        assert [entry.seq for entry in there.entries()] == [1, 2]
        assert (stored.leaf, stored.row.leaf) == (leaf, leaf)

    def test_the_tree_has_every_entry_of_every_branch(self, stored: Session) -> None:
        reader = ext.read(stored)
        entries = reader.tree_entries()
        assert {(entry.branch, entry.seq) for entry in entries} >= {
            (entry.branch, entry.seq) for entry in (*stored.path(), *stored.entries())
        }
        assert reader.tree_entries(newest=2) == entries[-2:]
        assert all(entry.seq > 3 for entry in reader.tree_entries(since=3))

    def test_settings_and_cursor_are_those_of_the_leaf(self, stored: Session) -> None:
        reader = ext.read(stored)
        assert reader.settings() == stored.context().settings
        assert reader.cursor.open_calls == stored.open_tool_calls
        kinds = {entry.kind for entry in reader.control_entries()}
        assert not kinds & {"message", "note"}


class TestJournal:
    def test_a_cursor_elsewhere_is_the_one_that_was_there(self, stored: Session) -> None:
        reader, leaf = ext.read(stored), ext.read(stored).leaf_at(1)
        assert reader.cursor_at(leaf) == ext.read(ext.session_at(stored, leaf)).cursor
        assert reader.cursor_at(stored.leaf) == reader.cursor

    def test_facts_come_backwards_and_by_kind(self, stored: Session) -> None:
        reader, journal = ext.read(stored), stored.journal()
        assert [*reader.facts_backwards()] == journal[::-1]
        assert reader.facts_of(Moved) == [fact for fact in journal if fact.kind == "moved"]
        appended = [fact for fact in journal if fact.kind == "appended"]
        assert next(entry.seq for entry in reader.appended_entries(appended[0])) == appended[0].first
        assert reader.appended_entries(journal[0]) == []

    def test_a_turn_is_found_by_the_key_of_its_input(self, session: Session) -> None:
        reader = ext.read(session)
        with session.turn("Where is it?", key="a") as turn:
            turn.answer(oakleaf.assistant("There."))
        found = reader.find_turn("a", "Where is it?")
        assert found is not None
        assert found.turn == 2
        assert (reader.find_turn("b"), reader.find_turn(None)) == (None, None)
        with pytest.raises(KeyReused):
            reader.find_turn("a", "Something else")
        with pytest.raises(InvalidArgument):
            reader.find_turn("~made")


class TestCalls:
    def test_calls_of_parts_are_those_of_the_path(self, stored: Session) -> None:
        reader, end = ext.read(stored), stored.leaf.seq
        parts = [call for seq in range(end + 1) for call in reader.calls(seq, seq)]
        assert Counter(call.call_id for call in parts) == Counter(
            call.call_id for call in reader.calls(0, end)
        )
        answers = [call for call in parts if call.answer_seq is not None and call.purpose == "answer"]
        newest = max(answers, key=lambda call: call.seq, default=None)
        assert reader.latest_answer_call(end) == newest
        for entry in stored.path():
            assert {call.answer_seq for call in reader.calls_at(entry)} <= {entry.seq}
        own = [call for _, call in reader.calls_with_sessions("tree")]
        assert Counter(own) == Counter(stored.model_calls("tree"))

    @pytest.mark.parametrize("view", ["own", "path", "tree"])
    def test_usage_by_a_column_sums_to_the_view(self, stored: Session, view: Any) -> None:
        reader = ext.read(stored)
        assert sum(one.calls for one in reader.usage_by("model", view).values()) == stored.usage(view).calls
        assert reader.usage_by("model", view, since=reader.store.now() + 1) == {}

    def test_a_fork_inherits_the_calls_of_its_source(self, session: Session) -> None:
        with session.turn("Hi") as turn:
            turn.answer(assistant("Hello"), usage=Usage(1, 2))
        fork = session.fork()
        assert ext.read(fork).inherited_calls() == session.model_calls()
        assert ext.read(session).inherited_calls() == []

    def test_a_call_that_waits_is_known_above_its_task(self, sample: Store) -> None:
        waiting = sample.session(sample_store.WAITING)
        status = ext.read(waiting).call_status()
        assert {(call.seq, call.index) for call in waiting.pending_approvals()} == status.approval_requested
        task = ext.read(sample.session(sample_store.TASK))
        assert [parent.session_id for parent in task.ancestors()] == [sample_store.BUILD]
        assert not ext.read(waiting).is_awaited_by_worker()


class TestRunning:
    def test_a_lease_is_seen_until_the_turn_ends(self, session: Session) -> None:
        reader = ext.read(session)
        assert (reader.is_held(), reader.check_free().status) == (False, "idle")
        with session.turn("Hi") as turn:
            assert reader.is_held()
            with pytest.raises(SessionRunning):
                reader.check_free()
            turn.answer(oakleaf.assistant("Hello"))
        assert not reader.is_held()

    def test_queued_inputs_wait_in_the_inbox(self, session: Session) -> None:
        session.enqueue("later")
        session.enqueue("even later")
        assert (len(ext.read(session).inbox()), len(ext.read(session).inbox(1))) == (2, 1)
        assert ext.read(session).draft() is None


@pytest.mark.extra
class TestPrompt:
    def test_a_budget_bounds_what_is_read(self, stored: Session) -> None:
        reader = ext.read(stored)
        fitted = reader.context_within(Budget(messages=5))
        assert fitted.items == fit(stored.context(), Budget(messages=5)).context.items
        assert reader.prompt_frame()[0].seq == 1


class TestStore:
    def test_rows_counts_and_headings_are_those_of_the_store(self, sample: Store) -> None:
        reader = ext.read_store(sample)
        rows = [*sample.all_sessions()]
        assert [*reader.all_sessions(SessionQuery())] == rows
        assert [reader.current(row) for row in rows] == rows
        assert reader.sessions(SessionQuery(limit=200)).sessions == rows
        assert reader.headings(rows) == sample.headings(rows)
        assert reader.heading(rows[0]) == sample.headings(rows)[rows[0].session_id]
        by_status = Counter(row.status for row in rows)
        assert reader.count(SessionQuery(), "status") == by_status
        assert reader.count_all(SessionQuery(), "status") == by_status == reader.status_counts(1_000)
        assert set(reader.heads([rows[0].session_id, "ses_none"])) == {rows[0].session_id}
        assert (reader.space, reader.owner) == ("default", None)

    def test_one_session_is_read_by_its_id(self, sample: Store) -> None:
        reader = ext.read_store(sample)
        case = sample.session(sample_store.CASE)
        assert reader.find_session(case.session_id) == case.row
        assert reader.find_session("ses_none") is None
        assert reader.session(case.session_id).entries() == case.path()
        assert reader.journal(case.session_id, 2, 3) == case.journal(2, 3)
        assert reader.storage_size(case.session_id) == reader.session(case.session_id).storage_size()
        with pytest.raises(NotFound):
            reader.session("ses_none")

    def test_usage_is_the_sum_over_sessions(self, sample: Store) -> None:
        reader = ext.read_store(sample)
        calls = sum(row.totals.calls for row in sample.all_sessions())
        assert sum(one.totals.calls for one in reader.daily_usage()) == calls
        sums = reader.usage_by("model")
        assert sum(totals.calls for totals in [*sums.live.values(), *sums.replays.values()]) == calls
        assert reader.daily_usage(reader.now() + 1) == []

    def test_a_blob_has_its_type(self, store: Store) -> None:
        media = store.put_blob(b"bytes", "text/plain")
        blob = ext.read_store(store).blob(media.hash)
        assert blob is not None
        assert (blob.data, blob.mime) == (b"bytes", "text/plain")
        assert ext.read_store(store).blob("0" * 64) is None

    def test_a_change_is_found_by_its_key_in_its_session_only(self, store: Store) -> None:
        session, other = store.start(), store.start()
        leaf = session.append([user("hi")], key="k").leaf
        session.append([assistant("hello")])
        reader = ext.read_store(store)
        assert reader.find_change(session.session_id, "k") == leaf
        assert reader.find_change(session.session_id, "other") is None
        assert reader.find_change(other.session_id, "k") is None

    def test_a_path_comes_with_row_and_detail_in_one_read(self, stored: Session, sample: Store) -> None:
        snapshot = ext.read_store(sample).path(stored.session_id, newest=2, detail=True)
        assert (snapshot.row, snapshot.entries) == (stored.row, stored.path(last=2))
        assert snapshot.detail == ext.read(stored).detail()
        assert ext.read_store(sample).path(stored.session_id).detail is None


class TestHandles:
    def test_a_handle_from_a_row_is_at_its_leaf(self, stored: Session, sample: Store) -> None:
        handle = ext.session_of(sample, stored.row)
        assert (handle.session_id, handle.leaf) == (stored.session_id, stored.leaf)
        assert handle.path() == stored.path()

    def test_a_fork_into_a_conversation_may_have_open_calls(self, store: Store) -> None:
        source = store.start("a", tags={"from": "source"})
        source.append([user("Look."), assistant("", ToolCall("c", "look", {})), tool_result("c", "a lamp")])
        fork = ext.fork_at(
            source, ext.read(source).leaf_at(2), conversation_id="con", title="T", tags={"a": "b"}
        )
        assert [call.call.id for call in fork.open_tool_calls] == ["c"]
        row = fork.row
        assert (row.conversation_id, row.title, row.tags, row.relation) == ("con", "T", {"a": "b"}, "fork")
        assert row.parent_session == source.session_id
        fork.append([tool_result("c", "nothing")])
        assert len(source.path()) == 3
        assert fork.verify() == []

    def test_a_fork_of_a_session_in_the_trash_is_refused(self, store: Store) -> None:
        source = store.start("a")
        store.delete(source.session_id)
        with pytest.raises(SessionTrashed):
            ext.fork_at(source, source.leaf, conversation_id="con")

    def test_a_handle_without_redaction_stores_text_as_it_is(self, store: Store) -> None:
        key = "AKIA" + "Q" * 16
        plain_store = ext.without_redaction(store)
        assert isinstance(plain_store, Store)
        session = plain_store.start("a", [user(key)])
        plain = ext.without_redaction(store.session(session.session_id))
        assert isinstance(plain, Session)
        plain.append([user(key)])
        store.session(session.session_id).append([user(key)])
        texts = [entry.message.text for entry in store.session(session.session_id).path() if entry.message]
        assert texts == [key, key, "[redacted]"]

    def test_a_handle_at_a_leaf_forks_from_there(self, stored: Session) -> None:
        leaf = ext.read(stored).leaf_at(1)
        there = ext.session_at(stored, leaf)
        assert (there.leaf, stored.row.leaf) == (leaf, stored.leaf)

    def test_commits_are_observed(self, store: Store) -> None:
        seconds: list[float] = []
        ext.observe_commits(store, seconds.append)
        store.start().append([user("Hi")])
        assert len(seconds) == 1


class TestTurns:
    def test_turns_are_numbered_from_1_along_the_path_and_seeds_are_none(self, sample: Store) -> None:
        session = sample.start(seeds=[user("seed"), assistant("seen")])
        session.append([user("1"), assistant("a"), user("left"), assistant("b")])
        session.rewind(4)
        session.append([oakleaf.Note({"n": 1}), user("2"), assistant("c")])
        for handle in (session, session.fork()):
            reader = ext.read(handle)
            assert reader.inputs() == [3, 6]
            assert [reader.turn_seq(number) for number in (1, 2)] == [3, 6]
            assert [turn_number(reader.inputs(), entry.turn) for entry in handle.path()] == [
                0,
                0,
                1,
                1,
                0,
                2,
                2,
            ]
            for number in (0, 3):
                with pytest.raises(InvalidArgument, match="a turn from 1 to 2"):
                    reader.turn_seq(number)
        with pytest.raises(InvalidArgument, match="there is no turn yet"):
            ext.read(sample.start()).turn_seq(1)
