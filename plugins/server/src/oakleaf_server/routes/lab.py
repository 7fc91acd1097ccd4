"""Routes for lab runs. A run is read; `oakleaf lab run` makes one."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

import oakleaf_lab
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.record import RUN_PREFIX, run_summary
from oakleaf_lab.report_page import report_summary, session_summaries
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, in_thread
from oakleaf_server.json_views import to_json
from oakleaf_server.schemas import LabRun, LabRuns, LabSession
from oakleaf_server.truncate import SizedPage, truncate_value

MOST_RUNS = 500


@get("/api/lab", tags=["lab"])
@in_thread
def lab_runs(request: ApiRequest) -> LabRuns:
    """List the lab runs, newest first."""
    context, _ = context_and_caller(request)
    return LabRuns(runs=[run_summary(row) for row in oakleaf_lab.runs(context.store)[:MOST_RUNS]])


@get("/api/lab/{run_id:str}", tags=["lab"])
@in_thread
def lab_run(
    request: ApiRequest,
    run_id: FromPath[str],
    first: Annotated[int, QueryParameter(ge=0, description="Index of the first session")] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=1_000)] = 200,
) -> LabRun:
    """Read the report of a lab run: lanes, effects, and its sessions, those that changed most first."""
    context, _ = context_and_caller(request)
    report = _report(context, run_id)
    rows = session_summaries(report)
    if first > len(rows):
        raise InvalidArgument("first", first, f"a number up to {len(rows)}")
    page = SizedPage(600_000)
    for row in rows[first : first + limit]:
        view, _ = truncate_value(to_json(row), 20_000, 500)
        if not page.add(view):
            break
    run, _ = truncate_value(report_summary(report), 250_000, 8_000)
    return LabRun(run=run, total=len(rows), first=first, sessions=page.items)


@get("/api/lab/{run_id:str}/sessions/{session_id:str}", tags=["lab"])
@in_thread
def lab_session(request: ApiRequest, run_id: FromPath[str], session_id: FromPath[str]) -> LabSession:
    """Read the turns of one session of a lab run, in both lanes."""
    context, _ = context_and_caller(request)
    session = next(
        (each for each in _report(context, run_id).sessions if each.session_id == session_id), None
    )
    if session is None:
        raise NotFound(session_id)
    page, omitted = SizedPage(800_000), 0
    for turn in session.turns:
        view, cut = truncate_value(to_json(turn), 60_000, 8_000)
        if not page.add(view):
            break
        omitted += cut
    return LabSession(
        session_id=session_id, total=len(session.turns), omitted_chars=omitted, turns=page.items
    )


def _report(context: ServerContext, run_id: str) -> LabReport:
    if not run_id.startswith(RUN_PREFIX):
        raise NotFound(run_id)
    return oakleaf_lab.report(context.store, run_id)


HANDLERS = [lab_runs, lab_run, lab_session]
