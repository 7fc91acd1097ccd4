"""The Absurd engine: a run is a task on a queue in PostgreSQL, executed by the worker that claims it.

Turns an input into a task in the transaction that makes it durable. `worker` executes tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Limits, Session, Tool, Workspace
from oakleaf.agent.import_plan import require_accepted
from oakleaf.agent.limits import check_turns, limit_data, narrow
from oakleaf.agent.start_facts import queued_turn_start
from oakleaf.core.context import changed_max_messages, changed_options, fold_settings, merge_options
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Effects, Settings, check_effects
from oakleaf.core.facts import Appended, Enqueued, TurnStarted
from oakleaf.core.messages import Message, user
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import MAX_COUNT
from oakleaf.errors import InputsQueued, InvalidOperation, SessionRunning, TurnOpen
from oakleaf.ext import ToolLike, ToolSource, plugin_tools, resolve_models, split_tools
from oakleaf.log.changes import new_key
from oakleaf.log.keyed_turn import KeyedTurn, find_turn
from oakleaf.log.log import Log
from oakleaf.log.request import Request
from oakleaf.log.turn_start import trigger_columns
from oakleaf.models.base import Model, ModelLike
from oakleaf.stores.base import SessionRow
from oakleaf.stores.tasks import EnqueuedTask
from oakleaf.wire.options import check_options
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


class Agent(Struct, frozen=True):
    """What a worker runs a task with, under a name: a model or a chain of them, tools and limits."""

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

    def models(self) -> list[Model]:
        return resolve_models(self.model)

    def tools_by_name(self) -> dict[str, Tool]:
        return split_tools(self.tools)[0]

    def sources(self) -> tuple[ToolSource, ...]:
        return split_tools(self.tools)[1]

    def tools_for(self, session: Session) -> dict[str, Tool]:
        """Return its tools with those of its workspace, which store output that is too long to show with the session."""
        if self.workspace is None:
            return self.tools_by_name()
        own = plugin_tools("workspace", session, self.workspace, commands=self.commands, env=self.env)
        return split_tools([*self.tools, *own])[0]


class TaskParams(Struct, frozen=True):
    """The parameters of a task: which session it runs, and nothing of its content."""

    session: str
    space: str
    agent: str | None


to_task_params = converter(TaskParams)


class TurnTask:
    """The task of one turn: spawned in the transaction that writes its input, once for each key."""

    def __init__(self, queue: str, params: TaskParams, key: str) -> None:
        self.queue, self._params, self.key = queue, params, f"{params.session}/{key}"

    def spawned(self) -> SqlEffect:
        """Return the effect that spawns the task."""
        options = {"max_attempts": ATTEMPTS, "retry_strategy": RETRY, "idempotency_key": self.key}
        values = {
            "spawn_queue": self.queue,
            "spawn_task": TASK,
            "spawn_params": msgspec.json.encode(self._params).decode(),
            "spawn_options": msgspec.json.encode(options).decode(),
        }
        return SqlEffect(SPAWN, values)

    def enqueued(self, store: PostgresStore, seq: int) -> EnqueuedTask:
        """Return the task as its sender sees it."""
        return EnqueuedTask(self._params.session, self.queue, self._find(store)[0], seq)

    def is_pending(self, store: PostgresStore) -> bool:
        """Return whether the task was spawned and still runs, or will."""
        return self._find(store)[1] not in ("", "failed", "cancelled")

    def _find(self, store: PostgresStore) -> tuple[str, str]:
        """Return the id and the state of the task; "" and "" if none was spawned under the key."""
        rows = store.connections.query(SELECT_TASK.format(**queue_tables(self.queue)), (self.key,))
        return (str(rows[0][0]), str(rows[0][1])) if rows else ("", "")


def send(
    log: Log,
    content: str | Message | None,
    *,
    queue: str,
    agent: str | None,
    key: str | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    effects: Effects | None = None,
    one_shot: bool = False,
    about: TurnStarted = TurnStarted(0),
) -> EnqueuedTask:
    """Write the input and spawn its task in one transaction. Without content: a task for the open turn.

    With `key` it may be sent again, at any time: it is written once, and has one task. The number of turns is checked here against
    `limits` and the session's own; the worker checks these and its agent's limits, before it calls a model. Its model and
    tools are recorded when it starts the turn.
    """
    recorded = None if content is None else find_turn(log, key, content)
    if recorded is not None:
        return _recorded_task(log, recorded, str(key), queue, agent)
    row = log.refresh()
    _check_can_send(log, content)
    if row.imported_facts:
        require_accepted(log, None, calls=content is None)
    settings = fold_settings(log.store.control_entries(row.session_id, leaf=row.leaf))
    check_options(None, options)  # the worker knows the provider
    check_effects(effects)
    if content is not None:
        _check_turns(settings, row, limits)
        if log.store.inbox(row.session_id, 1):  # what was queued first runs first
            if key is not None or options or effects:
                raise InputsQueued(row.session_id)
            message = user(content) if isinstance(content, str) else content
            return enqueue(log, message, queue=queue, agent=agent)
    key = key or new_key(log.runtime)
    store, task = _task(log, row, queue, agent, key)
    spawned = task.spawned()
    if content is None:
        log.commit(
            Request(
                fact=Enqueued(queue),
                at_leaf=True,
                key=key,
                effect=lambda entries: spawned,
            )
        )
    else:
        drafts = [Draft(user(content) if isinstance(content, str) else content)]
        row_changes = trigger_columns(about)
        changed = Settings(
            options=changed_options(settings.options, options),
            effects=effects,
            max_messages=None if limits is None else changed_max_messages(settings, limits.max_messages),
        )
        if changed != Settings():
            drafts.insert(0, Draft(changed))
        in_force = merge_options(settings.options, options)
        given = None if limits is None else limit_data(limits)
        start = queued_turn_start(about, log)
        start = replace(start, options=in_force, limits=given, one_shot=one_shot)
        log.commit(
            Request(
                drafts=tuple(drafts),
                key=key,
                about=start,
                row=row_changes,
                facts=(Enqueued(queue),),
                effect=lambda entries: spawned,
            )
        )
    return task.enqueued(store, log.leaf.seq)


def enqueue(log: Log, message: Message, *, queue: str, agent: str | None) -> EnqueuedTask:
    """Queue an input for after the current turn, with a task that takes it if nothing else has by then."""
    row = log.refresh()
    store, task = _task(log, row, queue, agent, new_key(log.runtime))
    store.enqueue(row.session_id, log.queued_body(message), log.runtime.now(), task.spawned())
    return task.enqueued(store, row.leaf.seq)


def _task(
    log: Log, row: SessionRow, queue: str, agent: str | None, key: str
) -> tuple[PostgresStore, TurnTask]:
    """Return the store of a log, and a task for the session in a queue; raise EngineNotInstalled without the queue."""
    store = cast("PostgresStore", log.store)
    store.connections.read_snapshot(
        lambda connection: absurd_schema.check_queue(connection, store.url, queue)
    )
    return store, TurnTask(queue, TaskParams(row.session_id, row.space, agent or row.agent), key)


def _check_turns(settings: Settings, row: SessionRow, limits: Limits | None) -> None:
    """Raise if the sender's or the session's limits allow no other turn. Without either, only the worker knows one."""
    stop = check_turns(narrow(limits or Limits(turns=MAX_COUNT), settings.limits), row.session_id, row.turns)
    if stop is not None and not stop.is_warning:
        raise stop.to_error(row.session_id)


def _recorded_task(log: Log, recorded: KeyedTurn, key: str, queue: str, agent: str | None) -> EnqueuedTask:
    """Return the task of an input that was sent before. If it is unanswered and its task is gone or failed, it gets one."""
    row = log.store.session(log.session_id)
    # An import does not say which queue of this store is used.
    for stored in log.store.journal(log.session_id, max(recorded.fact_number, row.imported_facts)):
        match stored.fact:
            case Enqueued(queue=queue):
                break
            case Appended():
                break
    store, task = _task(log, row, queue, agent, key)
    if not task.is_pending(store) and recorded.is_open:
        log.refresh()
        store, task = _task(log, row, queue, agent, new_key(log.runtime))
        spawned = task.spawned()
        log.commit(Request(fact=Enqueued(queue), at_leaf=True, effect=lambda entries: spawned))
    return task.enqueued(store, recorded.turn)


def _check_can_send(log: Log, content: str | Message | None) -> None:
    """Allow one input at a time; `resume` continues the open turn."""
    is_open = bool(log.cursor.turn)
    if content is not None and is_open:
        row = log.store.session(log.session_id)
        if row.holder is None:
            raise TurnOpen(row.session_id)
        raise SessionRunning(row.session_id, row.holder, row.lease_until)
    if content is None and not is_open and not log.store.inbox(log.session_id, 1):
        raise InvalidOperation(f"no turn is open in session {log.session_id}; send an input")
