"""Search over HTTP: what is indexed is found at once, what is not is indexed beside the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Annotated

from anyio import to_thread
from litestar import get
from litestar.params import FromQuery, QueryParameter

from ...errors import BoughError
from ...stores.search import IndexProgress, SearchHit
from ..context import ApiRequest, context_and_caller
from ..json_views import to_json
from ..schemas import IndexingStatus, SearchResults

PATIENCE = 0.3  # seconds a search waits for what is new: mostly enough, and nobody feels it when it is not


class _Ended(Exception):
    """The server ends; what is indexed by now stays so."""


class SearchIndexer:
    def __init__(self, index: Callable[[IndexProgress], int]) -> None:
        self._index = index
        self._task: asyncio.Task[None] | None = None
        self._is_ending = Event()
        self._of = self._left = 0
        self.error: str | None = None
        """Why it could not go on; None: nothing is in the way."""

    @property
    def progress(self) -> IndexingStatus | None:
        """How far it is; None while nothing is being indexed."""
        return None if self._task is None else IndexingStatus(self._of - self._left, self._of)

    async def catch_up(self, behind: int, patience: float) -> None:
        """See that it goes on, and wait for its end, but no longer than so many seconds."""
        if self._task is None:
            self._of = self._left = behind
            self.error = None
            self._task = asyncio.create_task(self._run())
        await asyncio.wait([self._task], timeout=patience)

    async def close(self) -> None:
        """After the batch it is at: what was written is whole."""
        self._is_ending.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await asyncio.to_thread(self._index, self._progress)
        except _Ended:
            return
        except BoughError as error:  # a full disk, a lost connection: what is indexed can be searched
            self.error = str(error)
        finally:
            self._task = None

    def _progress(self, entries: int, left: int) -> None:
        if self._is_ending.is_set():
            raise _Ended
        self._left = min(left, self._of)


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
