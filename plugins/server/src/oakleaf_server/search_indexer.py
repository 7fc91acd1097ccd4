"""The indexing that a search triggers, in the background. Knows no route."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock

from oakleaf.errors import OakleafError
from oakleaf.stores.search import IndexProgress

INDEX_WAIT = 0.3  # seconds a search waits for indexing: usually enough, and short enough not to be noticed


class _ShutDown(Exception):
    """Raised at shutdown to stop indexing; indexed entries stay indexed."""


class SearchIndexer:
    """Brings the search index up to date in the background, a single run at a time."""

    def __init__(self, index: Callable[[IndexProgress], int]) -> None:
        self._index = index
        self._thread = ThreadPoolExecutor(1, "oakleaf-index")
        self._lock, self._is_ending = Lock(), Event()
        self._run: Future[int] | None = None

    def catch_up(self, patience: float) -> str | None:
        """Start indexing unless running, and wait at most `patience` seconds; return the reason for a
        failure, if any.
        """
        with self._lock:
            if self._run is None or self._run.done():
                self._run = self._thread.submit(self._index, self._check)
            run = self._run
        try:
            run.result(patience)
        except (TimeoutError, _ShutDown):
            return None
        except OakleafError as error:  # full disk or lost connection: indexed entries can still be searched
            return str(error)
        return None

    def close(self) -> None:
        """Stop after the current batch."""
        self._is_ending.set()
        self._thread.shutdown()

    def _check(self, entries: int, remaining: int) -> None:
        if self._is_ending.is_set():
            raise _ShutDown
