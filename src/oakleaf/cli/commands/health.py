"""`oakleaf verify` and `oakleaf doctor`. Both only read, unless you pass --fix to doctor."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import click
from msgspec.structs import replace

from oakleaf import Problem, plugins
from oakleaf.cli.reference import complete, resolve_session
from oakleaf.cli.rendering.error_text import suggestions
from oakleaf.cli.rendering.output import (
    confirm_plan,
    echo,
    json_option,
    notify,
    plural,
    print_json,
    progress_bar,
    safe,
    yes_option,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.time_text import parse_time
from oakleaf.errors import StoreDamaged
from oakleaf.ext import file_health, mark_interrupted, read_store, stuck_sessions
from oakleaf.stores.base import Finding


@click.command()
@click.argument("reference", required=False, shell_complete=complete)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only N sessions, picked at random.")
@click.option("--since", metavar="TIME", help="Only sessions active since then: 7d, yesterday, 2026-11-01.")
@json_option
@pass_location
def verify(
    location: StoreLocation, reference: str | None, sample: int | None, since: str | None, is_json: bool
) -> int:
    """Check the integrity of one session, all sessions, or a sample.

    Checks hash chains, numbering, call/result pairs, totals, and the journal against the entries, which reveals removed
    ones. Without REFERENCE it checks every session, including the trash. Exit code 1 if something is wrong.
    """
    if reference is not None and (sample is not None or since is not None):
        raise click.UsageError("--sample and --since pick from all sessions; leave out REFERENCE")
    if reference is not None:
        session = resolve_session(location, reference)
        problems, sessions = session.verify(), 1
    else:
        problems, sessions = _verify_many(location, sample, since)
    if is_json:
        print_json(sessions=sessions, problems=problems)
    else:
        for problem in problems:
            echo(str(problem))
        notify(f"{plural(sessions, 'session')}, {plural(len(problems), 'problem')}")
        if problems:
            notify(StoreDamaged(location.display_url, "").command_hint)
    return 1 if problems else 0


def _verify_many(location: StoreLocation, sample: int | None, since: str | None) -> tuple[list[Problem], int]:
    store = location.open()
    floor = 0 if since is None else parse_time("--since", since, read_store(store).now())
    rows = (row for trashed in (False, True) for row in store.all_sessions(trashed=trashed, limit=500))
    names = [row.session_id for row in rows if row.updated_at >= floor]
    if sample is not None and sample < len(names):
        names = random.sample(names, sample)
    is_partial = sample is not None or since is not None
    with progress_bar("verify", unit="sessions") as step:
        return list(store.verify(names if is_partial else None, step)), len(names)


_MARKS = {"ok": ("✓", "green"), "warning": ("•", "yellow"), "problem": ("✗", "red")}


@click.command()
@click.argument("other", required=False, type=click.Path())
@click.option(
    "--fix",
    is_flag=True,
    help="Mark sessions whose process died as interrupted, after listing them.",
)
@yes_option
@json_option
@pass_location
def doctor(location: StoreLocation, other: str | None, fix: bool, yes: bool, is_json: bool) -> int:
    """Check the health of a store, or of another tool's session folder.

    OTHER is another store's file, or another tool's folder of .jsonl sessions, where calls without results, results
    without calls and truncated lines are reported. Exit code 1 if there are problems: a session that failed within a day
    or whose process died, tasks that wait without a worker, workers that keep dying.
    """
    if other is not None:
        location = StoreLocation(other, location.space, location.owner)
        suggestions.use_store(other)
    findings = [
        replace(finding, fix=suggestions.complete(finding.fix)) for finding in _check_health(location)
    ]
    if is_json:
        print_json(backend=location.display_url, healthy=not _has_problems(findings), findings=findings)
    else:
        echo(location.display_url)
        for finding in findings:
            mark, colour = _MARKS[finding.level]
            hint = click.style(f"  → {finding.fix}", dim=True) if finding.fix else ""
            echo(f"{click.style(mark, fg=colour)} {safe(finding.message)}{hint}")
    if fix and _fix(location, yes=yes):
        findings = _check_health(location)
    return int(_has_problems(findings))


def _has_problems(findings: list[Finding]) -> bool:
    return any(finding.level == "problem" for finding in findings)


def _check_health(location: StoreLocation) -> list[Finding]:
    with progress_bar("doctor") as step:
        counter = count(1)
        if not location.exists:
            return [Finding("problem", *location.absence, is_final=True)]
        if location.is_file and Path(location.url).is_dir():
            check_folder = plugins.find(plugins.VERBS, "doctor.folder")
            found: list[Finding] = check_folder(location.url, lambda: step(next(counter), None))
            return found
        findings = file_health(location.url) if location.is_file else []
        if any(finding.level == "problem" and finding.is_final for finding in findings):
            return findings
        store = location.open()
        return findings + list(store.findings(lambda: step(next(counter), None)))


def _fix(location: StoreLocation, *, yes: bool) -> bool:
    """List sessions whose process is known to have died, ask, and mark them interrupted; return whether any was."""
    store = location.open()
    rows = stuck_sessions(store)
    for row in rows:
        notify(f"  {row.session_id} will be marked interrupted")
    if not rows:
        notify("nothing to fix")
        return False
    if not confirm_plan("Mark them?", yes=yes):
        return False
    for row in rows:
        mark_interrupted(store, row)
    notify(f"{plural(len(rows), 'session')} marked interrupted; oakleaf resume continues each")
    return True
