"""The one bridge from the asynchronous loop to the synchronous log.

Holds the session's lease, appends and records under its fence, and announces model calls in the ledger, all on
threads of the log. Does not decide what happens next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from oakleaf.agent.cancellation import cancel_check, is_cancel_requested
from oakleaf.agent.policy import RunPolicy
from oakleaf.core.drafts import CLOSING, Draft, NewEntry
from oakleaf.core.entries import PARTIAL, Entry, Settings
from oakleaf.core.facts import (
    Fact,
    ModelCallDropped,
    Refusal,
    TurnEnded,
    TurnLeft,
    TurnRefused,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.messages import Message
from oakleaf.core.prompt_path import PromptPath
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import CallModel, Cursor, advance, next_action
from oakleaf.core.usage import Call, Price, Usage
from oakleaf.errors import ClaimLost, SessionIsReplay, SessionRunning
from oakleaf.log.lease import Lease
from oakleaf.log.ledger import calls_of_open_turn
from oakleaf.log.log import Log
from oakleaf.log.prompt import load
from oakleaf.log.request import Committed
from oakleaf.log.threads import free_in_pieces, run_blocking, run_by_size, run_to_end
from oakleaf.models.base import Model, model_name
from oakleaf.models.prices import needs_table, price_of
from oakleaf.stores.base import Effect, PathSnapshot, QueuedInput, SessionDetail, SessionRow

P = ParamSpec("P")
R = TypeVar("R")
UNFINISHED = ("cancelled", PARTIAL, "error")
"""Finish reasons of an answer that the model did not complete."""
GRACE_SECONDS = 5.0
"""How long a cancelled tool may take to clean up before it is no longer waited for."""


class Append(Struct, frozen=True):
    """Entries that are appended in one commit, and what is written with them."""

    drafts: tuple[Draft, ...]
    after: Leaf
    """The leaf at which it was built."""
    calls: Sequence[Call] | None = None
    """None: the start of the model call that comes next, if one does."""
    replaces_call: bool = False
    row: Mapping[str, Any] | None = None
    about: TurnStarted | TurnEnded | None = None
    starts: Sequence[int] = ()
    """The indexes of an answer's tool calls that start at once."""
    takes: int | None = None
    """The number of the input that it removes from the inbox."""
    key: str | None = None
    effect: Callable[[Sequence[NewEntry]], Effect] | None = None


class Record(Struct, frozen=True):
    """A fact without entries, and what is written with it."""

    fact: Fact
    row: Mapping[str, Any] | None = None
    calls: Sequence[Call] = ()
    replaces_call: bool = False
    drops_call: str | None = None
    only_at_leaf: bool = False
    """Refuse it as stale if the session has moved on."""
    takes: int | None = None
    """The number of the input that it removes from the inbox."""


class Writer:
    """One run's access to the log of its session."""

    def __init__(
        self,
        log: Log,
        policy: RunPolicy,
        *,
        is_one_shot: bool = False,
        history: PromptPath | None = None,
    ) -> None:
        """`history` is the path of the session that outlives this run."""
        self.log, self.recorded, self._goes_on = log, policy.recorded, policy.goes_on
        self.history = PromptPath() if history is None else history
        """The entries that the context of the next call depends on."""
        self._keeps_history = history is not None
        self.leaf = log.leaf
        """The leaf of this run. The log may be ahead of it, if the host added a note through the same handle."""
        self.detail: SessionDetail | None = None
        self.session_tools: tuple[str, ...] = ()
        """The tools the session was started with; empty if it names none."""
        self.context_window: int | None = None
        """The window that the session was started with."""
        self.queued = 0
        """How many inputs were queued when the session was loaded."""
        self.journal_number = 0
        """The number of the latest fact that this run wrote."""
        self.has_stopped = False
        """Whether the run may call no model any more: the policy said so at the end of a step."""
        self.is_one_shot = is_one_shot
        """Whether the answer of the turn completes the session instead of leaving it idle."""
        self.own_answers: set[int] = set()
        """The seqs of this run's answers: no earlier process started their tool calls."""
        self.own_starts: frozenset[tuple[int, int]] = frozenset()
        """The tool calls, by seq and index, that started with the latest of these answers."""
        self.on_append: Callable[[Committed, list[Entry]], None] | None = None
        """Called after each append with its entries, on a thread of the log."""
        self.call_id: str | None = None
        """The model call that is announced in the ledger and has no answer yet."""
        self.is_call_made = False
        """Whether a model was asked for that answer."""
        self.model_calls: dict[str, Call] = {}
        """The ledger rows that this run wrote, by call id."""
        self.earlier_calls: dict[str, Call] = {}
        """The ledger rows of the open turn that earlier processes wrote, if the policy ends steps."""
        self._step_end = policy.step_end
        self._first_model = policy.answers.models[0] if policy.answers.models else None
        self.lease = Lease(log)
        self._has_lease = False

    async def run_blocking(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await run_blocking(work, *args, **kwargs)

    # -- reading -----------------------------------------------------------------------------------

    async def load(self) -> SessionRow:
        """Read row, details and what the model sees of the path at the session's current leaf."""
        if self._keeps_history:
            return await self.run_blocking(self._follow)
        reading, self.history = await run_by_size(self.log.leaf.seq, self._load)
        self.detail, self.queued = reading.detail, reading.queued
        self.leaf, self.session_tools = reading.row.leaf, reading.row.tool_names
        self.context_window = reading.row.context_window
        return reading.row

    def _load(self) -> tuple[PathSnapshot, PromptPath]:
        reading, history = load(self.log)
        history.settings()  # here and not on the event loop: of a long path it takes a while
        _ = self.log.cursor  # which may have to be read
        return reading, history

    def _follow(self) -> SessionRow:
        """Read row and details; read the path again only if another process wrote since the run before."""
        self.leaf = self.log.refresh().leaf
        row, self.detail = self.log.store.session_with_detail(self.log.session_id)
        if self.history.entry_id != self.log.cursor.entry_id:
            self.history.start(self.log.path().entries)
        return row

    def forget_path(self) -> None:
        """Free the path, once the run has ended, unless it outlives the run."""
        if self._keeps_history:
            return
        history, self.history = self.history, PromptPath()
        free_in_pieces(history.values())

    def check(self, row: SessionRow) -> None:
        """Refuse a replay: a recording answered its tools, and they must not run now by accident."""
        if row.relation == "replay" and self.recorded.bucket != "replay":
            raise SessionIsReplay(row.session_id)

    @property
    def path(self) -> list[Entry]:
        """The path to the leaf of this run, without messages that a summary had replaced when it was loaded."""
        return self.history.entries

    def settings(self) -> Settings:
        """Return the settings in force at the end of the path."""
        return self.history.settings()

    def allowed_tools(self) -> tuple[str, ...] | None:
        """Return the names of the tools that the session allows at the end of the path; None: any."""
        names = self.settings().tools
        if not self.session_tools:
            return names
        return tuple(name for name in self.session_tools if names is None or name in names)

    # -- the lease ---------------------------------------------------------------------------------

    async def acquire(self, row: SessionRow) -> SessionRow:
        """Take the lease, given the row as last read; return the present row."""
        try:
            row = await run_to_end(self._take_lease, row)
            # Another runner finished between the first read and the lease; one through the same handle moved its log too.
            if row.leaf != self.leaf:
                row = await self.load()
            if (
                self._step_end is not None and self.log.cursor.turn
            ):  # until now another process may have added to them
                calls = await self.run_blocking(calls_of_open_turn, self.log)
                self.earlier_calls = _by_id(calls)
            return row
        except BaseException:  # also a cancellation: nobody else gives the lease back
            await self.release()
            raise

    def _take_lease(self, row: SessionRow) -> SessionRow:
        self.lease.take(row)
        self._has_lease = True
        return self.log.refresh()

    async def release(self) -> None:
        """Give the lease back, if it is still held; also if cancelled meanwhile."""
        if self._has_lease:
            await run_to_end(self._release)

    def _release(self) -> None:
        self._has_lease = False
        with suppress(ClaimLost):  # there is nothing to release
            self.lease.release()

    async def next_input(self, *, releases: bool) -> QueuedInput | None:
        """Return the input that was queued first. If there is none and the run ends with that, give the lease back.

        That is done before it looks: one who queues an input while the lease is held relies on this run to take it.
        """
        if not releases:
            return await run_to_end(self._first_queued)
        on_tick = self.lease.on_tick
        while await run_to_end(self._release_and_look):
            try:
                await self.acquire(await self.run_blocking(self.log.store.session, self.log.session_id))
            except SessionRunning:  # the run that has it now takes it
                return None
            self.lease.on_tick = on_tick
            queued = await run_to_end(self._first_queued)
            if queued is not None:
                return queued
        return None

    def _release_and_look(self) -> bool:
        self._release()
        return self._first_queued() is not None

    def _first_queued(self) -> QueuedInput | None:
        queued = self.log.store.inbox(self.log.session_id, 1)
        return queued[0] if queued else None

    # -- writing -----------------------------------------------------------------------------------

    async def append(self, *drafts: Draft, calls: Sequence[Call] | None = None) -> Committed:
        """Append in one commit. Without `calls`, the start of a model call that comes next is part of it."""
        return await self.commit_append(Append(drafts, self.leaf, calls))

    async def commit_append(self, append: Append) -> Committed:
        """Append in one commit, with more than drafts and calls."""
        if self._goes_on.may_call is not None and self.ends_step(append.drafts):
            self.has_stopped = not self._goes_on.may_call()
        if append.calls is None:
            call = self.announce_next_call(append.drafts)
            append = replace(append, calls=() if call is None else (call,))
        if self.is_one_shot and self._completes_turn(append.drafts):
            completed = {"status": "completed", "completed_at": self.log.runtime.now()}
            append = replace(append, row={**(append.row or {}), **completed})
        appended = await run_to_end(self._append, append)
        if self.log.cursor.open_calls:
            await self.append_host_entries()
        return appended

    async def append_host_entries(self) -> None:
        """Append the entries of the host that are due."""
        due = self.recorded.host_entries and self.recorded.host_entries(self.log.cursor)
        if due:
            await self.commit_append(Append(due.drafts, self.leaf, key=due.key))

    def _append(self, append: Append) -> Committed:
        """Commit, then move the run's leaf along with the log: a turn is closed from that leaf."""
        appended = self.write(append)
        self.model_calls |= _by_id(append.calls or ())
        entries = appended.entries
        self._extend_path(entries, appended.leaf)
        if self.on_append is not None:
            self.on_append(appended, entries)
        self.journal_number = appended.fact_number
        return appended

    def _extend_path(self, entries: list[Entry], leaf: Leaf) -> None:
        first = entries[0].seq
        if self.history.last_seq != first - 1:  # notes of others came before
            notes = self.log.path(since=self.history.last_seq)
            self.history.extend(entry for entry in notes.entries if entry.seq < first)
        self.history.extend(entries)
        self.leaf = leaf

    def write(self, append: Append) -> Committed:
        """Write one append to the log, and what ends a step with it; called on a thread of the writer."""
        if self._step_end is not None and self.ends_step(append.drafts):
            is_ended = self.cursor_after(append.drafts).is_ended_by_tool
            drafts = (*append.drafts, CLOSING) if is_ended else append.drafts
            calls = self.earlier_calls | self.model_calls | _by_id(append.calls or ())
            append = replace(append, effect=self._step_end(self.path, drafts, calls.values()))
        return self.log.append(**asdict(append), fence=self.lease.fence)

    async def record(self, record: Record) -> None:
        """Record a fact without entries."""
        await run_to_end(self._record, record)

    def _record(self, record: Record) -> None:
        # Before it holds the lease it may say that it refuses an input.
        committed = self.log.record(**asdict(record), fence=self.lease.fence or None)
        self.model_calls |= _by_id(record.calls)
        self.journal_number = committed.fact_number

    async def withdraw_turn(self, error: Refusal) -> None:
        """Move back before the input of the open turn, which a limit refuses, and record why."""
        turn = self.log.cursor.turn
        refused = TurnRefused(error, turn)
        self.journal_number = await self.run_blocking(self.log.withdraw, turn, refused, self.lease.fence)
        await self.load()

    async def record_resumed(self, resumed: TurnResumed) -> None:
        """Record that this run resumes the open turn, and announce the model call that comes next."""
        model, is_next = self._first_model, isinstance(next_action(self.path), CallModel)
        announces = model is not None and is_next and self.recorded.announces
        calls = [self.announce_call(model)] if announces and model is not None else []
        await self.record(Record(resumed, self.running_row(), calls, only_at_leaf=True))

    def running_row(self) -> dict[str, Any]:
        """Return the columns of a session whose turn this run starts or resumes; the model is the latest turn's."""
        name = None if self._first_model is None else model_name(self._first_model)
        model = {} if name is None else {"model": name}
        return {"status": "running", "completed_at": None, "error": None, **model}

    async def record_waiting(self) -> None:
        """Record that the open turn waits for a person."""
        left = TurnLeft(self.log.cursor.turn, "waiting", queue=self.recorded.queue)
        await self.record(Record(left, {"status": "waiting"}))

    async def is_cancel_requested(self) -> bool:
        """Whether a person cancelled the open turn before this run took it."""
        return await self.run_blocking(
            lambda: is_cancel_requested(self.log.facts_backwards(), self.log.cursor.turn)
        )

    def on_cancel_request(self, facts: int, cancel: Callable[[], object]) -> None:
        """Call `cancel`, from another thread, when a fact after number `facts` requests to cancel the open turn.

        The journal is read with each tick of the lease, on the thread that renews it: appending costs nothing more.
        """
        self.lease.on_tick = cancel_check(self.log, facts, cancel)

    def save_draft(self, text: str) -> None:
        """Keep the part of an answer that was shown so far, for the case that it breaks off."""
        log = self.log
        log.store.save_draft(log.session_id, log.leaf, text, self.lease.fence, log.runtime.now())

    def _completes_turn(self, drafts: Sequence[Draft]) -> bool:
        """Whether these end the turn, and not by a limit, a cancellation or a crash."""
        cursor = self.cursor_after(drafts)
        return (not cursor.turn or cursor.is_ended_by_tool) and drafts[-1].finish not in UNFINISHED

    def ends_step(self, drafts: Sequence[Draft]) -> bool:
        """Whether no call is open behind these, which an answer or results end."""
        last = drafts[-1].payload
        if not isinstance(last, Message) or last.role not in ("assistant", "tool"):
            return False
        results = sum(len(draft.payload.results) for draft in drafts if isinstance(draft.payload, Message))
        return not last.calls and len(self.log.cursor.open_calls) == results

    def cursor_after(self, drafts: Sequence[Draft]) -> Cursor:
        cursor = self.log.cursor
        for draft in drafts:
            cursor = advance(cursor, draft.payload, finish=draft.finish).cursor
        return cursor

    # -- the ledger --------------------------------------------------------------------------------

    def announce_next_call(self, drafts: Sequence[Draft]) -> Call | None:
        """Return the start of the model call that follows these drafts, to be part of their commit; None if none follows."""
        last = drafts[-1].payload
        if not isinstance(last, Message) or last.role not in ("user", "tool") or self._first_model is None:
            return None
        if not self.recorded.announces or self.has_stopped:
            return None
        ends_turn = self.log.cursor.ends_turn or any(result.ends_turn for result in last.results)
        if len(self.log.cursor.open_calls) > len(last.results) or ends_turn:
            return None
        return replace(self.announce_call(self._first_model), after_seq=self.leaf.seq + len(drafts))

    def announce_call(self, model: Model) -> Call:
        """Return the start of a model call at the present leaf."""
        self.call_id, self.is_call_made = self.log.runtime.new_id(""), False
        return replace(self.ledger_row(model, is_answered=False), failed=False)

    async def drop_announced_call(self) -> None:
        """Take the announced call, if there is one that was not made, out of the ledger again."""
        if self.call_id is not None and not self.is_call_made:
            call_id, self.call_id = self.call_id, None
            await self.drop_call(call_id)

    async def drop_call(self, call_id: str) -> None:
        """Take a call that this run announced and did not make out of the ledger again."""
        if self.model_calls.pop(call_id, None) is None:
            return  # the commit that was to announce it failed
        await self.record(Record(ModelCallDropped(call_id), drops_call=call_id))

    async def price(self, model: Model, usage: Usage | None, units: Mapping[str, int] | None) -> Price | None:
        """Return what a call cost; on a thread if the table of prices is asked, which takes a while to load."""
        if usage is None:
            return None
        ask = partial(price_of, model, usage, units)
        return await self.run_blocking(ask) if needs_table(model) else ask()

    def ledger_row(
        self,
        model: Model,
        usage: Usage | None = None,
        price: Price | None = None,
        *,
        is_answered: bool,
        settings: int = 0,
    ) -> Call:
        """Return the ledger row of the announced call, as it ended; so many settings come before its answer."""
        after = self.leaf.seq + settings
        return Call(
            call_id=self.call_id or self.log.runtime.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=after + 1 if is_answered else None,
            at=self.log.runtime.now(),
            usage=usage or Usage(),
            provider=model.provider,
            model=model.model,
            price=price,
            failed=not is_answered,
            bucket=self.recorded.bucket,
        )

    def compaction_call(self, model: Model) -> Call:
        """Return the start of a call for a summary, which is not the turn's own."""
        call = self.ledger_row(model, is_answered=False)
        return replace(call, call_id=self.log.runtime.new_id(""), purpose="compaction", failed=False)


def _by_id(calls: Sequence[Call]) -> dict[str, Call]:
    return {call.call_id: call for call in calls}


async def run_uncancelled(work: Coroutine[Any, Any, R]) -> R:
    """Finish `work` even if the caller is cancelled, once or again: a second cancel must not find the first one's
    writes half done. The cancellation is raised afterwards."""
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
    """Cancel them, and wait until they have cleaned up: a child session among them closes its own turn."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=GRACE_SECONDS)
    for task in running:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it as never retrieved
