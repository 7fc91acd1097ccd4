"""Types of every wire format: request, answer, and the functions a provider consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from oakleaf.core.context import Context
from oakleaf.core.entries import Endpoint, Evidence
from oakleaf.core.messages import Message, Part, Role
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.usage import Usage

Request = dict[str, Any]
"""Everything that a provider is sent but the model and how to stream: prompt, tools, messages, options."""
HISTORY_KEYS = ("messages", "input", "contents")
Proof = dict[str, Any]
"""Data that a provider requires back with a part."""
Blobs = Callable[[str], bytes | None]
"""Returns the bytes of a digest; None for missing bytes."""


class HistoryPart(Struct):
    """The projected part of a history, and the ids used before; by default the whole history.

    `wire.parts` says where a history may be divided.
    """

    is_start: bool = True
    is_end: bool = True
    used_ids: set[str] = field(default_factory=set)
    """Of tool calls, as they were written: an id occurs once in a request."""
    used_items: set[str] = field(default_factory=set)
    used_calls: set[str] = field(default_factory=set)
    """Of OpenAI's items, and of calls of the provider's own tools."""
    called_tools: tuple[str, ...] | None = None
    """The names of tools called in the whole history. None: the tools called by the projected items."""


class Answer(Struct, frozen=True):
    """A model's reply, independent of the provider."""

    message: Message
    usage: Usage | None = None
    evidence: Evidence | None = None
    provider: str | None = None
    model: str | None = None
    finish: str | None = None
    """None: the provider reported no stop reason."""
    units: dict[str, int] | None = None
    """Units with a price of their own beside the tokens, by the names of `genai-prices`: web_searches, …"""
    endpoint: Endpoint | None = None
    """The answering server, if the server decides the form of a request."""


class HistoryMessage(Struct, frozen=True):
    """A message of a history in a provider's format."""

    message: Message
    evidence: Evidence | None = None


MESSAGE = "message"
"""The key of the evidence of a message as a whole, beside the indexes of its parts."""


def history_message(
    issuer: str, role: Role, parsed: Sequence[tuple[Part, Proof]], shape: dict[str, Any] | None = None
) -> HistoryMessage:
    """Return the message of the parsed parts; proofs become evidence, by the index of the part.

    `shape` is that of the message as a whole.
    """
    proofs = {str(index): proof for index, (_, proof) in enumerate(parsed) if proof}
    if shape is not None:
        proofs[MESSAGE] = {"shape": shape}
    message = Message(role, tuple(part for part, _ in parsed))
    return HistoryMessage(message, Evidence(issuer, proofs) if proofs else None)


class Violations(Protocol):
    def __call__(self, request: Request, *, ready: bool = False) -> list[str]: ...


class Projection(Protocol):
    def __call__(self, context: Context, blobs: Blobs, part: HistoryPart | None = None) -> Request: ...


class Provider(Struct, frozen=True):
    """A provider's wire format: projection, parsing and rules."""

    name: str
    project: Projection
    violations: Violations
    write_tools: Callable[[Iterable[ToolSpec]], list[dict[str, Any]]]
    parse_reply: Callable[[object], Answer]
    parse_history: Callable[[Iterable[object]], list[HistoryMessage]]
    history: str = "messages"
    """The key of the list of messages in a request; one of HISTORY_KEYS."""
    block_key: str | None = None
    """The key of a message's blocks, if neighbours of the same role are written as a single message."""

    def parse_messages(self, messages: Iterable[object]) -> list[Message]:
        """Return the messages of a history, without evidence."""
        return [parsed.message for parsed in self.parse_history(messages)]
