"""Counts over many sessions or within one: the figures behind lists, usage reports and storage reports.

Any store can compute the counts from the other methods, as below; a database counts in SQL instead, and the
conformance suite compares both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct

from oakleaf.core.codec import check_text
from oakleaf.core.usage import Call, Totals, total
from oakleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from oakleaf.stores.base import SessionRow, StoredEntry

CountColumn = Literal["status", "agent", "model", "relation"]
DAY = 86_400 * 1_000_000

USAGE_SUMS = """
       count(*), cast(coalesce(sum(usage.input_tokens), 0) as bigint), cast(coalesce(sum(usage.output_tokens), 0) as bigint),
       cast(coalesce(sum(usage.cache_read_tokens), 0) as bigint),
       cast(coalesce(sum(usage.cache_write_tokens), 0) as bigint),
       cast(coalesce(sum(usage.cost_microcents), 0) as bigint),
       sum(case when usage.cost_microcents is null then 1 else 0 end),
       sum(case when usage.input_tokens is null and usage.output_tokens is null then 1 else 0 end)
"""
"""The columns of `Totals`, in the SQL of every database."""
SELECT_DAILY_USAGE = f"""
select usage.at / {DAY}, nullif(session.agent, ''), nullif(usage.model, ''), coalesce(usage.bucket, 'live'), {USAGE_SUMS}
"""
"""The columns of `daily_usage_from`; group them by the first four."""

QUARTER = 900 * 1_000_000
"""Microseconds of a quarter of an hour: the days of every time zone begin with a quarter."""
IS_REPLAY = "coalesce(usage.bucket, 'live') = 'replay'"
USAGE_COLUMNS = {
    "quarter": f"cast(usage.at / {QUARTER} as text)",
    "model": "coalesce(usage.model, '')",
    "agent": "coalesce(session.agent, '')",
    "owner": "coalesce(session.owner, '')",
    "session": "session.id",
    "purpose": "coalesce(usage.purpose, 'answer')",
    "bucket": "coalesce(usage.bucket, 'live')",
}
TAG = "tag:"
"""Before the name of the tag by whose values calls are summed."""


class DailyUsage(Struct, frozen=True):
    """The totals of the calls of a day, an agent, a model and a bucket."""

    day: int
    """Days since 1970, UTC."""
    agent: str | None
    model: str | None
    bucket: str
    totals: Totals


class UsageSums(Struct, frozen=True):
    """The totals of calls by the values of a column or of a tag: those of replays apart."""

    live: dict[str, Totals] = {}
    replays: dict[str, Totals] = {}
    """The calls in the bucket `replay`."""


class StorageSize(Struct, frozen=True):
    """The content of a session's own branches, in numbers."""

    entries: int = 0
    bytes: int = 0
    """The size of the stored bodies, settings included."""
    branches: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    """Media and definitions of tools."""


def count_by(rows: Iterable[SessionRow], by: CountColumn) -> dict[str, int]:
    return dict(Counter(getattr(row, by) or "" for row in rows))


def check_count_column(by: str) -> None:
    """Refuse an unknown column: the name becomes part of a statement."""
    if by not in get_args(CountColumn):
        raise InvalidArgument("by", by, ", ".join(get_args(CountColumn)))


def usage_tag(by: str) -> str | None:
    """Return the name of the tag by whose values calls are summed; None for a column. Refuse anything else."""
    if by in USAGE_COLUMNS:
        return None
    name = by.removeprefix(TAG)
    if name in ("", by):
        raise InvalidArgument("by", by, f"{', '.join(USAGE_COLUMNS)}, or tag:NAME")
    return check_text(name, "tag")


def sum_daily(calls: Iterable[tuple[SessionRow, Call]]) -> list[DailyUsage]:
    groups: dict[tuple[int, str, str, str], list[Call]] = {}
    for row, call in calls:
        key = (call.at // DAY, row.agent or "", call.model or "", call.bucket)
        groups.setdefault(key, []).append(call)
    return [
        DailyUsage(day, agent or None, model or None, bucket, total(groups[day, agent, model, bucket]))
        for day, agent, model, bucket in sorted(groups)
    ]


def usage_sums(rows: Iterable[tuple[str, bool, Totals]]) -> UsageSums:
    """Return sums with the name of each and whether it is of replays."""
    sums = UsageSums({}, {})
    for name, is_replay, totals in rows:
        (sums.replays if is_replay else sums.live)[name] = totals
    return sums


def sum_usage(calls: Iterable[tuple[SessionRow, Call]], by: str) -> dict[str, Totals]:
    tag = usage_tag(by)
    values: dict[str, Callable[[SessionRow, Call], str]] = {
        "quarter": lambda row, call: str(call.at // QUARTER),
        "model": lambda row, call: call.model or "",
        "agent": lambda row, call: row.agent or "",
        "owner": lambda row, call: row.owner or "",
        "session": lambda row, call: row.session_id,
        "purpose": lambda row, call: call.purpose,
        "bucket": lambda row, call: call.bucket,
    }
    value = values[by] if tag is None else lambda row, call: row.tags.get(tag, "")
    groups: dict[str, list[Call]] = {}
    for row, call in calls:
        groups.setdefault(value(row, call), []).append(call)
    return {name: total(group) for name, group in groups.items()}


def daily_usage_from(rows: Iterable[Sequence[Any]]) -> list[DailyUsage]:
    """Return rows of `SELECT_DAILY_USAGE` in order; SQL would sort text by the database's language."""
    groups = [
        DailyUsage(day, agent, model, bucket, Totals(*sums)) for day, agent, model, bucket, *sums in rows
    ]
    return sorted(groups, key=lambda group: (group.day, group.agent or "", group.model or "", group.bucket))


def storage_size_of(stored: Iterable[StoredEntry], branches: int, blob_sizes: dict[str, int]) -> StorageSize:
    bodies = [len(stored_entry.entry.body) for stored_entry in stored]
    return StorageSize(len(bodies), sum(bodies), branches, len(blob_sizes), sum(blob_sizes.values()))
