"""The status of open tool calls, read from the journal: started, approval requested, approved, denied,
waiting.

A call whose task waits for a person waits too. Its fact names the session and the call to be approved, at whatever
depth; whether it still waits is read in that session, where the decision is recorded.

What came with an import decides nothing here (`log.imports`): a decision made elsewhere is asked again, and a call that
was left open elsewhere runs only once somebody here has accepted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.agent.earlier_calls import find_reference, has_started_calls
from oakleaf.agent.task_line import parent_rows, topmost_trashed
from oakleaf.agent.tools.tool import Decision, EarlierCall, PendingApproval, Tool
from oakleaf.core.facts import (
    Appended,
    ApprovalRequested,
    Approved,
    CallReference,
    Denied,
    ImportAccepted,
    TaskStarted,
    TaskWaits,
    ToolCallsStarted,
    TurnLeft,
    TurnResumed,
    TurnStarted,
)
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import OpenCall
from oakleaf.errors import TaskTrashed
from oakleaf.log.log import Log

CallPosition = tuple[int, int]


class CallStatus(Struct, frozen=True):
    """The status of the calls of one answer. A position is (seq of the answer, index of the call in it)."""

    started: frozenset[CallPosition] = frozenset()
    approval_requested: frozenset[CallPosition] = frozenset()
    approved: frozenset[CallPosition] = frozenset()
    denied: frozenset[CallPosition] = frozenset()
    named: frozenset[CallPosition] = frozenset()
    """Calls that only a person with a name may decide about."""
    earlier: Mapping[CallPosition, EarlierCall] = {}
    """The same call on an abandoned path, for calls in wait because of the path."""
    task_approvals: Mapping[CallPosition, tuple[PendingApproval, ...]] = {}
    """The approvals in the way of a call's tasks."""
    trashed_tasks: Mapping[CallPosition, str] = {}
    """Calls with a task in the trash, and the session to restore."""
    decided_tasks: frozenset[CallPosition] = frozenset()
    """Calls with a task whose approval was decided and which has not resumed yet."""
    tasks: tuple[str, ...] = ()
    """The sessions of the calls' tasks."""
    decided_elsewhere: Mapping[CallPosition, Decision] = {}
    """Decisions from an import: they are shown, and asked again."""
    unaccepted: frozenset[CallPosition] = frozenset()
    """Imported calls without acceptance here."""
    has_recorded_starts: bool = False
    """Whether the runner recorded the start of any call. Only then a call without a start was not started."""

    @property
    def decided(self) -> frozenset[CallPosition]:
        """Calls that need no decision any more."""
        return self.started | self.approved | self.denied

    def is_waiting(self, call: OpenCall, tools: Mapping[str, Tool]) -> bool:
        """Whether a person must decide first, about the call or about a call of a task."""
        tool, position = tools.get(call.call.name), (call.seq, call.index)
        if position in self.trashed_tasks:
            return True
        if position in self.task_approvals and position not in self.decided_tasks:
            return True
        if position in self.decided:
            return False
        return position in self.approval_requested or (tool is not None and bool(tool.approval))

    def raise_if_trashed(self, log: Log, tools: Mapping[str, Tool]) -> None:
        """Raise `TaskTrashed` if every open call waits and no decision can help, because a task is in the
        trash."""
        calls = log.cursor.open_calls
        if not self.trashed_tasks or any(self.pending_approvals(calls, log.session_id)):
            return
        if all(self.is_waiting(call, tools) for call in calls):
            raise TaskTrashed(log.session_id, next(iter(self.trashed_tasks.values())))

    def is_allowed(self, call: OpenCall) -> bool:
        """Whether a person allowed the call and the call has not started."""
        return (call.seq, call.index) in self.approved - self.started

    def needing_request(self, open_calls: Sequence[OpenCall], tools: Mapping[str, Tool]) -> list[OpenCall]:
        """Return the calls to request an approval for now."""
        requested = self.approval_requested.union(self.task_approvals, self.trashed_tasks)
        return [c for c in open_calls if self.is_waiting(c, tools) and (c.seq, c.index) not in requested]

    def needing_acceptance(
        self, open_calls: Sequence[OpenCall], tools: Mapping[str, Tool] | None
    ) -> list[OpenCall]:
        """Return the imported calls in need of acceptance before a run here. Without `tools` any call may
        need it.

        Not those that only read, that wait for a person here or were decided here, or whose outcome is unknown anyway.
        """
        return [call for call in open_calls if self._needs_acceptance(call, tools)]

    def _needs_acceptance(self, call: OpenCall, tools: Mapping[str, Tool] | None) -> bool:
        position = (call.seq, call.index)
        if position not in self.unaccepted - self.approved - self.denied:
            return False
        if self.is_waiting(call, tools or {}):
            return False
        if tools is None:
            return True
        if (tool := tools.get(call.call.name)) is None:
            return False
        is_settled = position in self.started and tool.effect == "unsafe" and tool.verify is None
        return not is_settled and (tool.effect != "read" or bool(tool.approval))

    def needing_tool(self, open_calls: Sequence[OpenCall], tools: Mapping[str, Tool]) -> list[str]:
        """Return the names of missing tools of requested calls. Another process offered these tools and
        requested the approvals."""
        requested = self.approval_requested - self.denied - self.started
        names = (call.call.name for call in open_calls if (call.seq, call.index) in requested)
        return sorted({name for name in names if name not in tools})

    def pending_approvals(self, open_calls: Sequence[OpenCall], session_id: str) -> Iterator[PendingApproval]:
        """Yield the pending approvals of the calls and of all tasks of the calls, in call order."""
        for call in open_calls:
            position = (call.seq, call.index)
            yield from self.task_approvals.get(position, ())
            if position in self.approval_requested - self.decided:
                elsewhere, earlier = self.decided_elsewhere.get(position), self.earlier.get(position)
                yield PendingApproval(call.seq, call.index, call.call, session_id, elsewhere, earlier)


def read_call_status(log: Log) -> CallStatus:
    """Read the status of the open calls from the facts since the answer. Older facts concern other calls."""
    status, waits = _own_status(log)
    return _with_tasks(log, status, waits) if waits else status


def _own_status(log: Log) -> tuple[CallStatus, list[TaskWaits]]:
    """Return the status by the session's own journal, and the facts about waiting tasks, oldest first."""
    open_calls = log.cursor.open_calls
    if not open_calls:
        return CallStatus(), []
    started: set[CallPosition] = set()
    requested: set[CallPosition] = set()
    named: set[CallPosition] = set()
    decided: dict[Decision, set[CallPosition]] = {"approved": set(), "denied": set()}
    waits: list[TaskWaits] = []
    tasks: list[str] = []
    elsewhere: dict[CallPosition, Decision] = {}
    imported = log.store.session(log.session_id).imported_facts
    is_imported, is_accepted = imported > log.position.calls_since, False
    references: dict[CallPosition, CallReference] = {}
    answer = Leaf(log.leaf.branch, open_calls[0].seq)
    facts = log.facts_backwards(log.position.calls_since)
    for stored in facts:
        is_foreign = stored.number <= imported
        match stored.fact:
            case Approved(seq, index) | Denied(seq, index) as fact:
                decision: Decision = "approved" if isinstance(fact, Approved) else "denied"
                if is_foreign:
                    elsewhere.setdefault((seq, index), decision)
                else:
                    decided[decision].add((seq, index))
            case ImportAccepted():
                is_accepted |= not is_foreign
            case ToolCallsStarted(seq, indexes):
                started.update((seq, index) for index in indexes)
            case ApprovalRequested(seq, index, reference, is_named):
                requested.add((seq, index))
                if is_named:
                    named.add((seq, index))
                if reference is not None:
                    references[seq, index] = reference
            case TaskWaits() as waiting:
                waits.append(waiting)
            case TaskStarted(child=child):
                tasks.append(child)
            case Appended() if stored.appended(answer):
                is_imported = is_foreign
                break
    approved, denied = decided["approved"], decided["denied"]
    open_positions = frozenset((call.seq, call.index) for call in open_calls)
    has_recorded_starts = bool(started) or has_started_calls(stored.fact for stored in facts)
    earlier = {
        position: found
        for position, reference in references.items()
        if position not in started | approved | denied
        and (found := find_reference(log, reference)) is not None
    }
    status = CallStatus(
        frozenset(started),
        frozenset(requested.union(elsewhere)),
        frozenset(approved),
        frozenset(denied),
        frozenset(named),
        earlier,
        tasks=tuple(reversed(tasks)),
        decided_elsewhere=elsewhere,
        unaccepted=open_positions if is_imported and not is_accepted else frozenset(),
        has_recorded_starts=has_recorded_starts,
    )
    return status, waits[::-1]


def _with_tasks(log: Log, status: CallStatus, waits: Iterable[TaskWaits]) -> CallStatus:
    """Add the status of tasks: still undecided, decided and ready to resume, or in the trash."""
    undecided: dict[CallPosition, tuple[PendingApproval, ...]] = {}
    trashed: dict[CallPosition, str] = {}
    decided: set[CallPosition] = set()
    for wait in waits:
        position = wait.seq, wait.index
        row = log.store.find_session(wait.session)
        # An import may name any session as its task.
        if row is None or all(parent.session_id != log.session_id for parent in parent_rows(log.store, row)):
            continue
        in_trash = topmost_trashed(log, row)
        task = Log(log.store, row, log.runtime)
        # Only its own journal: journals that name each other would have no end.
        task_status, _ = _own_status(task)
        for call in task.cursor.open_calls:
            if (call.seq, call.index) != (wait.call.seq, wait.call.index):
                continue
            if in_trash is not None:
                trashed[position] = in_trash
            elif (call.seq, call.index) in task_status.decided:
                decided.add(position)
            else:
                place = call.seq, call.index
                elsewhere, earlier = task_status.decided_elsewhere.get(place), task_status.earlier.get(place)
                approval = PendingApproval(*place, call.call, row.session_id, elsewhere, earlier)
                undecided[position] = (*undecided.get(position, ()), approval)
    return replace(status, task_approvals=undecided, trashed_tasks=trashed, decided_tasks=frozenset(decided))


def pending_approvals(log: Log) -> list[PendingApproval]:
    """Read the calls in need of a person, in this session and the tasks of open calls."""
    log.refresh()
    return list(read_call_status(log).pending_approvals(log.cursor.open_calls, log.session_id))


def is_awaited_by_worker(log: Log) -> bool:
    """Whether a worker's task waits for a decision here: the turn was left with a queue, and not resumed
    since."""
    imported = log.store.session(log.session_id).imported_facts  # tasks are not imported with their session
    for stored in log.facts_backwards(imported):
        match stored.fact:
            case TurnLeft(status="waiting", queue=queue):
                return queue is not None
            case TurnStarted() | TurnResumed():
                return False
    return False
