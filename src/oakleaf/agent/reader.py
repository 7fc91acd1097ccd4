"""Readers of sessions and stores, to show, export or measure them. Nothing here writes.

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
from oakleaf.core.search import Search
from oakleaf.core.tree import Leaf, Range
from oakleaf.core.tree_text import TreeLine, tree_lines
from oakleaf.core.turns import Cursor, OpenCall
from oakleaf.core.usage import Call, Totals
from oakleaf.errors import InvalidArgument
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
    find_sessions,
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
from oakleaf.stores.counts import CountColumn, DailyUsage, StorageSize, UsageSums, sum_usage
from oakleaf.stores.filters import SessionSearch
from oakleaf.stores.search import SearchHit, SearchPage
from oakleaf.wire import find_provider
from oakleaf.wire.explain import Difference, first_difference

PAGE = 500
"""Entries per read of a whole path."""


class SessionReader:
    """Reads one session along the path to a leaf."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def session_id(self) -> str:
        return self._log.session_id

    @property
    def leaf(self) -> Leaf:
        """The end of the path: the leaf of the handle."""
        return self._log.leaf

    def at(self, leaf: Leaf) -> SessionReader:
        """Return a reader of the path to another leaf of the session's tree."""
        log = self._log
        row = replace(log.store.session(log.session_id), leaf=leaf)
        return SessionReader(Log(log.store, row, log.runtime))

    @property
    def store(self) -> StoreReader:
        """A reader of the whole store around the session."""
        return StoreReader(self._log.store, self._log.runtime)

    def row(self) -> SessionRow:
        """Read the session's row with the current status. A session whose runner is gone is interrupted."""
        return current_row(self._log.store.session(self.session_id), self._log.runtime)

    def detail(self) -> SessionDetail:
        """Read the values frozen at the session's start: spec, policy, workspace."""
        return self._log.store.detail(self.session_id)

    def has_foreign_detail(self) -> bool:
        """Whether the frozen values came with an import. A fork has the values of its parent."""
        return has_foreign_detail(self._log)

    def about(self) -> dict[str, object]:
        """Return the session's ids, agent, title and workspace, like the event of the start."""
        return session_data(*self._log.store.session_with_detail(self.session_id))

    # -- path --------------------------------------------------------------------------------------

    def entries(
        self, first: int = 1, last: int | None = None, *, newest: int | None = None, public: bool = False
    ) -> list[Entry]:
        """Read the entries of the path from `first` to `last`, or the `newest` entries. `public` leaves out
        internal ones."""
        return self._log.store.path(
            self.session_id, leaf=self.leaf, first=first, last=last, newest=newest, public=public
        ).entries

    def backwards(self, last: int | None = None) -> Iterator[Entry]:
        """Yield the entries of the path backwards from the newest, or from entry `last`. Pages are read on
        demand."""
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
        """Return entry `seq` of the path as a leaf, with the branch of the entry."""
        return self._log.leaf_at(seq)

    def inputs(self) -> list[int]:
        """Return the seq of each turn's input along the path: the first is that of turn 1. Seeds are no turn."""
        return self._log.store.inputs(self.session_id, leaf=self.leaf)

    def turn_seq(self, number: int) -> int:
        """Return the seq of the input of a turn, which people number from 1. Raise InvalidArgument for no such turn."""
        inputs = self.inputs()
        if not 0 < number <= len(inputs):
            expected = f"a turn from 1 to {len(inputs)}" if inputs else "nothing: there is no turn yet"
            raise InvalidArgument("turn", number, expected)
        return inputs[number - 1]

    @property
    def cursor(self) -> Cursor:
        """The state at the leaf: the open turn, the step, and the calls without a result."""
        return self._log.cursor

    def cursor_at(self, leaf: Leaf) -> Cursor:
        """Return the state at another leaf of the session's tree."""
        return self._log.cursor_at(leaf)

    def control_entries(self) -> list[Entry]:
        """Read the settings, compactions and branch summaries of the path."""
        return self._log.store.control_entries(self.session_id, leaf=self.leaf)

    def settings(self) -> Settings:
        """Return the settings in force at the leaf."""
        return self._log.settings()

    def fill(self, settings: Settings) -> Settings:
        """Return settings in the stored form. The workspace replaces every `{{ctx.name}}` of the prompt."""
        return self._log.fill(settings)

    def tree_entries(self, newest: int | None = None, *, since: int = 0) -> list[Entry]:
        """Read every entry of the session's tree after seq `since`, by (branch, seq), or the `newest`
        entries."""
        if newest is None:
            return [entry for entry in self._log.all_entries() if entry.seq > since]
        return self._log.newest_entries(newest, since)

    @property
    def redactor(self) -> Redactor:
        """Hides the secrets known to the store."""
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

    def tree_lines(self) -> Iterator[TreeLine]:
        """Draw the session's tree, one line and position per entry."""
        branches = self._log.store.branches(self.session_id)
        entries, marks = self._log.all_entries(), labels(self._log)
        return tree_lines(entries, branches, self.leaf, labels=marks)

    # -- journal -----------------------------------------------------------------------------------

    def facts_backwards(self, after: int = 0) -> Iterator[StoredFact]:
        """Yield the facts of the journal after number `after`, newest first. Pages are read on demand."""
        return self._log.facts_backwards(after)

    def facts_of(self, type_: type[Fact]) -> list[StoredFact]:
        return self._log.store.facts_of(self.session_id, type_)

    def appended_entries(self, fact: StoredFact) -> list[Entry]:
        """Read the entries appended by the change of a fact; none for other facts."""
        return self._log.appended_entries(fact)

    def find_change(self, key: str | None) -> CommitResult | None:
        """Return the change recorded under a key. None: the key is unknown."""
        return self._log.find_change(key)

    def find_turn(self, key: str | None, content: str | Message | None = None) -> KeyedTurn | None:
        """Return the turn of the input recorded under a caller's key. Raise KeyReused if that input is not
        `content`."""
        check_callers_key(key)
        return find_turn(self._log, key, content)

    # -- model calls -------------------------------------------------------------------------------

    def calls(self, first: int, last: int) -> list[Call]:
        """Return the model calls made at the entries of the path from `first` to `last`."""
        return [
            call
            for part in self.ranges()
            if part.first <= last and first <= part.last
            for call in self._log.store.calls_between(
                self.session_id, part.branch, max(first, part.first), min(last, part.last)
            )
        ]

    def inherited_calls(self) -> list[Call]:
        """Return the model calls on the shared path of a fork."""
        return self._log.store.inherited_calls(self.session_id)

    def calls_at(self, entry: Entry) -> list[Call]:
        """Return the model calls answered by an entry of the tree."""
        return ledger.calls_at(self._log, entry)

    def latest_answer_call(self, last: int) -> Call | None:
        """Return the call behind the newest answer of the path up to entry `last`."""
        return ledger.latest_answer_call(self._log, last)

    def calls_with_sessions(self, view: str) -> Iterator[tuple[SessionRow, Call]]:
        """Yield the calls of a view of `Session.usage`, each with the calling session. A view may include
        tasks."""
        return ledger.calls_with_sessions(self._log, view)

    def usage_by(
        self, by: str, view: str = "own", *, after: Leaf | None = None, since: int = 0
    ) -> dict[str, Totals]:
        """Sum the calls of a view of `Session.usage` by one column. Calls before a leaf or a time may be left
        out."""
        calls = ledger.calls_with_sessions(self._log, view, after)
        return sum_usage(((row, call) for row, call in calls if call.at >= since), by)

    # -- tool calls --------------------------------------------------------------------------------

    def call_status(self) -> CallStatus:
        """Read the status of the calls without a result: started, decided, or in wait for a person or a task."""
        return read_call_status(self._log)

    def original_call(self, call: OpenCall) -> ToolCall | None:
        """Return an open call as made by the model. None: a secret in the call is known no more."""
        return self._log.original_call(call)

    def raise_if_task_trashed(self, tools: Mapping[str, Tool]) -> None:
        """Raise TaskTrashed if every open call waits, no decision can help, and a task is in the trash."""
        read_call_status(self._log).raise_if_trashed(self._log, tools)

    def is_awaited_by_worker(self) -> bool:
        """Whether a worker's task waits for a decision here and continues the turn alone."""
        return is_awaited_by_worker(self._log)

    def ancestors(self) -> list[SessionReader]:
        """Return the sessions above a task: the parent first, the session above all tasks last."""
        return [SessionReader(log) for log in ancestors(self._log)]

    # -- moves -------------------------------------------------------------------------------------

    def rewind_move(self, to: int) -> Move:
        """Return the move of a rewind to entry `to`."""
        return rewind_move(self._log, to)

    def redo_move(self) -> Move:
        """Return the move of a redo."""
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
        """Read the saved part of an answer in progress elsewhere."""
        return self._log.store.draft(self.session_id)

    # -- prompt and media --------------------------------------------------------------------------

    def prompt_frame(self) -> list[Entry]:
        """Read the entries around every context: system prompt, settings, compactions, the first message."""
        return prompt.prompt_frame(self._log, self.leaf)

    def context_within(self, budget: Budget) -> Context:
        """Return the context at the leaf cut to a budget. No more is read than the budget holds."""
        return prompt.context_within(self._log, self.leaf, budget)

    def blob(self, digest: str) -> bytes | None:
        """Return the bytes of a hash. None: the bytes are missing or damaged."""
        return self._log.read_blob(digest)

    def storage_size(self) -> StorageSize:
        """Return the size of the session's own branches."""
        return self._log.store.storage_size(self.session_id)

    def storage(self) -> SessionStorage:
        """Return the size of the session's own branches, and the share of tools and options."""
        return storage(self._log)

    # -- requests ----------------------------------------------------------------------------------

    def window_use(self) -> WindowUse:
        """Return the estimated tokens of the request at the leaf, and the window of the session's model."""
        row = self._log.store.session(self.session_id)
        return measure_window(prompt.read_context(self._log, self.leaf), row.model, row.context_window)

    def cache_break(self, provider: str, request: dict[str, Any] | None = None) -> Difference | None:
        """Return the first difference from the request sent last, or from `request`. None: the cache stays
        warm."""
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
        """Return the seq before the last model request on the path, answered or not. None: no model was
        asked."""
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
        """Hides the secrets known to the store."""
        return self._runtime.redactor

    def new_id(self, prefix: str = "") -> str:
        """Return a new id."""
        return self._runtime.new_id(prefix)

    def holder(self) -> str:
        """Return the name of this process in the rows of running sessions."""
        return self._runtime.holder()

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return self._runtime.now()

    # -- rows --------------------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionReader:
        """Return a reader of a session at the leaf. Raise NotFound if the session is absent or another
        tenant's."""
        return SessionReader(Log(self._store, self._store.session(session_id), self._runtime))

    def find_session(self, session_id: str) -> SessionRow | None:
        """Return a session's row. None: the session is absent or another tenant's."""
        return self._store.find_session(session_id)

    def heads(self, session_ids: Sequence[str]) -> dict[str, SessionHead]:
        """Return the changing part of the rows of many existing sessions, in one read."""
        return self._store.heads(session_ids)

    def sessions(self, query: SessionQuery) -> SessionPage:
        """Return a page of rows, filtered by current status. The last page may be empty."""
        return session_page(self._store, query, self._runtime)

    def find_sessions(self, search: SessionSearch) -> SessionPage:
        """Return a page of the sessions that a query names, as far as one page may look for words."""
        return find_sessions(self._store, search, self._runtime)

    def search(self, search: Search) -> SearchPage:
        """Search what is indexed."""
        return self._store.search(search)

    def all_sessions(self, query: SessionQuery) -> Iterator[SessionRow]:
        """Yield all matching rows as stored, each once. Rows are read page by page."""
        return self._store.all_sessions(query)

    def current(self, row: SessionRow) -> SessionRow:
        """Return a row with the current status."""
        return current_row(row, self._runtime)

    def is_held(self, row: SessionRow) -> bool:
        """Whether a run has the lease of the row's session."""
        return Hold(row, self._runtime).is_held

    def headings(self, rows: Sequence[SessionRow]) -> dict[str, str]:
        """Return a one-line name of each session."""
        return headings(self._store, rows)

    def heading(self, row: SessionRow) -> str:
        """Return a one-line name of a session."""
        return headings(self._store, [row])[row.session_id]

    def hit_headings(self, hits: Sequence[SearchHit]) -> dict[str, str]:
        """Return a one-line name of each session of the hits."""
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
        """Read a session's row and a part of the path to `leaf`, or to the session's own leaf, in one read."""
        return self._store.path(session_id, leaf=leaf, first=first, last=last, newest=newest, detail=detail)

    def detail(self, session_id: str) -> SessionDetail:
        """Return the values frozen at a session's start, and the stored state, if any."""
        return self._store.detail(session_id)

    def journal(self, session_id: str, after: int = 0, limit: int | None = None) -> list[StoredFact]:
        """Return the facts of a session after number `after`."""
        return self._store.journal(session_id, after, limit)

    def find_change(self, session_id: str, key: str) -> Leaf | None:
        """Return the end of the change recorded under a key by a session. None: the key is unknown."""
        change = self._store.find_change(session_id, key)
        return None if change is None else change.leaf

    def drafts(self, session_ids: Sequence[str]) -> dict[str, str | None]:
        """Return the saved parts of answers in progress elsewhere."""
        return {session_id: self._store.draft(session_id) for session_id in session_ids}

    def storage_size(self, session_id: str) -> StorageSize:
        """Return the size of a session's own branches."""
        return self._store.storage_size(session_id)

    def unreferenced_blobs(self, before: int) -> UnreferencedBlobs:
        """Count the blobs stored before a time and referenced by no entry."""
        return self._store.unreferenced_blobs(before)

    def blob(self, digest: str) -> Blob | None:
        """Return stored bytes and the type, unchanged. None: no bytes are stored under the hash."""
        return self._store.blob(digest)

    # -- sums --------------------------------------------------------------------------------------

    def count(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        """Count the last active matching sessions, `MAX_COUNT` at most, by one column, with the current
        status."""
        return count_sessions(self._store, query, by, self._runtime)

    def count_all(self, query: SessionQuery, by: CountColumn) -> dict[str, int]:
        """Count all matching sessions by one column as stored."""
        return self._store.count(query, by)

    def status_counts(self, most: int) -> dict[str, int]:
        """Count the sessions by stored status. A count of `most` means that many or more."""
        return self._store.status_counts(most)

    def daily_usage(self, since: int = 0) -> list[DailyUsage]:
        """Return the usage of all sessions by day, agent, model and bucket."""
        return self._store.daily_usage(since)

    def usage_by(self, by: str, since: int = 0) -> UsageSums:
        """Sum the calls of all sessions since a time, those of replays apart."""
        return self._store.usage_by(by, since)

    def queued_input_count(self) -> int:
        """Return the number of inputs queued for sessions not running."""
        return self._store.queued_input_count()
