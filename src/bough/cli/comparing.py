"""`bough diff`: two sessions or places, turn by turn."""

from __future__ import annotations

import click

from .here import Here, here
from .reference import complete, find
from .replaying import check_output, written


@click.command()
@click.argument("a", shell_complete=complete)
@click.argument("b", shell_complete=complete)
@click.option("--json", "format_", flag_value="json", help="Print JSON.")
@click.option("--markdown", "format_", flag_value="markdown", help="Print Markdown.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write it there instead.")
@click.option("-q", "--quiet", is_flag=True, help="Only the exit code.")
@here
def diff(place: Here, a: str, b: str, format_: str | None, output: str | None, quiet: bool) -> int:
    """Compare two sessions or places turn by turn.

    A and B are references: sessions, places (ses_3f@7), or bundle files. Exit code 0 the same, 1 different.

    \b
    bough diff ses_3f ses_9c
    bough diff latest@7 latest
    """
    check_output(output)
    from ..replay.diff import diff as compare

    found = compare(find(place, a).standing(), find(place, b).standing())
    if not quiet:
        written(found, format_, output)
    return 0 if found.is_same else 1
