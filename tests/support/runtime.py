"""A deterministic runtime for tests: a clock that ticks and ids that count."""

from __future__ import annotations

from itertools import count

from oakleaf.log.runtime import Runtime


def deterministic_runtime(holder: str = "here:1") -> Runtime:
    """Return a runtime with predictable times and ids, so equal operations write equal bytes to two stores."""
    ticks = count(1_000_000_000_000_000, 1_000_000)
    ids = count(1)
    return Runtime(
        now=lambda: next(ticks),
        new_id=lambda prefix: f"{prefix or 'k'}_{next(ids):06d}",
        holder=lambda: holder,
        is_gone=lambda holder: holder.startswith("gone:"),
    )
