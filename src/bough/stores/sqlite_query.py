"""A query over sessions as SQL: conditions with their bindings, values never in the text."""

from __future__ import annotations

from typing import Any

from ..core.codec import to_json
from .store import Query


def conditions(query: Query, space: str, owner: str | None) -> tuple[str, list[Any]]:
    wanted: list[tuple[str, Any]] = [
        ("space = ?", space),
        ("owner = ?", owner),
        ("agent = ?", query.agent),
        ("status = ?", query.status),
        ("conversation_id = ?", query.conversation_id),
        ("relation = ?", query.relation),
        ("parent_session = ?", query.parent_session),
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
    return " and ".join([*(text for text, _ in kept), trashed]), [value for _, value in kept]
