"""The loop: ask what is to be done next, do it, make it durable, ask again.

`next_action` alone decides, so going on after a crash is the same loop. Input is durable before the model is
called, an answer before its tools run, each result as it lands. The log is synchronous; `cross` is the one
crossing from here to there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from ..core import context as contexts
from ..core.codec import decode
from ..core.drafts import Draft, FurtherFact
from ..core.entries import Entry
from ..core.fit import measure
from ..core.messages import Message, assistant, tool_result, user
from ..core.turns import CallModel, OpenCall, Rest, RunTools, next_action
from ..core.usage import Call, Usage
from ..errors import CutOff, ModelError, Overflow, Overloaded
from ..log import Appended, Log
from ..models.model import Delta, Model, Request
from ..models.prices import price
from ..wire import Answer
from .calls import Calls, read_calls
from .compaction import better, summarise
from .events import Event
from .lease import keep, take
from .limits import Limits, Reached, reached
from .said import Said
from .tasks import run_task
from .tools import Happened, NeverHappened, Tool, ToolContext, failed

R = TypeVar("R")
UNKNOWN = "The process ended while this ran. Whether it took effect is unknown; it was not run again."
LEFT = "The turn was left before this had a result. Whether it took effect is unknown."
NOT_RUN = "The turn was left before this was run."
NO_TOOL = "There is no tool of this name."
CANCELLED = "(cancelled)"


class Loop:
    """One run of one session, by one model chain and one set of tools."""

    def __init__(self, log: Log, models: Sequence[Model], tools: Mapping[str, Tool], limits: Limits) -> None:
        self.log, self.models, self.tools, self.limits = log, models, tools, limits
        self._path: list[Entry] = []
        self._call_id: str | None = None
        self._compacted = False
        self._mine: set[int] = set()  # answers of this run: their tools were not started by a process before
        self._n = 0
        self._fence = 0
        self._holder = (
            f"{log.world.holder()}#{log.world.new_id('')}"  # two runs of one process are two holders
        )

    async def run(self, content: str | Message | None) -> AsyncIterator[Event]:
        """The whole turn, event by event; without content the turn that is open goes on."""
        row = await self.cross(self.log.refresh)
        stop = reached(self.limits, row, is_new_turn=True) if content is not None else None
        if stop is not None and not stop.is_warning:
            yield self._refused(stop)
            return
        self._fence = await self.cross(take, self.log, self._holder)
        renewing = asyncio.ensure_future(keep(self.log, self._holder))
        try:
            async for event in self._turn(content):
                yield event
            async for event in self._drain():
                yield event
        except asyncio.CancelledError:
            await asyncio.shield(self._cancelled())
            raise
        finally:
            renewing.cancel()
            await asyncio.shield(self.cross(self.log.store.release, self.log.session_id, self._fence))

    async def _drain(self) -> AsyncIterator[Event]:
        """What was queued while the session was busy, in order, each a turn of its own."""
        while not self.log.cursor.turn:
            waiting = await self.cross(self.log.store.inbox, self.log.session_id)
            if not waiting:
                return
            row = await self.cross(self.log.store.session, self.log.session_id)
            stop = reached(self.limits, row, is_new_turn=True)
            if stop is not None and not stop.is_warning:
                yield self._refused(stop)
                return
            self._compacted = False
            message = decode("message", waiting[0].body)
            assert isinstance(message, Message)
            async for event in self._turn(message, takes=waiting[0].n):
                yield event

    async def _turn(self, content: str | Message | None, takes: int | None = None) -> AsyncIterator[Event]:
        self._path = (await self.cross(self.log.path)).entries
        if content is None:
            if not self.log.cursor.turn:
                yield Event("session:turn_completed", {"stop_reason": "nothing to resume"})
                return
            await self._record("turn_resumed", row={"status": "running"})
            said = await self.cross(self.log.store.draft, self.log.session_id)
            if said is not None:
                await self._append(Draft(assistant(said), finish="interrupted"))
        else:
            await self._settle_open()
            draft = Draft(user(content) if isinstance(content, str) else content)
            started = await self._append(draft, row={"status": "running"}, takes=takes)
            yield Event("session:turn_started", {"seq": started.leaf.seq}, self._n)
        async for event in self._steps():
            yield event

    async def _settle_open(self) -> None:
        """A new input while calls of a broken turn are open: they get explicit results first."""
        calls = await self.cross(read_calls, self.log)
        drafts = [
            Draft(tool_result(call.call.id, LEFT, error=True, outcome="unknown"))
            if (call.seq, call.index) in calls.started
            else Draft(tool_result(call.call.id, NOT_RUN, error=True, outcome="interrupted"))
            for call in self.log.cursor.open_calls
        ]
        if drafts:
            await self._append(*drafts)

    async def _steps(self) -> AsyncIterator[Event]:
        rounds = 0
        while True:
            calls = await self.cross(read_calls, self.log)
            match next_action(self._path, calls.started):
                case CallModel():
                    row = await self.cross(self.log.store.session, self.log.session_id)
                    stop = reached(self.limits, row, is_new_turn=False, rounds=rounds)
                    if stop is not None and not stop.is_warning:
                        yield await self._stopped(stop)
                        return
                    if stop is not None:
                        yield Event("session:limit_passed", {"code": stop.code, "message": stop.what})
                    rounds += 1
                    if self._is_too_long():
                        compacted = await self._compact()
                        if compacted is not None:
                            yield compacted
                    async for event in self._ask():
                        yield event
                        if event.type == "session:turn_completed":
                            return
                case RunTools(calls=waiting, started=started):
                    async for event in self._run_tools(waiting, started, calls):
                        yield event
                    if any(calls.is_waiting(call, self.tools) for call in self.log.cursor.open_calls):
                        await self._record("waiting", row={"status": "idle"})
                        return
                case Rest(why=why):
                    yield Event("session:turn_completed", {"stop_reason": why}, self._n)
                    return

    # -- the model ---------------------------------------------------------------------------------

    async def _ask(self) -> AsyncIterator[Event]:
        """Ask each model of the chain in turn, some of them several times, until one answers."""
        error: ModelError | None = None
        for model in self.models:
            for failures in range(self.limits.tries):
                try:
                    async for event in self._ask_once(model):
                        yield event
                    return
                except Overloaded as busy:
                    error = busy
                    await self._failed(model, busy)
                    pause = self.limits.pause(failures) if busy.after is None else busy.after
                    yield Event("session:retry", {"model": model.model, "why": busy.why, "seconds": pause})
                    await asyncio.sleep(pause)
                except Overflow as overflow:
                    await self._failed(model, overflow)
                    error = overflow
                    compacted = None if self._compacted else await self._compact()
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
        specs = tuple(tool.spec for tool in self._allowed().values())
        request = Request(contexts.build(self._path), self._blob, specs)
        answer: Answer | None = None
        said = Said(self.log.world.redactor.text)
        async for piece in model.stream(request):
            if isinstance(piece, Delta):
                yield Event("session:delta", said.add(piece))
                if said.is_due(self.log.world.now()):
                    await self.cross(self._save, said.text)
            else:
                answer = piece
        if answer is None or answer.finish is None:
            raise CutOff(model.model, "the stream ended without a stop reason")
        kept = await self._answered(model, answer)
        message = kept.payloads[0]
        assert isinstance(message, Message)
        told = {"seq": kept.leaf.seq, "text": message.text, "calls": len(message.calls)}
        yield Event("session:answer", told, self._n)

    async def _answered(self, model: Model, answer: Answer) -> Appended:
        """The answer, its cost and the start of its tools, in one commit: durable before anything runs."""
        draft = Draft(answer.message, answer.model or model.model, answer.finish, answer.evidence)
        starting = [
            index
            for index, call in enumerate(answer.message.calls)
            if call.name in self._allowed() and not self.tools[call.name].approval
        ]
        facts = (
            [FurtherFact("calls_started", {"seq": self.log.leaf.seq + 1, "indexes": starting})]
            if starting
            else []
        )
        call = self._ledger(model, answer.usage, answered=True)
        self._call_id = None
        self._mine.add(self.log.leaf.seq + 1)
        return await self._append(draft, calls=[call], replaces_call=True, facts=facts)

    def _save(self, text: str) -> None:
        log = self.log
        log.store.save_draft(log.session_id, log.leaf, text, self._fence, log.world.now())

    def _ledger(self, model: Model, usage: Usage | None, *, answered: bool) -> Call:
        after = self.log.leaf.seq
        return Call(
            call_id=self._call_id or self.log.world.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=after + 1 if answered else None,
            at=self.log.world.now(),
            usage=usage or Usage(),
            provider=model.provider,
            model=model.model,
            price=price(usage, model.provider, model.model) if usage is not None else None,
            failed=not answered,
        )

    async def _start_call(self, model: Model) -> None:
        """A call whose start could not ride in the commit before it: after a resume or a failure."""
        self._call_id = self.log.world.new_id("")
        call = replace(self._ledger(model, None, answered=False), failed=False)
        await self._record("call_started", calls=[call])

    async def _failed(self, model: Model, error: ModelError) -> None:
        call = self._ledger(model, None, answered=False)
        self._call_id = None
        await self._record("call_failed", data={"why": error.why}, calls=[call], replaces_call=True)

    def _is_too_long(self) -> bool:
        most = self.limits.context_tokens
        if most is None or self._compacted:
            return False
        return sum(measure(item.message).tokens for item in contexts.build(self._path).items) > most

    async def _compact(self) -> Event | None:
        """The history was too long: once per input, a summary takes the place of what lies before the newest turn."""
        self._compacted = True
        made = summarise(self._path, self.log.cursor)
        if made is None:
            return None
        calls: list[Call] = []
        model = self.limits.summariser
        if model is not None:
            made, answer = await better(model, self._path, made, self._blob)
            spent = self._ledger(model, None if answer is None else answer.usage, answered=False)
            row = replace(
                spent, call_id=self.log.world.new_id(""), purpose="compaction", failed=answer is None
            )
            calls.append(row)
        await self._append(Draft(made), calls=calls)
        told = {"first_kept": made.first_kept, "tokens_before": made.tokens_before}
        return Event("session:compacted", told, self._n)

    # -- the tools ---------------------------------------------------------------------------------

    async def _run_tools(
        self, waiting: Sequence[OpenCall], started: frozenset[tuple[int, int]], calls: Calls
    ) -> AsyncIterator[Event]:
        """All that may run, at once; each result is durable as it lands."""
        for call in calls.to_ask(waiting, self.tools):
            await self._record("approval_asked", data={"seq": call.seq, "index": call.index})
            yield Event("session:approval_requested", _told(call), self._n)
        running = [
            asyncio.ensure_future(self._settle(call, (call.seq, call.index) in started, calls))
            for call in waiting
            if not calls.is_waiting(call, self.tools)
        ]
        try:
            for landed in asyncio.as_completed(running):
                call, result = await landed
                await self._append(Draft(result))
                told = {**_told(call), "error": result.results[0].error, "outcome": result.results[0].outcome}
                yield Event("session:tool_result", told, self._n)
        finally:
            for task in running:
                task.cancel()

    async def _settle(self, call: OpenCall, was_started: bool, calls: Calls) -> tuple[OpenCall, Message]:
        """The result of one call: run it, or say what became of it before a crash."""
        tool = self._allowed().get(call.call.name)
        if tool is None:
            return call, failed(call.call, NO_TOOL)
        if (call.seq, call.index) in calls.denied:
            return call, tool_result(call.call.id, "The user denied this call.", error=True, outcome="denied")
        context = ToolContext(
            self._key(call), self.log.session_id, call.call, self.log.state, partial(run_task, self)
        )
        if was_started and call.seq not in self._mine and tool.effect == "unsafe":
            settled = await tool.settle(context)
            if isinstance(settled, Happened):
                return call, tool.result(context, settled.value)
            if not isinstance(settled, NeverHappened):
                return call, tool_result(call.call.id, UNKNOWN, error=True, outcome="unknown")
        if tool.approval and not was_started:
            started = {"seq": call.seq, "indexes": [call.index]}
            await self._record("calls_started", data=started)
        return call, await tool.run(context)

    def _allowed(self) -> Mapping[str, Tool]:
        """The tools that hold at this leaf: a session's settings may narrow what it was given, never widen it."""
        names = contexts.fold_settings(self._path).tools
        return (
            self.tools if names is None else {name: self.tools[name] for name in names if name in self.tools}
        )

    def _key(self, call: OpenCall) -> str:
        return f"{self.log.session_id}/{self.log.leaf.branch}/{call.seq}/{call.index}"

    # -- ends --------------------------------------------------------------------------------------

    async def _stopped(self, stop: Reached) -> Event:
        """A turn ended by a limit has a public closing answer, so that nobody waits for one."""
        await self._append(Draft(assistant(f"(stopped: {stop.what})"), finish="error"))
        return self._refused(stop)

    def _refused(self, stop: Reached) -> Event:
        error = {"code": stop.code, "message": stop.what}
        return Event("session:turn_completed", {"stop_reason": "error", "error": error})

    async def _gave_up(self, error: ModelError) -> Event:
        row = {"status": "failed", "error": error.why.replace("\0", "")}
        await self._record("turn_ended", data={"status": "failed", "error": error.why}, row=row)
        told = {"code": type(error).__name__, "message": str(error)}
        return Event("session:turn_completed", {"stop_reason": "error", "error": told}, self._n)

    async def _cancelled(self) -> None:
        """Close what is open with words, so that the session stays valid and goes on with the next input."""
        drafts = [
            Draft(tool_result(call.call.id, "cancelled while it ran", error=True, outcome="interrupted"))
            for call in self.log.cursor.open_calls
        ]
        if self.log.cursor.turn:
            await self._append(
                *drafts, Draft(assistant(CANCELLED), finish="cancelled"), row={"status": "cancelled"}
            )

    # -- the crossing ------------------------------------------------------------------------------

    async def cross(self, work: Callable[..., R], *given: Any, **how: Any) -> R:
        return await asyncio.to_thread(work, *given, **how)

    async def _append(self, *drafts: Draft, **how: Any) -> Appended:
        start = None if "calls" in how else self._ride(drafts)
        riding = {"calls": [start]} if start is not None else {}
        appended = await self.cross(self.log.append, drafts, fence=self._fence, **how, **riding)
        self._path.extend(appended.entries)
        self._n = appended.n
        return appended

    async def _record(self, kind: str, **how: Any) -> None:
        self._n = (await self.cross(self.log.record, kind, fence=self._fence, **how)).facts

    def _ride(self, drafts: Sequence[Draft]) -> Call | None:
        """If the model is to be called next, the start of that call rides in this commit."""
        last = drafts[-1].payload
        if not isinstance(last, Message) or last.role not in ("user", "tool") or not self.models:
            return None
        if len(self.log.cursor.open_calls) > len(last.results) or any(r.ends_turn for r in last.results):
            return None
        self._call_id = self.log.world.new_id("")
        call = self._ledger(self.models[0], None, answered=False)
        return replace(call, after_seq=self.log.leaf.seq + len(drafts), failed=False)

    def _blob(self, digest: str) -> bytes | None:
        found = self.log.store.blob(digest)
        return None if found is None else found.data


def _told(call: OpenCall) -> dict[str, Any]:
    return {"seq": call.seq, "index": call.index, "call_id": call.call.id, "name": call.call.name}
