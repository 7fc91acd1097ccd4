"""Workers killed, paused, stopped and cut off from their server: no session is lost and no unsafe effect happens twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oakleaf
from oakleaf import Session, system
from oakleaf.core.usage import calls_on_path
from oakleaf.wire import PROVIDERS, find_provider
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.step import Checkpoint, checkpoint
from support import worker_agent
from support.postgres import Database, DatabaseHost, PostgresServer
from support.processes import end_workers
from support.sessions import tasks_of

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
SESSIONS = 100 if SOAK else 10
numbers = count(1)

# From a server of its own that has loaded everything: this process has threads, and a fork of it could hang.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["support.worker_agent", "oakleaf_postgres.store.store", "oakleaf.models.prices"]
)


class Desk:
    """A queue with its workers, and a person who approves whatever waits."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.lines_path = database, folder / "lines"
        self.queue = f"k{next(numbers)}"
        absurd_schema.install(database.owner_url, self.queue)
        self.store = oakleaf.open(database.url)
        self.workers: list[BaseProcess] = []
        self.kills = 0
        self.sessions: list[Session] = []

    def send(self, many: int, *inputs: str) -> None:
        for _ in range(many):
            session = self.store.start("crash", [system("You do as you are told.")])
            absurd.send(session, inputs[0], queue=self.queue)
            for text in inputs[1:]:
                absurd.enqueue(session, text, queue=self.queue)
            self.sessions.append(session)

    def start(self, work: Callable[..., None] = worker_agent.run_worker, *how: Any) -> BaseProcess:
        arguments = (self.database.url, self.queue, str(self.lines_path), *how)
        process = context.Process(target=work, args=arguments, daemon=True)
        process.start()
        self.workers.append(process)
        return process

    def kill(self, process: BaseProcess) -> None:
        process.kill()
        process.join()
        self.kills += 1

    def lines(self) -> list[str]:
        return worker_agent.read_lines(self.lines_path)

    def states(self) -> Counter[str]:
        return Counter(state for (state,) in self.database.run(f"select state from absurd.t_{self.queue}"))

    def is_done(self) -> bool:
        self.approve()
        states = self.states()
        assert not states["failed"], self.failures()
        return states["completed"] == sum(states.values())

    def approve(self) -> None:
        query = f"select params ->> 'session' from absurd.t_{self.queue} where state = 'sleeping'"
        for (session_id,) in self.database.run(query):
            session = self.store.session(session_id)
            places = {kind: set[Any]() for kind in ("approval_requested", "approved")}
            for fact in session.journal():
                if fact.kind in places:
                    places[fact.kind].add((fact.data["seq"], fact.data["index"]))
            for call in session.open_tool_calls:
                if (call.seq, call.index) in places["approval_requested"] - places["approved"]:
                    session.approve(call)

    def failures(self) -> list[Any]:
        return self.database.run(f"select failure_reason from absurd.r_{self.queue} where state = 'failed'")

    def until(self, holds: Callable[[], object], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, (self.states(), self.failures()[-3:], self.lines()[-5:])
            time.sleep(0.05)

    def stop(self) -> None:
        end_workers(self.workers)

    def check(self, *transcript: str) -> None:
        """What holds whatever happened to the workers; counts of calls for every session together."""
        effects = Counter(line for line in self.lines() if line.startswith("effect unsafe"))
        assert not [line for line, times in effects.items() if times > 1], "an unsafe effect happened twice"
        model_calls, rows = self.lines().count("model"), 0
        for session in self.sessions:
            session.refresh()
            assert session.verify() == []
            assert session.row.holder is None
            assert [entry.message.text for entry in session.transcript() if entry.message] == list(transcript)
            for one in (session, *tasks_of(session)):
                rows += len(one.model_calls())
                assert one.row.status == "idle"
                for provider in PROVIDERS:
                    assert find_provider(provider).violations(one.request(provider)) == []
            keys = [fact.key for fact in session.journal() if fact.key is not None]
            assert len(keys) == len(set(keys)), "a change was written twice"
            self.check_steps(session)
        assert model_calls <= rows <= model_calls + self.kills * 4, (
            "every call made is in the ledger, and few that were cut off"
        )

    def check_steps(self, session: Session) -> None:
        """The checkpoints of a session's tasks are what its log says, and every step has one."""
        query = f"""
            select c.state from absurd.t_{self.queue} join absurd.c_{self.queue} as c using (task_id)
            where params ->> 'session' = '{session.session_id}' and checkpoint_name like 'agent-loop%'"""
        calls, path = calls_on_path(session.model_calls(), session.log.ranges()), session.path()
        checkpoints = [msgspec.convert(state, Checkpoint) for (state,) in self.database.run(query)]
        checkpoints.sort(key=lambda one: one.to_message_number)
        steps = sorted(
            {(entry.turn, entry.step): entry.seq for entry in path if entry.message and entry.step}.values()
        )
        assert [one.to_message_number for one in checkpoints] == steps
        assert checkpoints == [checkpoint(path[:to], (), calls) for to in steps]


@pytest.fixture(scope="module")
def installed(postgres: DatabaseHost) -> Database:
    return Database(postgres, "workers")


@pytest.fixture
def desk(installed: Database, tmp_path: Path) -> Iterator[Desk]:
    new_desk = Desk(installed, tmp_path)
    yield new_desk
    new_desk.stop()
    new_desk.store.close()


WHOLE = [text for pair in zip(worker_agent.INPUTS, worker_agent.ANSWERS, strict=True) for text in pair]


class TestKill:
    def test_killed_at_every_point_another_worker_goes_on(self, desk: Desk) -> None:
        desk.send(1, *worker_agent.INPUTS)
        whole = desk.start()
        desk.until(desk.is_done)
        whole.terminate()
        whole.join()
        points = int(desk.lines()[-1].split()[1])
        tries = range(1, points + 1) if SOAK else range(2, points + 1, 7)
        desk.send(len(tries), *worker_agent.INPUTS)
        for first in range(0, len(tries), 8):
            doomed = [desk.start(worker_agent.run_worker, kill_at) for kill_at in tries[first : first + 8]]
            desk.until(lambda: desk.is_done() or not any(one.is_alive() for one in doomed))  # noqa: B023
        for _ in range(2):
            desk.start(worker_agent.run_worker, 0, 4)
        desk.until(desk.is_done)
        desk.stop()
        names = Counter(line.split(maxsplit=1)[1] for line in desk.lines() if line.startswith("killed"))
        desk.kills += sum(names.values())
        print(f"{points} points, {len(tries)} tried, {desk.kills} died: {dict(names)}")
        assert desk.kills >= len(tries) * 0.8
        assert set(desk.states()) == {"completed"}
        desk.check(*WHOLE)

    def test_three_workers_killed_at_random_finish_every_session(self, desk: Desk) -> None:
        rng = random.Random(os.environ.get("OAKLEAF_SEED", "workers"))
        desk.send(SESSIONS, *worker_agent.INPUTS)
        working = [desk.start(worker_agent.run_worker, 0, 4) for _ in range(3)]
        deadline = time.monotonic() + (60 if SOAK else 5)
        while time.monotonic() < deadline and not desk.is_done():
            time.sleep(rng.uniform(0.3, 1.0))
            n = rng.randrange(3)
            desk.kill(working[n])
            working[n] = desk.start(worker_agent.run_worker, 0, 4)
        desk.until(desk.is_done, 300)
        desk.stop()
        print(f"{SESSIONS} sessions, {desk.kills} workers killed, {desk.lines().count('model')} model calls")
        assert desk.kills > 2
        desk.check(*WHOLE)


class TestPause:
    def test_a_worker_paused_past_its_lease_loses_cleanly(self, desk: Desk) -> None:
        desk.send(2, "go")
        sleeper = desk.start(worker_agent.run_slow_worker, 0.5)
        desk.until(lambda: desk.lines().count("model") >= 3)
        os.kill(sleeper.pid or 0, signal.SIGSTOP)
        paused_at = [session.refresh().leaf.seq for session in desk.sessions]
        desk.start(worker_agent.run_slow_worker, 0.1)
        desk.until(desk.is_done)
        ended_at = [session.refresh().leaf.seq for session in desk.sessions]
        assert ended_at > paused_at
        os.kill(sleeper.pid or 0, signal.SIGCONT)
        desk.until(lambda: sum("no longer this worker's" in line for line in desk.lines()) == 2, 10)
        assert sleeper.is_alive(), "it lost its tasks, not its life"
        desk.send(1, "go")
        desk.until(desk.is_done)
        desk.kills = 1
        desk.check("go", "Done.")
        assert [session.refresh().leaf.seq for session in desk.sessions[:2]] == ended_at

    def test_a_worker_paused_within_a_transaction_does_not_lock_its_task_up(self, desk: Desk) -> None:
        desk.send(1, *worker_agent.INPUTS)
        sleeper = desk.start(worker_agent.run_worker, "within transaction", 1, 1, signal.SIGSTOP)
        # Looking whether all is done also approves what waits.
        desk.until(lambda: not desk.is_done() and "killed within transaction" in desk.lines())
        desk.start()
        desk.until(desk.is_done)
        os.kill(sleeper.pid or 0, signal.SIGCONT)
        desk.until(lambda: any("no longer this worker's" in line for line in desk.lines()), 10)
        desk.kills = 1
        desk.check(*WHOLE)


class TestServer:
    @pytest.fixture
    def own(self, tmp_path: Path) -> Iterator[tuple[PostgresServer, Desk]]:
        """A server that may be stopped, and that loses nothing it has promised."""
        server = PostgresServer(("fsync=on", "synchronous_commit=on"))
        server.start()

        class Own(DatabaseHost):
            def __init__(self) -> None:
                self._external_url, self._database_names, self.server = None, [], server

        desk = Desk(Database(Own(), "restarted"), tmp_path)
        yield server, desk
        desk.stop()
        desk.store.close()
        server.close()

    def test_workers_outlive_a_server_that_dies_and_comes_back(
        self, own: tuple[PostgresServer, Desk]
    ) -> None:
        server, desk = own
        desk.send(6, *worker_agent.INPUTS)
        workers = [desk.start(worker_agent.run_worker, 0, 3) for _ in range(2)]
        for calls in (8, 20, 32):
            desk.until(lambda: desk.is_done() or desk.lines().count("model") > calls)  # noqa: B023
            server.stop(signal.SIGQUIT)
            time.sleep(0.3)
            server.start()
        desk.until(desk.is_done)
        assert all(one.is_alive() for one in workers)
        desk.stop()
        desk.kills = 3 * 6
        desk.check(*WHOLE)
        unknown = [
            result
            for session in desk.sessions
            for entry in session.path()
            if entry.message
            for result in entry.message.results
            if result.outcome == "unknown"
        ]
        print(f"3 restarts, {len(unknown)} outcomes unknown")


class TestStop:
    def test_sigterm_gives_tasks_back_and_another_worker_ends_them(self, desk: Desk) -> None:
        desk.send(2, "go")
        first = desk.start(worker_agent.run_slow_worker, 0.3, 5)
        desk.until(lambda: desk.lines().count("model") >= 3)
        first.terminate()
        first.join(10)
        assert first.exitcode == 0
        assert desk.states() == {"sleeping": 2}
        desk.start(worker_agent.run_slow_worker, 0.0, 5)
        desk.until(desk.is_done)
        desk.check("go", "Done.")
        assert desk.database.run(f"select max(attempts) from absurd.t_{desk.queue}") == [(1,)]
        assert all(session.usage().unknown_calls == 0 for session in desk.sessions)
