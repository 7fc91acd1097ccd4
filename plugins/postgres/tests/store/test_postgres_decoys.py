"""Where clients may create in a schema of the search path, what they create there never runs as somebody else."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace

import psycopg
import pytest

import oakleaf
from oakleaf import ScriptedModel, ToolCall, Usage, assistant, user
from oakleaf.stores.base import SessionQuery
from oakleaf.stores.tasks import task_queue
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd.claim import AbsurdClient, Claim, ConnectionHandle
from oakleaf_postgres.absurd.deaths import TaskDeaths
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.health import engine_health
from oakleaf_postgres.absurd.queue import queue_tables
from oakleaf_postgres.absurd.schema import install
from oakleaf_postgres.absurd.worker import SELECT_ONLY_RUN, LeaseRenewer, Worker
from oakleaf_postgres.errors import EngineNotInstalled
from oakleaf_postgres.store.schema import migrate
from oakleaf_postgres.store.scrub import scrub
from oakleaf_postgres.store.store import PostgresStore
from support.absurd_queue import AbsurdQueue
from support.decoys import plant
from support.postgres import EMPTY, Database, DatabaseHost
from support.processes import wait_until
from support.store_contract import PostgresConformance


@pytest.fixture(scope="module")
def planted(postgres: DatabaseHost) -> Database:
    """A database as before PostgreSQL 15: everybody may create in public, and a client did before the first migration."""
    database = Database(postgres, "decoys")
    database.run("drop schema oakleaf cascade; grant create on schema public to public")
    assert plant(database.client_url) > 10_000
    migrate(database.owner_url)
    return database


@pytest.fixture
def url(planted: Database) -> str:
    planted.run(
        EMPTY.replace("select setval", "select pg_catalog.setval").replace(", setval", ", pg_catalog.setval")
    )
    return planted.url


@oakleaf.tool(effect="read")
def look() -> str:
    return "seen"


class TestDecoys(PostgresConformance):
    """The whole contract, statement by statement."""


@pytest.mark.attack
class TestWhatAClientPlanted:
    def test_it_is_chosen_by_a_careless_statement(self, planted: Database) -> None:
        with (
            psycopg.connect(planted.url) as service,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="decoy"),
        ):
            service.execute("select 1 from oakleaf.lock where number = 1::bigint & 1")
        with pytest.raises(psycopg.errors.RaiseException, match="a decoy ran as postgres"):
            planted.run("select hashtextextended('x', 1)")

    def test_it_never_runs_in_the_life_of_a_session(self, planted: Database, url: str) -> None:
        with oakleaf.open(url) as store:
            session = store.start(session_id="ses_a", owner="ann", tags={"k": "v"}, title="a title")
            with session.turn(
                user("look", oakleaf.Attachment(b"picture", "image/png")), key="mail-1"
            ) as turn:
                turn.answer(assistant(ToolCall("c1", "look", {})), usage=Usage(7, 7), provider="p", model="m")
                turn.result("c1", "seen")
                turn.answer(assistant("done"))
            session.tag(k=None, other="w")
            session.enqueue("later")
            fork = session.fork(at=1)
            session.rewind(1)
            assert store.search("seen").hits
            query = SessionQuery(tag=("other", "w"))
            assert store.backend.count(query, "status") == {"idle": 1}
            session.export(bundle := io.BytesIO(), children=True)
            list(store.findings())
            store.delete("ses_a")
            store.purge("ses_a")
            store.import_bundle(io.BytesIO(bundle.getvalue()))
            assert list(store.verify()) == []
            assert len(fork.path()) == 1
        migrate(planted.owner_url)
        scrub(planted.owner_url)

    def test_it_never_runs_in_a_worker(self, planted: Database, url: str) -> None:
        queue = AbsurdQueue(planted)
        with contextlib.closing(queue):
            assert isinstance(queue.store.backend, PostgresStore)
            reports: list[str] = []
            tasks = task_queue(queue.store, queue.name)
            tasks.spawn("of-another-program", {"other": {}}, attempts=1, retry={"kind": "none"})
            answers = [assistant(ToolCall("c1", "look", {})), "found", "and more"]
            agent = Agent("a", ScriptedModel(answers), [look])
            session = queue.send("look")
            absurd.enqueue(session, "and more?", queue=queue.name)
            with queue.working(agent, report=reports.append):
                wait_until(lambda: len(queue.store.session(session.session_id).path()) >= 6)
                wait_until(lambda: tasks.states(["other"])["other"].state == "sleeping")
                assert [finding.level for finding in engine_health(queue.store.backend)] == ["ok"]
            assert reports == []

    def test_functions_of_the_engine_that_would_run_it_are_not_used(
        self, planted: Database, url: str
    ) -> None:
        with contextlib.closing(AbsurdQueue(planted)) as queue:
            planted.run("alter function absurd.emit_event reset search_path")
            with pytest.raises(EngineNotInstalled, match="that a client's could take the place of"):
                queue.send("look")
            install(planted.owner_url, queue.name)
            queue.send("look")

    def test_it_never_runs_when_a_worker_renews_its_leases_or_dies(self, planted: Database, url: str) -> None:
        with contextlib.closing(AbsurdQueue(planted)) as queue:
            queue.send("look")
            worker = Worker(url, [], queue=queue.name)
            handle = ConnectionHandle(worker.pool)
            client = AbsurdClient(handle, queue.name)
            (task,) = client.claim_tasks()
            claim = Claim(SimpleNamespace(), task, handle, queue.name, 30)  # type: ignore[arg-type]
            renewer = LeaseRenewer(worker)
            renewer._renew_all([claim])
            renewer._pool.close()
            worker.registration.begin(handle)
            worker.registration.end(handle)
            deaths = TaskDeaths(handle, queue.name, {**task, "attempt": 2})
            assert deaths.count().total == 0
            assert handle.execute(SELECT_ONLY_RUN.format(**queue_tables(queue.name)), (claim.run_id,))
            claim.reschedule(0)
            (task,) = client.claim_tasks()
            TaskDeaths(handle, queue.name, task).fail_run("killed", 0)
            deaths.use_up_attempts()
            worker._store.close()
