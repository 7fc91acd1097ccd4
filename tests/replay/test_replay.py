"""Replays: the same again without effects, something else without guesses, and a source nobody touched."""

from __future__ import annotations

import asyncio
import io
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import (
    Broken,
    Limits,
    Note,
    ReplayReport,
    ScriptedModel,
    Session,
    Slow,
    ToolCall,
    ToolContext,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.codec import chain_id
from oakleaf.core.drafts import Draft, NewEntry
from oakleaf.core.entries import Entry
from oakleaf.errors import InvalidPosition, InvalidReplay, NotFound, SessionIsReplay, TurnLimit
from oakleaf.store import Store
from oakleaf.stores.base import Change
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.wire import PROVIDERS, Answer
from support.random_logs import SOAK, TOOL_SETS, paths
from support.random_recordings import TOOLS, Turn, answers, record, scripts
from support.runtime import deterministic_runtime
from support.sessions import tasks_of

MANY = settings(max_examples=2_000 if SOAK else 25, deadline=None)


def without_media(payload: Any) -> Any:
    """The same payload, words where its media stand: their bytes are in no store."""
    if not isinstance(payload, oakleaf.Message):
        return payload
    parts: list[Any] = []
    for part in payload.parts:
        if isinstance(part, oakleaf.ToolResult):
            content = tuple(
                oakleaf.Text("media") if isinstance(piece, oakleaf.Media) else piece for piece in part.content
            )
            part = msgspec.structs.replace(part, content=content)
        parts.append(oakleaf.Text("media") if isinstance(part, oakleaf.Media) else part)
    return msgspec.structs.replace(payload, parts=tuple(parts))


def texts(session: Session) -> list[str]:
    """What a model would read, message by message; results one by one."""
    lines: list[str] = []
    for item in session.context().items:
        message = item.message
        lines.extend(str(result.content) for result in message.results)
        lines.extend([f"{message.role} {message.text}"] if message.role != "tool" else [])
    return lines


class Desk:
    """A shop's tools with a memory of what they did."""

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []

    def tools(self, **how: Any) -> list[oakleaf.Tool]:
        @oakleaf.tool(effect="read")
        def look(order: int) -> dict[str, Any]:
            """Look an order up."""
            self.did.append(("look", order))
            return {"order": order, "n": len(self.did)}

        @oakleaf.tool(**how)
        def refund(order: int, ctx: ToolContext) -> str:
            """Give the money back."""
            self.did.append(("refund", order))
            ctx.update(refunded=order)
            return "refunded"

        return [look, refund]


def ask(*calls: tuple[str, int]) -> Any:
    return assistant(*(ToolCall(f"c{n}", name, {"order": order}) for n, (name, order) in enumerate(calls)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def session(store: Store, desk: Desk) -> Session:
    """Two turns: a look, then a refund."""
    session = store.start("support", [system("You help.")], title="a refund")
    model = ScriptedModel([ask(("look", 41)), "It is lost.", ask(("refund", 41)), "Refunded."], model="old")
    session.send_sync("Where is 41?", model=model, tools=desk.tools())
    session.send_sync("Refund it.", model=model, tools=desk.tools())
    desk.did.clear()
    return session


def ids(session: Session) -> list[bytes]:
    return [entry.entry_id for entry in session.path()]


def results(session: Session) -> list[Any]:
    return [entry.message.results[0] for entry in session.path() if entry.role == "tool"]


def replayed(store: Store, report: ReplayReport) -> Session:
    session = store.session(report.replay)
    assert session.verify() == []
    return session


class TestStrict:
    def test_it_comes_out_identical(self, store: Store, session: Session, desk: Desk) -> None:
        report = session.replay_sync()
        assert report.mode == "strict"
        assert report.is_same
        assert report.is_identical
        assert [row.kind for row in report.rows] == ["same", "same"]
        assert ids(replayed(store, report)) == ids(session)
        assert replayed(store, report).state == session.state
        assert desk.did == []

    @pytest.mark.parametrize("before", [[], [ask(("look", 1))]], ids=["first answer", "after a tool"])
    def test_a_turn_that_broke_off_and_was_resumed_is_the_same(
        self, store: Store, desk: Desk, before: list[Any]
    ) -> None:
        session, limits = store.start(), Limits(tries=1)
        model = ScriptedModel([*before, Broken("Half an answ")])
        session.send_sync("q", model=model, tools=desk.tools(), limits=limits)
        session.resume_sync(model=ScriptedModel(["Whole."]), tools=desk.tools(), limits=limits)
        report = session.replay_sync()
        assert [row.kind for row in report.rows] == ["same"]
        assert (report.is_same, report.stop_reason) == (True, None)

    def test_a_recorded_answer_is_no_model_call(self, store: Store, session: Session) -> None:
        report = session.replay_sync()
        assert report.usage_before.calls == 4
        assert report.usage_after == oakleaf.Totals()
        assert replayed(store, report).model_calls() == []

    def test_results_land_in_the_order_they_landed(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(*(ToolCall(f"c{n}", "f", {"n": n}) for n in range(4)))])
        session.append([tool_result(f"c{n}", f"r{n}") for n in (2, 0, 3, 1)])
        session.append([assistant("done")])
        assert session.replay_sync().is_identical

    def test_results_that_came_in_one_entry_are_the_same_one_by_one(self, store: Store) -> None:
        session = store.start()
        both = oakleaf.Message("tool", (*tool_result("a", "1").parts, *tool_result("b", "2").parts))
        session.append(
            [user("first"), assistant(ToolCall("a", "f"), ToolCall("b", "g")), both, assistant("x" * 99)]
        )
        session.append([user("second"), assistant("y")])
        session.compact("short")
        session.append([user("third"), assistant("z")])
        report = session.replay_sync()
        assert report.is_same
        assert not report.is_identical
        replay = replayed(store, report)
        assert [item.message.text for item in replay.context().items] == [
            item.message.text for item in session.context().items
        ]

    def test_a_replay_may_be_longer_than_its_source(self, store: Store) -> None:
        session = store.start()
        calls = [ToolCall(f"c{n}", "f", {"n": n}) for n in range(9)]
        together = [part for call in calls for part in tool_result(call.id, "r").parts]
        session.append([user("first"), assistant(*calls), oakleaf.Message("tool", tuple(together))])
        session.append([assistant("x" * 99), user("second"), assistant("y")])
        session.compact("short")
        report = session.replay_sync()
        assert report.is_same
        replay = replayed(store, report)
        assert replay.leaf.seq == session.leaf.seq + 8
        assert texts(replay) == texts(session)

    def test_a_session_that_waits_is_replayed_up_to_where_it_waits(self, store: Store, desk: Desk) -> None:
        session = store.start()
        model = ScriptedModel([ask(("look", 1)), ask(("refund", 1))])
        session.send_sync("q", model=model, tools=desk.tools(approval=True))
        assert session.open_tool_calls
        report = session.replay_sync()
        assert report.until == 4
        assert report.is_same
        assert replayed(store, report).row.status == "completed"

    def test_a_cancelled_turn_is_the_same_again(self, store: Store) -> None:
        session = store.start()

        async def cancel_it() -> None:
            run = session.send("q", model=ScriptedModel([Slow(30, "never")]))
            async for event in run:
                if event.type == "session:turn_started":
                    run.cancel()

        asyncio.run(cancel_it())
        session.send_sync("again", model=ScriptedModel(["Yes."]))
        assert session.replay_sync().is_identical

    def test_tools_that_were_not_there_or_not_allowed_are_the_same_again(
        self, store: Store, desk: Desk
    ) -> None:
        session = store.start()
        session.set(tools=("look",))
        model = ScriptedModel([ask(("refund", 1), ("nothing", 2)), "No.", ask(("look", 1)), "Yes."])
        session.send_sync("q", model=model, tools=desk.tools())
        session.send_sync("q", model=model, tools=desk.tools())
        assert session.replay_sync(tools=desk.tools()).is_identical

    def test_more_turns_and_rounds_than_a_session_has_by_default(self, store: Store) -> None:
        session = store.start()
        for n in range(60):
            session.append([user(f"q{n}"), assistant(f"a{n}")])
        session.append([user("long")])
        for n in range(60):
            session.append([assistant(ToolCall("c", "f", {"n": n})), tool_result("c", "r")])
        session.append([assistant("done")])
        report = session.replay_sync()
        assert report.is_identical
        assert (report.turns, report.total_turns) == (61, 61)

    @pytest.mark.parametrize("limits", [{"rounds": 2}, {"turns": 2}, {"context_tokens": 230}])
    def test_limits_set_in_the_session_do_not_cut_it_short_again(
        self, store: Store, desk: Desk, limits: dict[str, int]
    ) -> None:
        """What they did is in the recording: a turn closed with words, a summary, an input that was refused."""
        session = store.start()
        session.set(limits=limits)
        for n in range(2):
            model = ScriptedModel([ask(("look", n)), ask(("look", n)), f"answer {n}"])
            with suppress(TurnLimit):
                session.send_sync(f"question {n}", model=model, tools=desk.tools())
        fork = session.fork()
        with suppress(TurnLimit):
            fork.send_sync("and more?", model=ScriptedModel(["No."]))
        for each in (session, fork):
            report = each.replay_sync()
            assert report.stop_reason is None
            assert report.is_identical

    def test_notes_made_while_calls_were_open_come_between_their_results(self, store: Store) -> None:
        """They once came behind them, and the state was another where both had set the same."""
        session = store.start()
        session.append([user("q"), assistant(*(ToolCall(f"c{n}", "f", {"n": n}) for n in range(3)))])
        for n in (2, 0, 1):
            session.note({"before": n}, state={"latest": "note"})
            session.append([tool_result(f"c{n}", "r", details={"state": {"latest": n}})])
        session.note({"before": "the answer"})
        session.append([assistant("done")])
        report = session.replay_sync()
        assert report.is_identical
        assert replayed(store, report).state == {"latest": 1}

    def test_what_a_newer_oakleaf_wrote_is_left_out(self, store: Store) -> None:
        """It is kept whole and cannot be written by us: the replay once broke off there."""
        session = store.start("a", [system("s")])
        session.append([user("first"), assistant("x" * 99)])
        written_by_a_newer(session)
        session.append([user("second"), assistant("y" * 99)])
        session.compact("short")
        session.append([user("third"), assistant("z")])
        report = session.replay_sync()
        assert report.is_same
        assert report.stop_reason is None
        assert texts(replayed(store, report)) == texts(session)

    def test_twice_the_length_is_twice_the_work(self) -> None:
        """Each answer once built the whole context again: 57,000 entries took longer than anybody waits."""
        short, long = (work_of_replaying(turns) for turns in (50, 100))
        assert long < 2.2 * short

    def test_a_long_turn_is_no_more_work_than_many_short_ones(self) -> None:
        short, long = (work_of_replaying(1, steps=steps) for steps in (100, 200))
        assert long < 2.2 * short

    @MANY
    @given(scripts)
    def test_random_sessions_come_out_identical(self, script: list[Turn]) -> None:
        with Store(MemoryStore(), deterministic_runtime()) as store:
            session = record(store, script)
            report = session.replay_sync()
            reloaded = store.session(report.replay)
            assert report.is_same, "\n".join(report.lines())
            assert ids(reloaded) == ids(session)
            assert reloaded.state == session.state
            assert reloaded.context().items == session.context().items
            assert reloaded.verify() == []
            assert oakleaf.diff(session, reloaded).is_same
            assert report.effects_sent == 0
            assert report.is_source_unchanged

    @MANY
    @given(paths())
    def test_whatever_a_host_may_have_written_is_the_same_again(self, path: list[Entry]) -> None:
        """Answers of no turn, system messages anywhere, results by the handful, odd ids, malformed arguments."""
        seeds = sum(1 for entry in path if entry.role == "user" and not entry.turn)
        first = next((entry.seq for entry in path if entry.turn), len(path) + 1) - 1 if seeds else 0
        with Store(MemoryStore(), deterministic_runtime()) as store:
            for tools in TOOL_SETS:
                store.backend.put_blob(tools.blob, 0)
            session = store.start("host", [without_media(entry.payload) for entry in path[:first]])
            for entry in path[first:]:
                payload = without_media(entry.payload)
                if isinstance(payload, oakleaf.Compaction):  # where the log itself would have put it
                    first_kept = session.log.place(payload.first_kept - 1).at + 1
                    payload = msgspec.structs.replace(payload, first_kept=first_kept)
                session.log.append([Draft(payload, evidence=entry.evidence)])
            report = session.replay_sync()
            reloaded = store.session(report.replay)
            assert reloaded.verify() == session.verify()
            assert report.is_same, "\n".join(report.lines())
            assert report.missed_calls == ()
            cut = session.fork(at=report.until)
            assert texts(reloaded) == texts(cut)
            assert reloaded.state == cut.state

    @MANY
    @given(scripts, st.data())
    def test_from_any_place_it_comes_out_identical(self, script: list[Turn], data: st.DataObject) -> None:
        with Store(MemoryStore(), deterministic_runtime()) as store:
            session = record(store, script)
            at = data.draw(st.integers(0, session.leaf.seq))
            report = session.replay_sync(start=at)
            assert report.is_identical, "\n".join(report.lines())
            assert report.cut.requested == at
            assert store.session(report.replay).verify() == []


def written_by_a_newer(session: Session) -> None:
    """An entry of a kind this version does not know, put in as a newer one would."""
    cursor, body = session.log.cursor, b'{"depth":3}'
    entry_id = chain_id(cursor.entry_id, "mood", cursor.turn, cursor.step, body)
    entry = NewEntry(cursor.seq + 1, entry_id, cursor.turn, cursor.step, "mood", None, True, 0, body)
    change = Change(session_id=session.session_id, key="newer", at=0, after=session.leaf, entries=(entry,))
    session.log.store.commit(change)
    session.refresh()


def work_of_replaying(turns: int, steps: int = 2) -> int:
    """Function calls, in all threads, of a strict replay: work measured without a clock."""
    with Store(MemoryStore(), deterministic_runtime()) as store:
        session = store.start("support", [system("You help.")])
        for n in range(turns):
            session.append([user(f"q{n}")])
            for step in range(steps):
                session.append([assistant(ToolCall("c", "look", {"n": step})), tool_result("c", "r")])
                session.append([Note({"n": step})])
            session.append([assistant(f"a{n}")])
        with counted_calls() as count:
            report = session.replay_sync()
        assert report.is_identical
        return count()


@contextmanager
def counted_calls() -> Iterator[Callable[[], int]]:
    counts: Counter[str] = Counter()

    def see(frame: FrameType, event: str, argument: object) -> None:
        counts[event] += 1

    before = sys.getprofile()
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield lambda: counts["call"] + counts["c_call"]
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


class TestSource:
    def test_its_rows_are_untouched(self, tmp_path: Path, desk: Desk) -> None:
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as store:
            session = store.start("support", [system("You help.")])
            model = ScriptedModel([ask(("look", 41), ("refund", 41)), "Done."])
            session.send_sync("q", model=model, tools=desk.tools())
            before = raw_rows(place, session.session_id)
            session.replay_sync()
            session.replay_sync(model=ScriptedModel(["Else."]), prompt="Another.")
            session.replay_sync(live=["refund"], tools=desk.tools())
            assert raw_rows(place, session.session_id) == before
            assert session.verify() == []

    def test_the_report_says_so(self, session: Session) -> None:
        report = session.replay_sync()
        assert report.is_source_unchanged
        assert report.source_before == report.source_after

    def test_it_says_if_somebody_else_touched_it(self, session: Session) -> None:
        report = session.replay_sync(progress=lambda n, of: session.title(f"{n} of {of}"))
        assert not report.is_source_unchanged

    def test_a_crash_in_the_middle_leaves_it_as_it_was(self, tmp_path: Path) -> None:
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as store:
            session = record(store, [Turn("go", ((("look", 1),),), "a"), Turn("go", ((("send", 1),),), "b")])
            before = raw_rows(place, session.session_id)
        script = f"""
            import os, oakleaf
            store = oakleaf.open({str(place)!r})
            def model(request):
                if len(request.messages) > 4:
                    os.kill(os.getpid(), 9)
                return "something else"
            source = store.session({session.session_id!r})
            source.replay_sync(model=oakleaf.ScriptedModel(model))
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
        assert done.returncode == -9
        assert raw_rows(place, session.session_id) == before
        with oakleaf.open(place) as store:
            (row,) = store.sessions(relation="replay").sessions
            reloaded = store.session(row.session_id)
            assert reloaded.verify() == []
            assert reloaded.row.status == "running"
            assert store.session(session.session_id).replay_sync().is_identical
            store.delete(row.session_id)
            store.purge(row.session_id)
            assert raw_rows(place, session.session_id) == before


def raw_rows(place: Path, session_id: str) -> str:
    """A hash over every row of the file that is the session's, read behind the library's back."""
    own = "(select number from session where id = :id)"
    tables = {
        "session": "id = :id",
        "session_detail": f"session_number in {own}",
        "branch": f"session_number in {own}",
        "entry": f"id >> 32 in (select id from branch where session_number in {own})",
        "journal": f"id >> 32 in {own}",
        "usage": f"id >> 32 in {own}",
    }
    digest = sha256()
    with sqlite3.connect(place) as file:
        for table, where in tables.items():
            rows = file.execute(
                f"select * from {table} where {where} order by 1", {"id": session_id}
            ).fetchall()
            assert rows, table
            digest.update(repr(rows).encode())
    file.close()
    return digest.hexdigest()


class TestRow:
    def test_it_is_a_replay_of_its_source_and_never_the_latest(self, store: Store, session: Session) -> None:
        row = replayed(store, session.replay_sync(start=5)).row
        assert (row.relation, row.parent_session, row.parent_seq) == ("replay", session.session_id, 5)
        assert row.status == "completed"
        assert row.conversation_id != session.row.conversation_id
        latest = store.latest(session.row.conversation_id)
        assert latest is not None
        assert latest.session_id == session.session_id

    def test_it_has_no_owner_unless_an_owner_makes_it(self) -> None:
        memory = MemoryStore()
        ann = Store(memory.for_tenant("default", "ann"), deterministic_runtime())
        session = ann.start()
        session.append([user("q"), assistant("a")])
        of_service = Store(memory, ann.runtime).session(session.session_id).replay_sync()
        with pytest.raises(NotFound):
            ann.session(of_service.replay)

    def test_an_owner_can_replay_its_own(self) -> None:
        ann = Store(MemoryStore(owner="ann"), deterministic_runtime())
        session = ann.start()
        session.append([user("q"), assistant("a")])
        report = session.replay_sync()
        assert ann.session(report.replay).row.owner == "ann"

    def test_it_is_not_driven_on(self, store: Store, session: Session) -> None:
        replay = replayed(store, session.replay_sync())
        with pytest.raises(SessionIsReplay):
            replay.send_sync("more", model=ScriptedModel(["a"]))
        assert ids(replay) == ids(session)
        fork = replay.fork()
        fork.send_sync("more", model=ScriptedModel(["a"]))
        assert fork.row.relation == "fork"

    def test_a_fork_and_a_replay_can_be_replayed(self, store: Store, session: Session) -> None:
        fork = session.fork(at=5, prompt="Be brief.")
        fork.send_sync("And now?", model=ScriptedModel(["Now."]))
        once = fork.replay_sync()
        assert once.is_identical
        twice = replayed(store, once).replay_sync()
        assert twice.is_identical
        assert ids(replayed(store, twice)) == ids(fork)


class TestFrom:
    def test_in_the_middle_of_a_turn_that_turn_goes_on(self, store: Store, session: Session) -> None:
        model = ScriptedModel(["It is not lost."])
        report = session.replay_sync(model=model, start=5)
        replay = replayed(store, report)
        assert ids(replay)[:5] == ids(session)[:5]
        assert replay.path()[6].message.text == "It is not lost."
        assert replay.path()[6].turn == 3
        assert report.first_divergence.kind == "reworded"
        assert report.first_divergence.turn_a == 3

    def test_right_behind_an_input_it_is_answered_anew(self, store: Store, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel(["No idea."] * 2), start=3)
        replay = replayed(store, report)
        assert [entry.message.text for entry in replay.transcript()] == [
            "Where is 41?",
            "No idea.",
            "Refund it.",
            "No idea.",
        ]

    def test_between_a_call_and_its_result_it_moves_and_says_so(self, session: Session) -> None:
        report = session.replay_sync(start=4)
        assert (report.cut.at, report.cut.requested) == (3, 4)
        assert report.is_identical
        assert "requested 4" in "\n".join(report.lines())

    def test_the_seeds_are_always_kept(self, session: Session) -> None:
        assert session.replay_sync(start=0).cut.at == 1

    def test_a_place_that_is_not_there_is_refused(self, session: Session) -> None:
        with pytest.raises(InvalidPosition):
            session.replay_sync(start=99)

    def test_calls_of_the_kept_part_are_not_given_twice(self, store: Store, desk: Desk) -> None:
        session = store.start()
        script = [ask(("look", 1)), ask(("look", 1)), "Done."]
        session.send_sync("q", model=ScriptedModel(script), tools=desk.tools())
        report = session.replay_sync(model=ScriptedModel(script[1:]), start=4)
        assert report.is_same
        assert [result.content for result in results(replayed(store, report))] == [
            result.content for result in results(session)
        ]

    def test_a_negative_place_is_refused(self, session: Session) -> None:
        with pytest.raises(InvalidReplay, match="start"):
            session.replay_sync(start=-1)


class TestRecordedTools:
    def test_another_model_gets_the_recorded_results(
        self, store: Store, session: Session, desk: Desk
    ) -> None:
        model = ScriptedModel([ask(("look", 41)), "Lost!", ask(("refund", 41)), "Money back!"], model="new")
        report = session.replay_sync(model=model, tools=desk.tools())
        assert [row.kind for row in report.rows] == ["reworded", "reworded"]
        assert (report.recorded_results, report.missed_calls, report.effects_sent) == (2, (), 0)
        assert (report.model_before, report.model_after) == (("old",), ("new",))
        assert replayed(store, report).state == {"refunded": 41}
        assert desk.did == []

    def test_another_model_is_compared_with_the_call_that_waits(self, store: Store, desk: Desk) -> None:
        session = store.start()
        waiting = [ask(("look", 1)), ask(("refund", 1))]
        session.send_sync("q", model=ScriptedModel(waiting), tools=desk.tools(approval=True))
        report = session.replay_sync(model=ScriptedModel([ask(("look", 1)), "I do not refund."]))
        assert report.first_divergence is not None
        assert report.first_divergence.kind == "tool changed"
        assert report.first_divergence.expected == 'refund({"order":1})'
        assert report.first_divergence.actual == "I do not refund."
        assert report.rows == oakleaf.diff(session, replayed(store, report)).rows
        assert report.usage_before == session.usage()

    def test_without_definitions_it_is_told_of_the_tools_by_their_recorded_calls(self, store: Store) -> None:
        session = store.start()
        for name in ("look", "refund"):
            result = tool_result("c0", "done")
            session.append([user(name), ask((name, 41)), result, assistant("ok")])
        model = ScriptedModel(["Lost.", "No."])
        session.replay_sync(model=model)
        specs = {spec.name: spec.parameters for spec in model.requests[0].tools}
        assert specs.keys() == {"look", "refund"}
        assert specs["look"] == {"type": "object", "properties": {"order": {"type": "integer"}}}

    def test_handed_in_tools_are_what_it_is_told_of(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41)), "Lost.", "No."])
        session.replay_sync(model=model, tools=desk.tools())
        assert [spec.description for spec in model.requests[0].tools] == [
            "Look an order up.",
            "Give the money back.",
        ]

    def test_the_order_of_keys_does_not_matter(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "f", {"a": 1, "b": {"c": 1, "d": 2}}))])
        session.append([tool_result("c", "r"), assistant("done")])
        other = assistant(ToolCall("x", "f", {"b": {"d": 2, "c": 1}, "a": 1}))
        report = session.replay_sync(model=ScriptedModel([other, "done"]))
        assert report.is_same

    def test_a_recorded_error_replays_as_an_error(self, store: Store) -> None:
        session = record(store, [Turn("go", ((("fail", 1),),), "a")])
        model = ScriptedModel([assistant(ToolCall("z", "fail", {"n": 1})), "a 0"])
        report = session.replay_sync(model=model)
        (result,) = results(replayed(store, report))
        assert result.error
        assert result.content[0].text == "ValueError: no 1"
        assert report.is_same

    def test_a_tool_that_ended_the_turn_ends_it_again(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "hand_over"))])
        session.append([tool_result("c", "to a person", ends_turn=True)])
        session.append([user("thanks"), assistant("bye")])
        report = session.replay_sync(model=ScriptedModel([assistant(ToolCall("x", "hand_over")), "bye"]))
        assert report.is_same

    def test_a_result_is_of_its_own_turn(self, store: Store, desk: Desk) -> None:
        """The second turn skipped nothing: it must not get what the first one found, nor the first the second's."""
        session = store.start()
        script = [ask(("look", 1)), "a", ask(("look", 1)), "b"]
        model = ScriptedModel(script)
        for _ in range(2):
            session.send_sync("q", model=model, tools=desk.tools())
        then = results(session)[1].content
        report = session.replay_sync(model=ScriptedModel(["a", *script[2:]]))
        assert results(replayed(store, report))[0].content == then
        report = session.replay_sync(model=ScriptedModel([ask(("look", 1), ("look", 1)), "a"]))
        assert report.missed_calls == ("look",)


class TestMiss:
    def script(self) -> list[Any]:
        return [ask(("look", 42)), "Lost.", ask(("refund", 41)), "Refunded."]

    def test_it_is_a_divergence_and_ends_the_replay(self, store: Store, session: Session, desk: Desk) -> None:
        model = ScriptedModel(self.script())
        report = session.replay_sync(model=model, tools=desk.tools())
        assert report.stop_reason == "look was not recorded"
        assert (report.turns, report.total_turns) == (1, 2)
        assert report.first_divergence.kind == "arguments changed"
        assert (report.first_divergence.expected, report.first_divergence.actual) == (
            '{"order":41}',
            '{"order":42}',
        )
        assert [row.kind for row in report.rows] == ["arguments changed", "missing"]
        (result,) = results(replayed(store, report))
        assert (result.outcome, result.error, result.ends_turn) == ("not_recorded", True, True)
        assert "nothing was done" in result.content[0].text
        assert len(model.requests) == 1
        assert desk.did == []
        assert not report.is_same

    def test_the_cost_is_compared_for_what_was_fed(self, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel(self.script()))
        assert report.usage_before == session.usage(by="turn")[3]
        assert report.usage_change["calls"] == -1

    def test_it_may_go_on_with_the_next_input(self, store: Store, session: Session) -> None:
        script = self.script()
        model = ScriptedModel([script[0], *script[2:]])
        report = session.replay_sync(model=model, on_miss="next")
        assert report.stop_reason is None
        assert report.turns == 2
        assert [row.kind for row in report.rows] == ["arguments changed", "same"]
        assert not report.is_same

    def test_the_model_may_be_told(self, store: Store, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel(self.script()), on_miss="continue")
        assert [entry.message.text for entry in replayed(store, report).transcript()][1::2] == [
            "Lost.",
            "Refunded.",
        ]
        assert report.missed_calls == ("look",)
        for provider in PROVIDERS:
            assert "[not recorded: in this replay nothing was done]" in str(
                replayed(store, report).messages(provider)
            )

    def test_calls_beside_it_keep_their_results(self, store: Store, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel([ask(("look", 41), ("refund", 7))]))
        assert [result.outcome for result in results(replayed(store, report))] == ["done", "not_recorded"]
        assert report.first_divergence.kind == "tool changed"

    def test_a_model_that_fails_stops_it_and_says_why(self, store: Store, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel([ask(("look", 41)), "Lost."]))
        assert "no more lines" in report.stop_reason
        assert replayed(store, report).row.status == "interrupted"


class TestOverrides:
    def test_a_prompt_holds_for_the_whole_replay(self, store: Store) -> None:
        session = store.start("s", [system("You help.")])
        session.append([user("q"), assistant("a")])
        session.set(prompt="Later.", model="other")
        session.append([user("q"), assistant("a")])
        model = ScriptedModel(["a", "a"], model="new")
        report = session.replay_sync(model=model, prompt="Be strict.")
        assert [request.system for request in model.requests] == ["Be strict."] * 2
        assert report.is_same
        assert [one.name for one in report.diff.setup] == ["prompt", "model"]

    def test_options_hold_for_the_whole_replay_and_the_report_tells_what_changed(self, store: Store) -> None:
        session = store.start("s")
        session.set(options={"temperature": 0, "seed": 7})
        session.append([user("q"), assistant("a")])
        session.set(options={"temperature": 0.5, "stop": "END"})
        session.append([user("q"), assistant("a")])
        model = ScriptedModel(["a", "a"], model="new")
        report = session.replay_sync(model=model, options={"temperature": 1, "seed": None})
        options = [request.context.settings.options for request in model.requests]
        assert options == [{"temperature": 1}, {"temperature": 1, "stop": "END"}]
        assert report.is_same
        assert [str(one.name) for one in report.diff.setup] == ["model", "seed", "temperature"]
        for words in ("temperature 0.5 → 1", "seed 7 → (default)"):
            assert words in report.lines()
            assert words in oakleaf.diff(session, replayed(store, report)).lines()
        assert "- temperature 0.5 → 1" in report.markdown()

    def test_another_prompt_or_option_alone_is_answered_by_the_recorded_model(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "s.json").write_text('["a", "b"]')
        monkeypatch.setenv("OAKLEAF_MODEL", f"scripted:{tmp_path}/s.json")
        session = store.start("s")
        session.send_sync("q", model=f"scripted:{tmp_path}/s.json")
        report = session.replay_sync(prompt="Be strict.")
        assert (report.mode, report.model_after) == ("recorded", (f"scripted:{tmp_path}/s.json",))
        assert replayed(store, report).context().system == ("Be strict.",)
        assert session.replay_sync(options={"temperature": 0}).usage_after.calls == 1
        other = store.start("s")
        other.send_sync("q", model=ScriptedModel(["a"], model="mine"))
        with pytest.raises(InvalidReplay, match=r"the recorded one \(mine\) cannot be called") as excinfo:
            other.replay_sync(prompt="Be strict.")
        assert "--model" in excinfo.value.command_text

    def test_without_an_answer_the_question_stays_open_but_a_call_never_recorded_is_a_difference(
        self, store: Store, session: Session
    ) -> None:
        silent = session.replay_sync(model=ScriptedModel([ask(("look", 41)), "Lost."]))
        assert (silent.is_unanswered, silent.is_same) == (True, False)
        assert silent.lines()[-1].startswith("unknown: scripted gave no answer")
        assert "no more lines" in oakleaf.diff(session, replayed(store, silent)).incomplete
        assert oakleaf.diff((session, 1), (replayed(store, silent), 1)).incomplete is None
        missed = session.replay_sync(model=ScriptedModel([ask(("look", 41), ("refund", 7))]))
        assert (missed.is_unanswered, missed.is_same, missed.lines()[-1]) == (False, False, "different")
        assert oakleaf.diff(session, replayed(store, missed)).incomplete is None

    def test_a_patch_is_added(self, session: Session) -> None:
        model = ScriptedModel(["a", "b"])
        session.replay_sync(model=model, prompt_patch="Never refund.")
        assert model.requests[0].context.system == ("You help.", "Never refund.")

    def test_a_patch_is_added_to_every_prompt_that_is_recorded_on_the_path(self, store: Store) -> None:
        """Those were dropped: the model got the patch alone, and was compared with one that had a prompt."""
        session = store.start()
        session.set(prompt="You help.")
        session.append([user("q"), assistant("a")])
        session.set(prompt_patch="Be kind.")
        session.append([user("r"), assistant("b")])
        session.set(prompt="You sell.", prompt_patch="Be quick.")
        session.append([user("s"), assistant("c")])
        model = ScriptedModel(["a", "b", "c"])
        session.replay_sync(model=model, prompt_patch="Never refund.")
        assert [request.context.system for request in model.requests] == [
            ("You help.", "Never refund."),
            ("You help.", "Never refund.\n\nBe kind."),
            ("You sell.", "Be quick.\n\nNever refund."),
        ]

    def test_the_host_s_notes_come_back_and_its_summaries_do_not(self, store: Store) -> None:
        session = store.start()
        session.append([user("long " * 50), assistant("a " * 50)])
        session.note({"x": 1}, state={"k": 1})
        session.append([user("q"), assistant("a")])
        session.compact("short")
        session.append([user("r"), assistant("b")])
        model = ScriptedModel(["a", "b", "c"])
        report = session.replay_sync(model=model)
        assert replayed(store, report).state == {"k": 1}
        assert len(model.requests[-1].context.items) == 5

    def test_recorded_answers_cannot_follow_another_prompt(self, session: Session) -> None:
        with pytest.raises(InvalidReplay, match="model="):
            session.replay_sync(prompt="Be strict.")

    @pytest.mark.parametrize(
        "how",
        [
            {"mode": "wild"},
            {"on_miss": "guess"},
            {"tools": "real"},
            {"mode": "strict", "model": ScriptedModel([])},
            {"mode": "live"},
            {"live": ["refund"]},
            {"mode": "dry", "live": ["refund"]},
        ],
    )
    def test_what_makes_no_sense_is_refused_before_anything_is_made(
        self, store: Store, session: Session, how: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidReplay):
            session.replay_sync(**how)
        assert store.sessions(relation="replay").sessions == []


class TestDry:
    def test_reads_run_and_the_rest_is_refused(self, store: Store, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 7)), "Lost.", ask(("refund", 7))])
        report = session.replay_sync(model=model, tools=desk.tools(), mode="dry")
        assert desk.did == [("look", 7)]
        assert (report.reads, report.missed_calls, report.effects) == ({"look": 1}, ("refund",), {})

    def test_what_was_recorded_is_not_read_again(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41)), "Lost.", "No."])
        assert session.replay_sync(model=model, tools=desk.tools(), mode="dry").recorded_results == 1
        assert desk.did == []

    def test_a_dry_run_answers_for_its_tool(self, store: Store, session: Session, desk: Desk) -> None:
        def would(order: int, ctx: ToolContext) -> str:
            ctx.update(would_refund=order)
            return f"would refund {order}"

        model = ScriptedModel([ask(("refund", 7)), "Refunded.", "Bye."])
        report = session.replay_sync(model=model, tools=desk.tools(dry_run=would, approval=True), mode="dry")
        replay = replayed(store, report)
        assert results(replay)[0].outcome == "dry_run"
        assert results(replay)[0].content[0].text == "would refund 7"
        assert replay.state == {"would_refund": 7}
        assert report.dry_runs == {"refund": 1}
        assert desk.did == []

    def test_a_dry_run_that_fails_is_an_error(self, store: Store, session: Session, desk: Desk) -> None:
        def would(order: int) -> str:
            raise ValueError("no such order")

        model = ScriptedModel([ask(("refund", 7)), "Hm.", "Bye."])
        report = session.replay_sync(model=model, tools=desk.tools(dry_run=would), mode="dry")
        (result,) = results(replayed(store, report))
        assert (result.error, result.outcome) == (True, "dry_run")

    def test_a_read_that_wants_approval_is_refused(self, session: Session) -> None:
        did: list[int] = []

        @oakleaf.tool(effect="read", approval=True)
        def peek(order: int) -> str:
            """Peeks."""
            did.append(order)
            return "seen"

        report = session.replay_sync(model=ScriptedModel([ask(("peek", 1))]), tools=[peek], mode="dry")
        assert report.missed_calls == ("peek",)
        assert did == []

    def test_a_tool_the_session_does_not_allow_does_not_run(self, store: Store, desk: Desk) -> None:
        session = store.start()
        session.set(tools=("refund",))
        session.append([user("q"), assistant("a")])
        session.replay_sync(model=ScriptedModel([ask(("look", 1))]), tools=desk.tools(), mode="dry")
        assert desk.did == []


class TestLive:
    def test_only_the_named_tools_run(self, store: Store, session: Session, desk: Desk) -> None:
        report = session.replay_sync(live=["look"], tools=desk.tools())
        assert report.mode == "live"
        assert desk.did == [("look", 41)]
        assert (report.reads, report.recorded_results, report.effects_sent) == ({"look": 1}, 1, 0)

    def test_effects_are_counted(self, session: Session, desk: Desk) -> None:
        report = session.replay_sync(live=["refund"], effects="repeat", tools=desk.tools())
        assert desk.did == [("refund", 41)]
        assert report.effects == {"refund": 1}

    def test_another_result_is_a_divergence_and_the_recorded_answers_go_on(self, session: Session) -> None:
        @oakleaf.tool(effect="read")
        def look(order: int) -> str:
            """Looks."""
            return "delivered"

        report = session.replay_sync(live=["look"], tools=[look])
        assert [row.kind for row in report.rows] == ["result changed", "same"]
        assert report.first_divergence.actual == "delivered"
        assert report.stop_reason is None

    def test_a_recorded_approval_counts_and_nothing_waits_for_another(self, store: Store, desk: Desk) -> None:
        session = store.start()
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 1))]), tools=tools)
        session.approve(session.open_tool_calls[0])
        session.resume_sync(model=ScriptedModel(["Done."]), tools=tools)
        assert desk.did == [("refund", 1)]
        assert session.replay_sync(live=["refund"], effects="repeat", tools=tools).effects == {"refund": 1}
        other = ScriptedModel([ask(("refund", 2)), "Done."])
        report = session.replay_sync(live=["refund"], tools=tools, model=other)
        assert (report.effects, report.missed_calls) == ({}, ("refund",))
        assert desk.did == [("refund", 1), ("refund", 1)]

    def test_one_cancelled_while_it_ran_may_have_taken_effect(self, store: Store, session: Session) -> None:
        started = asyncio.Event()

        @oakleaf.tool
        async def refund(order: int) -> str:
            """Takes its time."""
            started.set()
            await asyncio.sleep(30)
            return "refunded"

        async def cancelled() -> None:
            task = asyncio.create_task(session.replay(live=["refund"], effects="repeat", tools=[refund]))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        (row,) = store.sessions(relation="replay").sessions
        assert results(store.session(row.session_id))[-1].outcome == "unknown"

    def test_what_was_denied_stays_denied(self, store: Store, desk: Desk) -> None:
        session = store.start()
        tools = desk.tools(approval=True)
        session.send_sync("q", model=ScriptedModel([ask(("refund", 1))]), tools=tools)
        session.approve(session.open_tool_calls[0], allow=False)
        session.resume_sync(model=ScriptedModel(["Well."]), tools=tools)
        report = session.replay_sync(live=["refund"], tools=tools)
        assert report.is_identical
        assert desk.did == []


class TestTasks:
    def tool(self, text: str) -> oakleaf.Tool:
        @oakleaf.tool
        async def research(topic: str, ctx: ToolContext) -> str:
            """Has a child look into it."""
            return await ctx.task(f"{text} {topic}", models=[ScriptedModel(["It is blue."])])

        return research

    @pytest.fixture
    def parent(self, store: Store) -> Session:
        session = store.start()
        call = assistant(ToolCall("c", "research", {"topic": "sky"}))
        session.send_sync("q", model=ScriptedModel([call, "Blue."]), tools=[self.tool("look into")])
        return session

    def test_a_child_is_not_run_again(self, store: Store, parent: Session) -> None:
        report = parent.replay_sync()
        assert report.is_identical
        assert tasks_of(replayed(store, report)) == []

    def test_a_live_tool_gets_what_its_child_had_answered(self, store: Store, parent: Session) -> None:
        report = parent.replay_sync(live=["research"], effects="repeat", tools=[self.tool("look into")])
        assert report.is_same
        assert len(list(store.all_sessions(relation="task"))) == 1

    def test_the_child_is_found_from_a_fork_and_behind_a_rewind(self, store: Store, parent: Session) -> None:
        parent.rewind(2)
        call = assistant(ToolCall("c", "research", {"topic": "sea"}))
        parent.resume_sync(model=ScriptedModel([call, "Blue."]), tools=[self.tool("look into")])
        for session in (parent, parent.fork()):
            report = session.replay_sync(live=["research"], effects="repeat", tools=[self.tool("look into")])
            assert report.is_same, report.lines()
        assert len(list(store.all_sessions(relation="task"))) == 2

    def test_the_child_of_a_copy_is_its_own(self, store: Store, parent: Session) -> None:
        bundle = io.BytesIO()
        parent.export(bundle)
        bundle.seek(0)
        copy = store.session(store.import_bundle(bundle, new_id=True).session_id)
        store.delete(parent.session_id)
        store.purge(parent.session_id)
        assert copy.replay_sync(live=["research"], effects="repeat", tools=[self.tool("look into")]).is_same

    def test_a_task_that_was_not_recorded_is_refused(self, store: Store, parent: Session) -> None:
        report = parent.replay_sync(live=["research"], effects="repeat", tools=[self.tool("dig into")])
        assert "not recorded" in report.first_divergence.actual
        assert len(list(store.all_sessions(relation="task"))) == 1


class TestUsage:
    def priced(self, store: Store) -> Session:
        session = store.start()
        answer = Answer(assistant("a"), Usage(1_000, 100, 0, 0), None, "openai", "gpt-4o", "stop")
        session.send_sync("q", model=ScriptedModel([answer]))
        return session

    def test_a_replay_is_charged_to_its_own_bucket(self, store: Store) -> None:
        session = self.priced(store)
        spent = session.usage()
        report = session.replay_sync(model=ScriptedModel(["b"]))
        (call,) = replayed(store, report).model_calls()
        assert call.bucket == "replay"
        assert session.usage() == spent == report.usage_before
        assert replayed(store, report).usage() == report.usage_after

    def test_usage_is_conserved(self, store: Store, session: Session) -> None:
        calls = 4  # of the source
        for script in (["a", "b"], [ask(("look", 41)), "a", "b"], [ask(("x", 1))]):
            model = ScriptedModel(script)
            session.replay_sync(model=model)
            calls += len(model.requests)
        session.replay_sync()
        rows = [
            store.session(row.session_id).usage().calls for row in store.all_sessions(include_children=True)
        ]
        assert sum(rows) == calls

    def test_a_failed_call_is_charged_too(self, store: Store, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel([]))
        calls = replayed(store, report).model_calls()
        assert [(call.failed, call.bucket) for call in calls] == [(True, "replay")]


class TestLimits:
    def test_they_hold(self, store: Store, session: Session) -> None:
        report = session.replay_sync(model=ScriptedModel(["a"] * 9), limits=Limits(turns=1))
        assert "turns" in report.stop_reason
        assert report.turns == 2
        assert len(replayed(store, report).transcript()) == 2

    def test_a_turn_that_calls_too_often_is_stopped(self, store: Store, session: Session) -> None:
        model = ScriptedModel(lambda request: ask(("look", 41)))
        report = session.replay_sync(model=model, limits=Limits(rounds=3), on_miss="continue")
        assert "3 times" in report.stop_reason
        assert len(model.requests) == 3

    def test_cancelling_leaves_a_valid_replay(self, store: Store, session: Session) -> None:
        async def cancelled() -> None:
            model = ScriptedModel([ask(("look", 41)), Slow(30, "never")])
            task = asyncio.create_task(session.replay(model=model))
            while len(model.requests) < 2:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        (row,) = store.sessions(relation="replay").sessions
        reloaded = store.session(row.session_id)
        assert reloaded.verify() == []
        assert reloaded.row.status == "cancelled"
        assert reloaded.row.holder is None
        assert reloaded.path()[-1].message.text == "(cancelled)"

    def test_an_interrupt_leaves_a_valid_replay(self, store: Store, session: Session) -> None:
        def interrupted(request: Any) -> str:
            signal.raise_signal(signal.SIGINT)
            return "too late"

        # Started in the background, the tests inherit that SIGINT is ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                session.replay_sync(model=ScriptedModel(interrupted))
        finally:
            signal.signal(signal.SIGINT, before)
        (row,) = store.sessions(relation="replay").sessions
        assert store.session(row.session_id).verify() == []
        assert session.replay_sync().is_identical

    def test_what_is_queued_meanwhile_is_not_taken(self, store: Store, session: Session) -> None:
        def queue(turn: int, of: int) -> None:
            for row in store.sessions(relation="replay").sessions:
                store.session(row.session_id).enqueue("from elsewhere")

        report = session.replay_sync(progress=queue)
        assert report.is_identical

    def test_progress_is_told(self, session: Session) -> None:
        steps: list[tuple[int, int]] = []
        session.replay_sync(progress=lambda turn, of: steps.append((turn, of)))
        assert steps == [(1, 2), (2, 2)]


class TestReport:
    def test_it_is_json_and_comes_back(self, session: Session) -> None:
        for how in ({}, {"model": ScriptedModel([ask(("look", 42))])}):
            report = session.replay_sync(**how)
            assert msgspec.json.decode(msgspec.json.encode(report), type=ReplayReport) == report

    def test_the_same_replay_has_the_same_report(self, session: Session) -> None:
        one, other = (
            session.replay_sync(model=ScriptedModel([ask(("look", 42))])).lines()[1:] for _ in range(2)
        )
        assert one == other

    def test_it_reads_well(self, session: Session, desk: Desk) -> None:
        model = ScriptedModel([ask(("look", 41)), "It is lost.", ask(("escalate", 41))], model="strict")
        report = session.replay_sync(model=model, prompt_patch="Never refund.", tools=desk.tools())
        text = "\n".join(report.lines())
        assert "first divergence: turn 2, entry 8, tool changed (calls)" in text
        assert "effects sent: 0" in text
        assert "source unchanged" in text
        assert "model old -> strict" in text
        assert "| 2 | 2 | Refund it. | tool changed |" in report.markdown()

    def test_content_in_markdown_is_inert(self, store: Store) -> None:
        session = store.start()
        session.append([user("<script>|x|\n# head"), assistant("a")])
        text = session.replay_sync(model=ScriptedModel(["![b](c)"])).markdown()
        assert "<script>" not in text
        assert "\n# head" not in text
        assert "![b]" not in text


def burn(**_: Any) -> Any:
    raise AssertionError("it ran")


@MANY
@given(
    scripts,
    scripts,
    st.sampled_from(["recorded", "dry"]),
    st.sampled_from(["stop", "next", "continue"]),
    st.integers(0, 9),
)
def test_whatever_another_model_does_nothing_happens(
    script: list[Turn], other: list[Turn], mode: Any, on_miss: Any, start: int
) -> None:
    """A model that does not care what was recorded: a valid replay, a source nobody touched, and no effect."""
    lines = [line for number, turn in enumerate(other) for line in answers(turn, number)]
    burning = [
        tool if tool.effect == "read" else msgspec.structs.replace(tool, function=burn) for tool in TOOLS
    ]
    with Store(MemoryStore(), deterministic_runtime()) as store:
        session = record(store, script)
        spent = session.usage()
        model = ScriptedModel(lambda request: lines[len(model.requests) % len(lines)])
        report = session.replay_sync(
            model=model,
            tools=burning,
            mode=mode,
            on_miss=on_miss,
            start=min(start, session.leaf.seq),
            limits=Limits(rounds=6),
        )
        reloaded = store.session(report.replay)
        assert reloaded.verify() == []
        assert report.effects == {}
        assert "it ran" not in str([result.content for result in results(reloaded)])
        assert report.is_source_unchanged
        assert session.usage() == spent
        assert sum(not call.failed for call in reloaded.model_calls()) == len(model.requests)
        assert {call.bucket for call in reloaded.model_calls()} <= {"replay"}
        assert msgspec.json.decode(msgspec.json.encode(report), type=ReplayReport) == report
        assert report.lines()
        assert report.markdown()


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_recorded_tools_are_never_run(store: Store, tool: oakleaf.Tool) -> None:
    """Whatever the model calls, the functions behind the recorded tools are not called."""
    session = record(store, [Turn("go", (((tool.name, 1),),), "a")])
    burning = msgspec.structs.replace(tool, function=burn)
    model = ScriptedModel([assistant(ToolCall("z", tool.name, {"n": n})) for n in (1, 2)])
    report = session.replay_sync(model=model, tools=[burning])
    assert report.missed_calls == (tool.name,)
    assert report.recorded_results == 1
