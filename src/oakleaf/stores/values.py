"""The values that cross the contract of a store: rows, changes, queries, facts, and what a store answers.

Also the laws that need no store, as pure functions: whether a change may be written now, what the row and the journal are
after it, which sessions a query selects. Does not know how anything is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, get_args

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from oakleaf.core.codec import check_text
from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.entries import Entry
from oakleaf.core.facts import (
    Appended,
    Fact,
    Labelled,
    Started,
    Status,
    StoredFact,
    encode_fact,
    kind_of,
)
from oakleaf.core.tree import Leaf, Range
from oakleaf.core.usage import Call, Totals
from oakleaf.errors import Fenced, IdTaken, InvalidArgument, SessionRunning, SessionTrashed, StaleLeaf

Relation = Literal["fork", "task", "replay", "import"]
STATUSES: tuple[str, ...] = get_args(Status)


class SessionRow(Struct, frozen=True, kw_only=True, gc=False):
    """A session without the entries."""

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
    """Inputs appended by the session, on any branch, and inherited inputs answered by the session."""
    totals: Totals = Totals()
    facts: int = 0
    """The length of the journal, equal to the number of the latest fact."""
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
    """The number of the last fact that came with an import; 0: the session began in the store. No bundle holds the number.

    Facts up to the number were made elsewhere. Such facts are shown, and decide nothing here.
    """


class SessionHead(Struct, frozen=True):
    """A part of the row that differs after any change of the session."""

    facts: int
    status: Status
    trashed_at: int | None


class SessionDetail(Struct, frozen=True, gc=False):
    """The large, rarely read part of a session. JSON, as written."""

    spec: bytes | None = None
    """The agent at the start of the session."""
    policy: bytes | None = None
    workspace: bytes | None = None
    state: bytes | None = None
    """The state at the current leaf; None: compute the state from the entries."""


MADE_KEY = "~"
"""The beginning of a key made by Oakleaf: no lookup, no index."""


def is_callers_key(key: str) -> bool:
    """Whether the key is unique in its session; a repeated key returns the recorded result."""
    return not key.startswith(MADE_KEY)


ACTIVITY_STEP = 60_000_000
"""Microseconds between two steps of one run that count as activity."""


class WriteGuard(Protocol):
    """The columns of a session's row that decide whether a change may be written."""

    @property
    def leaf(self) -> Leaf: ...
    @property
    def fence(self) -> int: ...
    @property
    def trashed_at(self) -> int | None: ...
    @property
    def holder(self) -> str | None: ...
    @property
    def lease_until(self) -> int | None: ...


class Effect(Struct, frozen=True):
    """Further writes of a kind of store in the transaction of a change; `StoreBackend.effects` lists the known effects."""


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """An atomic change of a live session."""

    session_id: str
    key: str
    """A caller's key, or a key made by Oakleaf (`MADE_KEY`)."""
    at: int
    fact: Fact = Appended()
    """The fact of the change itself, with the key and the place."""
    facts: tuple[Fact, ...] = ()
    """Further facts."""
    after: Leaf | None = None
    """The leaf before the change. None only where the leaf does not matter: for a title, a tag or a status."""
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
    """Tags to set; None removes a tag. The store merges the tags, because another writer may set a tag at the same time."""
    inherited_turns: int = 0
    """1 for the session's first answer to an inherited input: a resumed fork ran the turn."""
    inbox_number: int | None = None
    """The number of the queued input that the change appends, or refuses, and removes from the inbox."""
    fence: int | None = None
    effect: Effect | None = None

    @property
    def activity(self) -> int:
        """The time of the session's activity: now, or a later time of a call."""
        latest = self.at
        for call in self.calls:
            latest = max(latest, call.at)
        return latest

    @property
    def inputs(self) -> int:
        """The number of turns started."""
        count = 0
        # A loop and no generator, which costs as much as what it counts: most have one entry.
        for entry in self.entries:
            count += entry.turn == entry.seq
        return count

    @property
    def inactive_before(self) -> int:
        """The change moves `active_at` of a session last active before this time; 0: no activity.

        An input or a move of the leaf counts at once, a step or a model call once a minute: else every append would
        write the index that lists are sorted by. So no call is later than its session's activity by more than that.
        """
        if self.move_to is not None or self.inputs:
            return self.activity
        return self.activity - ACTIVITY_STEP if self.entries or self.calls else 0

    @property
    def needs_free_session(self) -> bool:
        """Whether a held lease refuses the change: no fence, and the leaf moves otherwise than by notes."""
        if self.fence is not None:
            return False
        for entry in self.entries:
            if entry.kind != "note":
                return True
        return self.move_to is not None

    def check(self, row: WriteGuard, find: Callable[[str], CommitResult | None]) -> CommitResult | None:
        """Return None if the change may be written now, or the result recorded earlier under the key; else raise.

        The one order of refusals, for every store, asked in the transaction that writes: a known key of a caller, the
        trash, the fence, a key that Oakleaf made and that moved the leaf, the lease, the leaf. `find` looks a key up in
        the journal.
        """
        if is_callers_key(self.key) and (earlier := find(self.key)) is not None:
            return earlier
        if row.trashed_at is not None:
            raise SessionTrashed(self.session_id)
        if self.fence is not None and self.fence != row.fence:
            raise Fenced(self.session_id, self.fence, row.fence)
        is_stale = self.after is not None and self.after != row.leaf
        if is_stale and (earlier := find(self.key)) is not None:
            return earlier
        is_held = row.holder is not None and (row.lease_until or 0) > self.at
        if is_held and self.needs_free_session:
            raise SessionRunning(self.session_id, row.holder, row.lease_until)
        if self.after is not None and is_stale:
            raise StaleLeaf(self.session_id, self.after, row.leaf)
        return None

    def stored_facts(self, number: int, leaf: Leaf) -> list[StoredFact]:
        """Return the change's facts for the journal, from `number` on; `leaf` is the leaf after the change."""
        kind, body = encode_fact(self.fact)
        first = self.entries[0].seq if self.entries else None
        at_leaf = None if self.after is None else leaf
        facts = [StoredFact(number, kind, self.key, self.at, body, at_leaf, first)]
        for later, fact in enumerate(self.facts, number + 1):
            kind, body = encode_fact(fact)
            facts.append(StoredFact(later, kind, None, self.at, body))
        return facts

    def row_after(self, row: SessionRow, leaf: Leaf, totals: Totals) -> SessionRow:
        """Return the session's row after the change, at `leaf` and with the totals."""
        tags = {name: tag for name, tag in {**row.tags, **self.tags}.items() if tag is not None}
        return replace(
            row,
            leaf=leaf,
            totals=totals,
            turns=row.turns + self.inherited_turns + self.inputs,
            facts=row.facts + 1 + len(self.facts),
            updated_at=self.at,
            tags=tags if self.tags else row.tags,
            **self.columns,
        )


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


def repeat_of(fact: StoredFact, leaf: Leaf) -> CommitResult:
    """Return the outcome of a change committed before, from the change's fact; `leaf` is the session's present leaf."""
    return CommitResult(fact.leaf or leaf, fact.number, is_repeat=True)


class NewSession(Struct, frozen=True):
    row: SessionRow
    key: str
    detail: SessionDetail = SessionDetail()
    seeds: tuple[NewEntry, ...] = ()
    blobs: tuple[Blob, ...] = ()
    fork_point: Leaf | None = None
    """The position in the parent's tree where the first branch begins."""
    parent_facts: int | None = None
    """The number of the parent's facts: later facts are the parent's own."""
    parent_nth: int | None = None
    """Of a task: the parent's branch with the call, counted among the parent's own branches in order of opening."""
    digest: str | None = None
    """Of the request, if its caller gave a key."""

    @property
    def fact(self) -> Started:
        """The first fact, with the origin: another session or an activity of Oakleaf."""
        row, digest = self.row, self.digest
        if row.parent_session:
            return Started(row.relation, row.parent_session, self.parent_facts, self.parent_nth, digest)
        return Started(None if row.relation == "import" else row.relation, digest=digest)

    def check_same(self, row: SessionRow, seeds: list[bytes]) -> None:
        """Raise IdTaken unless the present session, with `seeds` as the entry ids of its seeds, is the same session."""
        expected = [seed.entry_id for seed in self.seeds]
        if row.owner != self.row.owner or seeds != expected or self.fork_point is not None:
            raise IdTaken(row.session_id)


class QueuedInput(Struct, frozen=True):
    number: int
    body: bytes
    """A user message, as JSON."""
    at: int
    is_imported: bool = False
    """Whether the input came with an import. No bundle holds the flag."""


class PathSnapshot(Struct, frozen=True):
    """A consistent read of a session and a part of a path."""

    row: SessionRow
    ranges: tuple[Range, ...]
    """The whole path, even if only a part was read."""
    entries: list[Entry]
    detail: SessionDetail | None = None
    queued: int = 0
    """How many inputs are queued; read only with the detail."""


class StoredEntry(Struct, frozen=True, gc=False):
    branch: int
    entry: NewEntry


class CallPlace(Struct, frozen=True, gc=False):
    """An answer that calls tools, and the answer's session."""

    session_id: str
    leaf: Leaf


LABEL = kind_of(Labelled)
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
    """The beginning of the id."""
    title: str | None = None
    key: str | None = None
    """A caller's key of a change in the journal."""
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
        """The beginning of the page: after a number or, by activity, after a time and number."""
        return None if self.before is None else tuple(map(int, self.before.split("-")))

    def selects(self, row: SessionRow) -> bool:
        """Whether the query selects the session by the row. A key is in the journal, and a page has its own place."""
        equal = [
            (self.owner, row.owner),
            (self.agent, row.agent),
            (self.model, row.model),
            (self.conversation_id, row.conversation_id),
            (self.relation, row.relation),
            (self.parent_session, row.parent_session),
            (self.title, row.title),
        ]
        return (
            all(expected in (None, value) for expected, value in equal)
            and (self.status in (None, row.status) or (self.or_running and row.status == "running"))
            and self.trashed == (row.trashed_at is not None)
            and (self.tag is None or row.tags.get(self.tag[0]) == self.tag[1])
            and (self.id_prefix is None or row.session_id.startswith(self.id_prefix))
            and (self.include_children or row.relation not in ("task", "replay"))
            and (self.started_from is None or row.started_at >= self.started_from)
            and (self.started_before is None or row.started_at < self.started_before)
        )


def check_limit(name: str, limit: object) -> None:
    if type(limit) is not int or not 0 < limit <= 100_000:
        raise InvalidArgument(name, limit, "a number from 1 to 100,000")


def next_fence(row: SessionRow, holder: str, at: int, take_from: int | None) -> int:
    """Return the fence for the holder to take the lease, by the rules of `StoreBackend.lease`; else raise."""
    if row.trashed_at is not None:
        raise SessionTrashed(row.session_id)
    is_held = row.holder is not None and (row.lease_until or 0) > at and row.fence != take_from
    if is_held and row.holder != holder:
        raise SessionRunning(row.session_id, row.holder, row.lease_until)
    return row.fence if row.holder == holder else row.fence + 1


PAGE_SIZE = 500
"""Sessions read at once where all are wanted."""


class SessionPage(Struct, frozen=True):
    """A part of a list of sessions: iterates over its rows, in the list's order. A page without rows is false."""

    sessions: list[SessionRow]
    """The rows of the page."""
    next: str | None = None
    """The `before` of the next page; None on the last page."""
    active_at: dict[str, int] = {}
    """The time of the latest activity, by session id: the sort key of lists."""

    def __iter__(self) -> Iterator[SessionRow]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


class ListedSession(Struct, frozen=True):
    """A session in a list: `number` counts the sessions of a store in order of creation."""

    row: SessionRow
    number: int
    active_at: int

    def position(self, query: SessionQuery) -> tuple[int, ...]:
        return (self.number,) if query.order == "created" else (self.active_at, self.number)


def page_of(sessions: Iterable[ListedSession], query: SessionQuery) -> SessionPage:
    """Return the page of a query from the sessions. A key is not looked at."""
    first = query.position
    found = [
        (one.position(query), one)
        for one in sessions
        if query.selects(one.row) and (first is None or one.position(query) < first)
    ]
    found.sort(key=lambda pair: pair[0], reverse=True)
    page = [one for _, one in found[: query.limit]]
    more = "-".join(map(str, page[-1].position(query))) if len(found) > query.limit else None
    return SessionPage([one.row for one in page], more, {one.row.session_id: one.active_at for one in page})


class PurgeResult(Struct, frozen=True):
    sessions: tuple[str, ...]
    entries: int
    kept_entries: int
    """Entries inherited by a surviving fork, and deleted with the fork."""
    blobs: int
    scrubbed: bool = True
    """False if another reader held the write-ahead log open; the next purge cleans the log."""


class Finding(Struct, frozen=True):
    """The result of a check of a store's health."""

    level: Literal["ok", "warning", "problem"]
    message: str
    fix: str = ""
    """The command for a fix, if any."""
    is_final: bool = False
    """Whether no further check is possible."""
    sessions: tuple[str, ...] = ()
    """The sessions of the finding."""
    space: str | None = None
    """The space of the sessions, among findings of all spaces."""


class UnreferencedBlobs(Struct, frozen=True):
    """The count and size of blobs without a reference."""

    blobs: int
    bytes: int
