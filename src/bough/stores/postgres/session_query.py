"""A query over sessions as SQL for PostgreSQL: conditions with their bindings, values never in the text."""

from __future__ import annotations

from typing import Any

from ..base import SessionQuery

LAST = chr(0x10FFFF)  # sorts behind everything an id may go on with


def conditions(query: SessionQuery, owner: str | None) -> tuple[str, dict[str, Any]]:
    """For the space the statement is bound to; it is a condition, too, so that its index is used."""
    wanted: list[tuple[str, str, Any]] = [
        ("owner = %(owner)s", "owner", owner),
        ("owner = %(whose)s", "whose", query.owner),
        ("agent = %(agent)s", "agent", query.agent),
        ("status = %(status)s", "status", query.status),
        ("model = %(model)s", "model", query.model),
        ("conversation_id = %(conversation)s", "conversation", query.conversation_id),
        ("relation = %(relation)s", "relation", query.relation),
        ("parent_session = %(parent)s", "parent", query.parent_session),
        ("id >= %(prefix)s", "prefix", query.id_prefix),
        ("id < %(behind)s", "behind", None if query.id_prefix is None else query.id_prefix + LAST),
        ("title = %(title)s", "title", query.title),
        ("started_at >= %(from)s", "from", query.started_from),
        ("started_at < %(until)s", "until", query.started_before),
        ("no < %(before)s", "before", None if query.before is None else int(query.before)),
    ]
    kept = [(text, name, value) for text, name, value in wanted if value is not None]
    texts = ["space = %(space)s", *(text for text, _, _ in kept)]
    bindings = {name: value for _, name, value in kept}
    if query.tag is not None:
        texts.append("tags ->> %(tag)s::text = %(tagged)s")
        bindings |= {"tag": query.tag[0], "tagged": query.tag[1]}
    texts.append("trashed_at is not null" if query.trashed else "trashed_at is null")
    if not query.include_children:
        texts.append("(relation is null or relation not in ('task', 'replay'))")
    return " and ".join(texts), bindings
