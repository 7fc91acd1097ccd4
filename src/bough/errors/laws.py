"""Errors of the log: an entry that may not stand here, a place that is none. Nothing was written."""

from __future__ import annotations

from collections.abc import Sequence

from .root import BoughError, list_some, shorten


class InvalidOperation(BoughError):
    """The entry may not stand here; nothing was written."""


class OpenBatch(InvalidOperation):
    def __init__(self, call_ids: Sequence[str], kind: str) -> None:
        self.call_ids = tuple(call_ids)
        super().__init__(
            f"{len(call_ids)} tool call(s) wait for results ({list_some(call_ids)}): only results and notes "
            f'may follow, not {kind}. Append tool_result(call_id, …) for each, or session.close_batch("why")'
        )


class OrphanResult(InvalidOperation):
    def __init__(self, call_id: str, open_ids: Sequence[str]) -> None:
        self.call_id, self.open_ids = call_id, tuple(open_ids)
        waiting = f"open calls: {list_some(open_ids)}" if open_ids else "no call is open here"
        super().__init__(
            f"tool result for {shorten(call_id)!r} has no open call before it ({waiting}); "
            "append the answer that asked for it first, and each result once"
        )


class InvalidMessage(InvalidOperation):
    def __init__(self, what: str) -> None:
        super().__init__(what)


class InvalidPosition(InvalidOperation):
    def __init__(self, point: object, least: int, most: int) -> None:
        self.point, self.least, self.most = point, least, most
        super().__init__(
            f"{point!r} is no place on this path, which runs from {least} to {most}; "
            "session.path() shows it, session.branches() the others"
        )


class NothingToRedo(InvalidOperation):
    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"nothing was rewound in session {session_id} since its last append; "
            "session.branches() lists every branch, session.checkout(leaf) goes to one"
        )


class ToolsNotAllowed(InvalidOperation):
    def __init__(self, more: Sequence[str], allowed: Sequence[str]) -> None:
        self.more, self.allowed = tuple(more), tuple(allowed)
        super().__init__(
            f"the tools would be widened by {list_some(more)}: from here on the session may use "
            f"{', '.join(shorten(name, 40) for name in allowed) or 'no tool'}, and tools are narrowed, never widened. "
            "Leave out what is more, or fork or rewind to before they were narrowed"
        )


class SessionIsReplay(InvalidOperation):
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id} is a replay: its tools were answered by a recording and must not run for real "
            "by accident. session.fork() makes a session of it that goes on; source.replay(…) replays anew"
        )


class InvalidReplay(InvalidOperation):
    def __init__(self, why: str, hint: str) -> None:
        self.why = why
        super().__init__(f"no replay was made: {why}; {hint}")
