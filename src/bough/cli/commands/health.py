"""`bough verify` and `bough doctor`: look, and change nothing unless told to."""

from __future__ import annotations

from pathlib import Path

import click

from ...log.doctor import Finding, file_health, mark_interrupted, session_health, stuck_sessions
from ...log.verify import Problem
from ...log.verify import verify as verify_session
from ..reference import complete, find_whole
from ..rendering.output import as_json, confirmed, many, plain, safe, say, say_json
from ..rendering.progress import bar
from ..store_option import Here, here


@click.command()
@click.argument("reference", required=False, shell_complete=complete)
@as_json
@here
def verify(place: Here, reference: str | None, is_json: bool) -> int:
    """Check chains, numbers, pairs and totals.

    Of one session, or without REFERENCE of every one, trashed ones too. Exit code 1 if something is wrong.
    """
    if reference is not None:
        session = find_whole(place, reference).session
        problems, count = session.verify(), 1
    else:
        problems, count = _verify_all(place)
    if is_json:
        say_json(sessions=count, problems=plain(problems))
    else:
        for problem in problems:
            click.echo(str(problem))
        say(f"{many(count, 'session')}, {many(len(problems), 'problem')}")
    return 1 if problems else 0


def _verify_all(place: Here) -> tuple[list[Problem], int]:
    sessions = place.sessions()
    names = [
        row.session_id
        for trashed in (False, True)
        for row in sessions.all_sessions(trashed=trashed, limit=500)
    ]
    problems: list[Problem] = []
    with bar("verify", unit="sessions") as step:
        for done, name in enumerate(names, 1):
            problems += verify_session(sessions.backend, name)
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
@as_json
@here
def doctor(place: Here, other: str | None, fix: bool, yes: bool, is_json: bool) -> int:
    """Read-only health of a store, or of another tool's session folder.

    OTHER is another store's file, or a folder of .jsonl sessions of another tool, of which calls without results,
    results without calls and cut lines are named. Exit code 1 if there are problems.
    """
    if other is not None:
        place = Here(other, place.space, place.owner)
    findings = _looked_at(place)
    is_ill = any(finding.level == "problem" for finding in findings)
    if is_json:
        say_json(backend=place.where, healthy=not is_ill, findings=plain(findings))
    else:
        click.echo(place.where)
        for finding in findings:
            mark, colour = _MARKS[finding.level]
            hint = click.style(f"  → {finding.fix}", dim=True) if finding.fix else ""
            click.echo(f"{click.style(mark, fg=colour)} {safe(finding.message)}{hint}")
    return _fixed(place, yes=yes) if fix else int(is_ill)


def _looked_at(place: Here) -> list[Finding]:
    with bar("doctor") as step:
        seen = iter(range(1, 1 << 62))
        if place.is_file and Path(place.url).is_dir():
            from ...exchange.folder_health import folder_health

            return folder_health(place.url, lambda: step(next(seen), None))
        findings = file_health(place.url) if place.is_file else []
        if any(finding.level == "problem" and finding.is_final for finding in findings):
            return findings
        sessions = place.sessions()
        return findings + session_health(sessions.backend, sessions.runtime, lambda: step(next(seen), None))


def _fixed(place: Here, *, yes: bool) -> int:
    """The plan, then what it says: sessions whose runner is known to have died are marked interrupted."""
    sessions = place.sessions()
    rows = stuck_sessions(sessions.backend, sessions.runtime)
    for row in rows:
        say(f"  {row.session_id} is marked interrupted")
    if not rows:
        say("nothing to mend")
        return 0
    if not confirmed("Mend them?", yes=yes):
        return 1
    for row in rows:
        mark_interrupted(sessions.backend, sessions.runtime, row)
    say(f"{many(len(rows), 'session')} mended; bough resume goes on with each")
    return 0
