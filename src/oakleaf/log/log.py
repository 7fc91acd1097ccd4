"""One session's log. This package is the only caller of a store's `commit`.

A log has a position: the leaf last seen. Reads follow the path to the leaf, and appends extend the path; if
another writer moved the leaf, the store raises `StaleLeaf`. `core.turns` decides the order of entries. Knows
no providers, prices or agents. Threads with a shared log take turns on the lock.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from oakleaf.core.codec import check_text, from_json, to_json
from oakleaf.core.context import fold_settings
from oakleaf.core.drafts import Draft, EntryBatch, NewEntry, build_entries
from oakleaf.core.entries import INTERRUPTED, PARTIAL, Entry, Note, Payload, Settings
from oakleaf.core.facts import (
    Appended,
    Fact,
    Moved,
    RunnerEnded,
    SessionEnded,
    StoredFact,
    TurnEnded,
    TurnLeft,
    TurnResumed,
    TurnStarted,
    kind_of,
)
from oakleaf.core.media import digest
from oakleaf.core.messages import Message, ToolCall, assistant, to_user_message
from oakleaf.core.state import State, fold_state, merge_state, state_updates
from oakleaf.core.tree import Branch, Leaf, Range, contains_leaf, shared_seq
from oakleaf.core.turns import Action, Cursor, OpenCall, action_at_end, cursor_after, cursor_from_tail
from oakleaf.core.usage import Call, Totals
from oakleaf.errors import (
    InvalidOperation,
    InvalidPosition,
    KeyReused,
    NothingToRedo,
    OakleafError,
    OpenBatch,
    OrphanResult,
    SessionRunning,
    StaleLeaf,
    StoreLacks,
)
from oakleaf.log.changes import (
    check,
    later_call,
    latest_model,
    new_key,
    redacted_fact,
    started_calls,
    storable_call,
    turn_facts,
    turn_status,
)
from oakleaf.log.lease import require_free
from oakleaf.log.new_session import check_names
from oakleaf.log.original_calls import restore_call
from oakleaf.log.position import Position
from oakleaf.log.request import (
    NOTHING_ASKED,
    Asked,
    Committed,
    Cut,
    Place,
    Plan,
    Request,
    have_updates,
    left_behind,
)
from oakleaf.log.runtime import Runtime
from oakleaf.log.workspace import has_slot, stored_workspace
from oakleaf.stores.base import (
    Change,
    CommitResult,
    Effect,
    PathSnapshot,
    SessionRow,
    StoreBackend,
    is_callers_key,
)

if TYPE_CHECKING:
    from oakleaf.log.keyed_turn import RecordedSteps

TEXT = ("title", "error")
"""The redacted text columns of a row."""
LOOK_BACK = 16
"""Entries, or facts, read first to find something before a leaf; eight times as many at each further try."""
MAX_PAGE = 4_096
EMPTY = b"{}"
"""A state without values."""
IDLE: Mapping[str, Any] = {"status": "idle", "error": None, "holder": None, "lease_until": None}
"""The columns of a session without a runner."""
MAX_COMPARED = 128
"""Entries read to detect a change of state by a move or a fork; beyond, a read of the state folds the path
anew."""


class Log:
    def __init__(
        self, store: StoreBackend, row: SessionRow, runtime: Runtime, cursor: Cursor | None = None
    ) -> None:
        self.store, self.runtime = store, runtime
        self.session_id = row.session_id
        self.seed_count = row.seed_count
        self.is_task = row.relation == "task"
        self.position = Position(row.leaf, cursor)
        self._inherited_until: int | None = 0 if row.parent_session is None else None
        """The seq of the last inherited entry; None until read."""
        self.fence: int | None = None
        """The fence of the caller's own open turn on this handle."""
        self.recorded_steps: RecordedSteps | None = None
        """The steps of a keyed turn; the turn's lines run again on this handle."""
        self._lock = RLock()
        _LOGS.add(self)

    # -- position ---------------------------------------------------------------------------

    @property
    def leaf(self) -> Leaf:
        return self.position.leaf

    @property
    def cursor(self) -> Cursor:
        cursor = self.position.cursor  # known between two steps of a turn: no lock needed
        if cursor is not None:
            return cursor
        with self._lock:
            if self.position.cursor is None:
                self._know(cursor=self.cursor_at(self.leaf))
            assert self.position.cursor is not None
            return self.position.cursor

    def cursor_at(self, leaf: Leaf) -> Cursor:
        count = LOOK_BACK
        while True:
            entries = self.store.path(self.session_id, leaf=leaf, newest=count).entries
            cursor = cursor_from_tail(entries)
            if cursor is not None:
                return cursor
            count *= 8

    def refresh(self) -> SessionRow:
        """Reload the current leaf."""
        with self._lock:
            row = self.store.session(self.session_id)
            self.seek(row.leaf)
            return row

    def seek(self, leaf: Leaf) -> None:
        """Put this handle at any leaf of the session's tree. The session's own leaf does not move."""
        with self._lock:
            if leaf != self.leaf:
                self.position = self.position.at(leaf)

    def at(self, leaf: Leaf) -> Log:
        """Return another log of the session, at any leaf of the tree."""
        return Log(self.store, replace(self.store.session(self.session_id), leaf=leaf), self.runtime)

    def load(self, *, newest: int | None = None) -> PathSnapshot:
        """Move to the session's current leaf; return row, details and the path, or the path's end, in one
        read."""
        with self._lock:
            snapshot = self.store.path(self.session_id, detail=True, newest=newest)
            self.seek(snapshot.row.leaf)
            cursor = cursor_from_tail(snapshot.entries) or self.position.cursor
            self._know(cursor=cursor, ranges=snapshot.ranges)
            return snapshot

    def _know(self, **values: Any) -> None:
        """Add values read at the present leaf to the position."""
        self.position = replace(self.position, **values)

    @property
    def state(self) -> State:
        """The fold of the updates on the path. Returns a copy: changing it does not change the log."""
        with self._lock:
            if self.position.state is None:
                snapshot = self.store.path(
                    self.session_id, leaf=self.leaf, first=self.leaf.seq + 1, detail=True
                )
                is_current = snapshot.row.leaf == self.leaf
                cached = snapshot.detail.state if snapshot.detail and is_current else None
                folded = to_json(fold_state(self.path().entries), "state") if cached is None else cached
                self._know(state=folded, is_state_stored=cached is not None or not is_current)
            stored = self.position.state
            assert stored is not None
            state: State = {} if stored == EMPTY else from_json(stored)
            return state

    @property
    def is_call_input_known(self) -> bool:
        """Whether `idempotency_key` and `state` need not read, nor decode."""
        return self.position.branch_number is not None and self.position.state == EMPTY

    # -- reading -----------------------------------------------------------------------------------

    def path(self, *, since: int = 0, last: int | None = None, public: bool = False) -> PathSnapshot:
        return self.store.path(self.session_id, leaf=self.leaf, first=since + 1, newest=last, public=public)

    def backwards(self, leaf: Leaf | None = None, last: int | None = None) -> Iterator[Entry]:
        """Yield the entries of the path backwards from the newest, or from entry `last`.

        Reads pages on demand.
        """
        leaf = self.leaf if leaf is None else leaf
        last, count = leaf.seq if last is None else last, LOOK_BACK
        while last > 0:
            first = max(1, last - count + 1)
            yield from reversed(self.store.path(self.session_id, leaf=leaf, first=first, last=last).entries)
            last, count = first - 1, min(8 * count, MAX_PAGE)

    def facts_backwards(self, after: int = 0) -> Iterator[StoredFact]:
        """Yield the facts of the journal after number `after`, newest first. Reads pages on demand."""
        if after:  # the caller knows a recent beginning
            yield from reversed(self.store.journal(self.session_id, after))
            return
        last, count = self.store.session(self.session_id).facts, LOOK_BACK
        while last > after:
            first = max(after, last - count)
            yield from reversed(self.store.journal(self.session_id, first, last - first))
            last, count = first, min(8 * count, MAX_PAGE)

    def newest_turn(self) -> int:
        """The seq of the latest input on the path; 0 if there is none."""
        return next((entry.turn for entry in self.backwards() if entry.turn), 0)

    def settings(self) -> Settings:
        """Return the settings in force at this leaf. Reads no message."""
        return fold_settings(self.store.control_entries(self.session_id, leaf=self.leaf))

    def next_action(self) -> Action:
        """Return the next action at this leaf. Reads the newest entries only."""
        count = LOOK_BACK
        while True:
            entries = self.path(last=count).entries
            action = action_at_end(entries)
            if action is not None:
                return action
            count *= 8

    def ranges(self) -> tuple[Range, ...]:
        """The path as ranges, without reading an entry."""
        with self._lock:
            ranges = self.position.ranges
            if ranges is None:
                ranges = self.store.path(self.session_id, leaf=self.leaf, first=self.leaf.seq + 1).ranges
                self._know(ranges=ranges)
            return ranges

    def newest_entries(self, count: int, since: int = 0) -> list[Entry]:
        """Return the last `count` entries of `all_entries` after seq `since`.

        Reads branch by branch, the newest first.
        """
        reach = {part.branch: part.last for part in self.ranges()}
        entries: list[Entry] = []
        for branch in reversed(self.store.branches(self.session_id)):
            is_own = branch.session_id == self.session_id
            last = branch.tail if is_own else reach.get(branch.branch, 0)
            first = max(branch.parent_seq, since, last - (count - len(entries))) + 1
            if first <= last:
                leaf = Leaf(branch.branch, last)
                read = self.store.path(self.session_id, leaf=leaf, first=first, last=last).entries
                entries = [*read, *entries]
            if len(entries) >= count:
                break
        return entries

    def all_entries(self) -> list[Entry]:
        """Return every entry of the tree by (branch, seq): own entries and the shared part of the path.

        Each entry is read once. If the path is the whole tree, as in most sessions, only the path is read.
        """
        reach = {part.branch: part.last for part in self.ranges()}
        branches = self.store.branches(self.session_id)
        own = [branch for branch in branches if branch.session_id == self.session_id]
        if all(branch.tail <= max(reach.get(branch.branch, 0), branch.parent_seq) for branch in own):
            entries = self.path().entries
        else:
            shared_branch = max(reach.keys() - {branch.branch for branch in own}, default=None)
            last = 0 if shared_branch is None else reach[shared_branch]
            shared = self.store.path(self.session_id, leaf=self.leaf, last=last).entries if last else []
            stored = self.store.entries(self.session_id)
            entries = [*shared, *(row.entry.to_entry(row.branch) for row in stored)]
        return sorted(entries, key=lambda entry: (entry.branch, entry.seq))

    def idempotency_key(self, seq: int, index: int) -> str:
        """The idempotency key of a call: the same in every process, before and after a crash or a move elsewhere.

        It counts the session's own branches, because branch numbers differ from store to store.
        """
        return f"{self.session_id}/{self.branch_number()}/{seq}/{index}"

    def branch_number(self) -> int:
        """Return the number of the leaf's branch among the session's own branches, in opening order."""
        with self._lock:
            if self.position.branch_number is None:
                self.read_branches()
            assert self.position.branch_number is not None
            return self.position.branch_number

    def read_branches(self) -> list[Branch]:
        """Return the session's own branches and the inherited branches, as of now."""
        with self._lock:
            branches = self.store.branches(self.session_id)
            own = [branch.branch for branch in branches if branch.session_id == self.session_id]
            self._know(branch_number=bisect_left(sorted(own), self.leaf.branch) + 1)
            return branches

    def original_call(self, call: OpenCall) -> ToolCall | None:
        """Return the open call with the model's arguments, for a tool to run with.

        None if a secret is no longer known.
        """
        if not call.call.is_hidden:
            return call.call
        answer = Leaf(self.leaf.branch, call.seq)
        original = self.runtime.original_calls.find(self.session_id, answer, call.index, call.call)
        return original or restore_call(call.call, self.runtime.redactor.values, self.read_blob)

    def read_blob(self, hash_: str) -> bytes | None:
        """Return the bytes with this hash; None if the bytes are missing or damaged. `verify` tells which."""
        blob = self.store.blob(hash_)
        return None if blob is None or digest(blob.data) != hash_ else blob.data

    # -- writing -----------------------------------------------------------------------------------

    def append(
        self,
        drafts: Sequence[Draft],
        *,
        after: Leaf | None = None,
        key: str | None = None,
        digest: str | None = None,
        calls: Sequence[Call] = (),
        replaces_call: bool = False,
        row: Mapping[str, Any] | None = None,
        about: TurnStarted | TurnEnded | None = None,
        facts: Sequence[Fact] = (),
        starts: Sequence[int] = (),
        takes: int | None = None,
        fence: int | None = None,
        effect: Callable[[Sequence[NewEntry]], Effect] | None = None,
    ) -> Committed:
        """Append all drafts after the leaf, or none."""
        if not drafts:
            raise InvalidOperation("nothing to append; pass at least one message or entry")
        if self.recorded_steps is not None and fence is None and after is None:
            repeated = self.recorded_steps.repeat(self, drafts) if self.find_change(key) is None else None
            if repeated is not None:
                return repeated
        return self.commit(
            Request(
                drafts=tuple(drafts),
                after=after,
                key=key,
                digest=digest,
                calls=tuple(calls),
                replaces_call=replaces_call,
                row=row or {},
                about=about,
                facts=tuple(facts),
                starts=tuple(starts),
                inbox_number=takes,
                fence=self.fence if fence is None else fence,
                effect=effect,
            )
        )

    def record(
        self,
        fact: Fact,
        *,
        row: Mapping[str, Any] | None = None,
        tags: Mapping[str, str | None] | None = None,
        calls: Sequence[Call] = (),
        replaces_call: bool = False,
        drops_call: str | None = None,
        only_at_leaf: bool = False,
        takes: int | None = None,
        key: str | None = None,
        fence: int | None = None,
    ) -> Committed:
        """Record a fact without entries: a title, a status, a failed call. The leaf does not move."""
        return self.commit(
            Request(
                fact=fact,
                row=row or {},
                tags=tags or {},
                calls=tuple(calls),
                replaces_call=replaces_call,
                drops_call=drops_call,
                at_leaf=bool(calls) or only_at_leaf,
                inbox_number=takes,
                key=key,
                fence=fence,
            )
        )

    def move(
        self,
        to: Leaf | Place,
        *,
        drafts: Sequence[Draft] = (),
        moved: Moved | None = None,
        row: Mapping[str, Any] | None = None,
        asked: Asked = NOTHING_ASKED,
    ) -> Committed:
        """Move the leaf anywhere in the session's tree, and append the drafts there, in the same commit."""
        return self.commit(
            Request(
                move_to=to,
                drafts=tuple(drafts),
                fact=moved,
                row=row or {},
                key=asked.key,
                digest=asked.digest,
            )
        )

    def once(self, asked: Asked, change: Callable[[], Committed]) -> Committed:
        """Make a change, or return its recorded outcome: what is known under the key is neither made again nor refused.

        `KeyReused` if something else was asked for under the key.
        """
        if (earlier := self._recorded(asked)) is not None:
            return earlier
        try:
            return change()
        except OakleafError:
            if (earlier := self._recorded(asked)) is not None:  # another process was first
                return earlier
            raise

    def _recorded(self, asked: Asked) -> Committed | None:
        earlier = self.find_change(asked.key)
        return None if earlier is None else self._repeat(earlier, asked.digest)

    def commit(self, request: Request) -> Committed:
        """Write a request as a whole or not at all.

        A request of the runner, or one with `follows_notes`, goes behind notes added by others meanwhile.
        `StaleLeaf` if the leaf has moved otherwise. For a known key of a caller, the recorded result is
        returned.
        """
        with self._lock:
            request = self._checked(request)
            if (earlier := self.find_change(request.key)) is not None:
                return self._repeat(earlier, request.digest)
            while True:
                plan = self._plan(request)
                try:
                    done = self._write(plan.change)
                except StaleLeaf as stale:
                    request = self._behind_notes(request, stale)
                else:
                    if done.is_repeat:
                        return self._repeat(done, request.digest)
                    return self._committed(plan, done)

    def _checked(self, request: Request) -> Request:
        """Return the request in storable form; raise for a value unfit for some store."""
        redactor = self.runtime.redactor
        check(request.key, (request.fact, request.about, *request.facts), request.row)
        if request.key is not None:
            redactor.check_name(request.key, "key")
        if request.tags:
            check_names(redactor, {"tags": request.tags})
        if request.has_settings:
            request = replace(request, drafts=tuple(self._fill_draft(draft) for draft in request.drafts))
        if request.calls:
            request = replace(request, calls=tuple([storable_call(call, redactor) for call in request.calls]))
        return request

    def _plan(self, request: Request) -> Plan:
        """Turn a request into the change to commit, and the position afterwards."""
        if request.move_to is not None:
            return self._plan_move(request, request.move_to)
        if request.drafts:
            return self._plan_append(request)
        redactor = self.runtime.redactor
        text = {name: redactor.redact_json(value) for name, value in request.row.items() if name in TEXT}
        assert request.fact is not None
        change = self._change(
            request,
            fact=redacted_fact(request.fact, redactor),
            columns={**request.row, **text},
            after=self.leaf if request.at_leaf else None,
        )
        return Plan(change)

    def _plan_append(self, request: Request) -> Plan:
        leaf = self.leaf if request.after is None else request.after
        cursor = self.cursor if leaf == self.leaf else self.cursor_at(leaf)
        at = self.runtime.now()
        written = self._build_entries(cursor, request.drafts, at, request.fence)
        about = None if request.about is None else redacted_fact(request.about, self.runtime.redactor)
        turns = turn_facts(written.facts, about)
        state, encoded = self._next_state(leaf, written.payloads)
        change = self._change(
            request,
            at=at,
            fact=Appended(request.digest),
            after=leaf,
            entries=written.entries,
            blobs=written.blobs,
            state=encoded,
            facts=(*turns, *request.facts, *started_calls(written.entries, request.starts)),
            columns={
                **turn_status(turns),
                **(latest_model(written.payloads) if request.has_settings else {}),
                **request.row,
            },
            inherited_turns=int(self._answers_inherited(leaf, cursor.turn, written.payloads)),
        )
        return Plan(change, written, state, request.drafts)

    def _plan_move(self, request: Request, target: Leaf | Place) -> Plan:
        to, place = (target.leaf, target) if isinstance(target, Place) else (target, None)
        drafts = (*(Draft(settings) for settings in self._narrowing_undone_at(to, place)), *request.drafts)
        at = self.runtime.now()
        cursor = Cursor() if not to.seq else self.cursor_at(to) if place is None else place.cursor
        written = build_entries(cursor, drafts, at, redactor=self.runtime.redactor)
        free = {} if request.fence is not None else IDLE
        change = self._change(
            request,
            at=at,
            fact=self._moved(request),
            after=self.leaf,
            move_to=to,
            entries=written.entries,
            blobs=written.blobs,
            facts=(*written.facts, *request.facts),
            state=UNSET if not have_updates(drafts) and self._has_same_state(to, place) else None,
            columns={**free, **turn_status(written.facts), **request.row},
        )
        return Plan(change, written)

    def _moved(self, request: Request) -> Moved:
        origin = self.leaf.branch, self.leaf.seq
        moved = request.fact if isinstance(request.fact, Moved) else Moved(origin)
        return replace(moved, origin=origin, digest=request.digest)

    def _change(self, request: Request, **values: Any) -> Change:
        values.setdefault("at", self.runtime.now())
        return Change(
            session_id=self.session_id,
            key=request.key or new_key(self.runtime),
            tags=dict(request.tags),
            calls=request.calls,
            replaces_call=request.replaces_call,
            drops_call=request.drops_call,
            inbox_number=request.inbox_number,
            fence=request.fence,
            effect=None
            if request.effect is None
            else self._effect(request.effect(values.get("entries", ()))),
            **values,
        )

    def _effect(self, effect: Effect) -> Effect:
        if not isinstance(effect, self.store.effects):
            raise StoreLacks(self.store.url, "write what an engine adds to a change")
        return effect

    def _write(self, change: Change) -> CommitResult:
        """Commit. The lease of a holder known to be dead refuses nothing: the change is made under its fence."""
        try:
            return self._timed_commit(change)
        except SessionRunning:
            row = self.store.session(self.session_id)
            require_free(row, self.runtime)
            return self._timed_commit(replace(change, fence=row.fence))

    def _timed_commit(self, change: Change) -> CommitResult:
        on_commit = self.runtime.on_commit
        if on_commit is None:
            return self.store.commit(change)
        start = perf_counter()
        result = self.store.commit(change)
        on_commit(perf_counter() - start)
        return result

    def _committed(self, plan: Plan, done: CommitResult) -> Committed:
        """Take the position after a written change."""
        change, written = plan.change, plan.written
        if written is None:
            return Committed(done.leaf, fact_number=done.facts, change=change)
        calls_since = 0
        if change.move_to is None and (open_calls := written.cursor.open_calls):
            is_new = open_calls[0].seq >= written.entries[0].seq
            calls_since = done.facts - 1 - len(change.facts) if is_new else self.position.calls_since
        self.position = replace(
            self.position.at(done.leaf), cursor=written.cursor, state=plan.state, calls_since=calls_since
        )
        if change.move_to is None:
            self._note_originals(plan.drafts, written)
        return Committed(done.leaf, written.payloads, written.entries, done.facts, change=change)

    def _repeat(self, done: CommitResult, digest: str | None) -> Committed:
        """Return the recorded result of an earlier commit; `KeyReused` if it has another digest.

        A handle before the recorded leaf moves there; a handle beyond the recorded leaf stays.
        """
        stored = self.store.journal(self.session_id, done.facts - 1, 1)[0]
        fact = stored.fact
        is_move = isinstance(fact, Moved)
        if digest is not None and not (isinstance(fact, Appended | Moved) and fact.digest == digest):
            raise KeyReused(self.session_id, stored.key or "")
        if is_move:
            self.seek(done.leaf)
        if is_move or stored.first is None:
            return Committed(done.leaf, fact_number=done.facts, is_repeat=True, recorded=stored)
        ranges = self.store.path(self.session_id, leaf=done.leaf, first=done.leaf.seq + 1).ranges
        if any(part.branch == self.leaf.branch and self.leaf.seq <= part.last for part in ranges) or (
            not self.leaf.seq
        ):
            self.position = self.position.at(done.leaf)
        part = Range(done.leaf.branch, stored.first, done.leaf.seq)
        entries = [stored.entry for stored in self.store.entries(self.session_id, part)]
        payloads = tuple(entry.to_entry(done.leaf.branch).payload for entry in entries)
        return Committed(done.leaf, payloads, tuple(entries), done.facts, is_repeat=True, recorded=stored)

    def _behind_notes(self, request: Request, stale: StaleLeaf) -> Request:
        """Move a runner's request behind notes of others after the expected leaf.

        Only notes can come between, because the runner holds the session. Anything else is raised as stale.
        """
        if request.move_to is not None and request.fence is None:
            row = self.store.session(self.session_id)
            if row.status == "running":
                require_free(row, self.runtime)  # the runner has written since: the better error
            raise stale
        if request.fence is None and not request.follows_notes:
            raise stale
        expected = stale.expected
        snapshot = self.store.path(self.session_id, first=expected.seq + 1)
        is_ahead = any(
            part.branch == expected.branch and part.last >= expected.seq for part in snapshot.ranges
        )
        notes = [entry.payload for entry in snapshot.entries if isinstance(entry.payload, Note)]
        if not is_ahead or len(notes) != len(snapshot.entries):
            raise stale
        if snapshot.row.leaf != self.leaf:
            before = self.position
            self.position = replace(
                before.at(snapshot.row.leaf),
                cursor=cursor_after(snapshot.entries, self.cursor_at(expected)),
                state=None if any(note.state for note in notes) else before.state,
                calls_since=before.calls_since,
            )
        calls = tuple(later_call(call, len(notes)) for call in request.calls)
        return replace(request, after=None, calls=calls)

    def _build_entries(
        self, cursor: Cursor, drafts: Sequence[Draft], at: int, fence: int | None
    ) -> EntryBatch:
        try:
            return build_entries(cursor, drafts, at, redactor=self.runtime.redactor)
        except (OpenBatch, OrphanResult):
            if fence is None:  # the batch waits for the runner's results, not for the caller's
                require_free(self.store.session(self.session_id), self.runtime)
            raise

    def _note_originals(self, drafts: Sequence[Draft], written: EntryBatch) -> None:
        """Keep the original calls with stored placeholders until the whole batch has results."""
        originals = self.runtime.original_calls
        if not written.cursor.open_calls:
            originals.remove(self.session_id)
            return
        for draft, stored, entry in zip(drafts, written.payloads, written.entries, strict=True):
            if b"placeholders" not in entry.body:  # as the codec writes it: no call has any
                continue
            if isinstance(stored, Message) and isinstance(draft.payload, Message):
                for index, (call, original) in enumerate(zip(stored.calls, draft.payload.calls, strict=True)):
                    if call.is_hidden and not original.is_hidden:
                        answer = Leaf(self.leaf.branch, entry.seq)
                        originals.add(self.session_id, answer, index, call, original)

    def find_change(self, key: str | None) -> CommitResult | None:
        """Return the result recorded under the caller's key. Without a caller's key nothing is read."""
        check_text(key, "key")
        if key is None or not is_callers_key(key):
            return None
        return self.store.find_change(self.session_id, key)

    def _answers_inherited(self, leaf: Leaf, turn: int, payloads: Sequence[Payload]) -> bool:
        """Whether the payloads hold this session's first answer to an inherited input."""
        if not turn or (self._inherited_until is not None and turn > self._inherited_until):
            return False
        roles = [payload.role for payload in payloads if isinstance(payload, Message)]
        if next((role for role in roles if role in ("user", "assistant")), "user") == "user":
            return False  # an input opens a turn of its own
        branches = self.store.branches(self.session_id)
        own = {branch.branch: branch for branch in branches if branch.session_id == self.session_id}
        self._inherited_until = own[min(own)].parent_seq
        path = self.store.path(self.session_id, leaf=leaf, first=turn).entries
        return path[0].branch not in own and not any(
            entry.role == "assistant" and entry.branch in own for entry in path
        )

    def _fill_draft(self, draft: Draft) -> Draft:
        payload = draft.payload
        return replace(draft, payload=self.fill(payload)) if isinstance(payload, Settings) else draft

    def fill(self, settings: Settings) -> Settings:
        """Replace every known `{{ctx.name}}` in a prompt by the session's workspace, as in the seeds."""
        if not has_slot(settings):
            return settings
        workspace = stored_workspace(self.store.detail(self.session_id).workspace)
        return settings if workspace is None else workspace.fill_settings(settings)

    def _next_state(
        self, leaf: Leaf, payloads: Sequence[Payload]
    ) -> tuple[bytes | None, bytes | UnsetType | None]:
        """Return the state after the payloads, None if unknown; and the state to cache, if any."""
        if leaf != self.leaf:
            return None, None
        patches: list[State] = []
        for payload in payloads:
            patches += state_updates(payload)
        if not patches:
            known = self.position
            return known.state, UNSET if known.is_state_stored else known.state
        state = self.state
        for patch in patches:
            state = merge_state(state, patch)
        encoded = to_json(state, "state")
        return encoded, encoded

    def partial_text(self) -> str | None:
        """Return the shown part of the open turn's unfinished answer: a draft or an entry."""
        turn, open_calls = self.cursor.turn, self.cursor.open_calls
        if not turn or open_calls:
            return None
        draft = self.store.draft(self.session_id)
        if draft is not None:
            return draft
        messages = [entry for entry in self.path(since=turn).entries if entry.message is not None]
        last = messages[-1] if messages else None
        return last.message.text if last and last.message and last.finish == INTERRUPTED else None

    def keep_partial(self) -> str | None:
        """End the open turn with the text of `partial_text` and return the text. None if there is none."""
        text = self.partial_text()
        if text is not None:
            self.append([Draft(assistant(text), finish=PARTIAL)])
        return text

    def enqueue(self, message: Message) -> int:
        """Store an input until the session's runner takes the input."""
        return self.store.enqueue(self.session_id, self.queued_body(message), self.runtime.now())

    def queued_body(self, message: Message) -> bytes:
        """Return an input in the stored form of a queue; store the attachments as blobs."""
        draft = Draft(to_user_message(message))
        written = build_entries(Cursor(), [draft], self.runtime.now(), redactor=self.runtime.redactor)
        for blob in written.blobs:  # a crash before the input is queued leaves a blob that is collected
            self.store.put_blob(blob, self.runtime.now())
        return written.entries[0].body

    def appended_entries(self, fact: StoredFact) -> list[Entry]:
        """Return the entries appended by the change of a fact; none for other facts."""
        if fact.leaf is None or fact.first is None:
            return []
        leaf = fact.leaf
        return self.store.path(self.session_id, leaf=leaf, first=fact.first, last=leaf.seq).entries

    # -- moving ------------------------------------------------------------------------------------

    def place(self, requested: int) -> Place:
        """Return the nearest place at or before `requested` without open tool calls."""
        if type(requested) is not int or not 0 <= requested <= self.leaf.seq:
            raise InvalidPosition(requested, 0, self.leaf.seq, self.session_id)
        with self._lock:
            place = self.place_of(requested)
            open_calls = place.cursor.open_calls
            if not open_calls:
                return place
            at = open_calls[0].seq - 1
            return replace(self.place_of(at), cut=Cut(at, requested))

    def place_of(self, seq: int) -> Place:
        """Return the place of entry `seq` of this path, with or without open tool calls.

        One read at any depth of the tree.
        """
        if seq == 0:
            return Place(Cut(0, 0), self.leaf_at(0))
        count = LOOK_BACK
        while True:
            first, end = max(1, seq - count + 1), self.leaf.seq
            last = end if end - seq <= MAX_COMPARED else seq  # a rewind asks what it leaves behind
            snapshot = self.store.path(self.session_id, leaf=self.leaf, first=first, last=last)
            self._know(ranges=snapshot.ranges)
            entries = [entry for entry in snapshot.entries if entry.seq <= seq]
            cursor = cursor_from_tail(entries)
            if cursor is not None:
                left = left_behind(snapshot.entries[len(entries) :]) if last == end else None
                return Place(Cut(seq, seq), self.leaf_at(seq), cursor, left)
            count *= 8

    def leaf_at(self, seq: int) -> Leaf:
        """Return entry `seq` of this path as a leaf, with the right branch."""
        ranges = self.ranges()
        for part in ranges:
            if part.first <= seq <= part.last:
                return Leaf(part.branch, seq)
        if seq:
            raise InvalidPosition(seq, 0, self.leaf.seq, self.session_id)
        root = ranges[0].branch if ranges else self.leaf.branch
        return Leaf(root, 0)

    def _has_same_state(self, to: Leaf, place: Place | None = None) -> bool:
        """Whether the state is the same at this leaf and another leaf; False if many entries lie between.

        Then the cached state holds there too, and need not be folded from the whole path.
        """
        if place is not None and place.left_behind is not None:
            return not place.left_behind.changes_state
        if self.is_on_path(to):
            return to.seq >= self.leaf.seq
        there = self.store.path(self.session_id, leaf=to, newest=MAX_COMPARED)
        shared = shared_seq(self.ranges(), there.ranges)
        if shared < self.leaf.seq or to.seq - shared > MAX_COMPARED:
            return False
        return not have_updates(entry for entry in there.entries if entry.seq > shared)

    def is_on_path(self, leaf: Leaf) -> bool:
        """Whether a leaf is on the path to this leaf."""
        return any(
            part.branch == leaf.branch and part.first <= leaf.seq <= part.last for part in self.ranges()
        )

    def _narrowing_undone_at(self, to: Leaf, place: Place | None) -> list[Settings]:
        """Return the settings to append after a move: tools removed from the session stay removed."""
        if place is not None and place.left_behind is not None and not place.left_behind.narrows_tools:
            return []
        if to.seq >= self.leaf.seq and self.is_on_path(to):
            return []
        read = self.store.control_entries
        tools = fold_settings(read(self.session_id, leaf=self.leaf)).tools
        if tools is None:
            return []
        there = fold_settings(read(self.session_id, leaf=to)).tools if to.seq else None
        if there is not None and set(there) <= set(tools):
            return []
        return [Settings(tools=tuple(name for name in tools if there is None or name in there))]

    def checkout(self, leaf: Leaf, asked: Asked = NOTHING_ASKED) -> Committed:
        """Move to a position in this session's tree, or to the nearest legal position before."""
        branches = self.store.branches(self.session_id)
        if not contains_leaf(branches, self.session_id, leaf):
            last = max(b.tail for b in branches if b.session_id == self.session_id)
            raise InvalidPosition(str(leaf), 0, last, self.session_id)
        open_calls = self.cursor_at(leaf).open_calls
        if not open_calls:
            return self.move(leaf, asked=asked)
        at = open_calls[0].seq - 1
        return self.move(Leaf(leaf.branch, at), moved=Moved((0, 0), requested=leaf.seq), asked=asked)

    def redo(self, asked: Asked = NOTHING_ASKED) -> Committed:
        """Undo the last rewind if nothing was appended since. An open turn gets back the former status."""
        number, target = self._rewind_to_redo()
        row = self._open_turn_status(number) if self.cursor_at(target).turn else None
        return self.move(target, moved=Moved((0, 0), is_redo=True), row=row, asked=asked)

    def redo_target(self) -> Leaf:
        """Where `redo` goes."""
        return self._rewind_to_redo()[1]

    def _rewind_to_redo(self) -> tuple[int, Leaf]:
        """Return the number of the rewind's fact, and where the rewind came from."""
        rewinds: list[tuple[int, Leaf]] = []
        appended = kind_of(Appended)
        since = takewhile(lambda stored: stored.kind != appended, self.facts_backwards())
        for stored in reversed(list(since)):
            match stored.fact:
                case Moved(is_redo=True):
                    rewinds.pop()
                case Moved(origin=origin):
                    rewinds.append((stored.number, Leaf(*origin)))
        if not rewinds:
            raise NothingToRedo(self.session_id)
        return rewinds[-1]

    def _open_turn_status(self, before: int) -> dict[str, Any]:
        """Return the status and the error of the open turn before a fact.

        Interrupted if the runner recorded no status at the end.
        """
        redone = 0
        for stored in self.facts_backwards():
            if stored.number >= before:
                continue
            match stored.fact:
                case Moved(is_redo=is_redo):
                    redone += 1 if is_redo else -1
                    if redone < 0:  # it was moved to
                        return {}
                case _ if redone:  # between a rewind and its redo
                    continue
                case TurnEnded() | TurnLeft() | SessionEnded() as left:
                    return {"status": left.status, "error": left.error and left.error.replace("\0", "")}
                case TurnStarted() | TurnResumed() | RunnerEnded():
                    break
        return {"status": "interrupted"}

    def seed_count_on(self, ranges: Sequence[Range]) -> int:
        """Return the number of seeds on a path: fewer than in the session after a rewind into the seeds."""
        if not ranges or not self.seed_count:
            return 0
        roots = [branch.branch for branch in self.store.branches(self.session_id) if branch.parent is None]
        return min(self.seed_count, ranges[0].last) if ranges[0].branch in roots else 0


class HydratedSession(Struct, frozen=True):
    """The row, seeds, messages, state and totals of a session, from one read."""

    row: SessionRow
    seeds: list[Entry]
    messages: list[Entry]
    state: State
    totals: Totals


def hydrate(log: Log) -> HydratedSession:
    """Read a session at the current leaf in one read, to resume or to show."""
    snapshot = log.store.path(log.session_id, detail=True)
    count = log.seed_count_on(snapshot.ranges)
    cached = None if snapshot.detail is None else snapshot.detail.state
    state = fold_state(snapshot.entries) if cached is None else from_json(cached)
    seeds, messages = snapshot.entries[:count], snapshot.entries[count:]
    return HydratedSession(snapshot.row, seeds, messages, state, snapshot.row.totals)


_LOGS: WeakSet[Log] = WeakSet()


def _renew_locks() -> None:
    """Renew the locks after a fork.

    A thread of the parent with a lock does not exist in the child, and never releases it.
    """
    for log in list(_LOGS):
        log._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
