"""`oakleaf tail`: a session's journal as JSON lines."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from oakleaf.cli.commands.show import entry_data
from oakleaf.cli.reference import reference, resolve_session
from oakleaf.cli.rendering.output import echo, encode_line, iso
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.facts import StoredFact
from oakleaf.core.usage import MAX_COUNT
from oakleaf.ext import read
from oakleaf.session import Session

PAUSE = 0.1  # seconds between two reads; each is one indexed query


@click.command()
@reference
@click.option("-f", "--follow", is_flag=True, help="Keep printing new facts; Ctrl-C stops.")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    metavar="N",
    help="Print the newest N facts first.",
)
@click.option("--from", "after", type=click.IntRange(0), metavar="N", help="Start after fact N instead.")
@pass_location
def tail(location: StoreLocation, reference: str, follow: bool, last: int, after: int | None) -> None:
    """Print a session's journal as JSON lines; -f follows it.

    Each line is one fact: its `number`, without gaps, and the entries it appended. To continue later pass the last
    number as --from.
    """
    session = resolve_session(location, reference)
    last_number = max(0, session.row.facts - last) if after is None else min(after, MAX_COUNT)
    for fact in _facts(session, last_number, follow=follow):
        echo(encode_line(_line(session, fact)))
        sys.stdout.flush()  # a reader of the pipe gets each line at once


def _facts(session: Session, last_number: int, *, follow: bool) -> Iterator[StoredFact]:
    while True:
        for fact in session.journal(last_number, 500):
            last_number = fact.number
            yield fact
        if session.row.facts > last_number:
            continue
        if not follow or _is_reader_gone():
            return
        time.sleep(PAUSE)


def _is_reader_gone() -> bool:
    """Return whether the pipe behind stdout was closed, which a program that waits does not notice by itself."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _line(session: Session, fact: StoredFact) -> dict[str, Any]:
    return {
        "session": session.session_id,
        "number": fact.number,
        "at": iso(fact.at),
        "kind": fact.kind,
        "data": fact.view,
        "entries": [entry_data(entry) for entry in read(session).appended_entries(fact)],
    }
