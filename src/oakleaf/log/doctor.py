"""The health of a store: the file, and sessions in need of attention. Reads only.

Each finding names the command for the fix. `mark_interrupted` is the only fix made here, on request: after
the mark, a session with a dead runner can be moved and resumed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from oakleaf.errors import plural, short_holder
from oakleaf.log.lease import Hold, interrupt
from oakleaf.log.log import Log
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import Finding, SessionQuery, SessionRow, StoreBackend
from oakleaf.stores.sqlite.health import file_health
from oakleaf.stores.tasks import TASK_HOLDER

__all__ = ["Finding", "file_health", "mark_interrupted", "session_health", "stuck_sessions"]


MOST_NAMED = 20
FAILED_LATELY = 86_400 * 1_000_000
"""A session failed within a day is a problem until resumed."""


def session_health(
    store: StoreBackend, runtime: Runtime, progress: Callable[[], None] = lambda: None
) -> Iterator[Finding]:
    """Yield findings about stuck and interrupted sessions, queued inputs and unreferenced blobs."""
    counts = store.count(SessionQuery(), "status")
    trashed = sum(store.count(SessionQuery(trashed=True), "status").values())
    found = plural(sum(counts.values()), "session")
    yield Finding("ok", f"{found} in the space {store.space}, {trashed:,} in the trash")
    yield from _running_sessions(store, runtime, progress)
    yield from _interrupted_sessions(store, counts.get("interrupted", 0))
    yield from _failed_sessions(store, runtime, counts.get("failed", 0))
    yield from _queued_inputs(store)
    loose = store.unreferenced_blobs(runtime.now())
    if loose.blobs:
        message = f"{loose.blobs} blobs ({loose.bytes:,} bytes) are referenced by no entry"
        yield Finding("warning", message, "oakleaf purge --yes")


def _running_sessions(
    store: StoreBackend, runtime: Runtime, progress: Callable[[], None]
) -> Iterator[Finding]:
    """Name sessions without a living runner, and sessions of recorders out of sight and without a lease."""
    stuck = 0
    for row in store.all_sessions(SessionQuery(status="running")):
        progress()
        holder = short_holder(row.holder or "")
        hold = Hold(row, runtime)
        if hold.is_stuck:
            stuck += 1
            if stuck <= MOST_NAMED:
                message = f"{row.session_id} is marked running, but its runner {holder} is gone"
                yield Finding("problem", message, _resume_hint(row))
        elif row.holder is not None and row.lease_until is None and hold.is_gone is None:
            minutes = (runtime.now() - row.updated_at) // 60_000_000
            yield Finding(
                "warning",
                f"{row.session_id} is run by {holder}, in another container or on another host: "
                f"whether that is alive cannot be known from here; it was active {plural(minutes, 'minute')} ago",
                f"nothing, or oakleaf resume {row.session_id} --take-over if it is gone",
            )
    if stuck > MOST_NAMED:
        more = f"{stuck - MOST_NAMED:,} more sessions are marked running, but their runners are gone"
        yield Finding("problem", more, "the same, for each of oakleaf ls status:running")


def _resume_hint(row: SessionRow) -> str:
    queue = short_holder(row.holder or "").rpartition(":")[0].removeprefix(TASK_HOLDER)
    if not _is_run_by_task(row):
        return f"oakleaf resume {row.session_id}, or oakleaf doctor --fix"
    again = f"oakleaf enqueue --queue {shlex.quote(queue)} --resume {row.session_id}"
    return f"nothing if workers run, one of them takes it over; {again} if its task is gone"


def _is_run_by_task(row: SessionRow) -> bool:
    """Whether a worker's task holds the session. The agent may be known to workers alone."""
    return (row.holder or "").startswith(TASK_HOLDER)


def _interrupted_sessions(store: StoreBackend, count: int) -> Iterator[Finding]:
    """Name the newest interrupted sessions, and say how many more there are."""
    rows = store.sessions(SessionQuery(status="interrupted", limit=MOST_NAMED)).sessions if count else []
    for row in rows:
        yield Finding("warning", f"{row.session_id} was interrupted", f"oakleaf resume {row.session_id}")
    if count > len(rows):
        more = f"{count - len(rows):,} more sessions were interrupted"
        yield Finding("warning", more, "oakleaf ls status:interrupted")


def _queued_inputs(store: StoreBackend) -> Iterator[Finding]:
    """Name the sessions with the longest-waiting inputs, and count the other waiting inputs."""
    queued = store.sessions_with_input(MOST_NAMED)
    for session_id, count in queued.items():
        message = f"{session_id} has {plural(count, 'queued input')}, and nothing runs it"
        yield Finding(
            "warning", message, f"start a worker that has its agent, or oakleaf resume {session_id}"
        )
    more = store.queued_input_count() - sum(queued.values()) if len(queued) == MOST_NAMED else 0
    if more > 0:
        yield Finding(
            "warning", f"{plural(more, 'more queued input')} in other sessions", "the same for each"
        )


def _failed_sessions(store: StoreBackend, runtime: Runtime, count: int) -> Iterator[Finding]:
    """Name the recently failed sessions with the reason, and count the other failed sessions."""
    query = SessionQuery(status="failed", order="active", limit=MOST_NAMED)
    rows = store.sessions(query).sessions if count else []
    lately = [row for row in rows if row.updated_at >= runtime.now() - FAILED_LATELY]
    for row in lately:
        yield Finding(
            "problem",
            f"{row.session_id} failed: {row.error or 'no reason was recorded'}",
            f"oakleaf show {row.session_id}; oakleaf resume {row.session_id} tries again",
            sessions=(row.session_id,),
        )
    if count > len(lately):
        others = plural(count - len(lately), "more session" if lately else "session")
        yield Finding(
            "warning", f"{others} failed", "oakleaf ls status:failed; oakleaf resume ID tries again"
        )


def stuck_sessions(store: StoreBackend, runtime: Runtime) -> list[SessionRow]:
    """Return the sessions without a living runner, except the sessions of workers' tasks."""
    rows = store.all_sessions(SessionQuery(status="running"))
    return [row for row in rows if Hold(row, runtime).is_stuck and not _is_run_by_task(row)]


def mark_interrupted(store: StoreBackend, runtime: Runtime, row: SessionRow) -> None:
    """Mark a session without a living runner as interrupted; change nothing else."""
    interrupt(Log(store, row, runtime), row)
