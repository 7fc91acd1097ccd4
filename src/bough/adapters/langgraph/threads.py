"""Which session is which thread: found by its conversation, started when the first checkpoint comes.

A thread is a session whose `conversation_id` is the thread's id, so a fork made by Bough is a thread too, under the
conversation it was given. A namespace (a subgraph's run) is a task of the session it was started from, tagged
`checkpoint_ns`. Knows the sessions of one store; knows nothing of checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from threading import Lock

from msgspec.structs import replace

from ...core.tree import Leaf
from ...core.usage import Totals
from ...errors import NotFound
from ...session import Session
from ...store import Store
from ...stores.base import SessionRow
from .path_cache import Counted
from .thread import ThreadLog

TAG = "checkpoint_ns"
MOST = 256  # threads that are remembered, with what was said in them; one that was forgotten is read again


class Threads:
    def __init__(self, store: Store, agent: str) -> None:
        self.store, self.agent = store, agent
        self._known: OrderedDict[tuple[str, str], ThreadLog] = OrderedDict()
        self._counted: OrderedDict[str, Counted] = OrderedDict()
        self._lock = Lock()

    # -- finding -----------------------------------------------------------------------------------

    def find(self, thread: str, ns: str) -> ThreadLog | None:
        """The thread as it is now; None if there is none."""
        known = self._known.get((thread, ns))
        if known is not None:
            try:
                if known.catch_up().trashed_at is None:
                    return known
            except NotFound:
                pass  # purged since
            self.forget(thread)
        row = self._row(thread, ns)
        if row is None:
            return None
        found = self._remember(thread, ns, self.store.session(row.session_id))
        found.catch_up()
        return found

    def opened(self, thread: str, ns: str) -> ThreadLog:
        """The thread, as this process last knew it; started if there is none."""
        known = self._known.get((thread, ns))
        if known is not None:
            return known
        row = self._row(thread, ns)
        if row is not None:
            return self._remember(thread, ns, self.store.session(row.session_id))
        return self._remember(thread, ns, self._started(thread, ns))

    def _row(self, thread: str, ns: str) -> SessionRow | None:
        if ns:
            page = self.store.sessions(conversation_id=thread, relation="task", tag=(TAG, ns), limit=1)
        else:
            page = self.store.sessions(conversation_id=thread, include_children=False, limit=1)
        return page.sessions[0] if page.sessions else None

    def _started(self, thread: str, ns: str) -> Session:
        if not ns:
            return self.store.latest_or_start(thread, self.agent)
        root = self.opened(thread, "").session
        parent = self.opened(thread, ns.rpartition("|")[0]).session
        name = sha256(ns.encode()).hexdigest()[:16]
        return self.store.start_task(
            parent,
            self.agent,
            session_id=f"{root.session_id}.{name}",  # whoever is second in starting it finds it
            conversation_id=thread,
            title=ns.rpartition("|")[2].partition(":")[0],
            tags={TAG: ns},
        )

    def _remember(self, thread: str, ns: str, session: Session) -> ThreadLog:
        with self._lock:
            found = self._known.setdefault((thread, ns), ThreadLog(session))
            self._known.move_to_end((thread, ns))
            while len(self._known) > MOST:
                self._known.popitem(last=False)
            return found

    def forget(self, thread: str) -> None:
        """What was known of it holds no more: it is in the trash, or gone."""
        with self._lock:
            for key in [key for key in self._known if key[0] == thread]:
                del self._known[key]
            self._counted.pop(thread, None)

    def counted(self, thread: str) -> Counted:
        """The model calls of the thread and its subgraphs that are in the ledger."""
        root = self.opened(thread, "").session
        with self._lock:
            found = self._counted.setdefault(thread, Counted(root))
            while len(self._counted) > MOST:
                self._counted.popitem(last=False)
            return found

    # -- going through -----------------------------------------------------------------------------

    def namespaces(self, thread: str) -> list[str]:
        """Those of a thread that exist, the root's first."""
        row = self._row(thread, "")
        rows = [] if row is None else self.store.family(row.session_id)
        return [row.tags.get(TAG, "") for row in rows]

    def every(self) -> Iterator[tuple[str, str]]:
        """Thread and namespace of every session that is one of this agent's."""
        seen = set()
        for row in self.store.all_sessions(agent=self.agent, limit=200):
            key = row.conversation_id, row.tags.get(TAG, "")
            if key not in seen and row.relation != "replay":
                seen.add(key)
                yield key

    # -- moving ------------------------------------------------------------------------------------

    def fork(self, source: ThreadLog, thread: str) -> ThreadLog:
        """A thread that stands on all of another's path. No entry is copied."""
        log, now = source.log, self.store.runtime.now()
        row, detail = log.store.session_with_detail(log.session_id)
        fork = replace(
            row,
            session_id=self.store.runtime.new_id("ses"),
            conversation_id=thread,
            status="idle",
            relation="fork",
            parent_session=row.session_id,
            leaf=Leaf(0, 0),
            turns=0,
            totals=Totals(),
            facts=0,
            fence=0,
            holder=None,
            lease_until=None,
            started_at=now,
            updated_at=now,
            completed_at=None,
            error=None,
        )
        made, _ = log.fork(log.cut(log.leaf.seq), fork, replace(detail, state=None), None)
        return self._remember(thread, "", self.store.session(made.session_id))

    def delete(self, thread: str) -> None:
        """Into the trash, with its namespaces."""
        row = self._row(thread, "")
        if row is not None:
            self.store.delete(row.session_id)
        self.forget(thread)
