"""How each provider writes a history: projection, reading and rules; one file per wire format.

Pure: no SDK is imported here, no file opened, no clock read. A projection is a function of a context and
of the bytes of its media, so another process renders the same bytes for the same leaf. Whatever a log
may hold, its projection obeys the provider's rules: repair happens here and never in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from ..core.messages import Message
from ..errors import UnknownProvider, UnrecognizedReply
from .anthropic import request as anthropic
from .anthropic import rules as anthropic_rules
from .explain import Difference, first_difference
from .gemini import request as gemini
from .gemini import rules as gemini_rules
from .openai_chat import request as openai_chat
from .openai_chat import rules as openai_chat_rules
from .openai_responses import request as openai_responses
from .openai_responses import rules as openai_responses_rules
from .shapes import Answer, Blobs, Provider, Request, to_dict

__all__ = [
    "PROVIDERS",
    "Answer",
    "Blobs",
    "Difference",
    "Request",
    "Provider",
    "first_difference",
    "parse_reply",
    "parse_messages",
    "render",
    "provider",
]

PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        "anthropic",
        anthropic.project,
        anthropic_rules.violations,
        anthropic.parse_reply,
        anthropic.parse_messages,
    ),
    "openai-chat": Provider(
        "openai-chat",
        openai_chat.project,
        openai_chat_rules.violations,
        openai_chat.parse_reply,
        openai_chat.parse_messages,
    ),
    "openai": Provider(
        "openai",
        openai_responses.project,
        openai_responses_rules.violations,
        openai_responses.parse_reply,
        openai_responses.parse_messages,
        "input",
    ),
    "gemini": Provider(
        "gemini",
        gemini.project,
        gemini_rules.violations,
        gemini.parse_reply,
        gemini.parse_messages,
        "contents",
    ),
}

_CHAT_PARTS = {"image_url", "file", "input_audio", "refusal"}
_RESPONSES_PARTS = {"input_text", "input_image", "input_file", "output_text"}
_GEMINI_REPLY = {"candidates", "promptFeedback", "prompt_feedback"}


def find_provider(name: str) -> Provider:
    found = PROVIDERS.get(name)
    if found is None:
        raise UnknownProvider(name, list(PROVIDERS))
    return found


def render(request: Request) -> bytes:
    """The bytes of a request, the same wherever and whenever they are made."""
    return msgspec.json.encode(request)


def parse_reply(reply: object) -> Answer:
    """A provider's reply, object or dict, or a message or answer of ours, as an answer."""
    if isinstance(reply, Answer):
        return reply
    if isinstance(reply, Message):
        if reply.role != "assistant":
            raise UnrecognizedReply(f"a message of role {reply.role!r} is no answer")
        return Answer(reply)
    found = to_dict(reply)
    if found.get("object") == "response":
        return openai_responses.parse_reply(found)
    if "choices" in found:
        return openai_chat.parse_reply(found)
    if found.keys() & _GEMINI_REPLY or found.get("role") == "model":
        return gemini.parse_reply(found)
    if found.get("type") == "message" and _speaks(found) != "openai":
        return anthropic.parse_reply(found)
    if found.get("role") == "assistant":
        return PROVIDERS[_speaks(found)].parse_reply(found)
    if "error" in found:
        raise UnrecognizedReply(f"an error of the provider: {found['error']!r}")
    raise UnrecognizedReply(
        f"a dict with {', '.join(map(str, found)) or 'nothing in it'} is no reply we know"
    )


def parse_messages(messages: Iterable[object]) -> list[Message]:
    """Messages of any provider's shape, or ours, as they are recognised.

    Those of one shape in a row are read together: on OpenAI's Responses an answer is several items.
    """
    read: list[Message] = []
    ours = (message if isinstance(message, Message) else to_dict(message) for message in messages)
    for name, run in groupby(ours, _speaker):
        if name is None:
            read.extend(message for message in run if isinstance(message, Message))
        else:
            read.extend(PROVIDERS[name].parse_messages(run))
    return read


def _speaker(message: Message | dict[str, Any]) -> str | None:
    return None if isinstance(message, Message) else _speaks(message)


def _speaks(message: dict[str, Any]) -> str:
    """Which provider writes such a message; text alone is the same for all but Gemini."""
    if "parts" in message:
        return "gemini"
    if message.get("type", "message") != "message":
        return "openai"
    content = message.get("content")
    kinds = {to_dict(block).get("type") for block in content} if isinstance(content, list | tuple) else set()
    if kinds & _RESPONSES_PARTS or (kinds == {"refusal"} and "type" in message):
        return "openai"
    if message.get("role") in ("tool", "developer") or message.get("tool_calls"):
        return "openai-chat"
    if not isinstance(content, list | tuple):
        return "openai-chat"
    return "openai-chat" if kinds & _CHAT_PARTS else "anthropic"
