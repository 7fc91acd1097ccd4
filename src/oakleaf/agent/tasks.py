"""Tasks: a child session, run from within a tool, with a context and log of its own.

The parent keeps the start and the final answer; the child's steps stay in the child. The child's id is made of the
call's key and recorded, so that a crash finds the same child again: half done it is resumed, done it is not run
twice. A child that waits for a person leaves its tool through `TaskNeedsApproval`; running the tool again resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oakleaf.agent.call_status import pending_approvals
from oakleaf.agent.events import Emit, Event, ignore
from oakleaf.agent.limits import LimitChecker
from oakleaf.agent.policy import RunPolicy, local_run
from oakleaf.agent.task_line import MAX_TASK_DEPTH, ancestors, is_task_of
from oakleaf.agent.tools.sources import for_one_turn, split_tools
from oakleaf.agent.tools.tool import PendingApproval, TaskNeedsApproval, TaskOptions, Tool, ToolContext
from oakleaf.agent.writer import Writer
from oakleaf.core.context import merge_options
from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Effects
from oakleaf.core.facts import TaskStarted
from oakleaf.core.messages import Message, tool_result
from oakleaf.core.turns import Cursor
from oakleaf.errors import InvalidOperation, NotFound, SessionRunning, SessionTrashed
from oakleaf.log.changes import new_key
from oakleaf.log.log import Log
from oakleaf.models.base import Model
from oakleaf.stores.base import NewSession, SessionRow

if TYPE_CHECKING:
    from oakleaf.agent.loop import Loop

CANNOT_WAIT = (
    "has a task that needs an approval and cannot wait for it: resuming would run the tool again, which an unsafe "
    'tool must not. The task was cancelled. Declare the tool @tool(effect="idempotent") if it may run again, or give '
    "it a verify function that finds out what happened."
)

BuildLoop = Callable[[Writer, RunPolicy, LimitChecker | None], "Loop"]
"""How the loop of a child is built: `loop.build_loop`, passed in because loops run tasks and tasks run loops."""


class TaskRunner:
    """Runs and cancels the tasks of one session's tools."""

    def __init__(
        self,
        writer: Writer,
        models: Sequence[Model],
        limits: LimitChecker,
        build_loop: BuildLoop,
        effects: Effects | None = None,
    ) -> None:
        self.warnings: list[Event] = []
        """Warnings for the author of a tool without an event so far, including the warnings of tasks."""
        self.emit: Emit = ignore
        """Called when a task is recorded as started."""
        self._writer, self._models, self._limits, self._build_loop = writer, models, limits, build_loop
        self._effects = effects

    async def run(self, key: str, text: str, task: TaskOptions) -> str:
        """Let a child session answer `text`; return the final answer."""
        run_blocking, parent = self._writer.run_blocking, self._writer.log
        row, number = await run_blocking(_find_or_start, parent, key, task.agent, task.seeds)
        if number is not None:
            self.emit(Event("session:task_started", {}, number))
        log = Log(parent.store, row, parent.runtime)
        tools, sources = split_tools(task.tools)
        cursor, settings = await run_blocking(lambda: (log.cursor, parent.settings()))
        is_new, error, options = not (cursor.turn or row.turns), "", task.options
        if task.models is None and is_new:
            options = merge_options(settings.options, options)
        models, limits = task.models or self._models, task.limits or self._limits.limits
        if task.limits is None and limits.max_messages is None:
            limits = replace(limits, max_messages=settings.max_messages)
        policy = local_run(
            models, tools, limits, options=options, sources=for_one_turn(sources), effects=self._effects
        )

        def note(event: Event) -> None:
            nonlocal error
            if event.type == "session:turn_completed":
                error = event.data.get("error", {}).get("message", "")
            elif event.type == "session:warning":
                self.warnings.append(event)

        while is_new or log.cursor.turn:
            await self._child(log, policy).run(text if is_new else None, emit=note)
            if not log.cursor.open_calls:
                break
            approvals = await run_blocking(pending_approvals, log)
            if approvals:
                raise TaskNeedsApproval(approvals)
            is_new = False  # the decision was made in this moment
        return await run_blocking(_final_answer, log, error)

    async def settle_wait(self, tool: Tool, context: ToolContext) -> Message | list[PendingApproval]:
        """Return what the tasks of a left tool wait for; or the result of a tool that cannot wait."""
        if tool.effect != "unsafe" or tool.verify is not None:
            return context.pending_approvals
        # Resuming would run it again from its beginning, and what it did before its task is not known.
        run_blocking, parent = self._writer.run_blocking, self._writer.log
        children = [
            await run_blocking(task_id, parent, key, parent.position.calls_since) for key in context.task_keys
        ]
        await self.cancel(children)
        why = f"{tool.name} {CANNOT_WAIT}"
        data = {"code": "cannot_wait", "message": why, "session_id": parent.session_id}
        call = {"call_id": context.call.id, "name": tool.name}
        self.warnings.append(Event("session:warning", data | call))
        return tool_result(context.call.id, why, error=True, outcome="interrupted")

    async def cancel(self, children: Iterable[str]) -> None:
        """Close the turns of abandoned tasks. Tasks in wait for a person are closed too."""
        for child in children:
            try:
                log = await self._writer.run_blocking(_open_task, self._writer.log, child)
                if log is not None:
                    await self._child(log, local_run(self._models, {}, self._limits.limits)).close()
            except (NotFound, SessionTrashed, SessionRunning):
                pass  # deleted, or another process drives it on its own

    def _child(self, log: Log, policy: RunPolicy) -> Loop:
        return self._build_loop(Writer(log, policy), policy, self._limits)


def _final_answer(log: Log, error: str) -> str:
    entries = log.path(last=1).entries
    answer = entries[-1].message if entries else None
    if answer is None or answer.role != "assistant" or log.cursor.turn:
        raise InvalidOperation(
            f"task {log.session_id} ended without an answer{': ' if error else ''}{error}; "
            "look at it with oakleaf.draw_tree(store.session(id))"
        )
    return answer.text


def _open_task(log: Log, child: str) -> Log | None:
    """Return the child's log if the child's turn is open."""
    row = log.store.session(child)
    if not is_task_of(row, log.session_id):
        return None
    task = Log(log.store, row, log.runtime)
    return task if task.cursor.turn else None


def task_id(log: Log, key: str, since: int = 0) -> str:
    """Return the session id of a call's task: the same before and after a crash.

    The id recorded after fact `since`, because a copy of a session has its own children; otherwise derived from the key.
    """
    name = _task_name(log, key)
    for stored in log.facts_backwards(since):
        match stored.fact:
            case TaskStarted(child=child, task=task) if task == name:
                return child
    return f"ses_{sha256(key.encode()).hexdigest()[:20]}"


def _task_name(log: Log, key: str) -> str:
    """Return the part of the key shared by all copies of the session."""
    return key.removeprefix(f"{log.session_id}/")


def _check_task(log: Log, task: SessionRow) -> None:
    """Refuse a session named by a foreign journal, or imported under the id of a future task."""
    is_ours = is_task_of(task, log.session_id)
    if not is_ours or (task.imported_facts and not log.store.session(log.session_id).imported_facts):
        raise InvalidOperation(
            f"session {task.session_id} has the id of a task of session {log.session_id} and is not that task; "
            "an import brought one of the two: run the call in a fork, or delete the session"
        )


def _find_or_start(
    log: Log, key: str, agent: str | None, seeds: Sequence[Message]
) -> tuple[SessionRow, int | None]:
    """Return the session of a task. If the task was started now, return the number of the fact too."""
    child_id = task_id(log, key, log.position.calls_since)
    if (existing := log.store.find_session(child_id)) is not None:
        _check_task(log, existing)
        return existing, None
    depth = len(ancestors(log))
    if depth >= MAX_TASK_DEPTH:
        raise InvalidOperation(
            f"tasks may be nested {MAX_TASK_DEPTH} deep; this one would be number {depth + 1}"
        )
    log.runtime.redactor.check_name(agent, "agent")
    # Recorded in the parent before it exists: a child can be missing, but never unknown.
    started = log.record(TaskStarted(child_id, log.leaf.seq, _task_name(log, key)))
    parent, now = log.store.session(log.session_id), log.runtime.now()
    written = build_entries(
        Cursor(), [Draft(seed) for seed in seeds], now, seed=True, redactor=log.runtime.redactor
    )
    row = SessionRow(
        session_id=child_id,
        space=parent.space,
        owner=parent.owner,
        conversation_id=log.runtime.new_id("con"),
        agent=agent,
        relation="task",
        parent_session=parent.session_id,
        parent_seq=log.leaf.seq,
        seed_count=len(written.entries),
        started_at=now,
        updated_at=now,
    )
    new = NewSession(
        row,
        new_key(log.runtime),
        seeds=written.entries,
        blobs=written.blobs,
        parent_facts=parent.facts,
        parent_nth=log.branch_number(),
    )
    return log.store.create(new)[0], started.fact_number
