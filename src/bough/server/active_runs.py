"""The runs of this server: one per session, each a task that tells its events to whoever watches.

Knows who answers and how a run begins and ends. Input is durable before `drive` returns; that somebody else
drives the session already is known by then too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ..agent.call_status import is_awaited_by_worker
from ..agent.events import Event
from ..core.context import fold_settings
from ..engines.local import ModelLike, Run
from ..errors import BoughError, ModelUnavailable, SessionRunning
from ..models.availability import available_models
from ..session import Session
from .context import ServerAgent, ServerContext
from .problems import problem_of

SOON = 0.5  # seconds a resumed turn is given to fail at once, for it says nothing when it begins well


class ActiveRuns:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._runs: dict[str, Run] = {}
        self._tasks: dict[Run, asyncio.Task[None]] = {}

    def is_running(self, session_id: str) -> bool:
        return session_id in self._runs

    async def send(self, session: Session, text: str, model: str | None) -> Event | None:
        """Run one turn; its first event, told once the input is durable."""
        how = await self._how(session, model)
        return await self._drive(session, session.send(text, **how), None)

    async def resume(self, session: Session, model: str | None) -> None:
        """Go on with the turn that is open."""
        how = await self._how(session, model)
        await asyncio.to_thread(session.log.raise_if_leased)
        await self._drive(session, session.resume(**how), SOON)

    async def resume_after_approval(self, session: Session) -> bool:
        """Resume it after a word of a person; False if whoever drives it takes the word up himself.

        A run that was about to rest when the word came does not: it is waited for, and then resumed. A worker whose
        task slept has been woken by the word, and has the tools.
        """
        if await asyncio.to_thread(is_awaited_by_worker, session.log):
            return False
        run = self._runs.get(session.session_id)
        if run is not None:
            await asyncio.wait([self._tasks[run]], timeout=SOON)
        await asyncio.to_thread(session.refresh)
        if not await asyncio.to_thread(lambda: session.log.cursor.turn):
            return False
        try:
            await self.resume(session, None)
        except SessionRunning:
            return False
        return True

    def cancel(self, session_id: str) -> bool:
        run = self._runs.get(session_id)
        if run is not None:
            run.cancel()
        return run is not None

    async def close(self) -> None:
        """Cancel what runs, and wait until the log says so."""
        for run in self._runs.values():
            run.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=10)

    async def _how(self, session: Session, model: str | None) -> dict[str, Any]:
        agent = self._context.agent
        models = await asyncio.to_thread(_models, agent, session, model)
        how: dict[str, Any] = {"model": models, "tools": agent.tools_of(session)}
        return how if agent.limits is None else {**how, "limits": agent.limits}

    async def _drive(self, session: Session, run: Run, patience: float | None) -> Event | None:
        name = session.session_id
        if name in self._runs:
            row = await asyncio.to_thread(lambda: session.row)
            raise SessionRunning(name, row.holder, row.updated_at)
        first: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
        self._runs[name] = run
        self._tasks[run] = asyncio.create_task(self._follow(name, run, first))
        self._tasks[run].add_done_callback(lambda _: self._tasks.pop(run))
        done, _ = await asyncio.wait([first], timeout=patience)
        if not done:
            first.cancel()  # what goes wrong from now on is told by the events
            return None
        return first.result()

    async def _follow(self, name: str, run: Run, first: asyncio.Future[Event | None]) -> None:
        problem: dict[str, Any] | None = None
        try:
            async for event in run:
                self._context.live.publish(name, event)
                if not first.done():
                    first.set_result(event)
        except Exception as error:  # noqa: BLE001 – a model or tool may raise anything; the log has it already
            if not first.done() and isinstance(error, BoughError):
                first.set_exception(error)
            else:
                problem = msgspec.to_builtins(problem_of(error))
        finally:
            self._runs.pop(name, None)
            self._context.live.end_run(name, problem)
            if not first.done():
                first.set_result(None)


def _models(agent: ServerAgent, session: Session, asked: str | None) -> ModelLike:
    """Named in the request, else set for this session, else those of the server, else the one it was started with.

    One that is no model of the server's own is refused if it lacks its package or key: before the input is stored.
    """
    settled = fold_settings(
        session.log.store.non_message_entries(session.session_id, leaf=session.leaf)
    ).model
    name = asked or settled
    if name is not None:
        known = agent.find_model(name)
        return available_models([known]) if isinstance(known, str) else known
    if agent.models:
        return list(agent.models)
    row = session.row
    if row.model is None:
        raise ModelUnavailable(
            session.session_id, "no model is named", "start bough serve with --model, or name one"
        )
    return available_models([row.model])
