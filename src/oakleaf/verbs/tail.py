"""The numbered facts of a session: tail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from oakleaf.core.codec import to_json
from oakleaf.core.facts import StoredFact
from oakleaf.core.usage import MAX_COUNT
from oakleaf.errors import plural
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.entries import EntryView, entry_view
from oakleaf.verbs.fields import Help, Number, Ref
from oakleaf.verbs.screen import Line, Screen, Table, safe

NEWEST = 20


class FactView(Struct, frozen=True, kw_only=True):
    """One fact of a session's journal, and the entries it appended."""

    number: int
    at: int
    kind: str
    data: dict[str, Any]
    entries: list[EntryView]


class FollowedFact(FactView, frozen=True, kw_only=True):
    """A fact in a line of its own."""

    session: str


class Journal(Struct, frozen=True, kw_only=True):
    session: str
    facts: list[FactView]
    total: int
    """The number of the newest fact."""


class Tail(Verb, frozen=True):
    """Print the newest facts of a session's journal; -f follows it.

    Facts are numbered without gaps. To continue later pass the last number as --from. With -f each fact is a line of JSON.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    http = "GET /api/sessions/{session}/journal"
    examples = ("oakleaf tail latest -f", "oakleaf tail ses_3f --from 120 --json")

    session: Ref = "latest"
    last: Annotated[
        Number | None, Help(f"The newest N facts, {NEWEST} by default; with --from the next N.", short="n")
    ] = None
    from_: Annotated[Number | None, Help("The facts after fact N instead.", metavar="N")] = None

    def run(self, caller: Caller) -> Journal:
        session = caller.session(self.session)
        total = session.row.facts
        if self.from_ is None:
            last = NEWEST if self.last is None else self.last
            found = session.journal(max(0, total - last)) if last else []
        else:
            limit = caller.most if self.last is None else self.last
            found = session.journal(min(self.from_, MAX_COUNT), limit)
        return Journal(
            session=session.session_id, facts=[fact_view(session, fact) for fact in found], total=total
        )

    def follow(self, caller: Caller) -> Iterator[FollowedFact | None]:
        session = caller.session(self.session)
        newest = max(0, session.row.facts - (NEWEST if self.last is None else self.last))
        last = newest if self.from_ is None else min(self.from_, MAX_COUNT)
        while True:
            for fact in session.journal(last, 500):
                last = fact.number
                view = asdict(fact_view(session, fact))
                yield FollowedFact(session=session.session_id, **view)
            if session.row.facts <= last:
                yield None

    def lines(self, result: Journal, screen: Screen) -> Iterator[Line]:
        if result.facts:
            rows = [_row(fact, screen) for fact in result.facts]
            yield Table(
                ("FACT", "TIME", "KIND", "ENTRIES", "DATA"), rows, drop_first=("TIME",), right=("FACT",)
            )

    def notes(self, result: Journal, screen: Screen) -> Iterator[str]:
        last = result.facts[-1].number if result.facts else self.from_ or 0
        if self.from_ is not None and last < result.total:
            left = plural(result.total - last, "more fact")
            yield f"{left}: oakleaf tail {result.session} --from {last}"
        elif not result.facts:
            yield f"there are no facts after {last}" if last else "there are no facts yet"


def fact_view(session: Session, fact: StoredFact) -> FactView:
    return FactView(
        number=fact.number,
        at=fact.at,
        kind=fact.kind,
        data=msgspec.to_builtins(fact.view),
        entries=[entry_view(entry) for entry in read(session).appended_entries(fact)],
    )


def _row(fact: FactView, screen: Screen) -> tuple[str, ...]:
    seqs = [entry.seq for entry in fact.entries]
    span = "" if not seqs else str(seqs[0]) if len(seqs) == 1 else f"{seqs[0]}–{seqs[-1]}"
    data = to_json(fact.data, "fact").decode() if fact.data else ""
    return str(fact.number), screen.time(fact.at), safe(fact.kind), span, safe(data)
