"""What came with an import, at the command line: the plan that is shown and asked about, and the option that accepts it."""

from __future__ import annotations

import click

from oakleaf.cli.rendering.output import notify, safe
from oakleaf.core.turns import OpenCall
from oakleaf.errors import ImportNotAccepted

accept_option = click.option(
    "--accept-imported",
    is_flag=True,
    help="Let run what an import left open: calls with an effect, and queued inputs.",
)


def accept_import(error: ImportNotAccepted) -> bool:
    """Show the open points of an import, and ask whether to run the points."""
    notify(f"{error.session_id} came from elsewhere. This was left open there, and would run now:")
    for line in error.lines:
        notify(safe(f"  {line}"))
    try:
        return click.confirm("Let it run?", default=False, err=True)
    except click.Abort:
        notify()
        return False


def decided_elsewhere(call: OpenCall) -> str:
    """Return the display of another store's decision, which does not count here."""
    decision = getattr(call, "decided_elsewhere", None)
    return "" if decision is None else f"  ({decision} elsewhere, which does not count here)"
