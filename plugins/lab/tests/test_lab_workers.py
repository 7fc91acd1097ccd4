"""A lab on the workers of a queue: the report of a local run, whatever happens to workers and command, within one budget."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import oakleaf
from oakleaf import ScriptedModel, Store
from oakleaf.core.context import Context
from oakleaf.errors import PostgresRequired
from oakleaf.models.base import Request
from oakleaf_lab import queue_runner
from oakleaf_lab.budget import CostBudget, RunStopping
from oakleaf_lab.control import JudgeSpec, RunControl, SharedBudget, Start
from oakleaf_lab.errors import BudgetReached, InvalidLab
from oakleaf_lab.lab import Lab
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.record import LabRecord
from oakleaf_lab.scorers import Judge
from oakleaf_lab.worker_task import run_cell
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.deaths import Deaths
from oakleaf_postgres.absurd.handlers import HandlerTask
from oakleaf_postgres.absurd.worker import Worker
from oakleaf_postgres.errors import EngineNotInstalled
from support import lab_sessions, lab_worker
from support.fake_providers import FakeProviders
from support.lab_sessions import RATES, answer, ledger, noisy, record_sessions
from support.postgres import Database, DatabaseHost
from support.processes import end_workers
from support.soak import SOAK
from support.terminal import oakleaf as cli

SESSIONS = 12 if SOAK else 2
KILLS = (1, 4, 7, 9, 13, 20) if SOAK else (7,)
numbers = count(1)

# From a server of its own that has loaded everything: this process has threads, and a fork of it could hang.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["support.lab_worker", "oakleaf_postgres.store.store", "oakleaf.models.prices"]
)


class Fleet:
    """A database with recorded sessions, a queue and its workers."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.queue, self._log = database, f"lab{next(numbers)}", folder / "calls"
        absurd_schema.install(database.owner_url, self.queue)
        database.empty()
        self.store = lab_worker.open_store(database.url)
        record_sessions(self.store, SESSIONS)
        self.workers: list[BaseProcess] = []

    def start(self, *how: Any) -> BaseProcess:
        arguments = (self.database.url, self.queue, str(self._log), *how)
        process = context.Process(target=lab_worker.run_worker, args=arguments, daemon=True)
        process.start()
        self.workers.append(process)
        return process

    def lab(self, **how: Any) -> Lab:
        return Lab(
            self.store,
            "agent:support",
            baseline_model=lab_worker.model("old", 0.1),
            model=lab_worker.model("new", 0.4),
            after_divergence="continue",
            **how,
        )

    def run(self, **how: Any) -> LabReport:
        return self.lab(queue=self.queue).run_sync(**how)

    def calls(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, self.calls()[-5:]
            time.sleep(0.02)

    def close(self) -> None:
        end_workers(self.workers)
        self.store.close()


@pytest.fixture(scope="module")
def database(postgres: DatabaseHost) -> Database:
    return Database(postgres, "labs")


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(database, tmp_path)
    yield fleet
    fleet.close()


SCORED: dict[str, Any] = {"scorers": [lab_worker.apologises], "fail_if": ["tool_changed > 90%"]}


def scored() -> dict[str, Any]:
    return {**SCORED, "judge": Judge(lab_worker.judge(), "Is it polite?")}


def cost(store: Store) -> int:
    return sum(
        call.price.microcents
        for row in store.all_sessions(relation="replay")
        for call in store.session(row.session_id).model_calls()
        if call.price is not None
    )


@pytest.fixture(scope="module")
def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[bytes]]:
    """What a local run of the same lab reports and pays."""
    fleet = Fleet(database, tmp_path_factory.mktemp("local"))
    report = fleet.lab().run_sync(**scored())
    paid = ledger(fleet.store)
    fleet.close()
    assert (report.status, bool(paid)) == ("complete", True)
    return msgspec.json.encode(report), paid


class TestReport:
    def test_it_is_that_of_a_local_run_though_workers_are_killed(
        self, fleet: Fleet, whole: tuple[bytes, list[bytes]]
    ) -> None:
        for kill_at in KILLS:
            fleet.start(kill_at)
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(fleet.run, **scored())
            fleet.until(lambda: fleet.calls().count("killed") == len(KILLS))
            fleet.start()
            report = running.result()
        calls = Counter(fleet.calls())
        assert calls["killed"] == len(KILLS)
        assert msgspec.json.encode(report) == whole[0]
        assert ledger(fleet.store) == whole[1]
        made = sum(calls.values()) - calls["killed"]
        assert made <= len(whole[1]) + len(KILLS), (
            "at most what was in flight when a worker died is asked for again"
        )
        assert list(fleet.store.verify()) == []
        again = len(fleet.calls())
        assert msgspec.json.encode(fleet.run(**scored())) == whole[0]
        assert len(fleet.calls()) == again, "a complete run is not run again"


class TestBudget:
    def test_all_workers_together_never_pass_the_limit_and_a_larger_one_continues(self, fleet: Fleet) -> None:
        for _ in range(2):
            fleet.start(0, 3, 0.01)
        limit = 1_000_000
        report = fleet.run(max_cost_microcents=limit)
        assert (report.status, report.exit_code) == ("incomplete", 4)
        assert "larger --max-cost" in (report.why or "")
        assert 0 < cost(fleet.store) == report.spent_microcents <= limit
        final = fleet.run(max_cost_microcents=100 * limit)
        assert (final.status, final.run_id) == ("complete", report.run_id)
        assert len(fleet.calls()) == len(ledger(fleet.store)), "no call was made twice"

    def test_two_processes_cannot_both_reserve_the_last_cent(self, store: Store) -> None:
        """On every store: a note is appended only behind the notes that were read."""
        controls = [RunControl.create(store, "lab_x") for _ in range(2)]
        number = controls[0].begin()
        controls[0].open(Start(number, "default", 100, 40))
        for control in controls:
            control.update()
        key = controls[0].reserve(number, 60)
        with pytest.raises(BudgetReached, match="is reserved for calls that are running"):
            controls[1].reserve(number, 1)
        controls[0].settle(key, 20)
        assert controls[1].reserve(number, 40)
        controls[1].stop(number, "enough")
        with pytest.raises(RunStopping):
            controls[0].reserve(number, 0)
        controls[0].update()
        assert controls[0].why == "enough"

    def test_a_model_without_a_price_is_refused_with_the_limit_of_the_run(self, store: Store) -> None:
        control = RunControl.create(store, "lab_x")
        number = control.begin()
        control.open(Start(number, "default", 1_000_000_000, 0))
        budget = SharedBudget(control, number, CostBudget(0), lambda: False)
        unpriced = ScriptedModel(["Yes."], model="unpriced")
        with pytest.raises(
            InvalidLab, match=r"unpriced has no price, so the limit of \$10\.00 cannot be held"
        ):
            asyncio.run(budget.reserve(unpriced, Request(Context((), ()), lambda _: None)))

    def test_what_a_dead_worker_had_reserved_counts_until_the_next_start(self, store: Store) -> None:
        control = RunControl.create(store, "lab_x")
        first = control.begin()
        control.open(Start(first, "default", 100, 0))
        control.reserve(first, 100)
        with pytest.raises(BudgetReached):
            control.reserve(first, 1)
        second = control.begin()
        with pytest.raises(RunStopping):
            control.reserve(first, 1)
        control.open(Start(second, "default", 100, 30))
        assert control.reserve(second, 70)


class TestCommand:
    def test_interrupted_its_workers_finish_their_calls_and_the_same_command_continues(
        self, fleet: Fleet, whole: tuple[bytes, list[bytes]]
    ) -> None:
        fleet.start(0, 2, 0.05)
        notices: list[str] = []

        async def interrupt() -> None:
            lab = fleet.lab(queue=fleet.queue)
            task = asyncio.create_task(lab.run(**scored(), notify=notices.append))
            await asyncio.to_thread(fleet.until, lambda: len(fleet.calls()) >= 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(interrupt())
        assert notices == ["stopping: the workers finish their calls in flight first"]
        made = len(fleet.calls())
        time.sleep(0.3)
        assert len(fleet.calls()) == made, "the workers have stopped"
        assert len(ledger(fleet.store)) == made, "the answers in flight are stored"
        assert msgspec.json.encode(fleet.run(**scored())) == whole[0]
        assert ledger(fleet.store) == whole[1]
        assert len(fleet.calls()) == len(whole[1])

    def test_killed_its_workers_go_on_and_a_local_run_takes_over(
        self, fleet: Fleet, whole: tuple[bytes, list[bytes]]
    ) -> None:
        fleet.start(0, 2, 0.05)
        command = context.Process(
            target=lab_worker.run_command, args=(fleet.database.url, fleet.queue), daemon=True
        )
        command.start()
        fleet.until(lambda: len(fleet.calls()) >= 2)
        command.kill()
        command.join()
        made = len(fleet.calls())
        fleet.until(lambda: len(fleet.calls()) >= made + 2)
        assert msgspec.json.encode(fleet.lab().run_sync(**scored())) == whole[0]
        assert ledger(fleet.store) == whole[1]
        assert 0 < len(fleet.calls()) < len(whole[1]), "the workers stopped when the local run began"


class TestWorker:
    def test_one_that_is_stopped_returns_its_cells_at_once(
        self, fleet: Fleet, whole: tuple[bytes, list[bytes]]
    ) -> None:
        first = fleet.start(0, 2, 0.05)

        async def replace_worker() -> LabReport:
            running = asyncio.create_task(fleet.lab(queue=fleet.queue).run(**scored()))
            await asyncio.to_thread(fleet.until, lambda: len(fleet.calls()) >= 3)
            first.terminate()
            await asyncio.to_thread(first.join, 20)
            fleet.start()
            return await running

        assert msgspec.json.encode(asyncio.run(replace_worker())) == whole[0]
        assert len(fleet.calls()) == len(whole[1])
        attempts = fleet.database.run(f"select max(attempts) from absurd.t_{fleet.queue}")
        assert attempts == [(1,)]

    def test_one_that_lacks_the_model_or_the_tools_says_what_it_needs(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(queue_runner.RETRY, "base_seconds", 0.01)
        monkeypatch.setitem(queue_runner.RETRY, "max_seconds", 0.01)
        fleet.start()
        other = ScriptedModel(answer, model="other", rates=RATES)
        how: dict[str, Any] = {"queue": fleet.queue}
        lines: list[str] = []
        report = Lab(fleet.store, "ses_case_000", baseline_model=other, **how).run_sync(notify=lines.append)
        assert (report.status, report.exit_code) == ("incomplete", 4)
        assert "no agent of this worker has the model other" in (report.why or "")
        assert "start it with an agents file" in (report.why or "")

        @oakleaf.tool(effect="read")
        def look_up(order: int) -> str:
            """Not what the workers have."""
            return "lost"

        old = lab_worker.model("old", 0.1)
        lab = Lab(fleet.store, "ses_case_000", baseline_model=old, tools=[look_up], mode="dry", **how)
        assert "has the tools look_up as the lab was planned" in (lab.run_sync().why or "")
        tools = [lab_sessions.track, lab_sessions.look_up]
        lab = Lab(fleet.store, "ses_case_000", baseline_model=old, tools=tools, mode="dry", **how)
        assert lab.run_sync().status == "complete"

    @pytest.mark.attack
    def test_one_sends_nothing_to_an_address_that_only_the_store_names(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(queue_runner.RETRY, "base_seconds", 0.01)
        monkeypatch.setitem(queue_runner.RETRY, "max_seconds", 0.01)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-0123456789")
        fleet.start()
        with FakeProviders() as stranger:
            name = f"openai:m@{stranger.url_for('openai').replace('127.0.0.1', '0.0.0.0')}"
            lab = Lab(fleet.store, "ses_case_000", baseline_model=name, queue=fleet.queue)
            report = lab.run_sync()
            assert stranger.requests == []
        assert f"{name} was not asked: its address" in (report.why or "")
        assert "OAKLEAF_SERVERS" in (report.why or "")

    def test_a_cell_that_ends_its_workers_is_given_up_and_named(self, fleet: Fleet) -> None:
        lab, store = fleet.lab(queue=fleet.queue), fleet.store
        record = LabRecord.create(store, lab.run_id, lab.plan)
        control = RunControl.create(store, lab.run_id)
        spec = JudgeSpec("judge", "Is it polite?", "judge")
        control.open(Start(control.begin(), fleet.queue, None, 0, spec))
        cell = next(lab.plan.cells())
        params = {"session": lab.run_id, "space": "default", "number": 1, "cell": msgspec.to_builtins(cell)}
        worker = Worker(fleet.database.url, lab_worker.agents(lambda line: None), queue=fleet.queue)
        claim: Any = SimpleNamespace(queue=fleet.queue, task_id="t", attempt=5)
        run_cell(HandlerTask(worker, claim, Deaths(alone=3, total=4, last="signal 9")), params)
        record.update()
        assert record.cells[cell].error == "4 worker processes died while they replayed it (signal 9)"
        assert record.has(Judge(lab_worker.judge(), "Is it polite?").key(cell)), (
            "nothing waits for its scores"
        )
        worker._store.close()


class TestBadInput:
    def test_what_a_worker_cannot_be_told_is_refused(self, fleet: Fleet) -> None:
        how: dict[str, Any] = {"queue": fleet.queue}
        with pytest.raises(InvalidLab, match="a function of the cell"):
            Lab(fleet.store, "agent:support", baseline_model=noisy(1), **how)
        old = lab_worker.model("old", 0.1)
        with pytest.raises(InvalidLab, match="contains a secret"):
            Lab(fleet.store, "agent:support", baseline_model=old, prompt=f"key sk-ant-{'a1' * 20}", **how)
        with pytest.raises(EngineNotInstalled, match="no queue 'nosuch'"):
            Lab(fleet.store, "agent:support", baseline_model=old, queue="nosuch")

    def test_it_needs_postgresql(self) -> None:
        with oakleaf.open("memory:") as store, pytest.raises(PostgresRequired):
            Lab(store, "agent:support", queue="oakleaf")


class TestCommandLine:
    def test_oakleaf_worker_runs_the_cells_of_oakleaf_lab_run(self, fleet: Fleet, tmp_path: Path) -> None:
        """With models by name: each process has its own objects."""
        script = {"lines": ["It is lost."], "rates": {"input": 3, "output": 15}}
        (tmp_path / "plain.json").write_text(json.dumps(script))
        (tmp_path / "agents.py").write_text(
            "from oakleaf_postgres.absurd import Agent\n\n"
            f"support = Agent('support', 'scripted:{tmp_path}/plain.json')\n"
        )
        command = [sys.executable, "-m", "oakleaf.cli.main", "--store", fleet.database.url, "worker"]
        options = ["--queue", fleet.queue, "--agents", str(tmp_path / "agents.py"), "--lease", "2s"]
        lab = ("lab", "run", "agent:support", "--set", f"baseline.model=scripted:{tmp_path}/plain.json")
        workers = ("--set", f"queue={fleet.queue}")
        with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
            done = cli(*lab, *workers, "--max-cost", "1", "--json", store=fleet.database.url)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert done.code == 0, done.err
        assert (done.json["status"], done.json["cells"]) == ("complete", 3 * SESSIONS)
        assert done.json["spent_microcents"] > 0
        assert cli(*lab, "--json", store=fleet.database.url).out == done.out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--set", "queue=oakleaf", "--set", "workers=2"), "oakleaf worker --concurrency"),
            (("--set", "queue=nosuch"), "migrate --queue nosuch"),
        ],
    )
    def test_each_bad_option_says_what_to_do(
        self, fleet: Fleet, arguments: tuple[str, ...], words: str
    ) -> None:
        done = cli("lab", "run", "agent:support", *arguments, store=fleet.database.url)
        assert done.code in (1, 2)
        assert words in done.err

    def test_a_file_has_no_workers(self, tmp_path: Path) -> None:
        done = cli("lab", "run", "agent:support", "--set", "queue=q", store=tmp_path / "s.db")
        assert (done.code, "need PostgreSQL" in done.err) == (2, True)
