"""The store of one task, which caches the journal and the draft of its session.

Journals only grow, and a commit returns the new length: if it grew by what was committed and nothing else, the cache
is complete without a round trip. What others add is read after the next commit, or after `invalidate_journal`. Only
the holder of the lease writes drafts, so a draft that was read stays valid. Does not know what the facts mean.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from oakleaf.core.codec import from_json, to_json
from oakleaf.errors import ClaimLost
from oakleaf.stores.base import Change, CommitResult, Fact
from oakleaf_postgres.store.connections import PostgresConnections
from oakleaf_postgres.store.store import PostgresStore


class TaskStore(PostgresStore):
    def __init__(
        self, base: PostgresStore, wrap: Callable[[PostgresConnections], PostgresConnections]
    ) -> None:
        self.url, self.space, self.owner = base.url, base.space, base.owner
        self._connections, self._extendable = wrap(base._connections), base._extendable
        self._facts: dict[str, list[Fact]] = {}
        self._length: dict[str, int] = {}
        """Of a journal, as of the task's latest commit or read."""
        self._drafts: dict[str, str | None] = {}
        self._lock = Lock()

    def commit(self, change: Change) -> CommitResult:
        result = super().commit(change)
        with self._lock:
            facts = self._facts.get(change.session_id)
            if (
                facts is not None
                and len(facts) + 1 + len(change.facts) == result.facts
                and not result.is_repeat
            ):
                facts.extend(_facts_of(change, result))
            if not result.is_repeat:
                self._length[change.session_id] = result.facts
            if change.entries or change.move_to is not None:
                self._drafts.pop(change.session_id, None)
        return result

    def lease(
        self, session_id: str, holder: str, until: int, at: int, *, take_from: int | None = None
    ) -> int:
        fence = super().lease(session_id, holder, until, at, take_from=take_from)
        with self._lock:
            self._drafts.pop(session_id, None)
        return fence

    def draft(self, session_id: str) -> str | None:
        with self._lock:
            if session_id not in self._drafts:
                self._drafts[session_id] = super().draft(session_id)
            return self._drafts[session_id]

    def release(self, session_id: str, fence: int) -> None:
        """After a lost claim there is nothing to release, and ClaimLost was raised already."""
        with contextlib.suppress(ClaimLost):
            super().release(session_id, fence)

    def invalidate_journal(self, session_id: str) -> None:
        """Read the journal from the store next time, with what others added."""
        with self._lock:
            self._length.pop(session_id, None)

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        with self._lock:
            facts = self._facts.setdefault(session_id, [])
            if len(facts) < self._length.get(session_id, len(facts) + 1):
                facts += super().journal(session_id, len(facts))
                self._length[session_id] = len(facts)
            return facts[after:] if limit is None else facts[after : after + limit]


def _facts_of(change: Change, result: CommitResult) -> Iterator[Fact]:
    """Yield the facts of a change as they would be read."""
    place: dict[str, Any] = {}
    if change.after is not None:
        first = {"first": change.entries[0].seq} if change.entries else {}
        place = {"branch": result.leaf.branch, **first, "last": result.leaf.seq}
    n = result.facts - len(change.facts)
    yield Fact(n, change.kind, change.key, place | _data(change.data), change.at)
    for number, fact in enumerate(change.facts, n + 1):
        yield Fact(number, fact.kind, None, _data(fact.data), change.at)


def _data(data: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = from_json(to_json(data, "journal data")) if data else {}
    return decoded
