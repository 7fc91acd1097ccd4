"""The runs of this server: one per session, each an asyncio task that publishes its events.

Input is durable before `send` returns; a session that is running elsewhere is refused before that. When the server
stops, a run ends after the step it is in and leaves its turn to whoever resumes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from oakleaf import Event, Run
from oakleaf.core.entries import Effects, Settings
from oakleaf.errors import (
    ImportNotAccepted,
    ModelUnavailable,
    OakleafError,
    SessionRunning,
    ToolsMissing,
    TurnLimit,
)
from oakleaf.ext import ToolLike, read, read_store, split_tools
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf_server.context import ServerAgent, ServerContext
from oakleaf_server.problems import Refusal, problem_of
from oakleaf_server.schemas import Responder

RESUME_GRACE = (
    0.5  # seconds to wait for an immediate failure: a resumed turn that starts well has no first event
)


class ActiveRuns:
    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._is_stopping = False
        self._runs: dict[str, Run] = {}
        self._tasks: dict[Run, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def is_running(self, session_id: str) -> bool:
        return session_id in self._runs

    async def send(
        self,
        session: Session,
        text: str,
        model: str | None,
        options: Mapping[str, Any] | None = None,
        key: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Event | None:
        """Run a turn; return the first event once the input is durable."""
        how = await self._how(session, model, options)
        how |= {name: value for name, value in (about or {}).items() if value is not None}
        return await self._drive(session, lambda: session.send(text, **how, key=key), None)

    async def resume(
        self,
        session: Session,
        model: str | None,
        options: Mapping[str, Any] | None = None,
        effects: Effects | None = None,
    ) -> None:
        """Resume the open turn."""
        how = await self._how(session, model, options)
        how |= {} if effects is None else {"effects": effects}
        await asyncio.to_thread(read(session).check_free)
        await asyncio.to_thread(_check_tasks, session, how["tools"])
        await self._drive(session, lambda: session.resume(**how), RESUME_GRACE)

    async def resume_after_approval(self, session: Session) -> bool:
        """Resume a session after an approval; return False if the current driver picks up the approval.

        A run that was about to stop when the approval arrived does not see it: wait for its end, then resume. A
        worker whose task slept is woken by the approval, and has the tools.
        """
        if await asyncio.to_thread(read(session).is_awaited_by_worker):
            return False
        run = self._runs.get(session.session_id)
        if run is not None:
            await asyncio.wait([self._tasks[run]], timeout=RESUME_GRACE)
        await asyncio.to_thread(session.refresh)
        if not await asyncio.to_thread(lambda: read(session).cursor.turn):
            return False
        try:
            await self.resume(session, None)
        except (SessionRunning, ToolsMissing, ModelUnavailable, ImportNotAccepted, Refusal):
            # The approval is recorded; a process with tool and model, that does not stop, runs the call. Or somebody
            # accepts first what the import left open beside it.
            return False
        return True

    async def close(self, grace: float) -> int:
        """Let each run finish its step, for another process to resume the turn; refuse new runs.

        Return how many runs were still in a step after `grace` seconds. Their turns are interrupted there.
        """
        self._is_stopping = True
        for run in self._runs.values():
            run.stop()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
        unfinished = list(self._runs)
        for session_id in unfinished:
            await asyncio.to_thread(_interrupt, self._context.store, session_id)
        return len(unfinished)

    def raise_if_stopping(self) -> None:
        if self._is_stopping:
            hint = "send it again: another server, or this one after its restart, takes it"
            raise Refusal(503, "stopping", "the server is stopping and starts no turn", hint)

    async def _how(
        self, session: Session, model: str | None, options: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        agent = self._context.agent
        settings = await asyncio.to_thread(read(session).settings)
        models = agent.answering_models(model, settings.model)
        if models == list(agent.models):  # its options are those of its models
            own = settings.options or {}
            defaults = {name: value for name, value in agent.options.items() if name not in own}
            options = {**defaults, **(options or {})}
        return {
            "model": models,
            "tools": agent.tools_of(session),
            "options": options,
            "limits": agent.limits_of(settings),
            "effects": agent.effects if settings.effects is None else None,
        }

    async def _drive(
        self, session: Session, make_run: Callable[[], Run], patience: float | None
    ) -> Event | None:
        self.raise_if_stopping()
        name = session.session_id
        if name in self._runs:
            row = await asyncio.to_thread(lambda: session.row)
            # Its turn has ended; only its last events are on the way.
            if row.holder is None and row.status != "running":
                await asyncio.wait([self._tasks[self._runs[name]]], timeout=RESUME_GRACE)
            if name in self._runs:
                raise SessionRunning(name, row.holder, row.lease_until)
        first: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
        self._runs[name] = run = make_run()
        if self._is_stopping:  # since it was asked above
            run.stop()
        self._context.live.begin_run(name, run)
        self._tasks[run] = asyncio.create_task(self._follow(name, run, first))
        self._tasks[run].add_done_callback(lambda _: self._tasks.pop(run))
        done, _ = await asyncio.wait([first], timeout=patience)
        if not done:
            first.cancel()  # later failures are reported by events
            return None
        return first.result()

    async def _follow(self, name: str, run: Run, first: asyncio.Future[Event | None]) -> None:
        problem: dict[str, Any] | None = None
        try:
            async for event in run:
                self._context.live.publish(name, event)
                if not first.done():
                    first.set_result(event)
        except TurnLimit:
            pass  # its event says so
        except Exception as error:  # noqa: BLE001 – a model or tool may raise anything; the log records it
            if not first.done() and isinstance(error, OakleafError):
                first.set_exception(error)
            else:
                problem = msgspec.to_builtins(problem_of(error))
        finally:
            self._runs.pop(name, None)
            self._context.live.end_run(name, problem)
            if not first.done():
                first.set_result(None)


def _interrupt(store: Store, session_id: str) -> None:
    """Mark a running session and its running tasks as interrupted; nothing more is written for the runs."""
    with suppress(
        OakleafError
    ):  # purged, taken by another process, or out of reach: its lease ends with this process
        session = store.session(session_id)
        row = session.row
        if row.holder is None:
            return
        for task_id in read(session).call_status().tasks:
            task = read_store(store).find_session(task_id)
            # A journal from elsewhere may name any session as a task.
            if task is not None and (task.relation, task.parent_session) == ("task", session_id):
                _interrupt(store, task_id)
        if session.row.fence == row.fence:
            session.interrupt()


def _check_tasks(session: Session, tools: Iterable[ToolLike]) -> None:
    """Refuse, before the start, to resume a turn waiting for a trashed task: resuming might outlast the grace."""
    read(session).raise_if_task_trashed(split_tools(tools)[0])


def responder(agent: ServerAgent, session: Session, settings: Settings) -> Responder:
    """Return the model and the tools for answering a message now, or the reason for no answer."""
    tools = list(split_tools(agent.tools_of(session))[0])  # those of a source are known in a run only
    if settings.tools is not None:
        tools = [name for name in tools if name in settings.tools]
    try:
        models = agent.answering_models(None, settings.model)
    except ModelUnavailable as error:
        return Responder(model=None, tools=tools, problem=error.reason, hint=error.command_hint or None)
    return Responder(model=models[0].model, tools=tools)
