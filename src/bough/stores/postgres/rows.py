"""Columns of the PostgreSQL tables, in the order in which `stores.rows` converts them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...core.codec import to_json
from ..base import SessionDetail, SessionRow
from ..rows import SESSION_COLUMNS as NAMES

SESSION_NAMES = tuple(name.strip() for name in NAMES.split(","))
SESSION_COLUMNS = ", ".join(
    f"session.{name}::text" if name == "tags" else f"session.{name}" for name in SESSION_NAMES
)
ENTRY_COLUMNS = """entry.branch << 32 | entry.seq, entry.turn, entry.step, entry.kind, entry.internal, entry.model,
    entry.finish, entry.entry_id, entry.at, entry.evidence, entry.body"""
ENTRY_NAMES = (
    *("seq", "turn", "step", "kind", "role", "internal", "model", "finish", "entry_id", "at"),
    *("evidence", "body"),
)
ENTRY_TYPES = (
    *("bigint", "bigint", "bigint", "text", "text", "boolean", "text", "text", "bytea", "bigint"),
    *("bytea", "bytea"),
)
CALL_NAMES = (
    *("call_id", "branch", "after_seq", "answer_seq", "at", "input_tokens", "output_tokens"),
    *("cache_read_tokens", "cache_write_tokens", "purpose", "bucket", "provider", "model"),
    *("cost_microcents", "price_version", "failed"),
)
CALL_TYPES = (
    *("text", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "bigint", "text"),
    *("text", "text", "text", "bigint", "text", "boolean"),
)
CALL_COLUMNS = ", ".join(f"usage.{name}" for name in CALL_NAMES)
JOURNAL_NAMES = ("number", "kind", "key", "branch", "first_seq", "last_seq", "data", "at")
FACT_COLUMNS = ", ".join(f"journal.{name}" for name in JOURNAL_NAMES)


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
    """Return the value as JSON; None if it is empty."""
    return to_json(value, name).decode() if value else None


def detail_row(detail: SessionDetail) -> list[str | None]:
    parts = (detail.spec, detail.policy, detail.workspace, detail.state)
    return [None if text is None else text.decode() for text in parts]


def detail_from(row: tuple[Any, ...]) -> SessionDetail:
    return SessionDetail(*(None if text is None else text.encode() for text in row))


def insert_into(table: str, *names: str) -> str:
    return f"insert into bough.{table} ({', '.join(names)}) values ({', '.join(['%s'] * len(names))})"


@lru_cache(maxsize=1024)
def named_row(prefix: str, names: tuple[str, ...], n: int) -> tuple[str, ...]:
    """Return the names of the values of row n, in the order of its columns."""
    return tuple(f"{prefix}_{name}_{n}" for name in names)


def named_rows(prefix: str, names: tuple[str, ...], types: tuple[str, ...], count: int) -> str:
    """Return `count` rows of placeholders for a `values` list."""
    rows = [zip(named_row(prefix, names, n), types, strict=True) for n in range(count)]
    return ", ".join("(" + ", ".join(f"%({name})s::{kind}" for name, kind in row) + ")" for row in rows)
