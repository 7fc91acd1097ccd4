"""A query over sessions as SQL: conditions with their bindings, values never in the text."""

from __future__ import annotations

from typing import Any

from ...core.codec import to_json
from ..base import SessionQuery

LAST = chr(0x10FFFF)  # sorts behind everything an id may go on with


def conditions(query: SessionQuery, space: str, owner: str | None) -> tuple[str, list[Any]]:
    wanted: list[tuple[str, Any]] = [
        # The index by conversation begins with the space; taken for the space alone it would make every page
        # read and sort all sessions: 4.2 ms of 10,000 instead of 0.09. A filter scans them in 0.8, a tag in 2.6.
        ("space = ?" if query.conversation_id is not None else "+space = ?", space),
        ("owner = ?", owner),
        ("owner = ?", query.owner),
        ("agent = ?", query.agent),
        ("status = ?", query.status),
        ("model = ?", query.model),
        ("conversation_id = ?", query.conversation_id),
        ("relation = ?", query.relation),
        ("parent_session = ?", query.parent_session),
        ("id >= ?", query.id_prefix),
        ("id < ?", None if query.id_prefix is None else query.id_prefix + LAST),
        ("title = ?", query.title),
        ("started_at >= ?", query.started_from),
        ("started_at < ?", query.started_before),
        ("no < ?", None if query.before is None else int(query.before)),
    ]
    if query.tag is not None:
        name, value = query.tag
        path = "$." + to_json(name, "tag").decode()
        wanted.append((f"json_extract(tags, '{path.replace(chr(39), chr(39) * 2)}') = ?", value))
    kept = [(text, value) for text, value in wanted if value is not None]
    trashed = "trashed_at is not null" if query.trashed else "trashed_at is null"
    made = [] if query.include_children else ["(relation is null or relation not in ('task', 'replay'))"]
    return " and ".join([*(text for text, _ in kept), *made, trashed]), [value for _, value in kept]
