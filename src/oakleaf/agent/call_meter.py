"""A meter of model calls: allow each call before the request is sent, and count the cost afterwards."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from oakleaf.core.facts import ModelCallStarted
from oakleaf.core.usage import Call
from oakleaf.models.base import Model, Request


class Reservation(Struct, frozen=True):
    """Money set aside for the next call."""

    microcents: int = 0
    key: str = ""
    """The name of the reservation in a budget shared by several processes."""


def call_started(call: Call, reserved: Reservation | None) -> ModelCallStarted:
    """Return the fact of a started call, with the reservation."""
    if reserved is None or not reserved.microcents:
        return ModelCallStarted()
    return ModelCallStarted(call.call_id, reserved.microcents)


class CallMeter(Protocol):
    """Allows each model call before the request is sent, and counts the cost afterwards."""

    async def reserve(self, model: Model, request: Request) -> Reservation:
        """Reserve the maximum cost of the call; raise to refuse the call. Nothing is sent then."""
        ...

    async def settle(self, reserved: Reservation, cost: int | None) -> None:
        """Give back the unused part of a reservation. None: the cost of the call is not known."""
        ...
