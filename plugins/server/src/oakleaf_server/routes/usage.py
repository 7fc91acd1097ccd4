"""Routes for usage and storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec.structs import astuple, replace

from oakleaf.core.time_text import parse_time
from oakleaf.core.usage import Totals, add
from oakleaf.errors import NotFound
from oakleaf.ext import read, read_store
from oakleaf.stores.base import SessionRow
from oakleaf.stores.counts import DailyUsage, StorageSize
from oakleaf.stores.filters import parse_sessions
from oakleaf_server.context import ApiRequest, context_and_caller, find_session, in_thread
from oakleaf_server.json_views import to_json
from oakleaf_server.schemas import Json, SpaceStorage, SpaceUsage, Storage

MOST_NAMES, MOST_ROWS, LARGEST = 200, 2_000, 25


@get("/api/usage/days", tags=["usage"])
@in_thread
def usage_days(
    request: ApiRequest,
    since: Annotated[str | None, QueryParameter(description="2026-11-01, or 7d")] = None,
) -> SpaceUsage:
    """Sum the model calls of all sessions, including trashed ones, by day (UTC), model, agent and bucket, at once.

    `total`, `days`, `models` and `agents` leave replays out; `buckets` and `rows` have them.
    """
    context, _ = context_and_caller(request)
    floor = 0 if since is None else parse_time("since", since, read_store(context.store).now())
    spent = read_store(context.store).daily_usage(max(floor, 0))
    live = without_replays(spent)
    rows = [
        {
            "day": day(one.day),
            "model": one.model or "",
            "agent": one.agent or "",
            "bucket": one.bucket,
            "totals": to_json(one.totals),
        }
        for one in spent[-MOST_ROWS:]
    ]
    return SpaceUsage(
        total=to_json(reduce(add, (one.totals for one in live), Totals())),
        days=_sums(live, lambda one: day(one.day), by_name=True),
        models=_sums(live, lambda one: one.model or ""),
        agents=_sums(live, lambda one: one.agent or ""),
        buckets=_sums(spent, lambda one: one.bucket),
        rows=rows,
    )


def without_replays(spent: Iterable[DailyUsage]) -> list[DailyUsage]:
    """Return the usage of the work itself: a replay repeats the work."""
    return [one for one in spent if one.bucket != "replay"]


def day(number: int) -> str:
    return datetime.fromtimestamp(number * 86_400, UTC).strftime("%Y-%m-%d")


def _sums(
    spent: Iterable[DailyUsage], name: Callable[[DailyUsage], str], *, by_name: bool = False
) -> list[Json]:
    groups: dict[str, Totals] = {}
    for one in spent:
        groups[name(one)] = add(groups.get(name(one), Totals()), one.totals)
    if by_name:
        return [{"name": key, "totals": to_json(groups[key])} for key in sorted(groups)[-1_000:]]
    return _by_cost(groups)


def _by_cost(groups: dict[str, Totals]) -> list[Json]:
    """Most expensive first."""
    order = sorted(groups, key=lambda key: (-groups[key].cost_microcents, -groups[key].calls, key))
    return [{"name": key, "totals": to_json(groups[key])} for key in order[:MOST_NAMES]]


@get("/api/sessions/{session_id:str}/storage", tags=["usage"])
@in_thread
def storage(request: ApiRequest, session_id: FromPath[str]) -> Storage:
    """Return the size of a session's own branches in entries and bytes."""
    session = find_session(request, session_id)
    return Storage(**to_json(read(session).storage_size()))


@get("/api/storage", tags=["usage"])
@in_thread
def space_storage(
    request: ApiRequest,
    filters: Annotated[
        str, QueryParameter(name="query", description="As of a list of sessions, such as is:trashed")
    ] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=1_000, description="Sessions per page")] = 500,
    page: Annotated[str | None, QueryParameter(description="The `next` of a page")] = None,
) -> SpaceStorage:
    """Return the size of a page of sessions: sums and the largest sessions.

    A blob referenced by several sessions is stored once but counted for each.
    """
    context, _ = context_and_caller(request)
    store, sums = read_store(context.store), StorageSize()
    search = parse_sessions(filters, store.now())
    wanted = replace(search.query, include_children=True, limit=limit, before=page)
    rows = store.find_sessions(replace(search, query=wanted))
    sizes: list[tuple[SessionRow, StorageSize]] = []
    for row in rows.sessions:
        try:
            size = store.storage_size(row.session_id)
        except NotFound:
            continue  # purged since the page was read
        sizes.append((row, size))
        sums = StorageSize(*(a + b for a, b in zip(astuple(sums), astuple(size), strict=True)))
    sizes.sort(key=lambda pair: -(pair[1].bytes + pair[1].blob_bytes))
    names = store.headings([row for row, _ in sizes[:LARGEST]])
    return SpaceStorage(
        sessions=len(sizes),
        **to_json(sums),
        largest=[
            {"id": row.session_id, "heading": names[row.session_id], **to_json(size)}
            for row, size in sizes[:LARGEST]
        ],
        next=rows.next,
    )


HANDLERS = [usage_days, storage, space_storage]
