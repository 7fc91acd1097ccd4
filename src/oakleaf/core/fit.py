"""Fit a context into a budget: drop whole turns, oldest first, never part of one.

State and usage are folds of the whole path and do not depend on this window.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Settings
from oakleaf.core.messages import Media, Message, Part, ToolResult
from oakleaf.core.shorten import MEDIA_LENGTH
from oakleaf.core.turns import group_by_turn
from oakleaf.errors import TurnTooLarge

BYTES_PER_TOKEN = 4  # the usual rule of thumb for English and JSON; only the provider's count is exact
MEDIA_TOKENS = (
    MEDIA_LENGTH // BYTES_PER_TOKEN
)  # an average image; providers count pixels, which a handle does not know

_encoder = msgspec.json.Encoder()


class Budget(Struct, frozen=True):
    """Upper limits for a context. None: no limit."""

    tokens: int | None = None
    bytes: int | None = None
    media: int | None = None
    messages: int | None = None


class Size(Struct, frozen=True, gc=False):
    tokens: int = 0
    bytes: int = 0
    media: int = 0
    messages: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.tokens + other.tokens,
            self.bytes + other.bytes,
            self.media + other.media,
            self.messages + other.messages,
        )


class FitResult(Struct, frozen=True):
    """A context within a budget, and the dropped messages."""

    context: Context
    dropped: tuple[int, ...]
    """The seqs of the dropped entries, oldest first."""
    size: Size


def measure(message: Message) -> Size:
    """Estimate a message's size, the same everywhere: bytes of the JSON, a quarter as tokens."""
    text = len(
        _encoder.encode([_visible_part(part) for part in message.parts] if message.results else message.parts)
    )
    media: list[Media] = list(message.media)
    media_bytes = sum(handle.size * 4 // 3 for handle in media)
    return Size(text // BYTES_PER_TOKEN + 1 + MEDIA_TOKENS * len(media), text + media_bytes, len(media), 1)


def measure_item(item: Item, provider: str | None = None) -> Size:
    """Estimate a message's size with the issuer's evidence: signatures, sealed reasoning, blocks of hosted tools.

    With a provider only what that one issued counts; no other is sent it.
    """
    size, evidence = measure(item.message), item.evidence
    if evidence is None or provider not in (None, evidence.issuer.partition("@")[0]):
        return size
    # Under other names than the index of a part, adapters keep what no provider is sent.
    proofs = [proof for index, proof in evidence.parts.items() if index.isdecimal()]
    length = len(_encoder.encode(proofs)) if proofs else 0
    return size + Size(length // BYTES_PER_TOKEN, length)


def _visible_part(part: Part) -> Part:
    """Return a part without details, invisible to models."""
    is_detailed = isinstance(part, ToolResult) and part.details is not None
    return replace(part, details=None) if is_detailed else part


def measure_system(context: Context) -> Size:
    """Estimate the size of the system prompt."""
    return sum((measure_text(text) for text in context.system), Size())


def measure_tools(settings: Settings) -> Size:
    """Estimate the size of the definitions of the tools."""
    length = 0 if settings.tool_definitions is None else settings.tool_definitions.size
    return Size(length // BYTES_PER_TOKEN + 1, length) if length else Size()


def measure_text(text: str) -> Size:
    length = len(text.encode())
    return Size(length // BYTES_PER_TOKEN + 1, length)


def measure_context(context: Context, provider: str | None = None) -> Size:
    """Estimate the size of a whole request: prompt, tools and messages."""
    used = measure_system(context) + measure_tools(context.settings)
    return sum((measure_item(item, provider) for item in context.items), used)


def fit(context: Context, budget: Budget, provider: str | None = None) -> FitResult:
    """Keep the system prompt, the tools and the summaries, then whole turns, newest first, within the budget."""
    used = measure_system(context) + measure_tools(context.settings)
    pinned = [item for item in context.items if item.pinned]
    used = sum((measure_item(item, provider) for item in pinned), used)
    _raise_if_too_large(used, budget, 0)
    kept_turns: list[list[Item]] = []
    dropped: list[Item] = []
    rest = group_by_turn(item for item in context.items if not item.pinned)
    while rest:
        group = rest.pop()
        size = sum((measure_item(item, provider) for item in group), used)
        if _excess(size, budget) is None:
            kept_turns.append(group)
            used = size
            continue
        if not kept_turns:
            _raise_if_too_large(size, budget, group[0].turn or group[0].seq)
        dropped = [item for part in rest for item in part] + group
        break
    items = (*pinned, *(item for group in reversed(kept_turns) for item in group))
    fitted = replace(context, items=items)
    return FitResult(fitted, tuple(item.seq for item in dropped), used)


def _excess(size: Size, budget: Budget) -> tuple[str, int, int] | None:
    for name in ("tokens", "bytes", "media", "messages"):
        limit = getattr(budget, name)
        if limit is not None and getattr(size, name) > limit:
            return name, getattr(size, name), limit
    return None


def _raise_if_too_large(size: Size, budget: Budget, turn: int) -> None:
    excess = _excess(size, budget)
    if excess is not None:
        raise TurnTooLarge(turn, *excess)
