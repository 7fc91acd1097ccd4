"""Errors of a session as a whole: it is not here, has moved on, is driven, is in the trash."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .root import BoughError

if TYPE_CHECKING:
    from ..core.tree import Leaf


class NotFound(BoughError):
    """No such session here, or it is another tenant's."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"no session {session_id!r} in this store, space and owner; "
            "list what there is with store.sessions()"
        )


class StaleLeaf(BoughError):
    """The leaf moved; nothing was written. `present` is where it stands now."""

    def __init__(self, session_id: str, expected: Leaf, present: Leaf) -> None:
        self.session_id, self.expected, self.present = session_id, expected, present
        super().__init__(
            f"session {session_id} stands at {present}, not at {expected}: somebody else wrote; "
            "nothing of yours was written. Call session.refresh(), look at what is new, then decide"
        )


class Fenced(BoughError):
    def __init__(self, session_id: str, fence: int, present: int) -> None:
        self.session_id, self.fence, self.present = session_id, fence, present
        super().__init__(
            f"session {session_id} was taken over (fence {present}, yours is {fence}); "
            "nothing was written. Stop this runner; the other one goes on"
        )


class ClaimLost(Fenced):
    def __init__(self, queue: str, task_id: str) -> None:
        self.queue, self.task_id = queue, task_id
        BoughError.__init__(
            self,
            f"task {task_id} of queue {queue!r} is no longer this worker's: its lease ran out or it was cancelled; "
            "nothing was written. Whoever has it now goes on",
        )


class SessionRunning(BoughError):
    def __init__(self, session_id: str, holder: str | None, heard_at: int) -> None:
        self.session_id, self.holder, self.heard_at = session_id, holder, heard_at
        when = datetime.fromtimestamp(heard_at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        super().__init__(
            f"session {session_id} is running, held by {holder or 'an unnamed runner'}, last heard of at {when}; "
            "wait for its turn to end, queue your input with session.enqueue(text), or call session.interrupt() "
            "if its runner is gone"
        )


class SessionTrashed(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id} is in the trash; call store.restore({session_id!r}) first")


class TaskTrashed(SessionTrashed):
    """What a session waits for lies in the trash; it waits on, and nothing is lost."""

    def __init__(self, waits: str, session_id: str) -> None:
        self.waits, self.session_id = waits, session_id
        BoughError.__init__(
            self,
            f"session {waits} waits for its task {session_id}, which is in the trash; "
            f"call store.restore({session_id!r}), then resume",
        )


class NotTrashed(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is not in the trash; call store.delete({session_id!r}) before purge"
        )


class IdTaken(BoughError):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session id {session_id!r} already holds another history (or another tenant's); "
            "start without session_id= to get a new one"
        )
