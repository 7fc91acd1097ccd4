"""Calls on abandoned paths: found when the same call comes up again, and when a person looks.

A fork, a rewind, an undo, an edit or a rollback leaves a path, and does not undo what its tools did. What was left is not
recorded: it follows from the branches of the session and of those that it was forked from. So a fork stays small. What
another session does after the fork is its own, and is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile

from msgspec.structs import asdict, replace

from oakleaf.agent.task_line import MAX_TASK_DEPTH, ancestors
from oakleaf.agent.tools.tool import EarlierCall
from oakleaf.core.call_hash import call_hash, canonical_call
from oakleaf.core.context import fold_settings
from oakleaf.core.entries import Effects, Entry, Note, Settings
from oakleaf.core.facts import (
    AnyFact,
    ApprovalRequested,
    CallReference,
    Started,
    ToolCallsStarted,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.core.tree import Branch, Leaf, Range
from oakleaf.errors import InvalidPosition
from oakleaf.log.imports import first_seq_after, is_foreign
from oakleaf.log.log import Log
from oakleaf.stores.base import CallPlace, SessionQuery, SessionRow, StoreBackend

PAGE = 64
"""Entries read at once to find the results of an answer's calls."""
MAX_LISTED_ENTRIES = 1_000
"""Entries of one branch read for a list for people."""
MAX_LISTED_TASKS = 100
MAX_FORKS = 1_000
NEVER_RAN = ("denied", "dry_run", "not_recorded")


class PathSession:
    """A session behind a path, and the relevant part of the session."""

    def __init__(
        self, store: StoreBackend, session_id: str, reach: Mapping[int, int], facts: int | None = None
    ) -> None:
        self.store, self.session_id = store, session_id
        self.reach = reach
        """By branch, the last entry on the path."""
        self.facts = facts
        """The last fact before the fork: later work does not count. None: everything counts."""
        self._later_from: dict[int, float] = {}

    @cached_property
    def own_branches(self) -> list[Branch]:
        """The session's own branches, the oldest first."""
        branches = self.store.branches(self.session_id)
        return [branch for branch in branches if branch.session_id == self.session_id]

    def is_on_path(self, leaf: Leaf) -> bool:
        return leaf.seq <= self.reach.get(leaf.branch, 0)

    def later_from(self, branch: int) -> float:
        """Return the first entry of a branch appended after the fork. Infinity: there is no such entry."""
        if self.facts is None:
            return float("inf")
        if branch not in self._later_from:  # read once: a call may be there thousands of times
            later = first_seq_after(self.store, self.session_id, self.facts, branch)
            self._later_from[branch] = later
        return self._later_from[branch]

    def is_left(self, leaf: Leaf) -> bool:
        """Whether an entry off the path existed when the fork was made."""
        return not self.is_on_path(leaf) and leaf.seq < self.later_from(leaf.branch)


def has_left_paths(log: Log) -> bool:
    """Whether calls may have been left behind: the session has other branches or was forked. For a task, the
    sessions above count too."""
    if len(log.read_branches()) > 1:
        return True
    return log.is_task and any(len(parent.read_branches()) > 1 for parent in ancestors(log))


def effects_in_force(log: Log) -> Effects:
    """Return the fate of a call made on another path: as the path says, or the path of the session above a
    task. Imported settings decide nothing."""
    for each in (log, *ancestors(log)):
        for entry in reversed(each.store.control_entries(each.session_id, leaf=each.leaf)):
            if isinstance(entry.payload, Settings) and entry.payload.effects and not is_foreign(each, entry):
                return entry.payload.effects
    return "ask"


def find_earlier_call(log: Log, call: ToolCall) -> EarlierCall | None:
    """Return the newest call of the same tool with the same arguments on an abandoned path. Only a call that
    took effect, or may have, counts."""
    hash_ = call_hash(call)
    for each in (log, *ancestors(log)):
        for line in _lines(each):
            for place in log.store.find_tool_calls(line.session_id, hash_):
                earlier = _read_call(log, place, call) if _is_left(line, place) else None
                if earlier is not None:
                    return earlier
    return None


def find_reference(log: Log, reference: CallReference) -> EarlierCall | None:
    """Return the call of a reference. None: the call is not in this store, or another call is in its place."""
    session_id, seq = reference.session, reference.seq
    if log.store.find_session(session_id) is None:
        return None
    for branch in log.store.branches(session_id):
        if branch.session_id == session_id and branch.parent_seq < seq <= branch.tail:
            answer, calls = _read_batch(log, session_id, Leaf(branch.branch, seq))
            if answer is not None and answer.entry_id.hex() == reference.entry:
                return next((each for each in calls if each.index == reference.index), None)
    return None


def left_behind(log: Log, limit: int) -> list[EarlierCall]:
    """Return the calls left behind by this path and not known to be repeatable, newest first."""
    calls: list[EarlierCall] = []
    for line in _lines(log):
        for branch in reversed(line.own_branches):
            first = max(branch.parent_seq, line.reach.get(branch.branch, 0)) + 1
            calls += _unsafe_calls(log, line, branch, first)
        for task in _tasks(log.store, line.session_id):
            calls += _calls_of_task(log, task) if _is_left_task(line, task) else []
    calls.sort(key=lambda call: call.at, reverse=True)
    return calls[:limit]


# -- which entries were left -------------------------------------------------------------------------


def _lines(log: Log) -> Iterator[PathSession]:
    """Yield the session, then the parents by fork or replay."""
    store, row = log.store, log.store.session(log.session_id)
    reach = {part.branch: part.last for part in log.ranges()}
    yield PathSession(store, row.session_id, reach)
    for _ in range(MAX_FORKS):  # bounded: a forged ring of parents must end too
        if row.relation not in ("fork", "replay") or row.parent_session is None:
            return
        if (parent := store.find_session(row.parent_session)) is None:
            return
        yield PathSession(store, parent.session_id, reach, _origin(store, row).parent_facts)
        row = parent


def _origin(store: StoreBackend, row: SessionRow) -> Started:
    """Return the first fact of a session."""
    started = [stored.fact for stored in store.journal(row.session_id, 0, 1)]
    return started[0] if started and isinstance(started[0], Started) else Started()


def _is_left(line: PathSession, place: CallPlace) -> bool:
    """Whether an answer of the line's session, or of a task below, was left behind."""
    if place.session_id == line.session_id:
        return line.is_left(place.leaf)
    row = line.store.find_session(place.session_id)
    for _ in range(MAX_TASK_DEPTH + 1):
        if row is None or row.parent_session is None:
            return False
        if row.parent_session == line.session_id:
            return _is_left_task(line, row)
        row = line.store.find_session(row.parent_session)
    return False


def _is_left_task(line: PathSession, task: SessionRow) -> bool:
    """Whether the starting call of a task was left behind."""
    origin = _origin(line.store, task)
    if line.facts is not None and (origin.parent_facts or 0) > line.facts:
        return False
    own = [branch.branch for branch in line.own_branches]
    nth, seq = origin.nth or 0, task.parent_seq or 0
    if not 0 < nth <= len(own):
        return seq > max((line.reach.get(branch, 0) for branch in own), default=0)
    return not line.is_on_path(Leaf(own[nth - 1], seq))


# -- what became of a call ---------------------------------------------------------------------------


def _read_call(log: Log, place: CallPlace, call: ToolCall) -> EarlierCall | None:
    """Return the same call of an answer, if the call took effect or may have."""
    same = canonical_call(call)
    _, calls = _read_batch(log, place.session_id, place.leaf)
    return next((each for each in calls if canonical_call(each.call) == same), None)


def _read_batch(log: Log, session_id: str, leaf: Leaf) -> tuple[Entry | None, list[EarlierCall]]:
    """Return an answer, and the calls of the answer with a real or possible effect."""
    for answer, calls in _batches(session_id, _entries(log.store, session_id, leaf)):
        return answer, [call for call in calls if _may_have_run(log, leaf, call)]
    return None, []


def _batches(session_id: str, entries: Iterable[Entry]) -> Iterator[tuple[Entry, list[EarlierCall]]]:
    """Yield the answers with tool calls among consecutive entries, each with the calls. Ids of calls may
    occur again later."""
    answer: Entry | None = None
    results: dict[str, ToolResult] = {}
    for entry in entries:
        message = entry.message
        if message is not None and message.role == "tool":
            results.update((result.call_id, result) for result in message.results)
        elif not isinstance(entry.payload, Note):
            if answer is not None:
                yield answer, _earlier_calls(session_id, answer, results)
            answer = entry if message is not None and message.calls else None
            results = {}
    if answer is not None:
        yield answer, _earlier_calls(session_id, answer, results)


def _entries(store: StoreBackend, session_id: str, leaf: Leaf) -> Iterator[Entry]:
    """Yield the entries of a branch from `leaf` on."""
    first = leaf.seq
    while page := store.entries(session_id, Range(leaf.branch, first, first + PAGE - 1)):
        yield from (stored.entry.to_entry(stored.branch) for stored in page)
        first += PAGE


def _earlier_calls(session_id: str, answer: Entry, results: dict[str, ToolResult]) -> list[EarlierCall]:
    assert answer.message is not None
    return [
        EarlierCall(
            answer.seq, index, call, session_id, answer.entry_id.hex(), results.get(call.id), answer.at
        )
        for index, call in enumerate(answer.message.calls)
        if call.malformed is None
    ]


def _may_have_run(log: Log, leaf: Leaf, call: EarlierCall) -> bool:
    """Whether the call took effect, or may have. A call without a result, or closed without one, did if it
    was started."""
    outcome = None if call.result is None else call.result.outcome
    if outcome in NEVER_RAN:
        return False
    return outcome not in (None, "interrupted") or _was_started(log, leaf, call)


def _was_started(log: Log, leaf: Leaf, call: EarlierCall) -> bool:
    """Whether the start of a call was recorded, or no start in the whole turn. Without any recorded start the
    call may have been started."""
    session = Log(log.store, log.store.session(call.session_id), log.runtime)
    facts = session.facts_backwards()
    since = [stored.fact for stored in takewhile(lambda stored: not stored.appended(leaf), facts)]
    starts = [fact for fact in since if isinstance(fact, ToolCallsStarted) and fact.seq == call.seq]
    if any(call.index in fact.indexes for fact in starts):
        return True
    requests = [(fact.seq, fact.index) for fact in since if isinstance(fact, ApprovalRequested)]
    if (call.seq, call.index) in requests:
        return False
    return not starts and not has_started_calls(stored.fact for stored in facts)


def has_started_calls(facts: Iterable[AnyFact]) -> bool:
    """Whether tool calls started in the latest run of the facts, given newest first."""
    for fact in facts:
        if isinstance(fact, TurnStarted | TurnResumed | ToolCallsStarted):
            return isinstance(fact, ToolCallsStarted)
    return False


# -- for people --------------------------------------------------------------------------------------


def _unsafe_calls(log: Log, line: PathSession, branch: Branch, first: int) -> list[EarlierCall]:
    """Return the calls on a branch, from an entry on, with a possible effect. Calls of tools that may run
    again are left out."""
    last = branch.tail
    if first <= last:
        last = int(min(last, line.later_from(branch.branch) - 1))
    first = max(first, last - MAX_LISTED_ENTRIES + 1)
    if first > last:
        return []
    stored = log.store.entries(line.session_id, Range(branch.branch, first, branch.tail))
    entries = [each.entry.to_entry(each.branch) for each in stored[: last - first + 1 + PAGE]]
    repeatable = _repeatable_tools(log.store, line.session_id, Leaf(branch.branch, last))
    return [
        call
        for answer, calls in _batches(line.session_id, entries)
        for call in calls
        if answer.seq <= last and call.call.name not in repeatable
        if _may_have_run(log, Leaf(answer.branch, answer.seq), call)
    ]


def _repeatable_tools(store: StoreBackend, session_id: str, leaf: Leaf) -> Sequence[str]:
    try:
        definitions = fold_settings(store.control_entries(session_id, leaf=leaf)).tool_definitions
    except InvalidPosition:  # moved or purged meanwhile
        return ()
    return () if definitions is None else definitions.repeatable


def _tasks(store: StoreBackend, session_id: str) -> list[SessionRow]:
    pages = (
        store.sessions(
            SessionQuery(parent_session=session_id, relation="task", trashed=trashed, limit=MAX_LISTED_TASKS)
        )
        for trashed in (False, True)
    )
    return [row for page in pages for row in page.sessions]


def _calls_of_task(log: Log, task: SessionRow, depth: int = 0) -> list[EarlierCall]:
    """Return the calls of a task and of all tasks below, on any branch."""
    line = PathSession(log.store, task.session_id, {})
    own = line.own_branches
    calls = [call for branch in own for call in _unsafe_calls(log, line, branch, branch.parent_seq + 1)]
    if depth < MAX_TASK_DEPTH:
        for below in _tasks(log.store, task.session_id):
            calls += _calls_of_task(log, below, depth + 1)
    return calls


# -- the result of another path ----------------------------------------------------------------------


def reused_result(call: ToolCall, earlier: EarlierCall) -> Message | None:
    """Return the recorded result as the result of `call`, marked. None: no result was recorded, or the
    outcome is unknown."""
    result = earlier.result
    if result is None or result.outcome != "done":
        return None
    details = {**(result.details or {}), "reused": asdict(earlier.reference)}
    return Message("tool", (replace(result, call_id=call.id, details=details),))
