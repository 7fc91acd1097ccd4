"""What the memory store keeps of one session, and how it answers a query or a retried change."""

from __future__ import annotations

from msgspec import Struct, field

from ...core.tree import Leaf
from ...core.usage import Call
from ...errors import StaleLeaf
from ..base import Change, CommitResult, Fact, QueuedInput, SessionDetail, SessionQuery, SessionRow


class SessionData(Struct):
    """All that lies under one session."""

    no: int
    row: SessionRow
    detail: SessionDetail
    journal: list[Fact] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    inbox: list[QueuedInput] = field(default_factory=list)


def repeated(kept: SessionData, change: Change) -> CommitResult:
    assert change.after is not None
    for fact in reversed(kept.journal):
        if fact.key == change.key:
            return CommitResult(Leaf(fact.data["branch"], fact.data["last"]), fact.number, is_repeat=True)
    raise StaleLeaf(change.session_id, change.after, kept.row.leaf)


def matches(kept: SessionData, query: SessionQuery, space: str, owner: str | None) -> bool:
    row = kept.row
    wanted = [
        (space, row.space),
        (owner, row.owner),
        (query.owner, row.owner),
        (query.agent, row.agent),
        (query.status, row.status),
        (query.model, row.model),
        (query.conversation_id, row.conversation_id),
        (query.relation, row.relation),
        (query.parent_session, row.parent_session),
        (query.title, row.title),
    ]
    return (
        all(want is None or want == have for want, have in wanted)
        and query.trashed == (row.trashed_at is not None)
        and (query.tag is None or row.tags.get(query.tag[0]) == query.tag[1])
        and (query.id_prefix is None or row.session_id.startswith(query.id_prefix))
        and (query.include_children or row.relation not in ("task", "replay"))
        and (query.started_from is None or row.started_at >= query.started_from)
        and (query.started_before is None or row.started_at < query.started_before)
        and (query.before is None or kept.no < int(query.before))
    )
