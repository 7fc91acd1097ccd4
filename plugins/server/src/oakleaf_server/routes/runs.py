"""Routes for runs: send, resume. Answers arrive through events."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from litestar import post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from oakleaf.core.entries import Effects
from oakleaf.core.ids import is_traceparent
from oakleaf.errors import ApprovalPending, InputsQueued, InvalidMessage, SessionRunning
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf_server.active_runs import ActiveRuns
from oakleaf_server.context import ApiRequest, context_and_caller, find_session
from oakleaf_server.pending_calls import left_behind_views
from oakleaf_server.problems import Refusal
from oakleaf_server.schemas import SendResponse

MAX_QUEUED = 1_000
"""Inputs that may wait in one session before a client's next one is refused."""


class SendBody(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(max_length=500_000)]
    queue: bool = False
    """If the session is busy, or waits for approval, queue the input until the turn ends; not with options."""
    model: str | None = None
    options: dict[str, Any] | None = None
    """Options of the model's calls from here on; null removes one."""
    effects: Effects | None = None
    """From here on: what becomes of an unsafe call that a path which was left has made: ask, repeat or reuse."""
    trigger: str | dict[str, str] | None = None
    """What caused the turn: a name, or an object with type and id. Recorded with the turn; not with `queue`."""
    policy: dict[str, Any] | None = None
    """The policy of the turn, recorded with it."""
    accept_imported: bool = False
    """Let inputs run that were queued elsewhere, before the session was imported; the problem `import_not_accepted` has them."""


@post("/api/sessions/{session_id:str}/send", status_code=202, opt={"client": True}, tags=["running"])
async def send(request: ApiRequest, session_id: FromPath[str], data: JSONBody[SendBody]) -> SendResponse:
    """Send an input. It is durable when this returns; watch the events for the answer.

    With the header `traceparent` the turn is a part of that trace. With the header `Idempotency-Key` it may be sent again: nothing is written, and `last_fact` is that of the first
    time. A turn that broke off continues. Such an input is never queued.
    """
    session = await asyncio.to_thread(find_session, request, session_id)
    if not data.text.strip():
        raise InvalidMessage("the input is empty")
    runs: ActiveRuns = request.app.state.runs
    runs.raise_if_stopping()  # an input that is queued now would wait for a run of another process
    context, caller = context_and_caller(request)
    model, options = (None, None) if caller.is_client else (data.model, data.options)
    effects = None if caller.is_client else data.effects
    about = {} if caller.is_client else {"trigger": data.trigger, "policy": data.policy}
    context.agent.check_model(model)
    if data.accept_imported and not caller.is_client:
        await asyncio.to_thread(session.accept_imported)
    key = request.headers.get("idempotency-key")
    recorded = await asyncio.to_thread(read(session).find_turn, key, data.text)
    if recorded is not None:
        if recorded.is_open:
            with suppress(SessionRunning):
                await runs.resume(session, model, options, effects)
        return SendResponse(last_fact=recorded.fact_number - 1)
    queued = await asyncio.to_thread(read(session).inbox, 1) if key is not None else []
    if queued:
        raise InputsQueued(session_id)  # its turn would start after this has returned
    try:
        await asyncio.to_thread(read(session).check_free)
        before = await asyncio.to_thread(lambda: session.row.facts)
        trace = request.headers.get("traceparent", "")
        how = {**about, "effects": effects, "trace": trace if is_traceparent(trace) else None}
        event = await runs.send(session, data.text, model, options, key, how)
    except (SessionRunning, ApprovalPending):
        if not data.queue or key is not None or options or effects or any(about.values()):
            raise
        if caller.is_client:
            await asyncio.to_thread(_check_queue, session)
        number = await asyncio.to_thread(session.enqueue, data.text)
        facts = await asyncio.to_thread(lambda: session.row.facts)
        return SendResponse(last_fact=facts, queued=number)
    if event is not None and event.type == "session:turn_completed" and "error" in event.data:
        error = event.data["error"]
        detail = "the session takes no more input" if caller.is_client else error["command_message"]
        raise Refusal(409, error["code"], detail)
    return SendResponse(last_fact=before)


def _check_queue(session: Session) -> None:
    """Refuse a client's input behind many others, as PostgreSQL does: a single client could fill the disk."""
    if len(read(session).inbox(MAX_QUEUED)) >= MAX_QUEUED:
        detail = f"{MAX_QUEUED:,} inputs are queued for this session"
        raise Refusal(409, "inputs_queued", detail, "send again once some have run")


class ResumeBody(Struct, forbid_unknown_fields=True):
    model: str | None = None
    options: dict[str, Any] | None = None
    """Options of the model's calls from here on; null removes one."""
    effects: Effects | None = None
    """From here on: what becomes of an unsafe call that a path which was left has made: ask, repeat or reuse."""
    rollback: bool = False
    """Discard the unfinished turn instead."""
    take_over: bool = False
    """End the run of another process that holds the session first."""
    keep_partial: bool = False
    """End the turn with what was shown of its answer before it broke off."""
    accept_imported: bool = False
    """Let calls and queued inputs run that an import left open; the problem `import_not_accepted` has them."""


@post("/api/sessions/{session_id:str}/resume", status_code=202, tags=["running"])
async def resume(request: ApiRequest, session_id: FromPath[str], data: JSONBody[ResumeBody]) -> SendResponse:
    """Resume an interrupted turn, or run queued input."""
    context, _ = context_and_caller(request)
    context.agent.check_model(data.model)
    session = await asyncio.to_thread(find_session, request, session_id)
    row = await asyncio.to_thread(lambda: session.row)
    if not await asyncio.to_thread(_has_work, session):
        raise Refusal(
            409, "nothing_open", f"session {session_id} has no open turn or queued input", "send an input"
        )
    if not (data.rollback or data.keep_partial):
        request.app.state.runs.raise_if_stopping()  # before the run of another process is ended for nothing
    if data.take_over and row.holder is not None:
        await asyncio.to_thread(session.interrupt)
    if data.rollback:
        await asyncio.to_thread(_abandon_turn, session)
        left = await asyncio.to_thread(left_behind_views, session)
        return SendResponse(last_fact=row.facts, left_behind=left)
    if data.keep_partial:
        if await asyncio.to_thread(session.keep_partial) is None:
            detail = f"no answer of session {session_id} broke off"
            raise Refusal(409, "nothing_partial", detail, "resume without keep_partial asks the model")
    else:
        if data.accept_imported:
            await asyncio.to_thread(session.accept_imported)
        await request.app.state.runs.resume(session, data.model, data.options, data.effects)
    return SendResponse(last_fact=row.facts)


def _abandon_turn(session: Session) -> None:
    if read(session).cursor.turn:
        session.undo()


def _has_work(session: Session) -> bool:
    return bool(read(session).cursor.turn or read(session).inbox(1))


HANDLERS = [send, resume]
