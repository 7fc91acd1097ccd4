"""A query over sessions as SQL: conditions and their named bindings, never values in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oakleaf.stores.base import SessionPage, SessionQuery
from oakleaf.stores.sql.rows import session_from

COMMON_STATUSES = ("idle", "completed")
"""Statuses of most sessions: a list of them walks all sessions."""
MADE_ID = "ses_"
"""The beginning of the ids that Oakleaf makes."""
LAST_CHARACTER = chr(0x10FFFF)  # sorts after everything that may follow the prefix of an id


def session_conditions(
    query: SessionQuery,
    space: str,
    owner: str | None,
    *,
    parameter: str,
    indexed_parameter: str,
    space_column: str = "space",
    walked_id: str,
    key_condition: str,
) -> tuple[str, dict[str, Any]]:
    """Return the conditions and bindings of a query, except for the tag.

    `parameter` formats a named parameter (`:{}`), `indexed_parameter` a parameter compared with a column
    whose index has the order of lists. `walked_id` is
    the column of ids in a form that no index has. `key_condition` selects the sessions with the caller's key in the parameter
    `key`. A status is part of the text, so that PostgreSQL knows how rare it is.
    """
    indexed: list[tuple[str, str, Any]] = [
        (f"{space_column} =", "space", space),
        ("owner =", "owner", owner),
        ("owner =", "query_owner", query.owner),
        ("agent =", "agent", query.agent),
        ("model =", "model", query.model),
        ("relation =", "relation", query.relation),
        ("title =", "title", query.title),
    ]
    id_column = walked_id if walks_ids(query) else "id"
    comparisons: list[tuple[str, str, Any]] = [
        ("conversation_id =", "conversation_id", query.conversation_id),
        ("parent_session =", "parent_session", query.parent_session),
        (f"{id_column} >=", "id_prefix", query.id_prefix),
        (f"{id_column} <", "id_end", None if query.id_prefix is None else query.id_prefix + LAST_CHARACTER),
        ("started_at >=", "started_from", query.started_from),
        ("started_at <", "started_before", query.started_before),
    ]
    conditions, bindings = conditions_of(indexed, indexed_parameter)
    more_conditions, more_bindings = conditions_of(comparisons, parameter)
    conditions, bindings = conditions + more_conditions, bindings | more_bindings
    if query.position is not None:
        names = order_columns(query)
        values = (parameter.format(f"before_{n}") for n in range(len(names)))
        conditions.append(f"({', '.join(names)}) < ({', '.join(values)})")
        bindings |= {f"before_{n}": value for n, value in enumerate(query.position)}
    if query.status is not None:
        statuses = sorted({query.status, *(("running",) if query.or_running else ())})
        is_one = len(statuses) == 1
        conditions.append(f"status = {_quote(statuses)}" if is_one else f"status in ({_quote(statuses)})")
    if query.key is not None:
        conditions.append(key_condition)
        bindings["key"] = query.key
    if not query.include_children:
        conditions.append("(relation is null or relation not in ('task', 'replay'))")
    conditions.append("trashed_at is not null" if query.trashed else "trashed_at is null")
    return " and ".join(conditions), bindings


def conditions_of(
    comparisons: Sequence[tuple[str, str, Any]], parameter: str
) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions and bindings of comparisons: text, name and value; skip a comparison without a value."""
    used = [(text, name, value) for text, name, value in comparisons if value is not None]
    conditions = [f"{text} {parameter.format(name)}" for text, name, _ in used]
    return conditions, {name: value for _, name, value in used}


def walks_ids(query: SessionQuery) -> bool:
    """Whether so many ids have the beginning that a list walks the sessions in order, and looks up no id."""
    prefix = query.id_prefix
    return prefix is not None and len(prefix) < len(MADE_ID) + 2 and prefix.startswith(MADE_ID[: len(prefix)])


def order_columns(query: SessionQuery) -> tuple[str, ...]:
    """Return the columns of the sort order, the last first; with a tag the equal columns of the tag's rows."""
    number, active_at = ("number", "active_at") if query.tag is None else ("tagged_number", "tagged_at")
    return (number,) if query.order == "created" else (active_at, number)


def sort_clause(query: SessionQuery) -> str:
    return ", ".join(f"{name} desc" for name in order_columns(query))


def _quote(statuses: Sequence[str]) -> str:
    """Return statuses as literals; a query accepts Oakleaf's own statuses only."""
    return ", ".join(f"'{status}'" for status in statuses)


def page_from(rows: Sequence[tuple[Any, ...]], query: SessionQuery) -> SessionPage:
    """Return a page of the rows; a row beyond the limit means a next page, and `active_at` is the last column."""
    page = rows[: query.limit]
    sessions = [session_from(row) for row in page]
    times = {session.session_id: row[-1] for session, row in zip(sessions, page, strict=True)}
    if len(rows) <= query.limit:
        return SessionPage(sessions, active_at=times)
    number, active_at = page[-1][0], page[-1][-1]
    return SessionPage(sessions, str(number) if query.order == "created" else f"{active_at}-{number}", times)
