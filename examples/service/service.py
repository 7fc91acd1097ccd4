"""A support service: tenants, streamed answers, refunds that a person approves, as many processes as you like.

OAKLEAF_STORE=postgresql://… uvicorn --app-dir examples/service --workers 3 service:app
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import offline
from bank import refund
from fastapi import Body, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

import oakleaf
from oakleaf import Event, Run, Session, Store, errors, system

TENANTS = {"token-of-acme": "acme", "token-of-globex": "globex"}  # your own login comes here
AGENT: dict[str, Any] = {"model": os.environ.get("MODEL") or offline.model, "tools": [refund]}
SEEDS = [system("You help the customers of a shop.")]
LOG = logging.getLogger("uvicorn.error")
RUNS: dict[asyncio.Task[None], Run] = {}  # the turns of this process


def start(run: Run) -> tuple[asyncio.Task[None], asyncio.Queue[Event | None]]:
    """Run a turn in a task of its own: the turn goes on when nobody reads its events any more."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for event in run:
                events.put_nowait(event)
        finally:
            RUNS.pop(task, None)
            events.put_nowait(None)

    task = asyncio.create_task(read())
    task.add_done_callback(log_failure)
    RUNS[task] = run
    return task, events


async def stream(run: Run) -> StreamingResponse:
    """Answer with the events of a turn, or with the error of a turn that did not begin."""
    task, events = start(run)
    first = await events.get()
    if first is None:
        await task

    async def lines() -> AsyncIterator[str]:
        event = first
        while event is not None:
            number = "" if event.journal_number is None else f"id: {event.journal_number}\n"
            yield f"{number}event: {event.type}\ndata: {json.dumps(event.data)}\n\n"
            event = await events.get()
        if (error := task.exception()) is not None:
            yield f"event: error\ndata: {json.dumps(str(error))}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, errors.SessionRunning):  # another process has the turn
        LOG.error("a turn failed", exc_info=error)


async def continue_turns(store: Store) -> None:
    """Continue the turns whose process died or was stopped. Of several processes one gets each turn."""
    while True:
        try:
            for tenant in TENANTS.values():
                space = store.in_space(tenant)
                for row in await space.aio.sessions(status="interrupted"):
                    session = await space.aio.session(row.session_id)
                    start(session.resume(**AGENT))
        except errors.StoreError:
            LOG.exception("the database cannot be read; the next look is in a second")
        await asyncio.sleep(1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with oakleaf.open(os.environ["OAKLEAF_STORE"]) as app.state.store:
        continuing = asyncio.create_task(continue_turns(app.state.store))
        yield
        continuing.cancel()
        for run in RUNS.values():  # each ends its step; another process continues the turn
            run.stop()
        await asyncio.gather(continuing, *RUNS, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


@app.exception_handler(errors.OakleafError)
async def refuse(_: Request, error: errors.OakleafError) -> JSONResponse:
    return JSONResponse({"code": error.code, "problem": error.problem}, error.http_status)


async def open_space(request: Request, authorization: Annotated[str, Header()] = "") -> Store:
    tenant = TENANTS.get(authorization.removeprefix("Bearer "))
    if tenant is None:
        raise HTTPException(401, "a token is needed")
    store: Store = request.app.state.store
    return store.in_space(tenant)


Space = Annotated[Store, Depends(open_space)]


async def find_chat(chat: str, space: Space) -> Session:
    session = await space.aio.latest(chat)
    if session is None:
        raise HTTPException(404, "no such chat")
    return session


Chat = Annotated[Session, Depends(find_chat)]
Text = Annotated[str, Body(embed=True)]


@app.post("/chats/{chat}/messages")
async def send(
    chat: str, text: Text, space: Space, idempotency_key: Annotated[str | None, Header()] = None
) -> Any:
    session = await space.aio.latest_or_start(chat, "support", SEEDS)
    return await stream(session.send(text, key=idempotency_key, **AGENT))


@app.get("/chats/{chat}")
async def read(session: Chat) -> dict[str, Any]:
    row, entries = await session.aio.row(), await session.aio.transcript()
    return {"status": row.status, "messages": [{"role": each.role, "text": each.text} for each in entries]}


@app.get("/chats/{chat}/approvals")
async def waiting(session: Chat) -> list[dict[str, Any]]:
    calls = await session.aio.pending_approvals()
    return [
        {"call": each.call.id, "tool": each.call.name, "arguments": each.call.arguments} for each in calls
    ]


@app.post("/chats/{chat}/approvals/{call}")
async def decide(call: str, allow: Annotated[bool, Body(embed=True)], session: Chat) -> Any:
    """Record a decision and continue the turn. A repeated request continues only."""
    for each in await session.aio.pending_approvals():
        if each.call.id == call:
            await session.aio.approve(each, allow=allow)
    return await stream(session.resume(**AGENT))


@app.post("/chats/{chat}/cancel")
async def cancel(session: Chat) -> str | None:
    return await session.aio.cancel()
