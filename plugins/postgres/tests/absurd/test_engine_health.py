"""What `oakleaf doctor` says of queues and workers, and what a wrong set-up of the engine is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import oakleaf
from oakleaf import ScriptedModel, errors
from oakleaf.stores.tasks import DEFAULT_QUEUE
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.health import queue_statuses
from oakleaf_postgres.absurd.worker import Worker
from oakleaf_postgres.errors import MissingPermission
from oakleaf_server.metrics import Metrics
from support.absurd_queue import AbsurdQueue
from support.postgres import Database, DatabaseHost
from support.processes import wait_until
from support.server import LocalServer
from support.terminal import oakleaf as command


@pytest.fixture(scope="module")
def installed(postgres: DatabaseHost) -> Database:
    return Database(postgres, "engine_health")


@pytest.fixture
def queue(installed: Database) -> Iterator[AbsurdQueue]:
    queue = AbsurdQueue(installed)
    yield queue
    queue.close()
    installed.run("delete from absurd.oakleaf_worker")
    installed.run(f"select absurd.drop_queue('{queue.name}')")
    installed.empty()


def doctor(queue: AbsurdQueue) -> tuple[int, list[Any]]:
    done = command("doctor", "--json", store=queue.database.url)
    assert done.json["healthy"] is (done.code == 0)
    return done.code, done.json["findings"]


def add_worker(queue: AbsurdQueue, name: str, seconds_ago: int) -> None:
    last_seen = f"now() - interval '{seconds_ago} s'"
    queue.database.run(
        f"insert into absurd.oakleaf_worker values ('{queue.name}', '{name}', {last_seen}, {last_seen}, 30, 4, '{{a}}')"
    )


class TestDoctor:
    def test_an_input_that_no_task_answers_is_a_problem(self, queue: AbsurdQueue) -> None:
        """Such an input waited for ever, and nobody was told."""
        lost, waiting = queue.send("hello"), queue.send("hello")
        in_the_trash = queue.send("hello")
        queue.store.delete(in_the_trash.session_id)
        with queue.store.start("a").turn("of one's own loop"):
            assert doctor(queue)[0] == 0
            for session in (lost, in_the_trash):
                where = f"params ->> 'session' = '{session.session_id}'"
                queue.database.run(
                    f"select absurd.cancel_task('{queue.name}', task_id) from absurd.t_{queue.name} where {where}"
                )
            code, findings = doctor(queue)
            [problem] = [finding for finding in findings if finding["level"] == "problem"]
            assert code == 1
            assert problem["message"].startswith(f"{lost.session_id} has an input that waits for a worker")
            assert problem["fix"].startswith(f"oakleaf enqueue --resume {lost.session_id}")
            queue.store.restore(in_the_trash.session_id)
            named = [one["sessions"] for one in doctor(queue)[1] if one["level"] == "problem"]
            assert sorted(named) == sorted([[lost.session_id], [in_the_trash.session_id]])
            for session in (lost, in_the_trash):
                absurd.resume(session, queue=queue.name)
            assert doctor(queue)[0] == 0
        with queue.working(Agent("a", ScriptedModel(lambda _: "Yes."))):
            wait_until(queue.is_done)
        for session in (lost, waiting, in_the_trash):
            assert session.refresh().status == "idle"

    def test_waiting_tasks_are_a_problem_once_no_worker_lives(self, queue: AbsurdQueue) -> None:
        assert doctor(queue)[0] == 0
        queue.send("hello")
        assert doctor(queue)[0] == 0, "a worker may just be starting"
        queue.database.run(f"update absurd.r_{queue.name} set available_at = now() - interval '5 min'")
        code, findings = doctor(queue)
        assert code == 1
        [problem] = [finding for finding in findings if finding["level"] == "problem"]
        assert (
            problem["message"] == f"queue '{queue.name}': 1 task waiting, the first for 5 min, and no worker"
        )
        assert problem["fix"] == f"oakleaf worker --queue {queue.name} --agents FILE.py"
        text = command("doctor", store=queue.database.url)
        assert (text.code, problem["message"] in text.out, problem["fix"] in text.out) == (1, True, True)
        add_worker(queue, "host:1", seconds_ago=5)
        code, findings = doctor(queue)
        assert code == 0
        assert f"queue '{queue.name}': 1 worker with 4 slots, 0 running, 1 task waiting" in [
            finding["message"] for finding in findings
        ]

    def test_a_task_whose_worker_died_waits_for_another(self, queue: AbsurdQueue) -> None:
        queue.send("hello")
        expired = "state = 'running', claim_expires_at = now() - interval '5 min'"
        queue.database.run(f"update absurd.r_{queue.name} set {expired}")
        code, findings = doctor(queue)
        [problem] = [finding for finding in findings if finding["level"] == "problem"]
        assert code == 1
        assert (
            problem["message"] == f"queue '{queue.name}': 1 task waiting, the first for 5 min, and no worker"
        )
        add_worker(queue, "host:1", seconds_ago=5)
        _, findings = doctor(queue)
        assert f"queue '{queue.name}': 1 worker with 4 slots, 0 running, 1 task waiting" in [
            finding["message"] for finding in findings
        ]

    def test_workers_that_die_again_and_again_are_a_problem_that_names_what_they_ran(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.send("hello")
        reason = """'{"name": "$ClaimTimeout"}'"""
        queue.database.run(f"update absurd.r_{queue.name} set state = 'failed', failure_reason = {reason}")
        absurd.resume(session, queue=queue.name)  # as the queue tries it again
        for number in (1, 2):
            add_worker(queue, f"host:{number}", seconds_ago=40)
            assert doctor(queue)[0] == 0
        add_worker(queue, "host:3", seconds_ago=35)
        add_worker(queue, "host:4", seconds_ago=1)
        code, findings = doctor(queue)
        [problem] = [finding for finding in findings if finding["level"] == "problem"]
        assert code == 1
        assert (
            f"3 workers died in the last 15 minutes while they ran {session.session_id}" in problem["message"]
        )
        assert problem["sessions"] == [session.session_id]

    def test_a_session_at_work_is_no_finding_and_one_whose_worker_died_is_left_to_another(
        self, queue: AbsurdQueue
    ) -> None:
        """It warned of each session at work, and advised to resume it here, where its agent is not."""
        asked, may_answer = threading.Event(), threading.Event()

        def answer(_: Any) -> str:
            asked.set()
            may_answer.wait(20)
            return "Hi."

        session = queue.send("hello")
        with queue.working(Agent("a", ScriptedModel(answer))):
            assert asked.wait(20)
            assert not any(session.session_id in finding["message"] for finding in doctor(queue)[1])
            may_answer.set()
            wait_until(queue.is_done)
        queue.database.run(
            f"update oakleaf.session set status = 'running', holder = 'task:{queue.name}:t1#x', lease_until = 1"
        )
        code, findings = doctor(queue)
        assert code == 1
        (problem,) = [finding for finding in findings if session.session_id in finding["message"]]
        assert f"oakleaf enqueue --queue {queue.name} --resume {session.session_id}" in problem["fix"]
        command("doctor", "--fix", "--yes", store=queue.database.url)
        assert queue.store.session(session.session_id).row.status == "running"

    def test_a_session_that_failed_within_a_day_is_a_problem_and_an_older_one_is_not(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.store.start("a")
        session.send_sync("hello", model=ScriptedModel([errors.ModelUnavailable("scripted", "no key")]))
        code, findings = doctor(queue)
        [problem] = [finding for finding in findings if finding["level"] == "problem"]
        assert code == 1
        assert f"{session.session_id} failed: " in problem["message"]
        assert "no key" in problem["message"]
        assert f"oakleaf resume {session.session_id}" in problem["fix"]
        day = 86_400 * 1_000_000
        queue.database.run(f"update oakleaf.session set updated_at = updated_at - {2 * day}")
        code, findings = doctor(queue)
        assert code == 0
        assert "1 session failed" in [finding["message"] for finding in findings]

    def test_tasks_of_other_programs_in_the_queue_are_a_warning(self, queue: AbsurdQueue) -> None:
        queue.send("hello")
        queue.database.run(f"select absurd.spawn_task('{queue.name}', 'mail', '{{}}')")
        _, findings = doctor(queue)
        [warning] = [finding for finding in findings if finding["level"] == "warning"]
        assert f"queue '{queue.name}' has 1 task of other programs" in warning["message"]
        assert "--queue NAME" in warning["fix"]

    def test_an_engine_that_the_service_may_not_use_is_a_problem_and_stops_nothing_else(
        self, queue: AbsurdQueue
    ) -> None:
        """A dump restored without its roles leaves it so; doctor, the home page and metrics failed."""
        queue.database.run("revoke usage on schema absurd from oakleaf_service")
        try:
            code, findings = doctor(queue)
            assert code == 1
            (problem,) = [finding for finding in findings if finding["level"] == "problem"]
            assert "may not use the schema absurd" in problem["message"]
            assert problem["fix"].startswith("oakleaf --store URL migrate --queue")
            assert queue_statuses(queue.store.backend) == []  # type: ignore[arg-type]
            for refused in (
                lambda: Worker(queue.database.url, [], queue=queue.name),
                lambda: queue.send("hello"),
            ):
                with pytest.raises(MissingPermission, match="migrate --queue") as raised:
                    refused()
                assert "grant oakleaf_service" not in str(raised.value)
        finally:
            absurd_schema.install(queue.database.owner_url, queue.name)
        assert doctor(queue)[0] == 0

    def test_an_absurd_of_other_programs_is_none_of_our_business(self, postgres: DatabaseHost) -> None:
        database = Database(postgres, "foreign_engine")
        database.run("create schema absurd")
        done = command("doctor", store=database.url)
        assert (done.code, "absurd" in done.out) == (0, False)
        with pytest.raises(MissingPermission, match="may not use the schema absurd"):
            Worker(database.url, [])

    def test_a_login_that_is_no_service_is_told_so_before_it_is_told_of_the_engine(
        self, queue: AbsurdQueue
    ) -> None:
        with pytest.raises(MissingPermission, match="grant oakleaf_service to oakleaf_person"):
            Worker(queue.database.client_url, [], queue=queue.name)


class TestOverview:
    def test_the_home_page_is_told_of_queues_and_their_problems(self, queue: AbsurdQueue) -> None:
        queue.send("hello")
        queue.database.run(f"update absurd.r_{queue.name} set available_at = now() - interval '5 min'")
        add_worker(queue, "host:1", seconds_ago=40)
        with LocalServer(queue.store) as server:
            [view] = server.client.get("/api/overview").json()["queues"]
            assert (view["waiting"], view["workers"], view["dead_workers"]) == (1, 0, 1)
            assert view["waiting_seconds"] > 299
            assert "and no worker" in view["problem"]
            add_worker(queue, "host:2", seconds_ago=0)
            [view] = server.client.get("/api/overview").json()["queues"]
            assert (view["workers"], view["slots"], view["problem"]) == (1, 4, None)

    def test_metrics_have_the_depth_of_each_queue_and_its_workers(self, queue: AbsurdQueue) -> None:
        queue.send("hello")
        queue.database.run(f"update absurd.r_{queue.name} set available_at = now() - interval '5 min'")
        add_worker(queue, "host:2", seconds_ago=0)
        with LocalServer(queue.store, metrics=Metrics()) as server:
            lines = server.client.get("/metrics").text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if f'{{queue="{queue.name}"}}' in line)
        names = ("waiting_tasks", "running_tasks", "workers", "worker_slots", "waiting_task_seconds")
        *counts, seconds = (float(values[f'oakleaf_{name}{{queue="{queue.name}"}}']) for name in names)
        assert counts == [1, 0, 1, 4]
        assert seconds > 299

    def test_other_stores_have_no_queues(self) -> None:
        with oakleaf.open("memory:") as store, LocalServer(store, metrics=Metrics()) as server:
            assert server.client.get("/api/overview").json()["queues"] == []
            assert "{queue=" not in server.client.get("/metrics").text


class TestRegistry:
    def test_a_worker_is_listed_while_it_lives_and_gone_when_it_stopped_in_order(
        self, queue: AbsurdQueue
    ) -> None:
        with queue.working(Agent("a", ScriptedModel(["Hi."])), concurrency=3) as worker:
            wait_until(lambda: queue_statuses(queue.store.backend))
            [status] = queue_statuses(queue.store.backend)
            [only] = status.alive
            assert (only.name, only.slots, only.agents) == (worker.name, 3, ["a"])
        assert queue_statuses(queue.store.backend) == []


class TestSetUp:
    def test_the_queue_is_one_of_its_own(self, queue: AbsurdQueue) -> None:
        assert absurd_schema.install(queue.database.owner_url).queue == DEFAULT_QUEUE == "oakleaf"
        assert absurd.send(queue.store.start("a"), "hello").queue == "oakleaf"

    def test_a_newer_schema_is_not_answered_with_migrate(self, queue: AbsurdQueue) -> None:
        query = "create or replace function absurd.get_schema_version() returns text language sql as $$ select '{}'::text $$"
        queue.database.run(query.format("99.0.0"))
        try:
            for refused in (
                lambda: absurd_schema.install(queue.database.owner_url, queue.name),
                lambda: Worker(queue.database.url, [], queue=queue.name),
                lambda: queue.send("hello"),
            ):
                with pytest.raises(errors.NewerFormat, match=r"99\.0\.0.*install a newer Oakleaf") as raised:
                    refused()
                assert "migrate" not in str(raised.value)
        finally:
            queue.database.run(query.format(absurd_schema.VERSION))

    @pytest.mark.parametrize(
        ("name", "options", "words"),
        [
            ("", "", "queue=''"),
            ("x" * 58, "", "1 to 57 bytes"),
            ("new", "?options=-c%20default_transaction_read_only%3Don", "read"),
        ],
    )
    def test_what_the_server_refuses_is_explained(
        self, queue: AbsurdQueue, name: str, options: str, words: str
    ) -> None:
        url = queue.database.owner_url
        url += options.replace("?", "&") if "?" in url else options
        done = command("migrate", "--queue", name, "--yes", store=url)
        assert done.code != 0
        assert words in done.err
        assert "psycopg" not in done.err + done.out
        assert "Traceback" not in done.err

    def test_a_worker_does_not_start_where_it_could_not_claim(self, queue: AbsurdQueue) -> None:
        """On a standby it reported an error of the driver, several times a second, for ever."""
        url = queue.database.url + "&options=-c%20default_transaction_read_only%3Don"
        with pytest.raises(errors.StoreReadOnly, match="connect to the primary"):
            Worker(url, [], queue=queue.name)

    def test_a_server_that_is_not_there_is_said_by_a_worker(self, tmp_path: Any) -> None:
        agents = tmp_path / "agents.py"
        agents.write_text(
            "import oakleaf\nfrom oakleaf_postgres.absurd import Agent\na = Agent('a', oakleaf.ScriptedModel(['Hi.']))"
        )
        done = command("worker", "--agents", agents, store="postgresql://me:hunter2@127.0.0.1:1/none")
        assert done.code == 1
        assert "cannot connect to" in done.err
        assert "hunter2" not in done.err + done.out
        assert "Traceback" not in done.err
