"""How each provider writes a history: projection, reading and rules; one file per wire format.

Pure: no SDK is imported here, no file opened, no clock read. A projection is a function of a context and
of the bytes of its media, so another process renders the same bytes for the same leaf. Whatever a log
may hold, its projection obeys the provider's rules: repair happens here and never in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..core.messages import Message
from ..errors import NotAnAnswer, UnknownProvider
from . import anthropic, anthropic_rules, openai_chat, openai_chat_rules
from .explain import Difference, first_difference
from .shapes import Answer, Blobs, Request, Wire, plain

__all__ = [
    "PROVIDERS",
    "Answer",
    "Blobs",
    "Difference",
    "Request",
    "Wire",
    "first_difference",
    "read",
    "read_any_messages",
    "render",
    "wire",
]

PROVIDERS: dict[str, Wire] = {
    "anthropic": Wire(
        "anthropic",
        anthropic.project,
        anthropic_rules.violations,
        anthropic.read_answer,
        anthropic.read_messages,
    ),
    "openai-chat": Wire(
        "openai-chat",
        openai_chat.project,
        openai_chat_rules.violations,
        openai_chat.read_answer,
        openai_chat.read_messages,
    ),
}

_OPENAI_PARTS = {"image_url", "file", "input_audio", "refusal"}


def wire(name: str) -> Wire:
    found = PROVIDERS.get(name)
    if found is None:
        raise UnknownProvider(name, list(PROVIDERS))
    return found


def render(request: Request) -> bytes:
    """The bytes of a request, the same wherever and whenever they are made."""
    return msgspec.json.encode(request)


def read(reply: object) -> Answer:
    """A provider's reply, object or dict, or a message of ours, as an answer."""
    if isinstance(reply, Message):
        if reply.role != "assistant":
            raise NotAnAnswer(f"a message of role {reply.role!r} is no answer")
        return Answer(reply)
    found = plain(reply)
    if "choices" in found:
        return openai_chat.read_answer(found)
    if found.get("type") == "message":
        return anthropic.read_answer(found)
    if found.get("role") == "assistant":
        return PROVIDERS[_speaks(found)].read_answer(found)
    if "error" in found:
        raise NotAnAnswer(f"an error of the provider: {found['error']!r}")
    raise NotAnAnswer(f"a dict with {', '.join(map(str, found)) or 'nothing in it'} is no reply we know")


def read_any_messages(messages: Iterable[object]) -> list[Message]:
    """Messages of either provider's shape, or ours, one by one as they are recognised."""
    read: list[Message] = []
    for message in messages:
        if isinstance(message, Message):
            read.append(message)
        else:
            found = plain(message)
            read.extend(PROVIDERS[_speaks(found)].read_messages([found]))
    return read


def _speaks(message: dict[str, Any]) -> str:
    """Which provider writes such a message; text alone is the same for both."""
    if message.get("role") in ("tool", "developer") or message.get("tool_calls"):
        return "openai-chat"
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return "openai-chat"
    kinds = {plain(block).get("type") for block in content}
    return "openai-chat" if kinds & _OPENAI_PARTS else "anthropic"
