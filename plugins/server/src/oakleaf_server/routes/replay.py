"""Routes for replays. A replay is a background job without effects: no tool runs live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

from litestar import delete, get, post
from litestar.params import FromPath, JSONBody
from litestar.response import Stream
from msgspec import Struct

from oakleaf.models.base import Model
from oakleaf.session import Session
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, find_session
from oakleaf_server.jobs import Jobs, Progress
from oakleaf_server.json_views import to_json
from oakleaf_server.openapi import JobView
from oakleaf_server.routes.events import HEARTBEAT, STREAM_HEADERS, sse_event
from oakleaf_server.schemas import JobResult, Json
from oakleaf_server.truncate import truncate_value


class ReplayBody(Struct, forbid_unknown_fields=True):
    """All fields are optional; by default the recorded answers are used again."""

    start: int | None = None
    model: str | list[str] | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    options: dict[str, Any] | None = None
    mode: Literal["strict", "recorded", "dry"] = "dry"
    on_miss: Literal["stop", "next", "continue"] = "stop"


@post("/api/sessions/{session_id:str}/replays", status_code=202, tags=["replay"])
async def replay(request: ApiRequest, session_id: FromPath[str], data: JSONBody[ReplayBody]) -> JobResult:
    """Start a replay of a session without effects, optionally with another model or prompt."""
    context, _ = context_and_caller(request)
    session = await asyncio.to_thread(find_session, request, session_id)
    tools = context.agent.tools_of(session)
    models = await asyncio.to_thread(_models, context, session, data)

    async def work(progress: Progress) -> Json:
        report = await session.replay(
            model=models,
            prompt=data.prompt,
            prompt_patch=data.prompt_patch,
            options=data.options,
            tools=tools or "recorded",
            start=data.start,
            mode=data.mode,
            on_miss=data.on_miss,
            limits=context.agent.limits,
            progress=progress,
        )
        first = None if report.first_divergence is None else to_json(report.first_divergence)
        view, _ = truncate_value(
            {"same": report.is_same, "first_divergence": first, **to_json(report)}, 300_000, 8_000
        )
        return dict(view)

    jobs: Jobs = request.app.state.jobs
    return JobResult(job=to_json(jobs.start("replay", session_id, work)))


def _models(context: ServerContext, session: Session, data: ReplayBody) -> list[Model] | None:
    """Return the request's models; for another prompt or option alone, the presently answering model if the
    recorded model is not offered.
    """
    agent, names = context.agent, [data.model] if isinstance(data.model, str) else data.model
    if names is not None:
        return [agent.requested_model(name) for name in names]
    is_changed = any(value is not None for value in (data.prompt, data.prompt_patch, data.options))
    return agent.answering_models(None, session.row.model) if is_changed else None


@get("/api/jobs/{job_id:str}", sync_to_thread=False, tags=["replay"])
def job(request: ApiRequest, job_id: FromPath[str]) -> JobResult:
    """Read a job's progress and report."""
    return JobResult(job=to_json(request.app.state.jobs.find(job_id)))


@delete("/api/jobs/{job_id:str}", sync_to_thread=False, status_code=200, tags=["replay"])
def cancel_job(request: ApiRequest, job_id: FromPath[str]) -> JobResult:
    """Cancel a job."""
    return JobResult(job=to_json(request.app.state.jobs.cancel(job_id)))


@get("/api/jobs/{job_id:str}/events", tags=["replay"], media_type="text/event-stream")
async def job_events(request: ApiRequest, job_id: FromPath[str]) -> Stream:
    """Stream a job's progress and its end."""
    context, _ = context_and_caller(request)
    job = request.app.state.jobs.find(job_id)
    events = _progress(context, request.app.state.jobs, job)
    return Stream(events, media_type="text/event-stream", headers=STREAM_HEADERS)


async def _progress(context: ServerContext, jobs: Jobs, job: JobView) -> AsyncIterator[bytes]:
    reported = (-1, -1)
    while job.status == "running" and not context.live.is_closing.is_set():
        if (job.done, job.total) != reported:
            reported = (job.done, job.total)
            yield sse_event("progress", {"done": job.done, "total": job.total})
        else:
            yield b": still here\n\n"
        await jobs.wait_for_change(min(HEARTBEAT, 2.0))
    if job.status != "running":
        yield sse_event("end", job)


HANDLERS = [replay, job, cancel_job, job_events]
