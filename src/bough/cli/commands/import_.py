"""`bough import` and `bough copy`: sessions from elsewhere, and to elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ...errors import NotFound
from ...exchange.importers import IMPORTERS
from ...store import Store
from ..reference import complete, find_kept_whole
from ..rendering.error_text import Refused
from ..rendering.output import as_json, confirmed, many, plain, say, say_json
from ..rendering.progress import bar
from ..store_option import Here, here
from .import_from import import_foreign


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
@as_json
@here
def import_(
    place: Here, files: tuple[str, ...], tool: str | None, dry_run: bool, new_id: bool, is_json: bool
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
        return import_foreign(place, tool, files, new_id=new_id, is_dry=dry_run, is_json=is_json)
    if dry_run:
        raise Refused("--dry-run wants --from TOOL; bough show FILE looks into a bundle")
    if not files:
        raise Refused("name a bundle, or --from TOOL")
    for name in files:  # before a store is made for what cannot be taken in
        if name != "-" and not Path(name).exists():
            raise Refused(f"{name}: there is no such file; bough export REFERENCE -o FILE writes one")
    sessions = place.new_sessions()
    reports = []
    for name in files:
        source = sys.stdin.buffer if name == "-" else name
        with bar("import", unit="lines") as step:
            report = sessions.import_bundle(
                source, new_id=new_id, progress=lambda told: step(told.lines, None)
            )
        reports.append(report)
        if not is_json:
            known = f", {many(len(report.existing), 'session')} known already" if report.existing else ""
            missing = f"; {report.missing_blobs} attachments are missing" if report.missing_blobs else ""
            say(f"{name}: {many(len(report.added), 'session')}, {report.entries:,} entries{known}{missing}")
            click.echo(report.session_id)
    if is_json:
        say_json(imported=plain(reports))
    return 0


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
@as_json
@here
def copy(
    place: Here,
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
        raise Refused("name the sessions to copy, or --all of them")
    sessions = place.sessions()
    target = Here(to, to_space or place.space, place.owner)
    target.unlock(to_key_file)
    if is_all:
        # Oldest first, so that a fork finds what it stands on.
        names = [row.session_id for row in sessions.all_sessions(limit=500) if row.relation != "task"][::-1]
        say(f"{many(len(names), 'session')} of {place.where} to {target.where}")
        if not confirmed("Copy them?", yes=yes):
            return 1
    else:
        names = [find_kept_whole(place, reference).session.session_id for reference in references]
    with contextlib.closing(target):
        made, known = _copied(sessions, names, target.new_sessions(), new_id=new_id)
    if is_json:
        say_json(copied=made, existing=known)
    else:
        say(f"{many(len(made), 'session')} copied{f', {len(known)} were there' if known else ''}")
    return 0


def _copied(
    sessions: Store, names: Sequence[str], other: Store, *, new_id: bool
) -> tuple[list[str], list[str]]:
    """The ids of what was written there now, and of what was there before."""
    made: list[str] = []
    known: list[str] = []
    with bar("copy", unit="sessions") as step:
        for done, name in enumerate(names, 1):
            was_there = not new_id and _holds(other, name)
            (known if was_there else made).append(sessions.copy(name, to=other, new_id=new_id).session_id)
            step(done, len(names))
    return made, known


def _holds(sessions: Store, name: str) -> bool:
    try:
        sessions.session(name)
    except NotFound:
        return False
    return True
