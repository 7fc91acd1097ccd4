"""Context: the messages and settings a model gets at a leaf, as a pure function of the path.

Knows settings, compactions and branch summaries. Does not know providers: `wire` projects it for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ToolsNotAllowed
from .entries import (
    INTERRUPTED,
    PARTIAL,
    BranchSummary,
    Compaction,
    Entry,
    Evidence,
    Payload,
    Settings,
    Uncompaction,
)
from .messages import Message, Text, user


class Item(Struct, frozen=True):
    """One message of a context, and the entry it comes from."""

    message: Message
    seq: int
    turn: int
    pinned: bool = False
    """True for a summary: never dropped, because it replaces everything before it."""
    evidence: Evidence | None = None


class Context(Struct, frozen=True):
    """The messages a model gets at a leaf, and the settings that apply there."""

    system: tuple[str, ...]
    items: tuple[Item, ...]
    settings: Settings = Settings()


def fold_settings(path: Iterable[Entry], settings: Settings = Settings()) -> Settings:
    """Return the settings at the end of the path: later ones win, patches add up until a new prompt, tools only narrow.

    `settings` are those before `path`, if it is only the last part of one.
    """
    for entry in path:
        new = entry.payload
        if not isinstance(new, Settings):
            continue
        patches = [settings.prompt_patch] if new.prompt is None else []
        joined = "\n\n".join(patch for patch in [*patches, new.prompt_patch] if patch)
        settings = Settings(
            model=settings.model if new.model is None else new.model,
            prompt=settings.prompt if new.prompt is None else new.prompt,
            prompt_patch=joined or None,
            tools=_narrow_tools(settings.tools, new.tools),
            limits=settings.limits if new.limits is None else {**(settings.limits or {}), **new.limits},
        )
    return settings


def _narrow_tools(before: tuple[str, ...] | None, new: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if before is None or new is None:
        return before if new is None else new
    return tuple(name for name in new if name in before)


def check_tools_allowed(
    path: Iterable[Entry], payloads: Iterable[Payload], session_tools: tuple[str, ...]
) -> None:
    """Raise ToolsNotAllowed for tools that are not allowed at the end of the path, or that are not among the session's,
    if it names any; they would be dropped silently."""
    allowed = _narrow_tools(session_tools or None, fold_settings(path).tools)
    for payload in payloads:
        if not isinstance(payload, Settings) or not isinstance(payload.tools, tuple | list):
            continue
        extra = [] if allowed is None else [name for name in payload.tools if name not in allowed]
        if extra:
            raise ToolsNotAllowed(extra, allowed or ())
        allowed = tuple(payload.tools)


def active_compactions(path: Sequence[Entry]) -> list[tuple[int, Compaction]]:
    """Return the compactions whose summaries the model sees, oldest first, with their seqs."""
    cancelled = {e.payload.cancels for e in path if isinstance(e.payload, Uncompaction)}
    active: list[tuple[int, Compaction]] = []
    for entry in path:
        if isinstance(entry.payload, Compaction) and entry.seq not in cancelled:
            active = [] if entry.payload.replaces_earlier else active
            active.append((entry.seq, entry.payload))
    return active


def build_context(path: Sequence[Entry]) -> Context:
    """Return the context at the end of a path, or of its last part (whose incomplete first turn is dropped)."""
    compactions = active_compactions(path)
    first_kept = compactions[-1][1].first_kept if compactions else _first_complete_turn(path)
    settings = fold_settings(path)
    head = _head_length(path)
    prompts = [entry.message.text for entry in path[:head] if entry.message is not None]
    if settings.prompt is not None:
        prompts = [settings.prompt]
    if settings.prompt_patch is not None:
        prompts.append(settings.prompt_patch)
    items = [summary_item(seq, compaction) for seq, compaction in compactions]
    kept_items = (context_item(entry) for entry in path[head:] if entry.seq >= first_kept)
    items.extend(item for item in kept_items if item is not None)
    return Context(tuple(prompts), tuple(items), settings)


def _head_length(path: Sequence[Entry]) -> int:
    """Return the number of entries before the first message that is not the system prompt."""
    for index, entry in enumerate(path):
        if entry.message is not None and entry.message.role != "system":
            return index
        if isinstance(entry.payload, BranchSummary):
            return index
    return len(path)


def _first_complete_turn(path: Sequence[Entry]) -> int:
    """Return the seq of the first complete turn of a window; 1 if it is the whole path."""
    if not path or path[0].seq == 1:
        return 1
    for entry in path:
        if entry.turn == entry.seq:
            return entry.seq
    return path[-1].seq + 1


def context_item(entry: Entry) -> Item | None:
    """Return an entry as the model sees it; None if the model does not see it."""
    if entry.message is not None:
        message = entry.message
        if entry.finish == INTERRUPTED and not message.calls:
            return None  # the model was asked again, or will be
        if entry.finish == PARTIAL:
            message = replace(message, parts=(*message.parts, Text("(interrupted)")))
        if message.details is not None:
            message = replace(message, details=None)
        return Item(message, entry.seq, entry.turn, evidence=entry.evidence)
    if isinstance(entry.payload, BranchSummary):
        branch = entry.payload
        text = f"A branch of this conversation was left at message {branch.leaf_seq}. What it found:\n\n{branch.summary}"
        return Item(user(Text(text)), entry.seq, entry.turn)
    return None


def summary_item(seq: int, compaction: Compaction) -> Item:
    """Return a summary as the model sees it."""
    text = f"The conversation before this point was summarised:\n\n{compaction.summary}"
    return Item(user(Text(text)), seq, 0, pinned=True)
