"""The query of a list of sessions: `agent:support status:failed after:7d refund`.

Filters, and words of the heading. Read by the grammar of a search.
"""

from __future__ import annotations

from typing import Any, get_args

from msgspec import Struct

from oakleaf.core.search import Part, split_query
from oakleaf.stores.values import STATUSES, Relation, SessionQuery

FILTERS = (
    *("status", "agent", "owner", "model", "conversation", "tag"),
    *("relation", "parent", "title", "before", "after", "is"),
)
RELATIONS: tuple[str, ...] = get_args(Relation)
_COLUMNS = {"conversation": "conversation_id", "parent": "parent_session"}


class SessionSearch(Struct, frozen=True):
    """The sessions that a query names."""

    query: SessionQuery
    words: tuple[str, ...] = ()
    """Words and phrases that the heading contains, in lower case."""
    without: tuple[str, ...] = ()
    """Those that the heading does not contain."""

    @property
    def has_words(self) -> bool:
        return bool(self.words or self.without)

    def matches(self, heading: str) -> bool:
        text = heading.casefold()
        return all(word in text for word in self.words) and not any(word in text for word in self.without)


def parse_sessions(query: str, now: int) -> SessionSearch:
    """Parse the query of a list, last active first. `now` is what `after:7d` counts from.

    Tasks and replays are left out unless the query says `is:all`, or names a relation or a parent.
    """
    wanted: dict[str, Any] = {"include_children": False}
    words: dict[bool, list[str]] = {False: [], True: []}
    for part in split_query(query, FILTERS):
        if part.name:
            wanted |= _filter(part, now)
        elif word := part.value.strip('*"').casefold():
            words[part.is_excluded].append(word)
    return SessionSearch(SessionQuery(order="active", **wanted), tuple(words[False]), tuple(words[True]))


def _filter(part: Part, now: int) -> dict[str, Any]:
    match part.name:
        case "before":
            return {"started_before": part.time(now)}
        case "after":
            return {"started_from": part.time(now)}
        case "status":
            return {"status": part.one_of(STATUSES)}
        case "relation":
            return {"relation": part.one_of(RELATIONS), "include_children": True}
        case "is":
            return _kind(part.one_of(["trashed", "all", *RELATIONS]))
        case "tag":
            return {"tag": _tag(part)}
        case "parent":
            return {"parent_session": part.bare, "include_children": True}
    return {_COLUMNS.get(part.name, part.name): part.bare}


def _kind(value: str) -> dict[str, Any]:
    match value:
        case "trashed":
            return {"trashed": True}
        case "all":
            return {"include_children": True}
    return {"relation": value, "include_children": True}


def _tag(part: Part) -> tuple[str, str]:
    name, equals, value = part.bare.partition("=")
    if not (name and equals):
        raise part.refused(f"expected tag:NAME=VALUE; oakleaf search tag:{name} finds a tag with any value")
    return name, value
