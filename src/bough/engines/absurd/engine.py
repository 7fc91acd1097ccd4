"""The Absurd engine: a run is a task on a queue in PostgreSQL, done by whichever worker claims it.

Knows how an input becomes a task, in the transaction that makes it durable. Does not know how a task is done;
`absurd_worker` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absurd_sdk import Absurd
from msgspec import Struct

from ...agent.limits import Limits, check_limits
from ...agent.start_facts import queued_turn_data
from ...agent.tools.tool import Tool
from ...agent.tools.workspace import workspace_tools
from ...core.drafts import Draft, ExtraFact
from ...core.messages import Message, user
from ...errors import InvalidOperation, LimitReached, PostgresRequired, SessionRunning
from ...log.log import Log
from ...log.workspace import Workspace
from ...models.model import Model
from ...stores.base import SessionRow
from ...stores.postgres.connections import Connection, Connections
from ...stores.postgres.store import PostgresStore
from ..local import ModelLike, resolve_models, tools_by_name
from . import schema as absurd_schema
from .shared_transaction import EngineConnections

TASK = "bough-run"
ATTEMPTS = 20
"""How often a task is claimed before it has failed for good: workers may die, providers may be away for a while."""
RETRY: Any = {"kind": "exponential", "base_seconds": 0.5, "factor": 2.0, "max_seconds": 120.0}


class Agent(Struct, frozen=True):
    """Who answers when a worker runs a task: a model or a chain of them, tools and limits, under a name."""

    name: str
    model: ModelLike
    tools: tuple[Tool | Callable[..., Any], ...] | list[Any] = ()
    limits: Limits = Limits()
    workspace: Workspace | None = None
    """A folder of the worker's machine, for the tools that read, write and run there."""
    commands: tuple[str, ...] = ()
    """What its shell may run."""

    def models(self) -> list[Model]:
        return resolve_models(self.model)

    def tools_by_name(self) -> dict[str, Tool]:
        return tools_by_name(self.tools)

    def tools_for(self, log: Log) -> dict[str, Tool]:
        """With those of its workspace, which keep what is too long to show with the session."""
        if self.workspace is None:
            return self.tools_by_name()
        return tools_by_name([*self.tools, *workspace_tools(log, self.workspace, commands=self.commands)])


class TaskParams(Struct, frozen=True):
    """What a task is told: where its session is, and nothing of what is in it."""

    session: str
    space: str
    agent: str | None


class EnqueuedTask(Struct, frozen=True):
    """An input that is durable, and the task that will answer it."""

    session_id: str
    queue: str
    task_id: str
    seq: int
    """Where the session stands: at the input, if it was not queued behind another."""


class SpawningConnections(EngineConnections):
    """The task is made in the transaction of whatever asks for it: both are there, or neither."""

    def __init__(self, base: Connections, queue: str, params: TaskParams, key: str) -> None:
        super().__init__(base)
        self._queue, self._params, self._key = queue, params, key
        self._task_id = ""

    def after_write(self, connection: Connection) -> None:
        params = {name: getattr(self._params, name) for name in TaskParams.__struct_fields__}
        made = Absurd(connection, self._queue).spawn(
            TASK,
            params,
            max_attempts=ATTEMPTS,
            retry_strategy=RETRY,
            queue=self._queue,
            idempotency_key=f"{self._params.session}/{self._key}",
        )
        self._task_id = str(made["task_id"])

    def enqueued_task(self, seq: int) -> EnqueuedTask:
        return EnqueuedTask(self._params.session, self._queue, self._task_id, seq)


def send(
    log: Log,
    content: str | Message | None,
    *,
    queue: str = "default",
    agent: str | None = None,
    key: str | None = None,
    limits: Limits | None = None,
    one_shot: bool = False,
) -> EnqueuedTask:
    """Make the input durable and a task of it, in one transaction. Without content: of the turn that is open.

    With `key` it may be sent again after an answer was lost: it is there once. The limits of turns are checked
    here, the others by the worker, who knows the agent's; its model and tools are told when it takes the turn up.
    """
    row = log.refresh()
    key = key or log.runtime.new_id("")
    _check_can_send(log, content)
    if content is not None:
        stop = check_limits(limits or Limits(), row.session_id, turns=row.turns)
        if stop is not None:
            raise LimitReached(row.session_id, stop.problem, stop.hint, stop.command_hint)
    joint, spawning = _spawning_log(log, row, queue, agent, key)
    if content is None:
        joint.record("enqueued", data={"queue": queue}, only_at_leaf=True, key=key)
    else:
        draft = Draft(user(content) if isinstance(content, str) else content)
        about = queued_turn_data(log) | ({"one_shot": True} if one_shot else {})
        joint.append([draft], key=key, data=about, facts=[ExtraFact("enqueued", {"queue": queue})])
    return spawning.enqueued_task(log.refresh().leaf.seq)


def enqueue(log: Log, message: Message, *, queue: str = "default", agent: str | None = None) -> EnqueuedTask:
    """Keep an input for when the present turn is over, and a task that takes it if nobody else does by then."""
    row = log.refresh()
    joint, spawning = _spawning_log(log, row, queue, agent, log.runtime.new_id(""))
    joint.enqueue(message)
    return spawning.enqueued_task(row.leaf.seq)


def _spawning_log(
    log: Log, row: SessionRow, queue: str, agent: str | None, key: str
) -> tuple[Log, SpawningConnections]:
    if not isinstance(log.store, PostgresStore):
        raise PostgresRequired("absurd", log.store.url)
    params = TaskParams(row.session_id, row.space, agent or row.agent)
    made: list[SpawningConnections] = []

    def join(base: Connections) -> Connections:
        base.read_snapshot(lambda connection: absurd_schema.check_queue(connection, base.url, queue))
        made.append(SpawningConnections(base, queue, params, key))
        return made[0]

    return Log(log.store.with_connections(join), row, log.runtime, log.cursor), made[0]


def _check_can_send(log: Log, content: str | Message | None) -> None:
    """One input at a time; the turn that is open goes on with `resume`."""
    is_open = bool(log.cursor.turn)
    if content is not None and is_open:
        row = log.store.session(log.session_id)
        raise SessionRunning(row.session_id, row.holder, row.updated_at)
    if content is None and not is_open and not log.store.inbox(log.session_id):
        raise InvalidOperation(f"nothing is open in session {log.session_id}; send an input")
