"""The contract of every store, and the values that cross it.

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
- **Purge.** What no surviving branch inherits is deleted; what one inherits stays, with the calls it cost and their
  message limits.

Stores are synchronous and safe to use from several threads. They do not read the clock, make no ids and know nothing of
turns, providers or prices: the log decides, the store keeps.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from oakleaf.core.call_hash import call_hashes
from oakleaf.core.codec import check_text
from oakleaf.core.drafts import Blob, ExtraFact, NewEntry
from oakleaf.core.entries import Entry, Note
from oakleaf.core.messages import Message
from oakleaf.core.search import Search
from oakleaf.core.tree import Branch, Leaf, Range
from oakleaf.core.usage import Call, Totals
from oakleaf.errors import (
    IdTaken,
    InvalidArgument,
    NoBackup,
    NotFound,
    SessionRunning,
    SessionTrashed,
    StoreDamaged,
)
from oakleaf.stores.counts import (
    CountColumn,
    DailyUsage,
    StorageSize,
    UsageColumn,
    count_by,
    storage_size_of,
    sum_daily,
    sum_usage,
)
from oakleaf.stores.search import IndexProgress, SearchPage

if TYPE_CHECKING:
    from oakleaf.stores.tasks import Engine
    from oakleaf.stores.transfer import ImportResult, SessionExports

Status = Literal["idle", "running", "waiting", "completed", "failed", "cancelled", "interrupted"]
"""Waiting: the turn is open and needs a person, to decide on a call or, after that, to resume it."""
Relation = Literal["fork", "task", "replay", "import"]
STATUSES: tuple[str, ...] = get_args(Status)


class SessionRow(Struct, frozen=True, kw_only=True, gc=False):
    """A session without its entries."""

    session_id: str
    space: str
    owner: str | None = None
    conversation_id: str
    agent: str | None = None
    title: str | None = None
    status: Status = "idle"
    relation: Relation | None = None
    parent_session: str | None = None
    parent_seq: int | None = None
    trigger_type: str | None = None
    trigger_id: str | None = None
    model: str | None = None
    context_window: int | None = None
    tool_names: tuple[str, ...] = ()
    leaf: Leaf = Leaf(0, 0)
    seed_count: int = 0
    turns: int = 0
    """Inputs it appended, on any branch, and inherited ones that it answered."""
    totals: Totals = Totals()
    facts: int = 0
    """The length of its journal, which is the number of the latest fact."""
    fence: int = 0
    holder: str | None = None
    lease_until: int | None = None
    tags: dict[str, str] = {}
    started_at: int
    updated_at: int
    completed_at: int | None = None
    trashed_at: int | None = None
    error: str | None = None
    imported_facts: int = 0
    """The number of the last fact that came with an import; 0: it began in this store. No bundle holds it.

    What lies at or below it was done elsewhere. It is shown, and it decides nothing here.
    """


class SessionHead(Struct, frozen=True):
    """What differs whenever something happened to a session."""

    facts: int
    status: Status
    trashed_at: int | None


class SessionDetail(Struct, frozen=True, gc=False):
    """The large, rarely read part of a session. JSON, as written."""

    spec: bytes | None = None
    """The agent as it was when the session started."""
    policy: bytes | None = None
    workspace: bytes | None = None
    state: bytes | None = None
    """The state at the current leaf; None: compute it from the entries."""


class Fact(Struct, frozen=True, gc=False):
    """One numbered fact of a session's journal."""

    number: int
    kind: str
    key: str | None
    data: dict[str, Any]
    at: int


MADE_KEY = "~"
"""How a key begins that Oakleaf made: it costs no lookup and is in no index."""


def is_callers_key(key: str) -> bool:
    """Whether the key is unique in its session; a repeated one returns what was recorded."""
    return not key.startswith(MADE_KEY)


ACTIVITY_STEP = 60_000_000
"""Microseconds between two steps of one run that count as activity."""


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic change of a live session."""

    session_id: str
    key: str
    """The caller's, or one that Oakleaf made (`MADE_KEY`)."""
    at: int
    kind: str = "appended"
    data: dict[str, Any] = {}
    facts: tuple[ExtraFact, ...] = ()
    after: Leaf | None = None
    """The leaf it follows. None only where the leaf does not matter: for a title, a tag or a status."""
    entries: tuple[NewEntry, ...] = ()
    move_to: Leaf | None = None
    calls: tuple[Call, ...] = ()
    """Ledger rows; the store sets their branch. With `replaces_call` a started call of the same call_id is replaced."""
    replaces_call: bool = False
    drops_call: str | None = None
    """The call_id of a started call that was not made: its row is deleted, and later rows close up. Not with `calls`."""
    blobs: tuple[Blob, ...] = ()
    state: bytes | UnsetType | None = UNSET
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Values of `SETTABLE_COLUMNS`."""
    tags: Mapping[str, str | None] = field(default_factory=dict)
    """Tags to set; None removes one. The store merges them, because another writer may set one at the same time."""
    inherited_turns: int = 0
    """1 if it holds this session's first answer to an input that it inherits: a fork that was resumed ran that turn."""
    inbox_number: int | None = None
    """The number of the queued input that it appends, or refuses, and removes from the inbox."""
    fence: int | None = None

    @property
    def activity(self) -> int:
        """When the session was active, as it says: now, or at a call with a later time."""
        latest = self.at
        for call in self.calls:
            latest = max(latest, call.at)
        return latest

    @property
    def inputs(self) -> int:
        """How many turns it starts."""
        count = 0
        # A loop and no generator, which costs as much as what it counts: most have one entry.
        for entry in self.entries:
            count += entry.turn == entry.seq
        return count

    @property
    def inactive_before(self) -> int:
        """It moves `active_at` of a session that was last active before this time; 0: it is no activity.

        An input or a move of the leaf counts at once, a step or a model call once a minute: else every append would
        write the index that lists are sorted by. So no call is later than its session's activity by more than that.
        """
        if self.move_to is not None or self.inputs:
            return self.activity
        return self.activity - ACTIVITY_STEP if self.entries or self.calls else 0

    @property
    def needs_free_session(self) -> bool:
        """Whether a held lease refuses it: it has no fence, and moves the leaf otherwise than by notes."""
        if self.fence is not None:
            return False
        for entry in self.entries:
            if entry.kind != "note":
                return True
        return self.move_to is not None

    def refuse_if_held(self, holder: str | None, lease_until: int | None) -> None:
        """Raise SessionRunning if the session, held as this says, refuses the change."""
        if holder is not None and (lease_until or 0) > self.at and self.needs_free_session:
            raise SessionRunning(self.session_id, holder, lease_until)


SETTABLE_COLUMNS = frozenset(
    (
        *("status", "title", "tags", "error", "completed_at", "agent", "model", "trigger_type", "trigger_id"),
        *("context_window", "tool_names", "holder", "lease_until", "fence", "imported_facts"),
    )
)


class CommitResult(Struct, frozen=True, gc=False):
    leaf: Leaf
    facts: int
    """The number of the latest fact; of a repeat the number of the change's own fact."""
    is_repeat: bool = False
    """Whether the change had been committed before, under the same key."""


class NewSession(Struct, frozen=True):
    row: SessionRow
    key: str
    detail: SessionDetail = SessionDetail()
    seeds: tuple[NewEntry, ...] = ()
    blobs: tuple[Blob, ...] = ()
    fork_point: Leaf | None = None
    """The position in the parent's tree where its first branch begins."""
    parent_facts: int | None = None
    """How many facts its parent had: what the parent did later is its own."""
    parent_nth: int | None = None
    """Of a task: on which of its parent's own branches the call is, counted in the order they were opened."""

    @property
    def origin(self) -> dict[str, Any]:
        """Where it comes from, as its first fact says: from another session, or from something else that Oakleaf does."""
        row = self.row
        if row.parent_session:
            place = {"parent_facts": self.parent_facts, "nth": self.parent_nth}
            known = {name: number for name, number in place.items() if number is not None}
            return {"relation": row.relation, "parent": row.parent_session, **known}
        return {"relation": row.relation} if row.relation not in (None, "import") else {}

    def check_same(self, row: SessionRow, seeds: list[bytes]) -> None:
        """Raise IdTaken unless the session of its space that has its id, with these entry ids as seeds, is the same one."""
        expected = [seed.entry_id for seed in self.seeds]
        if row.owner != self.row.owner or seeds != expected or self.fork_point is not None:
            raise IdTaken(row.session_id)


class QueuedInput(Struct, frozen=True):
    number: int
    body: bytes
    """A user message, as JSON."""
    at: int
    is_imported: bool = False
    """Whether it came with an import. No bundle holds it."""


class PathSnapshot(Struct, frozen=True):
    """One consistent read of a session and a part of a path."""

    row: SessionRow
    ranges: tuple[Range, ...]
    """The whole path, even if only a part of it was read."""
    entries: list[Entry]
    detail: SessionDetail | None = None
    queued: int = 0
    """How many inputs are queued; read only with the detail."""


LIMIT_FACT_KINDS = ("appended", "turn_started", "turn_resumed")
"""The facts that message limits are read from."""


class StoredEntry(Struct, frozen=True, gc=False):
    branch: int
    entry: NewEntry


class CallPlace(Struct, frozen=True, gc=False):
    """An answer that calls tools, and the session that it belongs to."""

    session_id: str
    leaf: Leaf


LABEL = "labelled"
"""The kind of the facts of labels, which have an index."""
Order = Literal["created", "active"]
"""Newest first, or last active first.

By creation every session is listed once, whatever happens meanwhile. By activity none is listed twice; one that becomes
active while it is listed moves to the front, where the next listing has it.
"""
_CURSORS = {"created": re.compile("[0-9]{1,18}"), "active": re.compile("[0-9]{1,18}-[0-9]{1,18}")}


_QUERY_TEXTS = (
    *("owner", "agent", "model", "conversation_id", "parent_session"),
    *("id_prefix", "title", "key"),
)


class SessionQuery(Struct, frozen=True, kw_only=True):
    owner: str | None = None
    """Within the tenant the store was opened for."""
    agent: str | None = None
    status: str | None = None
    or_running: bool = False
    """With `status`: also sessions marked running, whose runner may be gone."""
    model: str | None = None
    conversation_id: str | None = None
    relation: str | None = None
    parent_session: str | None = None
    tag: tuple[str, str] | None = None
    id_prefix: str | None = None
    """The beginning of its id."""
    title: str | None = None
    key: str | None = None
    """A caller's key of a change in its journal."""
    include_children: bool = True
    """False leaves out tasks and replays, which other sessions started."""
    started_from: int | None = None
    started_before: int | None = None
    trashed: bool = False
    order: Order = "created"
    before: str | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        choices = (("status", (None, *get_args(Status))), ("relation", (None, *get_args(Relation))))
        for name, allowed in (*choices, ("order", get_args(Order))):
            if getattr(self, name) not in allowed:
                raise InvalidArgument(name, getattr(self, name), ", ".join(filter(None, allowed)))
        is_cursor = isinstance(self.before, str) and _CURSORS[self.order].fullmatch(self.before)
        if self.before is not None and not is_cursor:
            raise InvalidArgument("before", self.before, "the `next` of a page")
        check_limit("limit", self.limit)
        for name in _QUERY_TEXTS:  # PostgreSQL alone would refuse it
            check_text(getattr(self, name), name)
        for text in self.tag or ():
            check_text(text, "tag")

    @property
    def position(self) -> tuple[int, ...] | None:
        """Where the page begins: after this number or, by activity, after this time and number."""
        return None if self.before is None else tuple(map(int, self.before.split("-")))


def check_limit(name: str, limit: object) -> None:
    if type(limit) is not int or not 0 < limit <= 100_000:
        raise InvalidArgument(name, limit, "a number from 1 to 100,000")


def next_fence(row: SessionRow, holder: str, at: int, take_from: int | None) -> int:
    """Return the fence with which this holder may take the lease, as `StoreBackend.lease` says; raise if it may not."""
    if row.trashed_at is not None:
        raise SessionTrashed(row.session_id)
    is_held = row.holder is not None and (row.lease_until or 0) > at and row.fence != take_from
    if is_held and row.holder != holder:
        raise SessionRunning(row.session_id, row.holder, row.lease_until)
    return row.fence if row.holder == holder else row.fence + 1


PAGE_SIZE = 500
"""Sessions read at once where all are wanted."""


class SessionPage(Struct, frozen=True):
    """Some sessions of a list, in its order."""

    sessions: list[SessionRow]
    next: str | None = None
    """Pass it as `before` for the next page; None: this was the last one."""
    active_at: dict[str, int] = {}
    """When each was last active, by its id: the time by which lists are sorted."""


class PurgeResult(Struct, frozen=True):
    sessions: tuple[str, ...]
    entries: int
    kept_entries: int
    """Entries that a surviving fork inherits; they are deleted with it."""
    blobs: int
    scrubbed: bool = True
    """False if another reader held the write-ahead log open; the next purge or gc cleans it."""


class UnreferencedBlobs(Struct, frozen=True):
    """Blobs that no entry refers to."""

    blobs: int
    bytes: int


class Finding(Struct, frozen=True):
    """The result of one check of a store's health."""

    level: Literal["ok", "warning", "problem"]
    message: str
    fix: str = ""
    """The command that fixes it, if there is one."""
    is_final: bool = False
    """Whether no further check is possible."""
    sessions: tuple[str, ...] = ()
    """The sessions it is about."""


class StoreBackend(ABC):
    """A store opened for one space and, if given, one owner."""

    space: str
    owner: str | None
    url: str

    @abstractmethod
    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Return the session, and whether it was created now. Idempotent by id; `IdTaken` if the id has another history."""

    @abstractmethod
    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """Return the newest session of the conversation that is no fork, task or replay; else create `new`, atomically.

        If `new` has an owner, the newest of that owner.
        """

    @abstractmethod
    def session(self, session_id: str) -> SessionRow: ...

    def find_session(self, session_id: str) -> SessionRow | None:
        """Return the session's row; None if there is no such session."""
        try:
            return self.session(session_id)
        except NotFound:
            return None

    @abstractmethod
    def detail(self, session_id: str) -> SessionDetail: ...

    def session_with_detail(self, session_id: str) -> tuple[SessionRow, SessionDetail]:
        """Return the row and its detail in one read."""
        return self.session(session_id), self.detail(session_id)

    @abstractmethod
    def sessions(self, query: SessionQuery) -> SessionPage:
        """Return a page of a list. `next` is a position and not a row: another store's only begins elsewhere."""

    def all_sessions(self, query: SessionQuery) -> Iterator[SessionRow]:
        """Yield every matching session once, newest first, page by page; the query's own order and page are ignored."""
        before: str | None = None
        while True:
            page = self.sessions(replace(query, order="created", before=before, limit=PAGE_SIZE))
            yield from page.sessions
            if page.next is None:
                return
            before = page.next

    def heads(self, session_ids: Sequence[str]) -> dict[str, SessionHead]:
        """Return the head of each session that exists, for someone who watches many of them; in one read."""
        rows = filter(None, map(self.find_session, session_ids))
        return {row.session_id: SessionHead(row.facts, row.status, row.trashed_at) for row in rows}

    def first_inputs(self, session_ids: Sequence[str]) -> dict[str, Message]:
        """Return the first input on the path of each session, without internal ones; a session without one is absent."""
        inputs: dict[str, Message] = {}
        for session_id in session_ids:
            with suppress(NotFound, StoreDamaged):
                path = self.path(session_id, public=True).entries
                first = next((entry.message for entry in path if entry.is_input), None)
                inputs |= {session_id: first} if first is not None else {}
        return inputs

    @abstractmethod
    def index(self, progress: IndexProgress | None = None) -> int:
        """Index what is new; return how many entries that was. Does not block writers."""

    @abstractmethod
    def search(self, search: Search) -> SearchPage:
        """Return a page of matches among what is indexed. `NotFound` if it names a session that is absent."""

    @abstractmethod
    def commit(self, change: Change) -> CommitResult: ...

    @abstractmethod
    def find_change(self, session_id: str, key: str) -> CommitResult | None:
        """Return what was recorded under a caller's key, as a repeat; None if the key is not known."""

    @abstractmethod
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

    @abstractmethod
    def entries(self, session_id: str, part: Range | None = None) -> list[StoredEntry]:
        """Return every entry of the branches it owns, reachable or not, by (branch, seq); or a part of one of them."""

    @abstractmethod
    def branches(self, session_id: str) -> list[Branch]:
        """Return its own branches and their ancestors, oldest first."""

    @abstractmethod
    def lost_branches(self) -> list[int]:
        """Return branches without a session that no session inherits: a purge leaves none, so a row was removed."""

    def tool_calls(self, session_id: str) -> set[tuple[Leaf, int]]:
        """Return what is known of the tool calls on its own branches: answers, with the hash of each call."""
        return {
            (Leaf(stored.branch, stored.entry.seq), call_hash)
            for stored in self.entries(session_id)
            for call_hash in call_hashes(stored.entry.role, stored.entry.body)
        }

    def find_tool_calls(self, session_id: str, call_hash: int) -> list[CallPlace]:
        """Return the answers of a session and of the tasks below it, on any branch, that hold a call of this hash.

        The newest branch first, and on each branch the newest answer. A database has an index of them.
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

    @abstractmethod
    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]: ...

    @abstractmethod
    def calls(self, session_id: str) -> list[Call]:
        """Return the session's own ledger rows, oldest first."""

    @abstractmethod
    def inherited_calls(self, session_id: str) -> list[Call]:
        """Return the ledger rows of the sessions, also purged ones, that own the ancestors of its branches."""

    # Counts from the methods above; a database overrides them with SQL.

    def count(self, query: SessionQuery, by: CountColumn, newest: int | None = None) -> dict[str, int]:
        """Count matching sessions by the values of one column, "" for none; the page of the query is ignored.

        With `newest` only so many are counted, the last active ones: that reads no more in a large store.
        """
        if newest is None:
            return count_by(self.all_sessions(query), by)
        check_limit("newest", newest)
        return count_by(self.sessions(replace(query, order="active", before=None, limit=newest)).sessions, by)

    def status_counts(self, most: int) -> dict[str, int]:
        """Count the sessions that are not in the trash by status; a count of `most` means that many or more."""
        check_limit("most", most)
        counts = count_by(self.all_sessions(SessionQuery()), "status")
        return {status: min(count, most) for status, count in counts.items()}

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        """Return the usage of all sessions, trashed ones too, by day, agent, model and bucket, in that order."""
        rows = [row for trashed in (False, True) for row in self.all_sessions(SessionQuery(trashed=trashed))]
        return sum_daily((row, c) for row in rows for c in self.calls(row.session_id) if c.at >= since)

    def usage_by(self, by: UsageColumn, since: int = 0) -> dict[str, Totals]:
        """Sum the calls of all sessions since a time, trashed ones too; quarters of hours are numbered since 1970."""
        rows = [row for trashed in (False, True) for row in self.all_sessions(SessionQuery(trashed=trashed))]
        calls = ((row, call) for row in rows for call in self.calls(row.session_id) if call.at >= since)
        return sum_usage(calls, by)

    def queued_input_count(self) -> int:
        """Return how many inputs are queued for sessions that are not running: nothing takes them without a run."""
        waiting = (row for row in self.all_sessions(SessionQuery()) if row.status != "running")
        return sum(len(self.inbox(row.session_id)) for row in waiting)

    def sessions_with_input(self, limit: int) -> dict[str, int]:
        """Return how many inputs are queued for each such session, for those that wait longest."""
        waiting = (row for row in self.all_sessions(SessionQuery()) if row.status != "running")
        queued = [(row.session_id, inputs) for row in waiting if (inputs := self.inbox(row.session_id))]
        queued.sort(key=lambda item: (item[1][0].at, item[0]))
        return {session_id: len(inputs) for session_id, inputs in queued[:limit]}

    @property
    def engine(self) -> Engine | None:
        """The workers that run turns of this store's sessions, if it has any: a decision wakes its task as it commits."""
        return None

    def findings(self) -> list[Finding]:
        """Return what is right and wrong with the store itself, besides its sessions, for `oakleaf doctor`."""
        return []

    def backup(
        self,
        to: str | os.PathLike[str],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Write a consistent copy of the whole store to a file, without blocking writers. Most stores are no files.

        `progress` is called with how much is copied, and how much there is.
        """
        raise NoBackup(self.url)

    def storage_size(self, session_id: str) -> StorageSize:
        """Return how much its own branches hold."""
        stored = self.entries(session_id)
        own = [branch for branch in self.branches(session_id) if branch.session_id == session_id]
        blobs = {digest: self.blob(digest) for item in stored for digest in item.entry.media}
        return storage_size_of(
            stored, len(own), {name: len(blob.data) for name, blob in blobs.items() if blob}
        )

    def control_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        """Return the entries of the path that are neither messages nor notes: settings, compactions, branch summaries."""
        path = self.path(session_id, leaf=leaf).entries
        return [entry for entry in path if entry.message is None and not isinstance(entry.payload, Note)]

    def calls_between(self, session_id: str, branch: int, first: int, last: int) -> list[Call]:
        """Return the calls at entries `first` to `last` of a branch, own or inherited, as they were recorded."""
        recorded = (*self.inherited_calls(session_id), *self.calls(session_id))
        return [call for call in recorded if call.branch == branch and first <= call.seq <= last]

    def latest_answer_call(self, session_id: str, branch: int, last: int) -> Call | None:
        """Return the call behind the newest answer of a branch up to entry `last`, own or inherited; None without one."""
        calls = self.calls_between(session_id, branch, 0, last)
        answers = [call for call in calls if call.answer_seq is not None and call.purpose == "answer"]
        return max(answers, key=lambda call: call.seq, default=None)

    def limit_facts(self, session_id: str) -> list[Fact]:
        """Return the facts that the message limits of its own turns are read from; none if no turn has a limit."""
        facts = [fact for fact in self.journal(session_id) if fact.kind in LIMIT_FACT_KINDS]
        return facts if any("max_messages" in fact.data for fact in facts) else []

    def facts_of_kind(self, session_id: str, kind: str) -> list[Fact]:
        """Return the facts of one kind, oldest first. Those of labels are found without reading the journal."""
        return [fact for fact in self.journal(session_id) if fact.kind == kind]

    @abstractmethod
    def export_sessions(
        self, *session_ids: str, children: bool = False
    ) -> AbstractContextManager[SessionExports]:
        """Open a snapshot of whole sessions, with `children` also their tasks; it streams while open."""

    @abstractmethod
    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        """Write whole sessions, every byte, id, seq and time as it was: all of them, or nothing.

        One that is present with the same content is left alone; `IdConflict` if its id holds other content.
        """

    @abstractmethod
    def trash(self, session_id: str, at: int) -> list[str]:
        """Move its tasks and then itself to the trash; return their ids."""

    @abstractmethod
    def restore(self, session_id: str) -> list[str]: ...

    @abstractmethod
    def purge(self, session_id: str, *, with_forks: bool = False, scrub: bool = True) -> PurgeResult:
        """Delete a trashed session; it cannot be read from then on.

        To remove the last byte a store may rewrite its file: of many sessions, scrub with the last one.
        """

    @abstractmethod
    def lease(
        self, session_id: str, holder: str, until: int, at: int, *, take_from: int | None = None
    ) -> int:
        """Take the right to run the session; return the fence, which is raised for each new holder.

        `SessionRunning` if another holder has it, unless its lease has expired or its fence is `take_from`.
        """

    def life_token(self) -> str | None:
        """Return the name of a lock that this process holds until it ends, seen by all processes of the machine.

        None if the store has none: then only the expiry of its leases tells other containers that it has ended.
        """
        return None

    def has_ended(self, life_token: str) -> bool | None:
        """Whether the process of the same machine that holds the lock has ended; None if that cannot be known."""
        return None

    @abstractmethod
    def renew(self, session_id: str, fence: int, until: int) -> bool:
        """Extend the lease of that fence, expired or not; return False if it was released or another has it."""

    @abstractmethod
    def release(self, session_id: str, fence: int) -> None: ...

    @abstractmethod
    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        """Save the text of an answer in flight, replacing the earlier draft. `Fenced` if another runner took over."""

    @abstractmethod
    def draft(self, session_id: str) -> str | None:
        """Return the draft saved at the current leaf; None if the leaf has moved since."""

    @abstractmethod
    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        """Queue an input for a session that is running; return its number."""

    @abstractmethod
    def inbox(self, session_id: str, limit: int | None = None) -> list[QueuedInput]:
        """Return queued inputs, oldest first, at most `limit`. A change with their `inbox_number` removes them."""

    @abstractmethod
    def put_blob(self, blob: Blob, at: int) -> None: ...

    @abstractmethod
    def blob(self, digest: str) -> Blob | None: ...

    @abstractmethod
    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        """Count what `delete_unreferenced_blobs` would delete."""

    @abstractmethod
    def delete_unreferenced_blobs(self, before: int) -> int:
        """Delete blobs of this space that no entry and no queued input refers to, put before that time; return how many."""

    @abstractmethod
    def close(self) -> None: ...
