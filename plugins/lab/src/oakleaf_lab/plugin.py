"""What the lab adds to Oakleaf, in words; importing it loads nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oakleaf import SessionRow, Store

COMMANDS = {
    "lab": ("Compare", "Replay many sessions with a change, and say whether it makes a difference."),
    "test": ("Compare", "Run regression cases: replay them and check what they expect."),
}


def quoting_sessions(store: Store, session_ids: Set[str]) -> Iterator[tuple[SessionRow, str]]:
    """Yield the lab runs of the sessions, each with the words "lab run": a run quotes inputs and answers."""
    from oakleaf_lab.record import runs_that_quote

    yield from ((row, "lab run") for row in runs_that_quote(store, session_ids))


def keep_without(store: Store, row: SessionRow, session_ids: Set[str]) -> None:
    """Copy a lab run's content on other sessions to a new run, before the run is deleted."""
    from oakleaf_lab.record import copy_without

    copy_without(store, row.session_id, session_ids)
