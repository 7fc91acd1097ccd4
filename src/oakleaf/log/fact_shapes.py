"""The shapes of the facts that Oakleaf reads back: what any verb takes from a journal, it may rely on.

Other kinds, and other fields of these, are for people and hosts. A store writes these shapes; a journal from elsewhere
is checked against them before it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from oakleaf.core.typed_json import converter
from oakleaf.core.usage import MAX_COUNT
from oakleaf.stores.base import Status

Number = Annotated[int, Meta(ge=0, le=MAX_COUNT)]


class _Call(Struct):
    seq: Number
    index: Number


class _CallsStarted(Struct):
    seq: Number
    indexes: list[Number]


class _TaskWaits(_Call):
    session: str
    call: _Call


class _TaskStarted(Struct):
    child: str
    seq: Number
    task: str | None = None


class _Started(Struct):
    parent_facts: Number | None = None
    nth: Number | None = None


class _Turn(Struct):
    turn: Number


class _Ended(Struct):
    status: Status
    error: str | None = None


class _AppendedFact(Struct):
    branch: Number
    first: Number
    last: Number


class _MovedFact(Struct, rename={"origin": "from"}):
    origin: tuple[Number, Number]


class _Labelled(Struct):
    nth: Number
    seq: Number
    label: str | None


_SHAPES: dict[str, type] = {
    "appended": _AppendedFact,
    "approval_requested": _Call,
    "approved": _Call,
    "calls_started": _CallsStarted,
    "cancel_requested": _Turn,
    "denied": _Call,
    "ended": _Ended,
    "labelled": _Labelled,
    "moved": _MovedFact,
    "started": _Started,
    "task_started": _TaskStarted,
    "task_waits": _TaskWaits,
    "turn_ended": _Ended,
    "turn_resumed": _Turn,
    "turn_started": _Turn,
}


_converters: dict[str, Callable[[object], object]] = {
    kind: converter(shape) for kind, shape in _SHAPES.items()
}


def check_shape(kind: str, data: dict[str, Any]) -> None:
    """Raise msgspec.ValidationError if a fact of this kind lacks what is read from it, or has it in another type."""
    convert = _converters.get(kind)
    if convert is not None:
        convert(data)
