"""The task of a turn: runs a session from its leaf to the end of the turn, or until the turn must wait.

Does not know how a task is claimed, nor how a turn is run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from absurd_sdk import SuspendTask
from msgspec.structs import replace

from oakleaf import Session, Store
from oakleaf.core.context import fold_settings
from oakleaf.core.entries import Settings
from oakleaf.errors import (
    ImportNotAccepted,
    InvalidOption,
    NotFound,
    SessionTrashed,
    TurnFailed,
)
from oakleaf.ext import Answers, OwnTools, RunPolicy, open_turn, session_of
from oakleaf_postgres.absurd.claim import Claim
from oakleaf_postgres.absurd.deaths import Deaths
from oakleaf_postgres.absurd.engine import TaskParams, spawn_queued, to_task_params
from oakleaf_postgres.absurd.handlers import run_claimed
from oakleaf_postgres.absurd.signals import signal_event
from oakleaf_postgres.absurd.step import check_steps, claimed_run
from oakleaf_postgres.errors import TRIED_AGAIN, PoisonTask, UnknownAgent

if TYPE_CHECKING:
    from oakleaf_postgres.absurd.worker import LoadedAgent, Worker

TRASH_SECONDS = 15
"""How often the task of a session in the trash looks whether it was restored."""


def run_turn_task(worker: Worker, claim: Claim, params: Any, deaths: Deaths) -> dict[str, Any]:
    """Run the task of a turn; give up a task with hopeless deaths."""
    try:
        return TaskRun(worker, claim, to_task_params(params)).run(deaths)
    except SessionTrashed:
        # It may be restored, and then its input is answered: an ended task would never be.
        claim.reschedule(TRASH_SECONDS)
        raise SuspendTask from None
    except NotFound as error:
        return {"stop_reason": "gone", "why": str(error)}


class TaskRun:
    """A run of a task. Every write of the run requires the claim."""

    def __init__(self, worker: Worker, claim: Claim, params: TaskParams) -> None:
        self._worker, self._claim, self._params = worker, claim, params
        self.space, self.session_id = params.space, params.session
        self._unclaimed = worker.store(params.space)
        self._claimed = worker.claimed_store(params.space, claim)
        self._row = self._claimed.session(params.session)
        self._session: Session = session_of(Store(self._claimed, worker.claimed_runtime(claim)), self._row)
        self._turn = open_turn(self._session, self._row)

    @property
    def facts_read(self) -> int:
        return self._turn.facts_read

    def is_cancel_requested(self) -> bool:
        """Return whether a new fact requests to cancel the current turn. Called by `watch_cancel_requests`."""
        return self._turn.is_cancel_requested(self._unclaimed)

    def run(self, deaths: Deaths) -> dict[str, Any]:
        """Run the open turn, or the turn of the first queued input; return the result of the task."""
        turn, claim = self._turn, self._claim
        if deaths.is_hopeless:
            self._give_up(deaths)
        if self._row.trashed_at is not None:
            raise SessionTrashed(self.session_id)
        check_steps(self.session_id, turn.leaf_seq, claim)
        agent = self._load_agent()
        if agent is None:
            return self._refuse()
        claim.run = self
        while True:
            has_stopped = self._run_turn(agent)
            if claim.is_cancelled and turn.is_open:
                claim.is_cancelled = False
                continue  # cancelled before it had a turn to close; now it checks first
            if has_stopped and turn.has_work():
                claim.reschedule(0)
                raise SuspendTask
            wait = turn.wait(agent.tools)
            if wait is None:
                return self._result()
            if not wait.is_cancelled:
                claim.context.await_event(signal_event(self.session_id, wait.signals + 1))

    def _load_agent(self) -> LoadedAgent | None:
        agent = self._worker.agents.get(self._params.agent or "")
        return None if agent is None else replace(agent, tools=agent.agent.tools_for(self._session))

    def _refuse(self) -> dict[str, Any]:
        """Fail a turn without an agent on the worker. If it was ended elsewhere meanwhile, return the task's
        result.
        """
        if not self._turn.has_work():
            return self._result()
        self._turn.require_free()
        unknown = UnknownAgent(self._params.agent, list(self._worker.agents))
        self._turn.fail(unknown)
        raise unknown

    def _give_up(self, deaths: Deaths) -> None:
        """End the turn as failed and raise PoisonTask: the step killed the processes."""
        task_id, queue = self._claim.task_id, self._worker.queue
        poison = PoisonTask(self.session_id, task_id, queue, deaths.total, deaths.last)
        self._turn.give_up(poison)
        raise poison

    def _run_turn(self, agent: LoadedAgent) -> bool:
        running = asyncio.run_coroutine_threadsafe(
            self._run_cancellable(self._policy(agent)), self._worker.loop
        )
        try:
            return running.result()
        except (InvalidOption, ImportNotAccepted) as error:  # a person has to do something first
            self._turn.fail(error)
            raise

    def _policy(self, loaded: LoadedAgent) -> RunPolicy:
        """Return the policy of the agent's run: the options, effects and maximum of messages missing in the
        session.
        """
        agent, own = loaded.agent, Settings()
        limits = agent.limits
        if agent.options or agent.effects or limits.max_messages is not None:
            own = fold_settings(self._unclaimed.control_entries(self.session_id, leaf=self._session.leaf))
        options = {name: value for name, value in agent.options.items() if name not in (own.options or {})}
        effects = agent.effects if own.effects is None else None
        if own.max_messages is not None:
            limits = replace(limits, max_messages=None)
        return claimed_run(
            self._claim,
            Answers(models=loaded.models, options=options),
            OwnTools(loaded.tools, agent.sources(), effects),
            limits,
            self._worker.stopping.is_set,
            inputs=0 if self._turn.is_open else 1,
        )

    async def _run_cancellable(self, policy: RunPolicy) -> bool:
        """Cancel the run after the loss of the claim or at a user's request, and wait for the end: then the
        slot is free.
        """
        try:
            return await run_claimed(self._claim, self._turn.run(policy))
        except asyncio.CancelledError:
            if not self._claim.is_cancelled:
                raise
            return False

    def _result(self) -> dict[str, Any]:
        row = self._turn.refresh()
        if self._turn.is_open:
            self._turn.require_free()
            row = self._turn.refresh()  # another runner may have ended it since
        if self._turn.is_open:
            raise TurnFailed(row.session_id, row.error or "the loop ended before its turn did", TRIED_AGAIN)
        if self._turn.has_work():
            self._spawn_next()
        return {"stop_reason": row.status, "to_message_number": self._turn.leaf_seq}

    def _spawn_next(self) -> None:
        """Spawn a task for the next queued input, behind the tasks of other sessions: sessions take turns."""
        spawned = spawn_queued(self._worker.queue, self._params, f"behind/{self._claim.task_id}")
        self._claimed.connections.write(lambda writer: spawned.run(writer))
