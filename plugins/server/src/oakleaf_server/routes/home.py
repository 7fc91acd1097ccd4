"""Route for the home page: what waits for a person, what failed, what runs, and what it cost."""

from __future__ import annotations

from functools import reduce
from operator import or_

from litestar import get
from msgspec import structs

from oakleaf import Store
from oakleaf.core.usage import Totals, add
from oakleaf.ext import read, read_store
from oakleaf.session import Session
from oakleaf.stores.base import SessionQuery, SessionRow
from oakleaf.stores.tasks import queue_statuses
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, in_thread
from oakleaf_server.json_views import to_json
from oakleaf_server.pending_calls import pending_approvals
from oakleaf_server.routes.sessions import list_row, list_rows
from oakleaf_server.routes.usage import day, without_replays
from oakleaf_server.schemas import Overview, QueueView, WaitingSession

STATUSES = ("waiting", "failed", "interrupted", "running")
MAX_ROWS = 12
WEEK = 7
_DAY = 86_400_000_000


@get("/api/overview", tags=["sessions"])
@in_thread
def overview(request: ApiRequest) -> Overview:
    """Return what needs attention: sessions that wait for approval with their calls, failed, interrupted and running ones,
    without tasks and replays, and the cost of today and of seven days (UTC), without that of replays."""
    context, _ = context_and_caller(request)
    store = read_store(context.store)
    today = store.now() // _DAY
    spent = without_replays(store.daily_usage((today - WEEK + 1) * _DAY))
    sums = {number: Totals() for number in range(today - WEEK + 1, today + 1)}
    for one in spent:
        sums[one.day] = add(sums.get(one.day, Totals()), one.totals)
    queries = {status: _query(status) for status in STATUSES}
    pages = {status: store.sessions(query) for status, query in queries.items()}
    counts = [store.count(query, "status") for query in queries.values()]
    views = {status: [list_row(row) for row in list_rows(store, page)] for status, page in pages.items()}
    return Overview(
        counts=reduce(or_, counts),
        total=sum(store.status_counts(store.MAX_COUNT).values()),
        waiting=[
            WaitingSession(session=view, approvals=_approvals(context, row))
            for view, row in zip(views["waiting"], pages["waiting"].sessions, strict=True)
        ],
        failed=views["failed"],
        interrupted=views["interrupted"],
        running=views["running"],
        cost_today=to_json(sums[today]),
        cost_week=to_json(reduce(add, sums.values())),
        days=[{"name": day(number), "totals": to_json(sums[number])} for number in sorted(sums)],
        queues=queue_views(context.store),
    )


def queue_views(store: Store) -> list[QueueView]:
    """Return the queues of the store's workers, if any."""
    return [QueueView(**structs.asdict(status)) for status in queue_statuses(store)]


def _query(status: str) -> SessionQuery:
    """Return the query of a list: a task's wait is shown with the parent, and a replay is not resumed."""
    return SessionQuery(status=status, include_children=False, order="active", limit=MAX_ROWS)


def _approvals(context: ServerContext, row: SessionRow) -> list[dict[str, object]]:
    session: Session = context.store.session(row.session_id)
    return pending_approvals(session, read(session).call_status())


HANDLERS = [overview]
