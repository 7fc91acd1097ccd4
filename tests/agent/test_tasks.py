"""Tasks: a child session run from within a tool; the parent keeps its start and its answer, and waits when it waits."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import pytest

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, ToolCall, ToolContext, assistant, system, user
from oakleaf.core.facts import CallKey, TaskWaits
from oakleaf.errors import InvalidOperation, ModelError, SessionTrashed, TaskTrashed
from oakleaf.store import Store
from oakleaf.wire import PROVIDERS, find_provider
from support.sessions import tasks_of


class Office:
    """A tool that pays, if a person allows it, and tools that have children do it."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.prompts: list[str] = []
        self.delegated = 0

    @property
    def pay(self) -> oakleaf.Tool:
        @oakleaf.tool(effect="unsafe", approval=True)
        def pay(n: int) -> str:
            """Pays."""
            self.paid.append(n)
            return f"paid {n}"

        return pay

    def model(self, *lines: Any) -> ScriptedModel:
        """Says the line that comes after what was said already, in whichever process."""

        def answer(request: Any) -> Any:
            answers = [message for message in request.messages if message.role == "assistant"]
            self.prompts.append(request.messages[0].text)
            return lines[len(answers)]

        return ScriptedModel(answer)

    def delegate(self, depth: int = 1, **how: Any) -> oakleaf.Tool:
        """Has a child pay, or have a child of its own do it."""

        @oakleaf.tool(**{"effect": "idempotent", **how})
        async def delegate(n: int, ctx: ToolContext) -> str:
            self.delegated += 1
            name = "pay" if depth == 1 else "delegate"
            model = self.model(assistant(call(name, n=n)), f"done at {depth}")
            tools = [self.pay if depth == 1 else self.delegate(depth - 1)]
            return await ctx.task(f"level {depth}", models=[model], tools=tools)

        return delegate


def call(name: str, call_id: str = "c", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, arguments)


def results(session: Session) -> list[Any]:
    return [result for entry in session.path() if entry.message for result in entry.message.results]


def is_valid(session: Session) -> bool:
    assert session.verify() == []
    requests = {name: session.request(name) for name in PROVIDERS}
    return all(find_provider(name).violations(request) == [] for name, request in requests.items())


def family(session: Session) -> list[Session]:
    return [session, *(one for child in tasks_of(session) for one in family(child))]


def copied(store: Store, session: Session) -> Session:
    bundle = io.BytesIO()
    session.export(bundle)
    bundle.seek(0)
    return store.session(store.import_bundle(bundle, new_id=True).session_id)


@pytest.fixture
def office() -> Office:
    return Office()


class TestTask:
    def test_the_parent_keeps_the_answer_and_the_child_the_way_to_it(
        self, store: Store, session: Session
    ) -> None:
        @oakleaf.tool(effect="read")
        def look(order: int) -> dict[str, int]:
            """Look an order up."""
            return {"order": order}

        @oakleaf.tool(effect="idempotent")
        async def delegate(what: str, ctx: ToolContext) -> str:
            """Has a child do it."""
            child = ScriptedModel([assistant(call("look", order=9)), f"{what} is done"])
            return await ctx.task(
                what, agent="helper", seeds=[system("You help.")], models=[child], tools=[look]
            )

        model = ScriptedModel([assistant(ToolCall("c", "delegate", {"what": "digging"})), "It is dug."])
        session.send_sync("dig", model=model, tools=[delegate])
        assert session.path()[4].message.results[0].content[0].text == "digging is done"
        (child,) = tasks_of(session)
        assert (child.row.agent, child.row.parent_seq, len(child.path())) == ("helper", 4, 6)
        assert session.usage("tree").calls == 4
        assert is_valid(child)
        kinds = [fact.kind for fact in session.journal()]
        assert kinds.index("task_started") < kinds.index("turn_ended")

    def test_two_tasks_of_one_tool_are_two_children_and_found_again_after_a_crash(
        self, store: Store, session: Session
    ) -> None:
        questions: list[str] = []

        def answer(request: Any) -> str:
            questions.append(request.messages[-1].text)
            return f"{questions[-1]} done"

        @oakleaf.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> list[str]:
            return [await ctx.task(what, models=[ScriptedModel(answer)]) for what in ("A", "B")]

        for _ in range(2):  # the second time as if the process had died before the result was kept
            session.append([user("q"), assistant(ToolCall("c", "delegate"))])
            session.resume_sync(model=ScriptedModel(["ok"]), tools=[delegate])
            result = session.path()[-3].message.results[0].content[0].text
            assert result == '["A done","B done"]'
            session.rewind(to=1)
        assert questions == ["A", "B", "A", "B"]
        assert len(tasks_of(session)) == 4

    def test_tasks_may_not_be_nested_without_end(self, session: Session) -> None:
        def digger() -> oakleaf.Tool:
            @oakleaf.tool(effect="idempotent")
            async def dig(ctx: ToolContext) -> str:
                model = ScriptedModel([assistant(ToolCall("c", "dig")), "up again"])
                return await ctx.task("deeper", models=[model], tools=[digger()])

            return dig

        session.send_sync("q", model=ScriptedModel([assistant(ToolCall("c", "dig")), "ok"]), tools=[digger()])
        depth, at = 0, session
        while tasks_of(at):
            depth, at = depth + 1, tasks_of(at)[0]
        assert depth == 4
        assert "nested 4 deep" in str([e.message for e in at.path()])

    def test_a_task_without_an_answer_raises_its_reason(self, session: Session) -> None:
        @oakleaf.tool
        async def delegate(order: int, ctx: ToolContext) -> str:
            limits = Limits(pause=lambda failures: 0.0)
            with pytest.raises(InvalidOperation, match="ended without an answer: m gave no answer: down"):
                await ctx.task("do it", models=[ScriptedModel([ModelError("m", "down")])], limits=limits)
            return "told"

        session.send_sync(
            "q", model=ScriptedModel([assistant(call("delegate", order=1)), "end"]), tools=[delegate]
        )
        assert results(session)[0].content[0].text == "told"


class TestWaiting:
    """An approval asked for in a task: the parent waits for it as durably as for one of its own."""

    def test_the_parent_waits_too_and_goes_on_when_there_was_a_word(
        self, store: Store, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        events = session.send_sync(
            "q", model=office.model(assistant(call("delegate", n=7))), tools=tools
        ).events
        (child,) = tasks_of(session)
        request = next(event for event in events if event.type == "session:approval_requested")
        assert (request.type, request.data["session_id"]) == ("session:approval_requested", child.session_id)
        assert (request.data["name"], request.data["seq"], request.data["task_of"]["seq"]) == ("pay", 3, 4)
        assert request.journal_number is not None
        assert (session.row.status, child.row.status, office.paid) == ("waiting", "waiting", [])

        (waiting,) = store.session(child.session_id).open_tool_calls
        store.session(child.session_id).approve(waiting)
        again = store.session(session.session_id)
        again.resume_sync(model=office.model(None, "It is paid."), tools=tools)
        assert office.paid == [7]
        assert results(again)[0].content[0].text == "done at 1"
        assert again.path()[-1].message.text == "It is paid."
        assert office.prompts == ["q", "level 1", "level 1", "q"], "no model was asked twice for one answer"
        assert all(is_valid(one) for one in family(again))

    def test_until_there_is_a_word_nothing_is_run_and_nothing_is_asked_again(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        run = session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert [event.type for event in run.events] == ["session:turn_resumed", "session:waiting"]
        assert (office.delegated, office.paid) == (1, [])
        assert [fact.kind for fact in session.journal()].count("task_waits") == 1
        assert is_valid(session)

    @pytest.mark.parametrize("depth", [1, 4])
    def test_a_word_from_any_handle_above_reaches_the_call_however_deep(
        self, store: Store, session: Session, office: Office, depth: int
    ) -> None:
        tools = [office.delegate(depth)]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        assert len(family(session)) == depth + 1
        again = store.session(session.session_id)
        (approval,) = again.pending_approvals()
        assert (approval.call.name, approval.session_id) == ("pay", family(session)[-1].session_id)
        again.approve(approval)
        assert again.pending_approvals() == []
        again.resume_sync(model=office.model(None, "It is paid."), tools=tools)
        assert office.paid == [7]
        assert results(again)[0].content[0].text == f"done at {depth}"
        assert len(office.prompts) == 2 * (depth + 1), "no model was asked twice for one answer"
        assert all(is_valid(one) for one in family(again))

    def test_a_word_binds_to_the_exact_call_and_not_to_the_one_that_started_the_task(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        with pytest.raises(InvalidOperation, match=r"session\.pending_approvals"):
            session.approve(session.open_tool_calls[0])
        session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert office.paid == []

    def test_every_session_above_is_told_of_the_word(self, session: Session, office: Office) -> None:
        tools = [office.delegate(2)]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        session.approve(session.pending_approvals()[0])
        top, middle, deepest = family(session)
        decision = {"session": deepest.session_id, "seq": 3, "index": 0, "decision": "approved"}
        for one in (top, middle):
            assert [fact.data for fact in one.journal() if fact.kind == "task_decided"] == [decision]

    def test_a_denial_is_told_to_the_child_and_its_answer_to_the_parent(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        session.approve(session.pending_approvals()[0], allow=False)
        session.resume_sync(model=office.model(None, "As you wish."), tools=tools)
        assert office.paid == []
        assert results(tasks_of(session)[0])[0].outcome == "denied"
        assert results(session)[0].content[0].text == "done at 1"

    def test_a_child_that_asks_twice_is_waited_for_twice(self, session: Session, office: Office) -> None:
        lines = [assistant(call("pay", n=1)), assistant(call("pay", n=2)), "both"]

        @oakleaf.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> str:
            return await ctx.task("pay", models=[office.model(*lines)], tools=[office.pay])

        session.send_sync("q", model=office.model(assistant(call("delegate"))), tools=[delegate])
        for n in (1, 2):
            (approval,) = session.pending_approvals()
            assert approval.call.arguments == {"n": n}
            session.approve(approval)
            session.resume_sync(model=office.model(None, "ok"), tools=[delegate])
        assert office.paid == [1, 2]
        assert session.path()[-1].message.text == "ok"

    @pytest.mark.parametrize("how", ["gather", "group"])
    def test_a_sibling_that_needs_no_word_is_not_stopped_and_not_done_again(
        self, session: Session, office: Office, how: str
    ) -> None:
        @oakleaf.tool(effect="idempotent")
        async def delegate(ctx: ToolContext) -> list[str]:
            pays = ctx.task(
                "pay", models=[office.model(assistant(call("pay", n=1)), "paid")], tools=[office.pay]
            )
            thinks = ctx.task("think", models=[oakleaf.ScriptedModel([oakleaf.Slow(0.2, "thought")])])
            if how == "gather":
                return list(await asyncio.gather(pays, thinks))
            async with asyncio.TaskGroup() as group:
                both = [group.create_task(pays), group.create_task(thinks)]
            return [one.result() for one in both]

        session.send_sync("q", model=office.model(assistant(call("delegate"))), tools=[delegate])
        assert "thought" in [child.path()[-1].message.text for child in tasks_of(session)]
        session.approve(session.pending_approvals()[0])
        session.resume_sync(model=office.model(None, "ok"), tools=[delegate])
        assert results(session)[0].content[0].text == '["paid","thought"]'
        assert sorted(child.usage().calls for child in tasks_of(session)) == [1, 2]

    def test_two_children_may_wait_and_each_goes_on_by_its_own_word(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        answer = assistant(call("delegate", "a", n=1), call("delegate", "b", n=2))
        session.send_sync("q", model=office.model(answer), tools=tools)
        first, second = session.pending_approvals()
        session.approve(second)
        session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert (office.paid, session.pending_approvals()) == ([2], [first])
        session.approve(first)
        session.resume_sync(model=office.model(None, "ok"), tools=tools)
        assert office.paid == [2, 1]
        assert session.path()[-1].message.text == "ok"
        assert is_valid(session)

    def test_a_tool_that_catches_every_exception_waits_all_the_same(
        self, session: Session, office: Office
    ) -> None:
        @oakleaf.tool(effect="idempotent")
        async def careful(ctx: ToolContext) -> str:
            model = office.model(assistant(call("pay", n=1)), "paid")
            try:
                return await ctx.task("pay", models=[model], tools=[office.pay])
            except Exception:  # noqa: BLE001 - this is what it does
                return "went wrong"

        session.send_sync("q", model=office.model(assistant(call("careful"))), tools=[careful])
        session.approve(session.pending_approvals()[0])
        session.resume_sync(model=office.model(None, "ok"), tools=[careful])
        assert results(session)[0].content[0].text == "paid"

    @pytest.mark.parametrize("name", ["pay", "delegate"])
    def test_a_word_that_comes_while_a_sibling_runs_needs_no_resume(
        self, store: Store, session: Session, office: Office, name: str
    ) -> None:
        @oakleaf.tool(effect="read")
        def allow() -> str:
            mine = store.session(session.session_id)
            deadline = time.monotonic() + 20
            while not (approvals := mine.pending_approvals()) and time.monotonic() < deadline:
                time.sleep(0.01)
            mine.approve(approvals[0])
            return "allowed"

        answer = assistant(call(name, "a", n=7), call("allow", "b"))
        tools = [office.pay, office.delegate(), allow]
        session.send_sync("q", model=office.model(answer, "ok"), tools=tools)
        assert office.paid == [7]
        assert session.path()[-1].message.text == "ok"
        assert is_valid(session)

    def test_an_unsafe_tool_that_can_tell_waits_and_is_run_again_if_nothing_happened(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate(effect="unsafe", verify=lambda n: oakleaf.NeverHappened())]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        session.approve(session.pending_approvals()[0])
        session.resume_sync(model=office.model(None, "ok"), tools=tools)
        assert (office.paid, office.delegated) == ([7], 2)

    def test_an_unsafe_tool_is_never_run_twice_so_it_cannot_wait(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate(2, effect="unsafe")]
        model = office.model(assistant(call("delegate", n=7)), "I see.")
        session.send_sync("q", model=model, tools=tools)
        assert (office.delegated, office.paid) == (2, [])
        assert (results(session)[0].outcome, session.path()[-1].message.text) == ("interrupted", "I see.")
        assert [one.row.status for one in family(session)] == ["idle", "cancelled", "cancelled"]
        assert session.pending_approvals() == []
        assert all(is_valid(one) for one in family(session))

    @pytest.mark.parametrize("depth", [1, 3])
    def test_who_wrote_an_unsafe_tool_that_cannot_wait_is_told_how_to_declare_it_however_deep(
        self, session: Session, office: Office, depth: int
    ) -> None:
        def delegate(depth: int) -> oakleaf.Tool:
            @oakleaf.tool(effect="unsafe" if depth == 1 else "idempotent", name=f"delegate_{depth}")
            async def tool(ctx: ToolContext) -> str:
                name, below = (
                    ("pay", office.pay) if depth == 1 else (f"delegate_{depth - 1}", delegate(depth - 1))
                )
                arguments = {"n": 7} if depth == 1 else {}
                return await ctx.task(
                    "do it", models=[office.model(assistant(call(name, **arguments)), "ok")], tools=[below]
                )

            return tool

        model = office.model(assistant(call(f"delegate_{depth}")), "I see.")
        events = session.send_sync("q", model=model, tools=[delegate(depth)]).events
        (warning,) = [event for event in events if event.type == "session:warning"]
        where = family(session)[depth - 1]
        assert (warning.data["code"], warning.data["name"]) == ("cannot_wait", "delegate_1")
        assert warning.data["session_id"] == where.session_id
        text = results(where)[0].content[0].text
        assert warning.data["message"] == text, "the log says it too"
        assert text.startswith("delegate_1 has a task that needs an approval")
        assert '@tool(effect="idempotent")' in text

    def test_a_child_resumed_by_its_own_handle_has_its_answer_taken(
        self, store: Store, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        (child,) = tasks_of(session)
        child.approve(child.open_tool_calls[0])
        child.resume_sync(model=ScriptedModel(["paid by hand"]), tools=[office.pay])
        session.resume_sync(model=office.model(None, "ok"), tools=tools)
        assert office.paid == [7]
        assert results(session)[0].content[0].text == "paid by hand"

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_child_in_the_trash_is_nobodys_to_answer_until_it_is_restored(
        self, store: Store, session: Session, office: Office, depth: int
    ) -> None:
        tools = [office.delegate(depth)]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        (approval,) = session.pending_approvals()
        child = family(session)[1].session_id
        store.delete(child)
        assert session.pending_approvals() == []
        with pytest.raises(TaskTrashed, match=rf"store\.restore\('{child}'\)"):
            session.resume_sync(model=ScriptedModel([]), tools=tools)
        with pytest.raises(TaskTrashed):
            session.approve(session.open_tool_calls[0])
        with pytest.raises(SessionTrashed):
            session.approve(approval)
        assert (session.row.status, session.row.error, office.delegated) == ("waiting", None, depth)
        store.restore(child)
        session.approve(*session.pending_approvals())
        session.resume_sync(model=office.model(None, "It is paid."), tools=tools)
        assert (office.paid, results(session)[0].content[0].text) == ([7], f"done at {depth}")

    def test_a_child_that_has_its_word_and_lies_in_the_trash_is_not_run_into(
        self, store: Store, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        session.approve(*session.pending_approvals())
        (child,) = tasks_of(session)
        store.delete(child.session_id)
        with pytest.raises(TaskTrashed):
            session.resume_sync(model=ScriptedModel([]), tools=tools)
        store.restore(child.session_id)
        session.resume_sync(model=office.model(None, "It is paid."), tools=tools)
        assert office.paid == [7]

    def test_a_child_in_the_trash_does_not_hold_up_its_sibling(
        self, store: Store, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        both = assistant(call("delegate", "a", n=1), call("delegate", "b", n=2))
        session.send_sync("q", model=office.model(both), tools=tools)
        first, second = session.pending_approvals()
        store.delete(first.session_id)
        assert session.pending_approvals() == [second]
        run = session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert [event.type for event in run.events] == ["session:turn_resumed", "session:waiting"]
        session.approve(second)
        with pytest.raises(TaskTrashed):
            session.resume_sync(model=ScriptedModel([]), tools=tools)
        assert ([result.call_id for result in results(session)], office.paid) == (["b"], [2])
        assert is_valid(session)

    def test_a_journal_that_names_itself_waits_for_nothing(self, session: Session) -> None:
        session.append([user("q"), assistant(call("delegate", n=7))])
        session.log.record(TaskWaits(3, 0, session.session_id, CallKey(3, 0, "c", "delegate")))
        assert session.pending_approvals() == []

    def test_a_copy_waits_for_its_own_child(self, store: Store, session: Session, office: Office) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        copy = copied(store, session)
        assert [approval.session_id for approval in copy.pending_approvals()] == [
            tasks_of(copy)[0].session_id
        ]

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_copy_goes_on_with_its_own_children_and_the_original_with_its_own(
        self, store: Store, session: Session, office: Office, depth: int
    ) -> None:
        tools = [office.delegate(depth)]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        copy = copied(store, session)
        before = len(office.prompts)
        for n, one in enumerate((copy, session), 1):
            members = [member.session_id for member in family(one)]
            one.approve(one.pending_approvals()[0])
            model = office.model(None, "It is paid.")
            one.resume_sync(model=model, tools=tools, accept_imported=True)
            assert one.path()[-1].message.text == "It is paid."
            assert [member.session_id for member in family(one)] == members, "no other child was started"
            assert office.paid == [7] * n
            assert len(office.prompts) == before + n * (depth + 1), "no model was asked twice for one answer"
            assert all(is_valid(member) for member in family(one))


class TestCancel:
    def test_of_the_parent_reaches_a_child_that_waits(self, session: Session, office: Office) -> None:
        @oakleaf.tool(effect="read")
        async def wait() -> str:
            await asyncio.sleep(30)
            return "never"

        async def main() -> None:
            answer = assistant(call("delegate", "a", n=7), call("wait", "b"))
            run = session.send("q", model=office.model(answer), tools=[office.delegate(2), wait])
            async for event in run:
                if event.type == "session:approval_requested":
                    run.cancel()

        asyncio.run(main())
        assert [one.row.status for one in family(session)] == ["cancelled"] * 3
        assert session.pending_approvals() == []
        assert all(is_valid(one) for one in family(session))

    def test_a_new_input_after_a_denial_leaves_no_child_behind(
        self, session: Session, office: Office
    ) -> None:
        tools = [office.delegate(4)]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        session.approve(session.pending_approvals()[0], allow=False)
        session.send_sync("never mind", model=ScriptedModel(["all right"]), tools=tools)
        assert [one.row.status for one in family(session)] == ["idle", *["cancelled"] * 4]
        assert [one.log.cursor.turn for one in family(session)] == [0] * 5
        assert office.paid == []
        assert all(is_valid(one) for one in family(session))

    def test_a_new_input_to_a_copy_closes_its_child_and_not_the_originals(
        self, store: Store, session: Session, office: Office
    ) -> None:
        tools = [office.delegate()]
        session.send_sync("q", model=office.model(assistant(call("delegate", n=7))), tools=tools)
        copy = copied(store, session)
        copy.approve(copy.pending_approvals()[0], allow=False)
        copy.send_sync("never mind", model=ScriptedModel(["all right"]), tools=tools)
        statuses = sorted(row.status for row in store.all_sessions(relation="task"))
        assert statuses == ["cancelled", "waiting"]
        assert [one.row.status for one in family(session)] == ["waiting", "waiting"]


class TestStopping:
    def test_a_task_runs_to_its_end_and_its_parent_stops_after_it(self, store: Store) -> None:
        """A process that is about to end stops between steps, and a task is part of one."""

        @oakleaf.tool
        def look() -> str:
            run.stop()
            return "seen"

        @oakleaf.tool
        async def ask(ctx: ToolContext) -> str:
            return await ctx.task("look", models=[child], tools=[look])

        async def wait() -> str:
            return (await run).status

        child = ScriptedModel([assistant(call("look")), "I saw it."])
        parent = ScriptedModel([assistant(call("ask")), "Thank you."])
        session = store.start()
        run = session.send("Have a look", model=parent, tools=[ask])
        assert asyncio.run(wait()) == "interrupted"
        assert [one.row.status for one in family(session)] == ["interrupted", "idle"]
        assert [result.content for result in results(session)] == [(oakleaf.Text("I saw it."),)]
        assert session.usage().calls == 1  # the next one was taken out of the ledger again
        assert session.resume_sync(model=parent, tools=[ask]).text == "Thank you."
        assert is_valid(session)
