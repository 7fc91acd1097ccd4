"""A session's row and detail by column, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import astuple

from oakleaf.core.codec import to_json
from oakleaf.stores.base import SessionDetail, SessionRow
from oakleaf.stores.sql.rows import SESSION_COLUMNS

SESSION_NAMES = tuple(name.strip() for name in SESSION_COLUMNS.split(","))


def session_row(row: SessionRow, **overrides: Any) -> dict[str, Any]:
    """Return the row by column, without `number`."""
    values = {
        **{name: getattr(row, name) for name in row.__struct_fields__},
        **{name: getattr(row.totals, name) for name in row.totals.__struct_fields__},
        "id": row.session_id,
        "tool_names": json_text(row.tool_names, "tool names"),
        "tags": json_text(row.tags, "tags"),
        **overrides,
    }
    return {name: values[name] for name in SESSION_NAMES[1:]}


def json_text(value: Any, name: str) -> str | None:
    """Return the value as JSON; None for an empty value."""
    return to_json(value, name).decode() if value else None


def detail_row(detail: SessionDetail) -> list[str | None]:
    return [None if text is None else text.decode() for text in astuple(detail)]


def detail_from(row: Iterable[str | None]) -> SessionDetail:
    return SessionDetail(*(None if text is None else text.encode() for text in row))
