"""The health of a store: its file, and the sessions that wait for somebody. Reads only.

What it finds comes with the command that mends it; `mend` is the only one it does itself, and only when asked:
sessions whose runner is known to have died are marked interrupted, so that they can be moved and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..stores.base import SessionQuery, SessionRow, StoreBackend
from ..stores.sqlite.health import Finding, file_health
from .log import Log
from .runtime import Runtime

__all__ = ["Finding", "file_health", "mark_interrupted", "session_health", "stuck_sessions"]


def session_health(
    store: StoreBackend, runtime: Runtime, progress: Callable[[], None] = lambda: None
) -> list[Finding]:
    """Sessions that are in the middle of something, and what lies about."""
    findings: list[Finding] = []
    count = waiting = 0
    for row in _every(store):
        progress()
        count += 1
        if is_stuck(row, runtime):
            findings.append(
                Finding(
                    "problem",
                    f"{row.session_id} is marked running, but {row.holder or 'its runner'} is gone",
                    f"bough doctor --fix, then bough resume {row.session_id}",
                )
            )
        elif row.status == "interrupted":
            findings.append(
                Finding("warning", f"{row.session_id} was interrupted", f"bough resume {row.session_id}")
            )
        waiting += len(store.inbox(row.session_id)) if row.status != "running" else 0
    trashed = sum(1 for _ in _every(store, trashed=True))
    findings.insert(
        0, Finding("ok", f"{count:,} session{'' if count == 1 else 's'}, {trashed:,} in the trash")
    )
    if waiting:
        findings.append(
            Finding("warning", f"{waiting} queued inputs wait for a run", "bough resume ID takes them")
        )
    loose = store.unreferenced_blobs(runtime.now())
    if loose.blobs:
        findings.append(
            Finding(
                "warning", f"{loose.blobs} blobs ({loose.bytes:,} bytes) belong to no entry", "bough gc --yes"
            )
        )
    return findings


def is_stuck(row: SessionRow, runtime: Runtime) -> bool:
    """Marked running by somebody who is known to have died, or whose lease ran out."""
    if row.status != "running" or row.holder is None:
        return False
    is_over = row.lease_until is not None and row.lease_until <= runtime.now()
    return is_over or runtime.is_gone(row.holder.partition("#")[0])


def stuck_sessions(store: StoreBackend, runtime: Runtime) -> list[SessionRow]:
    return [row for row in _every(store) if is_stuck(row, runtime)]


def mark_interrupted(store: StoreBackend, runtime: Runtime, row: SessionRow) -> None:
    """Mark it interrupted; what it holds stays as it is."""
    marked = {"status": "interrupted", "holder": None, "lease_until": None}
    Log(store, row, runtime).record("interrupted", data={"holder": row.holder}, row=marked)


def _every(store: StoreBackend, *, trashed: bool = False) -> Iterator[SessionRow]:
    before = None
    while True:
        page = store.sessions(SessionQuery(trashed=trashed, before=before, limit=500))
        yield from page.sessions
        if page.next is None:
            return
        before = page.next
