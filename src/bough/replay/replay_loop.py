"""One turn of a replay: our own loop, its calls answered by `Answers`, its model perhaps by the recording.

What the host had put into the turn comes back at its place. An answer the recording gives is no model call and
has no row in the ledger; one of a real model is charged to the bucket `replay`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..agent.events import Event
from ..agent.limits import Limits
from ..agent.loop import Loop
from ..agent.tools.tool import Tool, ToolContext
from ..core.drafts import Draft
from ..core.entries import Entry, Settings
from ..core.messages import Message
from ..core.turns import OpenCall
from ..core.usage import Call
from ..log.changes import AppendResult
from ..log.log import Log
from ..models.model import Model
from ..models.recorded import RecordedModel
from ..stores.base import SessionRow
from .host_entries import Feed
from .incremental_path import Carried
from .recorded_tasks import recorded_task
from .recording import RecordedTurn, Recording, Returned
from .tool_answers import Answers, stand_in, unnamed


class Staging(Struct, frozen=True):
    """What all turns of a replay have in common."""

    source: Log
    recording: Recording
    tools: Sequence[Tool]
    """What a model is told of; who answers them is for `answers` to say."""
    answers: Answers
    feed: Feed
    models: Sequence[Model]
    limits: Limits
    carried: Carried


class Rehearsal(Loop):
    def __init__(self, log: Log, staging: Staging, turn: RecordedTurn) -> None:
        live = staging.answers.live
        tools = {
            tool.name: stand_in(tool, self.answer_call, is_live=tool.name in live) for tool in staging.tools
        }
        super().__init__(log, staging.models, tools, staging.limits)
        self.staging, self.turn = staging, turn
        self.says_recorded = staging.feed.says_recorded
        self._put = 0  # so many of the turn's inner entries are in
        self._landed: dict[tuple[int, int], asyncio.Event] = {}

    def check(self, row: SessionRow) -> None:
        """This is who drives a replay."""

    async def _drain(self) -> AsyncIterator[Event]:
        """A replay takes no input but the recorded ones."""
        nothing: tuple[Event, ...] = ()
        for event in nothing:
            yield event

    # -- the path ----------------------------------------------------------------------------------

    async def read_path(self) -> list[Entry]:
        """As it was carried here; read again if somebody else wrote meanwhile."""
        carried = self.staging.carried
        if carried.entry_id != self.log.cursor.entry_id:
            carried.start(await super().read_path())
        return carried.path

    async def read_settings(self) -> Settings:
        """Limits held then: what they cut short, or had summarised, is in the recording and comes back by itself."""
        await self.read_path()
        settings = self.settings()
        return replace(settings, limits=None) if self.says_recorded else settings

    def settings(self) -> Settings:
        return self.staging.carried.settings()

    # -- the model ---------------------------------------------------------------------------------

    async def _ask(self) -> AsyncIterator[Event]:
        await self.put_in(self.log.cursor.step)
        if self.says_recorded and self.log.cursor.step >= self.turn.answers:
            yield await self._left_open()
            return
        async for event in super()._ask():
            yield event

    async def _ask_once(self, model: Model) -> AsyncIterator[Event]:
        """A recorded answer is found by the history carried here: no request is made for it and nothing streams."""
        if self.says_recorded and isinstance(model, RecordedModel):
            await self._answered(model, model.answer(self.staging.carried.history()))
            return
        async for event in super()._ask_once(model):
            yield event

    async def put_in(self, step: int) -> None:
        """What the host had put into this turn up to that step and has not been put in yet."""
        await self._put_up_to(bisect_right(self.turn.inner, step, key=lambda entry: entry.step))

    async def _put_between(self) -> None:
        """Notes that had come while calls were open, before the result that followed them."""
        hits = [hit for call in self.log.cursor.open_calls if (hit := self._hit(call)) is not None]
        if not hits:
            return
        landing = min(hit.rank for hit in hits)[0]
        await self._put_up_to(bisect_left(self.turn.inner, landing, key=lambda entry: entry.seq))

    async def _put_up_to(self, end: int) -> None:
        due, self._put = self.turn.inner[self._put : end], max(self._put, end)
        drafts = self.staging.feed.drafts(due, self.path)
        if drafts:
            await self.append(*drafts)

    @property
    def rest(self) -> Sequence[Entry]:
        """What was not put in because the turn ended earlier than it did then."""
        return self.turn.inner[self._put :]

    async def _left_open(self) -> Event:
        """Nobody answered then either: the turn stays open, as it did."""
        ended = {"status": "interrupted"}
        await self.record("turn_ended", data=ended, row=ended)
        return Event("session:turn_completed", {"stop_reason": "unanswered"}, self.n)

    # -- the ledger --------------------------------------------------------------------------------

    def _ledger(self, *given: Any, **how: Any) -> Call:
        return replace(super()._ledger(*given, **how), bucket="replay")

    async def append(self, *drafts: Draft, **how: Any) -> AppendResult:
        if self.says_recorded:
            how = {**how, "calls": (), "replaces_call": False}
        appended = await super().append(*drafts, **how)
        if self.says_recorded:
            await self._put_between()
        return appended

    async def record(self, kind: str, **how: Any) -> None:
        if self.says_recorded and "calls" in how:
            return  # a call started, failed or dropped: none was made
        await super().record(kind, **how)

    # -- the tools ---------------------------------------------------------------------------------

    def allowed(self) -> Mapping[str, Tool]:
        """What holds at this leaf, and whatever was called: the recording may know it, and if not it is a miss."""
        called = {call.call.name for call in self.log.cursor.open_calls}
        others = called.difference(held := super().allowed())
        return {**held, **{name: stand_in(unnamed(name), self.answer_call) for name in others}}

    async def answer_call(self, context: ToolContext) -> Message:
        call = next(open_ for open_ in self.log.cursor.open_calls if open_.call == context.call)
        hit = self._hit(call)
        task = recorded_task(self.staging.source, hit)
        is_allowed = call.call.name in super().allowed()
        await self._wait_for_earlier(call, hit)
        try:
            return await self.staging.answers.answer(context, hit, is_allowed=is_allowed, task=task)
        finally:
            self._event(call).set()

    def _hit(self, call: OpenCall) -> Returned | None:
        n = self.staging.carried.occurrence(call)
        return self.staging.recording.find(self.turn.turn, call.call, n)

    async def _wait_for_earlier(self, call: OpenCall, hit: Returned | None) -> None:
        """Recorded results land in the order they landed then, so that equal histories have equal ids."""
        if hit is None:
            return
        for other in self.log.cursor.open_calls:
            theirs = self._hit(other)
            if other.seq == call.seq and theirs is not None and theirs.rank < hit.rank:
                await self._event(other).wait()

    def _event(self, call: OpenCall) -> asyncio.Event:
        return self._landed.setdefault((call.seq, call.index), asyncio.Event())
