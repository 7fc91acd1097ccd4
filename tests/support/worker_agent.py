"""A worker to kill: two turns of tools, an approval, a child task and a compaction, on a queue of the real engine.

Every statement, every transaction and every effect is a named point before and after which the process may die.
Its effects are appended to a file that the test reads.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from oakleaf import Limits, ScriptedModel, Slow, ToolCall, assistant
from oakleaf.errors import ContextOverflow
from oakleaf.models.base import Request
from oakleaf_postgres.absurd import worker as absurd_worker
from oakleaf_postgres.absurd.claim import Claim
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.worker import Worker
from oakleaf_postgres.store.connections import PostgresConnections
from oakleaf_postgres.store.guard import SqlGuard
from support import crash_agent

INPUTS = ["do it", "and now at length"]
ANSWERS = ["I did it.", "All said."]
LIMITS = Limits(pause=lambda failures: 0.0)


class FileKillPoints(crash_agent.KillPoints):
    """Kill points reported to a file, which many workers write and which outlives them."""

    def __init__(
        self, path: str, kill_at: int | str = 0, signal_number: signal.Signals = signal.SIGKILL
    ) -> None:
        """Kill the process at the point with this number, or at the first point with this name."""
        number = kill_at if isinstance(kill_at, int) else 0
        super().__init__(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        self.signal_number, self.name = signal_number, kill_at

    def point(self, name: str) -> None:
        self.points += 1
        if self.points == self.kill_at or name == self.name:
            self.name = 0
            self.report(f"killed {name}")
            os.kill(os.getpid(), self.signal_number)


def script(kill_points: FileKillPoints) -> Any:
    def answer(request: Request) -> Any:
        kill_points.point("before model")
        kill_points.report("model")
        items = [item for item in request.context.items if not item.pinned]
        turn = [item for item in items if item.turn == items[-1].turn]
        answers = sum(item.message.role == "assistant" for item in turn)
        text = turn[0].message.text
        if text == INPUTS[1] and not any(item.pinned for item in request.context.items):
            return ContextOverflow("scripted", "too long")
        delegation = assistant("Asking.", ToolCall("d", "delegate", {"task": "think"}))
        lines: dict[str, list[Any]] = {
            INPUTS[0]: [crash_agent.batch(0, 1, 2), crash_agent.batch(4, 5, 8, 9), delegation, ANSWERS[0]],
            INPUTS[1]: [crash_agent.batch(13, 14), ANSWERS[1]],
        }
        return lines[text][answers]

    return answer


def add_kill_points(kill_points: FileKillPoints) -> None:
    """Add kill points around every statement under a claim, and around and within every transaction under one."""

    class KillableConnections(PostgresConnections):
        def run_statement(self, statement: Any, values: Any) -> Any:
            name = "checkpoint" if b"checkpoint" in statement.text else "statement"
            kill_points.point(f"before {name}")
            done = super().run_statement(statement, values)
            kill_points.point(f"after {name}")
            return done

        def transaction(self, work: Any, tries: int = 10) -> Any:
            def within(connection: Any) -> Any:
                kill_points.point("within transaction")
                return work(connection)

            kill_points.point("before transaction")
            done = super().transaction(within, tries)
            kill_points.point("after transaction")
            return done

    def guarded(connections: PostgresConnections, guard: SqlGuard) -> PostgresConnections:
        other = plain(connections, guard)
        other.__class__ = KillableConnections
        return other

    class GuardedClaim(Claim):
        def reschedule(self, seconds: float) -> None:
            kill_points.point("before putting off")
            super().reschedule(seconds)

    plain = PostgresConnections.guarded
    PostgresConnections.guarded = guarded  # type: ignore[method-assign]
    absurd_worker.Claim = GuardedClaim  # type: ignore[misc]


def agent(kill_points: FileKillPoints) -> Agent:
    return Agent("crash", ScriptedModel(script(kill_points)), crash_agent.make_tools(kill_points), LIMITS)


def run_worker(
    url: str,
    queue: str,
    log_path: str,
    kill_at: int | str = 0,
    concurrency: int = 1,
    lease: int = 1,
    signal_number: signal.Signals = signal.SIGKILL,
) -> None:
    """Run a worker until it is killed or receives SIGTERM."""
    runtime = FileKillPoints(log_path, kill_at, signal_number)
    add_kill_points(runtime)
    worker = Worker(
        url, [agent(runtime)], queue=queue, concurrency=concurrency, lease=lease, report=report_to(runtime)
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    exit_code = worker.run(grace=20)
    runtime.report(f"points {runtime.points}")
    os._exit(exit_code)


def report_to(kill_points: FileKillPoints) -> Any:
    return lambda line: kill_points.report(f"said {line}")


def run_slow_worker(url: str, queue: str, log_path: str, pause: float, lease: int = 1) -> None:
    """Run a worker with a slow model, for pauses, restarts and stops in the middle of a step."""
    runtime = FileKillPoints(log_path)

    def answer(request: Request) -> Any:
        runtime.report("model")
        answers = sum(message.role == "assistant" for message in request.messages)
        return Slow(pause, crash_agent.batch((2, 11, 14)[answers]) if answers < 3 else "Done.")

    slow_agent = Agent("crash", ScriptedModel(answer), crash_agent.make_tools(runtime), LIMITS)
    worker = Worker(url, [slow_agent], queue=queue, concurrency=2, lease=lease, report=report_to(runtime))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    os._exit(worker.run(grace=20))


def read_lines(log_path: Path) -> list[str]:
    return log_path.read_text().splitlines() if log_path.exists() else []
