"""What becomes of a session's open turn: approve or deny the calls that wait, or cancel it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from oakleaf import PendingApproval
from oakleaf.core.messages import ToolCall
from oakleaf.errors import ExitCode, NotWaiting, SessionIsReplay, TaskTrashed, plural
from oakleaf.ext import read, store_of
from oakleaf.session import Session
from oakleaf.stores.base import Status
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.call_text import approval_details, call_text
from oakleaf.verbs.fields import Help, Names, Ref
from oakleaf.verbs.resume_command import resume_command
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.views import EarlierView, earlier_view


class WaitingCall(Struct, frozen=True, kw_only=True):
    """A tool call that waits for a person."""

    name: str
    """What `call` takes: `ses_3f@7.0` is the first call of entry 7."""
    session: str
    """The session that waits, perhaps a task of the session that was asked about."""
    seq: int
    index: int
    call: ToolCall
    text: str
    """The call as a person decides on it: each argument in lines of its own."""
    decided_elsewhere: Literal["approved", "denied"] | None
    """The decision that came with an import. It does not count here."""
    earlier: EarlierView | None
    """The same call on a path that was left, if that is why a person is asked."""


class Approval(Struct, frozen=True, kw_only=True):
    session: str
    done: bool
    """False for a plan."""
    calls: list[WaitingCall]
    """The calls that were decided; in a plan the calls that wait."""
    trashed_tasks: list[str]
    """Tasks in the trash that the session waits for."""
    pending: int
    """How many calls still wait in the session that continues, and in its tasks."""
    resumed: bool
    """Whether the turn continues here. False also if its runner continues by itself."""
    next: str | None
    """The command that continues the turn; None if calls still wait, or if a run or a worker continues it."""


class Approve(Verb, frozen=True):
    """Approve or deny tool calls that wait for approval.

    Lists the waiting calls and asks before it allows them; without a terminal pass --yes. An approval is saved, applies
    to one call only, and the call runs once. A call that waits because a path which was left has made it already is
    listed with the result it had there. oakleaf resume continues the turn; a server does that by itself.

    The journal keeps who decided and why. The name is $OAKLEAF_BY, the setting `by`, or the name of the user of this
    machine. Over HTTP it is the name of the token's holder.
    """

    section = "Start here"
    effect = "write"
    examples = ("oakleaf approve latest", "oakleaf approve latest --deny --call 2")

    session: Ref
    deny: Annotated[bool, Help("Deny the calls; the model is told.")] = False
    call: Annotated[
        Names | None,
        Help(
            "Only these waiting calls: their numbers in the list, or names such as ses_3f@7.0.", metavar="N,…"
        ),
    ] = None
    by: Annotated[str | None, Help("The person who decides.", remote=True)] = None
    reason: Annotated[str | None, Help("Why, for those who read the journal later.")] = None
    resume: Annotated[bool, Help("Whether a server continues the turn once no call waits.", remote=True)] = (
        True
    )

    @property
    def needs_yes(self) -> bool:
        return not self.deny

    def plan(self, caller: Caller) -> Approval:
        session = _runnable(caller, self.session)
        calls = self._selected(session)
        return _approval(session, calls, done=False, pending=len(calls))

    def question(self, planned: Approval) -> str | None:
        count = len(planned.calls)
        return None if not count else "Allow this call?" if count == 1 else f"Allow these {count} calls?"

    def confirmed(self, planned: Approval) -> Approve:
        return replace(self, call=[one.name for one in planned.calls])

    def run(self, caller: Caller) -> Approval:
        session = _runnable(caller, self.session)
        calls = self._selected(session)
        by = caller.person(self.by)
        for call in calls:
            session.approve(call, allow=not self.deny, by=by, reason=self.reason, surface=caller.surface)
        top = _session_to_resume(session)
        pending = len(top.pending_approvals())
        decided = _approval(session, calls, done=True, pending=pending)
        if not calls or pending:
            return decided
        if self.resume and caller.resume(top):
            return replace(decided, resumed=True)
        is_awaited = read(top).is_awaited_by_worker()  # the decision wakes it
        return decided if is_awaited else replace(decided, next=resume_command(top))

    def _selected(self, session: Session) -> list[PendingApproval]:
        waiting = session.pending_approvals()
        if self.call is None:
            return waiting
        by_name = {str(number): call for number, call in enumerate(waiting, 1)}
        by_name |= {_name(call): call for call in waiting}
        for name in self.call:
            if name not in by_name:
                raise NotWaiting(session.session_id, name)
        wanted = {_name(by_name[name]) for name in self.call}
        return [call for call in waiting if _name(call) in wanted]

    def lines(self, result: Approval, screen: Screen) -> Iterator[str]:
        if result.done:
            word = "denied" if self.deny else "allowed"
            yield from (f"{word} {call_text(one.call)}" for one in result.calls)
            return
        for number, one in enumerate(result.calls, 1):
            task = "" if one.session == result.session else f"  (called by its task {one.session})"
            yield f"{number}. {one.text}{task}{_elsewhere(one)}"

    def notes(self, result: Approval, screen: Screen) -> Iterator[str]:
        for task in result.trashed_tasks:
            yield TaskTrashed(result.session, task).command_text
        if not result.calls:
            yield f"no call of {result.session} waits for approval"
        elif result.done and result.pending:
            yield f"{plural(result.pending, 'call')} still waiting for approval"
        elif result.done and not result.resumed:
            yield f"continue with: {result.next}" if result.next else "its worker continues"

    def exit_code(self, result: Approval) -> int:
        return int(bool(result.trashed_tasks and not result.calls))


def _runnable(caller: Caller, reference: str) -> Session:
    """Return a session that can run; a replay cannot."""
    session = caller.stored_session(reference)
    if session.row.relation == "replay":
        raise SessionIsReplay(session.session_id)
    return session


def _name(call: PendingApproval) -> str:
    return f"{call.session_id}@{call.seq}.{call.index}"


def _approval(session: Session, calls: list[PendingApproval], *, done: bool, pending: int) -> Approval:
    trashed = read(session).call_status().trashed_tasks
    return Approval(
        session=session.session_id,
        done=done,
        calls=[_waiting_call(call) for call in calls],
        trashed_tasks=list(dict.fromkeys(trashed.values())),
        pending=pending,
        resumed=False,
        next=None,
    )


def _waiting_call(call: PendingApproval) -> WaitingCall:
    return WaitingCall(
        name=_name(call),
        session=call.session_id,
        seq=call.seq,
        index=call.index,
        call=call.call,
        text=approval_details(call),
        decided_elsewhere=call.decided_elsewhere,
        earlier=None if call.earlier is None else earlier_view(call.earlier),
    )


def _elsewhere(call: WaitingCall) -> str:
    """Return how a decision of another store is shown."""
    decision = call.decided_elsewhere
    return "" if decision is None else f"  ({decision} elsewhere, which does not count here)"


def _session_to_resume(session: Session) -> Session:
    """Return the session to resume after an approval: a task is resumed by its topmost waiting ancestor."""
    top = session
    for parent in read(session).ancestors():
        if top.session_id not in parent.call_status().tasks:
            break  # the parent abandoned this task and would not read its answer
        top = store_of(session).session(parent.session_id)
    return top


# -- cancel ------------------------------------------------------------------------------------------------


class Cancelled(Struct, frozen=True, kw_only=True):
    session: str
    turn: int | None
    """The input of the open turn; None if no turn is open."""
    requested: bool
    cancelled: bool
    """Whether the turn has ended."""
    status: Status


class Cancel(Verb, frozen=True):
    """Cancel the turn of a session, wherever it runs: in this or another process, a server or a worker.

    Aborts its model call, its tools and their tasks. Text that was shown and results stay, and the session accepts the
    next input. If its process died, the turn is closed here. Exit codes: 0 cancelled, 1 no turn is open, 3 the process
    has not confirmed in time; the request stays and takes effect when the turn is resumed.
    """

    section = "Start here"
    effect = "write"
    examples = ("oakleaf cancel latest", "oakleaf cancel latest --wait 0")

    session: Ref
    wait: Annotated[
        int, Help("How long to wait until the turn has ended.", metavar="SECONDS"), Meta(ge=0, le=600)
    ] = 10

    def run(self, caller: Caller) -> Cancelled:
        session = _runnable(caller, self.session)
        session.refresh()
        turn, holder = read(session).cursor.turn, session.row.holder
        is_requested, deadline = session.cancel() is not None, time.monotonic() + self.wait
        while (is_open := _is_open(session, turn)) and is_requested and time.monotonic() < deadline:
            if holder is not None and not read(session).is_held():
                holder = None
                session.cancel()  # the user's own loop left the turn open, or its process died: close it here
            else:
                time.sleep(0.1)
        return Cancelled(
            session=session.session_id,
            turn=turn or None,
            requested=is_requested,
            cancelled=is_requested and not is_open,
            status=session.row.status,
        )

    def notes(self, result: Cancelled, screen: Screen) -> Iterator[str]:
        name = result.session
        if result.cancelled:
            yield f"the turn of {name} is cancelled"
        elif result.requested:
            yield (
                f"the process that runs {name} has not confirmed; it cancels the turn when it sees the request, or "
                f"oakleaf resume {name} --take-over ends it"
            )
        else:
            yield f"{name} has no open turn; nothing to cancel"

    def exit_code(self, result: Cancelled) -> int:
        if result.cancelled:
            return ExitCode.OK
        return ExitCode.LOCKED if result.requested else ExitCode.PROBLEM


def _is_open(session: Session, turn: int) -> bool:
    session.refresh()
    return bool(turn) and read(session).cursor.turn == turn
