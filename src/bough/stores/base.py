"""The contract every store keeps, and the values that cross it.

The laws, in prose; `bough.stores.conformance` is the same list as tests.

- **One write.** `commit(change)` is the only write to a live session. It is atomic: entries, calls, state,
  row, leaf and facts, or nothing.
- **Compare and swap.** A change that names the leaf it follows is written only if the session stands there.
  If it does not and the change's key is in the journal, the recorded outcome is returned and nothing is
  written; if the key is unknown, `StaleLeaf` is raised and nothing is written.
- **Entries never change.** (branch, seq) is written once. A path from any leaf has no gap.
- **Branches.** An append extends the leaf's branch if this session owns it and the leaf is its tail;
  otherwise it opens a branch whose parent holds the leaf's entry. Numbers of branches are never reused.
- **The journal has no gap** and is never rewritten: each change adds its fact first, then the further ones.
- **Totals are sums.** The row's totals equal the sum of the session's own calls after every commit.
- **Reads are snapshots.** Row, branches and entries of one read belong to one moment.
- **Tenants.** A store is opened for a space, and perhaps an owner; a session of another is not found.
- **Moving.** `dump` tells a session without its store's numbers, `take_in` writes it under its own: a dump of
  what was taken in equals the dump it came from. What a fork stands on comes along, without an owner unless
  its parent is here and holds the same.
- **Search.** What was indexed is found, by the words of `core.words`, once, under the session that owns it.
  Appending does not index; `index` does, and what it has not reached yet is told as `behind`.
- **Purge.** What no surviving branch stands on goes; what one stands on stays, with the calls it cost and how
  much they were given.

Stores are synchronous and safe to use from several threads. They do not read the clock, make no ids and
know nothing of turns, providers or prices: the log decides, the store keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from ..core.drafts import Blob, ExtraFact, NewEntry
from ..core.entries import Entry
from ..core.search import Search
from ..core.tree import Branch, Leaf, Range
from ..core.usage import Call, Totals
from ..errors import InvalidArgument
from .counts import CountColumn, DailyUsage, StorageSize, count_by, storage_size_of, sum_daily
from .search import IndexProgress, SearchPage

if TYPE_CHECKING:
    from .transfer import ImportResult, SessionExports

Status = Literal["idle", "running", "waiting", "completed", "failed", "cancelled", "interrupted"]
"""Waiting: its turn is open, and wants a person: his word on a call or, after it, that he resumes it."""
Relation = Literal["fork", "task", "replay", "import"]


class SessionRow(Struct, frozen=True, kw_only=True):
    """What is known of a session without reading its entries."""

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
    totals: Totals = Totals()
    facts: int = 0
    """How many facts its journal holds; the number of the latest one."""
    fence: int = 0
    holder: str | None = None
    lease_until: int | None = None
    tags: dict[str, str] = {}
    started_at: int
    updated_at: int
    completed_at: int | None = None
    trashed_at: int | None = None
    error: str | None = None


class SessionDetail(Struct, frozen=True):
    """The wide part of a session's row, read only when asked for. JSON, as written."""

    spec: bytes | None = None
    """The agent as it was frozen at the start."""
    policy: bytes | None = None
    workspace: bytes | None = None
    state: bytes | None = None
    """The fold of the updates at the present leaf; None: fold it."""


class Fact(Struct, frozen=True):
    """One numbered fact of a session's journal."""

    number: int
    kind: str
    key: str | None
    data: dict[str, Any]
    at: int


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """One atomic change of a live session."""

    session_id: str
    key: str
    at: int
    kind: str = "appended"
    data: dict[str, Any] = {}
    facts: tuple[ExtraFact, ...] = ()
    after: Leaf | None = None
    """The leaf it follows. None only where the leaf does not matter: a title, a tag, a status."""
    entries: tuple[NewEntry, ...] = ()
    move_to: Leaf | None = None
    calls: tuple[Call, ...] = ()
    """Ledger rows; their branch is filled in by the store. A started call is replaced by its call_id."""
    replaces_call: bool = False
    blobs: tuple[Blob, ...] = ()
    state: bytes | UnsetType | None = UNSET
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of SETTABLE to set."""
    tags: Mapping[str, str | None] = field(default_factory=dict)
    """Tags to set; None removes one. Merged by the store, for another may set one at the same moment."""
    inbox_number: int | None = None
    """The number of the queued input it appends; gone from the queue with this change."""
    fence: int | None = None


SETTABLE_COLUMNS = frozenset(
    (
        *("status", "title", "tags", "error", "completed_at", "model"),
        *("context_window", "tool_names", "holder", "lease_until"),
    )
)


class CommitResult(Struct, frozen=True, gc=False):
    leaf: Leaf
    facts: int
    """The number of the latest fact."""
    is_repeat: bool = False
    """The change had been written before, under the same key."""


class NewSession(Struct, frozen=True):
    row: SessionRow
    key: str
    detail: SessionDetail = SessionDetail()
    seeds: tuple[NewEntry, ...] = ()
    blobs: tuple[Blob, ...] = ()
    fork_point: Leaf | None = None
    """The place in the parent's tree its first branch hangs on."""


class QueuedInput(Struct, frozen=True):
    number: int
    body: bytes
    """A user message, as JSON."""
    at: int


class PathSnapshot(Struct, frozen=True):
    """One consistent read of a session and a part of a path."""

    row: SessionRow
    ranges: tuple[Range, ...]
    """The whole path, whatever part of it was asked for."""
    entries: list[Entry]
    detail: SessionDetail | None = None


class StoredEntry(Struct, frozen=True):
    branch: int
    entry: NewEntry


class SessionQuery(Struct, frozen=True, kw_only=True):
    owner: str | None = None
    """Within what the store was opened for: of another owner's sessions there are none."""
    agent: str | None = None
    status: str | None = None
    model: str | None = None
    conversation_id: str | None = None
    relation: str | None = None
    parent_session: str | None = None
    tag: tuple[str, str] | None = None
    id_prefix: str | None = None
    """The beginning of its id, as people shorten it."""
    title: str | None = None
    include_children: bool = True
    """False leaves out tasks and replays: what other sessions made, not people."""
    started_from: int | None = None
    started_before: int | None = None
    trashed: bool = False
    before: str | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        for name, known in (("status", get_args(Status)), ("relation", get_args(Relation))):
            if getattr(self, name) not in (None, *known):
                raise InvalidArgument(name, getattr(self, name), ", ".join(known))
        if self.before is not None and not (isinstance(self.before, str) and self.before.isdecimal()):
            raise InvalidArgument("before", self.before, "the `next` of a page")
        if type(self.limit) is not int or not 0 < self.limit <= 100_000:
            raise InvalidArgument("limit", self.limit, "a number from 1 to 100,000")


class SessionPage(Struct, frozen=True):
    """Some sessions of a list, the newest first, and where to read on."""

    sessions: list[SessionRow]
    next: str | None = None
    """Hand it in as `before` to read on; None: this was the last page."""


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


class StoreBackend(ABC):
    """A store opened for one space and, if given, one owner."""

    space: str
    owner: str | None
    url: str
    has_tasks = False
    """Whether tasks of an engine may wait for sessions of this store: then a decision wakes its task as it commits."""

    @abstractmethod
    def create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """The session, and whether it was made now. Idempotent by session id; `IdTaken` if it holds another history."""

    @abstractmethod
    def latest_or_create(self, new: NewSession) -> tuple[SessionRow, bool]:
        """The newest session of `new`'s conversation that is no fork, child or replay; else `new`, atomically."""

    @abstractmethod
    def session(self, session_id: str) -> SessionRow: ...

    @abstractmethod
    def detail(self, session_id: str) -> SessionDetail: ...

    def session_with_detail(self, session_id: str) -> tuple[SessionRow, SessionDetail]:
        """The row and its wide part."""
        return self.session(session_id), self.detail(session_id)

    @abstractmethod
    def sessions(self, query: SessionQuery) -> SessionPage: ...

    @abstractmethod
    def index(self, progress: IndexProgress | None = None) -> int:
        """Make what is new findable; returns how many entries that was. Others may write meanwhile."""

    @abstractmethod
    def search(self, search: Search) -> SearchPage:
        """A page of what is indexed and matches. `NotFound` if it names a session that is not here."""

    @abstractmethod
    def commit(self, change: Change) -> CommitResult: ...

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
        """Entries of the path to `leaf` (default: the session's) from seq `first` to `last`, or the newest n.

        `InvalidPosition` if the leaf is on a branch that neither is the session's own nor carries one of its own there.
        """

    @abstractmethod
    def entries(self, session_id: str) -> list[StoredEntry]:
        """Every entry of the branches it owns, reachable or not, by (branch, seq)."""

    @abstractmethod
    def branches(self, session_id: str) -> list[Branch]:
        """Its own branches and the ones they hang on, oldest first."""

    @abstractmethod
    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[Fact]: ...

    @abstractmethod
    def calls(self, session_id: str) -> list[Call]:
        """The session's own ledger rows, oldest first."""

    @abstractmethod
    def inherited_calls(self, session_id: str) -> list[Call]:
        """Rows of the other sessions, purged ones too, whose branches its own hang on."""

    # Counting: any store can do it so; one that counts in its own language does that instead.

    def count(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        """How many sessions match, by the values of one column; "" is none. Whatever page is asked for, all count."""
        return count_by(self.sessions(replace(query, before=None, limit=100_000)).sessions, by)

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        """What every session of the space cost, trashed ones too, by day, agent, model and bucket, in that order."""
        rows = [
            r for t in (False, True) for r in self.sessions(SessionQuery(trashed=t, limit=100_000)).sessions
        ]
        return sum_daily((row, c) for row in rows for c in self.calls(row.session_id) if c.at >= since)

    def storage_size(self, session_id: str) -> StorageSize:
        """What its own branches hold."""
        stored = self.entries(session_id)
        own = [branch for branch in self.branches(session_id) if branch.session_id == session_id]
        blobs = {name: self.blob(name) for one in stored for name in one.entry.media}
        return storage_size_of(
            stored, len(own), {name: len(blob.data) for name, blob in blobs.items() if blob}
        )

    def non_message_entries(self, session_id: str, *, leaf: Leaf | None = None) -> list[Entry]:
        """The entries of the path that are no messages: settings, compactions, notes."""
        return [entry for entry in self.path(session_id, leaf=leaf).entries if entry.message is None]

    @abstractmethod
    def export_sessions(
        self, *session_ids: str, children: bool = False
    ) -> AbstractContextManager[SessionExports]:
        """Everything that makes these sessions, with their tasks if asked for, at one moment; streams while open."""

    @abstractmethod
    def import_sessions(self, exports: SessionExports, at: int) -> ImportResult:
        """Write whole sessions, every byte, id, number and time as it was: all of them, or nothing.

        One that is here with the same content is left alone; `IdConflict` if its id holds other content.
        """

    @abstractmethod
    def trash(self, session_id: str, at: int) -> list[str]:
        """Its task children first, then itself; what is missing is passed over. Returns what was trashed."""

    @abstractmethod
    def restore(self, session_id: str) -> list[str]: ...

    @abstractmethod
    def purge(self, session_id: str, *, with_forks: bool = False) -> PurgeResult: ...

    @abstractmethod
    def lease(self, session_id: str, holder: str, until: int, at: int) -> int:
        """Take or renew the right to drive the session; returns the fence. `SessionRunning` if another holds it."""

    @abstractmethod
    def release(self, session_id: str, fence: int) -> None: ...

    @abstractmethod
    def save_draft(self, session_id: str, leaf: Leaf, text: str, fence: int, at: int) -> None:
        """Keep what an answer in flight has said so far, in place of what was kept before. `Fenced` if taken over."""

    @abstractmethod
    def draft(self, session_id: str) -> str | None:
        """What was kept for the place where the session stands now; None if it has moved on since."""

    @abstractmethod
    def enqueue(self, session_id: str, body: bytes, at: int) -> int:
        """Keep an input for a session that is busy; returns its number in the queue."""

    @abstractmethod
    def inbox(self, session_id: str) -> list[QueuedInput]:
        """What waits, oldest first. A change that `takes` one removes it in the same transaction."""

    @abstractmethod
    def put_blob(self, blob: Blob, at: int) -> None: ...

    @abstractmethod
    def blob(self, digest: str) -> Blob | None: ...

    @abstractmethod
    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        """What `collect_blobs` would drop."""

    @abstractmethod
    def delete_unreferenced_blobs(self, before: int) -> int:
        """Drop blobs of this space that no entry points to and that were put before that time."""

    @abstractmethod
    def close(self) -> None: ...
