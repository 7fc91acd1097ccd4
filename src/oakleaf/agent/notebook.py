"""A notebook: a session with hidden notes of a program and the model calls behind the notes, without a
conversation.

Any number of processes and threads write it at once. A plugin keeps its own records in one: what was found, decided or
paid for. Does not know what the notes say. `oakleaf.ext.notebook` makes one.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Literal

from msgspec.structs import replace

from oakleaf.agent.call_meter import Reservation, call_started
from oakleaf.agent.model_call import call_failed
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Note
from oakleaf.core.facts import SessionEnded
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import ModelError
from oakleaf.log.lease import Lease
from oakleaf.log.log import Log
from oakleaf.log.request import Request
from oakleaf.models.base import Model


class Notebook:
    """The notes of one session. Safe to use from several threads."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = Lock()
        self._leaf, self._seq = self._log.leaf, 0
        self._lease: Lease | None = None

    @property
    def session_id(self) -> str:
        return self._log.session_id

    def read(self) -> list[dict[str, Any]]:
        """Return the notes since the last `read`, from any writer."""
        with self._lock:
            snapshot = self._log.store.path(self.session_id, first=self._seq + 1)
            self._leaf, self._seq = snapshot.row.leaf, snapshot.row.leaf.seq
            return [entry.payload.data for entry in snapshot.entries if isinstance(entry.payload, Note)]

    def add(
        self, data: dict[str, Any], *, key: str | None = None, call: Call | None = None
    ) -> dict[str, Any]:
        """Store a note behind all others, with the call behind the note; return the stored, redacted data.

        With a key it is stored once, however often and by whomever it is added. `read` returns it, too.
        """
        calls = () if call is None else (call,)
        with self._lock:
            drafts = (Draft(Note(data, hidden=True)),)
            self._write(drafts=drafts, key=key, calls=calls, replaces_call=bool(calls))
        redacted: dict[str, Any] = self._log.runtime.redactor.redact_json(data)
        return redacted

    def add_next(self, data: dict[str, Any]) -> None:
        """Store a note if no other was added since `read`, or else raise StaleLeaf. `read` does not return
        the note."""
        with self._lock:
            drafts = (Draft(Note(data, hidden=True)),)
            self._write(drafts=drafts, after=self._leaf, follows_notes=False)
            self._leaf, self._seq = self._log.leaf, self._log.leaf.seq

    # -- model calls -------------------------------------------------------------------------------

    def start_call(self, model: Model, purpose: str, reserved: Reservation) -> Call:
        """Record the start of a model call and return the call. So a call that a crash cuts off is counted."""
        with self._lock:
            runtime = self._log.runtime
            call = Call(
                call_id=runtime.new_id(""),
                branch=0,
                after_seq=self._log.leaf.seq,
                answer_seq=None,
                at=runtime.now(),
                purpose=purpose,
                bucket=purpose,
                provider=model.provider,
                model=model.model,
            )
            self._write(fact=call_started(call, reserved), calls=(call,), at_leaf=True)
            return call

    def fail_call(self, call: Call, error: ModelError) -> None:
        """Record the failure of a started call. `add(…, call=)` records one that succeeded."""
        failed = replace(call, usage=error.usage or Usage(), failed=True)
        fact = call_failed(call.call_id, error)
        with self._lock:
            self._write(fact=fact, calls=(failed,), replaces_call=True, at_leaf=True)

    # -- one writer in charge ----------------------------------------------------------------------

    def take(self) -> None:
        """Take the session's lease until `release`; SessionRunning if another process has the lease. Others
        may still add notes."""
        lease = Lease(self._log)
        lease.take(self._log.refresh())
        self._lease = lease

    def release(self) -> None:
        """Give the lease back."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def end(self, status: Literal["completed", "interrupted"], error: str | None) -> None:
        """Mark the session as ended, and say why."""
        with self._lock:
            row = {"status": status, "error": error, "completed_at": self._log.runtime.now()}
            self._write(fact=SessionEnded(status, error), row=row)

    def _write(self, *, follows_notes: bool = True, **values: Any) -> None:
        self._log.commit(Request(follows_notes=follows_notes, fence=self._fence, **values))

    @property
    def _fence(self) -> int | None:
        return None if self._lease is None else self._lease.fence
