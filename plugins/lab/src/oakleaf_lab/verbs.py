"""The verbs of the lab: `lab show` lists and shows runs, `lab cohort` lists, saves and removes cohorts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Annotated

from msgspec import Struct

import oakleaf_lab
from oakleaf import ext
from oakleaf.errors import InvalidArgument, InvalidReference, plural
from oakleaf.store import Store
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Count, File, Help, Refs, Word
from oakleaf.verbs.new_file import new_file
from oakleaf.verbs.reference import is_title
from oakleaf.verbs.screen import Line, Screen, Table
from oakleaf_lab.cohort import COHORT_PREFIX, SkippedSessions, is_query
from oakleaf_lab.lab_report import LabReport
from oakleaf_lab.record import RUN_PREFIX, RunSummary, run_summary
from oakleaf_lab.report_file import write_report

MOST_RUNS = 500
"""How many runs a list has, the newest first."""


class LabShown(Struct, frozen=True, kw_only=True):
    """Lab runs, the newest first, or one with its report."""

    runs: list[RunSummary]
    report: LabReport | None = None


class LabShow(Verb, frozen=True):
    """Print the report of a lab run as far as it is done; without RUN list the runs, newest first.

    RUN is an id, the beginning of one, or latest. The report has the gates that oakleaf lab run checked last; the exit code
    is 0 whatever became of them. oakleaf serve shows runs at /lab.
    """

    name = "lab show"
    section = "Compare"
    http = "GET /api/lab"
    examples = ("oakleaf lab show", "oakleaf lab show latest", "oakleaf lab show lab_3f --output lab.html")

    run_id: Annotated[Word | None, Help("A run: its id, the beginning of it, or latest.", metavar="RUN")] = (
        None
    )
    output: Annotated[
        File | None,
        Help("Write the report to this file: .html is one page that works offline, .json data, else text."),
    ] = None

    def run(self, caller: Caller) -> LabShown:
        runs = [run_summary(row) for row in islice(oakleaf_lab.runs(caller.store), MOST_RUNS)]
        if self.run_id is None:
            if self.output is not None:
                raise InvalidArgument("output", self.output, "a RUN to write the report of")
            return LabShown(runs=runs)
        found = find_run(caller.store, self.run_id)
        with nullcontext() if self.output is None else new_file(self.output) as file:
            report = oakleaf_lab.report(caller.store, found.run_id)
            if file is not None:
                write_report(report, file, str(self.output), ext.read_store(caller.store).redactor)
        return LabShown(runs=[found], report=report)

    def lines(self, result: LabShown, screen: Screen) -> Iterator[Line]:
        if self.output is not None:
            return
        if result.report is not None:
            yield from result.report.lines()
        elif result.runs:
            rows: list[tuple[str, ...]] = [
                (run.run_id, screen.time(run.started_at), run.status, screen.fit(run.title or ""))
                for run in result.runs
            ]
            yield Table(("run", "started", "status", "cohort"), rows)

    def notes(self, result: LabShown, screen: Screen) -> Iterator[str]:
        if not result.runs:
            yield "there is no lab run yet; oakleaf lab run QUERY makes one"
        elif self.output is not None and result.report is not None:
            yield f"{self.output}: {plural(len(result.report.sessions), 'session')}"
        elif len(result.runs) == MOST_RUNS:
            yield f"these are the newest {MOST_RUNS} runs; oakleaf lab show RUN finds every run"


def find_run(store: Store, typed: str) -> RunSummary:
    """Return the run of an id, of the beginning of an id, or the newest for `latest`."""
    rows = [row for row in oakleaf_lab.runs(store) if typed == "latest" or _is_run(row.session_id, typed)]
    exact = [row for row in rows if row.session_id == typed]
    if not rows:
        raise InvalidReference(f"there is no lab run {typed!r}", "oakleaf lab show lists the runs")
    if len(rows) > 1 and not exact and typed != "latest":
        ids = ", ".join(row.session_id for row in rows[:5])
        raise InvalidReference(f"{typed!r} is ambiguous", f"type more of the id: {ids}")
    return run_summary((exact or rows)[0])


def _is_run(session_id: str, typed: str) -> bool:
    return session_id.startswith((typed, f"{RUN_PREFIX}{typed}"))


# -- cohorts -----------------------------------------------------------------------------------------------


class CohortView(Struct, frozen=True, kw_only=True):
    """A saved cohort: a fixed list of sessions."""

    name: str
    sessions: list[str]


class LabCohorts(Struct, frozen=True, kw_only=True):
    """Saved cohorts, or the one that was saved or removed."""

    cohorts: list[CohortView]
    skipped: list[SkippedSessions] = []


class LabCohort(Verb, frozen=True):
    """Save the sessions of a query under a name, for oakleaf lab run; a list of that name is replaced.

    Without QUERY print the sessions of the cohort NAME, without NAME list the cohorts. --rm moves a cohort to the trash; its
    sessions stay. QUERY is a query as for oakleaf search, a session (its id or whole title), or the name of a cohort.
    """

    name = "lab cohort"
    section = "Compare"
    effect = "write"
    http = "POST /api/lab/cohorts"
    examples = (
        "oakleaf lab cohort golden 'agent:support after:7d' --sample 100",
        "oakleaf lab cohort golden --rm",
    )

    cohort: Annotated[Word | None, Help("The name of a cohort.", metavar="NAME")] = None
    query: Annotated[Refs, Help("Queries, sessions and cohorts to save.", metavar="QUERY…")] = []
    sample: Annotated[Count | None, Help("Take so many of the sessions.")] = None
    seed: Annotated[int, Help("Which sessions --sample takes.")] = 0
    rm: Annotated[bool, Help("Move the cohort to the trash.")] = False

    @property
    def needs_yes(self) -> bool:
        return self.rm

    def run(self, caller: Caller) -> LabCohorts:
        self._check()
        if self.rm:
            removed = self.plan(caller)
            caller.store.delete(f"{COHORT_PREFIX}{self.cohort}")
            return removed
        return self._save(caller) if self.query else self._list(caller.store)

    def plan(self, caller: Caller) -> LabCohorts:
        self._check()
        return self._list(caller.store)

    def _check(self) -> None:
        if self.rm and (self.cohort is None or self.query):
            raise InvalidArgument("rm", True, "the NAME of a cohort, and no QUERY")
        if self.query and self.cohort is None:
            raise InvalidArgument("cohort", None, "the NAME under which the sessions are saved")
        if self.sample is not None and not self.query:
            raise InvalidArgument("sample", self.sample, "a QUERY whose sessions are sampled")
        if self.query and self.cohort is None:
            raise InvalidArgument("query", self.query, "the NAME of the cohort to save, too")

    def _save(self, caller: Caller) -> LabCohorts:
        assert self.cohort is not None
        sessions = resolve_cohort(caller, self.query)
        saved = oakleaf_lab.save_cohort(
            caller.store, self.cohort, *sessions, sample=self.sample, seed=self.seed
        )
        ids = [source.session_id for source in saved.sources]
        return LabCohorts(cohorts=[CohortView(name=self.cohort, sessions=ids)], skipped=list(saved.skipped))

    def _list(self, store: Store) -> LabCohorts:
        saved = oakleaf_lab.cohorts(store)
        if self.cohort is not None and self.cohort not in saved:
            raise InvalidReference(
                f"there is no cohort {self.cohort!r}", "oakleaf lab cohort lists the cohorts"
            )
        names = list(saved) if self.cohort is None else [self.cohort]
        return LabCohorts(cohorts=[CohortView(name=name, sessions=list(saved[name])) for name in names])

    def question(self, planned: LabCohorts) -> str:
        return "Move to the trash?"

    def lines(self, result: LabCohorts, screen: Screen) -> Iterator[Line]:
        if self.cohort is None and result.cohorts:
            rows: list[tuple[str, ...]] = [(one.name, f"{len(one.sessions):,}") for one in result.cohorts]
            yield Table(("cohort", "sessions"), rows, right=("sessions",))
        for one in result.cohorts if self.cohort is not None else ():
            sessions = plural(len(one.sessions), "session")
            if self.rm:
                yield f"{one.name}  ({sessions}, which stay) moves to the trash"
            elif self.query:
                yield f"saved {sessions} as {one.name}; oakleaf lab run {one.name} replays them"
            else:
                yield from one.sessions

    def notes(self, result: LabCohorts, screen: Screen) -> Iterator[str]:
        if not result.cohorts:
            yield "there is no saved cohort yet; oakleaf lab cohort NAME QUERY saves one"
        if self.rm:
            yield f"oakleaf restore {COHORT_PREFIX}{self.cohort} brings it back"
        for skipped in result.skipped:
            yield f"left out: {len(skipped.session_ids):,} {skipped.reason}"


def resolve_cohort(caller: Caller, typed: list[str]) -> list[str]:
    """Return the cohort with references to sessions replaced by ids; a title of several words is not a query."""
    saved = oakleaf_lab.cohorts(caller.store)
    return [
        each
        if each in saved or (is_query(each) and not is_title(caller.store, each))
        else caller.stored_session(each).session_id
        for each in typed
    ]
