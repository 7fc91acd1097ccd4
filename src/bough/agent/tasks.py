"""Tasks: a child session with its own context and log, run from within a tool.

The parent keeps the start and the final answer; what the child did on the way stays with the child. Its id is
made of the call's key and recorded, so a crash finds the same child again: half done it goes on, done it is not run
twice.
A child that waits for a person leaves its tool through `TaskWaits`; when the tool is run again it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from ..core.drafts import Draft, build_entries
from ..core.messages import Message
from ..core.turns import Cursor
from ..errors import InvalidOperation, NotFound, SessionRunning, SessionTrashed
from ..log.log import Log
from ..models.model import Model
from ..stores.base import NewSession, SessionRow
from .ancestors import MAX_TASK_DEPTH, ancestors
from .approvals import TaskNeedsApproval
from .call_status import pending_approvals
from .limits import Limits
from .tools.tool import Tool

if TYPE_CHECKING:
    from .loop import Loop


async def run_task(
    parent: Loop,
    key: str,
    text: str,
    *,
    agent: str | None = None,
    seeds: Sequence[Message] = (),
    models: Sequence[Model] | None = None,
    tools: Iterable[Tool] = (),
    limits: Limits | None = None,
) -> str:
    """Have a child session answer `text`; returns its final answer."""
    from .loop import Loop  # a child is run by the same loop

    row = await parent.run_blocking(_find_or_start, parent.log, key, agent, seeds)
    log = Log(parent.log.store, row, parent.log.runtime)
    known: Mapping[str, Tool] = {tool.name: tool for tool in tools}
    cursor = await parent.run_blocking(lambda: log.cursor)
    is_new, why = not (cursor.turn or row.turns), ""
    while is_new or log.cursor.turn:
        child = Loop(log, models or parent.models, known, limits or parent.limits, parent)
        async for event in child.run(text if is_new else None):
            if event.type == "session:turn_completed":
                why = event.data.get("error", {}).get("message", "")
            elif event.type == "session:warning":
                parent.warnings.append(event)
        if not log.cursor.open_calls:
            break
        asked = await parent.run_blocking(pending_approvals, log)
        if asked:
            raise TaskNeedsApproval(asked)
        is_new = False  # the word came in this moment
    return await parent.run_blocking(_answer, log, why)


def _answer(log: Log, why: str) -> str:
    entries = log.path(last=1).entries
    answer = entries[-1].message if entries else None
    if answer is None or answer.role != "assistant" or log.cursor.turn:
        raise InvalidOperation(
            f"task {log.session_id} ended without an answer{': ' if why else ''}{why}; "
            "look at it with store.session(id).tree()"
        )
    return answer.text


async def cancel_tasks(parent: Loop, children: Iterable[str]) -> None:
    """Close the turns of tasks that nobody is going to wait for any more, those that wait for a person too."""
    from .loop import Loop

    for child in children:
        try:
            log = await parent.run_blocking(_open_task, parent.log, child)
            if log is not None:
                await Loop(log, parent.models, {}, parent.limits, parent).close()
        except (NotFound, SessionTrashed, SessionRunning):
            pass  # gone, or somebody drives it on his own


def _open_task(log: Log, child: str) -> Log | None:
    """The child's log, if its turn is open."""
    task = Log(log.store, log.store.session(child), log.runtime)
    return task if task.cursor.turn else None


def task_id(log: Log, key: str, since: int = 0) -> str:
    """The session of the task a call started: the same before and after a crash.

    As it was recorded behind fact `since`, for a copy has children of its own; if it was not, it is made of the key.
    """
    name = _named(log, key)
    for fact in reversed(log.store.journal(log.session_id, since)):
        if fact.kind == "task_started" and fact.data.get("task") == name:
            return str(fact.data["child"])
    return f"ses_{sha256(key.encode()).hexdigest()[:20]}"


def _named(log: Log, key: str) -> str:
    """The task by its place in the session: what of its key is the same in a copy."""
    return key.removeprefix(f"{log.session_id}/")


def _find_or_start(log: Log, key: str, agent: str | None, seeds: Sequence[Message]) -> SessionRow:
    child_id = task_id(log, key, log.batch_since)
    try:
        return log.store.session(child_id)
    except NotFound:
        pass
    depth = len(ancestors(log))
    if depth >= MAX_TASK_DEPTH:
        raise InvalidOperation(
            f"tasks may be nested {MAX_TASK_DEPTH} deep; this one would be number {depth + 1}"
        )
    # Recorded in the parent before it exists: a child can be missing, but never unknown.
    log.record("task_started", data={"child": child_id, "seq": log.leaf.seq, "task": _named(log, key)})
    source, now = log.store.session(log.session_id), log.runtime.now()
    written = build_entries(
        Cursor(), [Draft(seed) for seed in seeds], now, seed=True, redactor=log.runtime.redactor
    )
    row = SessionRow(
        session_id=child_id,
        space=source.space,
        owner=source.owner,
        conversation_id=log.runtime.new_id("con"),
        agent=agent,
        relation="task",
        parent_session=source.session_id,
        parent_seq=log.leaf.seq,
        seed_count=len(written.entries),
        started_at=now,
        updated_at=now,
    )
    new = NewSession(row, log.runtime.new_id(""), seeds=written.entries, blobs=written.blobs)
    return log.store.create(new)[0]
