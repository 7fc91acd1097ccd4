"""The verbs of a session: append, rewind, redo, fork, compact, and what they never do."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Attachment,
    Budget,
    Cut,
    Leaf,
    Limits,
    Media,
    Note,
    ScriptedModel,
    Session,
    Settings,
    StaleLeaf,
    Text,
    ToolCall,
    Usage,
    Workspace,
    assistant,
    fit,
    system,
    tool_result,
    user,
)
from oakleaf.core.log_events import log_events
from oakleaf.core.turns import CallModel
from oakleaf.errors import (
    InvalidArgument,
    InvalidMessage,
    InvalidOperation,
    InvalidPosition,
    InvalidSummary,
    NothingToRedo,
    OakleafError,
    OpenBatch,
    OrphanResult,
    SessionRunning,
    ToolsNotAllowed,
)
from oakleaf.ext import read
from oakleaf.store import Store
from oakleaf.testing.stores.writer import read_everything
from oakleaf.wire import PROVIDERS, find_provider, render
from support.stopped_runs import stopped


def texts(session: Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message]


def talk(session: Session, *words: str) -> None:
    for word in words:
        session.append([user(word), assistant(f"re {word}")])


@pytest.fixture
def session_with_calls(session: Session) -> Session:
    """Entries 1 system, 2 user, 3 answer with two calls, 4 and 5 their results, 6 final answer."""
    session.append([user("q"), assistant(ToolCall("a", "t"), ToolCall("b", "t"))])
    session.append([tool_result("b", "2")])
    session.append([tool_result("a", "1")])
    session.append([assistant("done")])
    return session


class TestAppend:
    def test_a_text_in_place_of_a_message_is_refused_with_the_form(
        self, store: Store, session: Session
    ) -> None:
        for seeds in ("You help.", ["You help."]):
            with pytest.raises(InvalidArgument, match=r"seeds='You help\.' is invalid; .*oakleaf\.user\("):
                store.start(seeds=seeds)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"items='hi' is invalid; .*oakleaf\.user\("):
            session.append(["hi"])  # type: ignore[list-item]

    def test_it_returns_what_is_stored(self, session: Session) -> None:
        done = session.append([user("hi"), Note({"pair": (1, 2)})])
        assert [entry.seq for entry in done.entries] == [2, 3]
        assert done.entries == session.path(since=1)
        assert done.entries[1].payload == Note({"pair": [1, 2]})  # what you hold is what was written

    def test_a_stale_handle_is_told_and_nothing_is_merged(self, store: Store, session: Session) -> None:
        other = store.session(session.session_id)
        session.append([user("first")])
        before = read_everything(store.backend, session.session_id)
        with pytest.raises(StaleLeaf) as excinfo:
            other.append([user("second")])
        assert excinfo.value.present == session.leaf
        assert read_everything(store.backend, session.session_id) == before
        other.refresh()
        other.append([user("second")])
        assert texts(other) == ["You help.", "first", "second"]

    def test_a_retry_by_key_returns_the_recorded_outcome(self, store: Store, session: Session) -> None:
        leaf = session.leaf
        first = session.append([user("once")], key="step 1")
        session.append([assistant(ToolCall("a", "t"))])
        before = read_everything(store.backend, session.session_id)
        other = store.session(session.session_id)
        for again in (
            other.append([user("once")], key="step 1"),
            other.append([user("once")], after=leaf, key="step 1"),
            session.append([user("once")], key="step 1"),
        ):
            assert (again.is_repeat, again.entries, again.leaf) == (True, first.entries, first.leaf)
        assert read_everything(store.backend, session.session_id) == before
        assert other.leaf == session.leaf == session.row.leaf, (
            "a handle that is beyond the repeat stays there"
        )
        session.append([tool_result("a"), assistant("done")])

    def test_a_repeat_moves_a_handle_that_had_not_seen_it(self, store: Store, session: Session) -> None:
        fork = session.fork()
        late = store.session(fork.session_id)
        fork.append([user("once")], key="k")
        assert late.append([user("once")], key="k").is_repeat
        assert late.leaf == fork.leaf
        late.append([assistant("and on")])
        assert texts(late) == ["You help.", "once", "and on"]

    @pytest.mark.parametrize("key", ["", "~mine"])
    def test_a_key_that_would_not_be_looked_up_is_refused(self, session: Session, key: str) -> None:
        with pytest.raises(InvalidArgument):
            session.append([user("x")], key=key)

    def test_only_a_key_that_was_given_costs_a_read(
        self, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lookups: list[str] = []
        find = type(store.backend).find_change

        def count(backend: Any, session_id: str, key: str) -> Any:
            lookups.append(key)
            return find(backend, session_id, key)

        monkeypatch.setattr(type(store.backend), "find_change", count)
        session.append([user("x")])
        with session.turn("y") as turn:
            turn.answer(assistant(ToolCall("a", "t")))
            turn.result("a")
            turn.answer(assistant("z"))
        session.title("t")
        assert lookups == []
        session.append([user("x")], key="mine")
        assert lookups == ["mine"]

    def test_a_law_broken_in_the_middle_of_a_batch_writes_nothing(
        self, store: Store, session: Session
    ) -> None:
        before = read_everything(store.backend, session.session_id)
        for batch, error in [
            ([user("q"), tool_result("nobody")], OrphanResult),
            ([user("q"), assistant(ToolCall("a", "t")), user("too early")], OpenBatch),
            ([user("q"), Note({"x": float("nan")})], Exception),
            ([], InvalidOperation),
        ]:
            with pytest.raises(error):
                session.append(batch)
        assert read_everything(store.backend, session.session_id) == before
        session.append([user("and it still works")])

    def test_provider_dicts_become_entries(self, session: Session) -> None:
        session.append([{"role": "user", "content": "hi"}])
        session.append(
            [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "t", "input": {"x": 1}}],
                }
            ]
        )
        session.append(
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]}]
        )
        assert [entry.role for entry in session.path()] == ["system", "user", "assistant", "tool"]

    def test_bytes_are_lifted_out_into_blobs(self, store: Store, session: Session) -> None:
        session.append([user("see", Attachment(b"\x89PNG", "image/png", "a.png"))])
        media = session.path()[-1].message.parts[1]
        assert isinstance(media, Media)
        assert (media.mime, media.size, media.name) == ("image/png", 4, "a.png")
        assert store.blob(media) == b"\x89PNG"

    def test_a_data_url_in_text_or_json_is_lifted_out_too(self, store: Store, session: Session) -> None:
        import base64

        url = "data:image/png;base64," + base64.b64encode(b"\x89PNG" * 40).decode()
        session.append([user(f"look: {url} end"), assistant(ToolCall("a", "t", {"img": url}))])
        question, answer = session.path()[-2:]
        assert [type(part).__name__ for part in question.message.parts] == ["Text", "Media", "Text"]
        assert store.blob(question.message.parts[1]) == b"\x89PNG" * 40
        assert answer.message.calls[0].arguments["img"].startswith("[oakleaf-blob:")

    def test_explicit_results_close_a_batch_early(self, session: Session) -> None:
        session.append(
            [user("q"), assistant(ToolCall("a", "t"), ToolCall("b", "t")), tool_result("b", "real")]
        )
        session.close_batch("the user stopped it")
        results = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert [(r.call_id, r.outcome, r.error) for r in results] == [
            ("b", "done", False),
            ("a", "interrupted", True),
        ]
        assert session.close_batch("nothing open") is None
        session.append([user("next")])

    def test_each_call_has_an_idempotency_key_that_survives(self, store: Store, session: Session) -> None:
        session.append([user("q"), assistant(ToolCall("same", "t"), ToolCall("same", "t"))])
        keys = [session.idempotency_key(call) for call in session.open_tool_calls]
        again = store.session(session.session_id)
        assert keys == [again.idempotency_key(call) for call in again.open_tool_calls]
        assert len(set(keys)) == 2


class TestRewind:
    def test_it_loses_nothing_and_the_next_append_grows_a_branch(self, session: Session) -> None:
        talk(session, "1", "2")
        leaf = session.leaf
        assert session.rewind(to=3) == Cut(3, 3)
        talk(session, "other")
        assert texts(session) == ["You help.", "1", "re 1", "other", "re other"]
        assert len(session.entries()) == 7
        session.checkout(leaf)
        assert texts(session)[-1] == "re 2"
        assert session.verify() == []

    def test_a_cut_falls_between_pairs_and_says_so(self, session_with_calls: Session) -> None:
        for to, at in [(6, 6), (5, 5), (4, 2), (3, 2), (2, 2), (1, 1), (0, 0)]:
            assert session_with_calls.log.place(to).cut == Cut(at, to)
        cut = session_with_calls.rewind(to=4)
        assert (cut.at, cut.has_moved) == (2, True)
        assert session_with_calls.leaf.seq == 2

    def test_redo_reaches_the_branch_left_behind(self, session: Session) -> None:
        talk(session, "1", "2", "3")
        leaves = [session.leaf]
        for _ in range(2):
            session.undo()
            leaves.append(session.leaf)
        assert [leaf.seq for leaf in leaves] == [7, 5, 3]
        assert [session.redo(), session.redo()] == [leaves[1], leaves[0]]
        with pytest.raises(NothingToRedo):
            session.redo()

    def test_redo_brings_back_what_the_open_turn_waits_for(self, store: Store, session: Session) -> None:
        @oakleaf.tool(approval=True)
        def refund(order: int) -> str:
            """Refund."""
            return f"refunded {order}"

        model = ScriptedModel([assistant(ToolCall("c1", "refund", {"order": 41})), "done"])
        session.send_sync("refund it", model=model, tools=[refund])
        session.note({"ticket": 17})
        pending = session.pending_approvals()
        for _ in range(2):
            session.undo()
            assert (session.row.status, session.pending_approvals()) == ("idle", [])
            session.redo()
            (waiting,) = store.sessions(status="waiting").sessions
            assert (waiting.session_id, session.pending_approvals()) == (session.session_id, pending)
            assert session.verify() == []
        fork = session.fork()
        assert (fork.row.status, fork.pending_approvals()) == ("idle", []), "the cut is before the call"
        session.approve(pending[0])
        session.undo()
        session.redo()
        assert session.resume_sync(model=model, tools=[refund]).text == "done"

    def test_an_error_goes_with_the_turn_that_failed_and_comes_back_with_it(self, session: Session) -> None:
        with pytest.raises(ValueError, match="bad"), session.turn("divide"):
            raise ValueError("bad \0 byte")
        failed = (session.row.status, session.row.error)
        assert failed == ("failed", "ValueError: bad  byte")
        session.undo()
        session.rewind(0)
        assert (session.row.status, session.row.error) == ("idle", None)
        session.redo()
        assert (session.row.status, session.row.error) == ("idle", None)
        session.redo()
        assert (session.row.status, session.row.error) == failed
        session.rewind(1)
        session.append([user("another")])
        assert (session.row.status, session.row.error) == ("running", None)
        session.undo()
        session.redo()
        assert session.row.status == "interrupted", "nobody runs it"

    def test_after_an_append_the_way_back_is_checkout(self, session: Session) -> None:
        talk(session, "1")
        leaf = session.leaf
        session.undo()
        talk(session, "2")
        with pytest.raises(NothingToRedo):
            session.redo()
        session.checkout(leaf)
        assert texts(session)[1] == "1"

    def test_leaving_a_branch_can_record_what_it_found(self, session: Session) -> None:
        talk(session, "1", "2")
        session.rewind(to=3, summary="the second idea does not work")
        assert "does not work" in session.messages("openai-chat")[-1]["content"]
        assert session.leaf.seq == 4
        with pytest.raises(InvalidArgument):
            session.rewind(to=1, summary="  ")

    def test_a_place_that_is_not_there_is_refused(self, session_with_calls: Session) -> None:
        for nowhere in (-1, 7):
            with pytest.raises(InvalidPosition):
                session_with_calls.rewind(to=nowhere)
            with pytest.raises(InvalidPosition):
                session_with_calls.fork(at=nowhere)
        with pytest.raises(InvalidPosition):
            session_with_calls.checkout(Leaf(99, 1))

    def test_moves_are_refused_while_the_session_runs(self, store: Store, session: Session) -> None:
        with session.turn("q") as turn:
            other = store.session(session.session_id)
            with pytest.raises(SessionRunning, match="here:1"):
                other.rewind(to=1)
            turn.answer(assistant("a"))
        other.refresh()
        other.rewind(to=1)

    def test_a_session_whose_runner_is_gone_can_be_marked_and_moved(
        self, store: Store, session: Session
    ) -> None:
        session.turn("q").__enter__()
        other = store.session(session.session_id)
        other.interrupt()
        other.rewind(to=1)
        assert other.row.status == "idle"


class TestFork:
    def test_it_does_not_touch_its_source(self, store: Store, session_with_calls: Session) -> None:
        before = read_everything(store.backend, session_with_calls.session_id)
        fork = session_with_calls.fork(at=2)
        fork.append([assistant("another way")])
        assert read_everything(store.backend, session_with_calls.session_id) == before
        assert texts(fork) == ["You help.", "q", "another way"]
        assert [entry.seq for entry in fork.path()] == [1, 2, 3]

    def test_it_has_its_own_conversation_and_knows_its_parent(self, session_with_calls: Session) -> None:
        fork = session_with_calls.fork(at=2)
        assert fork.row.conversation_id != session_with_calls.row.conversation_id
        assert (fork.row.relation, fork.row.parent_session, fork.row.parent_seq) == (
            "fork",
            session_with_calls.session_id,
            2,
        )

    def test_overrides_are_its_first_entry_and_no_seed_is_rewritten(
        self, session_with_calls: Session
    ) -> None:
        fork = session_with_calls.fork(at=2, model="other", prompt="Be strict.", tools=["t"])
        assert fork.entries()[0].payload == Settings("other", "Be strict.", None, ("t",))
        assert fork.request("anthropic")["system"][0]["text"] == "Be strict."
        assert session_with_calls.request("anthropic")["system"][0]["text"] == "You help."
        assert fork.path()[0] == session_with_calls.path()[0]

    def test_shared_entries_have_the_same_ids_and_numbers(self, session_with_calls: Session) -> None:
        fork = session_with_calls.fork()
        assert fork.path() == session_with_calls.path()
        talk(fork, "x")
        talk(session_with_calls, "y")
        assert [e.entry_id for e in fork.path()][:6] == [e.entry_id for e in session_with_calls.path()][:6]
        assert fork.path()[6].entry_id != session_with_calls.path()[6].entry_id

    def test_a_fork_within_a_batch_moves_before_it(self, session_with_calls: Session) -> None:
        fork = session_with_calls.fork(at=4)
        assert fork.cut == Cut(at=2, requested=4)
        assert fork.row.parent_seq == 2

    def test_a_fork_of_a_fork_reads_through_both(self, session: Session) -> None:
        talk(session, "1")
        fork = session.fork()
        talk(fork, "2")
        again = fork.fork()
        talk(again, "3")
        assert texts(again)[1:] == ["1", "re 1", "2", "re 2", "3", "re 3"]
        assert again.verify() == []

    def test_it_holds_the_agent_the_policy_and_the_workspace_of_its_source(
        self, store: Store, tmp_path: Path
    ) -> None:
        workspace = Workspace(working_dir="/w", variables={"team": "blue"})
        about = {
            "spec": {"name": "support", "models": ["m"]},
            "policy": {"web": False},
            "workspace": workspace,
        }
        source = store.start("support", [system("You help.")], state={"n": 1}, **about)
        talk(source, "q")
        detail = replace(store.backend.detail(source.session_id), state=None)
        assert None not in (detail.spec, detail.policy, detail.workspace)
        fork = source.fork(at=2)
        again = fork.fork(model="other")
        assert store.backend.detail(fork.session_id) == detail
        assert store.backend.detail(again.session_id) == detail
        assert fork.state == {"n": 1}
        assert store.backend.detail(source.replay_sync().replay) == detail
        store.delete(source.session_id)
        store.purge(source.session_id)  # what a fork holds is its own
        assert store.backend.detail(fork.session_id) == detail
        with oakleaf.open("memory:") as elsewhere:
            fork.export(tmp_path / "fork.oakleaf")
            elsewhere.import_bundle(tmp_path / "fork.oakleaf")
            assert elsewhere.backend.detail(fork.session_id) == detail
        with oakleaf.open("memory:") as elsewhere:
            store.copy(again, elsewhere)
            assert elsewhere.backend.detail(again.session_id) == detail

    def test_it_adds_less_than_four_kilobytes_whatever_the_length_of_its_source(self, tmp_path: Path) -> None:
        place, count = tmp_path / "s.db", 50
        spec = {
            "name": "support",
            "prompt": "You help customers. " * 20,
            "models": ["m"],
            "tools": ["shop.py"],
        }
        with oakleaf.open(place, synchronous="normal") as store:
            source = store.start("support", spec=spec, workspace=Workspace(working_dir="/w"))
            for n in range(200):
                talk(source, f"question {n} " * 20)
        before = place.stat().st_size
        with oakleaf.open(place, synchronous="normal") as store:
            for _ in range(count):
                store.session(source.session_id).fork(at=200)
        assert (place.stat().st_size - before) / count < 4_096

    def test_its_tools_are_narrowed_and_never_widened(self, session_with_calls: Session) -> None:
        session_with_calls.set(tools=("look", "refund"))
        fork = session_with_calls.fork(tools=["look"])
        assert fork.context().settings.tools == fork.row.tool_names == ("look",)
        before = fork.row
        for source, tools in ((session_with_calls, ["look", "delete"]), (fork, ["refund"])):
            with pytest.raises(ToolsNotAllowed):
                source.fork(tools=tools)
        assert fork.row == before
        assert session_with_calls.fork(
            at=session_with_calls.leaf.seq - 1, tools=["delete"]
        ).row.tool_names == ("delete",)

    def test_state_comes_along_for_free(self, session: Session) -> None:
        session.note(state={"a": 1})
        at = session.leaf.seq
        session.note(state={"a": 2})
        assert session.fork(at=at).state == {"a": 1}
        session.rewind(to=at)
        assert session.state == {"a": 1}


class TestSet:
    def test_what_holds_is_the_fold_of_the_path(self, session_with_calls: Session) -> None:
        session_with_calls.set(model="a", tools=("look", "refund"))
        session_with_calls.set(prompt="Be brief.")
        session_with_calls.set(tools=("refund",))
        settings = session_with_calls.context().settings
        assert (settings.model, settings.prompt, settings.tools) == ("a", "Be brief.", ("refund",))

    def test_tools_are_narrowed_and_never_widened(self, session_with_calls: Session) -> None:
        session_with_calls.set(tools=("look", "refund"))
        session_with_calls.set(tools=("look",))
        before = session_with_calls.leaf
        for attempt in (
            lambda: session_with_calls.set(tools=("look", "refund")),
            lambda: session_with_calls.append([Settings(tools=("delete",))]),
            lambda: session_with_calls.append([Settings(tools=()), Settings(tools=("look",))]),
        ):
            with pytest.raises(ToolsNotAllowed):
                attempt()
        with pytest.raises(ToolsNotAllowed, match=r"refund.*may use look\b"):
            session_with_calls.set(tools=("look", "refund"))
        assert session_with_calls.leaf == before
        session_with_calls.set(tools=())
        with pytest.raises(ToolsNotAllowed, match="no tool"):
            session_with_calls.set(tools=("look",))

    @pytest.mark.parametrize("tools", [["look"], []], ids=["one", "none"])
    def test_a_move_does_not_bring_back_tools_that_were_taken(
        self, session_with_calls: Session, tools: list[str]
    ) -> None:
        session = session_with_calls
        before = session.leaf
        session.set(tools=["look", "refund"])
        wide = session.leaf
        session.set(tools=tools)
        for move in (
            lambda: session.rewind(before.seq),
            lambda: session.checkout(wide),
            session.undo,
            session.redo,
        ):
            move()
            assert list(session.context().settings.tools or ()) == tools
            assert session.context().settings.tools is not None
        assert session.verify() == []


class TestCompact:
    @pytest.fixture
    def long(self, session: Session) -> Session:
        talk(session, "first " * 200, "second " * 200, "third")
        return session

    def test_the_model_sees_the_summary_and_the_newest_turn(self, long: Session) -> None:
        before = long.messages("anthropic")
        compaction = long.compact("They talked.")
        texts = [item.message.text for item in long.context().items]
        assert texts[0].endswith("They talked.")
        assert texts[1:] == ["third", "re third"]
        assert compaction.first_kept == 6
        assert compaction.tokens_before > 500
        long.uncompact()
        assert long.messages("anthropic") == before
        assert long.verify() == []

    def test_an_empty_or_over_long_summary_is_refused_and_the_old_context_stays(self, long: Session) -> None:
        before = long.request("anthropic")
        for summary in ("", " \n", "longer " * 2000):
            with pytest.raises(InvalidSummary):
                long.compact(summary)
        assert long.request("anthropic") == before

    def test_without_a_summary_one_is_made_without_a_model_the_same_every_time(
        self, store: Store, long: Session
    ) -> None:
        compaction = long.compact()
        assert compaction.first_kept == 6
        assert compaction.summary.startswith("user: first first")
        assert [item.message.text for item in long.context().items][1:] == ["third", "re third"]
        long.uncompact()
        assert long.compact() == replace(compaction, tokens_before=ANY)
        assert long.verify() == []

    def test_what_a_summary_made_without_a_model_stands_for_is_in_it(self, store: Store) -> None:
        """Seeds that are messages went without a word."""
        session = store.start("a", [system("You help."), user("the mail " * 60), assistant("noted " * 60)])
        talk(session, "one " * 100, "two")
        compaction = session.compact()
        assert "the mail" in compaction.summary
        assert "noted" in compaction.summary
        assert "You help." not in compaction.summary

    def test_a_later_one_tells_what_the_earlier_one_told(self, session: Session) -> None:
        talk(session, "first " * 200, "second " * 200, "third " * 200, "fourth")
        session.compact(first_kept=4)
        compaction = session.compact()
        assert compaction.replaces_earlier
        (summary, *_) = [item.message.text for item in session.context().items]
        for words in ("first first", "second second", "third third"):
            assert words in summary

    def test_a_turn_that_waits_for_its_answer_keeps_its_input_whole(self, session: Session) -> None:
        words = "every word counts " * 40
        session.append(
            [user(words), assistant("x " * 400, ToolCall("a", "t")), tool_result("a", "r " * 2000)]
        )
        compaction = session.compact()
        assert [item.message.text for item in session.context().items if not item.pinned] == [words]
        assert compaction.first_kept == session.leaf.seq
        assert isinstance(session.next_action(), CallModel)

    def test_where_no_summary_would_be_shorter_it_is_refused_and_the_old_context_stays(
        self, session: Session
    ) -> None:
        talk(session, "a", "b", "c")
        before = session.leaf
        for first_kept in (None, 1, 2):
            with pytest.raises(InvalidSummary):
                session.compact(first_kept=first_kept)
        assert session.leaf == before

    def test_the_cut_never_parts_a_call_from_its_result(self, session: Session) -> None:
        session.append(
            [
                user("q " * 100),
                assistant("x " * 100, ToolCall("a", "t")),
                tool_result("a", "r"),
                assistant("done"),
            ]
        )
        assert session.compact("sum", first_kept=4).first_kept == 3

    def test_nothing_to_replace_is_said_so(self, session: Session) -> None:
        with pytest.raises(InvalidSummary, match="there is nothing before"):
            session.compact("sum")

    def test_uncompact_without_compaction_is_refused(self, session: Session) -> None:
        with pytest.raises(InvalidOperation, match="no active compaction"):
            session.uncompact()

    def test_a_compaction_waits_for_an_open_batch(self, session: Session) -> None:
        session.append([user("q " * 100), assistant("a"), user("r"), assistant(ToolCall("a", "t"))])
        with pytest.raises(OpenBatch):
            session.compact("sum")

    def test_what_an_open_batch_advises_can_be_done(self, session: Session) -> None:
        session.append([user("q"), assistant(ToolCall("a", "t"))])
        with pytest.raises(OpenBatch) as excinfo:
            session.append([user("too early")])
        advised = re.search(r"session\.close_batch\(.*?\)", str(excinfo.value))
        assert advised is not None
        eval(advised[0], {"session": session})
        session.append([user("now it may")])


class TestRow:
    def test_it_names_the_model_of_the_latest_turn(self, store: Store) -> None:
        session = store.start("a", model="anthropic:first")
        session.send_sync("q", model=ScriptedModel(["a"], model="scripted:second"))
        assert session.row.model == "scripted:second"
        session.set(model="openai:third")
        assert session.row.model == "openai:third"
        with session.turn("q", model="gemini:fourth") as turn:
            turn.answer(assistant(ToolCall("c", "look")), usage=Usage(1, 1))
        assert session.row.model == "gemini:fourth"
        session.close_batch("gone")
        session.resume_sync(model=[ScriptedModel(["a"], model="scripted:fifth")])
        assert session.row.model == "scripted:fifth"
        assert session.fork(model="openai:sixth").row.model == "openai:sixth"

    def test_a_turn_ended_by_a_limit_is_failed_in_its_fact_and_in_its_row(self, store: Store) -> None:
        session = store.start("a")
        model = ScriptedModel(lambda request: assistant(ToolCall(f"c{len(request.messages)}", "look")))
        stopped(session.send_sync, "q", model=model, limits=Limits(rounds=2))
        ended = [fact for fact in session.log.store.journal(session.session_id) if fact.kind == "turn_ended"]
        assert [(fact.data["status"], fact.data["error"]) for fact in ended] == [
            ("failed", session.row.error)
        ]
        assert session.row.status == "failed"
        assert "2" in (session.row.error or "")
        session.send_sync("q", model=ScriptedModel(["a"]))
        assert (session.row.status, session.row.error) == ("idle", None)

    def test_a_fork_that_was_resumed_counts_the_turn_it_inherited(self, store: Store) -> None:
        """Once, on whatever branch it is answered, and not before."""
        session = store.start("a", [system("s")])
        session.append([user("q"), assistant("a"), user("open")])
        for settings in ({}, {"model": "scripted:other"}):
            fork = session.fork(**settings)
            assert fork.row.turns == 0
            model = ScriptedModel([assistant(ToolCall("c", "look")), "a", "b"])
            fork.resume_sync(model=model)
            assert (fork.row.status, fork.row.turns) == ("idle", 1)
            fork.send_sync("more", model=model)
            assert fork.row.turns == 2
            assert fork.verify() == []
            skipped = session.fork(**settings)
            skipped.append([user("another"), assistant("a")])
            assert (skipped.row.turns, skipped.verify()) == (1, [])
            copy = oakleaf.open("memory:")
            copy.import_bundle(io.BytesIO(_bundle(fork)))
            assert copy.session(fork.session_id).verify() == []
        assert session.row.turns == 2


def _bundle(session: Session) -> bytes:
    file = io.BytesIO()
    session.export(file)
    return file.getvalue()


class TestReading:
    def test_an_entry_has_the_text_calls_and_results_of_its_message(
        self, session_with_calls: Session
    ) -> None:
        session_with_calls.note({"a": 1})
        for entry in session_with_calls.path()[:-1]:
            assert entry.message is not None
            assert (entry.text, entry.calls, entry.results) == (
                entry.message.text,
                entry.message.calls,
                entry.message.results,
            )
        note = session_with_calls.path()[-1]
        assert (note.text, note.calls, note.results) == ("", (), ())

    def test_parts_of_the_path(self, session_with_calls: Session) -> None:
        assert [entry.seq for entry in session_with_calls.path(since=4)] == [5, 6]
        assert [entry.seq for entry in session_with_calls.path(last=2)] == [5, 6]
        assert [entry.seq for entry in session_with_calls.transcript()] == [2, 6]
        assert len(session_with_calls.path()) == 6

    def test_hydrate_gives_row_seeds_messages_state_and_totals(
        self, store: Store, session_with_calls: Session
    ) -> None:
        session_with_calls.note(state={"a": 1})
        session = store.hydrate(session_with_calls.session_id)
        assert [entry.seq for entry in session.seeds] == [1]
        assert session.messages == session_with_calls.path(since=1)
        assert (session.state, session.totals, session.row) == (
            {"a": 1},
            session_with_calls.usage(),
            session_with_calls.row,
        )

    def test_the_five_event_types(self, session_with_calls: Session) -> None:
        assert [event.type for event in log_events(session_with_calls.path())] == [
            "system_message",
            "user_message",
            "assistant_message",
            "tool_call",
            "tool_call",
            "tool_result",
            "tool_result",
            "assistant_message",
        ]

    def test_events_have_unique_numbers_that_follow_from_their_entry(
        self, session_with_calls: Session
    ) -> None:
        events = list(log_events(session_with_calls.path()))
        numbers = [event.number for event in events]
        assert numbers == sorted(set(numbers))
        assert list(log_events(session_with_calls.path(since=2))) == events[2:]
        assert list(log_events(session_with_calls.fork(at=2).path())) == events[:2]

    def test_the_content_of_a_tool_result_event_is_text(self, session: Session) -> None:
        picture = Attachment(b"\x89PNG", "image/png")
        with session.turn("look") as turn:
            turn.answer(assistant(ToolCall("c", "look", {})))
            turn.result("c", [Text("a "), Text("cat"), picture])
            turn.answer(assistant("a cat"))
        (event,) = [event for event in log_events(session.path()) if event.type == "tool_result"]
        assert event.content["content"] == "a cat"
        assert [media["mime"] for media in event.content["media"]] == ["image/png"]

    def test_a_budget_cuts_whole_turns(self, session: Session) -> None:
        talk(session, "old " * 500, "new")
        assert len(session.messages("anthropic", Budget(tokens=200))) == 2
        assert fit(session.context(), Budget(tokens=200)).dropped == (2, 3)

    def test_the_projection_is_the_same_bytes_from_another_handle(
        self, store: Store, session_with_calls: Session
    ) -> None:
        from oakleaf.wire import render

        for provider in ("anthropic", "openai-chat"):
            other = store.session(session_with_calls.session_id)
            assert render(session_with_calls.request(provider)) == render(other.request(provider))

    @pytest.mark.parametrize("is_fork", [False, True])
    def test_explain_knows_which_messages_the_model_was_given(self, session: Session, is_fork: bool) -> None:
        """`max_messages` leaves old turns out: the window moves with every turn, and the cache grows cold."""
        requests: list[dict[str, Any]] = []

        def answer(request: Any) -> str:
            requests.append(find_provider("anthropic").project(request.context, request.blobs))
            return "ok"

        for n in range(3):
            limits = oakleaf.Limits(max_messages=3)
            session.send_sync(f"question {n}", model=oakleaf.ScriptedModel(answer), limits=limits)
        reader = session.fork() if is_fork else session
        difference = read(reader).cache_break("anthropic")
        assert difference is not None
        assert difference.path.startswith("messages[0]")
        assert (difference.before, difference.after) == ("question 1", "question 2")
        assert "question 1" in str(requests[-1]["messages"][0])
        session.send_sync(
            "and now?", model=oakleaf.ScriptedModel(answer), limits=oakleaf.Limits(max_messages=99)
        )
        assert read(session).cache_break("anthropic") is None

    def test_explain_knows_how_many_messages_whoever_went_on_had_given(self, session: Session) -> None:
        for n in range(2):
            session.append([user(f"question {n}"), assistant("ok")])
        session.append([user("question 2")])
        session.resume_sync(model=oakleaf.ScriptedModel(["ok"]), limits=oakleaf.Limits(max_messages=3))
        difference = read(session).cache_break("anthropic")
        assert difference is not None
        assert (difference.before, difference.after) == ("question 1", "question 2")

    def test_explain_names_the_first_difference_to_what_was_last_sent(self, session: Session) -> None:
        assert read(session).cache_break("anthropic") is None
        with session.turn("q") as turn:
            turn.answer(assistant("a"), usage=Usage(1, 1))
        session.append([user("more")])
        assert read(session).cache_break("anthropic") is None
        session.set(prompt_patch="Be kind.")
        difference = read(session).cache_break("anthropic")
        assert difference is not None
        assert difference.path.startswith("system")

    @pytest.mark.parametrize(
        ("provider", "system", "tools", "options"),
        [
            ("anthropic", "system[0].text", "tools[0].description", "temperature"),
            ("openai", "instructions", "tools[0].description", "temperature"),
            ("openai-chat", "messages[0].content", "tools[0].function.description", "temperature"),
            (
                "gemini",
                "systemInstruction.parts[0].text",
                "tools[0].functionDeclarations[0].description",
                "generationConfig.temperature",
            ),
        ],
    )
    def test_explain_names_prompt_tools_options_and_messages_in_this_order(
        self, session: Session, provider: str, system: str, tools: str, options: str
    ) -> None:
        """Everything behind the first difference is another for the cache anyway."""

        def look(description: str) -> list[dict[str, Any]]:
            return [{"name": "look", "description": description, "parameters": {"type": "object"}}]

        def differences(**settings: Any) -> tuple[str, Any, Any]:
            fork = session.fork()
            fork.set(**{name: value for name, value in settings.items() if name != "tools"} or {"limits": {}})
            with fork.turn("more", tools=settings.get("tools", look("Look."))):
                difference = read(fork).cache_break(provider)
                assert difference is not None
                return difference.path, difference.before, difference.after

        session.set(prompt="Be brief.", options={"temperature": 0})
        with session.turn("q", tools=look("Look.")) as turn:
            turn.answer(assistant("a"), usage=Usage(1, 1))
        changed_options = {"temperature": 1}
        assert differences(options=changed_options) == (options, 0, 1)
        assert differences(tools=look("Look it up."), options=changed_options) == (
            *(tools, "Look.", "Look it up."),
        )
        everything = differences(prompt="Be kind.", tools=look("Look it up."), options=changed_options)
        assert everything == (system, "Be brief.", "Be kind.")
        session.compact("They greeted.", first_kept=session.leaf.seq + 1)
        difference = read(session).cache_break(provider)
        assert difference is not None
        assert difference.path.startswith(PROVIDERS[provider].history)


class TestCare:
    def test_title_and_tags_do_not_move_the_leaf(self, store: Store, session_with_calls: Session) -> None:
        leaf = session_with_calls.leaf
        session_with_calls.title("Order 41")
        assert session_with_calls.tag(colour="red", size="l") == {"colour": "red", "size": "l"}
        assert session_with_calls.tag(size=None) == {"colour": "red"}
        assert (session_with_calls.row.title, session_with_calls.row.tags, session_with_calls.row.leaf) == (
            "Order 41",
            {"colour": "red"},
            leaf,
        )
        assert [row.session_id for row in store.sessions(tag=("colour", "red")).sessions] == [
            session_with_calls.session_id
        ]

    def test_end_completes_and_the_next_turn_starts_again(self, session_with_calls: Session) -> None:
        session_with_calls.end()
        assert (session_with_calls.row.status, session_with_calls.row.completed_at is not None) == (
            "completed",
            True,
        )
        with session_with_calls.turn("more") as turn:
            assert session_with_calls.row.status == "running"
            turn.answer(assistant("a"))
        assert session_with_calls.row.status == "idle"

    def test_a_message_of_a_wrong_role_cannot_open_a_turn(self, session: Session) -> None:
        with pytest.raises(InvalidMessage, match="opens with a user message"), session.turn(assistant("x")):
            pass

    @pytest.mark.parametrize("status", ["nonsense", 5, None])
    def test_an_unknown_status_is_refused_and_writes_nothing(self, session: Session, status: Any) -> None:
        with pytest.raises(InvalidArgument, match="status"):
            session.end(status)
        assert (session.row.status, len(session.journal())) == ("idle", 1)


def test_another_process_renders_the_same_bytes(tmp_path: Path) -> None:
    """So that a provider's cache stays warm after a restart, and on another host."""
    place = tmp_path / "agent.db"
    script = (
        "import sys, oakleaf; from oakleaf.wire import PROVIDERS, render\n"
        "s = oakleaf.open(sys.argv[1]).session(sys.argv[2])\n"
        "print({name: render(s.request(name)).hex() for name in PROVIDERS})"
    )
    with oakleaf.open(place) as store:
        session = store.start("a", [system("You help.")])
        talk(session, "one", "two")
        session.append(
            [user("q"), assistant("x", ToolCall("odd id", "t", {"b": 1, "a": 2})), tool_result("odd id", "r")]
        )
        here = str({name: render(session.request(name)).hex() for name in PROVIDERS})
        command = [sys.executable, "-c", script, str(place), session.session_id]
        there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert there.strip() == here


class TestSeeds:
    def test_entries_in_the_place_of_seeds_are_no_seeds(self, session: Session) -> None:
        session.rewind(0)
        session.append([user("fresh"), assistant("start")])
        assert session.hydrate().seeds == []
        assert [entry.seq for entry in session.hydrate().messages] == [1, 2]
        assert session.fork().row.seed_count == 0

    def test_seeds_before_the_cut_stay_in_a_fork_of_a_fork(self, store: Store) -> None:
        session = store.start("a", [system("1"), user("2"), assistant("3")])
        session.append([user("q"), assistant("a")])
        fork = session.fork().fork(at=2)
        fork.append([user("q"), assistant("b")])
        assert [entry.message.text for entry in fork.hydrate().seeds] == ["1", "2"]
        assert fork.verify() == []

    def test_an_input_in_the_place_of_a_seed_is_an_input(self, store: Store) -> None:
        """Rewound below the seeds, what follows is no seed; or the rewind is refused."""
        session = store.start(seeds=[system("s"), user("earlier")])
        with contextlib.suppress(OakleafError):
            session.rewind(0)
        session.turn("a real input").__enter__()
        again = store.session(session.session_id)
        assert again.log.cursor.turn == again.leaf.seq
        assert again.verify() == []
        with again.turn() as turn:
            turn.answer(assistant("goes on"))
