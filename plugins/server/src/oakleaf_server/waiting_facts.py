"""The facts that separate the time in which calls ran from the time in which they waited for a person or a process.

Entries have only the times of answers and results. The facts of a part of a path are found by their times, in a few
reads, however long the journal is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from oakleaf.core.facts import (
    ApprovalRequested,
    Approved,
    Denied,
    StoredFact,
    TaskWaits,
    ToolCallsStarted,
    TurnLeft,
    TurnResumed,
)
from oakleaf.core.tree import Range
from oakleaf.ext import StoreReader, read, read_store, store_of
from oakleaf.session import Session
from oakleaf_server.context import BranchTree
from oakleaf_server.path_window import read_entries

MAX_FACTS = 5_000
FOLLOWING = 50
"""Facts read behind the last entry of a branch: a failed call has no entry of its own."""


def waiting_facts(session: Session, tree: BranchTree, first: int, last: int) -> list[dict[str, Any]]:
    """Return requests, decisions, pauses and resumptions between two seqs of the path, and the starts of
    waiting calls.
    """
    facts: list[dict[str, Any]] = []
    for _, part_facts in facts_of_path(session, tree, first, last):
        requested: set[tuple[int, int]] = set()
        for stored in part_facts:
            kind = {"kind": stored.kind, "at": stored.at}
            match stored.fact:
                case ToolCallsStarted(seq, indexes):
                    started = [index for index in indexes if (seq, index) in requested]
                    facts += [{**kind, "seq": seq, "index": index} for index in started]
                case ApprovalRequested(seq, index) | Approved(seq, index) | Denied(seq, index) as fact:
                    facts.append({**kind, "seq": seq, "index": index})
                    if isinstance(fact, ApprovalRequested):
                        requested.add((seq, index))
                case TaskWaits(seq, index):
                    facts.append({**kind, "seq": seq, "index": index})
                case TurnLeft(status="waiting"):
                    facts.append({"kind": "waiting", "at": stored.at})
                case TurnResumed():
                    facts.append(kind)
    return facts


def facts_of_path(
    session: Session, tree: BranchTree, first: int, last: int
) -> Iterator[tuple[Range, list[StoredFact]]]:
    """Yield each part of the path between two seqs with the facts from the part's first entry to behind the last."""
    store = read_store(store_of(session))
    for part in read(session).ranges():
        begin, end = max(first, part.first), min(last, part.last)
        branch = tree.branches.get(part.branch)
        owner = None if begin > end or branch is None else branch.session_id
        if owner is None:
            continue
        since, until = (read_entries(session, seq, seq)[0].at for seq in (begin, min(end + 1, part.last)))
        following = FOLLOWING if end == part.last else 0
        yield Range(part.branch, begin, end), _facts_between(store, owner, since, until, following)


def _facts_between(
    store: StoreReader, session_id: str, since: int, until: int, following: int
) -> list[StoredFact]:
    """Return the facts of a journal between two times, both included, and some later facts."""
    row = store.find_session(session_id)
    if row is None:
        return []

    def count_before(at: int) -> int:
        return bisect_left(range(row.facts), at, key=lambda index: store.journal(session_id, index, 1)[0].at)

    first, end = count_before(since), min(row.facts, count_before(until + 1) + following)
    return store.journal(session_id, first, min(end - first, MAX_FACTS)) if first < end else []
