"""The one runner of a session: the lease, the model call that was announced, the tool calls that were started, and every
commit of a turn.

A turn of `send` and a turn of an own loop are written by the same verbs, each of them one commit. Does not decide what
happens next, asks no model and runs no tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any, NamedTuple

from msgspec.structs import replace

from oakleaf.core.drafts import Draft
from oakleaf.core.entries import INTERRUPTED
from oakleaf.core.facts import (
    ApprovalRequested,
    CallReference,
    LeftStatus,
    ModelCallFailed,
    ModelCallStarted,
    ToolCallsStarted,
    TurnEnded,
    TurnLeft,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.messages import assistant
from oakleaf.core.turns import Cursor, OpenCall, advance
from oakleaf.core.usage import Call, Price, Usage
from oakleaf.log.lease import Lease, require_free
from oakleaf.log.log import Log
from oakleaf.log.request import Committed, Request
from oakleaf.stores.base import SessionDetail, SessionRow

CallPosition = tuple[int, int]
"""The seq of an answer, and the index of a tool call in the answer."""
FREE: Mapping[str, Any] = {"holder": None, "lease_until": None}


class ModelName(NamedTuple):
    """A model that answers, as the ledger and the row of the session name it."""

    provider: str | None
    model: str | None
    name: str | None
    """Of the row: `provider:model`; None leaves the row's as it is."""


class Runner:
    """Writes the turns of one session.

    Everything that the first commit depends on is read after the row whose fence the commit carries (`look`): another
    runner that changed any of that has raised the fence. The same commit takes the lease, and the commit that ends or
    leaves the turn gives the lease back.
    """

    def __init__(self, log: Log, model: ModelName | None = None, *, bucket: str = "live") -> None:
        self.log, self.model, self._bucket = log, model, bucket
        self.lease = Lease(log)
        self.row: SessionRow | None = None
        """The row as last read, until the lease is taken."""
        self.detail: SessionDetail | None = None
        self.is_holding = False
        self.has_committed = False
        self.call_id: str | None = None
        """The model call that is announced in the ledger and has no answer yet."""
        self.answers: set[int] = set()
        """The seqs of the answers of this run: no earlier process started their tool calls."""
        self.starts: set[CallPosition] = set()
        """The tool calls that this run started."""
        # Siblings of one batch start and end side by side.
        self._lock = RLock()

    # -- reading -----------------------------------------------------------------------------------

    def look(self) -> SessionRow:
        """Read the row under whose fence the next commit takes the lease."""
        self.row, self.detail = self.log.store.session_with_detail(self.log.session_id)
        self.call_id = None
        return self.row

    def cursor_after(self, drafts: Sequence[Draft]) -> Cursor:
        """Return the cursor after drafts that are not appended yet."""
        cursor = self.log.cursor
        for draft in drafts:
            cursor = advance(cursor, draft.payload, finish=draft.finish).cursor
        return cursor

    def was_started_here(self, call: OpenCall) -> bool | None:
        """Whether this run started a tool call; None if only the journal knows, because of an earlier process."""
        if (call.seq, call.index) in self.starts:
            return True
        return False if call.seq in self.answers else None

    # -- a turn begins -----------------------------------------------------------------------------

    def open(
        self,
        drafts: Sequence[Draft],
        about: TurnStarted,
        row: Mapping[str, Any],
        key: str | None = None,
    ) -> Committed:
        """Append an input, take the lease and announce the model call that follows. A repeated key writes nothing."""
        return self._append(drafts, key=key, about=about, row={**self._running(), **row})

    def resume(self, resumed: TurnResumed, settings: Sequence[Draft] = ()) -> None:
        """Take the lease of the open turn. What was shown of an answer that broke off becomes an entry."""
        log, drafts = self.log, list(settings)
        shown = log.store.draft(log.session_id)
        if shown is not None:
            drafts.insert(0, Draft(assistant(shown), finish=INTERRUPTED))
        row = self._running()
        if drafts:
            self._commit(Request(drafts=tuple(drafts), facts=(resumed,), row=row))
        else:
            self._commit(Request(fact=resumed, row=row, at_leaf=True))

    def _running(self) -> dict[str, Any]:
        model = {} if self.model is None or self.model.name is None else {"model": self.model.name}
        return {"status": "running", "completed_at": None, "error": None, **model}

    # -- model calls -------------------------------------------------------------------------------

    def announce(self) -> None:
        """Record that a model is called, if no commit before did."""
        assert self.model is not None
        call = self._announced(self.model, self.log.leaf.seq)
        self._commit(Request(fact=ModelCallStarted(), calls=(call,), at_leaf=True))

    def answer(
        self, draft: Draft, call: Call | None, *, starts: Sequence[int] = (), key: str | None = None
    ) -> Committed:
        """Append an answer with the ledger row of the call, and the start of tool calls that need no decision."""
        calls = () if call is None else (call,)
        done = self._append([draft], calls=calls, starts=starts, key=key)
        self.call_id = None  # only now: if the answer is refused, the call is still to be recorded
        self.answers.add(done.leaf.seq)
        self.starts.update((done.leaf.seq, index) for index in starts)
        return done

    def fail(self, call: Call, failed: ModelCallFailed) -> None:
        """Record a model call that has no answer."""
        replaces = self.call_id is not None
        request = Request(fact=failed, calls=(call,), replaces_call=replaces, at_leaf=True)
        self._commit(request)
        self.call_id = None

    def ledger_row(
        self,
        provider: str | None,
        model: str | None,
        usage: Usage | None,
        price: Price | None,
        *,
        is_answered: bool,
        settings: int = 0,
    ) -> Call:
        """Return the ledger row of the announced call, as it ended; so many settings come before its answer."""
        after = self.log.leaf.seq + settings
        return Call(
            call_id=self.call_id or self.log.runtime.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=after + 1 if is_answered else None,
            at=self.log.runtime.now(),
            usage=usage or Usage(),
            provider=provider,
            model=model,
            price=price,
            failed=not is_answered,
            bucket=self._bucket,
        )

    def _announced(self, model: ModelName, after: int) -> Call:
        self.call_id = self.log.runtime.new_id("")
        call = self.ledger_row(model.provider, model.model, None, None, is_answered=False)
        return replace(call, after_seq=after, failed=False)

    # -- tool calls --------------------------------------------------------------------------------

    def start(self, call: OpenCall) -> None:
        """Record that a tool call starts now."""
        self._commit(Request(fact=ToolCallsStarted(call.seq, (call.index,))))
        self.starts.add((call.seq, call.index))

    def request_approval(self, call: OpenCall, earlier: CallReference | None = None) -> None:
        """Record that a person is asked about a tool call, and about which call of another path, if that is why."""
        requested = ApprovalRequested(call.seq, call.index, earlier)
        self._commit(Request(fact=requested, at_leaf=True))

    def store_result(
        self, draft: Draft, settings: Sequence[Draft] = (), *, key: str | None = None
    ) -> Committed:
        """Append a result; and, if a model is asked next, settings and the start of that call."""
        if settings and self._is_asking(self.cursor_after([draft])):
            return self._append([draft, *settings], key=key)
        return self._append([draft], key=key)

    # -- the turn ends, or is left -------------------------------------------------------------------

    def close(self, drafts: Sequence[Draft], error: str | None = None) -> Committed:
        """End the turn with results for its open calls and a closing answer. An announced call was not made."""
        dropped, self.call_id = self.call_id, None
        about = None if error is None else TurnEnded(0, "failed", error)
        return self._append(drafts, about=about, drops_call=dropped)

    def leave(self, status: LeftStatus, error: str | None = None, *, is_call_made: bool) -> None:
        """Record how the open turn was left. An announced call that was not made is taken out of the ledger."""
        row = {"status": status, "error": error and error.replace("\0", "")}
        left = TurnLeft(self.log.cursor.turn, status, error)
        dropped = None if is_call_made else self.call_id
        self._commit(Request(fact=left, row=row, drops_call=dropped), leaves=True)

    def release(self) -> None:
        """Renew the lease no more; give it back if no commit did."""
        if self.is_holding:
            self.is_holding = False
            self.lease.release()
        else:
            self.lease.stop()

    # -- writing -----------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft], *, key: str | None = None) -> Committed:
        """Append notes and settings within the turn."""
        return self._append(drafts, key=key)

    def _append(
        self,
        drafts: Sequence[Draft],
        *,
        calls: tuple[Call, ...] = (),
        starts: Sequence[int] = (),
        drops_call: str | None = None,
        about: TurnStarted | TurnEnded | None = None,
        row: Mapping[str, Any] = {},
        key: str | None = None,
    ) -> Committed:
        if self.row is not None and not self.is_holding:
            require_free(
                self.row, self.log.runtime
            )  # says more than that tool calls of the other run are open
        replaces_call = bool(calls) and self.call_id is not None
        before, after = self.log.cursor, self.cursor_after(drafts)
        announced = None
        if self.model is not None and self.call_id is None and not calls and self._is_asking(after):
            announced = self._announced(self.model, self.log.leaf.seq + len(drafts))
            calls = (announced,)
        request = Request(
            drafts=tuple(drafts),
            calls=calls,
            replaces_call=replaces_call,
            drops_call=drops_call,
            starts=tuple(starts),
            about=about,
            row=row,
            key=key,
        )
        try:
            done = self._commit(request, leaves=bool(before.turn) and _has_ended(after))
        except BaseException:
            if announced is not None:
                self.call_id = None
            raise
        return done

    @staticmethod
    def _is_asking(cursor: Cursor) -> bool:
        """Whether a model is asked next."""
        return bool(cursor.turn) and not cursor.open_calls and not cursor.ends_turn

    def _commit(self, request: Request, *, leaves: bool = False) -> Committed:
        """Write a request under the fence of this run. The first one takes the lease; with `leaves` it is given back."""
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
                raise
            self.has_committed |= not done.is_repeat
            if is_first and not done.is_repeat:
                self.is_holding = True
                self.lease.keep()
            if leaves or not self.is_holding:
                self.is_holding = False
                self.lease.stop()
            return done


def _has_ended(cursor: Cursor) -> bool:
    return not cursor.turn or cursor.is_ended_by_tool
