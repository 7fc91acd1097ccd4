"""Our loop, cut into the steps of a task: one model call and the results of its tools.

The checkpoint of a step says where it ended and what it cost, and nothing else: the messages are in the log. Its
figures are a function of the log and the ledger, so a step whose first half another worker did has the same ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...agent.events import Event
from ...agent.limits import LimitHit, Limits, check_limits
from ...agent.loop import Loop
from ...agent.tools.tool import Tool
from ...core.drafts import Draft, EntryBatch
from ...core.entries import Entry, Payload
from ...core.messages import Message
from ...core.turns import CallModel, next_action
from ...core.usage import Call, Totals, calls_on_path, total
from ...errors import SessionRewound
from ...log.changes import AppendResult
from ...log.log import Log
from ...log.runtime import Runtime
from ...models.model import Model
from ...stores.base import Change, Fact, SessionRow
from .claim import Claim
from .signals import is_cancel_requested
from .task_store import TaskStore

NOT_RUN = ("denied", "interrupted")


class Checkpoint(Struct, frozen=True):
    """All that Absurd keeps of a step."""

    to_message_number: int
    finish_reason: str | None
    usage: Totals
    executed_local_tool_count: int


def checkpoint(path: Sequence[Entry], drafts: Sequence[Draft], calls: Iterable[Call]) -> Checkpoint:
    """Of the step that ends with `drafts` behind `path`: the latest answer, its results, and the calls it took.

    A step begins behind the message that its answer answers; what stands between, such as a summary, is part of it.
    """
    to, start, finish, executed, is_answered = len(path) + len(drafts), 0, None, 0, False
    for seq, payload, finished in _backwards(path, drafts):
        if not isinstance(payload, Message):
            continue
        if is_answered:
            start = seq
            break
        if payload.role == "assistant":
            finish, is_answered = finished, True
        executed += sum(result.outcome not in NOT_RUN for result in payload.results)
    return Checkpoint(to, finish, total(call for call in calls if start <= call.after_seq < to), executed)


def _backwards(path: Sequence[Entry], drafts: Sequence[Draft]) -> Iterator[tuple[int, Payload, str | None]]:
    seq = len(path) + len(drafts)
    for draft in reversed(drafts):
        yield seq, draft.payload, draft.finish
        seq -= 1
    for entry in reversed(path):
        yield entry.seq, entry.payload, entry.finish


class ClaimedLog(Log):
    """A log whose every commit holds a claim; the one that ends a step carries its checkpoint."""

    store: TaskStore

    def __init__(self, store: TaskStore, row: SessionRow, runtime: Runtime, claim: Claim) -> None:
        super().__init__(store, row, runtime)
        self.claim = claim
        self._ends: Checkpoint | None = None

    def append(self, drafts: Sequence[Draft], *, ends: Checkpoint | None = None, **how: Any) -> AppendResult:
        with self._lock:
            self._ends = ends
            try:
                return super().append(drafts, **how)
            finally:
                self._ends = None

    def _commit(self, change: Change, written: EntryBatch, state: bytes | None) -> AppendResult:
        with self.claim.ending_step(None if self._ends is None else msgspec.to_builtins(self._ends)):
            return super()._commit(change, written, state)

    def replay(self) -> None:
        """Pass over the steps that are done: they are in the log, and nothing of them is done again."""
        for state in self.claim.completed_steps():
            ended = msgspec.convert(state, Checkpoint).to_message_number
            if ended > self.leaf.seq:
                raise SessionRewound(self.session_id, ended, self.leaf.seq)

    def calls_of_turn(self) -> dict[str, Call]:
        """The model calls of the turn that is open, by whichever worker."""
        made = calls_on_path(self.store.calls(self.session_id), self.ranges(), self.cursor.turn)
        return {call.call_id: call for call in made}


class ClaimedLoop(Loop):
    """The loop of a worker: it ends each step with a checkpoint, and may be asked to leave behind one."""

    log: ClaimedLog

    def __init__(
        self,
        log: ClaimedLog,
        models: Sequence[Model],
        tools: Mapping[str, Tool],
        limits: Limits,
        is_stopping: Callable[[], bool],
    ) -> None:
        super().__init__(log, models, tools, limits)
        self.has_left = False
        self._is_stopping = is_stopping
        self._calls = log.calls_of_turn() if log.cursor.turn else {}

    async def _turn(self, content: str | Message | None, takes: int | None = None) -> AsyncIterator[Event]:
        """A turn that a person has stopped before it was taken up is closed, and nothing is called for it."""
        if content is None and is_cancel_requested(
            await self.run_blocking(self._facts), self.log.cursor.turn
        ):
            await self._cancelled()
            yield Event("session:turn_completed", {"stop_reason": "cancelled"}, self.n)
            return
        async for event in super()._turn(content, takes):
            yield event

    def _facts(self) -> list[Fact]:
        self.log.store.invalidate_journal(self.log.session_id)
        return self.log.store.journal(self.log.session_id)

    async def append(self, *drafts: Draft, **how: Any) -> AppendResult:
        self._count(how)
        if not self._is_end(drafts):
            return await super().append(*drafts, **how)
        self.has_left = self._is_stopping()
        ends = checkpoint(self.path, drafts, self._calls.values())
        appended = await super().append(*drafts, ends=ends, **how)
        self._calls = {}
        return appended

    async def record(self, kind: str, **how: Any) -> None:
        if kind == "turn_resumed" and await self._calls_next():
            how["calls"] = [self._announced()]
        self._count(how)
        if kind == "waiting":  # for a person, whose word must find the way back
            how["data"] = {"queue": self.log.claim.queue}
        await super().record(kind, **how)

    def _count(self, how: Mapping[str, Any]) -> None:
        self._calls |= {call.call_id: call for call in how.get("calls", ())}

    def _is_end(self, drafts: Sequence[Draft]) -> bool:
        last = drafts[-1].payload
        if not isinstance(last, Message) or last.role not in ("assistant", "tool"):
            return False
        landed = sum(len(draft.payload.results) for draft in drafts if isinstance(draft.payload, Message))
        return not last.calls and len(self.log.cursor.open_calls) == landed

    async def _calls_next(self) -> bool:
        """Whether the turn goes on with a model call: it does not if its answer was cut off, elsewhere, in mid-stream."""
        is_next = isinstance(next_action(self.path), CallModel)
        return is_next and await self.run_blocking(self.log.store.draft, self.log.session_id) is None

    def _announced(self) -> Call:
        """The start of that call, to ride in the commit that says that the turn goes on."""
        self._call_id = self.log.runtime.new_id("")
        return replace(self._ledger(self.models[0], None, answered=False), failed=False)

    async def _reached(self, *, is_new_turn: bool, rounds: int = 0) -> LimitHit | None:
        """Within a turn only money needs to be asked for."""
        if is_new_turn or self.limits.max_cost_microcents is not None:
            return await super()._reached(is_new_turn=is_new_turn, rounds=rounds)
        return check_limits(self.limits, self._row, is_new_turn=False, rounds=rounds)

    def check(self, row: SessionRow) -> None:
        super().check(row)
        self._row = row

    def _ride(self, drafts: Sequence[Draft]) -> Call | None:
        """Who leaves does not announce a call that another worker will make."""
        return None if self.has_left else super()._ride(drafts)

    async def _cancelled(self) -> None:
        """Stopped because the claim is gone: what is open is another's to close."""
        if not self.log.claim.is_lost:
            await super()._cancelled()

    def _save(self, text: str) -> None:
        """Nobody is shown what an answer in flight says, so a new run asks again instead of keeping half of it."""
