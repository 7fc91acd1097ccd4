"""A query over sessions as SQL: conditions and their named bindings, never values in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import SessionPage, SessionQuery
from .rows import session_from

SORTED = {"created": "no desc", "active": "active_at desc, no desc"}
LAST_CHARACTER = chr(0x10FFFF)  # sorts after everything that may follow the prefix of an id


def session_conditions(
    query: SessionQuery,
    space: str,
    owner: str | None,
    *,
    parameter: str,
    space_column: str = "space",
    tag_column: str,
    tag_name: str | None,
    key_condition: str,
) -> tuple[str, dict[str, Any]]:
    """Return the conditions and bindings of a query.

    `parameter` formats a named parameter (`:{}`). `tag_column` selects the tag named by the parameter `tag_name`,
    `key_condition` the sessions with the caller's key in the parameter `key`.
    """
    comparisons: list[tuple[str, str, Any]] = [
        (f"{space_column} =", "space", space),
        ("owner =", "owner", owner),
        ("owner =", "query_owner", query.owner),
        ("agent =", "agent", query.agent),
        ("status =", "status", None if query.or_running else query.status),
        ("model =", "model", query.model),
        ("conversation_id =", "conversation_id", query.conversation_id),
        ("relation =", "relation", query.relation),
        ("parent_session =", "parent_session", query.parent_session),
        ("id >=", "id_prefix", query.id_prefix),
        ("id <", "id_end", None if query.id_prefix is None else query.id_prefix + LAST_CHARACTER),
        ("title =", "title", query.title),
        ("started_at >=", "started_from", query.started_from),
        ("started_at <", "started_before", query.started_before),
        (f"{tag_column} =", "tag_value", None if query.tag is None else query.tag[1]),
    ]
    used = [(text, name, value) for text, name, value in comparisons if value is not None]
    conditions = [f"{text} {parameter.format(name)}" for text, name, _ in used]
    bindings = {name: value for _, name, value in used}
    if query.position is not None:
        names = {"created": ("no",), "active": ("active_at", "no")}[query.order]
        values = (parameter.format(f"before_{name}") for name in names)
        conditions.append(f"({', '.join(names)}) < ({', '.join(values)})")
        bindings |= {f"before_{name}": n for name, n in zip(names, query.position, strict=True)}
    if query.tag is not None:
        bindings["tag_name"] = tag_name
    if query.or_running:
        conditions.append(f"status in ({parameter.format('status')}, 'running')")
        bindings["status"] = query.status
    if query.key is not None:
        conditions.append(key_condition)
        bindings["key"] = query.key
    if not query.include_children:
        conditions.append("(relation is null or relation not in ('task', 'replay'))")
    conditions.append("trashed_at is not null" if query.trashed else "trashed_at is null")
    return " and ".join(conditions), bindings


def page_from(rows: Sequence[tuple[Any, ...]], query: SessionQuery) -> SessionPage:
    """Return the page of these rows, one more than its limit if there is a next one; `active_at` is their last column."""
    page = rows[: query.limit]
    sessions = [session_from(row) for row in page]
    if len(rows) <= query.limit:
        return SessionPage(sessions)
    number, active_at = page[-1][0], page[-1][-1]
    return SessionPage(sessions, str(number) if query.order == "created" else f"{active_at}-{number}")
