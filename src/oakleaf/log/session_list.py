"""Lists of sessions with their current status: a running session without a living runner is interrupted.

A killed runner marks nothing. The lease tells: either the lease has expired, or the process, on this machine,
has ended. A list writes nothing down; `oakleaf doctor --fix` and the next run do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oakleaf.core.tree_text import describe_message, one_line
from oakleaf.log.lease import Hold
from oakleaf.stores.base import SessionPage, SessionQuery, SessionRow, StoreBackend
from oakleaf.stores.counts import CountColumn, count_by
from oakleaf.stores.filters import SessionSearch
from oakleaf.stores.search import SearchHit

if TYPE_CHECKING:
    from oakleaf.log.runtime import Runtime


def current_row(row: SessionRow, runtime: Runtime) -> SessionRow:
    """Return the row with its current status."""
    return replace(row, status="interrupted") if Hold(row, runtime).is_stuck else row


def session_page(store: StoreBackend, query: SessionQuery, runtime: Runtime) -> SessionPage:
    """Return a page of sessions, filtered by their current status. The last page may be empty."""
    if query.status not in ("running", "interrupted"):
        page = store.sessions(query)
        return replace(page, sessions=[current_row(row, runtime) for row in page.sessions])
    step, matches, times = replace(query, or_running=True), list[SessionRow](), dict[str, int]()
    while True:
        page = store.sessions(step)
        times |= page.active_at
        for n, row in enumerate(page.sessions, 1):
            if (current := current_row(row, runtime)).status == query.status:
                matches.append(current)
            if len(matches) == query.limit:
                is_last = n == len(page.sessions)
                following = page.next if is_last else store.sessions(replace(step, limit=n)).next
                return SessionPage(matches, following, times)
        if page.next is None:
            return SessionPage(matches, active_at=times)
        step = replace(step, before=page.next)


STEP, MAX_WORK = 500, 2_000
UNTITLED = 4  # the heading of a row without a title is read from its entries, which takes that much longer


def find_sessions(store: StoreBackend, search: SessionSearch, runtime: Runtime) -> SessionPage:
    """Return a page of the sessions that match all of a query.

    Headings are not indexed, so they are read in order, a bounded number for a page: a page with few rows and a `next`
    has not read all headings.
    """
    if not search.has_words:
        return session_page(store, search.query, runtime)
    matches, times, before, work = list[SessionRow](), dict[str, int](), search.query.before, 0
    while True:
        step = replace(search.query, before=before, limit=STEP)
        page = session_page(store, step, runtime)
        names = headings(store, page.sessions)
        times |= page.active_at
        for n, row in enumerate(page.sessions, 1):
            work += 1 if row.title else UNTITLED
            if search.matches(names[row.session_id]):
                matches.append(row)
            if len(matches) == search.query.limit or work >= MAX_WORK:
                following = session_page(store, replace(step, limit=n), runtime).next
                return SessionPage(matches, following, times)
        if page.next is None:
            return SessionPage(matches, active_at=times)
        before = page.next


MAX_COUNT = 1_000
"""The maximum number of counted sessions of a list: a longer list shows `1,000+`."""


def count_sessions(
    store: StoreBackend, query: SessionQuery, by: CountColumn, runtime: Runtime
) -> dict[str, int]:
    """Count matching sessions by the values of one column with their current status; "" counts as no value.

    Counts the last active sessions, `MAX_COUNT` at most; by status and without another filter, `MAX_COUNT` of
    each status.
    """
    if query.status in ("running", "interrupted"):
        page = store.sessions(replace(query, or_running=True, order="active", before=None, limit=MAX_COUNT))
        rows = (current_row(row, runtime) for row in page.sessions)
        return count_by((row for row in rows if row.status == query.status), by)
    if by == "status" and query == SessionQuery(order=query.order, before=query.before, limit=query.limit):
        counts = store.status_counts(MAX_COUNT)
    else:
        counts = store.count(query, by, MAX_COUNT)
    if by != "status" or "running" not in counts:
        return counts
    running = store.sessions(
        replace(query, status="running", order="active", before=None, limit=counts["running"])
    )
    stuck = sum(Hold(row, runtime).is_stuck for row in running.sessions)
    now = {"running": counts["running"] - stuck, "interrupted": counts.get("interrupted", 0) + stuck}
    return {status: min(count, MAX_COUNT) for status, count in (counts | now).items() if count}


def headings(store: StoreBackend, rows: Sequence[SessionRow]) -> dict[str, str]:
    """Return one line per session: the title, else the first input, else the agent, else the id."""
    return _headings(store, {row.session_id: (row.title, row.agent) for row in rows})


def hit_headings(store: StoreBackend, hits: Sequence[SearchHit]) -> dict[str, str]:
    """Return one line per session of the hits: the title, else the first input, else the id."""
    return _headings(store, {hit.session_id: (hit.title, None) for hit in hits})


def _headings(store: StoreBackend, names: dict[str, tuple[str | None, str | None]]) -> dict[str, str]:
    inputs = store.first_inputs([session_id for session_id, (title, _) in names.items() if not title])
    first = {session_id: describe_message(message) for session_id, message in inputs.items()}
    return {
        session_id: one_line(title or first.get(session_id) or agent or session_id)
        for session_id, (title, agent) in names.items()
    }


def heading(store: StoreBackend, row: SessionRow) -> str:
    return headings(store, [row])[row.session_id]
