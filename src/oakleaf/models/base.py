"""The protocol of a model, and the values it exchanges with the loop.

A model takes a request and streams its answer: deltas, then one complete `Answer`. It raises `ModelError`, whose type
says whether a retry makes sense. It does not know sessions; the loop does not know vendors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

from oakleaf.core.context import Context
from oakleaf.core.tool_definitions import ToolSpec, read_tools
from oakleaf.wire import Answer
from oakleaf.wire.base import Blobs


class Request(Struct, frozen=True):
    """The input of a model call: the context, whose settings name the tools it may call, and how to read blobs."""

    context: Context
    blobs: Blobs

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model may call."""
        return read_tools(self.context.settings.tool_definitions, self.blobs) or ()


class Delta(Struct, frozen=True):
    """A piece of the answer in flight, for display. Tool calls are never streamed in parts."""

    text: str = ""
    reasoning: str = ""


class Model(Protocol):
    """Anything that answers a request: implement `stream` to plug in your own."""

    provider: str
    """The wire format it speaks, and the issuer of its evidence."""
    model: str

    def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Yield deltas, then exactly one Answer. A stream that ends without a stop reason raises `TruncatedReply`."""
        ...


def model_name(model: Model) -> str | None:
    """Return the name by which `oakleaf.models` finds this model again, if it has one: `provider:model`."""
    name: str | None = getattr(model, "name", f"{model.provider}:{model.model}")
    return name
