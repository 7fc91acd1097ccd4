"""Maps threads to sessions: found by conversation id, started with the first checkpoint.

A thread is a session whose `conversation_id` is the thread's id, so a fork made by Oakleaf is a thread too, under its own
conversation id. A namespace (a subgraph's run) is a task of the session it was started from, tagged `checkpoint_ns`.
Knows the sessions of one store, not checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from hashlib import sha256
from itertools import chain
from threading import Lock
from typing import Any

from oakleaf.errors import NotFound
from oakleaf.ext import fork_at, read, read_store
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.base import SessionQuery, SessionRow
from oakleaf_frameworks.langgraph.thread_log import RecordedCalls, ThreadLog, run_key

NAMESPACE_TAG = "checkpoint_ns"
CACHE_SIZE = 256
"""Threads kept in memory with their messages; others are read again."""


class Threads:
    def __init__(self, store: Store, agent: str) -> None:
        self.store, self.agent = store, agent
        self._logs: OrderedDict[tuple[str, str], ThreadLog] = OrderedDict()
        self._recorded: OrderedDict[str, RecordedCalls] = OrderedDict()
        self._lock = Lock()

    # -- finding -----------------------------------------------------------------------------------

    def find(self, thread: str, namespace: str) -> ThreadLog | None:
        """Return the current thread; None for a missing thread."""
        cached = self._logs.get((thread, namespace))
        if cached is not None:
            try:
                if cached.catch_up().trashed_at is None:
                    return cached
            except NotFound:
                pass  # purged since
            self.forget(thread)
        row = self._row(thread, namespace)
        if row is None:
            return None
        log = self._cache(thread, namespace, self.store.session(row.session_id))
        log.catch_up()
        return log

    def find_or_start(self, thread: str, namespace: str) -> ThreadLog:
        """Return the thread as last known in this process; start a missing thread."""
        cached = self._logs.get((thread, namespace))
        if cached is not None:
            return cached
        row = self._row(thread, namespace)
        session = self._start(thread, namespace) if row is None else self.store.session(row.session_id)
        return self._cache(thread, namespace, session)

    def has_checkpoint(self, thread: str, namespace: str, checkpoint_id: str) -> bool:
        """Whether a checkpoint was written. Others' are read only if this process does not know it."""
        cached = self._logs.get((thread, namespace))
        if cached is None or checkpoint_id not in cached.index.checkpoints:
            cached = self.find(thread, namespace)
        return cached is not None and cached.find(checkpoint_id) is not None

    def _row(self, thread: str, namespace: str) -> SessionRow | None:
        which: dict[str, Any] = {"include_children": False}
        if namespace:
            which = {"relation": "task", "tag": (NAMESPACE_TAG, namespace)}
        page = self.store.sessions(conversation_id=thread, order="created", limit=1, **which)
        return page.sessions[0] if page.sessions else None

    def _start(self, thread: str, namespace: str) -> Session:
        if not namespace:
            return self.store.latest_or_start(thread, self.agent)
        root = self.find_or_start(thread, "").session
        parent = self.find_or_start(thread, namespace.rpartition("|")[0]).session
        name = sha256(namespace.encode()).hexdigest()[:16]
        return self.store.start_task(
            parent,
            self.agent,
            session_id=f"{root.session_id}.{name}",  # the same in every process: the second to start it finds it
            conversation_id=thread,
            title=namespace.rpartition("|")[2].partition(":")[0],
            tags={NAMESPACE_TAG: namespace},
        )

    def _cache(self, thread: str, namespace: str, session: Session) -> ThreadLog:
        with self._lock:
            log = self._logs.setdefault((thread, namespace), ThreadLog(session))
            self._logs.move_to_end((thread, namespace))
            while len(self._logs) > CACHE_SIZE:
                self._logs.popitem(last=False)
            return log

    def forget(self, thread: str) -> None:
        """Drop a deleted thread from the cache."""
        with self._lock:
            for key in [key for key in self._logs if key[0] == thread]:
                del self._logs[key]
            self._recorded.pop(thread, None)

    def recorded_calls(self, thread: str) -> RecordedCalls:
        """Return the recorded model calls of the thread and the subgraphs."""
        root = self.find_or_start(thread, "").session
        with self._lock:
            recorded = self._recorded.setdefault(thread, RecordedCalls(root))
            while len(self._recorded) > CACHE_SIZE:
                self._recorded.popitem(last=False)
            return recorded

    # -- listing -----------------------------------------------------------------------------------

    def namespaces(self, thread: str) -> list[str]:
        """Return the namespaces of a thread, the root first."""
        row = self._row(thread, "")
        rows = [] if row is None else self.store.family(row.session_id)
        return [row.tags.get(NAMESPACE_TAG, "") for row in rows]

    def all_threads(self) -> Iterator[tuple[str, str]]:
        """Yield thread and namespace of all of this agent's sessions."""
        return self._names(SessionQuery(agent=self.agent))

    def with_runs(self, run_ids: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield thread and namespace of the sessions with possible checkpoints of the runs."""
        queries = [SessionQuery(agent=self.agent, key=run_key(run_id)) for run_id in run_ids]
        if run_ids:  # what a fork inherits is not in its journal
            queries.append(SessionQuery(agent=self.agent, relation="fork"))
        return self._names(*queries)

    def _names(self, *queries: SessionQuery) -> Iterator[tuple[str, str]]:
        names = set()
        for row in chain.from_iterable(map(read_store(self.store).all_sessions, queries)):
            name = row.conversation_id, row.tags.get(NAMESPACE_TAG, "")
            if name not in names and row.relation != "replay":
                names.add(name)
                yield name

    # -- forking and deleting ----------------------------------------------------------------------

    def fork(self, source: ThreadLog, thread: str) -> ThreadLog:
        """Start a thread on the path of another. No entry is copied."""
        session, open_calls = source.session, source.session.open_tool_calls
        leaf = read(session).leaf_at(open_calls[0].seq - 1) if open_calls else session.leaf
        forked = fork_at(session, leaf, conversation_id=thread, tags=session.row.tags)
        return self._cache(thread, "", self.store.session(forked.session_id))

    def delete(self, thread: str) -> None:
        """Move a thread and its namespaces to the trash."""
        row = self._row(thread, "")
        if row is not None:
            self.store.delete(row.session_id)
        self.forget(thread)
