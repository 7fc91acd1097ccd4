"""Context: what a model would be given at a leaf. A pure function of the path.

Knows settings, compactions and branch summaries. Does not know providers: `wire` writes it for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ToolsNotAllowed
from .entries import BranchSummary, Compaction, Entry, Evidence, Payload, Settings, Uncompaction
from .messages import Message, Text, user


class Item(Struct, frozen=True):
    """One message of a context and where it comes from."""

    message: Message
    seq: int
    turn: int
    pinned: bool = False
    """A summary: stays as the system prompt stays, for it stands for everything it replaced."""
    evidence: Evidence | None = None


class Context(Struct, frozen=True):
    """The messages a model would be given at a leaf, and what holds there."""

    system: tuple[str, ...]
    items: tuple[Item, ...]
    settings: Settings = Settings()


def fold_settings(path: Iterable[Entry], settings: Settings = Settings()) -> Settings:
    """What holds at the end of the path: later beats earlier, patches add up until a new prompt, tools only narrow.

    `settings` is what held before it, if it is the last part of one.
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
            tools=_narrowed(settings.tools, new.tools),
            limits=settings.limits if new.limits is None else {**(settings.limits or {}), **new.limits},
        )
    return settings


def _narrowed(before: tuple[str, ...] | None, new: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if before is None or new is None:
        return before if new is None else new
    return tuple(name for name in new if name in before)


def check_tools_allowed(path: Iterable[Entry], payloads: Iterable[Payload]) -> None:
    """Whoever asks for tools that do not hold at the end of the path is told so: the fold alone would be silent."""
    allowed = fold_settings(path).tools
    for payload in payloads:
        if not isinstance(payload, Settings) or not isinstance(payload.tools, tuple | list):
            continue
        more = [] if allowed is None else [name for name in payload.tools if name not in allowed]
        if more:
            raise ToolsNotAllowed(more, allowed or ())
        allowed = tuple(payload.tools)


def active_compactions(path: Sequence[Entry]) -> list[tuple[int, Compaction]]:
    """The compactions whose summaries the model sees, oldest first, with their seqs."""
    cancelled = {e.payload.cancels for e in path if isinstance(e.payload, Uncompaction)}
    shown: list[tuple[int, Compaction]] = []
    for entry in path:
        if isinstance(entry.payload, Compaction) and entry.seq not in cancelled:
            shown = [] if entry.payload.replaces_earlier else shown
            shown.append((entry.seq, entry.payload))
    return shown


def build_context(path: Sequence[Entry]) -> Context:
    """The context at the end of a path, or of the last part of one (whose leading half turn is dropped)."""
    compactions = active_compactions(path)
    first_kept = compactions[-1][1].first_kept if compactions else _first_whole(path)
    settings = fold_settings(path)
    head = _head(path)
    prompts = [entry.message.text for entry in path[:head] if entry.message is not None]
    if settings.prompt is not None:
        prompts = [settings.prompt]
    if settings.prompt_patch is not None:
        prompts.append(settings.prompt_patch)
    items = [summary_item(seq, compaction) for seq, compaction in compactions]
    kept = (context_item(entry) for entry in path[head:] if entry.seq >= first_kept)
    items.extend(item for item in kept if item is not None)
    return Context(tuple(prompts), tuple(items), settings)


def _head(path: Sequence[Entry]) -> int:
    """How many entries come before the first message that is not the system prompt."""
    for index, entry in enumerate(path):
        if entry.message is not None and entry.message.role != "system":
            return index
        if isinstance(entry.payload, BranchSummary):
            return index
    return len(path)


def _first_whole(path: Sequence[Entry]) -> int:
    """Where the first whole turn of a window begins; 1 if it is the whole path."""
    if not path or path[0].seq == 1:
        return 1
    for entry in path:
        if entry.turn == entry.seq:
            return entry.seq
    return path[-1].seq + 1


def context_item(entry: Entry) -> Item | None:
    """An entry as the model sees it; None: it does not."""
    if entry.message is not None:
        message = entry.message
        if message.details is not None:
            message = replace(message, details=None)
        return Item(message, entry.seq, entry.turn, evidence=entry.evidence)
    if isinstance(entry.payload, BranchSummary):
        left = entry.payload
        text = f"A branch of this conversation was left at message {left.leaf_seq}. What it found:\n\n{left.summary}"
        return Item(user(Text(text)), entry.seq, entry.turn)
    return None


def summary_item(seq: int, compaction: Compaction) -> Item:
    """A summary as the model sees it."""
    text = f"The conversation before this point was summarised:\n\n{compaction.summary}"
    return Item(user(Text(text)), seq, 0, pinned=True)
