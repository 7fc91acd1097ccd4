"""Audit: the calls of tools with an effect in a span of time, with who allowed each, and how it ended.

Read from the entries, so that calls of every engine are found: also of own loops, frameworks and imports, which may record no
start. Reads the sessions that were active since the beginning of the span, and of each the entries since then.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from oakleaf.core.codec import decode_message
from oakleaf.core.context import fold_tools
from oakleaf.core.entries import Settings, ToolDefinitions
from oakleaf.core.facts import ApprovalRequested, Approved, Denied, StoredFact, ToolCallsStarted
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.core.tree import Branch, Leaf, Range
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf.stores.base import ACTIVITY_STEP, SessionQuery, SessionRow, StoreBackend, StoredEntry

CHUNK = 200
"""Entries or facts of one read."""
LOOK_BACK = 1_000
"""How far before a result its call is looked for on an inherited branch."""
Outcome = Literal["done", "failed", "unknown", "denied"]
AuditedEffect = Literal["unsafe", "idempotent"]


class AuditedCall(Struct, frozen=True, kw_only=True):
    """A call of a tool that is not known to read only."""

    session: str
    owner: str | None
    agent: str | None
    entry: str
    """The answer that asked for the call: `ses_3f@7`."""
    index: int
    """Of the call in the answer."""
    tool: str
    effect: AuditedEffect
    """`unsafe` also of a tool whose effect is not known."""
    arguments: dict[str, Any]
    started_at: int
    """Microseconds since 1970. When the call started; of a loop that records no starts, and of a denial, when it was asked."""
    ended_at: int | None
    """When the result was stored."""
    outcome: Outcome
    """`unknown`: it may have run."""
    approved: bool | None
    """The decision of a person; null if nobody was asked."""
    by: str | None = None
    """The person who decided."""
    reason: str | None = None
    surface: str | None = None
    decided_at: int | None = None
    cost_microcents: int | None
    """Of the model call that asked for it. Calls of one answer share it; null if it is not known."""
    imported: bool
    """Whether the session came from elsewhere: what was done before was done there."""


class AuditPage(Struct, frozen=True, kw_only=True):
    """The calls of a part of the sessions, in the order of their time: iterates over them."""

    calls: list[AuditedCall]
    next: str | None
    """The `page` that goes on with further sessions; None on the last page."""

    def __iter__(self) -> Iterator[AuditedCall]:
        return iter(self.calls)


def audit(
    store: StoreBackend,
    after: int,
    before: int | None = None,
    *,
    owner: str | None = None,
    page: str | None = None,
    limit: int = CHUNK,
) -> AuditPage:
    """Return the calls of a span of time in up to `limit` sessions, the last active first, those of the trash last."""
    trash, _, cursor = (page or "0:").partition(":")
    if trash not in ("0", "1"):
        raise InvalidArgument("page", page, "the `next` of a page")
    query = SessionQuery(
        owner=owner, trashed=trash == "1", order="active", before=cursor or None, limit=limit
    )
    found = store.sessions(query)
    calls: list[AuditedCall] = []
    is_over = found.next is None
    for row in found:
        if found.active_at[row.session_id] < after - 2 * ACTIVITY_STEP and row.updated_at < after:
            is_over = True
            break
        if row.relation != "replay" and (before is None or row.started_at < before):
            calls += _calls_of(store, row, after, before)
    following = (
        f"{trash}:{found.next}" if not is_over else "1:" if trash == "0" and _has_trash(store) else None
    )
    return AuditPage(
        calls=sorted(calls, key=lambda call: (call.started_at, call.entry, call.index)), next=following
    )


def _has_trash(store: StoreBackend) -> bool:
    return bool(list(store.sessions(SessionQuery(trashed=True, order="active", limit=1))))


def _calls_of(store: StoreBackend, row: SessionRow, after: int, before: int | None) -> list[AuditedCall]:
    try:
        found = list(_Session(store, row).read(after))
    except NotFound:  # purged meanwhile
        return []
    end = float("inf") if before is None else before
    return [call for call in found if after <= call.started_at < end]


class _Found(Struct, frozen=True):
    """A call of an answer, and its result."""

    answer: Leaf
    answered_at: int
    index: int
    call: ToolCall
    ended_at: int | None = None
    result: ToolResult | None = None


class _Session:
    """The calls of one session on its own branches."""

    def __init__(self, store: StoreBackend, row: SessionRow) -> None:
        self._store, self._row = store, row

    def read(self, after: int) -> Iterator[AuditedCall]:
        branches = self._store.branches(self._row.session_id)
        own = (branch for branch in branches if branch.session_id == self._row.session_id)
        found = {branch: list(self._pairs(branch, after)) for branch in own}
        times = [one.answered_at for each in found.values() for one in each]
        if not times:
            return
        facts = _CallFacts(self._store, self._row, min(times))
        for branch, calls in found.items():
            if calls:
                tools, costs = self._tools(branch), self._costs(calls)
                for one in calls:
                    made = self._audited(one, facts, tools(one.answer.seq), costs.get(one.answer))
                    if made is not None:
                        yield made

    # -- entries -----------------------------------------------------------------------------------------

    def _pairs(self, branch: Branch, after: int) -> Iterator[_Found]:
        """Yield the calls with their results, of a branch from some entry before a time on."""
        entries, open_calls = self._entries(branch, after), dict[str, _Found]()
        for stored in entries:
            message = _message(stored)
            if message is None:
                continue
            if message.role == "assistant":
                yield from open_calls.values()
                open_calls = {one.call.id: one for one in _calls(stored, message)}
            for result in message.results:
                one = open_calls.pop(result.call_id, None) or self._inherited(stored, result.call_id)
                if one is not None:
                    yield msgspec.structs.replace(one, ended_at=stored.entry.at, result=result)
        yield from open_calls.values()

    def _entries(self, branch: Branch, after: int) -> list[StoredEntry]:
        """Read a branch backwards, until a chunk begins with an answer and ends before a time."""
        chunks: list[list[StoredEntry]] = []
        last = branch.tail
        while last > branch.parent_seq:
            first = max(branch.parent_seq + 1, last - CHUNK + 1)
            chunk = self._store.entries(self._row.session_id, Range(branch.branch, first, last))
            chunks.append(chunk)
            if all(one.entry.at < after for one in chunk) and chunk[0].entry.role != "tool":
                break
            last = first - 1
        return [one for chunk in reversed(chunks) for one in chunk]

    def _inherited(self, stored: StoredEntry, call_id: str) -> _Found | None:
        """Return the call of a result whose answer is on the branch that this one left."""
        leaf = Leaf(stored.branch, stored.entry.seq)
        path = self._store.path(self._row.session_id, leaf=leaf, newest=LOOK_BACK)
        for entry in reversed(path.entries):
            if entry.role == "assistant" and entry.message is not None:
                calls = entry.message.calls
                places = [n for n, call in enumerate(calls) if call.id == call_id]
                return (
                    _Found(Leaf(entry.branch, entry.seq), entry.at, places[0], calls[places[0]])
                    if places
                    else None
                )
        return None

    # -- what is known of a call -------------------------------------------------------------------------

    def _audited(
        self, one: _Found, facts: _CallFacts, tools: ToolDefinitions | None, cost: int | None
    ) -> AuditedCall | None:
        """Return a call as the report has it; None for one that only reads, and for one that did not start."""
        effect = _effect(one.call, tools)
        place = one.answer.branch, one.answer.seq, one.index
        started, decision = facts.starts.get(place), facts.decisions.get(place)
        has_waited = place in facts.waits or decision is not None
        if effect is None or (one.result is None and started is None and (facts.starts or has_waited)):
            return None
        row = self._row
        return AuditedCall(
            session=row.session_id,
            owner=row.owner,
            agent=row.agent,
            entry=f"{row.session_id}@{one.answer.seq}",
            index=one.index,
            tool=one.call.name,
            effect=effect,
            arguments=dict(one.call.arguments),
            started_at=started if started is not None else one.answered_at,
            ended_at=one.ended_at,
            outcome=_outcome(one.result),
            approved=None if decision is None else isinstance(decision[1], Approved),
            by=None if decision is None else decision[1].by,
            reason=None if decision is None else decision[1].reason,
            surface=None if decision is None else decision[1].surface,
            decided_at=None if decision is None else decision[0],
            cost_microcents=cost,
            imported=row.relation == "import" or bool(row.imported_facts),
        )

    def _tools(self, branch: Branch) -> Callable[[int], ToolDefinitions | None]:
        """Return a function from the seq of an answer to the definitions in force there."""
        end = Leaf(branch.branch, branch.tail)
        seqs, in_force = [0], [Settings().tool_definitions]
        for entry in self._store.control_entries(self._row.session_id, leaf=end):
            if isinstance(entry.payload, Settings):
                seqs.append(entry.seq)
                in_force.append(fold_tools(in_force[-1], entry.payload.tool_definitions))
        return lambda seq: in_force[bisect(seqs, seq) - 1]

    def _costs(self, found: Sequence[_Found]) -> dict[Leaf, int]:
        """Return the price of the model call behind each answer."""
        prices: dict[Leaf, int] = {}
        for branch in {one.answer.branch for one in found}:
            seqs = [one.answer.seq for one in found if one.answer.branch == branch]
            for call in self._store.calls_between(self._row.session_id, branch, min(seqs), max(seqs)):
                if call.price is not None:
                    prices.setdefault(Leaf(branch, call.seq), call.price.microcents)
        return prices


def _effect(call: ToolCall, tools: ToolDefinitions | None) -> AuditedEffect | None:
    if tools is None or call.name not in tools.repeatable:
        return "unsafe"
    return None if call.name in tools.reads else "idempotent"


class _CallFacts:
    """The starts and decisions of calls in the facts since a time, by branch, seq of the answer, and index."""

    def __init__(self, store: StoreBackend, row: SessionRow, since: int) -> None:
        self.starts: dict[tuple[int, int, int], int] = {}
        self.waits: set[tuple[int, int, int]] = set()
        self.decisions: dict[tuple[int, int, int], tuple[int, Approved | Denied]] = {}
        branch = 0
        for stored in _facts_since(store, row, since):
            branch = branch if stored.leaf is None else stored.leaf.branch
            match stored.fact:
                case ToolCallsStarted(seq, indexes):
                    for index in indexes:
                        self.starts.setdefault((branch, seq, index), stored.at)
                case ApprovalRequested(seq, index):
                    self.waits.add((branch, seq, index))
                case Approved(seq, index) | Denied(seq, index) as decision:
                    self.decisions[branch, seq, index] = stored.at, decision


def _facts_since(store: StoreBackend, row: SessionRow, since: int) -> list[StoredFact]:
    """Return the facts since a time, and some before, of which one names the branch."""
    chunks: list[list[StoredFact]] = []
    last = row.facts
    while last > 0:
        first = max(0, last - CHUNK)
        chunks.append(chunk := store.journal(row.session_id, first, last - first))
        last = first
        if chunk and chunk[0].at < since and any(one.leaf is not None for one in chunk):
            break
    return [fact for chunk in reversed(chunks) for fact in chunk]


def _message(stored: StoredEntry) -> Message | None:
    entry = stored.entry
    return decode_message(entry.body) if entry.role in ("assistant", "tool") else None


def _calls(stored: StoredEntry, message: Message) -> Iterator[_Found]:
    place = Leaf(stored.branch, stored.entry.seq)
    for index, call in enumerate(message.calls):
        yield _Found(place, stored.entry.at, index, call)


def _outcome(result: ToolResult | None) -> Outcome:
    if result is None or result.outcome in ("unknown", "interrupted", "not_recorded"):
        return "unknown"
    if result.outcome == "denied":
        return "denied"
    return "failed" if result.error else "done"
