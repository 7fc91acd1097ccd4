"""A meter of model calls: it allows each call before it is made, and counts what the call cost."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from oakleaf.core.usage import Call
from oakleaf.models.base import Model, Request


class Reservation(Struct, frozen=True):
    """Money set aside for a call that is about to be made."""

    microcents: int = 0
    key: str = ""
    """Names it where several processes share a budget."""


def reservation_data(call: Call, reserved: Reservation) -> dict[str, Any]:
    """Return what the fact of a call's start says of its reservation."""
    return {"call_id": call.call_id, "reserved": reserved.microcents} if reserved.microcents else {}


class CallMeter(Protocol):
    """Allows each model call before it is made, and counts what it cost."""

    async def reserve(self, model: Model, request: Request) -> Reservation:
        """Reserve the most that the call may cost; raise to refuse it. Nothing is sent then."""
        ...

    async def settle(self, reserved: Reservation, cost: int | None) -> None:
        """Give back what the call did not cost; None: it is not known what it cost."""
        ...
