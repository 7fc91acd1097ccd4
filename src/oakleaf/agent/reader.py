"""Reads sessions and stores for whoever shows, exports or measures them. Nothing here writes.

A `SessionReader` follows the path to the leaf of the handle it was made from; a `StoreReader` reads many sessions. Both
read in parts, so that a session of 100,000 entries costs no more than the part that is asked for. `oakleaf.ext.read` and
`oakleaf.ext.read_store` make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec.structs import replace

from oakleaf.agent.call_status import CallStatus, is_awaited_by_worker, read_call_status
from oakleaf.agent.prompt_window import WindowUse, measure_window
from oakleaf.agent.start_facts import session_data
from oakleaf.agent.task_line import ancestors
from oakleaf.agent.tools.tool import Tool
from oakleaf.core.context import Context
from oakleaf.core.drafts import Blob
from oakleaf.core.entries import Entry, Settings
from oakleaf.core.facts import Fact, StoredFact
from oakleaf.core.fit import Budget
from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.redact import Redactor
from oakleaf.core.redact_entries import redact_entries
from oakleaf.core.tree import Leaf, Range
from oakleaf.core.tree_text import TreeLine, tree_lines
from oakleaf.core.turns import Cursor, OpenCall
from oakleaf.core.usage import Call, Totals
from oakleaf.log import ledger, prompt
from oakleaf.log.changes import check_callers_key
from oakleaf.log.imports import has_foreign_detail
from oakleaf.log.keyed_turn import KeyedTurn, find_turn
from oakleaf.log.labels import labels
from oakleaf.log.lease import Hold, require_free
from oakleaf.log.log import Log
from oakleaf.log.moves import Move, redo_move, rewind_move
from oakleaf.log.runtime import Runtime
from oakleaf.log.session_list import (
    MAX_COUNT,
    count_sessions,
    current_row,
    headings,
    hit_headings,
    session_page,
)
from oakleaf.log.storage import SessionStorage, storage
from oakleaf.stores.base import (
    CommitResult,
    PathSnapshot,
    QueuedInput,
    SessionDetail,
    SessionHead,
    SessionPage,
    SessionQuery,
    SessionRow,
    StoreBackend,
    UnreferencedBlobs,
)
from oakleaf.stores.counts import CountColumn, DailyUsage, StorageSize, UsageColumn, sum_usage
from oakleaf.stores.search import SearchHit
from oakleaf.wire import find_provider
from oakleaf.wire.explain import Difference, first_difference

PAGE = 500
"""Entries that are read at once, where all of a path is."""


class SessionReader:
    """Reads one session along the path to a leaf."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def session_id(self) -> str:
        return self._log.session_id

    @property
    def leaf(self) -> Leaf:
        """The end of the path that is read: the leaf of the handle."""
        return self._log.leaf

    def at(self, leaf: Leaf) -> SessionReader:
        """Return a reader of the path to another leaf of the session's tree."""
        log = self._log
        row = replace(log.store.session(log.session_id), leaf=leaf)
        return SessionReader(Log(log.store, row, log.runtime))

    @property
    def store(self) -> StoreReader:
        """Read other sessions of the store that the session is in."""
        return StoreReader(self._log.store, self._log.runtime)

    def row(self) -> SessionRow:
        """Read the session's row with its current status: one whose runner is gone is interrupted."""
        return current_row(self._log.store.session(self.session_id), self._log.runtime)

    def detail(self) -> SessionDetail:
        """Read what was frozen when the session started: spec, policy, workspace."""
        return self._log.store.detail(self.session_id)

    def has_foreign_detail(self) -> bool:
        """Whether what was frozen came with an import; a fork has it from its parent."""
        return has_foreign_detail(self._log)

    def about(self) -> dict[str, object]:
        """Return the session's ids, agent, title and workspace, as the event of its start has them."""
        return session_data(*self._log.store.session_with_detail(self.session_id))

    # -- path --------------------------------------------------------------------------------------

    def entries(
        self, first: int = 1, last: int | None = None, *, newest: int | None = None, public: bool = False
    ) -> list[Entry]:
        """Read the entries of the path from one seq to another, or the `newest` ones; `public` leaves out internal ones."""
        return self._log.store.path(
            self.session_id, leaf=self.leaf, first=first, last=last, newest=newest, public=public
        ).entries

    def backwards(self, last: int | None = None) -> Iterator[Entry]:
        """Yield the entries of the path, the newest (or entry `last`) first; read in pages, as far as they are wanted."""
        return self._log.backwards(last=last)

    def ranges(self) -> tuple[Range, ...]:
        """Return the path as ranges of branches, without reading an entry."""
        return self._log.ranges()

    def contains(self, leaf: Leaf) -> bool:
        """Whether a position is on the path."""
        return any(
            part.branch == leaf.branch and part.first <= leaf.seq <= part.last for part in self.ranges()
        )

    def leaf_at(self, seq: int) -> Leaf:
        """Return entry `seq` of the path as a leaf: with the branch that holds it."""
        return self._log.leaf_at(seq)

    @property
    def cursor(self) -> Cursor:
        """What may follow the leaf: the open turn, its step, and the calls without a result."""
        return self._log.cursor

    def cursor_at(self, leaf: Leaf) -> Cursor:
        """Return what may follow another leaf of the session's tree."""
        return self._log.cursor_at(leaf)

    def control_entries(self) -> list[Entry]:
        """Read the entries of the path that are neither messages nor notes: settings, compactions, branch summaries."""
        return self._log.store.control_entries(self.session_id, leaf=self.leaf)

    def settings(self) -> Settings:
        """Return the settings in force at the leaf."""
        return self._log.settings()

    def fill(self, settings: Settings) -> Settings:
        """Return settings as the session would store them: its workspace replaces every `{{ctx.name}}` of the prompt."""
        return self._log.fill(settings)

    def tree_entries(self, newest: int | None = None, *, since: int = 0) -> list[Entry]:
        """Read every entry of the session's tree by (branch, seq), or the `newest` ones of those after seq `since`."""
        if newest is None:
            return [entry for entry in self._log.all_entries() if entry.seq > since]
        return self._log.newest_entries(newest, since)

    @property
    def redactor(self) -> Redactor:
        """Hides the secrets that are known to the store."""
        return self._log.runtime.redactor

    def shared_entries(self, since: int = 0, *, redact: bool = True) -> Iterator[Entry]:
        """Yield the entries of the path after `since` for others: without evidence, page by page.

        Stored content was redacted when it was written. Redacting again hides what has become known as a secret since.
        """
        pages = (
            self.entries(first, min(first + PAGE - 1, self.leaf.seq))
            for first in range(since + 1, self.leaf.seq + 1, PAGE)
        )
        return redact_entries(chain.from_iterable(pages), self.redactor if redact else None)

    def tree_lines(self, *, width: int = 100) -> Iterator[TreeLine]:
        """Draw the session's tree, one line per entry, each with the position that it shows."""
        branches = self._log.store.branches(self.session_id)
        entries, marks = self._log.all_entries(), labels(self._log)
        return tree_lines(entries, branches, self.leaf, width=width, labels=marks)

    # -- journal -----------------------------------------------------------------------------------

    def facts_backwards(self, after: int = 0) -> Iterator[StoredFact]:
        """Yield the facts of the journal after number `after`, newest first; read in pages, as far as they are wanted."""
        return self._log.facts_backwards(after)

    def facts_of(self, type_: type[Fact]) -> list[StoredFact]:
        return self._log.store.facts_of(self.session_id, type_)

    def appended_entries(self, fact: StoredFact) -> list[Entry]:
        """Read the entries that the change of a fact appended; none for other facts."""
        return self._log.appended_entries(fact)

    def find_change(self, key: str | None) -> CommitResult | None:
        """Return the change that was recorded under a key; None if there is none."""
        return self._log.find_change(key)

    def find_turn(self, key: str | None, content: str | Message | None = None) -> KeyedTurn | None:
        """Return the turn whose input was recorded under a caller's key; KeyReused if that input is not this content."""
        check_callers_key(key)
        return find_turn(self._log, key, content)

    # -- model calls -------------------------------------------------------------------------------

    def calls(self, first: int, last: int) -> list[Call]:
        """Return the model calls made at the entries of the path from one seq to another."""
        return [
            call
            for part in self.ranges()
            if part.first <= last and first <= part.last
            for call in self._log.store.calls_between(
                self.session_id, part.branch, max(first, part.first), min(last, part.last)
            )
        ]

    def inherited_calls(self) -> list[Call]:
        """Return the model calls of the sessions that a fork shares its path with."""
        return self._log.store.inherited_calls(self.session_id)

    def calls_at(self, entry: Entry) -> list[Call]:
        """Return the model calls that an entry of the tree answers."""
        return ledger.calls_at(self._log, entry)

    def latest_answer_call(self, last: int) -> Call | None:
        """Return the call behind the newest answer of the path up to entry `last`."""
        return ledger.latest_answer_call(self._log, last)

    def calls_with_sessions(self, view: str) -> Iterator[tuple[SessionRow, Call]]:
        """Yield the calls of a view of `Session.usage`, each with the session that made it: this one or a task."""
        return ledger.calls_with_sessions(self._log, view)

    def usage_by(
        self, by: UsageColumn, view: str = "own", *, after: Leaf | None = None, since: int = 0
    ) -> dict[str, Totals]:
        """Sum the calls of a view of `Session.usage` by one column: those after a leaf, or since a time."""
        calls = ledger.calls_with_sessions(self._log, view, after)
        return sum_usage(((row, call) for row, call in calls if call.at >= since), by)

    # -- tool calls --------------------------------------------------------------------------------

    def call_status(self) -> CallStatus:
        """Read what is known about the calls without a result: started, decided, or waiting for a person or a task."""
        return read_call_status(self._log)

    def original_call(self, call: OpenCall) -> ToolCall | None:
        """Return an open call as the model made it; None if a secret in it is known no more."""
        return self._log.original_call(call)

    def raise_if_task_trashed(self, tools: Mapping[str, Tool]) -> None:
        """Raise TaskTrashed if an open call waits for a task that is in the trash."""
        read_call_status(self._log).raise_if_trashed(self._log, tools)

    def is_awaited_by_worker(self) -> bool:
        """Whether a worker's task waits for a decision here, and continues the turn itself."""
        return is_awaited_by_worker(self._log)

    def ancestors(self) -> list[SessionReader]:
        """Return the sessions above a task: its parent first, the one that is not a task last."""
        return [SessionReader(log) for log in ancestors(self._log)]

    # -- moves -------------------------------------------------------------------------------------

    def rewind_move(self, to: int) -> Move:
        """Return what a rewind to entry `to` leaves behind."""
        return rewind_move(self._log, to)

    def redo_move(self) -> Move:
        """Return what a redo returns to."""
        return redo_move(self._log)

    # -- running -----------------------------------------------------------------------------------

    def is_held(self) -> bool:
        """Whether a run has the session's lease."""
        return Hold(self._log.store.session(self.session_id), self._log.runtime).is_held

    def check_free(self) -> SessionRow:
        """Raise SessionRunning if a run has the session's lease; return the row."""
        row = self._log.store.session(self.session_id)
        require_free(row, self._log.runtime)
        return row

    def inbox(self, limit: int | None = None) -> list[QueuedInput]:
        """Read the queued inputs, oldest first."""
        return self._log.store.inbox(self.session_id, limit)

    def draft(self) -> str | None:
        """Read what a run elsewhere has saved of the answer in progress."""
        return self._log.store.draft(self.session_id)

    # -- prompt and media --------------------------------------------------------------------------

    def prompt_frame(self) -> list[Entry]:
        """Read the entries that a context is built around: system prompt, settings, compactions, the first message."""
        return prompt.prompt_frame(self._log, self.leaf)

    def context_within(self, budget: Budget) -> Context:
        """Return the context at the leaf cut to a budget; no more is read than the budget holds."""
        return prompt.context_within(self._log, self.leaf, budget)

    def blob(self, digest: str) -> bytes | None:
        """Return the bytes with this hash; None if they are missing or damaged."""
        return self._log.read_blob(digest)

    def storage_size(self) -> StorageSize:
        """Return how much the session's own branches hold."""
        return self._log.store.storage_size(self.session_id)

    def storage(self) -> SessionStorage:
        """Return how much the session's own branches hold, and what of it records tools and options."""
        return storage(self._log)

    # -- requests ----------------------------------------------------------------------------------

    def window_use(self) -> WindowUse:
        """Return how many tokens the request at the leaf has by our estimate, and the window of the session's model."""
        row = self._log.store.session(self.session_id)
        return measure_window(prompt.read_context(self._log, self.leaf), row.model, row.context_window)

    def cache_break(self, provider: str, request: dict[str, Any] | None = None) -> Difference | None:
        """Return the first difference from the request sent last, or from `request`; None if the cache stays warm."""
        if request is None:
            sent_at = self._last_request_at()
            if sent_at is None:
                return None
            request = self._request(provider, self.leaf_at(sent_at))
        return first_difference(request, self._request(provider, self.leaf))

    def _request(self, provider: str, leaf: Leaf) -> dict[str, Any]:
        wire_format = find_provider(provider)
        context = prompt.read_context(self._log, leaf, provider=wire_format.name)
        return wire_format.project(context, self.blob)

    def _last_request_at(self) -> int | None:
        """Return the seq after which a model was asked last on the path, answered or not; None if none was."""
        answered = self.latest_answer_call(self.leaf.seq)
        first = -1 if answered is None else answered.after_seq
        later = [call.after_seq for call in ledger.calls_after(self._log, first) if call.purpose == "answer"]
        return max(later, default=None if answered is None else first)


class StoreReader:
    """Reads many sessions of a store: rows, counts, sums."""

    MAX_COUNT = MAX_COUNT
    """How many sessions `count` counts at most."""

    def __init__(self, store: StoreBackend, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def space(self) -> str:
        return self._store.space

    @property
    def owner(self) -> str | None:
        return self._store.owner

    @property
    def redactor(self) -> Redactor:
        """Hides the secrets that are known to the store."""
        return self._runtime.redactor

    def new_id(self, prefix: str = "") -> str:
        """Return a new id."""
        return self._runtime.new_id(prefix)

    def holder(self) -> str:
        """Return the name of this process, as the row of a session that it runs has it."""
        return self._runtime.holder()

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return self._runtime.now()

    # -- rows --------------------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionReader:
        """Return a reader of a session at its leaf; NotFound if it is absent or another tenant's."""
        return SessionReader(Log(self._store, self._store.session(session_id), self._runtime))

    def find_session(self, session_id: str) -> SessionRow | None:
        """Return a session's row; None if it is absent or another tenant's."""
        return self._store.find_session(session_id)

    def heads(self, session_ids: Sequence[str]) -> dict[str, SessionHead]:
        """Return what changes in the rows of many sessions, of those that exist, in one read."""
        return self._store.heads(session_ids)

    def sessions(self, query: SessionQuery) -> SessionPage:
        """Return a page of rows with their current status, by which they are filtered. The last page may be empty."""
        return session_page(self._store, query, self._runtime)

    def all_sessions(self, query: SessionQuery) -> Iterator[SessionRow]:
        """Yield all matching rows, each once, as they are stored; read page by page."""
        return self._store.all_sessions(query)

    def current(self, row: SessionRow) -> SessionRow:
        """Return a row with its current status."""
        return current_row(row, self._runtime)

    def is_held(self, row: SessionRow) -> bool:
        """Whether a run has the lease of the session of this row."""
        return Hold(row, self._runtime).is_held

    def headings(self, rows: Sequence[SessionRow]) -> dict[str, str]:
        """Return what to call each session in one line."""
        return headings(self._store, rows)

    def heading(self, row: SessionRow) -> str:
        """Return what to call a session in one line."""
        return headings(self._store, [row])[row.session_id]

    def hit_headings(self, hits: Sequence[SearchHit]) -> dict[str, str]:
        """Return what to call the sessions of these hits."""
        return hit_headings(self._store, hits)

    # -- one session -------------------------------------------------------------------------------

    def path(
        self,
        session_id: str,
        *,
        leaf: Leaf | None = None,
        first: int = 1,
        last: int | None = None,
        newest: int | None = None,
        detail: bool = False,
    ) -> PathSnapshot:
        """Read a session's row and a part of a path in one read: the path to `leaf`, or to the session's own."""
        return self._store.path(session_id, leaf=leaf, first=first, last=last, newest=newest, detail=detail)

    def detail(self, session_id: str) -> SessionDetail:
        """Return what was frozen when a session started, and its state if that is stored."""
        return self._store.detail(session_id)

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[StoredFact]:
        """Return the facts of a session after number `after`."""
        return self._store.journal(session_id, after, limit)

    def find_change(self, session_id: str, key: str) -> Leaf | None:
        """Return where the change ended that a session recorded under a key; None if it recorded none."""
        change = self._store.find_change(session_id, key)
        return None if change is None else change.leaf

    def drafts(self, session_ids: Sequence[str]) -> dict[str, str | None]:
        """Return what runs elsewhere have saved of the answers in progress."""
        return {session_id: self._store.draft(session_id) for session_id in session_ids}

    def storage_size(self, session_id: str) -> StorageSize:
        """Return how much a session's own branches hold."""
        return self._store.storage_size(session_id)

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        """Count the blobs stored before a time that no entry refers to."""
        return self._store.unreferenced_blobs(before)

    def blob(self, digest: str) -> Blob | None:
        """Return stored bytes and their type, as they are; None if there are none."""
        return self._store.blob(digest)

    # -- sums --------------------------------------------------------------------------------------

    def count(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        """Count the last active matching sessions, `MAX_COUNT` at most, by one column, with their current status."""
        return count_sessions(self._store, query, by, self._runtime)

    def count_all(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        """Count all matching sessions by one column as it is stored."""
        return self._store.count(query, by)

    def status_counts(self, most: int) -> dict[str, int]:
        """Count the sessions by status as it is stored; a count of `most` means that many or more."""
        return self._store.status_counts(most)

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        """Return the usage of all sessions by day, agent, model and bucket."""
        return self._store.daily_usage(since)

    def usage_by(self, by: UsageColumn, since: int = 0) -> dict[str, Totals]:
        """Sum the calls of all sessions since a time."""
        return self._store.usage_by(by, since)

    def queued_input_count(self) -> int:
        """Return how many inputs are queued for sessions that are not running."""
        return self._store.queued_input_count()
