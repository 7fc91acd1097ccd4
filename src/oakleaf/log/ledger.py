"""Views of the usage ledger: own calls, calls on the path, calls with tasks, or calls since a leaf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import chain

from oakleaf.core.entries import Entry
from oakleaf.core.tree import Leaf, Range
from oakleaf.core.usage import Call, Totals, add, calls_on_path, total, totals_by_turn
from oakleaf.errors import InvalidArgument, InvalidPosition
from oakleaf.log.log import Log
from oakleaf.stores.base import SessionQuery, SessionRow


def model_calls(log: Log, view: str, since: Leaf | None) -> list[Call]:
    """Return the ledger rows of one view. Raises InvalidPosition if `since` is not on the path."""
    store = log.store
    if since is not None:
        return calls_after(log, _on_path(log, since))
    if view == "path":
        rows = [*store.inherited_calls(log.session_id), *store.calls(log.session_id)]
        return calls_on_path(rows, log.ranges())
    if view == "own":
        return store.calls(log.session_id)
    if view == "tree":
        return [call for _, call in calls_with_sessions(log, view)]
    raise InvalidArgument("view", view, "own, path or tree")


def calls_with_sessions(log: Log, view: str, since: Leaf | None = None) -> Iterator[tuple[SessionRow, Call]]:
    """Yield the ledger rows of one view, each with the caller: the session or a task of the session."""
    store = log.store
    if view == "tree" and since is None:
        for session_id in (log.session_id, *_descendants(log)):
            row = store.session(session_id)
            yield from ((row, call) for call in store.calls(session_id))
        return
    row = store.session(log.session_id)
    yield from ((row, call) for call in model_calls(log, view, since))


def calls_after(log: Log, seq: int) -> list[Call]:
    """Return the ledger rows of the path after entry `seq`. Reads no earlier row."""
    parts = [part for part in log.ranges() if part.last > seq]
    return [
        call
        for part in parts
        for call in log.store.calls_between(log.session_id, part.branch, seq + 1, part.last)
    ]


def calls_of_open_turn(log: Log) -> list[Call]:
    """Return the session's own ledger rows of the open turn, without the rows of the fork's parent."""
    branches = log.store.branches(log.session_id)
    own = {branch.branch for branch in branches if branch.session_id == log.session_id}
    return [call for call in calls_after(log, log.cursor.turn - 1) if call.branch in own]


def latest_answer_call(log: Log, last: int) -> Call | None:
    """The call behind the newest answer of the path up to entry `last`."""
    for part in reversed(log.ranges()):
        if part.first <= last:
            call = log.store.latest_answer_call(log.session_id, part.branch, min(part.last, last))
            if call is not None:
                return call
    return None


def calls_at(log: Log, entry: Entry) -> list[Call]:
    """Return the ledger rows of the calls answered by an entry of the path."""
    calls = log.store.calls_between(log.session_id, entry.branch, entry.seq, entry.seq)
    return [call for call in calls if call.answer_seq == entry.seq]


def totals(log: Log, view: str, since: Leaf | None) -> Totals:
    """Return the sums of one view.

    The rows of whole sessions hold their sums, so none of the calls is read.
    """
    if view == "path" and since is None and _is_whole_tree(log):
        view = "own"
    if view == "path" and since is None:
        return total(chain.from_iterable(_calls_to(log, part) for part in log.ranges()))
    if since is not None or view not in ("own", "tree"):
        return total(model_calls(log, view, since))
    session_ids = [log.session_id] if view == "own" else [log.session_id, *_descendants(log)]
    return reduce(add, (log.store.session(session_id).totals for session_id in session_ids))


def by_turn(log: Log, path: Iterable[Entry] | None = None) -> dict[int, Totals]:
    """Return the cost of each turn. Pass the path if it has been read already."""
    return totals_by_turn(model_calls(log, "path", None), log.path().entries if path is None else path)


def _calls_to(log: Log, part: Range) -> list[Call]:
    """Return the ledger rows of one part of the path, and read no others."""
    return log.store.calls_between(log.session_id, part.branch, 0, part.last)


def _descendants(log: Log) -> list[str]:
    """The ids of the session's tasks and theirs; a cycle of parents is walked once."""
    ids, session_ids = {log.session_id}, [log.session_id]
    for session_id in session_ids:
        for row in log.store.all_sessions(SessionQuery(parent_session=session_id, relation="task")):
            if row.session_id not in ids:
                ids.add(row.session_id)
                session_ids.append(row.session_id)
    return session_ids[1:]


def _is_whole_tree(log: Log) -> bool:
    """Whether the path is the whole tree: nothing inherited and nothing rewound, as in most sessions."""
    reach = {part.branch: part.last for part in log.ranges()}
    branches = log.store.branches(log.session_id)
    return all(
        branch.session_id == log.session_id and branch.tail <= reach.get(branch.branch, -1)
        for branch in branches
    )


def _on_path(log: Log, leaf: Leaf) -> int:
    if leaf.seq > log.leaf.seq or (leaf.seq and log.leaf_at(leaf.seq) != leaf and leaf != log.leaf):
        raise InvalidPosition(str(leaf), 0, log.leaf.seq)
    return leaf.seq
