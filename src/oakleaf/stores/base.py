"""The contract of every store.

The author of a store writes fifteen methods. Plain code derives further methods; a database overrides a derived method
where a statement is faster. The rest are capabilities, which a store may lack. `stores.plain` is the whole contract over maps.

The laws in prose; `oakleaf.testing.stores` is the same list as tests.

- **One write.** `commit(change)` is the only write to a live session. It is atomic: entries, calls, state, row, leaf
  and facts, or nothing.
- **Compare and swap.** A change that names the leaf it follows is written only if that is the session's leaf. If it is
  not and the change's key is in the journal, the recorded result is returned and nothing is written; if the key is
  unknown, `StaleLeaf` is raised and nothing is written.
- **One runner.** While a lease is held, a change without a fence that appends anything but notes, or moves the leaf,
  raises `SessionRunning` and writes nothing. A runner passes its fence; `Fenced` if another has taken over.
- **A caller's key is unique in its session**, whatever the leaf, the fence or the status: if it is known, the recorded
  result is returned and nothing is written. A key that Oakleaf made begins with `~` and is not looked up.
- **Entries never change.** (branch, seq) is written once. A path from any leaf has no gap.
- **Branches.** An append extends the leaf's branch if this session owns it and the leaf is its tail; otherwise it opens
  a branch whose parent holds the leaf's entry. Branch numbers are never reused.
- **The journal has no gap** and is never rewritten: each change adds its own fact first, then the extra ones.
- **Totals are sums.** The row's totals equal the sum of the session's own calls after every commit.
- **Reads are snapshots.** Row, branches and entries of one read belong to one moment.
- **Tenants.** A store is opened for a space, and perhaps an owner; a session of another tenant is not found.
- **Transfer.** `export_sessions` describes a session without its store's numbers, `import_sessions` writes it under new
  ones: exporting what was imported gives the same export. What a fork inherits comes along, without an owner unless
  its parent is present and holds the same. What says that something came from elsewhere (`SessionRow.imported_facts`,
  `QueuedInput.is_imported`) is kept, and not compared.
- **Tool calls.** `find_tool_calls` finds every answer that holds a call of a hash, from the commit that appended it, or
  the import that brought it, until its purge. It follows from the bodies; nothing that an import says about it counts.
- **Search.** What was indexed is found by the words of `core.search`, once, under the session that owns it. Appending
  does not index; `index` does, and `unindexed_sessions` counts what it has not reached yet.
- **Purge.** What no surviving branch inherits is deleted; what one inherits stays, with the calls it cost.

Stores are synchronous and safe to use from several threads. They do not read the clock, make no ids and know nothing of
turns, providers or prices: the log decides, the store keeps.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oakleaf.core.call_hash import call_hashes
from oakleaf.core.codec import decode_message
from oakleaf.core.drafts import Blob
from oakleaf.core.entries import Entry
from oakleaf.core.facts import Fact, Status, StoredFact, kind_of
from oakleaf.core.messages import Message
from oakleaf.core.search import Search
from oakleaf.core.tree import Branch, Leaf, Range, contains_leaf, lineage, window
from oakleaf.core.usage import Call
from oakleaf.errors import InvalidPosition, NotFound, PostgresRequired, StoreDamaged, StoreLacks
from oakleaf.stores.counts import (
    CountColumn,
    DailyUsage,
    StorageSize,
    UsageSums,
    count_by,
    storage_size_of,
    sum_daily,
    sum_usage,
)
from oakleaf.stores.scan_search import scan_search
from oakleaf.stores.search import IndexProgress, SearchPage
from oakleaf.stores.transfer import ImportResult, SessionExports, StoreExporter
from oakleaf.stores.values import (
    ACTIVITY_STEP,
    LABEL,
    MADE_KEY,
    PAGE_SIZE,
    SETTABLE_COLUMNS,
    STATUSES,
    CallPlace,
    Change,
    CommitResult,
    Effect,
    Finding,
    ListedSession,
    NewSession,
    Order,
    PathSnapshot,
    PurgeResult,
    QueuedInput,
    Relation,
    SessionDetail,
    SessionHead,
    SessionPage,
    SessionQuery,
    SessionRow,
    StoredEntry,
    UnreferencedBlobs,
    check_limit,
    is_callers_key,
    next_fence,
    page_of,
    repeat_of,
)

if TYPE_CHECKING:
    from oakleaf.stores.tasks import QueueStatus, TaskQueue

__all__ = [
    "ACTIVITY_STEP",
    "CallPlace",
    "Change",
    "CommitResult",
    "Effect",
    "Finding",
    "ImportResult",
    "IndexProgress",
    "LABEL",
    "ListedSession",
    "MADE_KEY",
    "NewSession",
    "Order",
    "PathSnapshot",
    "PurgeResult",
    "QueuedInput",
    "Relation",
    "SETTABLE_COLUMNS",
    "STATUSES",
    "SearchPage",
    "SessionDetail",
    "SessionExports",
    "SessionHead",
    "SessionPage",
    "SessionQuery",
    "SessionRow",
    "Status",
    "StorageSize",
    "StoreBackend",
    "StoredEntry",
    "UnreferencedBlobs",
    "check_limit",
    "is_callers_key",
    "next_fence",
    "page_of",
    "repeat_of",
]


class StoreBackend(ABC):
    """A store opened for a space and, if given, an owner."""

    space: str
    owner: str | None
    url: str
    effects: tuple[type[Effect], ...] = ()
    """The effects that a change may have."""

    # -- required: writing ---------------------------------------------------------------------------

    @abstractmethod
    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Return the session, and whether the session is new. Idempotent by id; `IdTaken` if the id has another history."""

    @abstractmethod
    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Return the newest session of the conversation, except forks, tasks and replays; else create `new`, atomically.

        If `new` has an owner, the newest session of the owner.
        """

    @abstractmethod
    def commit(self, change: Change) -> CommitResult:
        """Write a change, all or nothing. `Change.check` says whether it may be written."""

    @abstractmethod
    def lease(
        self, session_id: str, holder: str, until: int, at: int, *, take_from: int | None = None
    ) -> int:
        """Take the right to run the session; return the fence, raised for each new holder.

        `SessionRunning` if another holder has it, unless its lease has expired or its fence is `take_from`.
        """

    @abstractmethod
    def renew(self, session_id: str, fence: int, until: int) -> bool:
        """Extend the lease of the fence, expired or not; return False for a lease released or taken over."""

    @abstractmethod
    def release(self, session_id: str, fence: int) -> None: ...

    @abstractmethod
    def put_blob(self, blob: Blob, at: int) -> None: ...

    # -- required: reading ---------------------------------------------------------------------------

    @abstractmethod
    def session_with_detail(self, session_id: str) -> tuple[SessionRow, SessionDetail]:
        """Return the row and the detail of the same moment; `NotFound` if the session is absent or another tenant's."""

    @abstractmethod
    def sessions(self, query: SessionQuery) -> SessionPage:
        """Return a page of a list. `next` is a position and not a row: another store's only begins elsewhere."""

    @abstractmethod
    def branches(self, session_id: str) -> list[Branch]:
        """Return the session's own branches and the ancestors, oldest first."""

    @abstractmethod
    def entries(self, session_id: str, part: Range | None = None) -> list[StoredEntry]:
        """Return every entry of the session's own branches, reachable or not, by (branch, seq).

        With `part`: the entries of a part of a branch, own or inherited.
        """

    @abstractmethod
    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[StoredFact]: ...

    @abstractmethod
    def calls(self, session_id: str) -> list[Call]:
        """Return the session's own ledger rows, oldest first."""

    @abstractmethod
    def inherited_calls(self, session_id: str) -> list[Call]:
        """Return the ledger rows of the sessions, also purged ones, that own the ancestors of the branches."""

    @abstractmethod
    def blob(self, digest: str) -> Blob | None: ...

    # -- capabilities, with the answer of a store that lacks them ------------------------------------

    def for_tenant(self, space: str, owner: str | None = None) -> StoreBackend:
        """Return this store for another tenant, on the same connections. Closing either closes both."""
        raise StoreLacks(self.url, "be opened for another space on the same connections")

    def spaces(self) -> list[str] | None:
        """Return the names of all spaces with sessions, also in the trash, sorted; None if the caller may see one alone."""
        return None

    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        """Queue an input for a running session; return the input's number."""
        raise StoreLacks(self.url, "queue an input for a session that is running")

    def inbox(self, session_id: str, limit: int | None = None) -> list[QueuedInput]:
        """Return queued inputs, oldest first, at most `limit`. A change with their `inbox_number` removes them."""
        self.session(session_id)
        return []

    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        """Save the text of an answer in flight, replacing the earlier draft. `Fenced` if another runner took over."""
        return

    def draft(self, session_id: str) -> str | None:
        """Return the draft saved at the current leaf; None if the leaf has moved since."""
        return None

    def trash(self, session_id: str, at: int) -> list[str]:
        """Move the session and its tasks to the trash, tasks first; return their ids."""
        raise StoreLacks(self.url, "delete sessions")

    def restore(self, session_id: str) -> list[str]:
        raise StoreLacks(self.url, "delete sessions, so none can be restored")

    def purge(self, session_id: str, *, with_forks: bool = False, scrub: bool = True) -> PurgeResult:
        """Delete a trashed session for good.

        To remove the last byte a store may rewrite its file: of many sessions, scrub with the last purge only.
        """
        raise StoreLacks(self.url, "delete sessions")

    def scrub(self) -> bool:
        """Remove every byte of what was purged from the files of the store.

        False if a reader holds the write-ahead log open: the next scrub or purge cleans it.
        """
        return True

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        """Count the blobs that `delete_unreferenced_blobs` would delete."""
        return UnreferencedBlobs(0, 0)

    def delete_unreferenced_blobs(self, before: int) -> int:
        """Delete older blobs of the space that no entry and no queued input refers to; return the number."""
        return 0

    def lost_branches(self) -> list[int]:
        """Return branches without an owner and without an heir: a purge leaves none, so a row was removed."""
        return []

    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        """Write whole sessions, every byte, id, seq and time unchanged: all sessions, or nothing.

        A session present with the same content is left alone; `IdConflict` if the id holds other content.
        """
        raise StoreLacks(self.url, "import sessions")

    def life_token(self) -> str | None:
        """Return the name of a lock held until the process ends, visible to all processes of the machine.

        None if the store has none: then only the expiry of its leases tells other containers that it has ended.
        """
        return None

    def has_ended(self, life_token: str) -> bool | None:
        """Whether the lock's process, on the same machine, has ended; None if unknown."""
        return None

    def tasks(self, queue: str) -> TaskQueue:
        """Return a queue whose tasks workers run. A commit of a decision or of a request to cancel wakes a waiting task."""
        raise PostgresRequired(self.url)

    def queues(self) -> list[QueueStatus]:
        """Return the state of each queue of the workers."""
        return []

    def findings(self) -> list[Finding]:
        """Return the findings about the store itself, besides the sessions, for `oakleaf doctor`."""
        return []

    def backup(
        self,
        to: str | os.PathLike[str],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Write a consistent copy of the whole store to a file, without blocking writers. Most stores are no files.

        `progress` is called with the amount copied and the amount in all.
        """
        raise StoreLacks(self.url, "be copied to a file")

    def close(self) -> None:
        """Free all resources of the store."""
        return

    # -- derived: one session ------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionRow:
        return self.session_with_detail(session_id)[0]

    def detail(self, session_id: str) -> SessionDetail:
        return self.session_with_detail(session_id)[1]

    def find_session(self, session_id: str) -> SessionRow | None:
        """Return the session's row; None for an absent session."""
        try:
            return self.session(session_id)
        except NotFound:
            return None

    def path(
        self,
        session_id: str,
        *,
        leaf: Leaf | None = None,
        first: int = 1,
        last: int | None = None,
        newest: int | None = None,
        public: bool = False,
        detail: bool = False,
    ) -> PathSnapshot:
        """Return the path to `leaf` (default: the session's) with the entries from seq `first` to `last`, or the `newest`.

        `InvalidPosition` if the leaf is on a branch that the session neither owns nor inherits up to there.
        """
        row, wide = self.session_with_detail(session_id)
        end = row.leaf if leaf is None else leaf
        ranges = self._ranges(row, end)
        first = first if newest is None else max(first, end.seq - newest + 1)
        stored = self._stored(session_id, window(ranges, first, end.seq if last is None else last))
        entries = [one.entry.to_entry(one.branch) for one in stored if not (public and one.entry.internal)]
        if not detail:
            return PathSnapshot(row, tuple(ranges), entries)
        return PathSnapshot(row, tuple(ranges), entries, wide, len(self.inbox(session_id)))

    def _ranges(self, row: SessionRow, leaf: Leaf) -> list[Range]:
        """Return the ranges of the path to a leaf of the session."""
        branches = self.branches(row.session_id)
        if leaf != row.leaf and not contains_leaf(branches, row.session_id, leaf):
            raise InvalidPosition(str(leaf), 0, row.leaf.seq)
        try:
            return lineage({branch.branch: branch for branch in branches}, leaf)
        except KeyError as error:
            raise StoreDamaged(self.url, f"branch {error} is missing on the path to {leaf}") from None

    def _stored(self, session_id: str, ranges: Sequence[Range]) -> Iterator[StoredEntry]:
        return (stored for part in ranges for stored in self.entries(session_id, part))

    def control_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        """Return the settings, compactions and branch summaries of the path: all entries except messages and notes."""
        row = self.session(session_id)
        stored = self._stored(session_id, self._ranges(row, row.leaf if leaf is None else leaf))
        return [one.entry.to_entry(one.branch) for one in stored if one.entry.kind not in ("message", "note")]

    def inputs(self, session_id: str, *, leaf: Leaf | None = None) -> list[int]:
        """Return the seq of each input of the path: the first is that of turn 1."""
        entries = self.path(session_id, leaf=leaf, public=True).entries
        return [entry.seq for entry in entries if entry.turn == entry.seq]

    def find_change(self, session_id: str, key: str) -> CommitResult | None:
        """Return the recorded result of a caller's key, as a repeat; None for an unknown key."""
        row, facts = self.session(session_id), reversed(self.journal(session_id))
        found = (fact for fact in facts if fact.key == key and is_callers_key(key))
        return next((repeat_of(fact, row.leaf) for fact in found), None)

    def facts_of(self, session_id: str, type_: type[Fact]) -> list[StoredFact]:
        """Return all facts of a type, oldest first. Labels are found without reading the journal."""
        return [stored for stored in self.journal(session_id) if stored.kind == kind_of(type_)]

    def calls_between(self, session_id: str, branch: int, first: int, last: int) -> list[Call]:
        """Return the recorded calls at entries `first` to `last` of a branch, own or inherited."""
        recorded = (*self.inherited_calls(session_id), *self.calls(session_id))
        return [call for call in recorded if call.branch == branch and first <= call.seq <= last]

    def latest_answer_call(self, session_id: str, branch: int, last: int) -> Call | None:
        """Return the call behind the newest answer of a branch up to entry `last`, own or inherited; else None."""
        calls = self.calls_between(session_id, branch, 0, last)
        answers = [call for call in calls if call.answer_seq is not None and call.purpose == "answer"]
        return max(answers, key=lambda call: call.seq, default=None)

    def tool_calls(self, session_id: str) -> set[tuple[Leaf, int]]:
        """Return the place of each answer with tool calls on own branches, with the hash of each call."""
        return {
            (Leaf(stored.branch, stored.entry.seq), call_hash)
            for stored in self.entries(session_id)
            for call_hash in call_hashes(stored.entry.role, stored.entry.body)
        }

    def find_tool_calls(self, session_id: str, call_hash: int) -> list[CallPlace]:
        """Return the answers with a call of the hash, of a session and of the tasks below, on any branch.

        The newest branch first, and on each branch the newest answer. A database has an index of the answers.
        """
        family = [session_id]
        for parent in family:  # grows meanwhile; a forged ring of parents ends
            for is_trashed in (False, True):
                query = SessionQuery(parent_session=parent, relation="task", trashed=is_trashed)
                tasks = [row.session_id for row in self.all_sessions(query)]
                family += [task for task in tasks if task not in family]
        places = [
            CallPlace(name, leaf)
            for name in family
            for leaf, hash_ in self.tool_calls(name)
            if hash_ == call_hash
        ]
        return sorted(places, key=lambda place: place.leaf, reverse=True)

    def storage_size(self, session_id: str) -> StorageSize:
        """Return the size of the session's own branches."""
        stored = self.entries(session_id)
        own = [branch for branch in self.branches(session_id) if branch.session_id == session_id]
        blobs = {digest: self.blob(digest) for item in stored for digest in item.entry.media}
        return storage_size_of(
            stored, len(own), {name: len(blob.data) for name, blob in blobs.items() if blob}
        )

    # -- derived: many sessions ----------------------------------------------------------------------

    def all_sessions(self, query: SessionQuery) -> Iterator[SessionRow]:
        """Yield every matching session once, newest first, page by page; the query's own order and page are ignored."""
        before: str | None = None
        while True:
            page = self.sessions(replace(query, order="created", before=before, limit=PAGE_SIZE))
            yield from page
            if page.next is None:
                return
            before = page.next

    def heads(self, session_ids: Sequence[str]) -> dict[str, SessionHead]:
        """Return the head of each existing session in one read, for a watcher of many sessions."""
        rows = filter(None, map(self.find_session, session_ids))
        return {row.session_id: SessionHead(row.facts, row.status, row.trashed_at) for row in rows}

    def first_inputs(self, session_ids: Sequence[str]) -> dict[str, Message]:
        """Return the first input on the path of each session, without internal ones; omit a session without inputs."""
        inputs: dict[str, Message] = {}
        for row in filter(None, map(self.find_session, session_ids)):
            with suppress(StoreDamaged):
                stored = (one.entry for one in self._stored(row.session_id, self._ranges(row, row.leaf)))
                found = (entry.body for entry in stored if entry.turn == entry.seq and not entry.internal)
                body = next(found, None)
                if body is not None:
                    inputs[row.session_id] = decode_message(body)
        return inputs

    def index(self, progress: IndexProgress | None = None) -> int:
        """Index new entries; return the number. Does not block writers."""
        return 0

    def search(self, search: Search) -> SearchPage:
        """Return a page of indexed matches. `NotFound` if it names a session that is absent."""
        rows = self._all_rows() if search.session_id is None else [self.session(search.session_id)]
        return scan_search(self, rows, search)

    def _all_rows(self) -> Iterator[SessionRow]:
        return (row for trashed in (False, True) for row in self.all_sessions(SessionQuery(trashed=trashed)))

    def count(self, query: SessionQuery, by: CountColumn, newest: int | None = None) -> dict[str, int]:
        """Count matching sessions by the values of a column, "" for none; the page of the query is ignored.

        With `newest` count only so many sessions, by the latest activity: no longer in a large store.
        """
        if newest is None:
            return count_by(self.all_sessions(query), by)
        check_limit("newest", newest)
        return count_by(self.sessions(replace(query, order="active", before=None, limit=newest)), by)

    def status_counts(self, most: int) -> dict[str, int]:
        """Count the sessions outside the trash by status; a count of `most` means at least `most`."""
        check_limit("most", most)
        counts = count_by(self.all_sessions(SessionQuery()), "status")
        return {status: min(count, most) for status, count in counts.items()}

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        """Return the usage of all sessions, also in the trash, by day, agent, model and bucket, sorted."""
        return sum_daily(self._calls_since(since))

    def usage_by(self, by: str, since: int = 0) -> UsageSums:
        """Sum the calls of all sessions since a time, also in the trash, by a column or by the values of `tag:NAME`.

        Quarters of hours are numbered since 1970. A session without a value counts under "".
        """
        calls: dict[bool, list[tuple[SessionRow, Call]]] = {False: [], True: []}
        for row, call in self._calls_since(since):
            calls[call.bucket == "replay"].append((row, call))
        return UsageSums(sum_usage(calls[False], by), sum_usage(calls[True], by))

    def _calls_since(self, since: int) -> Iterator[tuple[SessionRow, Call]]:
        rows = self._all_rows()
        return ((row, call) for row in rows for call in self.calls(row.session_id) if call.at >= since)

    def queued_input_count(self) -> int:
        """Return the number of queued inputs of sessions not running: only a run takes an input."""
        waiting = (row for row in self.all_sessions(SessionQuery()) if row.status != "running")
        return sum(len(self.inbox(row.session_id)) for row in waiting)

    def sessions_with_input(self, limit: int) -> dict[str, int]:
        """Return the number of queued inputs by session not running, for the sessions with the longest wait."""
        waiting = (row for row in self.all_sessions(SessionQuery()) if row.status != "running")
        queued = [(row.session_id, inputs) for row in waiting if (inputs := self.inbox(row.session_id))]
        queued.sort(key=lambda item: (item[1][0].at, item[0]))
        return {session_id: len(inputs) for session_id, inputs in queued[:limit]}

    @contextmanager
    def export_sessions(self, *session_ids: str, children: bool = False) -> Iterator[SessionExports]:
        """Open a snapshot of whole sessions, with `children` also of the tasks; the sessions stream while open."""
        yield StoreExporter(self).export_all(session_ids, children=children)
