"""Route for search, and the background indexing it triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Annotated

from anyio import to_thread
from litestar import get
from litestar.params import FromQuery, QueryParameter

from oakleaf.errors import OakleafError
from oakleaf.ext import read_store
from oakleaf.stores.search import IndexProgress
from oakleaf_server.context import ApiRequest, context_and_caller
from oakleaf_server.json_views import to_json
from oakleaf_server.schemas import IndexingStatus, SearchResults

INDEX_WAIT = 0.3  # seconds a search waits for indexing: usually enough, and short enough not to be noticed


class _ShutDown(Exception):
    """Raised at shutdown to stop indexing; indexed entries stay indexed."""


class SearchIndexer:
    """Brings the search index up to date in the background, one run at a time."""

    def __init__(self, index: Callable[[IndexProgress], int]) -> None:
        self._index = index
        self._task: asyncio.Task[None] | None = None
        self._is_ending = Event()
        self._total = self._left = 0
        self.error: str | None = None
        """Why the last indexing failed, or None."""

    @property
    def progress(self) -> IndexingStatus | None:
        """Progress of indexing; None if none is running."""
        return None if self._task is None else IndexingStatus(self._total - self._left, self._total)

    async def catch_up(self, behind: int, patience: float) -> None:
        """Start indexing unless it is running, and wait for its end, at most `patience` seconds."""
        if self._task is None:
            self._total = self._left = behind
            self.error = None
            self._task = asyncio.create_task(self._run())
        await asyncio.wait([self._task], timeout=patience)

    async def close(self) -> None:
        """Stop after the current batch."""
        self._is_ending.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await asyncio.to_thread(self._index, self._progress)
        except _ShutDown:
            return
        except OakleafError as error:  # full disk or lost connection: indexed entries can still be searched
            self.error = str(error)
        finally:
            self._task = None

    def _progress(self, entries: int, remaining: int) -> None:
        if self._is_ending.is_set():
            raise _ShutDown
        self._left = min(remaining, self._total)


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
    """Search messages, tool inputs and tool outputs. New entries are indexed first; `indexing` shows progress if that takes long."""
    context, _ = context_and_caller(request)
    indexing: SearchIndexer = request.app.state.indexing
    run_search = partial(context.store.search, q, limit=limit, before=page, trashed=trashed, catch_up=False)
    result = await to_thread.run_sync(run_search)
    if result.unindexed_sessions:
        await indexing.catch_up(result.unindexed_sessions, INDEX_WAIT)
        result = await to_thread.run_sync(run_search)
    names = await to_thread.run_sync(read_store(context.store).hit_headings, result.hits)
    return SearchResults(
        hits=[
            {"reference": hit.reference, "heading": names[hit.session_id], **to_json(hit)}
            for hit in result.hits
        ],
        next=result.next,
        unindexed_sessions=result.unindexed_sessions,
        indexing=indexing.progress if result.unindexed_sessions else None,
        index_error=indexing.error if result.unindexed_sessions else None,
    )


HANDLERS = [search]
