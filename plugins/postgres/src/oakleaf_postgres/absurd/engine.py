"""The Absurd engine: a run is a task on a queue in PostgreSQL, executed by the worker that claims it.

Turns an input into a task in the transaction that makes it durable. `worker` executes tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec
from msgspec import Struct

from oakleaf import Limits, Session, Tool, Workspace
from oakleaf.core.entries import Effects
from oakleaf.core.messages import Message
from oakleaf.core.typed_json import converter
from oakleaf.errors import PostgresRequired
from oakleaf.ext import (
    QueuedTurn,
    ToolLike,
    ToolSource,
    plugin_tools,
    queue_input,
    queue_open_turn,
    queue_turn,
    resolve_models,
    split_tools,
    with_approval,
)
from oakleaf.models.base import Model, ModelLike
from oakleaf.stores.tasks import DEFAULT_QUEUE, EnqueuedTask
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.queue import queue_tables
from oakleaf_postgres.store.guard import SqlEffect

if TYPE_CHECKING:
    from oakleaf_postgres.store.store import PostgresStore

TASK = "oakleaf-run"
ATTEMPTS = 20
"""How often a task is claimed before it fails for good: workers may die, providers may be away for a while."""
RETRY: Any = {"kind": "exponential", "base_seconds": 0.5, "factor": 2.0, "max_seconds": 120.0}


# `spawn_task` returns a row; the idempotency key lets a change that is written again spawn no second task.
SPAWN = """(select task_id from absurd.spawn_task(
    %(spawn_queue)s, %(spawn_task)s, %(spawn_params)s::jsonb, %(spawn_options)s::jsonb))"""
SELECT_TASK = "select task_id, state from absurd.{tasks} where idempotency_key = %s"
# A task that has not run yet takes the input queued first when it does. Its run is locked, so that no worker claims it before
# the input is there: a claim passes over a locked run. With a task for each of its inputs, a session with a long queue would
# stand in the way of all others.
WAITING_TASK = """
select task.task_id from absurd.{tasks} as task join absurd.{runs} as run on run.run_id = task.last_attempt_run
where task.params ->> 'session'::text = %(spawn_session)s::text and task.state in ('pending', 'sleeping')
  and run.state in ('pending', 'sleeping') and run.attempt = 1 and run.wake_event is null
order by task.task_id limit 1"""
SELECT_WAITING = WAITING_TASK.replace("%(spawn_session)s", "%s")


class Agent(Struct, frozen=True):
    """A worker's setup for tasks, under a name: a model or a chain of models, tools and limits."""

    name: str
    model: ModelLike
    tools: tuple[ToolLike, ...] | list[Any] = ()
    limits: Limits = Limits()
    workspace: Workspace | None = None
    """A folder on the worker's machine for the tools that read, write and run commands there."""
    commands: tuple[str, ...] = ()
    """The commands its shell tool may run."""
    env: tuple[str, ...] = ()
    """The variables of the worker's environment that these commands inherit besides PATH, HOME, LANG and the like."""
    options: dict[str, Any] = {}
    """Options of its model's calls, for a session that has none of the same name."""
    effects: Effects | None = None
    """What becomes of an unsafe call that a path which was left has made, for a session whose path does not say."""
    approval: bool | tuple[str, ...] = ()
    """The names of the tools whose calls wait for approval, beside those that ask for it themselves, or True for all."""

    def models(self) -> list[Model]:
        return resolve_models(self.model)

    def tools_by_name(self) -> dict[str, Tool]:
        return split_tools(with_approval(self.tools, self.approval))[0]

    def sources(self) -> tuple[ToolSource, ...]:
        return split_tools(with_approval(self.tools, self.approval))[1]

    def tools_for(self, session: Session) -> dict[str, Tool]:
        """Return the agent's tools with the workspace tools, which store long output with the session."""
        if self.workspace is None:
            return self.tools_by_name()
        own = plugin_tools("workspace", session, self.workspace, commands=self.commands, env=self.env)
        return split_tools(with_approval([*self.tools, *own], self.approval))[0]


class TaskParams(Struct, frozen=True):
    """The parameters of a task: the session to run, and no content."""

    session: str
    space: str
    agent: str | None


to_task_params = converter(TaskParams)


class TurnTasks:
    """The tasks of a session's turns: each is spawned with the write of the input, once for each key."""

    def __init__(self, store: PostgresStore, params: TaskParams) -> None:
        self._store, self._params = store, params

    def spawn(self, queue: str, key: str) -> SqlEffect:
        """Return the effect of spawning a task; raise EngineNotInstalled without the queue."""
        self._check(queue)
        return spawn_turn(queue, self._params, key)

    def _check(self, queue: str) -> None:
        store = self._store
        store.connections.read_snapshot(lambda reader: absurd_schema.check_queue(reader, store.url, queue))

    def is_pending(self, queue: str, key: str) -> bool:
        return self._find(queue, key)[1] not in ("", "failed", "cancelled")

    def enqueue(self, body: bytes, at: int, queue: str, key: str) -> None:
        self._check(queue)
        self._store.enqueue(self._params.session, body, at, spawn_queued(queue, self._params, key))

    def enqueued(self, turn: QueuedTurn) -> EnqueuedTask:
        """Return a turn's task for the sender: the task of the key, or else the session's waiting task."""
        task_id = self._find(turn.queue, turn.key)[0]
        if not task_id:
            query = SELECT_WAITING.format(**queue_tables(turn.queue))
            rows = self._store.connections.query(query, (self._params.session,))
            task_id = str(rows[0][0]) if rows else ""
        return EnqueuedTask(self._params.session, turn.queue, task_id, turn.seq)

    def _find(self, queue: str, key: str) -> tuple[str, str]:
        """Return the id and the state of the task; "" and "" if none was spawned under the key."""
        query = SELECT_TASK.format(**queue_tables(queue))
        rows = self._store.connections.query(query, (_task_key(self._params, key),))
        return (str(rows[0][0]), str(rows[0][1])) if rows else ("", "")


def spawn_turn(queue: str, params: TaskParams, key: str) -> SqlEffect:
    """Return the effect of spawning a turn's task."""
    options = {"max_attempts": ATTEMPTS, "retry_strategy": RETRY, "idempotency_key": _task_key(params, key)}
    values = {
        "spawn_queue": queue,
        "spawn_task": TASK,
        "spawn_params": msgspec.json.encode(params).decode(),
        "spawn_options": msgspec.json.encode(options).decode(),
    }
    return SqlEffect(SPAWN, values)


def spawn_queued(queue: str, params: TaskParams, key: str) -> SqlEffect:
    """Return the effect of spawning a task for a queued input, unless a task of the session waits."""
    spawned = spawn_turn(queue, params, key)
    waiting = WAITING_TASK.format(**queue_tables(queue))
    return SqlEffect(
        f"coalesce(({waiting} for share of run skip locked), {spawned.expression})",
        {**spawned.values, "spawn_session": params.session},
    )


def _task_key(params: TaskParams, key: str) -> str:
    return f"{params.session}/{key}"


class Sending(TypedDict, total=False):
    """The arguments of an input, as in `Session.send`."""

    rebind: bool
    trigger: str | Mapping[str, str] | None
    policy: Mapping[str, Any] | None
    trace: str | None
    key: str | None
    options: Mapping[str, Any] | None
    limits: Limits | None
    effects: Effects | None
    one_shot: bool
    accept_imported: bool


def send(
    session: Session,
    content: str | Message,
    *,
    queue: str = DEFAULT_QUEUE,
    agent: str | None = None,
    **how: Unpack[Sending],
) -> EnqueuedTask:
    """Let a worker run a turn, on any machine; the input and the task are durable on return.

    `agent` names one of the worker's agents (default: the session's). An input with a `key` may be sent again, at any time:
    the input is written once, and has one task. The number of turns is checked against `limits` and the session's own; the
    worker checks these and its agent's limits, before it calls a model.
    """
    tasks = _tasks(session, agent)
    return tasks.enqueued(queue_turn(session, content, tasks, queue, agent=agent, **how))


def enqueue(
    session: Session, content: str | Message, *, queue: str = DEFAULT_QUEUE, agent: str | None = None
) -> EnqueuedTask:
    """Queue an input for after the current turn, with a task in case nothing else answers."""
    tasks = _tasks(session, agent)
    return tasks.enqueued(queue_input(session, content, tasks, queue, agent=agent))


def resume(
    session: Session,
    *,
    queue: str = DEFAULT_QUEUE,
    agent: str | None = None,
    take_over: bool = False,
    accept_imported: bool = False,
) -> EnqueuedTask:
    """Let a worker continue the open turn, for instance after a final failure of a task.

    `take_over=True` ends the run that holds the session first; `accept_imported=True` lets run what an import left open.
    """
    tasks = _tasks(session, agent)
    turn = queue_open_turn(
        session, tasks, queue, agent=agent, take_over=take_over, accept_imported=accept_imported
    )
    return tasks.enqueued(turn)


def _tasks(session: Session, agent: str | None) -> TurnTasks:
    """Return the tasks of a session; raise PostgresRequired for a store without workers."""
    # Imported late: the store imports this module to open a queue.
    from oakleaf_postgres.store.store import PostgresStore

    store, row = session.log.store, session.row
    if not isinstance(store, PostgresStore):
        raise PostgresRequired(store.url)
    return TurnTasks(store, TaskParams(row.session_id, row.space, agent or row.agent))
