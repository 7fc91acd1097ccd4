"""A graph's values and LangChain messages as JSON and ordinary messages, and back, equal to the originals.

Fields that our message does not have (the id, the name, what the provider reported) are stored in
`details["langgraph"]`; a message that cannot be restored from its parts (a custom class, objects inside, bytes in a data:
URL) is stored there as the saver's serde writes it. Other values of channels are stored as readable JSON where possible,
else as the serde's bytes. Does not know entries or checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from msgspec import Struct

from oakleaf.core.codec import MAX_INT_BITS, decode, encode, from_json, to_json
from oakleaf.core.media import has_inline_bytes, may_hold_bytes
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    Outcome,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.core.redact import Redactor, pack_bytes, unpack_bytes
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Usage
from oakleaf.errors import StoreDamaged, UnrecognizedReply
from oakleaf.ext import UNKNOWN_OUTCOME
from oakleaf.wire.parsing import parse_base64
from oakleaf_importers.formats.langchain import media_source, read_units, read_usage

_to_message = converter(Message)

KEY = "langgraph"
"""The key of everything that this adapter stores, in details and in notes."""
MAX_DEPTH = 100  # half of what an entry may be nested: the structure around a value needs some
_CLASSES: dict[str, type[BaseMessage]] = {
    "user": HumanMessage,
    "assistant": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}
_PART_FIELDS = frozenset(("type", "content", "tool_calls", "tool_call_id", "status"))
_CALL_FIELDS = frozenset(("name", "args", "id", "type"))

Pack = Callable[[Any], Any]
"""Encodes a value as JSON by the serde, or decodes it."""


def is_json(value: object, depth: int = 0) -> bool:
    """Whether JSON restores the value exactly: no tuple, subclass, NaN or lone surrogate inside."""
    kind = type(value)
    if kind is str:
        text = cast(str, value)
        return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)
    if kind is dict:
        items = cast(dict[Any, Any], value)
        return depth < MAX_DEPTH and all(
            is_json(key) and type(key) is str and is_json(item, depth + 1) for key, item in items.items()
        )
    if kind is list:
        return depth < MAX_DEPTH and all(is_json(item, depth + 1) for item in cast(list[Any], value))
    if kind is float:
        return math.isfinite(cast(float, value))
    return value is None or kind is bool or (kind is int and cast(int, value).bit_length() < MAX_INT_BITS)


# -- messages ------------------------------------------------------------------------------------------


def from_langchain(message: BaseMessage, pack: Pack) -> Message | None:
    """Return a LangChain message as ours; None for an unknown role."""
    role = next((role for role, cls in _CLASSES.items() if isinstance(message, cls)), None)
    if role is None:
        return None
    parts = tuple(_parts(message, cast(Role, role)))
    extra = _extra_fields(message)
    if type(message) is _CLASSES[role] and is_json(extra):
        plain = Message(cast(Role, role), parts, details={KEY: extra} if extra else None)
        # Base64 would be extracted into a blob, and what comes back would differ.
        is_extracted = may_hold_bytes(encode(plain)) and has_inline_bytes(plain)
        if not is_extracted and to_langchain(plain, _never_packed) == message:
            return plain
    return Message(cast(Role, role), parts, details={KEY: {"serialized": pack(message)}})


def _never_packed(packed: Any) -> Any:
    raise AssertionError(f"unexpected packed value: {packed!r}")


def _parts(message: BaseMessage, role: Role) -> Iterator[Part]:
    pieces = list(_pieces(message.content, role))
    if isinstance(message, ToolMessage):
        content = tuple(piece for piece in pieces if isinstance(piece, Text | Media | Attachment))
        outcome: Outcome = "unknown" if message.content == UNKNOWN_OUTCOME else "done"
        yield ToolResult(message.tool_call_id, content, message.status == "error", outcome)
        return
    yield from pieces
    for call in message.tool_calls if isinstance(message, AIMessage) else ():
        arguments = call["args"] if is_json(call["args"]) else {}
        yield ToolCall(call["id"] or "", call["name"], arguments)


def _pieces(content: object, role: Role) -> Iterator[Part]:
    """Yield the readable parts of a content: text, reasoning, media. The rest is stored, not shown."""
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for block in content if isinstance(content, list) else ():
        if isinstance(block, str):
            yield Text(block)
        elif isinstance(block, dict):
            yield from _piece(block, role)


def _piece(block: dict[str, Any], role: Role) -> Iterator[Part]:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        yield Text(block["text"])
    elif kind in ("thinking", "reasoning") and role == "assistant":
        text = block.get(kind)
        yield Reasoning(text if isinstance(text, str) else "")
    elif role != "system":
        attachment = _attachment(block)
        if attachment is not None:
            yield attachment


def _attachment(block: dict[str, Any]) -> Attachment | None:
    """Return the bytes of a block; None if it has none."""
    data, mime, _ = media_source(block)
    try:
        return parse_base64(data, mime.partition(";")[0] if isinstance(mime, str) else None)
    except UnrecognizedReply:
        return None


def _extra_fields(message: BaseMessage) -> dict[str, Any]:
    """Return the set fields without a place in the parts."""
    fields = {
        name: value
        for name, value in message.__dict__.items()
        if name not in _PART_FIELDS and value is not None and value != {} and value != []
    }
    if isinstance(message.content, list):
        is_texts = all(
            isinstance(block, dict) and block.keys() == {"type", "text"} and block["type"] == "text"
            for block in message.content
        )
        fields |= {"blocks": True} if is_texts else {"content": message.content}
    if isinstance(message, AIMessage) and not all(map(_is_plain_call, message.tool_calls)):
        fields["tool_calls"] = message.tool_calls
    return fields


def _is_plain_call(call: Any) -> bool:
    return call.keys() == _CALL_FIELDS and call["type"] == "tool_call" and isinstance(call["id"], str)


def to_langchain(message: Message, unpack: Pack) -> BaseMessage:
    """Return the original LangChain message."""
    fields = dict((message.details or {}).get(KEY, {}))
    if "serialized" in fields:
        return cast(BaseMessage, unpack(fields["serialized"]))
    pieces: tuple[Part, ...] = message.parts
    if message.role == "tool":
        result = message.results[0]
        pieces = result.content
        fields |= {"tool_call_id": result.call_id, "status": "error" if result.error else "success"}
    if message.calls:
        calls = [
            {"name": c.name, "args": c.arguments, "id": c.id, "type": "tool_call"} for c in message.calls
        ]
        fields.setdefault("tool_calls", calls)
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    if fields.pop("blocks", False):
        fields["content"] = [{"type": "text", "text": text} for text in texts]
    fields.setdefault("content", "".join(texts))
    return _CLASSES[message.role](**fields)


def usage_of(message: BaseMessage) -> tuple[Usage, dict[str, int] | None] | None:
    """Return the usage the provider reported, if any, and the units with a separate price."""
    report = message.usage_metadata if isinstance(message, AIMessage) else None
    return None if report is None else (read_usage(report) or Usage(), read_units(report))


def response_field(message: BaseMessage, *names: str) -> str | None:
    """Return the first of the fields with text in the provider's response metadata."""
    values = (message.response_metadata.get(name) for name in names)
    return next(
        (value for value in values if isinstance(value, str) and is_json(value) and "\0" not in value), None
    )


# -- values of channels ----------------------------------------------------------------------------


class ValueCodec:
    """Encodes values as tagged JSON objects: the one key names the decoder.

    Plain JSON and messages stay readable, so they are shown, searched and redacted like everything else; what JSON does not
    restore exactly goes through the serde, and secrets are overwritten in its bytes. A serde that is not LangGraph's own,
    or a subclass of it, may encrypt: it gets everything, so nothing is readable in the store.
    """

    def __init__(self, serde: SerializerProtocol, redactor: Redactor) -> None:
        self.serde, self._redactor = serde, redactor
        self.is_readable = type(serde) is JsonPlusSerializer
        """Whether values may be stored unencrypted."""

    def encode(self, value: Any) -> dict[str, Any]:
        if not self.is_readable:
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
        stored = from_langchain(message, self.pack)
        if stored is None or "serialized" in (stored.details or {}).get(KEY, {}):
            return self.pack(message)
        return {"message": msgspec.to_builtins(stored)}

    def decode(self, tagged: dict[str, Any]) -> Any:
        match tagged:
            case {"json": value}:
                return value
            case {"message": fields}:
                return to_langchain(_to_message(fields), self.unpack)
            case {"list": items}:
                return [self.decode(item) for item in items]
            case {"dict": items}:
                return {key: self.decode(item) for key, item in items.items()}
            case {"serde": _}:
                return self.unpack(tagged)
        raise StoreDamaged("a value of the graph", f"unknown tag {', '.join(tagged)}")

    def pack(self, value: Any) -> dict[str, Any]:
        """Encode a value by the serde, as text."""
        kind, data = self.serde.dumps_typed(value)
        if self.is_readable:
            data = self._redactor.redact_bytes(data)
        return {"serde": [kind, pack_bytes(data)]}

    def unpack(self, packed: dict[str, Any]) -> Any:
        kind, text = packed["serde"]
        return self.serde.loads_typed((kind, unpack_bytes(text)))


# -- messages in the log ---------------------------------------------------------------------------


class StoredMessage(Struct, frozen=True):
    """A message of the graph as the log holds it. As bytes, so nothing a node does to its message changes them."""

    seq: int
    body: bytes
    is_entry: bool
    """False if a note holds it."""
    packed: dict[str, Any] | None
    """The serde's form, if it is stored so: its content may not be comparable otherwise."""
    copies: list[BaseMessage] = []
    """What to compare with, made on first use: the stored message and, if that was redacted, the original."""

    def message(self, codec: ValueCodec) -> BaseMessage:
        """Return the graph's message, a new object each time."""
        if self.is_entry:
            return to_langchain(cast(Message, decode("message", self.body)), codec.unpack)
        message: BaseMessage = codec.decode(from_json(self.body))
        return message

    def equals(self, message: BaseMessage, codec: ValueCodec) -> bool:
        """Whether the message is equal in every field."""
        if self.packed is not None:
            return self.packed == codec.pack(message)
        if not self.copies:
            self.copies.append(self.message(codec))
        for copy in self.copies:  # noqa: SIM110 - `any` costs a generator
            if _is_equal(copy, message):
                return True
        return False


def stored_message(seq: int, content: Message | dict[str, Any]) -> StoredMessage:
    """Return a message of the graph from the content of an entry or of a note."""
    if isinstance(content, Message):
        packed = (content.details or {}).get(KEY, {}).get("serialized")
        return StoredMessage(seq, encode(content), True, packed)
    return StoredMessage(seq, to_json(content, "message"), False, content if "serde" in content else None)


def _is_equal(left: BaseMessage, right: BaseMessage) -> bool:
    """Compare messages as pydantic does, in a third of the time: each put compares all messages."""
    return (
        type(left) is type(right)
        and left.__dict__ == right.__dict__
        and (left.__pydantic_extra__ or {}) == (right.__pydantic_extra__ or {})
    )


def common_prefix(
    stored: Sequence[StoredMessage], messages: Sequence[BaseMessage] | None, codec: ValueCodec
) -> int:
    """Return how many messages are unchanged. A checkpoint without the channel changes none of them."""
    if messages is None:
        return len(stored)
    for count, (before, after) in enumerate(zip(stored, messages, strict=False)):
        if not before.equals(after, codec):
            return count
    return min(len(stored), len(messages))
