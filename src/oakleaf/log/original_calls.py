"""Tool calls with the model's original arguments.

A stored call may hold placeholders, and no tool is run on placeholders. The process that made a call durable
keeps the call itself in memory. After a restart, or in another process, the call is restored from the stored
call, if every placeholder can be filled in.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from msgspec.structs import replace

from oakleaf.core.media import BLOB_REFERENCE, base64_text, referenced_digest
from oakleaf.core.messages import ToolCall
from oakleaf.core.redact import strings_in
from oakleaf.core.tree import Leaf

MAX_CALLS = 1_000

_Key = tuple[str, Leaf, int]


class OriginalCalls:
    """The original calls of open batches with stored placeholders. The oldest go first."""

    def __init__(self) -> None:
        self._calls: OrderedDict[_Key, tuple[ToolCall, ToolCall]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, session_id: str, answer: Leaf, index: int, stored: ToolCall, original: ToolCall) -> None:
        with self._lock:
            self._calls[session_id, answer, index] = (stored, original)
            while len(self._calls) > MAX_CALLS:
                self._calls.popitem(last=False)

    def find(self, session_id: str, answer: Leaf, index: int, stored: ToolCall) -> ToolCall | None:
        """Return the original of the stored call, unless another process stored another call."""
        record = self._calls.get((session_id, answer, index))
        return record[1] if record is not None and record[0] == stored else None

    def remove(self, session_id: str) -> None:
        """Forget the calls of a session after the last result."""
        if self._calls:
            with self._lock:
                for key in [key for key in self._calls if key[0] == session_id]:
                    del self._calls[key]


def restore_call(
    call: ToolCall, secrets: Mapping[str, str], read_blob: Callable[[str], bytes | None]
) -> ToolCall | None:
    """Return the call with all placeholders filled in; None if a placeholder cannot be filled in.

    Named secrets get their present values, references the base64 they stand for. None also if the model
    itself wrote the text of a placeholder.
    """
    if not call.placeholders:
        return call
    values: dict[str, str] = {}
    for placeholder in set(call.placeholders):
        value = secrets.get(placeholder)
        if placeholder.startswith(BLOB_REFERENCE):
            data = read_blob(referenced_digest(placeholder))
            value = None if data is None else base64_text(placeholder, data)
        if value is None:
            return None
        values[placeholder] = value
    # One reference may begin with the whole text of another: the longest that fits is the one.
    pattern = re.compile("|".join(map(re.escape, sorted(values, key=len, reverse=True))))
    if Counter(handle for text in strings_in(call.arguments) for handle in pattern.findall(text)) != Counter(
        call.placeholders
    ):
        return None
    return replace(call, arguments=_fill(call.arguments, pattern, values), placeholders=())


def _fill(value: Any, pattern: re.Pattern[str], values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda match: values[match[0]], value)
    if isinstance(value, dict):
        return {_fill(key, pattern, values): _fill(item, pattern, values) for key, item in value.items()}
    return [_fill(item, pattern, values) for item in value] if isinstance(value, list) else value
