"""LangChain messages as ours, and back: what the graph says becomes ordinary entries, and comes back equal.

Knows the four kinds of messages a conversation consists of. What our message has no field for (the id, the name, what
the provider reported) stands beside it under `details["langgraph"]`; a message that cannot be told apart so (a class
of somebody's own, objects within, bytes in a data: URL) is kept there whole, as the saver's serde writes it. Does not
know where a message stands.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ...core.codec import MAX_INT_BITS, encode
from ...core.media import BASE64_MARK
from ...core.messages import Attachment, Media, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from ...core.usage import Usage

NAME = "langgraph"
"""The key under which all that is the adapter's own lies, in details and in notes."""
DEPTH = 100  # half of what an entry may be nested: what stands around it needs some
_CLASSES: dict[str, type[BaseMessage]] = {
    "user": HumanMessage,
    "assistant": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}
_TOLD = frozenset(("type", "content", "tool_calls", "tool_call_id", "status"))
_CALL = frozenset(("name", "args", "id", "type"))

Pack = Callable[[Any], Any]
"""A value as JSON that the serde made, or the way back."""


def is_json(value: object, depth: int = 0) -> bool:
    """Whether JSON gives back exactly this: no tuple, no subclass, no NaN, no half characters."""
    kind = type(value)
    if kind is str:
        text = cast(str, value)
        return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)
    if kind is dict:
        items = cast(dict[Any, Any], value)
        return depth < DEPTH and all(
            is_json(key) and type(key) is str and is_json(item, depth + 1) for key, item in items.items()
        )
    if kind is list:
        return depth < DEPTH and all(is_json(item, depth + 1) for item in cast(list[Any], value))
    if kind is float:
        return math.isfinite(cast(float, value))
    return value is None or kind is bool or (kind is int and cast(int, value).bit_length() < MAX_INT_BITS)


# -- there ---------------------------------------------------------------------------------------------


def rendered(message: BaseMessage, pack: Pack) -> Message | None:
    """The message as ours; None if it is of no role we have."""
    role = next((role for role, cls in _CLASSES.items() if isinstance(message, cls)), None)
    if role is None:
        return None
    parts = tuple(_parts(message, cast(Role, role)))
    beside = _beside(message)
    if type(message) is _CLASSES[role] and is_json(beside):
        plain = Message(cast(Role, role), parts, details={NAME: beside} if beside else None)
        # A data: URL would be lifted out, in the parts and in the details: what comes back was another text.
        if BASE64_MARK not in encode(plain) and restored(plain, _never) == message:
            return plain
    return Message(cast(Role, role), parts, details={NAME: {"whole": pack(message)}})


def _never(packed: Any) -> Any:
    raise AssertionError(f"nothing was packed: {packed!r}")


def _parts(message: BaseMessage, role: Role) -> Iterator[Part]:
    pieces = list(_pieces(message.content, role))
    if isinstance(message, ToolMessage):
        content = tuple(piece for piece in pieces if isinstance(piece, Text | Media | Attachment))
        yield ToolResult(message.tool_call_id, content, error=message.status == "error")
        return
    yield from pieces
    for call in message.tool_calls if isinstance(message, AIMessage) else ():
        arguments = call["args"] if is_json(call["args"]) else {}
        yield ToolCall(call["id"] or "", call["name"], arguments)


def _pieces(content: object, role: Role) -> Iterator[Part]:
    """What people and models can read of a content: words, thoughts, pictures. The rest is kept, not shown."""
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
        thought = block.get(kind)
        yield Reasoning(thought if isinstance(thought, str) else "")
    elif role != "system":
        found = _picture(block)
        if found is not None:
            yield found


def _picture(block: dict[str, Any]) -> Attachment | None:
    """The bytes of a block, in the ways LangChain and the providers write one."""
    source = block.get("source") if isinstance(block.get("source"), dict) else block
    assert isinstance(source, dict)
    mime = source.get("mime_type") or source.get("media_type")
    data = source.get("base64") or source.get("data")
    url = block.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    if isinstance(url, str) and url.startswith("data:") and ";base64," in url:
        mime, _, data = url.removeprefix("data:").partition(";base64,")
    if not isinstance(mime, str) or not isinstance(data, str):
        return None
    try:
        return Attachment(b64decode(data, validate=True), mime.partition(";")[0])
    except (binascii.Error, ValueError):
        return None


def _beside(message: BaseMessage) -> dict[str, Any]:
    """What our message does not say: whatever is set and stands in none of its parts."""
    fields = {
        name: value
        for name, value in message.__dict__.items()
        if name not in _TOLD and value is not None and value != {} and value != []
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
    return call.keys() == _CALL and call["type"] == "tool_call" and isinstance(call["id"], str)


# -- and back ------------------------------------------------------------------------------------------


def restored(message: Message, unpack: Pack) -> BaseMessage:
    """The graph's own message again."""
    fields = dict((message.details or {}).get(NAME, {}))
    if "whole" in fields:
        return cast(BaseMessage, unpack(fields["whole"]))
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


# -- what a provider reported --------------------------------------------------------------------------


def usage_of(message: BaseMessage) -> Usage | None:
    """The tokens of the call that made it, if the provider told them. LangChain counts the cache within the input."""
    told = message.usage_metadata if isinstance(message, AIMessage) else None
    if told is None:
        return None
    cached = told.get("input_token_details") or {}
    return Usage(
        told["input_tokens"], told["output_tokens"], cached.get("cache_read"), cached.get("cache_creation")
    )


def reported(message: BaseMessage, *names: str) -> str | None:
    """The first of these that the provider's own report says in words."""
    found = (message.response_metadata.get(name) for name in names)
    return next(
        (word for word in found if isinstance(word, str) and is_json(word) and "\0" not in word), None
    )
