"""Poison tasks: one that ends its process is isolated and given up; its neighbours and the workers live on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oakleaf import ScriptedModel
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import worker as absurd_worker
from oakleaf_postgres.absurd.deaths import MAX_DEATHS, MAX_DEATHS_ALONE
from oakleaf_postgres.absurd.engine import ATTEMPTS, Agent
from support.absurd_queue import AbsurdQueue
from support.postgres import Database, DatabaseHost
from support.processes import wait_until

AGENTS = """
import os, signal, sys, time
import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant
from oakleaf_postgres.absurd import Agent

@oakleaf.tool(effect="idempotent")
def die(how: str) -> str:
    '''End the process.'''
    print("printed by a tool")
    with open(os.environ["DIED"], "a") as file:
        file.write(how + "\\n")
    os._exit(0) if how == "exit" else os.kill(os.getpid(), signal.SIGSEGV)

@oakleaf.tool(effect="idempotent")
def linger() -> str:
    '''Wait until the first death, as a neighbour in the same process.'''
    deadline = time.monotonic() + 20
    while not os.path.exists(os.environ["DIED"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    return "waited"

def answer(request):
    last = request.messages[-1]
    if last.results:
        return "Done."
    return assistant(ToolCall("c", "linger", {}) if last.text == "linger" else ToolCall("c", "die", {"how": last.text}))

agent = Agent("a", ScriptedModel(answer), [die, linger])
"""


@pytest.fixture(scope="module")
def installed(postgres: DatabaseHost) -> Database:
    return Database(postgres, "poison")


@pytest.fixture
def queue(installed: Database) -> Iterator[AbsurdQueue]:
    queue = AbsurdQueue(installed)
    yield queue
    queue.close()


class Supervisor:
    """Starts a real worker, and starts it again when it dies, as an operator's supervisor does."""

    def __init__(self, queue: AbsurdQueue, folder: Path) -> None:
        agents = folder / "agents.py"
        agents.write_text(AGENTS)
        self.died, self.log, self.starts = folder / "died", folder / "log", 0
        self._command = [sys.executable, "-m", "oakleaf.cli.main", "worker", "--queue", queue.name]
        self._command += ["--agents", str(agents), "--concurrency", "3", "--lease", "2s", "--log", "json"]
        self._environment = {**os.environ, "OAKLEAF_STORE": queue.database.url, "DIED": str(self.died)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        print(self.log.read_text())

    def _run(self) -> None:
        with self.log.open("w") as file:
            while not self._over.is_set():
                self.starts += 1
                process = subprocess.Popen(self._command, env=self._environment, stderr=file)
                while process.poll() is None and not self._over.wait(0.05):
                    pass
            process.terminate()
            assert process.wait(20) == 0


class TestProcess:
    def test_a_task_that_ends_its_process_is_given_up_and_takes_one_worker_with_it(
        self, queue: AbsurdQueue, tmp_path: Path
    ) -> None:
        sessions = {text: queue.store.start("a") for text in ("linger", "segfault", "exit")}
        for text, session in sessions.items():
            absurd.send(session, text, queue=queue.name)
        neighbour = sessions.pop("linger")
        with Supervisor(queue, tmp_path) as supervisor:
            wait_until(lambda: all(session.row.status == "failed" for session in sessions.values()), 120)
            wait_until(lambda: neighbour.row.status == "idle", 60)
        assert supervisor.starts == 2, "one worker died, before the tasks were suspected"
        log, deaths = supervisor.log.read_text(), supervisor.died.read_text().split()
        assert "printed by a tool" in log
        records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        ended = {
            (record["session_id"], record["outcome"]): record
            for record in records
            if record.get("event") == "task_ended"
        }
        assert (neighbour.session_id, "idle") in ended
        query = (
            f"select state, max_attempts - attempts from absurd.t_{queue.name} where params ->> 'session' = "
        )
        for text, session in sessions.items():
            assert deaths.count(text) in (MAX_DEATHS_ALONE, MAX_DEATHS_ALONE + 1)
            error = session.row.error or ""
            assert {"segfault": "SIGSEGV", "exit": "exited with code 0"}[text] in error
            assert f"--resume {session.session_id}" in error
            facts = [fact.data for fact in session.journal() if fact.kind == "turn_left"]
            assert facts == [{"turn": 1, "status": "failed", "error": error}]
            assert session.row.holder is None
            assert session.verify() == []
            assert (
                f"of session {session.session_id} was given up"
                in ended[session.session_id, "failed"]["error"]
            )
            assert queue.database.run(f"{query} '{session.session_id}'") == [("failed", 0)]
        assert queue.database.run(f"{query} '{neighbour.session_id}'") == [("completed", ATTEMPTS - 1)]
        neighbour.refresh()
        texts = [entry.message.text for entry in neighbour.transcript() if entry.message]
        assert texts == ["linger", "Done."]


class TestCounting:
    """In this process: a worker that dies is a claim that expires."""

    def claim(self, queue: AbsurdQueue) -> Any:
        with psycopg.connect(queue.database.url, autocommit=True) as connection:
            for _ in range(2):  # the first call ends expired claims, the second may claim the task
                self.make_due(queue)
                rows = connection.execute("select * from absurd.claim_task(%s, 'dead', 30)", (queue.name,))
                if row := rows.fetchone():
                    return row
        raise AssertionError("nothing to claim")

    def make_due(self, queue: AbsurdQueue) -> None:
        queue.database.run(f"update absurd.r_{queue.name} set available_at = now() where state <> 'running'")

    def die(self, queue: AbsurdQueue) -> None:
        self.claim(queue)
        expired = "set claim_expires_at = now() where state = 'running'"
        queue.database.run(f"update absurd.r_{queue.name} {expired}")

    def work(
        self, queue: AbsurdQueue, is_over: Callable[[], object], own_process: Sequence[str] = ()
    ) -> list[str]:
        self.make_due(queue)
        lines: list[str] = []
        agent = Agent("a", ScriptedModel(["Hello."]))
        with queue.working(agent, lease=30, report=lines.append, own_process=own_process):
            sleeping = f"update absurd.r_{queue.name} set available_at = now() where state = 'sleeping'"
            wait_until(lambda: is_over() or queue.database.run(sleeping), 60)
        return lines

    @pytest.mark.parametrize("deaths", [1, MAX_DEATHS - 1])
    def test_workers_that_die_do_not_condemn_a_task_nor_use_up_its_attempts(
        self, queue: AbsurdQueue, deaths: int
    ) -> None:
        session = queue.send("hello")
        for _ in range(deaths):
            self.die(queue)
        self.work(queue, lambda: session.row.status == "idle")
        assert queue.database.run(f"select state, attempts, max_attempts from absurd.t_{queue.name}") == [
            ("completed", deaths + 1, ATTEMPTS + 1)
        ]

    def test_a_task_whose_workers_die_again_and_again_is_given_up_and_can_be_resumed(
        self, queue: AbsurdQueue
    ) -> None:
        session = queue.send("hello", key="k")
        for _ in range(MAX_DEATHS):
            self.die(queue)
        lines = self.work(queue, lambda: session.row.status == "failed")
        assert f"{MAX_DEATHS} processes died" in (session.row.error or "")
        assert any("was given up" in line for line in lines)
        assert queue.database.run(f"select state from absurd.t_{queue.name}") == [("failed",)]
        absurd.resume(session, queue=queue.name)
        self.work(queue, lambda: session.row.status == "idle")
        session.refresh()
        assert [entry.message.text for entry in session.transcript() if entry.message] == ["hello", "Hello."]
        assert session.verify() == []

    def test_a_process_that_does_not_start_is_no_death(self, queue: AbsurdQueue) -> None:
        session = queue.send("hello")
        self.die(queue)
        is_returned = (
            f"select 1 from absurd.r_{queue.name} where state = 'sleeping' and started_at is not null"
        )
        lines = self.work(
            queue,
            lambda: queue.database.run(is_returned),
            own_process=[sys.executable, "-c", "raise SystemExit(3)"],
        )
        assert any("did not start (it exited with code 3)" in line for line in lines)
        self.work(queue, lambda: session.row.status == "idle")
        assert queue.database.run(f"select attempts from absurd.t_{queue.name}") == [(2,)]

    @pytest.mark.parametrize("deaths", [1, 2])
    def test_if_there_are_processes_enough_a_first_suspect_runs_here_and_a_second_one_waits(
        self, queue: AbsurdQueue, deaths: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(absurd_worker, "MAX_OWN_PROCESSES", 0)
        session = queue.send("hello")
        for _ in range(deaths):
            self.die(queue)
        is_returned = f"select 1 from absurd.r_{queue.name} where state = 'sleeping' and attempt = 3 and started_at is not null"
        self.work(
            queue,
            lambda: session.row.status == "idle" if deaths == 1 else queue.database.run(is_returned),
            own_process=["not started"],
        )
        assert (session.row.status == "idle") is (deaths == 1)
