"""Bringing the search index up to date, beside the requests: one at a time, told as it goes, ended with the server.

Knows how far it is and why it stopped. Does not know what is searched for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event

from msgspec import Struct

from ..errors import BoughError
from ..stores.search import IndexProgress


class IndexingStatus(Struct, frozen=True):
    """How many of the sessions that lacked something when it began are whole by now."""

    done: int
    total: int


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
