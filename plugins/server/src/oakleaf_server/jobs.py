"""Background jobs such as replays, with progress and a report. The newest are kept in memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from oakleaf_server.openapi import JobView
from oakleaf_server.problems import Refusal, problem_of

MAX_JOBS = 100
Progress = Callable[[int, int], None]


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[str, JobView] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()

    def start(
        self, kind: str, session_id: str, work: Callable[[Progress], Awaitable[dict[str, Any]]]
    ) -> JobView:
        job = JobView(
            id=f"job_{secrets.token_hex(8)}",
            kind=kind,
            session_id=session_id,
            status="running",
            done=0,
            total=0,
            report=None,
            problem=None,
        )
        self._jobs[job.id] = job
        for old in list(self._jobs)[: max(0, len(self._jobs) - MAX_JOBS)]:
            if old not in self._tasks:
                del self._jobs[old]
        task = asyncio.create_task(self._run(job, work))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return job

    def find(self, job_id: str) -> JobView:
        if job_id not in self._jobs:
            raise Refusal(404, "no_job", f"no job {job_id[:60]!r}; only the newest {MAX_JOBS} are kept")
        return self._jobs[job_id]

    def cancel(self, job_id: str) -> JobView:
        job = self.find(job_id)
        task = self._tasks.get(job_id)
        if task is not None:
            task.cancel()
        return job

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until any job changes, at most `seconds`."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait(), seconds)
            except TimeoutError:
                return

    async def _run(self, job: JobView, work: Callable[[Progress], Awaitable[dict[str, Any]]]) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            asyncio.get_running_loop().create_task(self._notify())

        try:
            job.report = await work(progress)
            job.status = "done"
        except asyncio.CancelledError:
            job.status = "cancelled"
        except Exception as error:  # noqa: BLE001 – a model may raise anything; it ends only this job
            job.status, job.problem = "failed", msgspec.to_builtins(problem_of(error))
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
