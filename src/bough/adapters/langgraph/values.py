"""What a graph's channels hold, as JSON: readable where it can be, the serde's bytes where it must be.

Knows tags: every value is an object of one key that says how to read it. Plain JSON and messages stand in clear, so
that they are shown, searched and redacted as all else is; whatever JSON does not give back exactly goes through the
saver's serde. A serde of another kind than LangGraph's own (one that encrypts) gets everything: then nothing is
readable here, as its owner wants it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ...core.messages import Message
from ...errors import StoreDamaged
from .messages import NAME, is_json, rendered, restored

# A long run of letters looks like a key by chance, about once in fifty megabytes, and what looks like one is redacted.
# No key has a dot, and none is as short as this.
RUN = 18


class Values:
    """One serde's way with values."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self.is_open = isinstance(serde, JsonPlusSerializer)
        """Whether what it writes may stand in clear."""

    def encode(self, value: Any) -> dict[str, Any]:
        """The value under a tag."""
        if not self.is_open:
            return self.pack(value)
        if is_json(value):
            return {"json": value}
        if isinstance(value, BaseMessage):
            return self._message(value)
        if type(value) is list:
            return {"list": [self.encode(item) for item in value]}
        if type(value) is dict and all(type(key) is str and is_json(key) for key in value):
            return {"dict": {key: self.encode(item) for key, item in value.items()}}
        return self.pack(value)

    def _message(self, message: BaseMessage) -> dict[str, Any]:
        made = rendered(message, self.pack)
        if made is None or "whole" in (made.details or {}).get(NAME, {}):
            return self.pack(message)
        return {"message": msgspec.to_builtins(made)}

    def decode(self, tagged: dict[str, Any]) -> Any:
        """The value again."""
        match tagged:
            case {"json": held}:
                return held
            case {"message": held}:
                return restored(msgspec.convert(held, Message), self.unpack)
            case {"list": held}:
                return [self.decode(item) for item in held]
            case {"dict": held}:
                return {key: self.decode(item) for key, item in held.items()}
            case {"serde": _}:
                return self.unpack(tagged)
        raise StoreDamaged(
            "a value of the graph", f"it is tagged {', '.join(tagged)}, which was never written"
        )

    def pack(self, value: Any) -> dict[str, Any]:
        """The value as the serde writes it, in letters."""
        kind, data = self.serde.dumps_typed(value)
        letters = b64encode(data).decode()
        return {"serde": [kind, ".".join(letters[n : n + RUN] for n in range(0, len(letters), RUN))]}

    def unpack(self, packed: dict[str, Any]) -> Any:
        kind, letters = packed["serde"]
        return self.serde.loads_typed((kind, b64decode(letters.replace(".", ""))))
