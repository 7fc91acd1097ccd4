"""The loop: ask what is to be done next, do it, make it durable, ask again.

`next_action` alone decides, so going on after a crash is the same loop. Input is durable before the model is
called, an answer before its tools run, each result as it lands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec.structs import replace

from .. import ledger
from ..changes import Appended
from ..core import context as contexts
from ..core.codec import decode
from ..core.drafts import Draft, FurtherFact
from ..core.messages import Message, as_input, assistant
from ..core.turns import CallModel, Rest, RunTools, next_action
from ..core.usage import Totals, Usage, total
from ..errors import (
    BadMessage,
    BadValue,
    CutOff,
    Fenced,
    IsReplay,
    ModelError,
    Overflow,
    Overloaded,
    StaleLeaf,
)
from ..log import Log
from ..models.model import Delta, Model, Request
from ..stores.store import SessionRow
from ..wire import Answer
from .batch import run_batch, settle_open, stopped_result, with_own_ids
from .calls import read_calls
from .compaction import compact, is_too_long
from .crossing import Crossing
from .ending import cancel_all, to_its_end
from .events import Event
from .lease import keep, take
from .limits import Limits, Reached, narrowed, reached
from .said import FLUSH_MICROSECONDS, Said
from .started import about_turn
from .tools import Tool, words

CANCELLED = "(cancelled)"


class Loop(Crossing):
    """One run of one session, by one model chain and one set of tools."""

    def __init__(
        self,
        log: Log,
        models: Sequence[Model],
        tools: Mapping[str, Tool],
        limits: Limits,
        parent: Loop | None = None,
    ) -> None:
        super().__init__(log, models)
        self.tools, self.limits = tools, limits
        self.parent = parent
        """Who started it as a task: a child spends its parent's money."""
        self._compacted = False
        self._said: Said | None = None
        self._spent: Usage | None = None  # what a call had cost that gave no answer
        self._hide: Callable[[str], str] = log.world.redactor.text
        self.mine: set[int] = set()  # answers of this run: their tools were not started by a process before
        # Two runs of one process are two holders.
        self._holder = f"{log.world.holder()}#{log.world.new_id('')}"

    def check(self, row: SessionRow) -> None:
        """A replay is not driven on: its tools were answered by a recording and must not run now by accident."""
        if row.relation == "replay":
            raise IsReplay(row.session_id)

    async def run(self, content: str | Message | None) -> AsyncIterator[Event]:
        """The whole turn, event by event; without content the turn that is open goes on."""
        content = None if content is None else as_input(content)
        self.check(await self.cross(self.log.refresh))
        asides = await self.cross(self.log.store.asides, self.log.session_id)
        self.limits = narrowed(self.limits, contexts.fold_settings(asides).limits)
        stop = await self._reached(is_new_turn=True) if content is not None else None
        if stop is not None and not stop.is_warning:
            yield self._refused(stop)
            return
        await self._take_lease()
        renewing = asyncio.ensure_future(keep(self.log, self._holder, self.cross))
        try:
            # Another runner may have finished while we waited for the lease.
            await self.cross(self.log.refresh)
            async for event in self._turn(content):
                yield event
            async for event in self._drain():
                yield event
        except asyncio.CancelledError:
            await to_its_end(self._cancelled())
            raise
        except Fenced:
            raise  # it is another's now
        except Exception as error:
            await self._broke(error)
            raise
        finally:
            renewing.cancel()
            try:
                await to_its_end(self.cross(self.log.store.release, self.log.session_id, self._fence))
            finally:
                self._threads.shutdown(wait=False)

    async def _take_lease(self) -> None:
        """A cancel that comes while the lease is being taken must not leave it behind."""
        taking = asyncio.ensure_future(self.cross(take, self.log, self._holder))
        try:
            self._fence = await asyncio.shield(taking)
        except asyncio.CancelledError:
            fence = await taking
            await self.cross(self.log.store.release, self.log.session_id, fence)
            raise

    async def _broke(self, error: Exception) -> None:
        """Something nobody foresaw, or somebody wrote meanwhile: the session says so and can go on."""
        if isinstance(error, StaleLeaf):
            await self.cross(self.log.refresh)
        if self.log.cursor.turn:
            await self._failed_turn(words(error))

    async def _failed_turn(self, why: str) -> None:
        row = {"status": "failed", "error": why.encode("utf-8", "replace").decode().replace("\0", "")}
        await self.record("turn_ended", data={"turn": self.log.cursor.turn, **row}, row=row)

    async def _reached(self, *, is_new_turn: bool, rounds: int = 0) -> Reached | None:
        row = await self.cross(self.log.store.session, self.log.session_id)
        spent = await self._cost()
        stop = reached(self.limits, row, is_new_turn=is_new_turn, spent=spent, rounds=rounds)
        if self.parent is None or (stop is not None and not stop.is_warning):
            return stop
        return await self.parent._reached(is_new_turn=False) or stop

    async def _cost(self) -> Totals:
        """What it and its tasks have cost, if anybody wants to know."""
        if self.limits.max_cost_microcents is None:
            return Totals()
        return total(await self.cross(ledger.calls, self.log, "tree", None))

    async def is_spent(self) -> bool:
        """Whether no model may be called any more, for the money."""
        stop = await self._reached(is_new_turn=False)
        return stop is not None and not stop.is_warning

    async def _drain(self) -> AsyncIterator[Event]:
        """What was queued while the session was busy, in order, each a turn of its own."""
        while not self.log.cursor.turn:
            waiting = await self.cross(self.log.store.inbox, self.log.session_id)
            if not waiting:
                return
            stop = await self._reached(is_new_turn=True)
            if stop is not None and not stop.is_warning:
                yield self._refused(stop)
                return
            self._compacted = False
            message = decode("message", waiting[0].body)
            assert isinstance(message, Message)
            async for event in self._turn(message, takes=waiting[0].n):
                yield event

    async def _turn(self, content: str | Message | None, takes: int | None = None) -> AsyncIterator[Event]:
        self.path = (await self.cross(self.log.path)).entries
        if content is None:
            if not self.log.cursor.turn:
                yield Event("session:turn_completed", {"stop_reason": "nothing to resume"})
                return
            await self.record("turn_resumed", row={"status": "running"}, is_bound=True)
            said = await self.cross(self.log.store.draft, self.log.session_id)
            if said is not None:
                await self.append(Draft(assistant(said), finish="interrupted"))
        else:
            await settle_open(self)
            about = await self.cross(about_turn, self.log, self.models, self.allowed())
            draft = Draft(as_input(content))
            started = await self.append(draft, row={"status": "running"}, data=about, takes=takes)
            yield Event("session:turn_started", {"seq": started.leaf.seq}, self.n)
        async for event in self._steps():
            yield event

    async def _steps(self) -> AsyncIterator[Event]:
        while True:
            calls = await self.cross(read_calls, self.log)
            match next_action(self.path, calls.started):
                case CallModel():
                    stop = await self._reached(is_new_turn=False, rounds=self.log.cursor.step)
                    if stop is not None and not stop.is_warning:
                        yield await self._stopped(stop)
                        return
                    if stop is not None:
                        yield Event("session:limit_passed", {"code": stop.code, "message": stop.what})
                    if not self._compacted and is_too_long(self.path, self.limits.context_tokens):
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
                    if any(calls.is_waiting(call, self.tools) for call in self.log.cursor.open_calls):
                        await self.record("waiting", row={"status": "idle"})
                        return
                case Rest(why=why):
                    yield Event("session:turn_completed", {"stop_reason": why}, self.n)
                    return

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
                    told = {"model": model.model, "why": self._hide(busy.why), "seconds": pause}
                    yield Event("session:retry", told)
                    await asyncio.sleep(pause)
                except Overflow as overflow:
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

    async def _ask_once(self, model: Model) -> AsyncIterator[Event]:
        if self._call_id is None:
            await self._start_call(model)
        specs = tuple(tool.spec for tool in self.allowed().values())
        request = Request(contexts.build(self.path), self.blob, specs)
        answer: Answer | None = None
        self._said = said = Said(self.log.world.redactor)
        saving = asyncio.ensure_future(self._save_in_time(said))
        try:
            async for piece in model.stream(request):
                if isinstance(piece, Delta):
                    told_live = said.add(piece)
                    if said.is_due(now := self.log.world.now()):
                        await self.cross(self._save, said.saved(now))
                    yield Event("session:delta", told_live)
                else:
                    answer = piece
        finally:
            await to_its_end(cancel_all([saving]))  # a draft saved later would belong to another place
        if any((rest := said.rest()).values()):
            yield Event("session:delta", rest)
        if answer is None or answer.finish is None:
            self._spent = None if answer is None else answer.usage
            raise CutOff(model.model, "the stream ended without a stop reason")
        if answer.message.role != "assistant":
            self._spent = answer.usage
            raise ModelError(model.model, f"it answered in the role {answer.message.role!r}")
        try:
            kept = await self._answered(model, answer)
        except (BadValue, BadMessage) as error:
            self._spent = answer.usage
            raise ModelError(model.model, f"its answer cannot be kept: {error}") from error
        self._said = None
        message = kept.payloads[0]
        assert isinstance(message, Message)
        told = {"seq": kept.leaf.seq, "text": message.text, "calls": len(message.calls)}
        yield Event("session:answer", told, self.n)

    async def _answered(self, model: Model, answer: Answer) -> Appended:
        """The answer, its cost and the start of its tools, in one commit: durable before anything runs."""
        answer = replace(answer, message=with_own_ids(answer.message))
        draft = Draft(answer.message, answer.model or model.model, answer.finish, answer.evidence)
        starting = [
            index
            for index, call in enumerate(answer.message.calls)
            if call.name in self.allowed() and not self.tools[call.name].approval
        ]
        started = FurtherFact("calls_started", {"seq": self.log.leaf.seq + 1, "indexes": starting})
        facts = [started] if starting else []
        call = self._ledger(model, answer.usage, answered=True)
        self.mine.add(self.log.leaf.seq + 1)
        appended = await self.append(draft, calls=[call], replaces_call=True, facts=facts)
        self._call_id = None
        return appended

    def _save(self, text: str) -> None:
        log = self.log
        log.store.save_draft(log.session_id, log.leaf, text, self._fence, log.world.now())

    async def _save_in_time(self, said: Said) -> None:
        """Also when the stream says no more, what was shown is durable soon."""
        while True:
            await asyncio.sleep(FLUSH_MICROSECONDS / 1_000_000)
            if not said.is_saved:
                await to_its_end(self.cross(self._save, said.saved(self.log.world.now())))

    async def _start_call(self, model: Model) -> None:
        """A call whose start could not ride in the commit before it: after a resume or a failure."""
        self._call_id = self.log.world.new_id("")
        call = replace(self._ledger(model, None, answered=False), failed=False)
        await self.record("call_started", calls=[call])

    async def _failed(self, model: Model, error: ModelError) -> None:
        call = self._ledger(model, self._spent, answered=False)
        self._call_id = self._spent = None
        why = error.why.encode("utf-8", "replace").decode()
        await self.record("call_failed", data={"why": why}, calls=[call], replaces_call=True)

    # -- the tools ---------------------------------------------------------------------------------

    def allowed(self) -> Mapping[str, Tool]:
        """The tools that hold at this leaf: a session's settings may narrow what it was given, never widen it."""
        names = contexts.fold_settings(self.path).tools
        return (
            self.tools if names is None else {name: self.tools[name] for name in names if name in self.tools}
        )

    # -- ends --------------------------------------------------------------------------------------

    async def _stopped(self, stop: Reached) -> Event:
        """A turn ended by a limit has a public closing answer, so that nobody waits for one."""
        if self._call_id is not None:  # announced, and then not made
            call = replace(self._ledger(self.models[0], Usage(0, 0, 0, 0), answered=False), price=None)
            self._call_id = None
            await self.record("call_dropped", calls=[call], replaces_call=True)
        await self.append(Draft(assistant(f"(stopped: {stop.what})"), finish="error"))
        return self._refused(stop, self.n)

    def _refused(self, stop: Reached, n: int | None = None) -> Event:
        error = {"code": stop.code, "message": stop.what}
        return Event("session:turn_completed", {"stop_reason": "error", "error": error}, n)

    async def _gave_up(self, error: ModelError) -> Event:
        await self._failed_turn(error.why)
        told = {"code": type(error).__name__, "message": self._hide(str(error))}
        return Event("session:turn_completed", {"stop_reason": "error", "error": told}, self.n)

    async def _cancelled(self) -> None:
        """Close what is open with words, so that the session stays valid and goes on with the next input."""
        if not self.log.cursor.turn:
            return
        started = (await self.cross(read_calls, self.log)).started
        drafts = [Draft(stopped_result(self, call, started)) for call in self.log.cursor.open_calls]
        said = self._said.text if self._said is not None else ""
        closing = Draft(assistant(f"{said.rstrip()} {CANCELLED}".strip()), finish="cancelled")
        await self.append(*drafts, closing, row={"status": "cancelled"})
