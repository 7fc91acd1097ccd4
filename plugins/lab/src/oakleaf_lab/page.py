"""The lab's page in the viewer, what the page reads over HTTP, and the same as one HTML file that opens from disk.

The verb `lab show` lists the runs; the page reads a run in windows. Page and file show the same data with the same script (`viewer/lab_report.js`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

import oakleaf_lab
from oakleaf import Store, plugins
from oakleaf.core.pages import Page, PageFiles
from oakleaf.core.redact import Redactor
from oakleaf.errors import InvalidArgument, NotFound, PluginBroken
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.record import RUN_PREFIX
from oakleaf_lab.report_page import report_summary, session_summaries

Json = dict[str, Any]


class LabRun(Struct, kw_only=True):
    """The report of a run, and a page of its sessions."""

    run: Annotated[
        Json, Meta(description="The report without its sessions: experiment, lanes, comparisons, gates, …")
    ]
    total: int
    first: int
    sessions: Annotated[
        list[Json],
        Meta(description="session_id, heading, change, and the classes, cost and time of both lanes"),
    ]


class LabSession(Struct, kw_only=True):
    """The turns of one session of a run."""

    session_id: str
    total: int
    turns: Annotated[list[Json], Meta(description="turn, input, and its replays in both lanes")]


def run(
    store: Store,
    run_id: str,
    first: Annotated[int, Meta(ge=0, description="Index of the first session")] = 0,
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200,
) -> LabRun:
    """Read the report of a lab run: lanes, effects, and its sessions, those that changed most first."""
    report = _report(store, run_id)
    rows = session_summaries(report)
    if first > len(rows):
        raise InvalidArgument("first", first, f"a number up to {len(rows)}")
    sessions = msgspec.to_builtins(rows[first : first + limit])
    return LabRun(run=report_summary(report), total=len(rows), first=first, sessions=sessions)


def session(store: Store, run_id: str, session_id: str) -> LabSession:
    """Read the turns of one session of a lab run, in both lanes."""
    sessions = _report(store, run_id).sessions
    found = next((each for each in sessions if each.session_id == session_id), None)
    if found is None:
        raise NotFound(session_id)
    turns = msgspec.to_builtins(found.turns)
    return LabSession(session_id=session_id, total=len(turns), turns=turns)


def _report(store: Store, run_id: str) -> LabReport:
    if not run_id.startswith(RUN_PREFIX):
        raise NotFound(run_id)
    return oakleaf_lab.report(store, run_id)


page = Page(
    title="Lab",
    folder=files("oakleaf_lab").joinpath("viewer"),
    module="lab_page.js",
    styles=("lab.css",),
    routes={"/{run_id}": run, "/{run_id}/sessions/{session_id}": session},
)


def report_html(report: LabReport, redactor: Redactor | None) -> Iterator[bytes]:
    """Return a report as an HTML file, piece by piece. The same report gives the same bytes.

    Raises PluginMissing without the viewer.
    """
    turns = {session.session_id: msgspec.to_builtins(session.turns) for session in report.sessions}
    rows = [
        {**msgspec.to_builtins(row), "turn_reports": turns[row.session_id]}
        for row in session_summaries(report)
    ]
    data: Any = {"run": report_summary(report), "sessions": rows}
    if redactor is not None:
        data = redactor.redact_json(data)
    return find_viewer().page_file("lab", page, "offline_lab.js", msgspec.json.encode(data), title="Lab run")


def find_viewer() -> PageFiles:
    """Return the viewer, the maker of page files; raise PluginMissing or PluginBroken."""
    viewer: PageFiles = plugins.find(plugins.EXPORTS, "html")
    if not hasattr(viewer, "page_file"):
        provider = str(plugins.provider_of(plugins.EXPORTS, "html"))
        raise PluginBroken(plugins.EXPORTS, "html", provider, "it makes no files of pages")
    return viewer
