"""Asking a model: one call, its answer as it comes, and what is kept of one that breaks off.

Knows streams, drafts and the row of a call in the ledger. Does not know which model is asked next, nor when to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from ..core import context as contexts
from ..core.context import Context
from ..core.drafts import Draft, ExtraFact
from ..core.messages import Message
from ..core.usage import Usage
from ..errors import Fenced, InvalidMessage, InvalidValue, ModelError, TruncatedReply
from ..log.changes import AppendResult
from ..log.log import Log
from ..models.model import Model, Request
from ..wire import Answer
from .async_bridge import Crossing
from .cancellation import cancel_all, run_uncancelled
from .events import Event
from .limits import Limits, trim
from .stream_buffer import FLUSH_MICROSECONDS, StreamBuffer
from .tool_batch import with_own_ids
from .tools.tool import Tool


class Asking(Crossing):
    """The half of a run that speaks with its models."""

    def __init__(self, log: Log, models: Sequence[Model], tools: Mapping[str, Tool], limits: Limits) -> None:
        super().__init__(log, models)
        self.tools, self.limits = tools, limits
        self._said: StreamBuffer | None = None
        self._spent: Usage | None = None  # what a call had cost that gave no answer
        self.mine: set[int] = set()  # answers of this run: their tools were not started by a process before

    def allowed(self) -> Mapping[str, Tool]:
        """The tools that hold at this leaf: a session's settings may narrow what it was given, never widen it."""
        names = self.settings().tools
        return (
            self.tools if names is None else {name: self.tools[name] for name in names if name in self.tools}
        )

    def context(self) -> Context:
        """What a model is given now."""
        return trim(contexts.build_context(self.path), self.limits.max_messages)

    async def _ask_once(self, model: Model) -> AsyncIterator[Event]:
        """One call of one model, to its answer. Whatever ends it, what was shown of it is kept."""
        if self._call_id is None:
            await self._start_call(model)
        self._said = said = StreamBuffer(self.log.runtime.redactor)
        try:
            answer: Answer | None = None
            async with aclosing(self._streamed(model, said)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Event):
                        yield piece
                    else:
                        answer = piece
            kept = await self._kept(model, answer)
            self._said = None
            yield kept
        except (asyncio.CancelledError, Fenced):
            raise  # what was said goes into the closing answer, or is another's to close
        except Exception:
            if self._said is said and not said.is_saved:
                await run_uncancelled(self.run_blocking(self._save, said.saved(self.log.runtime.now())))
            raise

    async def _streamed(self, model: Model, said: StreamBuffer) -> AsyncGenerator[Event | Answer, None]:
        """What may be shown as it comes, and the answer; what was shown is durable soon."""
        specs = tuple(tool.spec for tool in self.allowed().values())
        saving = asyncio.ensure_future(self._save_in_time(said))
        try:
            async for piece in model.stream(Request(self.context(), self.blob, specs)):
                if isinstance(piece, Answer):
                    yield piece
                    continue
                told_live = said.add(piece)
                if said.is_due(now := self.log.runtime.now()):
                    await self.run_blocking(self._save, said.saved(now))
                yield Event("session:delta", told_live)
        finally:
            await run_uncancelled(cancel_all([saving]))  # a draft saved later would belong to another place
        if any((rest := said.rest()).values()):
            yield Event("session:delta", rest)

    async def _kept(self, model: Model, answer: Answer | None) -> Event:
        if answer is None or answer.finish is None:
            self._spent = None if answer is None else answer.usage
            raise TruncatedReply(model.model, "the stream ended without a stop reason")
        if answer.message.role != "assistant":
            self._spent = answer.usage
            raise ModelError(model.model, f"it answered in the role {answer.message.role!r}")
        try:
            kept = await self._answered(model, answer)
        except (InvalidValue, InvalidMessage) as error:
            self._spent = answer.usage
            raise ModelError(model.model, f"its answer cannot be kept: {error}") from error
        message = kept.payloads[0]
        assert isinstance(message, Message)
        told = {"seq": kept.leaf.seq, "text": message.text, "calls": len(message.calls)}
        return Event("session:answer", told, self.n)

    async def _answered(self, model: Model, answer: Answer) -> AppendResult:
        """The answer, its cost and the start of its tools, in one commit: durable before anything runs."""
        answer = replace(answer, message=with_own_ids(answer.message))
        draft = Draft(answer.message, answer.model or model.model, answer.finish, answer.evidence)
        starting = [
            index
            for index, call in enumerate(answer.message.calls)
            if call.name in self.allowed() and not self.tools[call.name].approval
        ]
        started = ExtraFact("calls_started", {"seq": self.log.leaf.seq + 1, "indexes": starting})
        facts = [started] if starting else []
        call = self._ledger(model, answer.usage, answered=True)
        self.mine.add(self.log.leaf.seq + 1)
        appended = await self.append(draft, calls=[call], replaces_call=True, facts=facts)
        self._call_id = None
        return appended

    def _save(self, text: str) -> None:
        log = self.log
        log.store.save_draft(log.session_id, log.leaf, text, self._fence, log.runtime.now())

    async def _save_in_time(self, said: StreamBuffer) -> None:
        """Also when the stream says no more, what was shown is durable soon."""
        while True:
            await asyncio.sleep(FLUSH_MICROSECONDS / 1_000_000)
            if not said.is_saved:
                await run_uncancelled(self.run_blocking(self._save, said.saved(self.log.runtime.now())))

    async def _start_call(self, model: Model) -> None:
        """A call whose start could not ride in the commit before it: after a resume or a failure."""
        self._call_id = self.log.runtime.new_id("")
        call = replace(self._ledger(model, None, answered=False), failed=False)
        await self.record("call_started", calls=[call])

    async def _failed(self, model: Model, error: ModelError) -> None:
        call = self._ledger(model, self._spent, answered=False)
        self._call_id = self._spent = None
        why = error.reason.encode("utf-8", "replace").decode()
        await self.record("call_failed", data={"why": why}, calls=[call], replaces_call=True)
