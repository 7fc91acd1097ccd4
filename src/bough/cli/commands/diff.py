"""`bough diff`: two sessions or places, turn by turn."""

from __future__ import annotations

import click

from ..reference import complete, find
from ..rendering.error_text import Refused
from ..rendering.output import one_of
from ..store_option import Here, here
from .replay import opened, written


@click.command()
@click.argument("a", shell_complete=complete)
@click.argument("b", shell_complete=complete)
@one_of(None, json="Print JSON.", markdown="Print Markdown.")
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
    if quiet and (format_ or output):
        raise Refused("-q prints nothing; leave it out, or leave out --json, --markdown and -o")
    from ...replay.diff import diff as compare

    with opened(output) as file:
        found = compare(find(place, a).standing(), find(place, b).standing())
        if not quiet:
            written(found, format_, file)
    return 0 if found.is_same else 1
