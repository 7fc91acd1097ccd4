"""Counts over many sessions, or of much in one: what lists, pages of spending and of storage are made from.

Knows how they are summed from the other verbs of a store, which any store can do; one that can count in its
own language does that instead, and the suite holds both to the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ..core.usage import Call, Totals, total

if TYPE_CHECKING:
    from .base import SessionRow, StoredEntry

CountColumn = Literal["status", "agent", "model", "relation"]
DAY = 86_400 * 1_000_000


class DailyUsage(Struct, frozen=True):
    """What the calls of one day, agent, model and bucket came to."""

    day: int
    """Since 1970, UTC."""
    agent: str | None
    model: str | None
    bucket: str
    totals: Totals


class StorageSize(Struct, frozen=True):
    """What lies under a session: its own branches, and no more."""

    entries: int = 0
    bytes: int = 0
    """Of the bodies as they are kept."""
    branches: int = 0
    blobs: int = 0
    blob_bytes: int = 0


def count_by(rows: Iterable[SessionRow], by: CountColumn) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        value = getattr(row, by) or ""
        found[value] = found.get(value, 0) + 1
    return found


def sum_daily(calls: Iterable[tuple[SessionRow, Call]]) -> list[DailyUsage]:
    groups: dict[tuple[int, str, str, str], list[Call]] = {}
    for row, call in calls:
        key = (call.at // DAY, row.agent or "", call.model or "", call.bucket)
        groups.setdefault(key, []).append(call)
    return [
        DailyUsage(day, agent or None, model or None, bucket, total(groups[day, agent, model, bucket]))
        for day, agent, model, bucket in sorted(groups)
    ]


def storage_size_of(stored: Iterable[StoredEntry], branches: int, blob_size: dict[str, int]) -> StorageSize:
    bodies = [len(one.entry.body) for one in stored]
    return StorageSize(len(bodies), sum(bodies), branches, len(blob_size), sum(blob_size.values()))
