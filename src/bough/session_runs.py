"""The verbs of a session that run an agent. What they need is loaded when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

from .core.messages import Message, user
from .core.tree import Leaf
from .core.turns import OpenCall
from .errors import InvalidArgument, InvalidOperation, InvalidPosition, StaleLeaf, StoreError, TaskTrashed
from .log.log import Log

if TYPE_CHECKING:
    from .agent.approvals import PendingApproval
    from .agent.events import Event as AgentEvent
    from .agent.limits import Limits
    from .agent.tools.tool import Tool
    from .engines.absurd.engine import EnqueuedTask
    from .engines.local import ModelLike, Run
    from .log.workspace import Workspace

    Tools = Iterable[Tool | Callable[..., Any]]


class Runs:
    """Half of a `Session`: send, resume, cancel, approve, and the host's own shell."""

    log: Log

    def __init__(self) -> None:
        self._run: Run | None = None

    @overload
    def send(
        self,
        content: str | Message,
        *,
        model: ModelLike,
        tools: Tools = (),
        limits: Limits | None = None,
        one_shot: bool = False,
        engine: Literal["local"] = "local",
    ) -> Run: ...
    @overload
    def send(
        self,
        content: str | Message,
        *,
        engine: Literal["absurd"],
        queue: str = "default",
        agent: str | None = None,
        key: str | None = None,
        limits: Limits | None = None,
        one_shot: bool = False,
    ) -> EnqueuedTask: ...
    def send(self, content: str | Message, *, engine: str = "local", **how: Any) -> Run | EnqueuedTask:
        """Run one turn with our loop; iterate over what it returns for its events: `async for event in …`.

        `model` is a Model, a name such as "anthropic:claude-…", or a chain of them: the next one is asked when
        one is overloaded for good. Whatever dies in the middle, `resume` goes on from what is durable.

        `one_shot` says that this input is all there is: with its answer the session is completed. One that is sent
        to again goes on.

        With `engine="absurd"` a worker runs it, on any machine: the input and its task are durable on return.
        `agent` names who answers among the worker's agents (default: the session's); `key` makes it safe to repeat.
        """
        if engine == "absurd":
            sent: EnqueuedTask = _absurd().send(self.log, content, **how)
            return sent
        return self._start(content, engine, how)

    def _start(self, content: str | Message | None, engine: str, how: dict[str, Any]) -> Run:
        if engine != "local":
            raise InvalidArgument("engine", engine, '"local" or "absurd"')
        from .engines.local import start_run

        self._run = start_run(self.log, content, **how)
        return self._run

    @overload
    def enqueue(self, content: str | Message) -> int: ...
    @overload
    def enqueue(
        self,
        content: str | Message,
        *,
        engine: Literal["absurd"],
        queue: str = "default",
        agent: str | None = None,
    ) -> EnqueuedTask: ...
    def enqueue(self, content: str | Message, *, engine: str = "local", **how: Any) -> int | EnqueuedTask:
        """Keep an input durably while the session is busy: whoever drives it takes it when its turn is over.

        With `engine="absurd"` a task comes with it, in the same transaction: somebody will.
        """
        message = user(content) if isinstance(content, str) else content
        if engine == "absurd":
            sent: EnqueuedTask = _absurd().enqueue(self.log, message, **how)
            return sent
        return self.log.enqueue(message)

    def rollback(self) -> Leaf | None:
        """Leave an unanswered turn behind, as if its input had not been sent; None if no turn is open."""
        turn = self.log.cursor.turn
        return self.log.move(self.log.leaf_at(turn - 1)) if turn else None

    @overload
    def resume(
        self,
        *,
        model: ModelLike,
        tools: Tools = (),
        limits: Limits | None = None,
        rollback: bool = False,
        engine: Literal["local"] = "local",
    ) -> Run: ...
    @overload
    def resume(
        self, *, engine: Literal["absurd"], queue: str = "default", agent: str | None = None
    ) -> EnqueuedTask: ...
    def resume(self, *, rollback: bool = False, engine: str = "local", **how: Any) -> Run | EnqueuedTask:
        """Go on with the turn that is open: after a crash, a failure or an approval.

        `rollback=True` is the other reading, for an interactive start: an unanswered turn is left behind instead.
        With `engine="absurd"` a worker goes on with it: after a task that failed for good.
        """
        if engine == "absurd":
            sent: EnqueuedTask = _absurd().send(self.log, None, **how)
            return sent
        run = self._start(None, engine, how)  # first: what cannot start must leave nothing behind
        if rollback:
            self.rollback()
        return run

    def cancel(self) -> None:
        """Abort what this handle's latest `send` or `resume` is doing, from any thread; nothing if it is done.

        A turn that is a task of the Absurd engine is aborted by its worker, from any handle, within about a second.
        """
        if self._run is not None:
            self._run.cancel()
        elif self.log.store.has_tasks:
            from .engines.absurd.signals import request_cancel

            request_cancel(self.log)

    def send_sync(self, content: str | Message, **how: Any) -> list[AgentEvent]:
        """`send` for scripts: the whole turn, its events as a list."""
        from .engines.local import collect

        return collect(self.send(content, **how))

    def resume_sync(self, **how: Any) -> list[AgentEvent]:
        """`resume` for scripts: until the session rests, its events as a list."""
        from .engines.local import collect

        return collect(self.resume(**how))

    def workspace_tools(self, workspace: Workspace, **how: Any) -> list[Tool]:
        """Files, grep, shell and HTTP within the workspace's scope; `commands` is the shell's allow-list."""
        from .agent.tools.workspace import workspace_tools

        return workspace_tools(self.log, workspace, **how)

    def shell(self, argv: Sequence[str], workspace: Workspace, *, commands: Iterable[str] = ()) -> str:
        """A command of the host's own, recorded as the exchange a model would have made; returns what it said."""
        from .agent.tools.host_shell import run_shell

        return run_shell(self.log, list(argv), workspace, commands)

    def pending_approvals(self) -> list[PendingApproval]:
        """The calls that wait for a person, here and in tasks, each with its session: hand them to `approve`."""
        from .agent.call_status import pending_approvals

        return pending_approvals(self.log)

    def approve(self, call: OpenCall, *, allow: bool = True) -> None:
        """Answer a tool's request for approval; `resume` then runs the call, once, or tells the model it was denied.

        A call of a task is answered in the task, by its own handle or by any handle above it; `resume` of the
        session that had started it goes on with both.
        """
        name = getattr(call, "session_id", self.log.session_id)
        store = self.log.store
        log = self.log if name == self.log.session_id else Log(store, store.session(name), self.log.runtime)
        call = OpenCall(call.seq, call.index, call.call)
        while True:
            log.refresh()
            if call not in log.cursor.open_calls:
                raise InvalidPosition(f"call {call.call.id}", 0, log.leaf.seq)
            _refuse_unseen(log, call, allow=allow)
            try:
                return _decide(log, call, "approved" if allow else "denied")
            except StaleLeaf:
                pass  # the result of a sibling landed in this moment; the word is for this call, if it is still open


def _refuse_unseen(log: Log, call: OpenCall, *, allow: bool) -> None:
    """A word binds to the exact call, not to whatever a task of this one asks for; and a no stands."""
    from .agent.call_status import read_call_status

    known = read_call_status(log)
    if allow and (call.seq, call.index) in known.denied:
        raise InvalidOperation(
            f"call {call.call.id} was denied already, and that stands; resume tells the model"
        )
    if (call.seq, call.index) in known.trashed_tasks:
        raise TaskTrashed(log.session_id, known.trashed_tasks[call.seq, call.index])
    below = known.task_approvals.get((call.seq, call.index), ())
    if below:
        raise InvalidOperation(
            f"call {call.call.id} waits for {below[0].call.name} of its task {below[0].session_id}; approve that: "
            "session.waiting() lists what session.approve takes"
        )


def _decide(log: Log, call: OpenCall, kind: str) -> None:
    from .agent.ancestors import ancestors

    data = {"seq": call.seq, "index": call.index}
    told = {"session": log.session_id, **data, "word": kind}
    if log.store.has_tasks:
        from .engines.absurd.signals import record_decision, record_task_decision  # a task may wait for it

        record_decision(log, call, kind)
        for parent in ancestors(log):
            record_task_decision(parent, told)
        return
    log.record(kind, data=data, only_at_leaf=True)
    for parent in ancestors(log):
        parent.record("task_decided", data=told)


def _absurd() -> ModuleType:
    try:
        from .engines.absurd import engine as absurd
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is not installed; pip install 'bough[absurd]' brings it") from None
    return absurd
