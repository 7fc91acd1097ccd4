"""The store of one task: what the task wrote or has read already it does not read again.

Knows that journals only grow, and that a commit tells how long one is: if it grew by what was committed and nothing
else, what is known of it is still all of it, and no round trip is needed to say so. What others add is seen with
the next commit, or when somebody says `look_again`. A draft is written by whoever holds the lease, so it stays as it
was found. Does not know what the facts are for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from ...core.codec import from_json, to_json
from ...errors import ClaimLost
from ...stores.base import Change, CommitResult, Fact
from ...stores.postgres.connections import Connections
from ...stores.postgres.store import PostgresStore


class TaskStore(PostgresStore):
    def __init__(self, base: PostgresStore, join: Callable[[Connections], Connections]) -> None:
        vars(self).update(vars(base.with_connections(join)))
        self._known: dict[str, list[Fact]] = {}
        self._length: dict[str, int] = {}
        """Of a journal, as the task's latest commit or look told it."""
        self._drafts: dict[str, str | None] = {}
        self._lock = Lock()

    def commit(self, change: Change) -> CommitResult:
        done = super().commit(change)
        with self._lock:
            known = self._known.get(change.session_id)
            if known is not None and len(known) + 1 + len(change.facts) == done.facts and not done.is_repeat:
                known.extend(_facts(change, done))
            if not done.is_repeat:
                self._length[change.session_id] = done.facts
            if change.entries or change.move_to is not None:
                self._drafts.pop(change.session_id, None)
        return done

    def lease(self, session_id: str, holder: str, until: int, at: int) -> int:
        fence = super().lease(session_id, holder, until, at)
        with self._lock:
            self._drafts.pop(session_id, None)
        return fence

    def draft(self, session_id: str) -> str | None:
        with self._lock:
            if session_id not in self._drafts:
                self._drafts[session_id] = super().draft(session_id)
            return self._drafts[session_id]

    def release(self, session_id: str, fence: int) -> None:
        """Who has lost his claim has nothing to let go of, and has been told."""
        with contextlib.suppress(ClaimLost):
            super().release(session_id, fence)

    def invalidate_journal(self, session_id: str) -> None:
        """What others have said since counts: the next look at the journal is at the journal."""
        with self._lock:
            self._length.pop(session_id, None)

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]:
        with self._lock:
            known = self._known.setdefault(session_id, [])
            if len(known) < self._length.get(session_id, len(known) + 1):
                known += super().journal(session_id, len(known))
                self._length[session_id] = len(known)
            return known[after:] if limit is None else known[after : after + limit]


def _facts(change: Change, done: CommitResult) -> Iterator[Fact]:
    """As they would be read."""
    place: dict[str, Any] = {}
    if change.after is not None:
        first = {"first": change.entries[0].seq} if change.entries else {}
        place = {"branch": done.leaf.branch, **first, "last": done.leaf.seq}
    n = done.facts - len(change.facts)
    yield Fact(n, change.kind, change.key, place | _data(change.data), change.at)
    for further, fact in enumerate(change.facts, n + 1):
        yield Fact(further, fact.kind, None, _data(fact.data), change.at)


def _data(data: Any) -> dict[str, Any]:
    found: dict[str, Any] = from_json(to_json(data, "journal data")) if data else {}
    return found
