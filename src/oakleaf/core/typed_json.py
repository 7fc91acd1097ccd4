"""Turn JSON into values of a type, from any thread.

msgspec builds what it knows of a Struct when that type is used first. It runs Python code meanwhile, and another thread
that uses the type in that moment finds it half built: the process ends with a segmentation fault (msgspec 0.22; one in 50
runs of `oakleaf test` with two cases did). So types are prepared before threads can use them: when a module is imported, or
a tool is declared. Use these functions instead of `msgspec.convert` and of `decode` with a type.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = Lock()  # two modules may prepare a type that both of theirs contain


def prepare(type_: Any) -> None:
    """Let msgspec build all knowledge of a type; raises TypeError for an unsupported type."""
    with _lock:
        msgspec.json.Decoder(type_)


def converter(type_: type[T]) -> Callable[[object], T]:
    """Return a function from dicts, lists and scalars to a type; the function raises msgspec.ValidationError."""
    prepare(type_)
    return lambda value: msgspec.convert(value, type_)


def json_decoder(type_: type[T]) -> Callable[[bytes | str], T]:
    """Return a function that decodes JSON as a type."""
    with _lock:
        return msgspec.json.Decoder(type_).decode
