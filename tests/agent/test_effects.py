"""Effects across branches: what a fork or a rewind leaves behind, and that the same call is not repeated without a decision."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, ToolContext, assistant, tool_result, user
from oakleaf.errors import ApprovalRequired, InvalidArgument, InvalidOperation, InvalidReplay
from oakleaf.store import Store
from support.sessions import tasks_of

REFUND = {"order": 41, "cents": 2000}


class Shop:
    """A tool that refunds, one that only looks, and one that has a task do it."""

    def __init__(self) -> None:
        self.refunds: list[int] = []
        self.looks = 0

    @property
    def refund(self) -> oakleaf.Tool:
        @oakleaf.tool
        def refund(order: int, cents: float) -> str:
            """Refunds."""
            self.refunds.append(order)
            return f"refund {len(self.refunds)} of order {order}"

        return refund

    @property
    def look(self) -> oakleaf.Tool:
        @oakleaf.tool(effect="read")
        def look(order: int) -> str:
            """Looks."""
            self.looks += 1
            return "lost"

        return look

    @property
    def delegate(self) -> oakleaf.Tool:
        @oakleaf.tool(effect="idempotent")
        async def delegate(order: int, ctx: ToolContext) -> str:
            """Has a task refund."""
            return await ctx.task("refund it", models=[refunds(order=order)], tools=[self.refund])

        return delegate

    @property
    def tools(self) -> list[oakleaf.Tool]:
        return [self.refund, self.look, self.delegate]

    def ask(self, session: Session, model: ScriptedModel, **how: Any) -> oakleaf.RunResult:
        return session.send_sync("Refund order 41.", model=model, tools=self.tools, **how)


def call(name: str = "refund", call_id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, arguments or REFUND)


def refunds(order: int = 41, **more: Any) -> ScriptedModel:
    """Refunds once, then says so; whichever process asks."""

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return "It is done." if last.role == "tool" else assistant(call(**{**REFUND, "order": order, **more}))

    return ScriptedModel(answer)


def results(session: Session) -> list[Any]:
    session.refresh()
    return [result for entry in session.path() if entry.message for result in entry.message.results]


def copied(store: Store, session: Session) -> Session:
    """Return the session as another store's bundle brings it, under a new id."""
    bundle = io.BytesIO()
    session.export(bundle)
    bundle.seek(0)
    return store.session(store.import_bundle(bundle, new_id=True).session_id)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def refunded(store: Store, shop: Shop) -> Session:
    """A session that has refunded order 41: input 1, settings, answer 3, result 4, final answer 5."""
    session = store.start("support")
    shop.ask(session, refunds())
    assert shop.refunds == [41]
    return session


def fork(session: Session) -> Session:
    return session.fork(at=0)


def rewind(session: Session) -> Session:
    session.rewind(0)
    return session


def undo(session: Session) -> Session:
    session.undo()
    return session


def summarise(session: Session) -> Session:
    session.rewind(0, summary="A refund was tried.")
    return session


LEAVES: list[Callable[[Session], Session]] = [fork, rewind, undo, summarise]


@pytest.mark.parametrize("leave", LEAVES)
class TestAsking:
    @pytest.mark.attack
    def test_the_same_call_on_another_path_waits_for_a_person(
        self, refunded: Session, shop: Shop, leave: Callable[[Session], Session]
    ) -> None:
        path = leave(refunded)
        shop.ask(path, refunds())
        assert shop.refunds == [41]
        assert path.row.status == "waiting"
        (approval,) = path.pending_approvals()
        assert approval.earlier is not None
        assert approval.earlier.result is not None
        assert approval.earlier.session_id == refunded.session_id
        assert "refund 1 of order 41" in str(approval.earlier.result.content)

    def test_once_approved_it_runs_once(
        self, refunded: Session, shop: Shop, leave: Callable[[Session], Session]
    ) -> None:
        path = leave(refunded)
        shop.ask(path, refunds())
        path.approve(path.pending_approvals()[0])
        assert path.pending_approvals() == []
        path.resume_sync(model=refunds(), tools=shop.tools)
        assert shop.refunds == [41, 41]
        assert path.row.status == "idle"
        assert path.verify() == []

    def test_denied_it_does_not_run(
        self, refunded: Session, shop: Shop, leave: Callable[[Session], Session]
    ) -> None:
        path = leave(refunded)
        shop.ask(path, refunds())
        path.approve(path.pending_approvals()[0], allow=False)
        path.resume_sync(model=refunds(), tools=shop.tools)
        assert shop.refunds == [41]
        assert [result.outcome for result in results(path)] == ["denied"]

    def test_what_is_left_behind_is_said(
        self, refunded: Session, leave: Callable[[Session], Session]
    ) -> None:
        assert refunded.left_behind() == []
        (left,) = leave(refunded).left_behind()
        assert (left.call.name, left.call.arguments, left.seq) == ("refund", REFUND, 3)
        assert left.result is not None
        assert left.result.outcome == "done"

    def test_another_process_that_resumes_asks_no_second_time_and_runs_nothing(
        self, refunded: Session, shop: Shop, store: Store, leave: Callable[[Session], Session]
    ) -> None:
        path = leave(refunded)
        shop.ask(path, refunds())
        for _ in range(2):
            other = store.session(path.session_id)
            other.resume_sync(model=refunds(), tools=shop.tools)
            assert len(other.pending_approvals()) == 1
        kinds = [fact.kind for fact in path.journal()]
        assert (kinds.count("approval_requested"), shop.refunds) == (1, [41])


class TestWhatCounts:
    def test_other_arguments_run_at_once(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        shop.ask(path, refunds(order=42))
        assert shop.refunds == [41, 42]

    def test_the_order_of_keys_and_the_form_of_a_number_make_no_other_call(
        self, refunded: Session, shop: Shop
    ) -> None:
        path = refunded.fork(at=0)
        model = ScriptedModel([assistant(ToolCall("c", "refund", {"cents": 2000.0, "order": 41})), "done"])
        shop.ask(path, model)
        assert (shop.refunds, len(path.pending_approvals())) == ([41], 1)

    def test_a_tool_that_may_run_again_runs_at_once(self, store: Store, shop: Shop) -> None:
        session = store.start()
        lines = [assistant(call("look", order=41)), "lost"]
        shop.ask(session, ScriptedModel(lines))
        session.undo()
        shop.ask(session, ScriptedModel(lines))
        assert (shop.looks, session.left_behind()) == (2, [])

    def test_a_call_that_is_on_the_path_may_be_made_again(self, refunded: Session, shop: Shop) -> None:
        """Within a path the model decides: it sees what it did."""
        shop.ask(refunded, refunds())
        path = refunded.fork()
        shop.ask(path, refunds())
        assert shop.refunds == [41, 41, 41]

    def test_a_decision_holds_for_its_call_only(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        for count in (1, 2):
            shop.ask(path, refunds())
            path.approve(path.pending_approvals()[0])
            path.resume_sync(model=refunds(), tools=shop.tools)
            assert len(shop.refunds) == 1 + count

    def test_what_the_source_does_after_the_fork_is_its_own(self, store: Store, shop: Shop) -> None:
        session = store.start()
        session.append([user("hello"), assistant("hello")])
        path = session.fork()
        shop.ask(session, refunds())
        shop.ask(path, refunds())
        assert (shop.refunds, path.left_behind()) == ([41, 41], [])
        later = session.fork(at=2)
        shop.ask(later, refunds())
        assert (shop.refunds, len(later.pending_approvals())) == ([41, 41], 1)

    def test_a_fork_of_a_fork_asks_about_what_each_left(self, refunded: Session, shop: Shop) -> None:
        middle = refunded.fork(at=0)
        shop.ask(middle, refunds(order=42))
        path = middle.fork(at=0)
        assert {left.call.arguments["order"] for left in path.left_behind()} == {41, 42}
        for order in (41, 42):
            shop.ask(path, refunds(order=order))
            path.approve(path.pending_approvals()[0], allow=False)
            path.resume_sync(model=refunds(), tools=shop.tools)
        assert shop.refunds == [41, 42]

    def test_going_back_to_an_older_branch_asks_about_the_newer_one(self, store: Store, shop: Shop) -> None:
        session = store.start()
        session.append([user("hello"), assistant("hello")])
        first = session.leaf
        session.rewind(0)
        shop.ask(session, refunds())
        session.checkout(first)
        shop.ask(session, refunds())
        assert (shop.refunds, len(session.pending_approvals())) == ([41], 1)

    def test_a_call_that_was_denied_never_ran(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        shop.ask(path, refunds())
        path.approve(path.pending_approvals()[0], allow=False)
        path.resume_sync(model=refunds(), tools=shop.tools)
        again = path.fork(at=0)
        shop.ask(again, refunds())
        (approval,) = again.pending_approvals()
        assert approval.earlier is not None
        assert approval.earlier.session_id == refunded.session_id

    def test_a_call_whose_outcome_is_unknown_counts(self, store: Store, shop: Shop) -> None:
        session = store.start()
        session.append([user("Refund"), assistant(call()), tool_result("c1", "?", outcome="unknown")])
        session.append([assistant("I do not know.")])
        session.undo()
        shop.ask(session, refunds())
        assert (shop.refunds, len(session.pending_approvals())) == ([], 1)

    @pytest.mark.attack
    def test_a_rollback_of_a_call_that_was_started_asks(self, store: Store, shop: Shop) -> None:
        """Killed within the tool, its turn rolled back: whether it took effect is not known."""
        session = store.start()
        with session.turn("Refund order 41.") as turn:
            turn.answer(assistant(call()))
            turn.started(turn.open_tool_calls[0])
        session.resume_sync(model=refunds(), tools=shop.tools, rollback=True)
        (left,) = session.left_behind()
        assert left.result is None
        shop.ask(session, refunds())
        (approval,) = session.pending_approvals()
        assert (shop.refunds, approval.earlier) == ([], left)

    def test_a_rollback_of_a_call_that_was_not_started_asks_nothing(self, store: Store, shop: Shop) -> None:
        @oakleaf.tool(approval=True)
        def refund(order: int, cents: int) -> str:
            """Refunds."""
            shop.refunds.append(order)
            return "done"

        session = store.start()
        session.send_sync("Refund order 41.", model=refunds(), tools=[refund])
        session.resume_sync(model=refunds(), tools=[refund], rollback=True)
        assert session.left_behind() == []
        shop.ask(session, refunds())
        assert shop.refunds == [41]

    def test_a_tool_that_needs_approval_anyway_is_asked_about_once_with_the_earlier_result(
        self, refunded: Session, shop: Shop
    ) -> None:
        @oakleaf.tool(approval=True)
        def refund(order: int, cents: int) -> str:
            """Refunds."""
            shop.refunds.append(order)
            return "done"

        path = refunded.fork(at=0)
        path.send_sync("Refund", model=refunds(), tools=[refund])
        (approval,) = path.pending_approvals()
        assert approval.earlier is not None
        path.approve(approval)
        path.resume_sync(model=refunds(), tools=[refund])
        assert shop.refunds == [41, 41]

    def test_of_parallel_calls_only_the_repeated_one_waits(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        calls = (call(), call("look", "c2", order=41), call("refund", "c3", order=43, cents=1))
        shop.ask(path, ScriptedModel([assistant(*calls), "done"]))
        assert (shop.refunds, shop.looks) == ([41, 43], 1)
        assert [approval.call.id for approval in path.pending_approvals()] == ["c1"]

    def test_after_a_purge_of_the_source_nothing_is_known_and_nothing_asked(
        self, refunded: Session, shop: Shop, store: Store
    ) -> None:
        path = refunded.fork(at=0)
        store.delete(refunded.session_id)
        store.purge(refunded.session_id)
        shop.ask(path, refunds())
        assert (shop.refunds, path.left_behind()) == ([41, 41], [])

    def test_a_secret_argument_compares_by_its_placeholder(self, store: Store, shop: Shop) -> None:
        key = "sk-ant-" + "a1" * 20

        @oakleaf.tool
        def pay(key: str) -> str:
            """Pays."""
            shop.refunds.append(1)
            return "paid"

        session = store.start()
        lines = [assistant(ToolCall("c", "pay", {"key": key})), "done"]
        session.send_sync("Pay", model=ScriptedModel(lines), tools=[pay])
        session.undo()
        session.send_sync("Pay", model=ScriptedModel(lines), tools=[pay])
        assert (shop.refunds, len(session.pending_approvals())) == ([1], 1)


class TestTheSetting:
    @pytest.mark.parametrize("how", ["fork", "set", "send"])
    def test_repeat_runs_it_once_more(self, refunded: Session, shop: Shop, how: str) -> None:
        path = refunded.fork(at=0, effects="repeat" if how == "fork" else None)
        if how == "set":
            path.set(effects="repeat")
        shop.ask(path, refunds(), effects="repeat" if how == "send" else None)
        assert shop.refunds == [41, 41]
        shop.ask(path.fork(at=path.leaf.seq), refunds())
        assert shop.refunds == [41, 41, 41]  # it holds from there on

    @pytest.mark.parametrize("how", ["fork", "set", "send"])
    def test_reuse_answers_with_the_recorded_result_and_marks_it(
        self, refunded: Session, shop: Shop, how: str
    ) -> None:
        path = refunded.fork(at=0, effects="reuse" if how == "fork" else None)
        if how == "set":
            path.set(effects="reuse")
        result = shop.ask(path, refunds(), effects="reuse" if how == "send" else None)
        assert (shop.refunds, result.text) == ([41], "It is done.")
        (reused,) = results(path)
        assert "refund 1 of order 41" in str(reused.content)
        assert reused.details["reused"]["session"] == refunded.session_id
        assert path.verify() == []

    def test_reuse_asks_about_a_call_whose_outcome_is_unknown(self, store: Store, shop: Shop) -> None:
        session = store.start()
        session.append([user("Refund"), assistant(call()), tool_result("c1", "?", outcome="unknown")])
        session.append([assistant("I do not know.")])
        session.undo()
        shop.ask(session, refunds(), effects="reuse")
        assert (shop.refunds, len(session.pending_approvals())) == ([], 1)

    def test_reuse_brings_the_state_that_the_result_set(self, store: Store) -> None:
        @oakleaf.tool
        def count(ctx: ToolContext) -> str:
            """Counts."""
            ctx.update(count=1)
            return "counted"

        session = store.start()
        lines = [assistant(ToolCall("c", "count", {})), "done"]
        session.send_sync("Count", model=ScriptedModel(lines), tools=[count])
        path = session.fork(at=0, effects="reuse")
        assert path.state == {}
        path.send_sync("Count", model=ScriptedModel(lines), tools=[count])
        assert path.state == {"count": 1}

    def test_a_rewind_to_before_it_takes_it_back(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        path.set(effects="repeat")
        path.rewind(0)
        shop.ask(path, refunds())
        assert shop.refunds == [41]

    def test_an_unknown_value_is_refused_in_words(self, refunded: Session, shop: Shop) -> None:
        for attempt in (
            lambda: refunded.fork(effects="never"),  # type: ignore[arg-type]
            lambda: refunded.set(effects="never"),  # type: ignore[arg-type]
            lambda: shop.ask(refunded, refunds(), effects="never"),
        ):
            with pytest.raises(InvalidArgument, match="ask, repeat or reuse"):
                attempt()

    @pytest.mark.attack
    @pytest.mark.parametrize("effects", ["repeat", "reuse"])
    def test_a_setting_that_came_with_a_bundle_decides_nothing(
        self, refunded: Session, shop: Shop, store: Store, effects: Any
    ) -> None:
        refunded.set(effects=effects)
        foreign = copied(store, refunded)
        assert foreign.log.settings().effects == effects
        foreign.rewind(foreign.leaf.seq)
        for path in (foreign.fork(), foreign.fork()):
            path.append([user("Refund"), assistant(call()), tool_result("c1", "refunded there")])
            path.append([assistant("done")])
            path.undo()
            shop.ask(path, refunds())
            assert (shop.refunds, len(path.pending_approvals())) == ([41], 1)

    def test_given_here_it_counts_though_a_bundle_said_the_same(
        self, refunded: Session, shop: Shop, store: Store
    ) -> None:
        refunded.set(effects="repeat")
        foreign = copied(store, refunded)
        path = foreign.fork(effects="repeat")
        path.append([user("Refund"), assistant(call()), tool_result("c1", "done"), assistant("done")])
        path.undo()
        shop.ask(path, refunds())
        assert shop.refunds == [41, 41]

    @pytest.mark.attack
    def test_an_import_says_which_calls_were_made_and_cannot_deny_one(
        self, refunded: Session, shop: Shop, store: Store
    ) -> None:
        foreign = copied(store, refunded)
        foreign.rewind(0)
        shop.ask(foreign, refunds())
        assert (shop.refunds, len(foreign.pending_approvals())) == ([41], 1)


class TestTasks:
    def delegates(self) -> ScriptedModel:
        def answer(request: Any) -> Any:
            last = request.messages[-1]
            return "Done." if last.role == "tool" else assistant(call("delegate", order=41))

        return ScriptedModel(answer)

    @pytest.fixture
    def delegated(self, store: Store, shop: Shop) -> Session:
        session = store.start()
        shop.ask(session, self.delegates())
        assert shop.refunds == [41]
        return session

    @pytest.mark.parametrize("leave", LEAVES)
    def test_the_same_call_of_a_new_task_waits(
        self, delegated: Session, shop: Shop, leave: Callable[[Session], Session]
    ) -> None:
        path = leave(delegated)
        (left,) = path.left_behind()
        assert left.session_id == tasks_of(delegated)[0].session_id
        shop.ask(path, self.delegates())
        assert shop.refunds == [41]
        (approval,) = path.pending_approvals()
        assert approval.earlier == left
        path.approve(approval)
        path.resume_sync(model=self.delegates(), tools=shop.tools)
        assert shop.refunds == [41, 41]

    def test_the_same_call_outside_of_a_task_waits_too(self, delegated: Session, shop: Shop) -> None:
        path = delegated.fork(at=0)
        shop.ask(path, refunds())
        assert (shop.refunds, len(path.pending_approvals())) == ([41], 1)

    @pytest.mark.parametrize("effects", ["repeat", "reuse"])
    def test_the_setting_of_the_session_holds_for_its_tasks(
        self, delegated: Session, shop: Shop, effects: Any
    ) -> None:
        path = delegated.fork(at=0, effects=effects)
        shop.ask(path, self.delegates())
        assert shop.refunds == ([41, 41] if effects == "repeat" else [41])
        assert path.row.status == "idle"

    def test_a_task_on_the_path_is_not_left_behind(self, delegated: Session, shop: Shop) -> None:
        delegated.append([user("hello"), assistant("hello")])
        delegated.undo()
        assert delegated.left_behind() == []
        shop.ask(delegated, refunds())
        assert shop.refunds == [41, 41]

    def test_a_task_that_the_source_starts_after_the_fork_is_its_own(self, store: Store, shop: Shop) -> None:
        session = store.start()
        session.append([user("hello"), assistant("hello")])
        path = session.fork()
        shop.ask(session, self.delegates())
        shop.ask(path, self.delegates())
        assert (shop.refunds, path.left_behind()) == ([41, 41], [])


class TestOwnLoop:
    def run(self, session: Session, shop: Shop, text: str | None) -> None:
        with session.turn(text, tools=shop.tools) as turn:
            if text is not None:
                turn.answer(assistant(call()))
            for open_call in turn.open_tool_calls:
                turn.run(open_call, shop.refund)
            turn.answer(assistant("done"))

    def test_running_the_same_call_raises_and_waits(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        with pytest.raises(ApprovalRequired):
            self.run(path, shop, "Refund")
        with pytest.raises(ApprovalRequired):
            self.run(path, shop, None)
        assert (shop.refunds, path.row.status) == ([41], "waiting")
        (approval,) = path.pending_approvals()
        assert approval.earlier is not None
        assert approval.earlier.result is not None
        path.approve(approval)
        self.run(path, shop, None)
        assert shop.refunds == [41, 41]

    def test_denied_it_has_a_result_that_says_so(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        with pytest.raises(ApprovalRequired):
            self.run(path, shop, "Refund")
        path.approve(path.pending_approvals()[0], allow=False)
        self.run(path, shop, None)
        assert (shop.refunds, [result.outcome for result in results(path)]) == ([41], ["denied"])

    @pytest.mark.parametrize(("effects", "count"), [("repeat", 2), ("reuse", 1)])
    def test_the_setting_decides_without_a_question(
        self, refunded: Session, shop: Shop, effects: Any, count: int
    ) -> None:
        path = refunded.fork(at=0, effects=effects)
        self.run(path, shop, "Refund")
        assert len(shop.refunds) == count
        assert ("reused" in (results(path)[0].details or {})) == (effects == "reuse")

    def test_on_its_own_path_it_runs(self, store: Store, shop: Shop) -> None:
        session = store.start()
        self.run(session, shop, "Refund")
        self.run(session, shop, "Again")
        assert shop.refunds == [41, 41]

    def test_announcing_the_start_of_the_same_call_raises_too(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        with path.turn("Refund", tools=shop.tools) as turn:
            turn.answer(assistant(call("look", "c0", order=41), call()))
            turn.started(turn.open_tool_calls[0])  # it only reads
            turn.result("c0", "lost")
            with pytest.raises(ApprovalRequired):
                turn.started(turn.open_tool_calls[0])
        path.approve(path.pending_approvals()[0])
        with path.turn() as turn:
            turn.started(turn.open_tool_calls[0])
            turn.result("c1", "done")
            turn.answer(assistant("done"))

    def test_the_start_of_a_denied_call_is_refused(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)
        with pytest.raises(ApprovalRequired):
            self.run(path, shop, "Refund")
        path.approve(path.pending_approvals()[0], allow=False)
        with pytest.raises(InvalidOperation, match="was denied"), path.turn() as turn:
            turn.started(turn.open_tool_calls[0])

    def test_without_blocking_the_event_loop_it_raises_too(self, refunded: Session, shop: Shop) -> None:
        path = refunded.fork(at=0)

        async def run() -> None:
            async with path.turn("Refund") as turn:
                await turn.answer(assistant(call()))
                await turn.run(turn.open_tool_calls[0], shop.refund)

        with pytest.raises(ApprovalRequired):
            asyncio.run(run())
        assert shop.refunds == [41]


class TestReplay:
    @pytest.mark.parametrize("mode", ["strict", "recorded", "dry"])
    def test_a_replay_without_effects_is_not_concerned(
        self, refunded: Session, shop: Shop, mode: Any
    ) -> None:
        tools: Any = "recorded" if mode == "strict" else [shop.refund]
        report = refunded.replay_sync(mode=mode, tools=tools)
        assert (shop.refunds, report.missed_calls, report.recorded_results) == ([41], (), 1)
        assert report.is_identical

    def test_live_the_same_call_is_a_divergence(self, refunded: Session, shop: Shop) -> None:
        report = refunded.replay_sync(mode="live", live=["refund"], tools=[shop.refund])
        assert (shop.refunds, report.missed_calls) == ([41], ("refund",))
        assert report.stop_reason == "refund would be repeated"
        assert not report.is_identical

    @pytest.mark.parametrize(("effects", "count"), [("repeat", 2), ("reuse", 1)])
    def test_live_with_a_decision_it_is_none(
        self, refunded: Session, shop: Shop, effects: Any, count: int
    ) -> None:
        report = refunded.replay_sync(mode="live", live=["refund"], tools=[shop.refund], effects=effects)
        assert (len(shop.refunds), report.missed_calls) == (count, ())

    def test_live_another_call_runs(self, refunded: Session, shop: Shop) -> None:
        report = refunded.replay_sync(
            model=refunds(order=42), mode="live", live=["refund"], tools=[shop.refund]
        )
        assert (shop.refunds, report.missed_calls) == ([41, 42], ())

    def test_a_decision_without_a_live_tool_is_refused(self, refunded: Session) -> None:
        with pytest.raises(InvalidReplay, match="no unsafe tool runs"):
            refunded.replay_sync(effects="repeat")


def test_a_fork_stays_small_and_reads_no_entry(store: Store, shop: Shop) -> None:
    """What is left is not listed when the fork is made."""
    session = store.start()
    for number in range(40):
        session.append([user("q"), assistant(call(order=number, cents=1)), tool_result("c1", "ok")])
        session.append([assistant("a")])
    path = session.fork(at=0)
    assert [fact.data for fact in path.journal()] == [
        {**path.journal()[0].data, "relation": "fork", "parent": session.session_id, "parent_facts": 161}
    ]
    assert len(path.left_behind(limit=7)) == 7
    assert len(path.left_behind()) == 40


def test_a_call_that_was_made_thousands_of_times_is_found_without_reading_each(
    store: Store, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the source did after the fork is told from its journal once, not for each place where the call is."""
    session = store.start()
    session.append([user("hello"), assistant("hello")])
    path = session.fork()
    for _ in range(60):
        session.append([user("q"), assistant(call()), tool_result("c1", "ok"), assistant("a")])
    reads: list[int] = []
    journal = store.backend.journal
    monkeypatch.setattr(store.backend, "journal", lambda *how: reads.append(1) or journal(*how))
    shop.ask(path, refunds())
    assert (shop.refunds, len(reads) < 20) == ([41], True)
