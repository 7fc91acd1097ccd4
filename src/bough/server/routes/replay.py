"""Replay and diff over HTTP. A replay is a job; it never has effects, for no tool runs live from here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from litestar import delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import Stream
from msgspec import Struct

from ...core.tree import Leaf
from ...errors import InvalidArgument
from ...replay.diff import Diff, DiffRow
from ...replay.diff import diff as compare
from ...session import Session
from ..auth import Who
from ..context import Asked, Desk, asked_by, threaded
from ..jobs import Job, Jobs, Progress
from ..json_views import plain
from ..schemas import DiffRead, Json, OneJob
from ..truncate import Page, cut_any
from .events import HEARTBEAT, STREAM_HEADERS, encoded


class Replaying(Struct, forbid_unknown_fields=True):
    """All of it may be left out: then the recorded answers are given again."""

    start: int | None = None
    model: str | list[str] | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    mode: Literal["strict", "recorded", "dry"] = "dry"
    on_miss: Literal["stop", "next", "tell"] = "stop"


@post("/api/sessions/{session_id:str}/replays", status_code=202, tags=["replay"])
async def replay(request: Asked, session_id: FromPath[str], data: JSONBody[Replaying]) -> OneJob:
    """Execute a session again without effects, with another model or prompt, as a job."""
    desk, who = asked_by(request)
    session = await asyncio.to_thread(desk.session, who, session_id)
    tools = desk.agent.tools_of(session)

    async def work(progress: Progress) -> Json:
        report = await session.replay(
            model=_known(desk, data.model),
            prompt=data.prompt,
            prompt_patch=data.prompt_patch,
            tools=tools or "recorded",
            start=data.start,
            mode=data.mode,
            on_miss=data.on_miss,
            limits=desk.agent.limits,
            progress=progress,
        )
        first = None if report.first_divergence is None else plain(report.first_divergence)
        told, _ = cut_any(
            {"same": report.is_same, "first_divergence": first, **plain(report)}, 300_000, 8_000
        )
        return dict(told)

    jobs: Jobs = request.app.state.jobs
    return OneJob(job=jobs.start("replay", session_id, work).view())


def _known(desk: Desk, asked: str | list[str] | None) -> Any:
    """Models by name; those of the server are known by theirs."""
    if asked is None:
        return None
    return [desk.agent.named(name) for name in ([asked] if isinstance(asked, str) else asked)]


@get("/api/jobs/{job_id:str}", sync_to_thread=False, tags=["replay"])
def job(request: Asked, job_id: FromPath[str]) -> OneJob:
    """How far a job is, and its report."""
    return OneJob(job=request.app.state.jobs.find(job_id).view())


@delete("/api/jobs/{job_id:str}", sync_to_thread=False, status_code=200, tags=["replay"])
def cancel_job(request: Asked, job_id: FromPath[str]) -> OneJob:
    """Cancel a job."""
    return OneJob(job=request.app.state.jobs.cancel(job_id).view())


@get("/api/jobs/{job_id:str}/events", tags=["replay"], media_type="text/event-stream")
async def job_events(request: Asked, job_id: FromPath[str]) -> Stream:
    """A job's progress as it is made, and its end."""
    desk, _ = asked_by(request)
    found = request.app.state.jobs.find(job_id)
    told = _progress(desk, request.app.state.jobs, found)
    return Stream(told, media_type="text/event-stream", headers=STREAM_HEADERS)


async def _progress(desk: Desk, jobs: Jobs, job: Job) -> AsyncIterator[bytes]:
    told = (-1, -1)
    while job.status == "running" and not desk.live.is_closing.is_set():
        if (job.done, job.of) != told:
            told = (job.done, job.of)
            yield encoded("progress", {"done": job.done, "of": job.of})
        else:
            yield b": still here\n\n"
        await jobs.changed(min(HEARTBEAT, 2.0))
    if job.status != "running":
        yield encoded("end", job.view())


@get("/api/diff", tags=["replay"])
@threaded
def diff(
    request: Asked,
    a: Annotated[str, QueryParameter(description="A session, or a place of one: ses_3f@1:7")],
    b: FromQuery[str],
    first: Annotated[int, QueryParameter(ge=0, description="The first row told")] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> DiffRead:
    """Two sessions, or places, compared turn by turn."""
    desk, who = asked_by(request)
    found = compare(_side(desk, who, a), _side(desk, who, b))
    return _told(found, first, limit)


def _side(desk: Desk, who: Who, reference: str) -> tuple[Session, Leaf]:
    name, _, place = reference.partition("@")
    session = desk.session(who, name)
    return session, desk.place(session, place or None)


def _told(found: Diff, first: int, limit: int) -> DiffRead:
    if first > len(found.rows):
        raise InvalidArgument("first", first, f"a number up to {len(found.rows)}")
    page, left = Page(600_000), 0
    for row in found.rows[first : first + limit]:
        told, cut = cut_any(plain(row), 60_000, 8_000)
        if not page.takes(told):
            break
        left += cut
    counts: dict[str, int] = {}
    for row in found.rows:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    around, _ = cut_any(
        [plain(found.setup), plain(found.a), plain(found.b), plain(found.first_divergence)], 120_000, 8_000
    )
    setup, a, b, divergence = around
    return DiffRead(
        same=found.is_same,
        shared=found.shared,
        shared_turns=found.shared_turns,
        is_state_same=found.is_state_same,
        of=len(found.rows),
        first=first,
        cut=left,
        counts=counts,
        a=a,
        b=b,
        setup=setup,
        first_divergence=divergence,
        first_row=_first_row(found.rows),
        rows=page.things,
    )


def _first_row(rows: tuple[DiffRow, ...]) -> int | None:
    return next((n for n, row in enumerate(rows) if row.kind != "same"), None)


HANDLERS = [replay, job, cancel_job, job_events, diff]
