"""The verbs of a session that execute it again. What they need is loaded when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .log.log import Log

if TYPE_CHECKING:
    from .agent.limits import Limits
    from .agent.tools.tool import Tool
    from .engines.local import ModelLike
    from .replay.report import ReplayReport
    from .replay.tool_answers import Mode, OnMiss


class Replays:
    """Part of a `Session`: replay."""

    log: Log

    async def replay(
        self,
        *,
        model: ModelLike | None = None,
        prompt: str | None = None,
        prompt_patch: str | None = None,
        tools: str | Iterable[Tool | Callable[..., Any]] = "recorded",
        start: int | None = None,
        mode: Mode | None = None,
        live: Sequence[str] = (),
        on_miss: OnMiss = "stop",
        limits: Limits | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ReplayReport:
        """Execute the session again on a fork, without effects, and say what became different.

        Keeps 1..`start` (default: the seeds) and feeds every later input. Without `model` the recorded answers are
        given. Modes: strict, recorded, dry, live (only the tools named in `live` run); docs/replay.md tells them.
        """
        from .replay.replay import ReplayPlan, replay

        plan = ReplayPlan(
            model=model,
            prompt=prompt,
            prompt_patch=prompt_patch,
            tools=tools,
            start=start,
            mode=mode,
            live=live,
            on_miss=on_miss,
            limits=limits,
            progress=progress,
        )
        return await replay(self.log, plan)

    def replay_sync(self, **how: Any) -> ReplayReport:
        """`replay` for scripts."""
        import asyncio  # forty milliseconds, for those who replay

        return asyncio.run(self.replay(**how))
