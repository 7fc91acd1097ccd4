"""The loop: ask what is to be done next, do it, make it durable, ask again.

`next_action` alone decides, so going on after a crash is the same loop. Input is durable before the model is
called, an answer before its tools run, each result as it lands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec.structs import replace

from ..core.codec import decode
from ..core.drafts import Draft
from ..core.messages import Message, assistant, to_user_message
from ..core.turns import CallModel, Rest, RunTools, next_action
from ..core.usage import Totals, Usage, total
from ..errors import ContextOverflow, Fenced, ModelError, Overloaded, SessionIsReplay, StaleLeaf, TaskTrashed
from ..log import ledger
from ..log.log import Log
from ..models.model import Model
from ..stores.base import SessionRow
from .call_status import CallStatus, read_call_status
from .cancellation import run_uncancelled
from .compaction import Sizes, compact
from .events import Event
from .lease import keep, take
from .limits import LimitHit, Limits, check_limits, narrow
from .model_call import Asking
from .start_facts import FIRST_FACT, is_one_shot_turn, runner_data, session_data, turn_start_data
from .tasks import cancel_tasks
from .tool_batch import run_batch, settle_open, stopped_result
from .tools.tool import Tool, error_text

CANCELLED = "(cancelled)"


class Loop(Asking):
    """One run of one session, by one model chain and one set of tools."""

    def __init__(
        self,
        log: Log,
        models: Sequence[Model],
        tools: Mapping[str, Tool],
        limits: Limits,
        parent: Loop | None = None,
        *,
        is_one_shot: bool = False,
    ) -> None:
        super().__init__(log, models, tools, limits)
        self.is_one_shot = is_one_shot
        self.parent = parent
        """Who started it as a task: a child spends its parent's money."""
        self.warnings: list[Event] = []
        """What whoever wrote its tools should know, not told yet; a task's too, which nobody watches."""
        self._is_first = False
        self._compacted = False
        self._sizes = Sizes()
        self._hide: Callable[[str], str] = log.runtime.redactor.redact_text
        # Two runs of one process are two holders.
        self._holder = f"{log.runtime.holder()}#{log.runtime.new_id('')}"

    def check(self, row: SessionRow) -> None:
        """A replay is not driven on: its tools were answered by a recording and must not run now by accident."""
        if row.relation == "replay":
            raise SessionIsReplay(row.session_id)

    async def run(self, content: str | Message | None) -> AsyncIterator[Event]:
        """The whole turn, event by event; without content the turn that is open goes on."""
        content = None if content is None else to_user_message(content)
        self.check(await self.run_blocking(self.log.refresh))
        self.limits = narrow(self.limits, (await self.read_settings()).limits)
        stop = await self._reached(is_new_turn=True) if content is not None else None
        if stop is not None and not stop.is_warning:
            yield self._refused(stop)
            return
        await self._take_lease()
        renewing = asyncio.ensure_future(keep(self.log, self._holder, self.run_blocking))
        try:
            # Another runner may have finished while we waited for the lease.
            self._is_first = not (await self.run_blocking(self.log.refresh)).turns
            async for event in self._turn(content):
                yield event
            async for event in self._drain():
                yield event
        except asyncio.CancelledError:
            await run_uncancelled(self._cancelled())
            raise
        except (Fenced, TaskTrashed):
            raise  # it is another's now, or waits as before
        except Exception as error:
            await self._broke(error)
            raise
        finally:
            renewing.cancel()
            try:
                await run_uncancelled(
                    self.run_blocking(self.log.store.release, self.log.session_id, self._fence)
                )
            finally:
                self._threads.shutdown(wait=False)

    async def close(self) -> None:
        """Close the turn that is open as a cancel does; `SessionRunning` if somebody else drives it."""
        try:
            await self._take_lease()
            try:
                await self.run_blocking(self.log.refresh)
                await self._cancelled()
            finally:
                await self.run_blocking(self.log.store.release, self.log.session_id, self._fence)
        finally:
            self._threads.shutdown(wait=False)

    async def _take_lease(self) -> None:
        """A cancel that comes while the lease is being taken must not leave it behind."""
        taking = asyncio.ensure_future(self.run_blocking(take, self.log, self._holder))
        try:
            self._fence = await asyncio.shield(taking)
        except asyncio.CancelledError:
            fence = await taking
            await self.run_blocking(self.log.store.release, self.log.session_id, fence)
            raise

    async def _broke(self, error: Exception) -> None:
        """Something nobody foresaw, or somebody wrote meanwhile: the session says so and can go on."""
        if isinstance(error, StaleLeaf):
            await self.run_blocking(self.log.refresh)
        if self.log.cursor.turn:
            await self._failed_turn(error_text(error))

    async def _failed_turn(self, why: str) -> None:
        row = {"status": "failed", "error": why.encode("utf-8", "replace").decode().replace("\0", "")}
        await self.record("turn_ended", data={"turn": self.log.cursor.turn, **row}, row=row)

    async def _reached(self, *, is_new_turn: bool, rounds: int = 0) -> LimitHit | None:
        row = await self.run_blocking(self.log.store.session, self.log.session_id)
        spent = await self._cost()
        stop = check_limits(self.limits, row, is_new_turn=is_new_turn, spent=spent, rounds=rounds)
        if self.parent is None or (stop is not None and not stop.is_warning):
            return stop
        return await self.parent._reached(is_new_turn=False) or stop

    async def _cost(self) -> Totals:
        """What it and its tasks have cost, if anybody wants to know."""
        if self.limits.max_cost_microcents is None:
            return Totals()
        return total(await self.run_blocking(ledger.model_calls, self.log, "tree", None))

    async def is_spent(self) -> bool:
        """Whether no model may be called any more, for the money."""
        stop = await self._reached(is_new_turn=False)
        return stop is not None and not stop.is_warning

    async def _drain(self) -> AsyncIterator[Event]:
        """What was queued while the session was busy, in order, each a turn of its own."""
        while not self.log.cursor.turn:
            waiting = await self.run_blocking(self.log.store.inbox, self.log.session_id)
            if not waiting:
                return
            stop = await self._reached(is_new_turn=True)
            if stop is not None and not stop.is_warning:
                yield self._refused(stop)
                return
            self._compacted = False
            message = decode("message", waiting[0].body)
            assert isinstance(message, Message)
            async for event in self._turn(message, takes=waiting[0].number):
                yield event

    async def _turn(self, content: str | Message | None, takes: int | None = None) -> AsyncIterator[Event]:
        self.path, self._sizes = await self.read_path(), Sizes()
        if content is None:
            if not self.log.cursor.turn:
                yield Event("session:turn_completed", {"stop_reason": "nothing to resume"})
                return
            self.is_one_shot = await self.run_blocking(is_one_shot_turn, self.log)
            going = {"status": "running", "completed_at": None}
            about = {"turn": self.log.cursor.turn, **runner_data(self.models, self.allowed(), self.limits)}
            await self.record("turn_resumed", data=about, row=going, only_at_leaf=True)
            said = await self.run_blocking(self.log.store.draft, self.log.session_id)
            if said is not None:
                await self.append(Draft(assistant(said), finish="interrupted"))
        else:
            await settle_open(self)
            about = await self.run_blocking(
                turn_start_data, self.log, self.models, self.allowed(), self.limits
            )
            self.is_one_shot = self.is_one_shot and takes is None
            about |= {"one_shot": True} if self.is_one_shot else {}
            draft = Draft(to_user_message(content))
            started = await self.append(draft, row={"status": "running"}, data=about, takes=takes)
            if self._is_first:
                self._is_first = False
                yield Event("session:started", await self.run_blocking(session_data, self.log), FIRST_FACT)
            yield Event("session:turn_started", {"seq": started.leaf.seq}, self.n)
        async for event in self._steps():
            yield event

    async def _steps(self) -> AsyncIterator[Event]:
        while True:
            calls = await self.run_blocking(read_call_status, self.log)
            match next_action(self.path, calls.started):
                case CallModel():
                    stop = await self._reached(is_new_turn=False, rounds=self.log.cursor.step)
                    if stop is not None and not stop.is_warning:
                        yield await self._stopped(stop)
                        return
                    if stop is not None:
                        yield Event("session:limit_passed", _error_data(stop))
                    if not self._compacted and self._is_too_long():
                        self._compacted = True
                        compacted = await compact(self)
                        if compacted is not None:
                            yield compacted
                    async for event in self._ask():
                        yield event
                        if event.type == "session:turn_completed":
                            return
                case RunTools(calls=waiting, started=started):
                    async for event in run_batch(self, waiting, started, calls):
                        yield event
                    waits = await self._must_wait()
                    if waits is not None:
                        await self.record("waiting", row={"status": "waiting"})
                        self._refuse_trashed(waits)
                        return
                case Rest(reason=why):
                    yield Event("session:turn_completed", {"stop_reason": why}, self.n)
                    return

    async def _must_wait(self) -> CallStatus | None:
        """What is known, if all that is open waits for a person; a word may have come while siblings ran."""
        waiting = self.log.cursor.open_calls
        if not waiting:
            return None
        calls = await self.run_blocking(read_call_status, self.log)
        return calls if all(calls.is_waiting(call, self.tools) for call in waiting) else None

    def _refuse_trashed(self, calls: CallStatus) -> None:
        """Who resumes what no word can help must hear why: it waits for a task that lies in the trash."""
        if calls.trashed_tasks and not any(
            calls.pending_approvals(self.log.cursor.open_calls, self.log.session_id)
        ):
            raise TaskTrashed(self.log.session_id, next(iter(calls.trashed_tasks.values())))

    def _is_too_long(self) -> bool:
        """Whether the next call would be given more than it should."""
        most = self.limits.context_tokens
        return most is not None and self._sizes.is_too_long(self.context(), most)

    # -- the model ---------------------------------------------------------------------------------

    async def _ask(self) -> AsyncIterator[Event]:
        """Ask each model of the chain in turn, some of them several times, until one answers."""
        error: ModelError | None = None
        for model in self.models:
            failures = 0
            while failures < max(1, self.limits.tries):
                stop = await self._reached(is_new_turn=False) if error is not None else None
                if stop is not None and not stop.is_warning:
                    yield await self._stopped(stop)
                    return
                try:
                    async for event in self._ask_once(model):
                        yield event
                    return
                except Overloaded as busy:
                    error = busy
                    await self._failed(model, busy)
                    pause = self.limits.pause(failures) if busy.after is None else busy.after
                    failures += 1
                    if failures >= self.limits.tries:
                        break  # the next in the chain need not wait
                    told = {"model": model.model, "why": self._hide(busy.reason), "seconds": pause}
                    yield Event("session:retry", told)
                    await asyncio.sleep(pause)
                except ContextOverflow as overflow:
                    error = overflow
                    await self._failed(model, overflow)
                    compacted = None if self._compacted else await compact(self)
                    self._compacted = True
                    if compacted is None:
                        break
                    yield compacted
                except ModelError as other:
                    error = other
                    await self._failed(model, other)
                    break
        assert error is not None
        yield await self._gave_up(error)

    # -- ends --------------------------------------------------------------------------------------

    async def _stopped(self, stop: LimitHit) -> Event:
        """A turn ended by a limit has a public closing answer, so that nobody waits for one."""
        if self._call_id is not None:  # announced, and then not made
            call = replace(self._ledger(self.models[0], Usage(0, 0, 0, 0), answered=False), price=None)
            self._call_id = None
            await self.record("call_dropped", calls=[call], replaces_call=True)
        closing = Draft(assistant(f"(stopped: {stop})"), finish="error")
        await self.append(closing, data={"error": str(stop)})
        return self._refused(stop, self.n)

    def _refused(self, stop: LimitHit, n: int | None = None) -> Event:
        return Event("session:turn_completed", {"stop_reason": "error", "error": _error_data(stop)}, n)

    async def _gave_up(self, error: ModelError) -> Event:
        await self._failed_turn(error.reason)
        data = {name: self._hide(text) for name, text in _error_data(error).items()}
        return Event("session:turn_completed", {"stop_reason": "error", "error": data}, self.n)

    async def _cancelled(self) -> None:
        """Close what is open with words, so that the session stays valid and goes on with the next input."""
        if not self.log.cursor.turn:
            return
        calls = await self.run_blocking(read_call_status, self.log)
        await cancel_tasks(self, calls.tasks)
        drafts = [Draft(stopped_result(self, call, calls.started)) for call in self.log.cursor.open_calls]
        said: str | None = self._said.text if self._said is not None else None
        if not said:  # of a try before this one, or of a process before: it was shown as well
            said = await self.run_blocking(self.log.store.draft, self.log.session_id)
        closing = Draft(assistant(f"{(said or '').rstrip()} {CANCELLED}".strip()), finish="cancelled")
        await self.append(*drafts, closing, row={"status": "cancelled"})


def _error_data(error: LimitHit | ModelError) -> dict[str, str]:
    return {"code": error.code, "message": str(error), "command_message": error.command_text}
