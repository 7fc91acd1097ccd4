"""Sessions in a list, and those of them whose headings hold some words.

No store keeps headings in a form that could be asked for words, so they are looked through, newest first, a bounded
number for each request: one that comes back with little, or nothing, and a `next` has not looked through all.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ..stores.base import SessionQuery, SessionRow, StoreBackend
from .json_views import heading

STEP, MOST_WORK = 500, 2_000
UNTITLED = (
    4  # the heading of a row without a title is read from its first entries, which takes that much longer
)


class SessionRows(Struct, frozen=True):
    rows: list[tuple[SessionRow, str]]
    """Each with its heading."""
    next: str | None


def find_sessions(store: StoreBackend, query: SessionQuery, words: str) -> SessionRows:
    """A page of what is wanted, and if there are words, of those that have all of them in their headings."""
    sought = words.casefold().split()
    if sought:
        return _looked_through(store, query, sought)
    page = store.sessions(query)
    return SessionRows([(row, heading(store, row)) for row in page.sessions], page.next)


def _looked_through(store: StoreBackend, query: SessionQuery, sought: list[str]) -> SessionRows:
    found, before, work = list[tuple[SessionRow, str]](), query.before, 0
    while True:
        step = replace(query, before=before, limit=STEP)
        page = store.sessions(step)
        for n, row in enumerate(page.sessions, 1):
            named = heading(store, row)
            work += 1 if row.title else UNTITLED
            if all(word in named.casefold() for word in sought):
                found.append((row, named))
            if len(found) == query.limit or work >= MOST_WORK:
                return SessionRows(found, store.sessions(replace(step, limit=n)).next)
        if page.next is None:
            return SessionRows(found, None)
        before = page.next
