"""List entries, a line each: log."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated

from msgspec import Struct

from oakleaf.core.codec import to_json
from oakleaf.core.log_events import LogEvent, log_events
from oakleaf.core.tree_text import describe_entry
from oakleaf.errors import InvalidArgument
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.entries import EntryView, as_entry, entry_view, path_views, role_colour
from oakleaf.verbs.fields import Count, Help, Number, Ref
from oakleaf.verbs.screen import Screen, safe, style


class Logged(Struct, frozen=True, kw_only=True):
    session: str
    entries: list[EntryView]
    events: list[LogEvent] | None = None
    """With --events, instead of the entries."""


class Log(Verb, frozen=True):
    """List the entries on a session's path.

    With @7 the path ends at entry 7. With --all each entry is listed with its branch and number, such as 3:7, which you
    can use as REFERENCE@3:7. A dot marks what a client may read: inputs and final answers.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    examples = ("oakleaf log latest -n 20", "oakleaf log ses_3f@80 -n 20 --json")

    session: Ref = "latest"
    all: Annotated[bool, Help("Include the entries of other branches.")] = False
    events: Annotated[
        bool,
        Help("List events: system_message, user_message, assistant_message, tool_call, tool_result."),
    ] = False
    since: Annotated[Number, Help("Only entries after entry N.", metavar="N")] = 0
    last: Annotated[Count | None, Help("Only the newest N entries.", short="n")] = None

    def run(self, caller: Caller) -> Logged:
        if self.events and self.all:
            every = f"oakleaf log {shlex.quote(self.session)} --all"
            raise InvalidArgument(
                "all", True, f"nothing with events; {every} lists the entries of all branches"
            )
        session, last = caller.position(self.session).session_at(), self.last or caller.most
        reader = read(session)
        if self.events:
            return Logged(
                session=session.session_id, entries=[], events=newest_events(session, self.since, last)
            )
        if self.all:
            entries = list(map(entry_view, reader.tree_entries(last, since=self.since)))
        else:
            first = max(self.since, 0 if last is None else session.leaf.seq - last) + 1
            found = reader.entries(first, session.leaf.seq) if first <= session.leaf.seq else []
            entries = path_views(reader, found)
        return Logged(session=session.session_id, entries=entries)

    def lines(self, result: Logged, screen: Screen) -> Iterator[str]:
        if result.events is not None:
            yield from (_event_line(event, screen) for event in result.events)
            return
        places = [f"{one.branch}:{one.seq}" if self.all else str(one.seq) for one in result.entries]
        room = max(map(len, places), default=0)
        for view, place in zip(result.entries, places, strict=True):
            name = view.role or view.kind
            turn = f"turn {view.number}" if view.number else ""
            before = f"{place:>{max(room, 5)}} {' ' if view.internal else '•'} {name:<10} {turn:<8} "
            text = screen.fit(describe_entry(as_entry(view)), len(before))
            yield style(safe(before), *role_colour(name)) + text

    def notes(self, result: Logged, screen: Screen) -> Iterator[str]:
        if not (result.entries or result.events):
            yield f"there are no entries after {self.since}" if self.since else "there are no entries yet"


def newest_events(session: Session, since: int, last: int | None) -> list[LogEvent]:
    """Return the events of the entries after `since`; or the last ones only, and no more of the path is read."""
    if last is None:
        return list(log_events(session.path(since)))
    newest: list[LogEvent] = []
    for entry in takewhile(lambda entry: entry.seq > since, read(session).backwards()):
        newest[:0] = log_events([entry])
        if len(newest) >= last:
            break
    return newest[-last:]


def _event_line(event: LogEvent, screen: Screen) -> str:
    before = f"{event.number:>8} {event.type:<18} "
    text = event.content.get("content") or to_json(event.content, "event").decode()
    return before + screen.fit(safe(text), len(before))
