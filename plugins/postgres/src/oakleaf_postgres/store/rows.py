"""Columns of the PostgreSQL tables, in the order in which `stores.rows` converts them."""

from __future__ import annotations

import time
from functools import lru_cache

from oakleaf.stores.sql.session_rows import SESSION_NAMES

# A lease is stored by the server's clock. This is how far it is ahead of the caller's `clock`; less than a second does not
# count. Callers give and get the end of a lease by their own clocks, and one that is wrong by an hour changes nothing.
CLOCK_LEAD = """(
    select case when pg_catalog.abs(server.at - %(clock)s::bigint) < 1000000::bigint then 0::bigint else server.at - %(clock)s::bigint end
    from (select (extract(epoch from pg_catalog.statement_timestamp()) * 1000000::numeric)::bigint as at) as server)"""
_EXPRESSIONS = {
    "tags": "session.tags::text",
    "lease_until": f"session.lease_until - {CLOCK_LEAD} as lease_until",
}
SESSION_COLUMNS = ", ".join(_EXPRESSIONS.get(name, f"session.{name}") for name in SESSION_NAMES)
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


def caller_clock() -> int:
    """Return the value `clock` of a statement on a lease."""
    return time.time_ns() // 1_000


def insert_into(table: str, *names: str) -> str:
    return f"insert into oakleaf.{table} ({', '.join(names)}) values ({', '.join(['%s'] * len(names))})"


@lru_cache(maxsize=1024)
def named_row(prefix: str, names: tuple[str, ...], n: int) -> tuple[str, ...]:
    """Return the names of the values of row n, in the order of columns."""
    return tuple(f"{prefix}_{name}_{n}" for name in names)


def named_rows(prefix: str, names: tuple[str, ...], types: tuple[str, ...], count: int) -> str:
    """Return `count` rows of placeholders for a `values` list."""
    rows = [zip(named_row(prefix, names, n), types, strict=True) for n in range(count)]
    return ", ".join("(" + ", ".join(f"%({name})s::{kind}" for name, kind in row) + ")" for row in rows)
