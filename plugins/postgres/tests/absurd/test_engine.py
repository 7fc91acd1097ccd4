"""The Absurd engine: inputs that are tasks, steps with small checkpoints, and claims without which nothing is written."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import oakleaf
from oakleaf import (
    Broken,
    Hooks,
    Limits,
    Refused,
    ScriptedModel,
    Session,
    Settings,
    Slow,
    ToolCall,
    ToolContext,
    WatchedTool,
    WatchedTurn,
    assistant,
    errors,
    system,
    user,
)
from oakleaf.agent.call_status import is_awaited_by_worker
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import Titled, TurnRefused
from oakleaf.core.fit import measure
from oakleaf.core.redact import Redactor
from oakleaf.core.usage import calls_on_path
from oakleaf.ext import read
from oakleaf.log.log import Log
from oakleaf.log.runtime import real_runtime
from oakleaf.log.workspace import Workspace
from oakleaf.models.base import Request
from oakleaf.models.prices import Rates
from oakleaf.stores.tasks import task_queue
from oakleaf.testing.stores.writer import read_everything
from oakleaf.wire.left_out import left_out
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd import turn_task
from oakleaf_postgres.absurd import worker as absurd_worker
from oakleaf_postgres.absurd.claim import CLAIM, AbsurdClient, Claim, ConnectionHandle
from oakleaf_postgres.absurd.engine import TASK, Agent
from oakleaf_postgres.absurd.step import Checkpoint, check_steps, checkpoint, step_end
from oakleaf_postgres.absurd.worker import LeaseRenewer, Worker
from oakleaf_postgres.errors import EngineNotInstalled, MissingPermission
from oakleaf_postgres.store.pool import Pool
from oakleaf_postgres.store.store import PostgresStore
from oakleaf_postgres.store.url import Address
from oakleaf_server.context import ServerAgent as Driving
from support import workspace_plugin
from support.absurd_queue import AbsurdQueue
from support.postgres import APP, Database, DatabaseHost
from support.postgres_proxy import PostgresProxy
from support.processes import wait_until
from support.server import LocalServer
from support.sessions import tasks_of
from support.tool_source import Shop


@pytest.fixture(scope="module")
def installed(postgres: DatabaseHost) -> Database:
    database = Database(postgres, "absurd")
    absurd_schema.install(database.owner_url)
    return database


@pytest.fixture
def queue(installed: Database) -> Iterator[AbsurdQueue]:
    queue = AbsurdQueue(installed)
    yield queue
    queue.close()


def answered(session: Session, text: str) -> Callable[[], bool]:
    def look() -> bool:
        session.refresh()
        entries = session.path(last=1)
        message = entries[-1].message if entries else None
        return message is not None and message.text == text and session.row.holder is None

    return look


def failures(session: Session) -> int:
    """How often a turn of the session was recorded as failed."""
    facts = session.log.store.journal(session.session_id)
    return sum(fact.kind == "turn_left" and fact.data["status"] == "failed" for fact in facts)


def queue_as_client(queue: AbsurdQueue, session: Session, text: str) -> None:
    """Put an input of its owner into the session's inbox, as a login of the client role."""
    row = session.row
    with psycopg.connect(queue.database.client_url) as client:
        settings = "select set_config('oakleaf.space', %s, true), set_config('oakleaf.owner', %s, true)"
        client.execute(settings, (row.space, row.owner))
        statement = "insert into oakleaf.public_input (session_id, text) values (%s, %s)"
        client.execute(statement, (row.session_id, text))


def cut_connections(database: Database) -> None:
    database.run(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{APP}'")


class Cutter(Redactor):
    """Ends every connection of the service the first time something is redacted."""

    def __init__(self, queue: AbsurdQueue) -> None:
        super().__init__()
        self._database, self._has_cut = queue.database, False

    def redact_payload(self, payload: Any) -> Any:
        if not self._has_cut:
            self._has_cut = True
            cut_connections(self._database)
        return super().redact_payload(payload)


def connections(database: Database) -> int:
    rows = database.run(f"select count(*) from pg_stat_activity where usename = '{APP}'")
    return int(rows[0][0])


@oakleaf.tool(effect="read")
def look(n: int, ctx: ToolContext) -> str:
    """Looks."""
    ctx.update(**{f"seen_{n}": True})
    return f"saw {n}"


@oakleaf.tool(effect="unsafe", approval=True)
def pay(n: int) -> str:
    """Pays."""
    return f"paid {n}"


def answers_so_far(request: Request) -> int:
    """How often the model has spoken in this turn."""
    turn = request.context.items[-1].turn
    items = [item for item in request.context.items if item.turn == turn]
    return sum(item.message.role == "assistant" for item in items)


def looking(*numbers: int) -> Any:
    return assistant("Looking.", *(ToolCall(f"c{n}", "look", {"n": n}) for n in numbers))


def delegating(depth: int = 1) -> oakleaf.Tool:
    """Has a child pay, or have a child of its own do it."""

    @oakleaf.tool(effect="idempotent")
    async def delegate(n: int, ctx: ToolContext) -> str:
        name = "pay" if depth == 1 else "delegate"
        model = by_step(assistant(ToolCall("c", name, {"n": n})), f"done at {depth}")
        return await ctx.task("pay", models=[model], tools=[pay if depth == 1 else delegating(depth - 1)])

    return delegate


def by_step(*lines: Any) -> ScriptedModel:
    return ScriptedModel(lambda request: lines[answers_so_far(request)])


class TestHooks:
    def test_a_hook_of_a_worker_sees_the_turn_and_refuses(self, queue: AbsurdQueue) -> None:
        seen: list[Any] = []

        def hook(turn: WatchedTurn) -> None:
            seen.append((turn.session_id, turn.agent, turn.trace))
            raise Refused("not today")

        model = ScriptedModel(["no"])
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with queue.working(Agent("a", model), hooks=[Hooks(on_turn=hook)]):
            session = queue.send("Hi", trace=trace)
            wait_until(queue.is_done)
        assert seen == [(session.session_id, "a", trace)]
        session.refresh()
        assert (session.path(), model.requests) == ([], [])
        refusals = [fact.fact.error for fact in session.journal() if isinstance(fact.fact, TurnRefused)]
        assert [(refusal.limit, refusal.message) for refusal in refusals] == [
            ("hook", "a hook refused: not today; the hooks of the host decide")
        ]

    def test_a_refused_tool_of_a_worker_does_not_run(self, queue: AbsurdQueue) -> None:
        ran: list[str] = []

        @oakleaf.tool
        def pay() -> None:
            """Pay."""
            ran.append("pay")

        def hook(tool: WatchedTool) -> None:
            raise Refused("not today")

        model = ScriptedModel([assistant(ToolCall("c", "pay", {})), "I may not."])
        with queue.working(Agent("a", model, [pay]), hooks=[Hooks(on_tool=hook)]):
            session = queue.send("Hi")
            wait_until(queue.is_done)
        session.refresh()
        assert (session.path()[-1].text, ran) == ("I may not.", [])


class TestSending:
    def test_an_input_and_its_task_are_one_transaction(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")
        run = absurd.send(session, "hello", queue=queue.name)
        assert (session.leaf.seq, run.seq) == (1, 1)
        params = queue.database.run(f"select task_name, params from absurd.t_{queue.name}")
        payload = {"session": session.session_id, "space": "default", "agent": "a"}
        assert params == [(TASK, payload)]
        assert session.row.status == "running"
        queue.database.run(
            f"alter table absurd.r_{queue.name} add constraint none check (attempt > 1) not valid"
        )
        other = queue.store.start("a")
        with pytest.raises(errors.StoreError):
            absurd.send(other, "hello", queue=queue.name)
        assert queue.store.session(other.session_id).path() == []
        assert len(other.journal()) == 1
        assert queue.database.run(f"select count(*) from absurd.t_{queue.name}") == [(1,)]

    def test_sent_twice_under_one_key_it_is_there_once(self, queue: AbsurdQueue) -> None:
        """The session is read through a new handle each time: the one that sent first does not see what comes later."""

        def send() -> Any:
            session = queue.store.start("a", session_id="ses_stable")
            return absurd.send(session, "hello", queue=queue.name, key="mail-1")

        def everything() -> Any:
            return read_everything(queue.store.backend, "ses_stable"), queue.store.session("ses_stable").row

        run, before = send(), everything()
        assert (send(), everything()) == (run, before), "while its turn is open"
        with queue.working(Agent("a", by_step("Hello yourself."))):
            wait_until(answered(queue.store.session("ses_stable"), "Hello yourself."))
            wait_until(queue.is_done)
        before = everything()
        assert (send(), everything()) == (run, before), "after its answer"
        session = queue.store.session("ses_stable")
        assert [entry.message.text for entry in session.path() if entry.message] == [
            "hello",
            "Hello yourself.",
        ]
        assert session.row.status == "idle"
        assert queue.task()[0] == "completed"
        with pytest.raises(errors.KeyReused):
            absurd.send(session, "another", queue=queue.name, key="mail-1")
        again = session.send_sync("hello", model=by_step("not asked"), key="mail-1")
        assert (again.text, again.status) == ("Hello yourself.", "completed")
        assert everything() == before, "by the other engine"

    def test_behind_queued_inputs_one_with_a_key_is_refused_and_one_without_is_queued(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("a")
        session.enqueue("first")
        for _ in range(2):
            with pytest.raises(errors.InputsQueued):
                absurd.send(session, "hello", queue=queue.name, key="mail-1")
        assert len(queue.store.backend.inbox(session.session_id)) == 1
        absurd.send(session, "second", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes.", "Yes."))):
            wait_until(lambda: len(queue.store.session(session.session_id).transcript()) == 4)
        absurd.send(session, "hello", queue=queue.name, key="mail-1")
        texts = [entry.message.text for entry in queue.store.session(session.session_id).transcript()]
        assert texts == ["first", "Yes.", "second", "Yes.", "hello"]

    def test_an_input_whose_task_failed_for_good_gets_another_when_it_is_sent_again(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("a")
        run = absurd.send(session, "hello", queue=queue.name, key="mail-1")
        queue.database.run(f"update absurd.t_{queue.name} set state = 'failed'")
        queue.database.run(f"update absurd.r_{queue.name} set state = 'failed'")
        again = absurd.send(queue.store.session(session.session_id), "hello", queue=queue.name, key="mail-1")
        assert again.task_id != run.task_id
        with queue.working(Agent("a", by_step("Hello yourself."))):
            wait_until(answered(session, "Hello yourself."))
        texts = [e.message.text for e in queue.store.session(session.session_id).path() if e.message]
        assert texts == ["hello", "Hello yourself."]

    def test_a_turn_tells_what_it_was_sent_with_and_who_took_it_up(self, queue: AbsurdQueue) -> None:
        about = {"model": "large", "context_window": 200_000, "policy": {"tone": "kind"}}
        session = queue.store.start("a", **about, tool_names=["look"], trigger_type="mail", trigger_id="m-1")
        absurd.send(session, "hello", queue=queue.name)
        model = by_step("Yes.")
        with queue.working(Agent("a", model, tools=[look, pay], limits=Limits(max_messages=9))):
            wait_until(answered(session, "Yes."))
        facts = {fact.kind: fact.data for fact in session.journal()}
        trigger = {"type": "mail", "id": "m-1"}
        assert facts["turn_started"] == {"turn": 1, "trigger": trigger, **about, "tool_names": ["look"]}
        resumed = facts["turn_resumed"]
        assert (resumed["turn"], resumed["model"]) == (1, model.model)
        settings = queue.store.session(session.session_id).context().settings
        definitions = settings.tool_definitions
        assert settings.max_messages == 9
        assert definitions is not None
        assert definitions.names == ("look",)

    def test_a_senders_maximum_of_messages_wins_over_the_agents(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")
        for n in range(3):
            session.append([oakleaf.user(f"q{n}"), oakleaf.assistant("a")])
        absurd.send(session, "hello", queue=queue.name, limits=Limits(max_messages=5))
        model = by_step("Yes.")
        with queue.working(Agent("a", model, limits=Limits(max_messages=3))):
            wait_until(answered(session, "Yes."))
        again = queue.store.session(session.session_id)
        assert again.context().settings.max_messages == 5
        assert len(again.context(again.leaf.seq - 1).items) == 5

    def test_options_hold_from_the_input_on_and_those_of_the_agent_fill_what_is_missing(
        self, queue: AbsurdQueue
    ) -> None:
        model = ScriptedModel(["one", "two"])
        session = queue.store.start("a")
        with pytest.raises(errors.InvalidOption, match="no provider has an option 'temprature'"):
            absurd.send(session, "q", queue=queue.name, options={"temprature": 0})
        assert session.path() == []
        with pytest.raises(errors.InvalidOption, match="scripted has no option 'thinking'"):
            Worker(queue.database.url, [Agent("a", model, options={"thinking": {}})], queue=queue.name)
        absurd.send(session, "q", queue=queue.name, options={"temperature": 0})
        with queue.working(Agent("a", model, options={"temperature": 1, "seed": 7})):
            wait_until(answered(session, "one"))
            absurd.send(session, "r", queue=queue.name)
            wait_until(answered(session, "two"))
        options = [request.context.settings.options for request in model.requests]
        assert options == [{"temperature": 0, "seed": 7}] * 2
        settings = [entry.payload.options for entry in session.path() if isinstance(entry.payload, Settings)]
        assert settings == [{"temperature": 0}, {"seed": 7}]
        session.log.enqueue(user("queued"))
        with pytest.raises(errors.InputsQueued):
            absurd.send(session, "s", queue=queue.name, options={"temperature": 1})
        kinds = ("turn_started", "turn_resumed")
        facts = [fact.data.get("options") for fact in session.journal() if fact.kind in kinds]
        assert facts == [{"temperature": 0}, *[{"temperature": 0, "seed": 7}] * 3]
        assert session.verify() == []

    def test_an_option_that_the_agents_model_lacks_is_left_out(self, queue: AbsurdQueue) -> None:
        class Responses(ScriptedModel):
            provider = "openai"

        session, model = queue.store.start("a"), Responses(["one"])
        absurd.send(session, "q", queue=queue.name, options={"seed": 7, "temperature": 0})
        with queue.working(Agent("a", model)):
            wait_until(answered(session, "one"))
        [line] = left_out("openai", model.requests[0].context, read(session).blob)
        assert "openai has no option 'seed'" in line

    def test_one_that_is_all_there_is_ends_the_session_and_the_next_one_goes_on(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.send("look", one_shot=True)
        with queue.working(Agent("a", by_step(looking(1), "Seen."), tools=[look])):
            wait_until(answered(session, "Seen."))
            wait_until(queue.is_done)
            assert session.row.status == "completed"
            assert session.row.completed_at is not None
            assert queue.task()[2] == {"stop_reason": "completed", "to_message_number": 5}
            absurd.send(session, "look again", queue=queue.name)
            wait_until(lambda: answered(session, "Seen.")() and session.leaf.seq == 9)
        assert (session.row.status, session.row.completed_at) == ("idle", None)

    def test_one_input_at_a_time_and_the_next_one_is_queued_with_a_task(self, queue: AbsurdQueue) -> None:
        session = queue.send("one")
        with pytest.raises(
            errors.TurnOpen, match=r"waits for a worker.*absurd\.enqueue\(session, text\)"
        ) as refused:
            absurd.send(session, "two", queue=queue.name)
        assert f"oakleaf enqueue --resume {session.session_id} TEXT" in refused.value.command_text
        absurd.enqueue(session, "two", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(queue.is_done)
        texts = [
            entry.message.text for entry in queue.store.session(session.session_id).path() if entry.message
        ]
        assert texts == ["one", "Yes.", "two", "Yes."]

    def test_what_was_queued_before_an_input_is_sent_runs_before_it(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")
        absurd.enqueue(session, "one", queue=queue.name)
        absurd.send(session, "two", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(queue.is_done)
        texts = [
            entry.message.text for entry in queue.store.session(session.session_id).path() if entry.message
        ]
        assert texts == ["one", "Yes.", "two", "Yes."]

    def test_an_input_queued_after_the_turn_is_over_is_taken_by_its_own_task(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("a")
        absurd.enqueue(session, "hello?", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(answered(session, "Yes."))

    def test_a_turn_limit_refuses_before_anything_is_stored(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")
        session.append([user("hi"), assistant("ho")])
        with pytest.raises(errors.TurnLimit, match="its 1 turn"):
            absurd.send(session, "more", queue=queue.name, limits=Limits(turns=1))
        assert session.row.leaf.seq == 2

    @pytest.mark.parametrize("who", ["the agent", "the session", "the sender"])
    def test_a_limit_of_anybody_refuses_what_a_worker_would_run(self, queue: AbsurdQueue, who: str) -> None:
        session, model = queue.store.start("a"), by_step("Yes.")
        if who == "the session":
            session.set(limits={"turns": 1})
        agent = Agent("a", model, limits=Limits(turns=1) if who == "the agent" else Limits())
        session.append([user("hi"), assistant("ho")])
        before = [entry.entry_id for entry in session.path()]
        with queue.working(agent):
            if who == "the agent":
                absurd.send(session, "more", queue=queue.name)
            else:
                limits = Limits(turns=1) if who == "the sender" else None
                with pytest.raises(errors.TurnLimit, match="its 1 turn"):
                    absurd.send(session, "more", queue=queue.name, limits=limits)
            if who != "the sender":
                absurd.enqueue(session, "and more", queue=queue.name)
            wait_until(queue.is_done)
        session.refresh()
        assert [entry.entry_id for entry in session.path()] == before
        assert (model.requests, queue.store.backend.inbox(session.session_id)) == ([], [])
        refused = [fact.data["error"] for fact in session.journal() if fact.kind == "turn_refused"]
        assert [error["code"] for error in refused] == {"the agent": 2, "the session": 1}.get(who, 0) * [
            "turn_limit"
        ]
        assert (session.row.status, session.verify()) == ("idle", [])

    def test_a_limit_of_the_agent_above_the_default_is_the_limit(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")
        session.append([message for n in range(50) for message in (user(str(n)), assistant("a"))])
        absurd.send(session, "more", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."), limits=Limits(turns=500))):
            wait_until(answered(session, "Yes."))

    def test_a_sender_may_narrow_every_limit_of_the_agent(self, queue: AbsurdQueue) -> None:
        model, dear = by_step(looking(1), looking(2), "Seen."), by_step("never")
        dear.rates = Rates(1_000, 1_000)
        rounds, cost = queue.store.start("a"), queue.store.start("dear")
        absurd.send(rounds, "look", queue=queue.name, limits=Limits(rounds=1))
        absurd.send(cost, "look", queue=queue.name, limits=Limits(max_cost_microcents=0))
        with queue.working(Agent("a", model, tools=[look]), Agent("dear", dear)):
            wait_until(queue.is_done)
        rounds.refresh()
        assert rounds.transcript()[-1].message.text.startswith(
            "(stopped: the turn has called the model 1 time"
        )
        (refused,) = [fact.data["error"] for fact in cost.journal() if fact.kind == "turn_refused"]
        assert (refused["limit"], dear.requests, len(model.requests)) == ("cost", [], 1)
        assert (rounds.usage().calls, cost.usage().calls) == (1, 0)
        assert sum(state["usage"]["calls"] for state in queue.checkpoints()) == 1
        assert rounds.verify() == []

    def test_input_of_a_client_is_redacted_and_answered_by_a_worker_that_has_its_agent(
        self, queue: AbsurdQueue
    ) -> None:
        """The client's role knows no queue: what it put into the inbox was never answered, and lay there in clear."""
        phrase = "correct horse battery staple"
        with oakleaf.open(queue.database.url, space="acme", owner="ann") as store:
            mine, other = store.start("client's"), store.start("nobody's")
            for session in (mine, other):
                for text in (f"my word is {phrase}", "and more"):
                    queue_as_client(queue, session, text)
            copied = other.fork()
            copied.enqueue("queued by the service, for a runner of its own")
            agent = Agent("client's", ScriptedModel([Slow(1.5, "Yes."), "Yes."]))
            runtime = real_runtime(Redactor({"phrase": phrase}))
            with queue.working(agent, runtime=runtime):
                wait_until(lambda: len(mine.refresh() and mine.transcript()) == 1)
                bodies = [queued.body for queued in store.backend.inbox(mine.session_id)]
                assert phrase not in str(bodies)
                wait_until(lambda: len(mine.refresh() and mine.transcript()) == 4)
                wait_until(queue.is_done)
            texts = [entry.message.text for entry in mine.transcript()]
            assert texts == ["my word is [redacted phrase]", "Yes.", "and more", "Yes."]
            assert (mine.row.owner, store.backend.inbox(mine.session_id), mine.verify()) == ("ann", [], [])
            assert [len(store.backend.inbox(one.session_id)) for one in (other, copied)] == [2, 1]
            assert queue.database.run(f"select count(*) from absurd.t_{queue.name}") == [(2,)]
        queue.database.run("delete from oakleaf.inbox")

    def test_a_worker_whose_connection_breaks_while_it_takes_the_input_of_a_client_works_on(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("a", owner="ann")
        queue_as_client(queue, session, "hello")
        with queue.working(
            Agent("a", ScriptedModel(["Yes."])), runtime=real_runtime(Cutter(queue))
        ) as worker:
            wait_until(answered(session, "Yes."))
            assert not worker.stopping.is_set()

    def test_a_session_of_an_owner_is_run_as_that_owners(self, queue: AbsurdQueue) -> None:
        with oakleaf.open(queue.database.url, space="acme", owner="ann") as store:
            session = store.start("a")
            absurd.send(session, "hello", queue=queue.name)
            with queue.working(Agent("a", by_step("Yes."))):
                wait_until(answered(session, "Yes."))
            assert session.row.owner == "ann"


class TestSteps:
    def test_a_step_compacts_once_and_a_window_that_a_server_reported_is_known_to_the_next_worker(
        self, queue: AbsurdQueue
    ) -> None:
        @oakleaf.tool(effect="read")
        def read(n: int) -> str:
            return f"{n} word " * 2_000

        def reading(n: int) -> oakleaf.Message:
            return assistant(ToolCall(f"c{n}", "read", {"n": n}))

        overflow = errors.ContextOverflow("m", "too long", 4_000)
        lines = [reading(0), overflow, reading(1), errors.ModelError("m", "broken"), reading(2), "Read."]
        paths = []
        for engine in ("local", "absurd"):
            session = queue.store.start("a")
            model = ScriptedModel(lines)
            if engine == "local":
                session.send_sync("read", model=model, tools=[read])
                session.resume_sync(model=model, tools=[read])
            else:
                absurd.send(session, "read", queue=queue.name)
                with queue.working(Agent("a", model, [read])):
                    wait_until(answered(session, "Read."))
            # A worker knows its tools only after the input, so their definitions follow it.
            paths.append([(e.kind, e.role) for e in session.path() if not _names_tools(e)])
            assert session.context().settings.windows == {model.name: 4_000}
            assert (
                max(sum(measure(i.message).tokens for i in r.context.items) for r in model.requests[2:])
                < 3_000
            )
            assert session.verify() == []
        assert paths[0] == paths[1]
        assert [kind for kind, _ in paths[0]].count("compaction") == 3

    def test_a_turn_that_a_tool_ends_has_a_public_closing_answer_in_the_commit_of_its_step(
        self, queue: AbsurdQueue
    ) -> None:
        @oakleaf.tool(effect="read")
        def hang_up(n: int, ctx: ToolContext) -> str:
            ctx.ends_turn = True
            return "bye"

        session = queue.send("go")
        model = by_step(assistant(ToolCall("c", "hang_up", {"n": 1})))
        with queue.working(Agent("a", model, [hang_up])):
            wait_until(answered(session, "(ended by a tool)"))
            wait_until(queue.is_done)
        (state,) = queue.checkpoints()
        figures = ("to_message_number", "finish_reason", "executed_local_tool_count")
        assert [state[name] for name in figures] == [5, "tool_use", 1]
        assert [entry.message.text for entry in session.transcript()] == ["go", "(ended by a tool)"]

    def test_a_checkpoint_holds_four_figures_that_follow_from_the_log(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a", [system("Look.")])
        absurd.send(session, "look around", queue=queue.name)
        with queue.working(Agent("a", by_step(looking(1, 2, 3), looking(4), "Seen."), [look])):
            wait_until(answered(session, "Seen."))
        states = queue.checkpoints()
        assert [sorted(state) for state in states] == 3 * [
            ["executed_local_tool_count", "finish_reason", "to_message_number", "usage"]
        ]
        assert [state["to_message_number"] for state in states] == [7, 9, 10]
        assert [state["executed_local_tool_count"] for state in states] == [3, 1, 0]
        assert [state["finish_reason"] for state in states] == ["tool_use", "tool_use", "stop"]
        assert derived(session, 7, 9, 10) == [msgspec.convert(state, Checkpoint) for state in states]
        assert session.state == {"seen_1": True, "seen_2": True, "seen_3": True, "seen_4": True}
        assert session.row.totals.input_tokens == sum(state["usage"]["input_tokens"] for state in states)
        assert session.verify() == []

    def test_a_checkpoint_of_a_long_session_stays_under_one_kilobyte(self, queue: AbsurdQueue) -> None:
        """100 tools, 200,000 tokens: what others keep again in every step."""

        @oakleaf.tool(effect="read")
        def fetch(n: int) -> str:
            """Fetches a page of about 2,000 tokens."""
            return f"page {n} " + "lorem ipsum dolor sit amet " * 300

        calls = [
            assistant("Next.", *(ToolCall(f"c{n}", "fetch", {"n": n}) for n in range(k, k + 4)))
            for k in range(25)
        ]
        session = queue.send("read it all")
        with queue.working(Agent("a", by_step(*calls, "Read."), [fetch])):
            wait_until(answered(session, "Read."), 60)
        rows = queue.database.run(
            f"select octet_length(state::text), pg_column_size(state) from absurd.c_{queue.name}"
        )
        sizes = [size for size, _ in rows]
        tokens = max(call.usage.input_tokens or 0 for call in session.model_calls())
        tools = sum(len(entry.message.results) for entry in session.path() if entry.message)
        entry_bytes = sum(
            len(stored.entry.body) for stored in queue.store.backend.entries(session.session_id)
        )
        print(
            f"{tools} tools, {tokens:,} tokens, {entry_bytes:,} bytes of entries: {len(sizes)} checkpoints,"
        )
        print(f"{sum(sizes):,} bytes of JSON, the largest {max(sizes)} ({max(c for _, c in rows)} as stored)")
        assert (tools, len(sizes)) == (100, 26)
        assert tokens > 200_000
        assert max(sizes) < 1_000

    def test_a_run_that_is_tried_again_calls_nothing_that_is_done(self, queue: AbsurdQueue) -> None:
        """The provider is away after two steps; the next run of the task asks from there."""
        calls: list[int] = []

        def answer(request: Request) -> Any:
            calls.append(answers_so_far(request))
            if calls.count(2) == 1 and answers_so_far(request) == 2:
                return errors.ModelError("scripted", "gone for lunch")
            return [looking(1), looking(2), "Seen."][answers_so_far(request)]

        session = queue.send("look")
        with queue.working(Agent("a", ScriptedModel(answer), [look])):
            wait_until(answered(session, "Seen."))
            wait_until(queue.is_done)
        assert calls == [0, 1, 2, 2]
        assert queue.task()[:2] == ("completed", 2)
        states = [msgspec.convert(state, Checkpoint) for state in queue.checkpoints()]
        assert derived(session, 4, 6, 7) == states
        assert states[-1].usage.calls == 2, "the call that failed is in the step it was made for"
        [reason] = queue.database.run(
            f"select failure_reason->>'message' from absurd.r_{queue.name} where state = 'failed'"
        )
        assert "gone for lunch" in reason[0]

    def test_a_step_is_two_round_trips(self, queue: AbsurdQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its answer and its results: whatever else a task asks for, it asks for once."""
        if queue.database.host.server is None:
            pytest.skip("wants a server of our own")
        # What a worker asks for by the clock does not count: one slot, a long lease and no polls beside it.
        for interval in ("CANCEL_POLL_SECONDS", "CLIENT_INPUT_POLL_SECONDS"):
            monkeypatch.setattr(absurd_worker, interval, 3_600)
        wire = PostgresProxy(queue.database.host.server.folder)
        statements = []
        for steps in (5, 5, 25):  # the first prepares
            session = queue.store.start("a")
            model = by_step(*(looking(n) for n in range(steps)), "Seen.")
            agent, url = Agent("a", model, [look]), wire.url(queue.database.name, APP)
            with queue.working(agent, url=url, concurrency=1, lease=600):
                before = wire.request_count
                absurd.send(session, "look", queue=queue.name)
                wait_until(answered(session, "Seen."))
                statements.append(wire.request_count - before)
        wire.close()
        print(f"round trips of a task of 6 steps: {statements[1]}, of 26: {statements[2]}")
        assert (statements[2] - statements[1]) / 20 < 2.5

    def test_notes_of_others_neither_stop_a_step_nor_spoil_its_checkpoint(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")

        def elsewhere() -> None:
            other = queue.store.session(session.session_id)
            other.note({"from": "elsewhere"}, state={"noted": True})
            with pytest.raises(errors.SessionRunning):
                other.set(prompt="x")

        @oakleaf.tool(effect="unsafe")
        def look(n: int) -> str:
            """Looks."""
            elsewhere()
            return f"saw {n}"

        def answer(request: Request) -> Any:
            elsewhere()
            return [looking(1), "Seen."][answers_so_far(request)]

        absurd.send(session, "look", queue=queue.name)
        with queue.working(Agent("a", ScriptedModel(answer), [look])):
            wait_until(answered(session, "Seen."))
            wait_until(queue.is_done)
        kinds = [entry.role or entry.kind for entry in session.path()]
        assert kinds == ["user", "settings", "note", "assistant", "note", "tool", "note", "assistant"]
        steps = [msgspec.convert(state, Checkpoint) for state in queue.checkpoints()]
        assert steps == derived(session, 6, 8)
        assert (session.state, session.verify()) == ({"noted": True}, [])

    def test_a_child_runs_under_its_parents_claim(self, queue: AbsurdQueue) -> None:
        @oakleaf.tool(effect="idempotent")
        async def delegate(task: str, ctx: ToolContext) -> str:
            """Has a child do it."""
            return await ctx.task(
                task, agent="child", models=[by_step(looking(7), "I thought.")], tools=[look]
            )

        session = queue.send("think")
        delegating = assistant("Asking.", ToolCall("d", "delegate", {"task": "think"}))
        with queue.working(Agent("a", by_step(delegating, "Thought."), [delegate])):
            wait_until(answered(session, "Thought."))
        [child] = tasks_of(session)
        assert [entry.role for entry in child.path()] == [None, "user", "assistant", "tool", "assistant"]
        assert len(queue.checkpoints()) == 2, "a child's steps are the child's"
        assert session.usage("tree").calls == 4

    def test_a_session_moved_back_behind_its_steps_is_not_guessed_at(self, queue: AbsurdQueue) -> None:
        session = queue.send("look")
        failure = errors.ModelError("scripted", "gone")
        with queue.working(Agent("a", by_step(looking(1), failure), [look], Limits(tries=1))):
            wait_until(lambda: session.row.status == "failed")
        session.refresh()
        session.rewind(0)
        with queue.working(Agent("a", by_step("No."))):
            wait_until(
                lambda: (
                    len(queue.database.run(f"select 1 from absurd.r_{queue.name} where state = 'failed'")) > 2
                )
            )
        rows = queue.database.run(
            f"select failure_reason->>'message' from absurd.r_{queue.name} where state = 'failed'"
        )
        assert any("was moved meanwhile" in reason for (reason,) in rows)
        assert queue.store.session(session.session_id).path() == []


def derived(session: Session, *ends: int) -> list[Checkpoint]:
    """The checkpoints as the log and the ledger tell them."""
    calls, path = calls_on_path(session.model_calls(), session.log.ranges()), session.path()
    return [checkpoint(path[:to], (), calls) for to in ends]


class TestApproval:
    def test_a_task_sleeps_until_a_person_has_spoken_on_any_of_its_calls(self, queue: AbsurdQueue) -> None:
        paying = assistant("Paying.", *(ToolCall(f"p{n}", "pay", {"n": n}) for n in (1, 2)))
        session = queue.send("pay")
        sleeping = lambda: queue.task()[0] == "sleeping"  # noqa: E731
        with queue.working(Agent("a", by_step(paying, "Paid."), [pay])):
            wait_until(sleeping)
        session.refresh()
        first, second = session.open_tool_calls
        session.approve(second)
        assert queue.task()[0] == "pending", "woken by the same transaction"
        with queue.working(Agent("a", by_step(paying, "Paid."), [pay])):
            wait_until(lambda: session.refresh().leaf.seq == 4 and sleeping())
            session.approve(first, allow=False)
            wait_until(answered(session, "Paid."))
            wait_until(queue.is_done)
        results = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert [(result.call_id, result.outcome) for result in results] == [("p2", "done"), ("p1", "denied")]
        assert queue.task()[:2] == ("completed", 1), "waiting takes no attempt"
        assert queue.checkpoints()[0]["executed_local_tool_count"] == 1

    @pytest.mark.parametrize(("effects", "count"), [(None, 1), ("repeat", 2), ("reuse", 1)])
    @pytest.mark.parametrize("given_by", ["agent", "sender"])
    def test_a_call_that_another_path_made_waits_in_the_queue_unless_it_was_decided(
        self, queue: AbsurdQueue, effects: Any, count: int, given_by: str
    ) -> None:
        paid: list[int] = []

        @oakleaf.tool
        def charge(n: int) -> str:
            """Charges."""
            paid.append(n)
            return f"charged {len(paid)}"

        model = by_step(assistant(ToolCall("c", "charge", {"n": 1})), "Charged.")
        agent = Agent("a", model, [charge], effects=effects if given_by == "agent" else None)
        session = queue.send("charge")
        with queue.working(agent):
            wait_until(answered(session, "Charged."))
            wait_until(queue.is_done)
            fork = session.fork(at=0)
            absurd.send(fork, "charge", queue=queue.name, effects=effects if given_by == "sender" else None)
            if effects is None:
                wait_until(lambda: bool(fork.pending_approvals()) and fork.row.status == "waiting")
                (approval,) = fork.pending_approvals()
                assert (paid, approval.earlier is not None) == ([1], True)
                fork.approve(approval)
                count += 1
            wait_until(answered(fork, "Charged."))
        assert len(paid) == count

    @pytest.mark.parametrize("allow", [True, False])
    def test_a_word_on_what_a_task_of_it_asks_wakes_it_however_deep(
        self, queue: AbsurdQueue, allow: bool
    ) -> None:
        asking = assistant("Asking.", ToolCall("d", "delegate", {"n": 1}))
        agent = Agent("a", by_step(asking, "All done."), [delegating(3)])
        session = queue.send("pay")
        with queue.working(agent):
            wait_until(lambda: queue.task()[0] == "sleeping")
        (approval,) = session.pending_approvals()
        queue.store.session(approval.session_id).approve(approval, allow=allow)
        assert queue.task()[0] == "pending"
        with queue.working(agent):
            wait_until(answered(session, "All done."))
            wait_until(queue.is_done)
        deepest = queue.store.session(approval.session_id)
        outcomes = [r.outcome for e in deepest.path() if e.message for r in e.message.results]
        assert outcomes == ["done" if allow else "denied"]
        assert queue.task()[:2] == ("completed", 1)

    def test_it_sleeps_on_while_what_it_waits_for_lies_in_the_trash(self, queue: AbsurdQueue) -> None:
        asking = assistant("Asking.", *(ToolCall(f"d{n}", "delegate", {"n": n}) for n in (1, 2)))
        session = queue.send("pay")
        sleeping = lambda: queue.task()[0] == "sleeping"  # noqa: E731
        with queue.working(Agent("a", by_step(asking, "All done."), [delegating()])):
            wait_until(sleeping)
            first, second = session.pending_approvals()
            queue.store.delete(first.session_id)
            session.approve(second)
            wait_until(lambda: session.refresh().leaf.seq == 4 and sleeping())
            queue.store.restore(first.session_id)
            session.approve(*session.pending_approvals())
            wait_until(answered(session, "All done."))
            wait_until(queue.is_done)
        assert queue.task()[:2] == ("completed", 1)

    def test_a_worker_runs_tools_on_what_the_model_said_and_another_not_on_what_was_stored(
        self, queue: AbsurdQueue
    ) -> None:
        key, runs = "AKIA" + "A1B2" * 4, []

        @oakleaf.tool(effect="idempotent")
        def save(text: str) -> str:
            """Saves."""
            runs.append(text)
            return "saved"

        @oakleaf.tool(approval=True)
        def send(text: str) -> str:
            """Sends."""
            runs.append(text)
            return "sent"

        calls = [assistant(ToolCall(name, name, {"text": key})) for name in ("save", "send", "send")]
        agent = Agent("a", by_step(*calls, "All done."), [save, send])
        session = queue.send("go")
        with queue.working(agent):
            wait_until(lambda: session.pending_approvals())
            session.approve(*session.pending_approvals())
            wait_until(lambda: len(runs) == 2 and session.pending_approvals())
        assert runs == [key, key]
        session.approve(*session.pending_approvals())
        with queue.working(agent):
            wait_until(answered(session, "All done."))
            wait_until(queue.is_done)
        assert runs == [key, key]
        outcomes = [r.outcome for e in session.path() if e.message for r in e.message.results]
        assert outcomes == ["done", "done", "interrupted"]
        assert key not in str(session.path())

    def test_a_word_given_over_http_is_the_workers_to_take_up(self, queue: AbsurdQueue) -> None:
        """A server that could drive the session too leaves it to the worker: who has the tools runs them."""
        session = queue.send("pay")
        agent = Agent("a", by_step(assistant("Paying.", ToolCall("p", "pay", {"n": 1})), "Paid."), [pay])
        with queue.working(agent):
            wait_until(lambda: queue.task()[0] == "sleeping")
        with LocalServer(queue.store, Driving((by_step("The server spoke."),))) as server:
            answer = server.post(f"/api/sessions/{session.session_id}/approve", {"yes": True})
        assert (answer["pending"], answer["resumed"]) == (0, False)
        assert queue.task()[0] == "pending"
        with queue.working(agent):
            wait_until(answered(session, "Paid."))
        assert not is_awaited_by_worker(session.log), (
            "it waits no more: the next word here is not the worker's"
        )

    def test_a_cancel_of_a_task_that_sleeps_reaches_the_child_that_waits(self, queue: AbsurdQueue) -> None:
        @oakleaf.tool(effect="idempotent")
        async def delegate(n: int, ctx: ToolContext) -> str:
            model = by_step(assistant(ToolCall("c", "pay", {"n": n})), "done")
            return await ctx.task("pay", models=[model], tools=[pay])

        agent = Agent("a", by_step(assistant("Asking.", ToolCall("d", "delegate", {"n": 1}))), [delegate])
        session = queue.send("pay")
        with queue.working(agent):
            wait_until(lambda: queue.task()[0] == "sleeping")
            session.cancel()
            wait_until(queue.is_done)
        assert session.row.status == "cancelled"
        assert [child.row.status for child in tasks_of(session)] == ["cancelled"]

    def test_words_given_before_the_task_sleeps_are_not_missed(self, queue: AbsurdQueue) -> None:
        paying = assistant("Paying.", *(ToolCall(f"p{n}", "pay", {"n": n}) for n in range(4)))
        sessions = [queue.store.start("a") for _ in range(6)]
        for session in sessions:
            absurd.send(session, "pay", queue=queue.name)
        with queue.working(Agent("a", by_step(paying, "Paid."), [pay]), concurrency=3):
            waiting, end = set(sessions), time.monotonic() + 120
            while waiting:
                assert time.monotonic() < end, f"{len(waiting)} sessions wait for words they were given"
                for session in list(waiting):
                    session.refresh()
                    decided = {f.data["index"] for f in session.journal() if f.kind == "approved"}
                    facts = {f.data["index"] for f in session.journal() if f.kind == "approval_requested"}
                    for call in session.open_tool_calls:
                        if call.index in facts - decided:
                            session.approve(call)
                    if answered(session, "Paid.")():
                        waiting.discard(session)
            wait_until(queue.is_done)

    def test_a_word_on_a_copy_elsewhere_needs_no_engine(self, queue: AbsurdQueue, database: Database) -> None:
        paying = assistant("Paying.", ToolCall("p", "pay", {"n": 1}))
        session = queue.send("pay")
        model = by_step(paying, "Paid.")
        with queue.working(Agent("a", model, [pay])):
            wait_until(lambda: queue.task()[0] == "sleeping")
        with oakleaf.open(database.url) as elsewhere:
            copied = queue.store.copy(session.session_id, elsewhere)
            copied.approve(copied.open_tool_calls[0])
            copied.resume_sync(model=model, tools=[pay])
            assert copied.transcript()[-1].message.text == "Paid."  # type: ignore[union-attr]


@pytest.mark.attack
class TestImports:
    def taken_in(self, queue: AbsurdQueue, prepare: Callable[[Session], object]) -> Session:
        bundle = io.BytesIO()
        with oakleaf.open("memory:") as elsewhere:
            session = elsewhere.start("a")
            prepare(session)
            session.export(bundle)
        bundle.seek(0)
        return queue.store.session(queue.store.import_bundle(bundle).session_id)

    def test_a_worker_does_not_run_an_input_that_was_queued_elsewhere(self, queue: AbsurdQueue) -> None:
        session = self.taken_in(queue, lambda session: session.enqueue("pay everybody"))
        absurd.enqueue(session, "mine", queue=queue.name)
        with queue.working(Agent("a", ScriptedModel(["fine", "thanks"]))):
            wait_until(lambda: session.row.status == "failed")
            assert "accept_imported" in (session.row.error or "")
            assert session.path() == []
            session.accept_imported()
            absurd.resume(session, queue=queue.name)
            wait_until(answered(session, "thanks"))
        assert [entry.message.text for entry in session.transcript()][::2] == ["pay everybody", "mine"]

    def test_a_call_that_was_left_open_elsewhere_gets_no_task(self, queue: AbsurdQueue) -> None:
        paying = [user("q"), assistant(ToolCall("p", "pay", {"n": 1}))]
        session = self.taken_in(queue, lambda session: session.append(paying))
        with pytest.raises(errors.ImportNotAccepted, match="call pay"):
            absurd.resume(session, queue=queue.name)
        assert absurd.resume(session, queue=queue.name, accept_imported=True).session_id == session.session_id


class TestPartialAnswer:
    def test_half_an_answer_of_a_local_run_is_marked_and_a_worker_asks_the_model_again(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("a")
        half = ScriptedModel([Broken("half a word ")])
        session.send_sync("q", model=half, limits=Limits(tries=1))
        absurd.resume(session, queue=queue.name)
        model = by_step("Whole.")
        with queue.working(Agent("a", model)):
            wait_until(answered(session, "Whole."))
            wait_until(queue.is_done)
        assert [entry.finish for entry in session.path()] == [None, "interrupted", "stop"]
        assert [item.message.text for item in model.requests[0].context.items] == ["q"]
        assert session.verify() == []


class TestCancel:
    def test_a_cancel_from_anywhere_stops_the_model_call_and_the_next_input_is_taken(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.send("hello")
        model = ScriptedModel(
            lambda request: "Yes." if "again" in request.messages[-1].text else Slow(60, "Late.")
        )
        with queue.working(Agent("a", model)):
            wait_until(lambda: any(fact.kind == "turn_resumed" for fact in session.journal()))
            queue.store.session(session.session_id).cancel()
            wait_until(queue.is_done, 10)
            assert session.row.status == "cancelled"
            session.refresh()
            absurd.send(session, "again", queue=queue.name)
            wait_until(answered(session, "Yes."))
        ends = [entry.finish for entry in session.path() if entry.role == "assistant"]
        assert ends == ["cancelled", "stop"]
        assert queue.database.run(f"select max(attempts) from absurd.t_{queue.name}") == [(1,)]
        assert session.verify() == []

    def test_a_cancelled_tool_has_a_result_that_says_so(self, queue: AbsurdQueue) -> None:
        began = threading.Event()

        @oakleaf.tool(effect="unsafe")
        async def wait() -> str:
            """Waits."""
            began.set()
            await asyncio.sleep(60)
            return "waited"

        session = queue.send("hello")
        waiting = by_step(assistant("Wait.", ToolCall("w", "wait", {})), "Never said.")
        with queue.working(Agent("a", waiting, [wait])):
            assert began.wait(20)
            session.cancel()
            wait_until(queue.is_done, 10)
        session.refresh()
        results = [result for entry in session.path() if entry.message for result in entry.message.results]
        assert [result.outcome for result in results] == ["unknown"]
        assert session.row.status == "cancelled"

    def test_a_task_that_waits_for_a_person_is_woken_by_a_cancel(self, queue: AbsurdQueue) -> None:
        session = queue.send("pay")
        model = by_step(assistant("Paying.", ToolCall("p", "pay", {"n": 1})), "Never said.")
        with queue.working(Agent("a", model, [pay])):
            wait_until(lambda: queue.task()[0] == "sleeping")
            session.cancel()
            wait_until(queue.is_done)
        session.refresh()
        assert [entry.role for entry in session.path()] == ["user", None, "assistant", "tool", "assistant"]
        assert session.row.status == "cancelled"
        assert queue.task()[2]["stop_reason"] == "cancelled"

    def test_a_task_cancelled_before_it_was_taken_calls_nothing(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        session.cancel()
        model = by_step("Never said.")
        with queue.working(Agent("a", model)):
            wait_until(queue.is_done)
        assert (len(model.requests), session.refresh().status) == (0, "cancelled")

    def test_a_turn_that_was_sent_on_after_its_cancel_goes_on(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        session.cancel()
        absurd.resume(session, queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(answered(session, "Yes."))

    def test_a_turn_that_is_no_task_is_closed_though_an_earlier_one_was(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(answered(session, "Yes."))
        session.append([user("hi")])
        assert queue.store.session(session.session_id).cancel()
        assert session.row.status == "cancelled"


class TestClaim:
    @pytest.fixture
    def claimed(self, queue: AbsurdQueue) -> Iterator[tuple[Claim, Log]]:
        """A task in the hands of this test, its lease one second."""
        session, store = queue.send("hello"), queue.store
        pool, contexts = Pool(Address.parse(queue.database.url)), []
        handle = ConnectionHandle(pool)
        client = AbsurdClient(handle, queue.name)

        def keep(params: Any, context: Any) -> None:
            from absurd_sdk import SuspendTask

            contexts.append(context)
            raise SuspendTask

        client.register_task(TASK)(keep)
        client.work_batch(claim_timeout=1)
        claim = Claim(contexts[0], client.claimed[0], handle, queue.name, 1)
        assert isinstance(store.backend, PostgresStore)
        guarded = store.backend.guarded(claim.guard())
        yield claim, Log(guarded, guarded.session(session.session_id), store.runtime)
        pool.close()

    def test_who_lost_it_writes_nothing(self, claimed: tuple[Claim, Log], queue: AbsurdQueue) -> None:
        claim, log = claimed
        log.record(Titled())
        time.sleep(1.1)
        # The first claim call sweeps; the task that the second one gets is another worker's.
        for _ in range(2):
            queue.database.run(f"select absurd.claim_task('{queue.name}', 'other', 30, 1)")
        before = queue.database.run(COUNT_ROWS)
        with pytest.raises(errors.ClaimLost, match="the worker that has it now continues"):
            log.append([oakleaf_draft("late")])
        assert claim.is_lost
        claim.is_lost = False  # each of these asks the server by itself
        for write in writes_of(log):
            with pytest.raises(errors.ClaimLost):
                write()
            claim.is_lost = False
        assert queue.database.run(COUNT_ROWS) == before
        session = queue.store.session(log.session_id)
        assert [entry.role for entry in session.path()] == ["user"]

    def test_a_straggler_of_a_run_that_is_over_writes_nothing(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue
    ) -> None:
        """A tool that was stopped, or a child: the claim may still be there, and nobody answers for it."""
        claim, log = claimed
        before = queue.database.run(COUNT_ROWS)
        claim.end()
        for write in (lambda: log.append([oakleaf_draft("late")]), *writes_of(log)):
            with pytest.raises(errors.ClaimLost):
                write()
        assert queue.database.run(COUNT_ROWS) == before

    def test_a_step_whose_transaction_fails_leaves_neither_entries_nor_checkpoint(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue
    ) -> None:
        claim, log = claimed
        check_steps(log.session_id, log.leaf.seq, claim)
        queue.database.run(
            f"alter table absurd.c_{queue.name} add constraint none check (checkpoint_name = '') not valid"
        )
        with pytest.raises(errors.StoreError):
            end_step(log, claim)
        queue.database.run(f"alter table absurd.c_{queue.name} drop constraint none")
        assert log.store.session(log.session_id).leaf.seq == 1
        end_step(log, claim)
        assert [state["to_message_number"] for state in queue.checkpoints()] == [2]

    def test_a_step_on_a_connection_that_broke_is_written_on_another(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue
    ) -> None:
        claim, log = claimed
        log.record(Titled())
        cut_connections(queue.database)
        end_step(log, claim)
        query = f"select checkpoint_name from absurd.c_{queue.name}"
        assert queue.database.run(query) == [("agent-loop/2",)]
        assert log.leaf.seq == 2

    @pytest.mark.parametrize("lost", ["answer", "request"])
    def test_a_step_whose_answer_was_lost_is_there_once(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue, lost: str
    ) -> None:
        if queue.database.host.server is None:
            pytest.skip("wants a server of our own")
        claim, log = claimed
        wire = PostgresProxy(queue.database.host.server.folder)
        with oakleaf.open(wire.url(queue.database.name, APP)) as store:
            assert isinstance(store.backend, PostgresStore)
            guarded = store.backend.guarded(claim.guard())
            log = Log(guarded, guarded.session(log.session_id), store.runtime)
            for seq in (2, 3, 4):
                if seq == 3:
                    (wire.lose_answer if lost == "answer" else wire.lose_request)(b"agent-loop/3")
                end_step(log, claim)
        wire.close()
        assert wire.loss_count == 1
        assert [state["to_message_number"] for state in queue.checkpoints()] == [2, 3, 4]
        assert queue.store.session(log.session_id).leaf.seq == 4
        assert list(queue.store.verify()) == []

    def test_a_server_process_killed_among_the_rows_of_a_large_change_is_no_error_of_it(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue
    ) -> None:
        _, log = claimed
        queue.database.run("""
            create sequence oakleaf.rows_written; grant usage on oakleaf.rows_written to oakleaf_service;
            create function oakleaf.kill_once() returns trigger language plpgsql as $$
            begin
                if nextval('oakleaf.rows_written') = 9 then perform pg_terminate_backend(pg_backend_pid()); end if;
                return new;
            end $$;
            create trigger kill_once before insert on oakleaf.entry for each row execute function oakleaf.kill_once()""")
        try:
            log.append([oakleaf_draft(f"part {n}") for n in range(30)])
        finally:
            queue.database.run(
                "drop function oakleaf.kill_once() cascade; drop sequence oakleaf.rows_written"
            )
        assert log.leaf.seq == 31
        assert list(queue.store.verify()) == []

    def test_a_write_beside_another_is_there_once_whatever_isolation_is_the_default(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue
    ) -> None:
        _, log = claimed
        queue.database.run(f"alter role {APP} set default_transaction_isolation = 'repeatable read'")
        try:
            cut_connections(queue.database)
            log.record(Titled())  # on a new connection, which has it
            with psycopg.connect(queue.database.owner_url) as other, ThreadPoolExecutor(1) as pool:
                other.execute("update oakleaf.session set title = 'renamed'")
                write = pool.submit(log.record, Titled())
                wait_until(lambda: queue.database.run("select 1 from pg_locks where not granted"))
                other.commit()
                write.result(timeout=60)
        finally:
            queue.database.run(f"alter role {APP} reset default_transaction_isolation")
        assert [stored.fact for stored in log.store.journal(log.session_id)].count(Titled()) == 2

    def test_a_server_that_forgot_its_statements_is_told_them_again(self, claimed: tuple[Claim, Log]) -> None:
        _, log = claimed
        log.record(Titled())
        assert isinstance(log.store, PostgresStore)
        with log.store.connections._connection() as connection:
            connection.execute("deallocate all")
        log.record(Titled())
        assert [stored.fact for stored in log.store.journal(log.session_id)].count(Titled()) == 2

    def test_a_stale_writer_leaves_no_checkpoint(
        self, claimed: tuple[Claim, Log], queue: AbsurdQueue
    ) -> None:
        claim, log = claimed
        queue.store.session(log.session_id).append([assistant("me first")])
        with pytest.raises(errors.StaleLeaf):
            end_step(log, claim)
        assert queue.checkpoints() == []


COUNT_ROWS = "select " + ", ".join(
    f"(select count(*) from oakleaf.{table})" for table in ("session", "entry", "journal", "blob", "inbox")
)


def writes_of(log: Log) -> list[Callable[[], object]]:
    """Writes of a task besides those of its turn: of its children, its tools and its runner."""
    store = oakleaf.Store(log.store, log.runtime)
    return [
        lambda: store.start("child"),
        lambda: store.session(log.session_id).fork(1),
        lambda: store.put_blob(b"of a tool", "text/plain"),
        lambda: log.store.lease(log.session_id, "me", 2**50, 1),
        lambda: log.enqueue(user("and this")),
        lambda: log.append([Draft(user("with a picture")), *[oakleaf_draft("part")] * 30]),
    ]


def end_step(log: Log, claim: Claim) -> None:
    """Append an answer as the end of a step."""
    ends = checkpoint(log.path().entries, [oakleaf_draft("one")], ())
    log.append([oakleaf_draft("one")], effect=partial(step_end, claim, ends))


def oakleaf_draft(text: str) -> Draft:
    return Draft(assistant(text))


class TestWorker:
    def test_a_slow_task_does_not_hold_up_others(self, queue: AbsurdQueue) -> None:
        gate = threading.Event()

        @oakleaf.tool(effect="read")
        def wait() -> str:
            """Waits."""
            gate.wait(60)
            return "waited"

        slow = queue.store.start("slow")
        quick = [queue.store.start("quick") for _ in range(5)]
        for session in (slow, *quick):
            absurd.send(session, "hello", queue=queue.name)
        waiting = by_step(assistant("Wait.", ToolCall("w", "wait", {})), "At last.")
        agents = (Agent("slow", waiting, [wait]), Agent("quick", by_step("Yes.")))
        with queue.working(*agents, concurrency=2):
            for session in quick:
                wait_until(answered(session, "Yes."))
            assert not gate.is_set()
            assert slow.refresh().leaf.seq == 3
            gate.set()
            wait_until(answered(slow, "At last."))

    def test_an_agent_may_have_a_source_of_tools(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("reader")
        absurd.send(session, "hello", queue=queue.name)
        model = by_step(assistant("Wait.", ToolCall("w", "look", {"place": "the cellar"})), "Read.")
        with queue.working(Agent("reader", model, [Shop()])):
            wait_until(answered(session, "Read."))
        result = session.path()[-2].message
        assert result is not None
        assert result.results[0].content == (oakleaf.Text("nothing in the cellar"),)

    def test_many_slots_that_wait_need_few_connections_and_keep_their_leases(
        self, queue: AbsurdQueue
    ) -> None:
        """Each slot once had a connection of its own, and no more than 64 tools that block ran at once."""
        slots, lease, most = 80, 2, 3
        meeting = threading.Barrier(slots + 1)

        @oakleaf.tool(effect="unsafe")
        def meet() -> str:
            """Waits for all the others."""
            meeting.wait(60)
            time.sleep(lease * 1.2)
            return "met"

        for _ in range(slots):
            queue.send("hello")
        agent = Agent("a", by_step(assistant("Meet.", ToolCall("m", "meet", {})), "Met."), [meet])
        before = connections(queue.database)
        url = f"{queue.database.url}&connections={most}"
        with queue.working(agent, url=url, concurrency=slots, lease=lease):
            meeting.wait(60)
            assert connections(queue.database) - before <= most + 1
            wait_until(queue.is_done)
        ended = queue.database.run(
            f"select state, attempts, count(*) from absurd.t_{queue.name} group by 1, 2"
        )
        assert ended == [("completed", 1, slots)]

    def test_one_statement_renews_all_leases_and_one_that_is_locked_or_lost_delays_no_other(
        self, queue: AbsurdQueue
    ) -> None:
        """A worker of 500 slots asked 500 times, one after the other; under load the last ones lost their leases."""
        begun, gate = threading.Barrier(7), threading.Event()

        @oakleaf.tool(effect="unsafe")
        def hold() -> str:
            """Waits."""
            begun.wait(20)
            gate.wait(60)
            return "held"

        for _ in range(6):
            queue.send("hello")
        agent = Agent("a", by_step(assistant("Hold.", ToolCall("h", "hold", {})), "Held."), [hold])
        runs = f"absurd.r_{queue.name} where run_id"
        with queue.working(agent, lease=300, concurrency=6) as worker:
            begun.wait(20)
            claims = sorted(worker.claims, key=lambda claim: claim.run_id)
            queue.database.run(f"update absurd.r_{queue.name} set claim_expires_at = now() + interval '5 s'")
            queue.database.run(
                f"update absurd.r_{queue.name} set state = 'failed' where run_id = '{claims[0].run_id}'"
            )
            with psycopg.connect(queue.database.owner_url) as other:
                other.execute(f"select 1 from {runs} = '{claims[1].run_id}' for update")
                renewer = LeaseRenewer(worker)
                renewing = threading.Thread(target=renewer._renew_all, args=(claims,))
                renewing.start()
                renewed = (
                    f"select count(*) from {runs} is not null and claim_expires_at > now() + interval '60 s'"
                )
                wait_until(lambda: queue.database.run(renewed) == [(4,)])
                other.rollback()
            renewing.join()
            assert queue.database.run(renewed) == [(5,)]
            assert [claim.is_lost for claim in claims] == [True, *[False] * 5]
            gate.set()
            wait_until(lambda: len(worker.claims) == 0)
            renewer._pool.close()

    def test_a_lease_is_kept_while_every_connection_for_reading_is_in_use(self, queue: AbsurdQueue) -> None:
        begun, gate = threading.Event(), threading.Event()

        @oakleaf.tool(effect="unsafe")
        def hold() -> str:
            """Waits."""
            begun.set()
            gate.wait(60)
            return "held"

        session = queue.send("hello")
        agent = Agent("a", by_step(assistant("Hold.", ToolCall("h", "hold", {})), "Held."), [hold])
        url = f"{queue.database.url}&connections=1"
        with queue.working(agent, url=url, lease=1, concurrency=2) as worker:
            assert begun.wait(20)
            with worker._store._connections._connection():
                time.sleep(2.5)
            gate.set()
            wait_until(queue.is_done)
        assert queue.task()[:2] == ("completed", 1)
        assert answered(session, "Held.")()

    def test_idle_slots_ask_the_queue_as_one(self, queue: AbsurdQueue) -> None:
        if queue.database.host.server is None:
            pytest.skip("wants a server of our own")
        wire = PostgresProxy(queue.database.host.server.folder)
        url = wire.url(queue.database.name, APP)
        with queue.working(Agent("a", by_step("Yes.")), url=url, concurrency=40):
            time.sleep(0.5)  # it has prepared by then
            before, began = wire.request_count, time.monotonic()
            wait_until(lambda: wire.request_count >= before + 12)
            seconds = time.monotonic() - began
            assert wire.request_count - before <= 20 * seconds, "each slot alone asks four times a second"
        wire.close()

    def test_slots_that_cannot_claim_ask_as_one_and_say_why_in_a_line(self, queue: AbsurdQueue) -> None:
        lines: list[str] = []
        queue.database.run(f"revoke update on absurd.r_{queue.name} from oakleaf_service")
        with queue.working(Agent("a", by_step("Yes.")), concurrency=40, report=lines.append):
            began = time.monotonic()
            wait_until(lambda: len(lines) >= 6)
            assert len(lines) <= 10 * (time.monotonic() - began) + 4, (
                "each slot alone asks four times a second"
            )
        assert [line for line in lines if "\n" in line] == []
        assert "InsufficientPrivilege: permission denied" in lines[-1]

    def test_it_works_whatever_styles_its_role_reads_dates_and_intervals_in(self, queue: AbsurdQueue) -> None:
        session = queue.send("pay")
        url = f"{queue.database.url}&options=-c%20datestyle%3DGerman%20-c%20intervalstyle%3Dsql_standard"
        paying = assistant("Paying.", ToolCall("p1", "pay", {"n": 1}))
        with queue.working(Agent("a", by_step(paying, "Paid."), [pay]), url=url):
            wait_until(lambda: queue.task()[0] == "sleeping")
            session.refresh()
            session.approve(session.open_tool_calls[0])
            wait_until(answered(session, "Paid."))
            wait_until(queue.is_done)

    def test_a_step_longer_than_its_lease_is_done_once(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        model = ScriptedModel([Slow(2.6, "At last.")])
        with queue.working(Agent("a", model), lease=1, concurrency=2):
            wait_until(answered(session, "At last."))
            wait_until(queue.is_done)
        assert len(model.requests) == 1
        assert queue.task()[:2] == ("completed", 1)

    def test_told_to_stop_it_ends_the_step_and_gives_the_task_back(self, queue: AbsurdQueue) -> None:
        session = queue.send("look")
        agent = Agent("a", by_step(Slow(0.5, looking(1)), Slow(0.5, looking(2)), "Seen."), [look])
        with queue.working(agent):
            wait_until(lambda: queue.task()[0] == "running")
        session.refresh()
        assert session.leaf.seq == 4, "one step, whole"
        assert queue.task()[0] == "sleeping"
        assert session.row.holder is None
        with queue.working(agent):
            wait_until(answered(session, "Seen."))
            wait_until(queue.is_done)
        assert queue.task()[:2] == ("completed", 1), "giving it back takes no attempt"
        assert session.usage().unknown_calls == 0, "no call was announced that was not made"

    def test_stopped_past_its_grace_it_writes_nothing_more(self, queue: AbsurdQueue) -> None:
        """Not even when the tool that held it up comes back."""
        gate, began = threading.Event(), threading.Event()

        @oakleaf.tool(effect="idempotent")
        def wait() -> str:
            """Waits."""
            began.set()
            gate.wait(60)
            return "waited"

        session = queue.send("hello")
        agent = Agent("a", by_step(assistant("Wait.", ToolCall("w", "wait", {})), "Soon."), [wait])
        worker = Worker(queue.database.url, [agent], queue=queue.name, lease=1)
        late: list[int] = []
        thread = threading.Thread(target=lambda: late.append(worker.run(grace=0.2)))
        thread.start()
        assert began.wait(20)
        worker.stop()
        thread.join(10)
        assert late == [1]
        gate.set()
        roles = [entry.role for entry in queue.store.session(session.session_id).path()]
        assert roles == ["user", None, "assistant"]
        with queue.working(agent):
            wait_until(answered(session, "Soon."))

    def test_a_session_that_somebody_drives_is_left_alone_until_he_is_done(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        now = queue.store.runtime.now()
        fence = queue.store.backend.lease(session.session_id, "elsewhere:1#x", now + 600_000_000, now)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(lambda: queue.task()[0] == "sleeping")
            assert session.refresh().leaf.seq == 1
            queue.store.backend.release(session.session_id, fence)
            wait_until(answered(session, "Yes."))
            wait_until(queue.is_done)
        assert queue.task()[1] == 1

    def test_an_unknown_agent_is_said_in_the_session_and_left_for_a_worker_that_knows_it(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("stranger")
        absurd.send(session, "hello", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(lambda: session.row.status == "failed")
        assert "has no agent 'stranger'" in (session.row.error or "")
        assert "oakleaf worker --agents" in (session.row.error or "")
        with queue.working(Agent("stranger", by_step("Yes."))):
            wait_until(answered(session, "Yes."))

    def test_a_task_of_an_unknown_agent_fails_neither_an_answered_nor_a_running_session(
        self, queue: AbsurdQueue
    ) -> None:
        """It marked the session failed at each of its attempts, whatever had become of the turn."""
        session = queue.store.start("stranger")
        absurd.send(session, "hello", queue=queue.name)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(lambda: queue.task()[1] >= 3)  # the second attempt has failed
            assert failures(session) == 1, "the same failure is recorded once"
        fence = queue.store.backend.lease(session.session_id, "somebody#1", 2**53, 1)
        session.log.record(Titled(), row={"status": "running"}, fence=fence)
        due = f"update absurd.r_{queue.name} set available_at = now() where state in ('pending', 'sleeping') returning attempt"
        (attempt,) = queue.database.run(due)
        is_back = f"select 1 from absurd.r_{queue.name} where attempt = {attempt[0]} and state = 'sleeping' and available_at > now()"
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(lambda: queue.database.run(is_back))
            assert session.refresh().status == "running"
        queue.store.backend.release(session.session_id, fence)
        queue.database.run(due)
        session.resume_sync(model=ScriptedModel(["Hello."]))
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(queue.is_done)
        assert (queue.task()[0], session.refresh().status, failures(session)) == ("completed", "idle", 1)

    def test_a_session_that_is_gone_ends_its_task(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        queue.store.delete(session.session_id)
        queue.store.purge(session.session_id)
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(queue.is_done)
        assert queue.task()[2]["stop_reason"] == "gone"

    @pytest.mark.parametrize("how", ["sent", "queued", "queued behind a turn"])
    def test_what_was_accepted_before_the_trash_is_answered_after_it(
        self, queue: AbsurdQueue, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its task ended as that of a session that is gone, and nothing ever answered the input."""
        monkeypatch.setattr(turn_task, "TRASH_SECONDS", 0.05)
        agent = Agent("a", ScriptedModel(lambda request: "Yes."))
        session = queue.store.start("a")
        if how != "queued":
            absurd.send(session, "first", queue=queue.name)
        if how != "sent":
            absurd.enqueue(session, "hello", queue=queue.name)
        queue.store.delete(session.session_id)
        sleeping = f"select 1 from absurd.r_{queue.name} where state = 'sleeping'"
        with queue.working(agent):
            wait_until(lambda: queue.database.run(sleeping))
            assert session.refresh().facts == queue.store.session(session.session_id).row.facts
            queue.store.restore(session.session_id)
            wait_until(queue.is_done)
        session.refresh()
        expected = {"sent": ["first"], "queued": ["hello"]}.get(how, ["first", "hello"])
        texts = [entry.message.text for entry in session.path() if entry.message]
        assert texts == [text for each in expected for text in (each, "Yes.")]

    def test_a_session_that_is_purged_ends_its_task_in_the_trash(
        self, queue: AbsurdQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turn_task, "TRASH_SECONDS", 0.05)
        session = queue.send("hello")
        queue.store.delete(session.session_id)
        sleeping = f"select 1 from absurd.r_{queue.name} where state = 'sleeping'"
        with queue.working(Agent("a", by_step("Yes."))):
            wait_until(lambda: queue.database.run(sleeping))
            queue.store.purge(session.session_id)
            wait_until(queue.is_done)
        assert queue.task()[2]["stop_reason"] == "gone"

    def test_a_cancelled_task_writes_nothing_more(self, queue: AbsurdQueue) -> None:
        session = queue.store.start("a")
        run = absurd.send(session, "hello", queue=queue.name)
        with queue.working(Agent("a", ScriptedModel([Slow(3.0, "Late.")])), lease=1):
            wait_until(lambda: any(fact.kind == "turn_resumed" for fact in session.journal()))
            queue.database.run(f"select absurd.cancel_task('{queue.name}', '{run.task_id}')")
            wait_until(lambda: queue.task()[0] != "running")
            time.sleep(0.6)
        assert session.refresh().leaf.seq == 1
        resumed = absurd.resume(session, queue=queue.name)
        assert resumed.task_id != run.task_id

    def test_an_agent_with_a_workspace_has_its_tools_for_each_session(
        self, queue: AbsurdQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace_plugin.use(monkeypatch)
        (tmp_path / "order.txt").write_text("order 41: lost")
        reading = assistant("Reading.", ToolCall("r", "read_file", {"path": "order.txt"}))
        here = Workspace(working_dir=str(tmp_path))
        agent = Agent("a", by_step(reading, "Lost."), [look], workspace=here, commands=("ls",), env=("TZ",))
        sessions = [queue.store.start("a") for _ in range(2)]
        for session in sessions:
            absurd.send(session, "where is it?", queue=queue.name)
        with queue.working(agent):
            for session in sessions:
                wait_until(answered(session, "Lost."))
        for session in sessions:
            (result,) = [r for entry in session.path() if entry.message for r in entry.message.results]
            expected = f"{session.session_id}: order 41: lost ['ls'] ['TZ']"
            assert result.content == (oakleaf.Text(expected),)

    def test_secrets_stay_out_of_what_absurd_keeps_of_a_failure(
        self, queue: AbsurdQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOP_API_KEY", "k-0123456789abcdef-secret")
        queue.send("hello")
        refused = errors.ModelError("scripted", "bad key k-0123456789abcdef-secret\0")
        with queue.working(Agent("a", ScriptedModel(lambda request: refused))):
            wait_until(
                lambda: queue.database.run(f"select 1 from absurd.r_{queue.name} where state = 'failed'")
            )
        [(reason, *_), *_] = queue.database.run(
            f"select failure_reason::text from absurd.r_{queue.name} where state = 'failed'"
        )
        assert "got no answer" in reason
        assert "0123456789abcdef" not in reason


def test_tasks_are_spawned_once_although_the_connection_has_broken(queue: AbsurdQueue) -> None:
    tasks = task_queue(queue.store, queue.name)
    cut_connections(queue.database)
    tasks.spawn("count", {"one": {}, "two": {}}, attempts=1, retry={"kind": "none"})
    assert [task.state for task in tasks.states(["one", "two"]).values()] == ["pending", "pending"]


class TestLongQueue:
    @pytest.mark.parametrize("how", ["enqueued", "of a client"])
    def test_a_session_with_many_inputs_delays_no_other(self, queue: AbsurdQueue, how: str) -> None:
        """Each input had a task of its own, in the order in which they came: another session waited for thousands."""
        long, short = queue.store.start("a", owner="ann"), queue.store.start("a", owner="bob")
        for session, texts in ((long, [f"{n}" for n in range(120)]), (short, ["hello"])):
            for text in texts:
                if how == "enqueued":
                    task = absurd.enqueue(session, text, queue=queue.name)
                    assert task.task_id
                else:
                    queue_as_client(queue, session, text)
        model = by_step("Yes.")
        with queue.working(Agent("a", model, limits=Limits(turns=200)), concurrency=1):
            wait_until(queue.is_done if how == "enqueued" else lambda: long.refresh().turns == 120)
            wait_until(queue.is_done)
        asked = [request.messages[-1].text for request in model.requests]
        assert asked.index("hello") <= 20
        assert [text for text in asked if text != "hello"] == [f"{n}" for n in range(120)]
        assert queue.store.backend.inbox(long.session_id) == []
        tasks = f"select count(*), count(distinct params ->> 'session') from absurd.t_{queue.name}"
        [(count, sessions)] = queue.database.run(tasks)
        assert (count <= 160, sessions) == (True, 2)

    def test_an_input_queued_while_its_task_is_claimed_is_answered(self, queue: AbsurdQueue) -> None:
        """A task that waits takes it. One that a worker claims at that moment may have looked already."""
        session = queue.store.start("a")
        with queue.working(Agent("a", by_step("Yes."), limits=Limits(turns=200)), concurrency=4):
            for n in range(60):
                absurd.enqueue(session, f"{n}", queue=queue.name)
            wait_until(lambda: session.refresh().turns == 60)
            wait_until(queue.is_done)
        assert queue.store.backend.inbox(session.session_id) == []
        assert session.verify() == []
        failed = queue.database.run(
            f"select failure_reason from absurd.r_{queue.name} where state = 'failed'"
        )
        assert failed == [], "a turn of another task's is no failure of this one"

    @pytest.mark.parametrize("is_analyzed", [True, False])
    def test_a_claim_reads_no_more_of_a_long_queue_than_of_a_short_one(
        self, queue: AbsurdQueue, is_analyzed: bool
    ) -> None:
        """It read and sorted every task that waited: 1 ms with 100, 600 ms with 100,000, while a burst filled the queue."""
        query = """select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int
            from pg_stat_xact_user_tables where schemaname = 'absurd' and relname = any(%s)"""
        reads: list[int] = []
        for many in (30, 3_000):
            queue.database.run(
                f"""with task as (
                    insert into absurd.t_{queue.name} (task_id, task_name, params, state, attempts)
                    select gen_random_uuid(), 'other', '{{}}', 'pending', 1 from generate_series(1, {many})
                    returning task_id)
                insert into absurd.r_{queue.name} (run_id, task_id, attempt, state, available_at)
                select gen_random_uuid(), task_id, 1, 'pending', now() - random() * interval '1 h' from task"""
            )
            if is_analyzed:
                queue.database.run(f"analyze absurd.r_{queue.name}; analyze absurd.t_{queue.name}")
            with psycopg.connect(queue.database.url) as connection:
                assert len(connection.execute(CLAIM, (queue.name, "worker", 300, 1)).fetchall()) == 1
                [row] = connection.execute(query, ([f"r_{queue.name}", f"t_{queue.name}"],)).fetchall()
                reads.append(row[0])
        print(f"rows read by a claim: {reads}")
        assert reads[1] <= 40


class TestBadInput:
    def test_workers_need_postgresql(self) -> None:
        session = oakleaf.open("memory:").start("a")
        with pytest.raises(errors.PostgresRequired, match="oakleaf copy --all --to URL"):
            absurd.send(session, "hello")
        assert session.path() == []

    def test_a_missing_schema_or_queue_says_what_to_run(self, database: Database, queue: AbsurdQueue) -> None:
        with oakleaf.open(database.url) as bare:
            session = bare.start("a")
            with pytest.raises(
                EngineNotInstalled,
                match=r"has no schema of Absurd yet; run oakleaf .* migrate --queue",
            ):
                absurd.send(session, "hello")
            assert session.refresh().leaf.seq == 0
        with pytest.raises(EngineNotInstalled, match=r"no queue 'nowhere'; run .*--queue nowhere"):
            absurd.send(queue.store.start("a"), "hello", queue="nowhere")
        with pytest.raises(EngineNotInstalled, match="no queue 'nowhere'"):
            Worker(queue.database.url, [], queue="nowhere")

    def test_the_schema_needs_ours_first(self, postgres: DatabaseHost) -> None:
        empty = postgres.url(postgres.create_database("empty"))
        with pytest.raises(errors.MigrationNeeded, match="migrate"):
            absurd_schema.install(empty)

    def test_another_version_of_absurd_is_refused(self, postgres: DatabaseHost) -> None:
        database = Database(postgres, "newer")
        absurd_schema.install(database.owner_url)
        database.run(
            "create or replace function absurd.get_schema_version() returns text language sql as $$ select '9.0.0' $$"
        )
        with pytest.raises(errors.NewerFormat, match=r"9\.0\.0"):
            absurd_schema.install(database.owner_url)
        with oakleaf.open(database.url) as store, pytest.raises(errors.NewerFormat, match=r"9\.0\.0"):
            absurd.send(store.start("a"), "hello")
        database.run(
            "create or replace function absurd.get_schema_version() returns text language sql as $$ select '0.4.0' $$"
        )
        with oakleaf.open(database.url) as store, pytest.raises(EngineNotInstalled, match=r"0\.4\.0"):
            absurd.send(store.start("a"), "hello")

    def test_the_schema_is_the_owners_to_make(self, database: Database) -> None:
        with pytest.raises(MissingPermission):
            absurd_schema.install(database.url)

    def test_a_client_has_no_right_on_the_queue(self, queue: AbsurdQueue) -> None:
        with psycopg.connect(queue.database.client_url, autocommit=True) as client:
            for query in (
                f"select * from absurd.t_{queue.name}",
                f"select absurd.claim_task('{queue.name}', 'x')",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    client.execute(query)  # type: ignore[call-overload]

    def test_nothing_to_resume_is_said(self, queue: AbsurdQueue) -> None:
        with pytest.raises(errors.InvalidOperation, match="no turn is open"):
            absurd.resume(queue.store.start("a"), queue=queue.name)


def _names_tools(entry: oakleaf.Entry) -> bool:
    return isinstance(entry.payload, oakleaf.Settings) and entry.payload.tool_definitions is not None
