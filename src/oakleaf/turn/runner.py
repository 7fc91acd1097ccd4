"""The one runner of a session: the lease, the announced model call, the started tool calls, and all commits.

A turn of `send` and a turn of an own loop are written by the same verbs, each verb with one commit. Does not
decide what happens next, asks no model and runs no tool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import RLock
from typing import Any, NamedTuple

from msgspec.structs import replace

from oakleaf.core.drafts import CLOSING, Blob, Draft, NewEntry
from oakleaf.core.entries import INTERRUPTED, PARTIAL
from oakleaf.core.facts import (
    ApprovalRequested,
    CallReference,
    Fact,
    LeftStatus,
    ModelCallDropped,
    ModelCallFailed,
    ModelCallStarted,
    Refusal,
    TaskWaits,
    ToolCallsStarted,
    TurnEnded,
    TurnLeft,
    TurnRefused,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.messages import Message, ToolCall, assistant, tool_result
from oakleaf.core.turns import Cursor, OpenCall, advance
from oakleaf.core.usage import Call, Price, Usage
from oakleaf.errors import Fenced, OakleafError, SessionTrashed, StaleLeaf
from oakleaf.log.lease import Lease, require_free
from oakleaf.log.log import Log
from oakleaf.log.request import Committed, Request
from oakleaf.stores.base import Effect, SessionDetail, SessionRow

CallPosition = tuple[int, int]
"""The seq of an answer, and the index of a tool call in the answer."""
FREE: Mapping[str, Any] = {"holder": None, "lease_until": None}
UNFINISHED = ("cancelled", PARTIAL, "error")
"""Finish reasons of an answer not completed by the model."""


StepEnd = Callable[[Sequence[Draft], Collection[Call]], Callable[[Sequence[NewEntry]], Effect]]


class ModelName(NamedTuple):
    """The model of an answer, with the names for the ledger and the session's row."""

    provider: str | None
    model: str | None
    name: str | None
    """The row's name for the model: `provider:model`; None leaves the row unchanged."""


class Runner:
    """The writer of the turns of one session.

    Everything needed by the first commit is read after the row with the commit's fence (`look`): another
    runner raises the fence with any change. The same commit takes the lease, and the commit that ends or
    leaves the turn gives the lease back.
    """

    def __init__(
        self,
        log: Log,
        model: ModelName | None = None,
        *,
        bucket: str = "live",
        announces: bool = True,
        may_call: Callable[[], bool] | None = None,
    ) -> None:
        """Prepare a runner for a log.

        With `announces`, a commit before a model call announces the call in the ledger. Each commit at the
        end of a step asks `may_call`: if false, the run calls no model any more.
        """
        self.log, self.model, self._bucket, self._announces = log, model, bucket, announces
        self._may_call, self.has_stopped = may_call, False
        self.step_end: StepEnd | None = None
        """Returns the effect to write with the commit at the end of a step."""
        self.earlier_calls: dict[str, Call] = {}
        """The ledger rows of the open turn from earlier processes, if there is a `step_end`."""
        self.lease = Lease(log)
        self.row: SessionRow | None = None
        """The row as last read, until the lease is taken."""
        self.detail: SessionDetail | None = None
        self.is_holding = False
        self.has_committed = False
        """Whether something was written since the row was read."""
        self.gives_back = True
        """Whether the commit at the end of a turn gives the lease back."""
        self.is_one_shot = False
        """Whether the answer of the turn completes the session and does not leave the session idle."""
        self.journal_number = 0
        """The number of this run's latest fact."""
        self.call_id: str | None = None
        """The id of the model call announced in the ledger and not answered yet."""
        self.is_call_made = False
        """Whether a model was asked for the announced answer."""
        self.calls: dict[str, Call] = {}
        """The ledger rows of this run, by call id."""
        self.answers: set[int] = set()
        """The seqs of the answers of this run: no earlier process started their tool calls."""
        self.starts: set[CallPosition] = set()
        """The tool calls started by this run."""
        self.on_tick: Callable[[], None] | None = None
        """Called about every second while the lease is held, on the thread of the renewal."""
        # Siblings of one batch start and end side by side.
        self._lock = RLock()

    # -- reading -----------------------------------------------------------------------------------

    def look(self) -> SessionRow:
        """Read the row under whose fence the next commit takes the lease."""
        self.begin(*self.log.store.session_with_detail(self.log.session_id))
        assert self.row is not None
        return self.row

    def begin(self, row: SessionRow, detail: SessionDetail | None) -> None:
        """Take a freshly read row for the next commit. The commit takes the lease under the row's fence."""
        self.row, self.detail = row, detail
        self.call_id, self.has_committed = None, False

    def cursor_after(self, drafts: Sequence[Draft]) -> Cursor:
        """Return the cursor after drafts not appended yet."""
        cursor = self.log.cursor
        for draft in drafts:
            cursor = advance(cursor, draft.payload, finish=draft.finish).cursor
        return cursor

    def was_started_here(self, call: OpenCall) -> bool | None:
        """Whether this run started a tool call; None for an answer of an earlier process: the journal
        knows."""
        if (call.seq, call.index) in self.starts:
            return True
        return False if call.seq in self.answers else None

    # -- a turn begins -----------------------------------------------------------------------------

    def open(
        self,
        drafts: Sequence[Draft],
        about: TurnStarted,
        row: Mapping[str, Any],
        *,
        starts: Sequence[int] = (),
        key: str | None = None,
        inbox_number: int | None = None,
    ) -> Committed:
        """Append an input, take the lease and announce the next model call. A repeated key writes nothing.

        The shown part of an unfinished answer to the previous input becomes an entry.
        """
        shown = self.log.partial_text() if self.log.cursor.turn else None
        before = [] if shown is None else [Draft(assistant(shown), finish=PARTIAL)]
        return self._append(
            [*before, *drafts],
            announces=True,
            key=key,
            about=about,
            starts=starts,
            row={**self._running(), **row},
            inbox_number=inbox_number,
        )

    def resume(
        self, resumed: TurnResumed, settings: Sequence[Draft] = (), *, announces: bool = False
    ) -> Committed:
        """Take the lease of the open turn. The shown part of an unfinished answer becomes an entry."""
        log, drafts = self.log, list(settings)
        shown = log.store.draft(log.session_id)
        if shown is not None:
            drafts.insert(0, Draft(assistant(shown), finish=INTERRUPTED))
        row = self._running()
        if drafts:
            return self._append(drafts, announces=announces, facts=(resumed,), row=row)
        call = self._next_call([]) if announces else None
        calls = () if call is None else (call,)
        return self._commit(Request(fact=resumed, calls=calls, row=row, at_leaf=True))

    def _running(self) -> dict[str, Any]:
        model = {} if self.model is None or self.model.name is None else {"model": self.model.name}
        return {"status": "running", "completed_at": None, "error": None, **model}

    # -- model calls -------------------------------------------------------------------------------

    def announce(self, model: ModelName, started: Callable[[Call], ModelCallStarted]) -> None:
        """Record the call of a model, if no earlier commit did."""
        call = self._announced(model, self.log.leaf.seq)
        self._commit(Request(fact=started(call), calls=(call,), at_leaf=True))

    def answer(
        self,
        drafts: Sequence[Draft],
        call: Call | None,
        *,
        starts: Sequence[int] = (),
        key: str | None = None,
    ) -> Committed:
        """Append an answer after the settings, with the ledger row of the call.

        The same commit starts the tool calls without a need for a decision.
        """
        calls = () if call is None else (call,)
        done = self._append(drafts, calls=calls, starts=starts, key=key)
        self.call_id = None  # only now: if the answer is refused, the call is still to be recorded
        self.answers.add(done.leaf.seq)
        self.starts.update((done.leaf.seq, index) for index in starts)
        return done

    def fail(self, call: Call, failed: ModelCallFailed) -> None:
        """Record a model call without an answer."""
        replaces = self.call_id is not None
        self._commit(Request(fact=failed, calls=(call,), replaces_call=replaces, at_leaf=True))
        self.call_id = None

    def drop_failed(self, failed: ModelCallFailed) -> None:
        """Record why a model was not asked, and remove the announced call from the ledger."""
        self._commit(Request(fact=failed, drops_call=self.call_id, at_leaf=True))
        self.call_id = None

    def drop(self) -> None:
        """Remove an announced but unmade call from the ledger."""
        if (call_id := self._unmade()) is not None:
            self.call_id = None
            self.drop_call(call_id)

    def _unmade(self) -> str | None:
        return None if self.is_call_made else self.call_id

    def ledger_row(
        self,
        model: ModelName,
        usage: Usage | None = None,
        price: Price | None = None,
        *,
        is_answered: bool,
        settings: int = 0,
    ) -> Call:
        """Return the ledger row of the announced call at its end.

        `settings` entries come before the answer.
        """
        after = self.log.leaf.seq + settings
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
            bucket=self._bucket,
        )

    def _announced(self, model: ModelName, after: int) -> Call:
        self.call_id, self.is_call_made = self.log.runtime.new_id(""), False
        return replace(self.ledger_row(model, is_answered=False), after_seq=after, failed=False)

    def _next_call(self, drafts: Sequence[Draft]) -> Call | None:
        """Return the start of the model call after these drafts, None if no call follows.

        The start is part of the drafts' commit.
        """
        if self.model is None or self.call_id is not None or self.has_stopped or not self._announces:
            return None
        cursor = self.cursor_after(drafts)
        if not _is_asking(cursor):
            return None
        return self._announced(self.model, self.log.leaf.seq + len(drafts))

    # -- calls beside the answer: summaries ----------------------------------------------------------

    def side_call(self, model: ModelName) -> Call:
        """Return the start of a call for a summary, beside the turn's own calls."""
        call = self.ledger_row(model, is_answered=False)
        return replace(call, call_id=self.log.runtime.new_id(""), purpose="compaction", failed=False)

    def start_side_call(self, call: Call) -> None:
        """Record the call of a model for a summary."""
        self._commit(Request(fact=ModelCallStarted(), calls=(call,), at_leaf=True))

    def fail_side_call(self, call: Call, why: str) -> None:
        """Record a failed call for a summary."""
        failed = (replace(call, failed=True),)
        self._commit(Request(fact=ModelCallFailed(why), calls=failed, replaces_call=True, at_leaf=True))

    def drop_call(self, call_id: str) -> None:
        """Remove an announced but unmade call from the ledger, given the id."""
        if call_id in self.calls:  # else the commit that was to announce it failed
            self._commit(Request(fact=ModelCallDropped(call_id), drops_call=call_id))

    # -- tool calls --------------------------------------------------------------------------------

    def start(self, call: OpenCall) -> None:
        """Record the start of a tool call."""
        self._commit(Request(fact=ToolCallsStarted(call.seq, (call.index,))))
        self.starts.add((call.seq, call.index))

    def request_approval(
        self, call: OpenCall, earlier: CallReference | None = None, *, named: bool = False
    ) -> None:
        """Record the request for a person's approval of a tool call, with `named` of a person with a name.

        `earlier` is the same call on another path, if such a call is the reason.
        """
        fact = ApprovalRequested(call.seq, call.index, earlier, named)
        self._commit(Request(fact=fact, at_leaf=True))

    def record_task_wait(self, waits: TaskWaits) -> None:
        """Record a tool call's wait for a person's decision about a call of the task."""
        self.answers.discard(waits.seq)  # from now on as if an earlier process had started it
        self._commit(Request(fact=waits, at_leaf=True))

    def store_result(
        self,
        call: ToolCall,
        message: Message,
        blobs: Sequence[Blob] = (),
        settings: Sequence[Draft] = (),
        *,
        key: str | None = None,
    ) -> Committed:
        """Append a result; before a model call, append also settings and the start of the call.

        A result that cannot be stored becomes an error result: the tool has run.
        """
        try:
            return self.append_result(Draft(message, blobs=tuple(blobs)), settings, key=key)
        except (Fenced, StaleLeaf, SessionTrashed):
            raise
        except OakleafError as error:
            why = f"{call.name} returned a value that cannot be stored: {error}"
            text = why.encode("utf-8", "replace").decode()
            return self.append_result(Draft(tool_result(call.id, text, error=True)), settings, key=key)

    def append_result(
        self, draft: Draft, settings: Sequence[Draft] = (), *, key: str | None = None
    ) -> Committed:
        """Append a result unchanged, or raise the reason of a refusal."""
        drafts = [draft, *settings] if settings and _is_asking(self.cursor_after([draft])) else [draft]
        return self._append(drafts, announces=True, key=key)

    # -- the turn ends, or is left -------------------------------------------------------------------

    def close(self, drafts: Sequence[Draft], error: str | None = None) -> Committed:
        """End the turn with results for the open calls and a closing answer.

        An announced call was not made.
        """
        about = None if error is None else TurnEnded(0, "failed", error)
        done = self._append(drafts, about=about, drops_call=self._unmade())
        self.call_id = None
        return done

    def leave(self, status: LeftStatus, error: str | None = None, *, queue: str | None = None) -> None:
        """Record how the open turn was left. An announced call that was not made is taken out of the ledger."""
        row: dict[str, Any] = {"status": status}
        if status != "waiting":
            row["error"] = error and error.replace("\0", "")
        if status == "failed" and self.is_one_shot:
            row["completed_at"] = self.log.runtime.now()
        left = TurnLeft(self.log.cursor.turn, status, error, queue)
        self._commit(Request(fact=left, row=row, drops_call=self._unmade()), leaves=True)
        self.call_id = None

    def withdraw(self, refusal: Refusal) -> None:
        """Move back before the input of the open turn after a refusal by a limit, and record the refusal.

        The turn has no answer.
        """
        turn = self.log.cursor.turn
        refused = TurnRefused(refusal, turn)
        row = {"status": "idle", "error": None}
        self._commit(
            Request(move_to=self.log.leaf_at(turn - 1), facts=(refused,), row=row, drops_call=self._unmade()),
            leaves=True,
        )
        self.call_id = None

    def refuse(self, refusal: Refusal, inbox_number: int | None = None) -> None:
        """Record the refusal of an input by a limit, for every watcher. The input itself is not stored."""
        request = Request(fact=TurnRefused(refusal), inbox_number=inbox_number)
        if self.is_holding or inbox_number is not None:
            self._commit(request, leaves=not self.is_holding)
        else:
            self.journal_number = self.log.commit(request).fact_number

    def release(self) -> None:
        """Give the lease back, if no commit did."""
        if self.is_holding:
            self.is_holding = False
            self.lease.release()
        else:
            self.lease.stop()

    # -- writing -----------------------------------------------------------------------------------

    def append(
        self, drafts: Sequence[Draft], *, calls: Sequence[Call] = (), key: str | None = None
    ) -> Committed:
        """Append notes, settings and summaries within the turn, with `calls`, the ledger rows of ended
        calls."""
        return self._append(drafts, calls=tuple(calls), replaces_call=bool(calls), key=key)

    def end(self) -> Committed:
        """Append the missing closing answer of a turn ended by a tool."""
        return self._append([CLOSING])

    def save_draft(self, text: str) -> None:
        """Keep the shown part of an answer, in case the answer breaks off."""
        log = self.log
        log.store.save_draft(log.session_id, log.leaf, text, self.lease.fence, log.runtime.now())

    def _append(
        self,
        drafts: Sequence[Draft],
        *,
        announces: bool = False,
        calls: tuple[Call, ...] = (),
        replaces_call: bool | None = None,
        starts: Sequence[int] = (),
        drops_call: str | None = None,
        about: TurnStarted | TurnEnded | None = None,
        facts: tuple[Fact, ...] = (),
        row: Mapping[str, Any] = {},
        key: str | None = None,
        inbox_number: int | None = None,
    ) -> Committed:
        if self.row is not None and not self.is_holding:
            require_free(
                self.row, self.log.runtime
            )  # a better error than the open tool calls of the other run
        if replaces_call is None:
            replaces_call = bool(calls) and self.call_id is not None
        turn, after = self.log.cursor.turn, self.cursor_after(drafts)
        ends_step = not after.open_calls and _ends_step(drafts[-1])
        if ends_step and self._may_call is not None:
            self.has_stopped = not self._may_call()
        announced = self._next_call(drafts) if announces else None
        effect = None
        if ends_step and self.step_end is not None:
            written = [*drafts, CLOSING] if after.is_ended_by_tool else drafts
            known = self.earlier_calls | self.calls | {call.call_id: call for call in calls}
            if drops_call is not None:
                known.pop(drops_call, None)
            effect = self.step_end(written, known.values())
        has_ended = bool(turn) and (not after.turn or after.is_ended_by_tool)
        if self.is_one_shot and has_ended and drafts[-1].finish not in UNFINISHED:
            row = {**row, "status": "completed", "completed_at": self.log.runtime.now()}
        request = Request(
            drafts=tuple(drafts),
            calls=calls if announced is None else (announced,),
            replaces_call=replaces_call,
            drops_call=drops_call,
            starts=tuple(starts),
            about=about,
            facts=facts,
            row=row,
            key=key,
            inbox_number=inbox_number,
            effect=effect,
        )
        return self._commit(request, leaves=has_ended and self.gives_back)

    def _commit(self, request: Request, *, leaves: bool = False) -> Committed:
        """Write a request under the fence of this run.

        The first commit takes the lease; a commit with `leaves` gives the lease back.
        """
        with self._lock:
            fence, row = self.lease.fence, dict(request.row)
            is_first = not self.is_holding
            if is_first:
                assert self.row is not None, "look before the first commit"
                fence = self.row.fence
                row |= self.lease.columns(self.row)
            if leaves:
                row |= FREE
            try:
                done = self.log.commit(replace(request, row=row, fence=fence))
            except BaseException:
                if is_first:
                    self.lease.stop()  # whatever became of the commit, this run does not go on
                if self.call_id is not None and self.call_id not in self.calls:
                    self.call_id = None  # it was to be announced by this commit
                raise
            if done.is_repeat:
                self.call_id = None if is_first else self.call_id
            else:
                self._note(request, done)
            if is_first and not done.is_repeat:
                self.is_holding = True
                self.lease.on_tick = self.on_tick
                self.lease.keep()
            if leaves or not self.is_holding:
                self.is_holding = False
                self.lease.stop()
            return done

    def _note(self, request: Request, done: Committed) -> None:
        self.has_committed = True
        self.journal_number = done.fact_number
        if request.drops_call is not None:
            self.calls.pop(request.drops_call, None)
        for call in request.calls:
            self.calls[call.call_id] = call


def _ends_step(draft: Draft) -> bool:
    """Whether an answer or a result ends a step, given no later open tool call."""
    return isinstance(draft.payload, Message) and draft.payload.role in ("assistant", "tool")


def _is_asking(cursor: Cursor) -> bool:
    """Whether a model is asked next."""
    return bool(cursor.turn) and not cursor.open_calls and not cursor.ends_turn
