"""The verbs of a session that run an agent. What they need is loaded when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .core.messages import Message, user
from .core.tree import Leaf
from .core.turns import OpenCall
from .errors import BadPoint
from .log import Log

if TYPE_CHECKING:
    from .agent.events import Event as AgentEvent
    from .agent.limits import Limits
    from .agent.tools import Tool
    from .engines.local import ModelLike, Run
    from .workspace import Workspace

    Tools = Iterable[Tool | Callable[..., Any]]


class Runs:
    """Half of a `Session`: send, resume, cancel, approve, and the host's own shell."""

    log: Log

    def __init__(self) -> None:
        self._run: Run | None = None

    def send(
        self, content: str | Message, *, model: ModelLike, tools: Tools = (), limits: Limits | None = None
    ) -> Run:
        """Run one turn with our loop; iterate over what it returns for its events: `async for event in …`.

        `model` is a Model, a name such as "anthropic:claude-…", or a chain of them: the next one is asked when
        one is overloaded for good. Whatever dies in the middle, `resume` goes on from what is durable.
        """
        from .engines.local import start

        self._run = start(self.log, content, model=model, tools=tools, limits=limits)
        return self._run

    def enqueue(self, content: str | Message) -> int:
        """Keep an input durably while the session is busy: whoever drives it takes it when its turn is over."""
        return self.log.enqueue(user(content) if isinstance(content, str) else content)

    def rollback(self) -> Leaf | None:
        """Leave an unanswered turn behind, as if its input had not been sent; None if no turn is open."""
        turn = self.log.cursor.turn
        return self.log.move(self.log.place(turn - 1)) if turn else None

    def resume(
        self, *, model: ModelLike, tools: Tools = (), limits: Limits | None = None, rollback: bool = False
    ) -> Run:
        """Go on with the turn that is open: after a crash, a failure or an approval.

        `rollback=True` is the other reading, for an interactive start: an unanswered turn is left behind instead.
        """
        if rollback:
            self.rollback()
        from .engines.local import start

        self._run = start(self.log, None, model=model, tools=tools, limits=limits)
        return self._run

    def cancel(self) -> None:
        """Abort what this handle's latest `send` or `resume` is doing, from any thread; nothing if it is done."""
        if self._run is not None:
            self._run.cancel()

    def send_sync(self, content: str | Message, **how: Any) -> list[AgentEvent]:
        """`send` for scripts: the whole turn, its events as a list."""
        from .engines.local import collect

        return collect(self.send(content, **how))

    def resume_sync(self, **how: Any) -> list[AgentEvent]:
        from .engines.local import collect

        return collect(self.resume(**how))

    def workspace_tools(self, workspace: Workspace, **how: Any) -> list[Tool]:
        """Files, grep, shell and HTTP within the workspace's scope; `commands` is the shell's allow-list."""
        from .agent.toolbox import workspace_tools

        return workspace_tools(self.log, workspace, **how)

    def shell(self, argv: Sequence[str], workspace: Workspace, *, commands: Iterable[str] = ()) -> str:
        """A command of the host's own, recorded as the exchange a model would have made; returns what it said."""
        from .agent.hosted import run_shell

        return run_shell(self.log, list(argv), workspace, commands)

    def approve(self, call: OpenCall, *, allow: bool = True) -> None:
        """Answer a tool's request for approval; `resume` then runs the call, once, or tells the model it was denied."""
        self.log.refresh()
        if call not in self.log.cursor.open_calls:
            raise BadPoint(f"call {call.call.id}", 0, self.log.leaf.seq)
        kind = "approved" if allow else "denied"
        self.log.record(kind, data={"seq": call.seq, "index": call.index}, is_bound=True)
