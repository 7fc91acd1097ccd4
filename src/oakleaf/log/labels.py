"""Labels: names for entries of a session's tree.

A label is a journal fact, `Labelled(nth, seq, label)`, not part of an entry: a new label moves nothing, and
no model sees labels. `nth` numbers the session's branches in opening order, as bundles do, so a label means
the same in every store.
"""

from __future__ import annotations

from oakleaf.core.codec import check_text
from oakleaf.core.facts import Labelled
from oakleaf.core.tree import Leaf, reachable_seqs
from oakleaf.errors import InvalidArgument, InvalidPosition
from oakleaf.log.log import Log

MAX_LENGTH = 100


def labels(log: Log) -> dict[Leaf, str]:
    """Return the labels of a session by leaf, the newest last."""
    facts = [stored.fact for stored in log.store.facts_of(log.session_id, Labelled)]
    if not facts:
        return {}
    numbers = sorted(branch.branch for branch in log.store.branches(log.session_id))
    labels: dict[Leaf, str] = {}
    for fact in facts:
        if not isinstance(fact, Labelled) or not 0 < fact.nth <= len(numbers):
            continue
        leaf = Leaf(numbers[fact.nth - 1], fact.seq)
        labels.pop(leaf, None)
        if fact.label is not None:
            labels[leaf] = fact.label
    return labels


def label(log: Log, leaf: Leaf, text: str | None) -> str | None:
    """Label an entry of the tree; None removes the label. Returns the label as stored."""
    branches = {branch.branch: branch for branch in log.store.branches(log.session_id)}
    own = [Leaf(b.branch, b.tail) for b in branches.values() if b.session_id == log.session_id]
    branch = branches.get(leaf.branch)
    if branch is None or not branch.parent_seq < leaf.seq <= reachable_seqs(branches, own).get(
        leaf.branch, 0
    ):
        raise InvalidPosition(str(leaf), 1, log.leaf.seq)
    check_text(text, "label")
    text = " ".join((text or "").split()) or None
    if text is not None and len(text) > MAX_LENGTH:
        raise InvalidArgument("label", text, f"at most {MAX_LENGTH} characters")
    nth = sorted(branches).index(leaf.branch) + 1
    log.record(Labelled(nth, leaf.seq, text))
    return text
