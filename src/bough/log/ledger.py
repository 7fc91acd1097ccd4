"""Views of the usage ledger: the session's own calls, those on its path, those of its tasks too, or those since a leaf."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from ..core.entries import Entry
from ..core.tree import Leaf
from ..core.usage import Call, Totals, add, calls_on_path, total
from ..errors import InvalidArgument, InvalidPosition
from ..stores.base import SessionQuery
from .log import Log


def model_calls(log: Log, view: str, since: Leaf | None) -> list[Call]:
    """Ledger rows of one view. Raises InvalidPosition if `since` is not on the path."""
    store = log.store
    if view == "path" or since is not None:
        floor = -1 if since is None else _on_path(log, since)
        rows = [*store.inherited_calls(log.session_id), *store.calls(log.session_id)]
        return calls_on_path(rows, log.ranges(), floor)
    rows = store.calls(log.session_id)
    if view == "own":
        return rows
    if view == "tree":
        return rows + [call for child in _descendants(log) for call in store.calls(child)]
    raise InvalidArgument("view", view, "own, path or tree")


def totals(log: Log, view: str, since: Leaf | None) -> Totals:
    """Sums of one view. Those of whole sessions are in their rows, so that none of their calls is read."""
    if since is not None or view not in ("own", "tree"):
        return total(model_calls(log, view, since))
    session_ids = [log.session_id] if view == "own" else [log.session_id, *_descendants(log)]
    return reduce(add, (log.store.session(session_id).totals for session_id in session_ids))


def by_turn(log: Log, path: Iterable[Entry] | None = None) -> dict[int, Totals]:
    """What each turn cost. Pass the path if it has been read already."""
    turn_of = {entry.seq: entry.turn for entry in (log.path().entries if path is None else path)}
    calls: dict[int, list[Call]] = {}
    for call in model_calls(log, "path", None):
        calls.setdefault(turn_of.get(call.seq, 0), []).append(call)
    return {turn: total(rows) for turn, rows in calls.items()}


def _descendants(log: Log) -> list[str]:
    """The ids of the session's tasks and theirs; a cycle of parents is walked once."""
    ids, session_ids = {log.session_id}, [log.session_id]
    for session_id in session_ids:
        for row in log.store.all_sessions(SessionQuery(parent_session=session_id, relation="task")):
            if row.session_id not in ids:
                ids.add(row.session_id)
                session_ids.append(row.session_id)
    return session_ids[1:]


def _on_path(log: Log, leaf: Leaf) -> int:
    if leaf.seq > log.leaf.seq or (leaf.seq and log.leaf_at(leaf.seq) != leaf and leaf != log.leaf):
        raise InvalidPosition(str(leaf), 0, log.leaf.seq)
    return leaf.seq
