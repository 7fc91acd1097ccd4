"""The agent loop as the steps of a task: one model call and the results of its tools each.

The checkpoint of a step records where it ended and what it cost, and nothing else: the messages are in the log. Its
figures are a function of the log and the ledger, so they are the same when two workers did one half of a step each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.agent.policy import RunPolicy
from oakleaf.agent.writer import Append, Record, Writer
from oakleaf.core.drafts import CLOSING, Draft, NewEntry
from oakleaf.core.entries import Entry, Payload
from oakleaf.core.messages import Message
from oakleaf.core.turns import ENDED_BY_TOOL, CallModel, next_action
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Call, Totals, total
from oakleaf.errors import ClaimLost
from oakleaf.log.ledger import calls_after
from oakleaf.log.log import Log
from oakleaf.log.request import Committed
from oakleaf.stores.base import SessionRow
from oakleaf_postgres.absurd.claim import Claim
from oakleaf_postgres.errors import SessionRewound
from oakleaf_postgres.store.guard import SqlEffect

NOT_RUN = ("denied", "interrupted")


class Checkpoint(Struct, frozen=True):
    """All that Absurd stores of a step."""

    to_message_number: int
    finish_reason: str | None
    usage: Totals
    executed_local_tool_count: int


_to_checkpoint = converter(Checkpoint)


def checkpoint(path: Sequence[Entry], drafts: Sequence[Draft], calls: Iterable[Call]) -> Checkpoint:
    """Return the checkpoint of the step that ends with `drafts` after `path`: its answer, results and model calls.

    A step begins after the message that its answer answers; what is in between, such as a summary, is part of it.
    """
    to = (path[-1].seq if path else 0) + len(drafts)
    start, finish, executed, is_answered = 0, None, 0, False
    for seq, payload, finished in _backwards(path, drafts):
        if not isinstance(payload, Message) or finished == ENDED_BY_TOOL:
            continue
        if is_answered:
            start = seq
            break
        if payload.role == "assistant":
            finish, is_answered = finished, True
        executed += sum(result.outcome not in NOT_RUN for result in payload.results)
    return Checkpoint(to, finish, total(call for call in calls if start <= call.after_seq < to), executed)


def step_end(claim: Claim, ends: Checkpoint, entries: Sequence[NewEntry]) -> SqlEffect:
    """Return the effect of the commit that ends a step; notes of others may have moved the step's end."""
    last = entries[-1].seq
    return claim.step_end(last, msgspec.json.encode(replace(ends, to_message_number=last)).decode())


def _backwards(path: Sequence[Entry], drafts: Sequence[Draft]) -> Iterator[tuple[int, Payload, str | None]]:
    seq = (path[-1].seq if path else 0) + len(drafts)
    for draft in reversed(drafts):
        yield seq, draft.payload, draft.finish
        seq -= 1
    for entry in reversed(path):
        yield entry.seq, entry.payload, entry.finish


def check_steps(log: Log, claim: Claim) -> None:
    """Raise SessionRewound unless the log holds the completed steps of the task: none of them runs again."""
    for state in claim.completed_steps():
        ended = _to_checkpoint(state).to_message_number
        if ended > log.leaf.seq:
            raise SessionRewound(log.session_id, ended, log.leaf.seq)


def calls_of_turn(log: Log) -> dict[str, Call]:
    """Return the model calls of the open turn, whichever workers made them."""
    branches = log.store.branches(log.session_id)
    own = {branch.branch for branch in branches if branch.session_id == log.session_id}
    calls = calls_after(log, log.cursor.turn - 1)
    return {call.call_id: call for call in calls if call.branch in own}


class ClaimedWriter(Writer):
    """The writer of a worker: ends each step with a checkpoint, and may stop behind one for another worker."""

    def __init__(self, log: Log, claim: Claim, policy: RunPolicy, is_stopping: Callable[[], bool]) -> None:
        super().__init__(log, policy)
        self._claim = claim
        self.has_stopped = False
        """Whether the run stopped at the end of a step because its worker stops."""
        self._model, self._is_stopping = policy.answers.models[0], is_stopping
        self._step_calls: dict[str, Call] = {}
        self._has_called = False

    @property
    def is_turn_checked(self) -> bool:
        """False until a model was called: the sender does not know the limits of this worker's agent."""
        return self._has_called

    @property
    def is_lost(self) -> bool:
        return self._claim.is_lost or super().is_lost

    async def acquire(self, row: SessionRow) -> SessionRow:
        """Count the calls of the open turn only now: until the lease is taken another worker may add to them."""
        row = await super().acquire(row)
        if self.log.cursor.turn:
            self._step_calls = await self.run_blocking(calls_of_turn, self.log)
            self._has_called = bool(self._step_calls)
        return row

    def _release(self) -> None:
        """After a lost claim there is nothing to release, and ClaimLost was raised already."""
        with suppress(ClaimLost):
            super()._release()

    def on_cancel_request(self, facts: int, cancel: Callable[[], object]) -> None:
        """Nothing: the worker polls for all of its tasks at once."""

    async def commit_append(self, append: Append) -> Committed:
        self._count(append.calls or ())
        is_step_end = self._is_step_end(append.drafts)
        if is_step_end:
            self.has_stopped = self._is_stopping()
        appended = await super().commit_append(append)
        if is_step_end:
            self._step_calls = {}
        return appended

    def write(self, append: Append) -> Committed:
        if not self._is_step_end(append.drafts):
            return super().write(append)
        is_ended = self.cursor_after(append.drafts).is_ended_by_tool
        drafts = (*append.drafts, CLOSING) if is_ended else append.drafts
        ends = checkpoint(self.path, drafts, self._step_calls.values())
        return super().write(replace(append, effect=partial(step_end, self._claim, ends)))

    async def record(self, record: Record) -> None:
        self._count(record.calls)
        await super().record(record)

    async def drop_call(self, call_id: str) -> None:
        self._step_calls.pop(call_id, None)
        await super().drop_call(call_id)

    async def record_resumed(self, data: Mapping[str, Any]) -> None:
        """The start of the model call that comes next is part of the same commit."""
        calls_model = isinstance(next_action(self.path), CallModel)
        calls = [self.announce_call(self._model)] if calls_model else []
        await self.record(Record("turn_resumed", data, self.running_row(), calls, only_at_leaf=True))

    async def record_waiting(self) -> None:
        """With the queue of the task, which the person's decision must wake."""
        queue = {"queue": self._claim.queue}
        await self.record(Record("waiting", queue, {"status": "waiting"}))

    def _count(self, calls: Iterable[Call]) -> None:
        self._step_calls |= {call.call_id: call for call in calls}

    def _is_step_end(self, drafts: Sequence[Draft]) -> bool:
        last = drafts[-1].payload
        if not isinstance(last, Message) or last.role not in ("assistant", "tool"):
            return False
        results = sum(len(draft.payload.results) for draft in drafts if isinstance(draft.payload, Message))
        return not last.calls and len(self.log.cursor.open_calls) == results

    def announce_next_call(self, drafts: Sequence[Draft]) -> Call | None:
        """A worker that stops does not announce a call that another one will make."""
        return None if self.has_stopped else super().announce_next_call(drafts)

    def save_draft(self, text: str) -> None:
        """Nothing: no client is shown an answer in flight, so a new run asks again instead of keeping half of it."""
