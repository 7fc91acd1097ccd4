"""Labels: the names people give to places of a tree, so that a branch is found again.

A label is a fact of the journal, `labelled` {nth, seq, label}, and no part of any entry: naming moves nothing and no
model sees it. `nth` counts the session's branches as they grew, as a bundle numbers them, so a label holds in every
store the session comes to.
"""

from __future__ import annotations

from ..core.codec import check_text
from ..core.tree import Leaf, reachable_seqs
from ..errors import InvalidArgument, InvalidPosition
from .log import Log

KIND, LONGEST = "labelled", 100


def labels(log: Log) -> dict[Leaf, str]:
    """The labels of a session by their places, the one given last at the end."""
    numbers = sorted(branch.branch for branch in log.store.branches(log.session_id))
    found: dict[Leaf, str] = {}
    for fact in log.store.journal(log.session_id):
        if fact.kind != KIND or not 0 < fact.data["nth"] <= len(numbers):
            continue
        place = Leaf(numbers[fact.data["nth"] - 1], fact.data["seq"])
        found.pop(place, None)
        if fact.data["label"] is not None:
            found[place] = fact.data["label"]
    return found


def label(log: Log, place: Leaf, words: str | None) -> str | None:
    """Name a place of the session's tree; None takes the name away. Returns the name as it is kept."""
    branches = {branch.branch: branch for branch in log.store.branches(log.session_id)}
    own = [Leaf(b.branch, b.tail) for b in branches.values() if b.session_id == log.session_id]
    held = branches.get(place.branch)
    if held is None or not held.parent_seq < place.seq <= reachable_seqs(branches, own).get(place.branch, 0):
        raise InvalidPosition(str(place), 1, log.leaf.seq)
    check_text(words, "label")
    words = " ".join((words or "").split()) or None
    if words is not None and len(words) > LONGEST:
        raise InvalidArgument("label", words, f"at most {LONGEST} characters")
    nth = sorted(branches).index(place.branch) + 1
    log.record(KIND, data={"nth": nth, "seq": place.seq, "label": words})
    return words
