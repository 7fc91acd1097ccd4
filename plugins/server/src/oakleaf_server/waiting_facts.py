"""The facts that separate the time in which calls ran from the time in which they waited for a person or a process.

Entries have only the times of answers and results. The facts of a part of a path are found by their times, in a few
reads, however long the journal is.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from oakleaf.ext import StoreReader, read, read_store, store_of
from oakleaf.session import Session
from oakleaf.stores.base import Fact
from oakleaf_server.context import BranchTree
from oakleaf_server.path_window import read_entries

KINDS = ("approval_requested", "approved", "denied", "task_waits", "waiting", "turn_resumed")
MAX_FACTS = 5_000


def waiting_facts(session: Session, tree: BranchTree, first: int, last: int) -> list[dict[str, Any]]:
    """Return requests, decisions, pauses and resumptions between two seqs of the path, and the starts of calls that waited."""
    facts: list[dict[str, Any]] = []
    store = read_store(store_of(session))
    for part in read(session).ranges():
        begin, end = max(first, part.first), min(last, part.last)
        branch = tree.branches.get(part.branch)
        owner = None if begin > end or branch is None else branch.session_id
        if owner is None:
            continue
        since, until = (read_entries(session, seq, seq)[0].at for seq in (begin, end))
        requested: set[tuple[int, int]] = set()
        for fact in _facts_between(store, owner, since, until):
            data = fact.data
            if fact.kind == "approval_requested":
                requested.add((data["seq"], data["index"]))
            if fact.kind == "calls_started":
                indexes = [index for index in data["indexes"] if (data["seq"], index) in requested]
                facts += [_view(fact, {"seq": data["seq"], "index": index}) for index in indexes]
            elif fact.kind == "turn_ended" and data.get("status") == "waiting":  # in a loop of one's own
                facts.append({"kind": "waiting", "at": fact.at})
            elif fact.kind in KINDS:
                facts.append(_view(fact, {key: data[key] for key in ("seq", "index") if key in data}))
    return facts


def _view(fact: Fact, place: dict[str, Any]) -> dict[str, Any]:
    return {"kind": fact.kind, "at": fact.at, **place}


def _facts_between(store: StoreReader, session_id: str, since: int, until: int) -> list[Fact]:
    """Return the facts of a journal between two times, both included."""
    row = store.find_session(session_id)
    if row is None:
        return []

    def count_before(at: int) -> int:
        return bisect_left(range(row.facts), at, key=lambda index: store.journal(session_id, index, 1)[0].at)

    first, end = count_before(since), count_before(until + 1)
    return store.journal(session_id, first, min(end - first, MAX_FACTS)) if first < end else []
