"""`bough import` and `bough copy`: sessions from elsewhere, and to elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ...errors import NotFound
from ...exchange.importers import IMPORTERS
from ...exchange.importers.ingest import ToolImportResult
from ...formats.records import LossReport
from ...store import Store
from ..reference import complete, resolve_stored_session
from ..rendering.error_text import CommandError
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


@click.command("import")
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE]…")
@click.option(
    "--from",
    "tool",
    type=click.Choice(list(IMPORTERS)),
    help=f"Sessions of another tool instead. Its place: {'; '.join(f'{t.name}: {t.source}' for t in IMPORTERS.values())}.",
)
@click.option(
    "-n", "--dry-run", is_flag=True, help="With --from: only say what there is and what would be lost."
)
@click.option("--new-id", is_flag=True, help="Under a fresh id, beside what has its own.")
@json_option
@pass_location
def import_(
    location: StoreLocation,
    files: tuple[str, ...],
    tool: str | None,
    dry_run: bool,
    new_id: bool,
    is_json: bool,
) -> int:
    """Take a bundle in, or the sessions of another tool.

    All of it or nothing; importing it twice adds nothing. A FILE of - is read from stdin. With --from a FILE is a
    place of that tool, by default its own; it is only read, and what cannot be taken over is told.

    \b
    bough import case.bough
    ssh host bough export latest -o - | bough import -
    bough import --from chat log.jsonl
    """
    if tool is not None:
        return import_from_tool(location, tool, files, new_id=new_id, is_dry=dry_run, is_json=is_json)
    if dry_run:
        raise CommandError("--dry-run wants --from TOOL; bough show FILE looks into a bundle")
    if not files:
        raise CommandError("name a bundle, or --from TOOL")
    for name in files:  # before a store is made for what cannot be taken in
        if name != "-" and not Path(name).exists():
            raise CommandError(f"{name}: there is no such file; bough export REFERENCE -o FILE writes one")
    store = location.open_or_create()
    reports = []
    for name in files:
        source = sys.stdin.buffer if name == "-" else name
        with progress_bar("import", unit="lines") as step:
            report = store.import_bundle(source, new_id=new_id, progress=lambda told: step(told.lines, None))
        reports.append(report)
        if not is_json:
            known = f", {plural(len(report.existing), 'session')} known already" if report.existing else ""
            missing = f"; {report.missing_blobs} attachments are missing" if report.missing_blobs else ""
            notify(
                f"{name}: {plural(len(report.added), 'session')}, {report.entries:,} entries{known}{missing}"
            )
            click.echo(report.session_id)
    if is_json:
        print_json(imported=to_json_value(reports))
    return 0


def import_from_tool(
    location: StoreLocation, tool: str, places: Sequence[str], *, new_id: bool, is_dry: bool, is_json: bool
) -> int:
    """1 if one of them was refused."""
    store = location.open_memory() if is_dry else location.open_or_create()
    reports: list[ToolImportResult] = []
    with progress_bar("import", unit="sessions") as step:
        for where in places or (None,):
            for taken in store.import_from(tool, where, new_id=new_id):
                reports.append(taken)
                step(len(reports), None)
    if is_json:
        print_json(imported=to_json_value(reports), dry_run=is_dry)
    else:
        for taken in reports:
            click.echo(safe("  ".join([taken.session_id, *_outcome(taken)])))
        for line in _summary_lines(reports, is_dry=is_dry):
            notify(safe(line))
    return int(any(taken.error for taken in reports))


def _outcome(taken: ToolImportResult) -> Iterator[str]:
    if taken.error is not None:
        yield f"refused: {taken.error}"
    elif taken.added:
        yield f"{taken.entries:,} entries"
    else:
        yield f"grown by {taken.entries:,} entries" if taken.entries else "known already"
    if taken.title:
        yield taken.title


def _summary_lines(reports: Sequence[ToolImportResult], *, is_dry: bool) -> Iterator[str]:
    losses = LossReport()
    for taken in reports:
        losses.merge(LossReport(taken.losses))
    sessions = sum(len(taken.added) for taken in reports)
    grown = sum(bool(taken.entries) and not taken.added for taken in reports)
    doing = "would be taken in" if is_dry else "taken in"
    known = sum(not taken.added and not taken.entries and not taken.error for taken in reports)
    yield (
        f"{plural(sessions, 'session')} {doing}, {grown} grown, {known} known already, "
        f"{sum(taken.entries for taken in reports):,} entries"
    )
    for what, lost in losses.items():
        examples = f" ({', '.join(lost.examples)})" if lost.examples else ""
        yield f"  lost {lost.count:,} × {what}{examples}"


@click.command()
@click.argument("references", nargs=-1, metavar="[REFERENCE]…", shell_complete=complete)
@click.option("--to", required=True, metavar="URL", help="The other store.")
@click.option(
    "--to-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Holds the key of the other store, if that is encrypted or to be.",
)
@click.option("--to-space", metavar="SPACE", help="Its space; default: the same.")
@click.option("--all", "is_all", is_flag=True, help="Every session that is not in the trash.")
@click.option("--new-id", is_flag=True, help="Under fresh ids.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_location
def copy(
    location: StoreLocation,
    references: tuple[str, ...],
    to: str,
    to_key_file: Path | None,
    to_space: str | None,
    is_all: bool,
    new_id: bool,
    yes: bool,
    is_json: bool,
) -> int:
    """Copy sessions to another store.

    With their tasks and attachments; bundles of both sides are the same bytes. What is there already is passed over.

    \b
    bough copy latest --to other.db
    bough copy --all --to postgresql://host/agents
    """
    if is_all == bool(references):
        raise CommandError("name the sessions to copy, or --all of them")
    store = location.open()
    target = StoreLocation(to, to_space or location.space, location.owner)
    target.register_key_file(to_key_file)
    if is_all:
        # Oldest first, so that a fork finds what it stands on.
        names = [row.session_id for row in store.all_sessions(limit=500) if row.relation != "task"][::-1]
        notify(f"{plural(len(names), 'session')} of {location.display_url} to {target.display_url}")
        if not confirm_plan("Copy them?", yes=yes):
            return 1
    else:
        names = [resolve_stored_session(location, reference).session.session_id for reference in references]
    with contextlib.closing(target):
        made, known = _copied(store, names, target.open_or_create(), new_id=new_id)
    if is_json:
        print_json(copied=made, existing=known)
    else:
        notify(f"{plural(len(made), 'session')} copied{f', {len(known)} were there' if known else ''}")
    return 0


def _copied(store: Store, names: Sequence[str], other: Store, *, new_id: bool) -> tuple[list[str], list[str]]:
    """The ids of what was written there now, and of what was there before."""
    made: list[str] = []
    known: list[str] = []
    with progress_bar("copy", unit="sessions") as step:
        for done, name in enumerate(names, 1):
            was_there = not new_id and _holds(other, name)
            (known if was_there else made).append(store.copy(name, to=other, new_id=new_id).session_id)
            step(done, len(names))
    return made, known


def _holds(store: Store, name: str) -> bool:
    try:
        store.session(name)
    except NotFound:
        return False
    return True
