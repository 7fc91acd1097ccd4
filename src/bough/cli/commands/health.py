"""`bough verify` and `bough doctor`: look, and change nothing unless told to."""

from __future__ import annotations

from pathlib import Path

import click

from ...log.doctor import Finding, file_health, mark_interrupted, session_health, stuck_sessions
from ...log.verify import Problem
from ...log.verify import verify as verify_session
from ..reference import complete, resolve_session
from ..rendering.output import (
    confirm_plan,
    json_option,
    notify,
    plural,
    print_json,
    progress_bar,
    safe,
    to_json_value,
)
from ..store_option import StoreLocation, pass_location


@click.command()
@click.argument("reference", required=False, shell_complete=complete)
@json_option
@pass_location
def verify(location: StoreLocation, reference: str | None, is_json: bool) -> int:
    """Check chains, numbers, pairs and totals.

    Of one session, or without REFERENCE of every one, trashed ones too. Exit code 1 if something is wrong.
    """
    if reference is not None:
        session = resolve_session(location, reference).session
        problems, count = session.verify(), 1
    else:
        problems, count = _verify_all(location)
    if is_json:
        print_json(sessions=count, problems=to_json_value(problems))
    else:
        for problem in problems:
            click.echo(str(problem))
        notify(f"{plural(count, 'session')}, {plural(len(problems), 'problem')}")
    return 1 if problems else 0


def _verify_all(location: StoreLocation) -> tuple[list[Problem], int]:
    store = location.open()
    names = [
        row.session_id for trashed in (False, True) for row in store.all_sessions(trashed=trashed, limit=500)
    ]
    problems: list[Problem] = []
    with progress_bar("verify", unit="sessions") as step:
        for done, name in enumerate(names, 1):
            problems += verify_session(store.backend, name)
            step(done, len(names))
    return problems, len(names)


_MARKS = {"ok": ("✓", "green"), "warning": ("•", "yellow"), "problem": ("✗", "red")}


@click.command()
@click.argument("other", required=False, type=click.Path())
@click.option(
    "--fix",
    is_flag=True,
    help="Mark sessions whose runner died as interrupted, after showing which; wants --yes.",
)
@click.option("-y", "--yes", is_flag=True, help="Do it; without it a person is asked.")
@json_option
@pass_location
def doctor(location: StoreLocation, other: str | None, fix: bool, yes: bool, is_json: bool) -> int:
    """Read-only health of a store, or of another tool's session folder.

    OTHER is another store's file, or a folder of .jsonl sessions of another tool, of which calls without results,
    results without calls and cut lines are named. Exit code 1 if there are problems.
    """
    if other is not None:
        location = StoreLocation(other, location.space, location.owner)
    findings = _check_health(location)
    is_ill = any(finding.level == "problem" for finding in findings)
    if is_json:
        print_json(backend=location.display_url, healthy=not is_ill, findings=to_json_value(findings))
    else:
        click.echo(location.display_url)
        for finding in findings:
            mark, colour = _MARKS[finding.level]
            hint = click.style(f"  → {finding.fix}", dim=True) if finding.fix else ""
            click.echo(f"{click.style(mark, fg=colour)} {safe(finding.message)}{hint}")
    return _fix(location, yes=yes) if fix else int(is_ill)


def _check_health(location: StoreLocation) -> list[Finding]:
    with progress_bar("doctor") as step:
        seen = iter(range(1, 1 << 62))
        if location.is_file and Path(location.url).is_dir():
            from ...exchange.folder_health import folder_health

            return folder_health(location.url, lambda: step(next(seen), None))
        findings = file_health(location.url) if location.is_file else []
        if any(finding.level == "problem" and finding.is_final for finding in findings):
            return findings
        store = location.open()
        return findings + session_health(store.backend, store.runtime, lambda: step(next(seen), None))


def _fix(location: StoreLocation, *, yes: bool) -> int:
    """The plan, then what it says: sessions whose runner is known to have died are marked interrupted."""
    store = location.open()
    rows = stuck_sessions(store.backend, store.runtime)
    for row in rows:
        notify(f"  {row.session_id} is marked interrupted")
    if not rows:
        notify("nothing to mend")
        return 0
    if not confirm_plan("Mend them?", yes=yes):
        return 1
    for row in rows:
        mark_interrupted(store.backend, store.runtime, row)
    notify(f"{plural(len(rows), 'session')} mended; bough resume goes on with each")
    return 0
