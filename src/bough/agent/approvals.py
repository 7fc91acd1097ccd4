"""What a person is asked about, and how a tool is left that must wait for the answer."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.turns import OpenCall


class PendingApproval(OpenCall, frozen=True):
    """A call that waits for a person, and the session it waits in: a task's, perhaps."""

    session_id: str


class TaskNeedsApproval(BaseException):
    """How a tool is left whose task waits for a person. No Exception: a tool that catches those is left as well."""

    def __init__(self, asked: Sequence[PendingApproval]) -> None:
        self.approvals = asked
