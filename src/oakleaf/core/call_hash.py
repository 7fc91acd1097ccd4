"""Which tool calls are the same: equal names and equal arguments, whatever the order of their keys.

A number that holds no fraction is one number, 20 as well as 20.0: models write both. Arguments are compared as they are
stored, so that a secret compares by its placeholder.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from oakleaf.core.codec import decode_message
from oakleaf.core.messages import Message, ToolCall

CALL_MARK = b'"type":"tool_call"'
"""The mark of a call in encoded bodies: a body without the mark has no calls."""
HASH_BYTES = 6
_encode = msgspec.json.Encoder(order="deterministic").encode


def canonical_call(call: ToolCall) -> bytes:
    """Return bytes of a call: equal calls give equal bytes."""
    arguments = _encode(call.arguments)
    if b"." in arguments or b"e" in arguments:  # as few have: a number with a fraction or an exponent
        arguments = _encode(_whole_numbers(call.arguments))
    return b"%b %b" % (_encode(call.name), arguments)


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def call_hash(call: ToolCall) -> int:
    """Return a call's number in an index. Two calls may share a number: compare the calls after a lookup."""
    return int.from_bytes(sha256(canonical_call(call)).digest()[:HASH_BYTES], "big")


def call_hashes(role: str | None, body: bytes) -> list[int]:
    """Return the hashes of the calls in a stored message, each once. One with malformed arguments never runs."""
    if role != "assistant" or CALL_MARK not in body:
        return []
    message: Message = decode_message(body)
    return list(dict.fromkeys(call_hash(call) for call in message.calls if call.malformed is None))
