"""What an import left open runs only if somebody here accepts it, and what was decided elsewhere is asked again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, ToolContext, assistant, user
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import (
    ApprovalRequested,
    Approved,
    Denied,
    ImportAccepted,
    TaskStarted,
    ToolCallsStarted,
    TurnStarted,
)
from oakleaf.errors import ApprovalPending, ApprovalRequired, ImportNotAccepted, InvalidOperation
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sqlite.store import SqliteStore
from support.sessions import tasks_of

pytestmark = pytest.mark.attack


class Shop:
    """Tools with a memory of what they did."""

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []

    def tools(self, **how: Any) -> list[oakleaf.Tool]:
        @oakleaf.tool(effect="read")
        def look(order: int) -> str:
            """Look an order up."""
            self.did.append(("look", order))
            return "seen"

        @oakleaf.tool(effect="unsafe", **how)
        def refund(order: int) -> str:
            """Give the money back."""
            self.did.append(("refund", order))
            return "refunded"

        @oakleaf.tool(effect="idempotent")
        def tag(order: int) -> str:
            """Tag an order."""
            self.did.append(("tag", order))
            return "tagged"

        return [look, refund, tag]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def elsewhere() -> Iterator[Store]:
    with Store(MemoryStore()) as store:
        yield store


def ask(*calls: tuple[str, int]) -> Any:
    return assistant(*(ToolCall(f"c{n}", name, {"order": order}) for n, (name, order) in enumerate(calls)))


def left_open(elsewhere: Store, *calls: tuple[str, int], started: bool = False) -> Session:
    """A session whose process ended with these calls open."""
    session = elsewhere.start()
    facts = (TurnStarted(1),)
    session.log.append([Draft(user("q"))], facts=facts)
    session.append([ask(*calls)])
    if started:
        session.log.record(ToolCallsStarted(2, tuple(range(len(calls)))))
    return session


def taken_in(session: Session, store: Store, **options: bool) -> Session:
    bundle = io.BytesIO()
    session.export(bundle)
    bundle.seek(0)
    return store.session(store.import_bundle(bundle, **options).session_id)


def decide_elsewhere(session: Session, decision: str, seq: int = 2) -> None:
    session.log.record(ApprovalRequested(seq, 0))
    session.log.record(Approved(seq, 0) if decision == "approved" else Denied(seq, 0))


def outcomes(session: Session) -> list[str]:
    return [r.outcome for entry in session.path() if entry.message for r in entry.message.results]


class TestDecisions:
    @pytest.mark.parametrize("decision", ["approved", "denied"])
    @pytest.mark.parametrize("new_id", [False, True])
    def test_one_made_elsewhere_is_shown_and_asked_again(
        self, store: Store, elsewhere: Store, shop: Shop, decision: str, new_id: bool
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        decide_elsewhere(original, decision)
        session = taken_in(original, store, new_id=new_id)
        tools = shop.tools(approval=True)
        session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert (shop.did, session.row.status) == ([], "waiting")
        (pending,) = session.pending_approvals()
        assert pending.decided_elsewhere == decision
        session.approve(pending)
        assert session.pending_approvals() == []
        session.resume_sync(model=ScriptedModel(["done"]), tools=tools)
        assert shop.did == [("refund", 7)]

    def test_one_made_elsewhere_is_asked_again_though_nobody_had_requested_it(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        decide_elsewhere(original, "approved")
        session = taken_in(original, store)
        session.resume_sync(model=ScriptedModel([]), tools=shop.tools())
        assert (shop.did, session.row.status) == ([], "waiting")

    def test_a_denial_made_elsewhere_can_be_reversed_and_one_made_here_cannot(
        self, store: Store, elsewhere: Store
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        decide_elsewhere(original, "denied")
        session = taken_in(original, store)
        (call,) = session.pending_approvals()
        session.approve(call, allow=False)
        with pytest.raises(InvalidOperation, match="was denied, which is final"):
            session.approve(call)

    def test_a_new_input_does_not_abandon_a_call_that_was_approved_elsewhere(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        decide_elsewhere(original, "approved")
        session = taken_in(original, store)
        with pytest.raises(ApprovalPending):
            session.send_sync("on", model=ScriptedModel(["never"]), tools=shop.tools())

    def test_a_copy_between_two_stores_of_one_operator_asks_nothing_again(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        decide_elsewhere(original, "approved")
        session = elsewhere.copy(original, store)
        session.resume_sync(model=ScriptedModel(["done"]), tools=shop.tools(approval=True))
        assert shop.did == [("refund", 7)]


def test_a_backup_that_is_restored_is_the_same_store(tmp_path: Path, shop: Shop) -> None:
    backend = SqliteStore(tmp_path / "agent.db")
    with Store(backend) as store:
        session = left_open(store, ("refund", 7))
        decide_elsewhere(session, "approved")
        backend.backup(str(tmp_path / "backup.db"))
    with oakleaf.open(tmp_path / "backup.db") as restored:
        session = restored.session(session.session_id)
        session.resume_sync(model=ScriptedModel(["done"]), tools=shop.tools(approval=True))
    assert shop.did == [("refund", 7)]


class TestOpenCalls:
    @pytest.mark.parametrize("name", ["refund", "tag"])
    def test_one_with_an_effect_runs_only_after_it_was_accepted(
        self, store: Store, elsewhere: Store, shop: Shop, name: str
    ) -> None:
        session = taken_in(left_open(elsewhere, (name, 7)), store)
        before = session.row
        with pytest.raises(ImportNotAccepted, match=name) as refused:
            session.resume_sync(model=ScriptedModel(["never"]), tools=shop.tools())
        assert (shop.did, session.row) == ([], before), "nothing was run or written"
        assert [(call.name, call.arguments) for call in refused.value.calls] == [(name, {"order": 7})]
        assert "accept_imported=True" in str(refused.value)
        session.resume_sync(model=ScriptedModel(["done"]), tools=shop.tools(), accept_imported=True)
        assert shop.did == [(name, 7)]
        assert outcomes(session) == ["done"]
        assert session.verify() == []

    def test_it_is_asked_once(self, store: Store, elsewhere: Store, shop: Shop) -> None:
        session = taken_in(left_open(elsewhere, ("refund", 7), ("refund", 8)), store)
        session.accept_imported()
        session.resume_sync(model=ScriptedModel(["done"]), tools=shop.tools())
        assert sorted(shop.did) == [("refund", 7), ("refund", 8)]
        assert [fact.kind for fact in session.journal()].count("import_accepted") == 1

    def test_an_acceptance_inside_a_bundle_does_not_count(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        original.log.record(ImportAccepted(1))
        session = taken_in(original, store)
        with pytest.raises(ImportNotAccepted):
            session.resume_sync(model=ScriptedModel(["never"]), tools=shop.tools())
        assert shop.did == []

    def test_one_that_only_reads_runs(self, store: Store, elsewhere: Store, shop: Shop) -> None:
        session = taken_in(left_open(elsewhere, ("look", 7), started=True), store)
        session.resume_sync(model=ScriptedModel(["done"]), tools=shop.tools())
        assert shop.did == [("look", 7)]

    def test_an_unsafe_one_that_was_started_elsewhere_is_unknown_and_never_runs(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        session = taken_in(left_open(elsewhere, ("refund", 7), started=True), store)
        session.resume_sync(model=ScriptedModel(["done"]), tools=shop.tools())
        assert (shop.did, outcomes(session)) == ([], ["unknown"])

    def test_a_start_claimed_elsewhere_does_not_have_it_verified_and_run(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        asked: list[int] = []

        def verify(order: int) -> object:
            asked.append(order)
            return oakleaf.NeverHappened()

        session = taken_in(left_open(elsewhere, ("refund", 7), started=True), store)
        tools = shop.tools(verify=verify, approval=True)
        with pytest.raises(ImportNotAccepted):
            session.resume_sync(model=ScriptedModel(["never"]), tools=tools)
        assert (shop.did, asked) == ([], [])

    def test_a_new_input_abandons_it_and_runs_nothing(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        session = taken_in(left_open(elsewhere, ("refund", 7)), store)
        session.send_sync("something else", model=ScriptedModel(["fine"]), tools=shop.tools())
        assert (shop.did, outcomes(session)) == ([], ["interrupted"])

    def test_a_call_that_the_model_makes_here_is_ours(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        session = taken_in(left_open(elsewhere, ("look", 7)), store)
        session.resume_sync(model=ScriptedModel([ask(("refund", 7)), "done"]), tools=shop.tools())
        assert shop.did == [("look", 7), ("refund", 7)]

    def test_a_keyed_input_sent_again_does_not_run_them(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        original = elsewhere.start()
        original.append([user("q")], key="order-7")
        original.append([ask(("refund", 7))])
        session = taken_in(original, store)
        with pytest.raises(ImportNotAccepted):
            session.send_sync("q", model=ScriptedModel(["never"]), tools=shop.tools(), key="order-7")
        assert shop.did == []


class TestOwnLoop:
    def test_a_call_left_open_elsewhere_is_not_run(self, store: Store, elsewhere: Store, shop: Shop) -> None:
        session = taken_in(left_open(elsewhere, ("refund", 7)), store)
        (_, refund, _) = shop.tools()
        for run in (lambda turn, call: turn.run(call, refund), lambda turn, call: turn.started(call)):
            with pytest.raises(ImportNotAccepted, match="refund"), session.turn() as turn:
                run(turn, turn.open_tool_calls[0])
        assert shop.did == []
        with session.turn(accept_imported=True) as turn:
            turn.run(turn.open_tool_calls[0], refund)
            turn.answer(assistant("done"))
        assert shop.did == [("refund", 7)]

    def test_an_approval_made_elsewhere_does_not_count(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        original = left_open(elsewhere, ("refund", 7))
        decide_elsewhere(original, "approved")
        session = taken_in(original, store)
        (_, refund, _) = shop.tools(approval=True)
        with pytest.raises(ApprovalRequired), session.turn() as turn:
            turn.run(turn.open_tool_calls[0], refund)
        assert shop.did == []


class TestQueuedInputs:
    def test_they_run_only_after_they_were_accepted(self, store: Store, elsewhere: Store, shop: Shop) -> None:
        original = elsewhere.start()
        original.enqueue("refund everything")
        session = taken_in(original, store)
        before = session.row
        for run in (
            lambda: session.resume_sync(model=ScriptedModel(["never"])),
            lambda: session.send_sync("mine", model=ScriptedModel(["never"])),
        ):
            with pytest.raises(ImportNotAccepted, match="refund everything") as refused:
                run()
            assert [queued.text for queued in refused.value.inputs] == ["refund everything"]
        assert (session.row, len(store.backend.inbox(session.session_id))) == (before, 1)
        model = ScriptedModel(["one", "two"])
        session.send_sync("mine", model=model, accept_imported=True)
        texts = [entry.message.text for entry in session.transcript()]
        assert texts == ["refund everything", "one", "mine", "two"]

    def test_those_queued_here_run(self, store: Store, elsewhere: Store) -> None:
        original = elsewhere.start()
        original.append([user("q"), assistant("a")])
        session = taken_in(original, store)
        session.enqueue("mine")
        session.resume_sync(model=ScriptedModel(["fine"]))
        assert session.transcript()[-1].message.text == "fine"

    def test_a_fork_goes_on_without_them(self, store: Store, elsewhere: Store) -> None:
        original = elsewhere.start()
        original.append([user("q"), assistant("a")])
        original.enqueue("refund everything")
        fork = taken_in(original, store).fork()
        fork.send_sync("mine", model=ScriptedModel(["fine"]))
        assert [entry.message.text for entry in fork.transcript()] == ["q", "a", "mine", "fine"]


class TestTasks:
    def office(self, shop: Shop, **how: Any) -> oakleaf.Tool:
        refund = shop.tools()[1]

        @oakleaf.tool(**{"effect": "read", **how})
        async def delegate(order: int, ctx: ToolContext) -> str:
            """Have a task do it."""
            model = ScriptedModel([ask(("refund", order)), "done"])
            return await ctx.task("do it", models=[model], tools=[refund])

        return delegate

    def stopped_task(self, elsewhere: Store) -> Session:
        """A session whose task was about to run a call when the process ended."""
        session = left_open(elsewhere, ("delegate", 7), started=True)
        child = elsewhere.start_task(session, None, [])
        task = session.idempotency_key(session.open_tool_calls[0]).removeprefix(f"{session.session_id}/")
        session.log.record(TaskStarted(child.session_id, 2, f"{task}/do it"))
        child.append([user("do it"), ask(("refund", 7))])
        return session

    def test_the_calls_of_a_task_are_part_of_what_is_accepted(
        self, store: Store, elsewhere: Store, shop: Shop
    ) -> None:
        session = taken_in(self.stopped_task(elsewhere), store)
        (child,) = tasks_of(session)
        with pytest.raises(ImportNotAccepted, match="refund") as refused:
            session.resume_sync(model=ScriptedModel(["never"]), tools=[self.office(shop)])
        assert [call.session_id for call in refused.value.calls] == [child.session_id]
        assert shop.did == []
        session.accept_imported()
        assert [fact.kind for fact in child.journal()].count("import_accepted") == 1

    @pytest.mark.parametrize("started", [True, False])
    def test_a_bundle_cannot_name_a_session_of_this_store_as_its_task(
        self, store: Store, elsewhere: Store, shop: Shop, started: bool
    ) -> None:
        victim = store.start()
        victim.append([user("secret"), ask(("refund", 9))])
        original = left_open(elsewhere, ("delegate", 7), started=started)
        original.log.record(TaskStarted(victim.session_id, 2, "x"))
        session = taken_in(original, store)
        session.send_sync("something else", model=ScriptedModel(["fine"]), tools=shop.tools())
        assert victim.refresh().facts == 3, "its turn was not closed"
        assert len(victim.open_tool_calls) == 1
