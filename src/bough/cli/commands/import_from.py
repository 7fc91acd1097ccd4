"""`bough import --from TOOL`: what another tool keeps, taken in one session after the other, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ...exchange.importers.ingest import ToolImportResult
from ...formats.records import LossReport
from ..rendering.output import many, plain, safe, say, say_json
from ..rendering.progress import bar
from ..store_option import Here


def import_foreign(
    place: Here, tool: str, places: Sequence[str], *, new_id: bool, is_dry: bool, is_json: bool
) -> int:
    """1 if one of them was refused."""
    sessions = place.aside() if is_dry else place.new_sessions()
    reports: list[ToolImportResult] = []
    with bar("import", unit="sessions") as step:
        for where in places or (None,):
            for taken in sessions.import_from(tool, where, new_id=new_id):
                reports.append(taken)
                step(len(reports), None)
    if is_json:
        say_json(imported=plain(reports), dry_run=is_dry)
    else:
        for taken in reports:
            click.echo(safe("  ".join([taken.session_id, *_fate(taken)])))
        for line in _summary(reports, is_dry=is_dry):
            say(safe(line))
    return int(any(taken.error for taken in reports))


def _fate(taken: ToolImportResult) -> Iterator[str]:
    if taken.error is not None:
        yield f"refused: {taken.error}"
    elif taken.added:
        yield f"{taken.entries:,} entries"
    else:
        yield f"grown by {taken.entries:,} entries" if taken.entries else "known already"
    if taken.title:
        yield taken.title


def _summary(reports: Sequence[ToolImportResult], *, is_dry: bool) -> Iterator[str]:
    losses = LossReport()
    for taken in reports:
        losses.merge(LossReport(taken.losses))
    sessions = sum(len(taken.added) for taken in reports)
    grown = sum(bool(taken.entries) and not taken.added for taken in reports)
    doing = "would be taken in" if is_dry else "taken in"
    known = sum(not taken.added and not taken.entries and not taken.error for taken in reports)
    yield (
        f"{many(sessions, 'session')} {doing}, {grown} grown, {known} known already, "
        f"{sum(taken.entries for taken in reports):,} entries"
    )
    for what, lost in losses.items():
        examples = f" ({', '.join(lost.examples)})" if lost.examples else ""
        yield f"  lost {lost.count:,} × {what}{examples}"
