"""The asynchronous side of a runner: verbs run on threads, and the path of the run follows every append.

Does not decide what happens next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from oakleaf.agent.policy import RunPolicy
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.prompt_path import PromptPath
from oakleaf.core.usage import Price, Usage
from oakleaf.errors import SessionIsReplay
from oakleaf.log.ledger import calls_of_open_turn
from oakleaf.log.log import Log
from oakleaf.log.prompt import load
from oakleaf.log.request import Committed
from oakleaf.log.threads import free_in_pieces, run_blocking, run_by_size, run_to_end
from oakleaf.models.base import Model, model_name
from oakleaf.models.prices import needs_table, price_of
from oakleaf.stores.base import PathSnapshot, QueuedInput, SessionRow
from oakleaf.turn.runner import ModelName, Runner

P = ParamSpec("P")
R = TypeVar("R")
GRACE_SECONDS = 5.0
"""Seconds for the clean-up of a cancelled tool, before the run waits no longer."""


def name_of(model: Model) -> ModelName:
    return ModelName(model.provider, model.model, model_name(model))


class Writer:
    """One run's access to the session's log."""

    def __init__(
        self,
        log: Log,
        policy: RunPolicy,
        *,
        is_one_shot: bool = False,
        history: PromptPath | None = None,
    ) -> None:
        """Prepare the access. `history` is the path of the session that outlives this run."""
        models = policy.answers.models
        self.log, self.recorded = log, policy.recorded
        self.runner = Runner(
            log,
            name_of(models[0]) if models else None,
            bucket=policy.recorded.bucket,
            announces=policy.recorded.announces,
            may_call=policy.goes_on.may_call,
        )
        self.runner.is_one_shot, self._step_end = is_one_shot, policy.step_end
        self.history = PromptPath() if history is None else history
        """The entries behind the context of the next call."""
        self._keeps_history = history is not None
        self.leaf = log.leaf
        """The leaf of the path. The log may be ahead of it, if the host added a note through the same handle."""
        self.session_tools: tuple[str, ...] = ()
        """The tools of the session's start; empty if the session names none."""
        self.context_window: int | None = None
        """The window of the session's start."""
        self.queued = 0
        """How many inputs were queued when the session was loaded."""
        self.on_append: Callable[[Committed, list[Entry]], None] | None = None
        """Called after each append with the new entries, on a thread of the log."""

    async def run_blocking(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await run_blocking(work, *args, **kwargs)

    # -- reading -----------------------------------------------------------------------------------

    async def load(self) -> SessionRow:
        """Read row, details and the model's view of the path at the session's current leaf. The next commit
        is made under the fence of that row."""
        if self._keeps_history:
            return await self.run_blocking(self._follow)
        reading, self.history = await run_by_size(self.log.leaf.seq, self._load)
        row = reading.row
        self.queued, self.leaf = reading.queued, row.leaf
        self.session_tools, self.context_window = row.tool_names, row.context_window
        return row

    def _load(self) -> tuple[PathSnapshot, PromptPath]:
        reading, history = load(self.log)
        history.settings()  # here and not on the event loop: of a long path it takes a while
        _ = self.log.cursor  # which may have to be read
        self.runner.begin(reading.row, reading.detail)
        if self._step_end is not None:
            self.runner.step_end = partial(self._step_end, history.entries)
            calls = calls_of_open_turn(self.log) if self.log.cursor.turn else []
            self.runner.earlier_calls = {call.call_id: call for call in calls}
        return reading, history

    def _follow(self) -> SessionRow:
        """Read row and details. Read the path again only if another process wrote since the run before."""
        row = self.runner.look()
        self.log.seek(row.leaf)
        self.leaf = row.leaf
        if self.history.entry_id != self.log.cursor.entry_id:
            self.history.start(self.log.path().entries)
        return row

    async def look(self) -> SessionRow:
        """Read the row again, and the path after a move of the leaf."""
        row = await self.run_blocking(self.runner.look)
        return row if row.leaf == self.leaf else await self.load()

    async def first_queued(self) -> QueuedInput | None:
        """Return the oldest queued input."""
        queued = await self.run_blocking(self.log.store.inbox, self.log.session_id, 1)
        return queued[0] if queued else None

    def forget_path(self) -> None:
        """Free the path at the end of the run, unless the path outlives the run."""
        if self._keeps_history:
            return
        history, self.history = self.history, PromptPath()
        free_in_pieces(history.values())

    def check(self, row: SessionRow) -> None:
        """Refuse a replay. A recording answered its tools, and they must not run now by accident."""
        if row.relation == "replay" and self.recorded.bucket != "replay":
            raise SessionIsReplay(row.session_id)

    @property
    def path(self) -> list[Entry]:
        """The path to the leaf of this run, without messages replaced by a summary before the load."""
        return self.history.entries

    def settings(self) -> Settings:
        """Return the settings in force at the end of the path."""
        return self.history.settings()

    def allowed_tools(self) -> tuple[str, ...] | None:
        """Return the names of the tools allowed by the session at the end of the path. None: any."""
        names = self.settings().tools
        if not self.session_tools:
            return names
        return tuple(name for name in self.session_tools if names is None or name in names)

    # -- writing -----------------------------------------------------------------------------------

    async def write(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a verb of the runner on a thread to the end, even if cancelled meanwhile."""
        done: R = await run_to_end(self._write, verb, *args, **kwargs)
        if isinstance(done, Committed) and done.new_entries and self.log.cursor.open_calls:
            await self.append_host_entries()
        return done

    def _write(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        done = verb(*args, **kwargs)
        if isinstance(done, Committed) and done.new_entries and not done.is_repeat:
            entries = done.entries
            self._extend_path(entries, done)
            if self.on_append is not None:
                self.on_append(done, entries)
        return done

    async def append_host_entries(self) -> None:
        """Append the due entries of the host."""
        due = self.recorded.host_entries and self.recorded.host_entries(self.log.cursor)
        if due:
            await self.write(self.runner.append, due.drafts, key=due.key)

    def _extend_path(self, entries: list[Entry], done: Committed) -> None:
        first = entries[0].seq
        if self.history.last_seq != first - 1:  # notes of others came before
            notes = self.log.path(since=self.history.last_seq)
            self.history.extend(entry for entry in notes.entries if entry.seq < first)
        self.history.extend(entries)
        self.leaf = done.leaf

    async def price(self, model: Model, usage: Usage | None, units: Mapping[str, int] | None) -> Price | None:
        """Return the cost of a call. A table of prices is asked on a thread, for it takes a while to load."""
        if usage is None:
            return None
        ask = partial(price_of, model, usage, units)
        return await self.run_blocking(ask) if needs_table(model) else ask()


async def run_uncancelled(work: Coroutine[Any, Any, R]) -> R:
    """Finish `work` even if the caller is cancelled, once or again. A second cancel must not find the first
    one's writes half done. The cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            is_cancelled = True
    result = task.result()
    if is_cancelled:
        raise asyncio.CancelledError
    return result


async def cancel_all(running: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel all tasks, and wait for the end of the clean-up. A child session among the tasks closes its own
    turn."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=GRACE_SECONDS)
    for task in running:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it as never retrieved
