"""Turns run by workers: an input and the task of the answer, in one commit.

Knows logs and what a queued turn must be checked for. Does not know queues: an engine says which effect spawns a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.agent.import_plan import accept_import, require_accepted
from oakleaf.agent.limits import Limits, check_turns, limit_data, narrow
from oakleaf.agent.start_facts import queued_turn_start
from oakleaf.core.context import changed_max_messages, changed_options, fold_settings, merge_options
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Effects, Settings, check_effects
from oakleaf.core.facts import Appended, Enqueued
from oakleaf.core.messages import Message, user
from oakleaf.core.usage import MAX_COUNT
from oakleaf.errors import InputsQueued, InvalidOperation, SessionRunning, TurnOpen
from oakleaf.log.binding import bind, check_bound
from oakleaf.log.changes import check_callers_key, new_key
from oakleaf.log.keyed_turn import KeyedTurn, find_turn
from oakleaf.log.lease import interrupt
from oakleaf.log.log import Log
from oakleaf.log.request import Request
from oakleaf.log.turn_start import trigger_columns, turn_about
from oakleaf.stores.base import Effect, SessionRow
from oakleaf.wire.options import check_options

if TYPE_CHECKING:
    from oakleaf.session import Session


class TurnTasks(Protocol):
    """The way an engine makes the tasks of a session's turns."""

    def spawn(self, queue: str, key: str) -> Effect:
        """Return the effect to spawn a task, once for each key."""
        ...

    def is_pending(self, queue: str, key: str) -> bool:
        """Whether the task of a key was spawned and has not ended."""
        ...

    def enqueue(self, body: bytes, at: int, queue: str, key: str) -> None:
        """Store an input behind the current turn, and spawn a task in the same transaction."""
        ...


class QueuedTurn(Struct, frozen=True):
    """A durable input and the task of the answer."""

    queue: str
    key: str
    """The key of the task."""
    seq: int
    """The leaf of the session: the input, unless the input was queued."""


def queue_turn(
    session: Session,
    content: str | Message,
    tasks: TurnTasks,
    queue: str,
    *,
    agent: str | None = None,
    rebind: bool = False,
    trigger: str | Mapping[str, str] | None = None,
    policy: Mapping[str, Any] | None = None,
    trace: str | None = None,
    key: str | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    effects: Effects | None = None,
    one_shot: bool = False,
    accept_imported: bool = False,
) -> QueuedTurn:
    """Write an input and spawn a task in one commit.

    An input with a `key` may be sent again, at any time: the input is written once, and has one task. The number of turns is
    checked here against `limits` and the session's own; a worker checks these and its agent's limits.
    """
    log = session.log
    check_callers_key(key)
    about = turn_about(trigger, policy, log.runtime.redactor, trace)
    if agent is not None:
        check_bound(log, agent, rebind=rebind)
        bind(log, agent, rebind=rebind)
    if accept_imported:
        accept_import(log)
    recorded = find_turn(log, key, content)
    if recorded is not None:
        return _recorded_turn(log, recorded, str(key), tasks, queue)
    row = log.refresh()
    if log.cursor.turn:
        row = log.store.session(log.session_id)
        if row.holder is None:
            raise TurnOpen(row.session_id)
        raise SessionRunning(row.session_id, row.holder, row.lease_until)
    if row.imported_facts:
        require_accepted(log, None, calls=False)
    settings = fold_settings(log.store.control_entries(row.session_id, leaf=row.leaf))
    check_options(None, options)  # the worker knows the provider
    check_effects(effects)
    _check_turns(settings, row, limits)
    message = user(content) if isinstance(content, str) else content
    if log.store.inbox(row.session_id, 1):  # what was queued first runs first
        if key is not None or options or effects:
            raise InputsQueued(row.session_id)
        return _queue_input(log, message, tasks, queue)
    key = key or new_key(log.runtime)
    changed = Settings(
        options=changed_options(settings.options, options),
        effects=effects,
        max_messages=None if limits is None else changed_max_messages(settings, limits.max_messages),
    )
    start = replace(
        queued_turn_start(about, log),
        options=merge_options(settings.options, options),
        limits=None if limits is None else limit_data(limits),
        one_shot=one_shot,
    )
    spawned = tasks.spawn(queue, key)
    log.commit(
        Request(
            drafts=(Draft(message),) if changed == Settings() else (Draft(changed), Draft(message)),
            key=key,
            about=start,
            row=trigger_columns(about),
            facts=(Enqueued(queue),),
            effect=lambda entries: spawned,
        )
    )
    return QueuedTurn(queue, key, log.leaf.seq)


def queue_open_turn(
    session: Session,
    tasks: TurnTasks,
    queue: str,
    *,
    agent: str | None = None,
    take_over: bool = False,
    accept_imported: bool = False,
) -> QueuedTurn:
    """Spawn a task for the open turn, or for the queued inputs. `take_over` ends the run that holds the
    session."""
    log = session.log
    if take_over:
        held = log.store.session(log.session_id)
        if held.holder is not None:
            interrupt(log, held)
    if accept_imported:
        accept_import(log)
    if agent is not None:
        bind(log, agent)
    row = log.refresh()
    if not log.cursor.turn and not log.store.inbox(log.session_id, 1):
        raise InvalidOperation(f"no turn is open in session {log.session_id}; send an input")
    if row.imported_facts:
        require_accepted(log, None, calls=True)
    return _spawn(log, tasks, queue)


def queue_input(
    session: Session, content: str | Message, tasks: TurnTasks, queue: str, *, agent: str | None = None
) -> QueuedTurn:
    """Queue an input behind the current turn. Its task takes the input unless another runner already has."""
    if agent is not None:
        bind(session.log, agent)
    return _queue_input(session.log, user(content) if isinstance(content, str) else content, tasks, queue)


def _queue_input(log: Log, message: Message, tasks: TurnTasks, queue: str) -> QueuedTurn:
    row, key = log.refresh(), new_key(log.runtime)
    tasks.enqueue(log.queued_body(message), log.runtime.now(), queue, key)
    return QueuedTurn(queue, key, row.leaf.seq)


def _spawn(log: Log, tasks: TurnTasks, queue: str) -> QueuedTurn:
    key = new_key(log.runtime)
    spawned = tasks.spawn(queue, key)
    log.commit(Request(fact=Enqueued(queue), at_leaf=True, key=key, effect=lambda entries: spawned))
    return QueuedTurn(queue, key, log.leaf.seq)


def _check_turns(settings: Settings, row: SessionRow, limits: Limits | None) -> None:
    """Raise if the limits of the sender or of the session allow no other turn. Without either, only the
    worker knows one."""
    stop = check_turns(narrow(limits or Limits(turns=MAX_COUNT), settings.limits), row.session_id, row.turns)
    if stop is not None and not stop.is_warning:
        raise stop.to_error(row.session_id)


def _recorded_turn(log: Log, recorded: KeyedTurn, key: str, tasks: TurnTasks, queue: str) -> QueuedTurn:
    """Return the task of a repeated input. An unanswered input whose task is gone or failed gets a new task."""
    row = log.store.session(log.session_id)
    # An import does not say which queue of this store is used.
    for stored in log.store.journal(log.session_id, max(recorded.fact_number, row.imported_facts)):
        match stored.fact:
            case Enqueued(queue=queue):
                break
            case Appended():
                break
    if not tasks.is_pending(queue, key) and recorded.is_open:
        log.refresh()
        key = _spawn(log, tasks, queue).key
    return QueuedTurn(queue, key, recorded.turn)
