"""Tasks: a child session with its own context and log, run from within a tool.

The parent keeps the start and the final answer; what the child did on the way stays with the child. Its id is
made of the call's key, so a crash finds the same child again: half done it goes on, done it is not run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from ..core.drafts import Draft, write
from ..core.messages import Message
from ..core.turns import Cursor
from ..errors import LawBroken, NotFound
from ..log import Log
from ..models.model import Model
from ..stores.store import NewSession, SessionRow
from .limits import Limits
from .tools import Tool

if TYPE_CHECKING:
    from .loop import Loop

DEEPEST = 4


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

    row = await parent.cross(_find_or_start, parent.log, key, agent, seeds)
    log = Log(parent.log.store, row, parent.log.world)
    known: Mapping[str, Tool] = {tool.name: tool for tool in tools}
    child = Loop(log, models or parent.models, known, limits or parent.limits, parent)
    cursor = await parent.cross(lambda: log.cursor)
    why = ""
    if cursor.turn or not row.turns:
        async for event in child.run(None if cursor.turn else text):
            if event.type == "session:turn_completed":
                why = event.data.get("error", {}).get("message", "")
    entries = (await parent.cross(log.path, last=1)).entries
    answer = entries[-1].message if entries else None
    if answer is None or answer.role != "assistant" or log.cursor.turn:
        raise LawBroken(
            f"task {row.session_id} ended without an answer{': ' if why else ''}{why}; "
            "look at it with store.session(id).tree()"
        )
    return answer.text


def task_id(key: str) -> str:
    """The session of the task a call started: the same before and after a crash."""
    return f"ses_{sha256(key.encode()).hexdigest()[:20]}"


def _find_or_start(log: Log, key: str, agent: str | None, seeds: Sequence[Message]) -> SessionRow:
    child_id = task_id(key)
    try:
        return log.store.session(child_id)
    except NotFound:
        pass
    depth = _depth(log)
    if depth >= DEEPEST:
        raise LawBroken(f"tasks may be nested {DEEPEST} deep; this one would be number {depth + 1}")
    # Recorded in the parent before it exists: a child can be missing, but never unknown.
    log.record("task_started", data={"child": child_id, "seq": log.leaf.seq})
    source, now = log.store.session(log.session_id), log.world.now()
    written = write(Cursor(), [Draft(seed) for seed in seeds], now, seed=True, redactor=log.world.redactor)
    row = SessionRow(
        session_id=child_id,
        space=source.space,
        owner=source.owner,
        conversation_id=log.world.new_id("con"),
        agent=agent,
        relation="task",
        parent_session=source.session_id,
        parent_seq=log.leaf.seq,
        seed_count=len(written.entries),
        started_at=now,
        updated_at=now,
    )
    new = NewSession(row, log.world.new_id(""), seeds=written.entries, blobs=written.blobs)
    return log.store.create(new)[0]


def _depth(log: Log) -> int:
    """How many tasks it is nested in."""
    depth, row = 0, log.store.session(log.session_id)
    while row.relation == "task" and row.parent_session is not None and depth <= DEEPEST:
        depth += 1
        try:
            row = log.store.session(row.parent_session)
        except NotFound:
            break
    return depth
