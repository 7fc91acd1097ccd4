"""The lease of a session: the right of one runner, the term and the renewal.

A lease is short and renewed, so a runner that died out of sight is replaced soon. One thread per database
renews the leases of all runs of this process: a blocking tool or a blocked event loop does not end a lease.
The thread ends with the process. The lease saves work; safety comes from the fence, raised by each taking.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from oakleaf.core.facts import RunnerEnded
from oakleaf.errors import SessionRunning
from oakleaf.stores.base import SessionRow

if TYPE_CHECKING:
    from oakleaf.log.log import Log
    from oakleaf.log.runtime import Runtime

LEASE_SECONDS = 30.0
TICK_SECONDS = 1.0
MAX_CLOCK_DRIFT = 2.0
"""Seconds by which the clock may gain or lose between two renewals; more means a set clock or a machine's
sleep."""


class Lease:
    """The right of one run to drive a session, renewed from `take` to `release`.

    After a drop without `release`, this process knows at once: the run is gone.
    """

    def __init__(self, log: Log) -> None:
        self._store, self._runtime, self._session_id = log.store, log.runtime, log.session_id
        self.holder = f"{log.runtime.holder()}#{log.runtime.new_id('')}"
        self.fence = 0
        self.is_lost = False
        """Whether another runner has taken the session: this run may write nothing more."""
        self.on_tick: Callable[[], None] | None = None
        """Called about every second while the lease is held, on the thread of the renewal."""
        self._renewal = _clocks()
        """When the lease was last written, or rather asked for."""

    def take(self, row: SessionRow) -> None:
        """Take the lease, given the row as last read. `SessionRunning` if another has it and is not known to be gone."""
        abandoned = row.fence if Hold(row, self._runtime).is_gone else None
        self._announce()
        now = self._runtime.now()
        self._renewal = _clocks()  # before the write: it may wait for other writers
        self.fence = self._store.lease(self._session_id, self.holder, _end(now), now, take_from=abandoned)
        self.keep()

    def columns(self, row: SessionRow) -> dict[str, Any]:
        """Return the columns of a commit under the fence of `row` to take the lease. Call `keep` afterwards.

        Raises `SessionRunning` as `take` does.
        """
        require_free(row, self._runtime)
        self._announce()
        self._renewal = _clocks()
        self.fence = row.fence + 1
        return {"holder": self.holder, "lease_until": _end(self._runtime.now()), "fence": self.fence}

    def _announce(self) -> None:
        """Count as alive before the holder is stored.

        Another thread with the row must not take the run for gone.
        """
        _alive[self.holder] = self

    def keep(self) -> None:
        """Renew the new lease until the release or the loss."""
        _heartbeat(self._store.url).add(self)

    def release(self) -> None:
        """Give the lease back."""
        self.stop()
        self._store.release(self._session_id, self.fence)

    def stop(self) -> None:
        """Stop the renewal: a commit has ended the lease."""
        self.on_tick = None  # it refers to the run, which refers to its lease
        _alive.pop(self.holder, None)
        _heartbeat(self._store.url).remove(self)

    def tick(self) -> None:
        """Renew the lease after a third of the term or a change of the clock. Called by the heartbeat.

        After a clock set forward, the lease looks expired; after a clock set back, the lease would outlive
        the run by hours. Other processes judge the lease by the clock.
        """
        now, before = _clocks(), self._renewal
        is_due = now.monotonic - before.monotonic >= LEASE_SECONDS / 3
        if is_due or abs(now.offset - before.offset) > MAX_CLOCK_DRIFT:
            if not self._store.renew(self._session_id, self.fence, _end(self._runtime.now())):
                self.is_lost = True
                self.stop()
                return
            self._renewal = now
        on_tick = self.on_tick  # another thread may remove the callback
        if on_tick is not None:
            on_tick()


class Hold(NamedTuple):
    """The runner of a session, as far as the row and this process can tell."""

    row: SessionRow
    runtime: Runtime

    @property
    def is_gone(self) -> bool | None:
        """Whether the run with the lease has ended; None if this process cannot know."""
        holder = self.row.holder
        if holder is None:
            return False
        process, _, _ = holder.rpartition("#")
        answer = self.runtime.is_gone(process)
        return holder not in _alive if not answer and process == self.runtime.holder() else answer

    @property
    def is_held(self) -> bool:
        """Whether a run has the lease: the lease has not expired, and the holder is not known to be gone."""
        is_expired = (self.row.lease_until or 0) <= self.runtime.now()
        return self.row.holder is not None and not is_expired and not self.is_gone

    @property
    def is_stuck(self) -> bool:
        """Whether the session is marked running although the runner is dead or the lease has expired."""
        row = self.row
        if row.status != "running" or row.holder is None:
            return False
        is_expired = row.lease_until is not None and row.lease_until <= self.runtime.now()
        return is_expired or bool(self.is_gone)


def require_free(row: SessionRow, runtime: Runtime) -> None:
    """Raise `SessionRunning` if a run has the lease."""
    if Hold(row, runtime).is_held:
        raise SessionRunning(row.session_id, row.holder, row.lease_until)


def interrupt(log: Log, row: SessionRow) -> None:
    """Mark a running session as interrupted and raise the fence.

    The holder of the lease writes nothing more.
    """
    ended = {"holder": None, "lease_until": None, "fence": row.fence + 1}
    status = (
        {"status": "interrupted"} if row.status == "running" else {}
    )  # else its turn waits, or none is open
    log.record(RunnerEnded(row.holder), row=ended | status, fence=row.fence)


class _Clocks(NamedTuple):
    monotonic: float
    """A clock beyond the reach of any setting, stopped while the machine sleeps."""
    offset: float
    """The seconds by which the wall clock is ahead of the monotonic clock."""


def _clocks() -> _Clocks:
    now = time.monotonic()
    return _Clocks(now, time.time() - now)


def _end(now: int) -> int:
    return now + int(LEASE_SECONDS * 1_000_000)


class Heartbeat:
    """The thread for the renewal of all leases of one database. Ends without leases, and with the process."""

    def __init__(self) -> None:
        self._leases: WeakSet[Lease] = WeakSet()
        self._lock = Lock()
        self._thread: Thread | None = None

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases.add(lease)
            if self._thread is None:
                thread = Thread(target=self._run, name="oakleaf-lease", daemon=True)
                thread.start()  # raises if the system allows no more threads
                self._thread = thread

    def remove(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def _run(self) -> None:
        pause = Event()
        while True:
            pause.wait(TICK_SECONDS)
            with self._lock:
                leases = list(self._leases)
                if not leases:
                    self._thread = None
                    return
            while leases:
                # Broad: if the database cannot be reached or written, the next tick tries again. The pop keeps no
                # reference, so a lease dropped meanwhile ends.
                with suppress(Exception):
                    leases.pop().tick()


_alive: WeakValueDictionary[str, Lease] = WeakValueDictionary()
_heartbeats: dict[str, Heartbeat] = {}


def _heartbeat(url: str) -> Heartbeat:
    return _heartbeats.setdefault(url, Heartbeat())


def _forget() -> None:
    """Forget the leases after a fork. The parent's thread renews the parent's leases."""
    _alive.clear()
    _heartbeats.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
