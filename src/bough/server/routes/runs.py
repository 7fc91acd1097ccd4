"""Running over HTTP: send, resume, cancel, approve. Answers come by the events."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from ...errors import InvalidMessage, SessionRunning
from ...session import Session
from ..active_runs import ActiveRuns
from ..context import ApiRequest, context_and_caller
from ..pending_calls import session_to_resume
from ..problems import Refusal
from ..schemas import ApprovalResult, CancelResult, SendResult


class SendBody(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(max_length=500_000)]
    queue: bool = False
    """If the session is busy, keep the input until its turn is over."""
    model: str | None = None


@post("/api/sessions/{session_id:str}/send", status_code=202, opt={"client": True}, tags=["running"])
async def send(request: ApiRequest, session_id: FromPath[str], data: JSONBody[SendBody]) -> SendResult:
    """Send an input. It is durable when this answers; watch the events for what becomes of it."""
    context, caller = context_and_caller(request)
    session = await asyncio.to_thread(context.session, caller, session_id)
    if not data.text.strip():
        raise InvalidMessage("the input is empty; say something")
    runs: ActiveRuns = request.app.state.runs
    try:
        await asyncio.to_thread(session.log.raise_if_leased)
        before = await asyncio.to_thread(lambda: session.row.facts)
        event = await runs.send(session, data.text, None if caller.is_client else data.model)
    except SessionRunning:
        if not data.queue:
            raise
        number = await asyncio.to_thread(session.enqueue, data.text)
        facts = await asyncio.to_thread(lambda: session.row.facts)
        return SendResult(last_fact=facts, queued=number)
    if event is not None and event.type == "session:turn_completed" and "error" in event.data:
        error = event.data["error"]
        raise Refusal(409, error["code"], error["command_message"])
    return SendResult(last_fact=before)


class ResumeBody(Struct, forbid_unknown_fields=True):
    model: str | None = None
    rollback: bool = False
    """Leave the unfinished turn behind instead."""


@post("/api/sessions/{session_id:str}/resume", status_code=202, tags=["running"])
async def resume(request: ApiRequest, session_id: FromPath[str], data: JSONBody[ResumeBody]) -> SendResult:
    """Go on with a turn that was cut off, or with input that waits."""
    context, caller = context_and_caller(request)
    session = await asyncio.to_thread(context.session, caller, session_id)
    row = await asyncio.to_thread(lambda: session.row)
    if not await asyncio.to_thread(_has_work, session):
        raise Refusal(409, "nothing_open", f"nothing is open in {session_id}", "send an input")
    if data.rollback:
        await asyncio.to_thread(session.rollback)
    else:
        await request.app.state.runs.resume(session, data.model)
    return SendResult(last_fact=row.facts)


def _has_work(session: Session) -> bool:
    return bool(session.log.cursor.turn or session.log.store.inbox(session.session_id))


@post("/api/sessions/{session_id:str}/cancel", status_code=200, tags=["running"])
async def cancel(request: ApiRequest, session_id: FromPath[str]) -> CancelResult:
    """Abort the run of this session in this server; the session stays valid."""
    context, caller = context_and_caller(request)
    await asyncio.to_thread(context.session, caller, session_id)
    return CancelResult(cancelled=request.app.state.runs.cancel(session_id))


class ApproveBody(Struct, forbid_unknown_fields=True):
    """Names one call by the seq of the answer that made it and its index there."""

    seq: int
    index: int
    session_id: str | None = None
    """The task that asks, as `pending_approvals` names it; this session if it is left out."""
    allow: bool = True
    resume: bool = True


@post("/api/sessions/{session_id:str}/approve", status_code=200, tags=["running"])
async def approve(
    request: ApiRequest, session_id: FromPath[str], data: JSONBody[ApproveBody]
) -> ApprovalResult:
    """Allow or deny a tool call that waits for a person, here or in a task; when none waits any more the turn goes on.

    A task goes on with the session that had started it: what it answers is heard there.
    """
    context, caller = context_and_caller(request)
    session = await asyncio.to_thread(context.session, caller, session_id)
    top, left = await asyncio.to_thread(_approve, session, data)
    runs: ActiveRuns = request.app.state.runs
    return ApprovalResult(
        pending=left, resumed=data.resume and not left and await runs.resume_after_approval(top)
    )


def _approve(session: Session, data: ApproveBody) -> tuple[Session, int]:
    """Settle one call; which session goes on with it, and how many calls still wait there."""
    named = (data.session_id or session.session_id, data.seq, data.index)
    chosen = [
        call for call in session.pending_approvals() if (call.session_id, call.seq, call.index) == named
    ]
    if not chosen:
        said = f"call {data.index} of answer {data.seq} of {named[0]} does not wait for a person"
        raise Refusal(
            409, "not_waiting", said, "read the session anew: `pending_approvals` lists what can be approved"
        )
    session.approve(chosen[0], allow=data.allow)
    top = session_to_resume(session)
    return top, len(top.pending_approvals())


HANDLERS = [send, resume, cancel, approve]
