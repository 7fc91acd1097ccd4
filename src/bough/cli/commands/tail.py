"""`bough tail`: a session's facts as JSON lines, and those that come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from ...core.tree import Leaf
from ...core.usage import MAX_COUNT
from ...session import Session
from ...stores.base import Fact
from ..reference import reference, resolve_session
from ..rendering.output import encode_json, iso
from ..store_option import StoreLocation, pass_location
from .show import entry_data

PAUSE = 0.1  # seconds between two looks: nobody watching notices, and a look is one indexed read


@click.command()
@reference
@click.option("-f", "--follow", is_flag=True, help="Go on as facts come; Ctrl-C ends it.")
@click.option(
    "-n", "--last", type=click.IntRange(0), default=20, show_default=True, help="How many to begin with."
)
@click.option("--from", "after", type=click.IntRange(0), help="Begin behind this fact's number instead.")
@pass_location
def tail(location: StoreLocation, reference: str, follow: bool, last: int, after: int | None) -> None:
    """Print a session's facts as JSON lines; -f goes on as they come.

    Each line has the fact's number `n`, without gaps, and the entries it appended. Who missed some asks again
    with --from.
    """
    session = resolve_session(location, reference).session
    seen = max(0, session.row.facts - last) if after is None else min(after, MAX_COUNT)
    for fact in _facts(session, seen, follow=follow):
        click.echo(encode_json(_line(session, fact)))
        sys.stdout.flush()  # whoever reads a pipe wants it now


def _facts(session: Session, seen: int, *, follow: bool) -> Iterator[Fact]:
    while True:
        for fact in session.journal(seen, 500):
            seen = fact.number
            yield fact
        if session.row.facts > seen:
            continue
        if not follow:
            return
        time.sleep(PAUSE)


def _line(session: Session, fact: Fact) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "session": session.session_id,
        "n": fact.number,
        "at": iso(fact.at),
        "kind": fact.kind,
        "data": fact.data,
        "entries": [entry_data(entry) for entry in _entries(session, fact)],
    }


def _entries(session: Session, fact: Fact) -> list[Any]:
    """What the fact appended: nothing for a title, a status, a move."""
    first, last, branch = (fact.data.get(name) for name in ("first", "last", "branch"))
    if first is None or last is None or branch is None:
        return []
    store = session.log.store
    return store.path(session.session_id, leaf=Leaf(branch, last), first=first, last=last).entries
