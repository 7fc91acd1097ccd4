"""Search over HTTP: what is indexed is found at once, what is not is indexed beside the request."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from anyio import to_thread
from litestar import get
from litestar.params import FromQuery, QueryParameter

from ...stores.search import SearchHit
from ..context import ApiRequest, context_and_caller
from ..json_views import to_json
from ..schemas import SearchResults
from ..search_indexer import SearchIndexer

PATIENCE = 0.3  # seconds a search waits for what is new: mostly enough, and nobody feels it when it is not


@get("/api/search", tags=["search"])
async def search(
    request: ApiRequest,
    q: Annotated[
        str, QueryParameter(description='Words, "phrases", prefix*, -without, role:tool agent:support …')
    ],
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 20,
    page: Annotated[str | None, QueryParameter(description="The `next` of a page")] = None,
    trashed: FromQuery[bool] = False,
) -> SearchResults:
    """Every message, tool input and tool output that matches. What is new is indexed; much of it takes a while, which `indexing` tells."""
    context, _ = context_and_caller(request)
    indexing: SearchIndexer = request.app.state.indexing
    ask = partial(context.store.search, q, limit=limit, before=page, trashed=trashed, catch_up=False)
    found = await to_thread.run_sync(ask)
    if found.unindexed_sessions:
        await indexing.catch_up(found.unindexed_sessions, PATIENCE)
        found = await to_thread.run_sync(ask)
    return SearchResults(
        hits=[{"reference": reference(hit), **to_json(hit)} for hit in found.hits],
        next=found.next,
        unindexed_sessions=found.unindexed_sessions,
        indexing=indexing.progress if found.unindexed_sessions else None,
        index_error=indexing.error if found.unindexed_sessions else None,
    )


def reference(hit: SearchHit) -> str:
    """What opens it: on the path by its number, elsewhere by its branch too."""
    if not hit.seq:
        return hit.session_id
    return f"{hit.session_id}@{hit.seq}" if hit.on_path else f"{hit.session_id}@{hit.branch}:{hit.seq}"


HANDLERS = [search]
