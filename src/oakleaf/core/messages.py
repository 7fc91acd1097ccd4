"""Messages and their parts: pure values, independent of any provider.

Does not know where a message is stored, which session it belongs to, or how a provider writes it. Equal content makes
equal values; identity is the log's business. `gc=False`: values contain no cycles (the codec refuses them), so the
garbage collector need not walk the thousands of values of a path.

What every append runs compares `type(part)` and does not call `isinstance`: the classes of msgspec have a metaclass, so an
`isinstance` that fails calls it, 800 instructions instead of 20. Nobody derives from these classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.errors import InvalidMessage

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)

Outcome = Literal["done", "unknown", "denied", "interrupted", "dry_run", "not_recorded"]


class Text(Struct, frozen=True, tag_field="type", tag="text", gc=False):
    """Plain text."""

    text: str


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning", omit_defaults=True, gc=False):
    """The model's reasoning, as far as the provider shows reasoning; the signature is stored as evidence."""

    text: str = ""
    placeholders: tuple[str, ...] = ()
    """The references in the text in place of base64, in order: `[oakleaf-blob:…]`."""


class ToolCall(Struct, frozen=True, tag_field="type", tag="tool_call", omit_defaults=True, gc=False):
    """A model's call of a tool: the name, the arguments, and an id for the result."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    malformed: str | None = None
    """The raw text of arguments other than a JSON object; stored to show the model the mistake."""
    placeholders: tuple[str, ...] = ()
    """The placeholders in the arguments, as often as each occurs: `[redacted …]` for a secret, `[oakleaf-blob:…]` for
    base64."""

    @property
    def is_hidden(self) -> bool:
        """Whether the arguments contain placeholders, so that no tool may run."""
        return bool(self.placeholders)


class Media(Struct, frozen=True, tag_field="type", tag="media", omit_defaults=True, gc=False):
    """A handle to bytes, kept by the store under (space, sha256)."""

    hash: str
    mime: str
    size: int
    name: str | None = None


class Attachment(Struct, frozen=True, tag_field="type", tag="attachment", gc=False):
    """Bytes to store. The log saves them as a blob and writes a Media handle instead."""

    data: bytes
    mime: str
    name: str | None = None


class ProviderBlock(
    Struct, frozen=True, tag_field="type", tag="provider_block", omit_defaults=True, gc=False
):
    """Content that only the provider can read: a search, executed code, a kept file, a type of a newer API.

    `text` says for people what it is. The block itself is stored as evidence and returned to its issuer as it was; any
    other provider is sent `stub`.
    """

    kind: str
    """The provider's name of the block's type."""
    text: str = ""

    @property
    def stub(self) -> str:
        return f"[{self.text or self.kind}]"


class ToolResult(Struct, frozen=True, tag_field="type", tag="tool_result", omit_defaults=True, gc=False):
    """The result of a call. `content` is for the model, `details` for the host."""

    call_id: str
    content: tuple[Text | Media | Attachment, ...] = ()
    error: bool = False
    outcome: Outcome = "done"
    ends_turn: bool = False
    details: dict[str, Any] | None = None
    """For the host, never for the model. `details["state"]` is a merge patch of the session's state."""

    @property
    def text(self) -> str:
        """The texts of the content; empty for media alone."""
        return "".join(piece.text for piece in self.content if isinstance(piece, Text))


Part = Text | Reasoning | ToolCall | ToolResult | Media | Attachment | ProviderBlock


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """A role and parts: a value, equal to another message with equal content."""

    role: Role
    parts: tuple[Part, ...] = ()
    is_new: bool = False
    """For seeds: new to the agent, as opposed to earlier context rendered again."""
    timestamp: int | None = None
    """For seeds: the host's own time of the message, in its own unit."""
    details: dict[str, Any] | None = None
    """For the host, never for the model."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if type(part) is ToolCall])

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple([part for part in self.parts if type(part) is ToolResult])

    @property
    def media(self) -> Iterator[Media]:
        for part in self.parts:
            if isinstance(part, Media):
                yield part
            elif isinstance(part, ToolResult):
                yield from (piece for piece in part.content if isinstance(piece, Media))


PARTS_BY_ROLE: dict[str, tuple[type, ...]] = {
    "system": (Text, ProviderBlock),
    "user": (Text, Media, Attachment, ProviderBlock),
    "assistant": (Text, Reasoning, ToolCall, Media, Attachment, ProviderBlock),
    "tool": (ToolResult,),
}


def check_message(message: Message) -> None:
    """Raise InvalidMessage for an unknown role or a part foreign to the role."""
    allowed = PARTS_BY_ROLE.get(message.role)
    if allowed is None:
        raise InvalidMessage(f"unknown role {message.role!r}; roles are {', '.join(ROLES)}")
    for part in message.parts:
        if type(part) not in allowed:
            names = ", ".join(kind.__name__ for kind in allowed if kind is not Attachment)
            raise InvalidMessage(
                f"a {message.role} message cannot hold {type(part).__name__}; allowed are {names}"
            )
    if message.role == "tool" and not message.parts:
        raise InvalidMessage("a tool message holds at least one ToolResult; use tool_result(call_id, …)")


def _parts(role: str, content: tuple[str | Part, ...]) -> tuple[Part, ...]:
    for piece in content:
        if not isinstance(piece, str | Part):
            raise InvalidMessage(
                f"{role}() accepts text and parts, not {type(piece).__name__}; "
                "pass provider dicts to session.append or turn.answer"
            )
    return tuple(Text(piece) if isinstance(piece, str) else piece for piece in content)


def system(*content: str | Part) -> Message:
    """Return a system message: instructions for the model."""
    return Message("system", _parts("system", content))


def user(*content: str | Part) -> Message:
    """Return a user message of texts, media handles and attachments."""
    return Message("user", _parts("user", content))


def assistant(*content: str | Part) -> Message:
    """Return an assistant message of texts, reasoning and tool calls."""
    return Message("assistant", _parts("assistant", content))


def tool_result(
    call_id: str,
    content: object = "",
    *,
    error: bool = False,
    outcome: Outcome = "done",
    ends_turn: bool = False,
    state: dict[str, Any] | None = None,
    details: dict[str, Any] | None = None,
) -> Message:
    """Return a tool message with a single result. Content is text, parts, or any JSON value (written as JSON text).

    The result of an MCP tool, as the SDK's object or as JSON, becomes its texts and images; base64 of a known file within
    other text or JSON becomes an attachment too.
    """
    if state is not None:
        details = {**(details or {}), "state": state}
    dump = getattr(content, "model_dump", None)
    if callable(dump):  # a result or a content block of the MCP SDK
        content = dump(mode="json", by_alias=True, exclude_none=True)
    from oakleaf.core.result_blocks import is_mcp_error  # it imports this module

    result = ToolResult(
        call_id, _content(content), error or is_mcp_error(content), outcome, ends_turn, details
    )
    return Message("tool", (result,))


def _content(content: object) -> tuple[Text | Media | Attachment, ...]:
    from oakleaf.core.result_blocks import parse_blocks, split_base64  # they import this module

    if isinstance(content, str):
        return split_base64(content) if content else ()
    if isinstance(content, Text | Media | Attachment):
        return (content,)
    if isinstance(content, list | tuple) and content:
        pieces = [Text(piece) if isinstance(piece, str) else piece for piece in content]
        if all(isinstance(piece, Text | Media | Attachment) for piece in pieces) and any(
            not isinstance(piece, str) for piece in content
        ):
            return tuple(pieces)
    blocks = parse_blocks(content)
    if blocks is not None:
        return blocks
    from oakleaf.core.codec import to_json  # codec imports messages; only this call needs it

    return split_base64(to_json(content, "tool result").decode())


def to_user_message(content: str | Message) -> Message:
    """Return the user message that opens a turn; text becomes a message."""
    message = user(content) if isinstance(content, str) else content
    if not isinstance(message, Message) or message.role != "user":
        name = message.role if isinstance(message, Message) else type(message).__name__
        raise InvalidMessage(
            f"a turn opens with a user message, not {name}; append others with session.append"
        )
    return message


def with_unique_ids(message: Message) -> Message:
    """Give calls with the same id ids of their own: a result is paired by id."""
    used_ids: set[str] = set()
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            call_id, number = part.id, 1
            while call_id in used_ids:
                number += 1
                call_id = f"{part.id}-{number}"
            used_ids.add(call_id)
            part = part if call_id == part.id else replace(part, id=call_id)
        parts.append(part)
    return replace(message, parts=tuple(parts))
