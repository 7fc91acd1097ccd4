"""The failed model calls of a part of a path, each behind the entry after which it was made, with its reason.

A call without an answer has no entry: only the journal tells that it failed, and why.
"""

from __future__ import annotations

from typing import Any

from oakleaf.core.facts import ModelCallFailed, TurnLeft
from oakleaf.core.tree import Leaf
from oakleaf.session import Session
from oakleaf_server.context import BranchTree
from oakleaf_server.waiting_facts import facts_of_path

FAILED = "failed"


def failed_calls(session: Session, tree: BranchTree, first: int, last: int) -> list[dict[str, Any]]:
    """Return the failures behind the entries between two seqs, in order. `ended` says that the turn was left with it."""
    failures: list[dict[str, Any]] = []
    for part, facts in facts_of_path(session, tree, first, last):
        place = Leaf(part.branch, part.first)
        for stored in facts:
            place = place if stored.leaf is None else stored.leaf
            fact = stored.fact
            if place.branch != part.branch or not part.first <= place.seq <= part.last:
                continue
            failure = {"kind": FAILED, "at": stored.at, "branch": place.branch, "seq": place.seq}
            if isinstance(fact, ModelCallFailed):
                failures.append({**failure, "why": fact.why, "ended": False})
            elif isinstance(fact, TurnLeft) and fact.status == FAILED:
                # The runner gave up: a call that failed right before is the same failure.
                if failures and (failures[-1]["branch"], failures[-1]["seq"]) == (place.branch, place.seq):
                    failures.pop()
                failures.append({**failure, "why": fact.error, "ended": True})
    return failures
