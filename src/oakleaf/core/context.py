"""Context: the messages and settings a model gets at a leaf, as a pure function of the path.

Knows settings, compactions and branch summaries. Does not know providers: `wire` projects it for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.entries import (
    INTERRUPTED,
    PARTIAL,
    PAUSED,
    BranchSummary,
    Compaction,
    Endpoint,
    Entry,
    Evidence,
    Payload,
    Settings,
    ToolDefinitions,
    Uncompaction,
)
from oakleaf.core.messages import Message, Text, user
from oakleaf.core.shorten import shorten_results
from oakleaf.core.turns import group_by_turn
from oakleaf.errors import ToolsNotAllowed


class Item(Struct, frozen=True, gc=False):
    """A message of a context, and the entry behind the message."""

    message: Message
    seq: int
    turn: int
    pinned: bool = False
    """True for a summary: never dropped, because the summary replaces everything before."""
    evidence: Evidence | None = None
    paused: bool = False
    """True for a paused answer, expected back by the provider."""
    shortened: bool = False
    """True for results shortened by a compaction."""


class Context(Struct, frozen=True):
    """A model's messages at a leaf, and the settings in force."""

    system: tuple[str, ...]
    items: tuple[Item, ...]
    settings: Settings = Settings()
    system_evidence: tuple[Evidence | None, ...] = ()
    """The evidence of each system prompt; empty for none."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the items, without the system prompt."""
        return tuple(item.message for item in self.items)


def fold_settings(path: Iterable[Entry], settings: Settings = Settings()) -> Settings:
    """Return the settings at the end of the path: later values win, patches add up until a new prompt, tools only
    narrow.

    `settings` are those before `path`, if it is only the last part of one.
    """
    for entry in path:
        new = entry.payload
        if type(new) is not Settings:
            continue
        patches = [settings.prompt_patch] if new.prompt is None else []
        joined = "\n\n".join(patch for patch in [*patches, new.prompt_patch] if patch)
        settings = Settings(
            model=settings.model if new.model is None else new.model,
            prompt=settings.prompt if new.prompt is None else new.prompt,
            prompt_patch=joined or None,
            tools=_narrow_tools(settings.tools, new.tools),
            limits=settings.limits if new.limits is None else {**(settings.limits or {}), **new.limits},
            options=merge_options(settings.options, new.options),
            tool_definitions=fold_tools(settings.tool_definitions, new.tool_definitions),
            windows=settings.windows if new.windows is None else {**(settings.windows or {}), **new.windows},
            endpoints=(
                settings.endpoints
                if new.endpoints is None
                else {**(settings.endpoints or {}), **new.endpoints}
            ),
            effects=new.effects or settings.effects,
            max_messages=settings.max_messages if new.max_messages is None else new.max_messages,
        )
    return settings


def fold_tools(known: ToolDefinitions | None, new: ToolDefinitions | None) -> ToolDefinitions | None:
    """Return the tools of a request after `new`. Where no tools are in force the known ones stay, not callable.

    Vendors refuse a history with tool calls and no tools.
    """
    if new is None:
        return known
    return new if new.names or known is None or not known.names else replace(known, is_callable=False)


def merge_options(before: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the options in force after `new`; a value of None removes an option."""
    merged = {name: value for name, value in {**(before or {}), **(new or {})}.items() if value is not None}
    return merged or None


def changed_options(before: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the new options beyond the options in force; None if all are in force."""
    changed = {name: value for name, value in (new or {}).items() if (before or {}).get(name) != value}
    return changed or None


def changed_max_messages(before: Settings, new: int | None) -> int | None:
    """Return the new maximum of messages; None if the maximum is in force already."""
    return None if new is None or new == (before.max_messages or 0) else new


def endpoint_of(settings: Settings, provider: str) -> Endpoint:
    """Return the server asked in a provider's format."""
    return (settings.endpoints or {}).get(provider, Endpoint())


def with_endpoint(context: Context, provider: str, endpoint: Endpoint) -> Context:
    """Return the context for another server."""
    if endpoint == endpoint_of(context.settings, provider):
        return context
    endpoints = {**(context.settings.endpoints or {}), provider: endpoint}
    return replace(context, settings=replace(context.settings, endpoints=endpoints))


def _narrow_tools(before: tuple[str, ...] | None, new: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if before is None or new is None:
        return before if new is None else new
    return tuple(name for name in new if name in before)


def check_tools_allowed(
    path: Iterable[Entry], payloads: Iterable[Payload], session_tools: tuple[str, ...]
) -> None:
    """Raise ToolsNotAllowed for tools outside the allowed tools of the path or of the session, instead of dropping
    tools silently.
    """
    allowed = _narrow_tools(session_tools or None, fold_settings(path).tools)
    for payload in payloads:
        if not isinstance(payload, Settings) or not isinstance(payload.tools, tuple | list):
            continue
        extra = [] if allowed is None else [name for name in payload.tools if name not in allowed]
        if extra:
            raise ToolsNotAllowed(extra, allowed or ())
        allowed = tuple(payload.tools)


def active_compactions(path: Sequence[Entry]) -> list[tuple[int, Compaction]]:
    """Return the compactions with summaries in the context, oldest first, with seqs."""
    return _without_replaced(_compactions(path))


def _without_replaced(compactions: Sequence[tuple[int, Compaction]]) -> list[tuple[int, Compaction]]:
    """Leave out replaced compactions."""
    active: list[tuple[int, Compaction]] = []
    for seq, compaction in compactions:
        active = [] if compaction.replaces_earlier else active
        active.append((seq, compaction))
    return active


def _compactions(path: Sequence[Entry]) -> list[tuple[int, Compaction]]:
    """Return the uncancelled compactions, with seqs."""
    control = [entry for entry in path if type(entry.payload) is not Message]
    cancelled = {entry.payload.cancels for entry in control if isinstance(entry.payload, Uncompaction)}
    return [
        (entry.seq, entry.payload)
        for entry in control
        if isinstance(entry.payload, Compaction) and entry.seq not in cancelled
    ]


class Replacement(Struct, frozen=True):
    """The effect of a path's compactions: the entries left in the context, and the summaries before."""

    summaries: tuple[Item, ...] = ()
    first_kept: int = 1
    kept_input: int = 0
    lengths: Mapping[int, int] = {}
    """How many characters of each result the model sees, by the seq of the tool message. Others are whole."""

    def keeps(self, seq: int, turn: int) -> bool:
        """Whether the entry or the item with the seq and turn stays in the context."""
        return seq >= self.first_kept or (seq == self.kept_input and seq == turn)

    def item(self, entry: Entry) -> Item | None:
        """Return an entry as the model sees it, with shortened results; None for an invisible entry."""
        item = context_item(entry) if self.keeps(entry.seq, entry.turn) else None
        length = self.lengths.get(entry.seq)
        if item is None or length is None or item.message.role != "tool":
            return item
        # What its issuer would get back in place of it is the whole result.
        return replace(item, message=shorten_results(item.message, length), shortened=True, evidence=None)


def read_replacement(path: Sequence[Entry], first: int = 1) -> Replacement:
    """Return the effect of the compactions among the entries; messages before seq `first` are left out as well."""
    compactions = _compactions(path)
    summaries = [
        (seq, compaction) for seq, compaction in _without_replaced(compactions) if compaction.summary
    ]
    last = summaries[-1][1] if summaries else None
    first_kept = _first_complete_turn(path) if last is None else last.first_kept
    return Replacement(
        tuple(summary_item(seq, compaction) for seq, compaction in summaries),
        max(first_kept, first),
        0 if last is None or first > first_kept else last.kept_input,
        {seq: length for _, compaction in compactions for seq, length in compaction.shortened},
    )


def first_shown(control_entries: Sequence[Entry]) -> tuple[int, int]:
    """Return the seq of the first visible message of a path, and the seq of the input kept before; 0 for no input.
    The path's entries other than messages and notes are enough.
    """
    summaries = [compaction for _, compaction in active_compactions(control_entries) if compaction.summary]
    return (summaries[-1].first_kept, summaries[-1].kept_input) if summaries else (1, 0)


def build_context(path: Sequence[Entry]) -> Context:
    """Return the context at the end of a path: the messages and settings for a model.

    Messages that a summary replaced may be missing from the path.
    """
    return trim(whole_context(path))


def whole_context(path: Sequence[Entry], first: int = 1) -> Context:
    """Return the context before the maximum of messages; in the last part of a path an incomplete first turn is
    dropped. Messages before seq `first` are left out.
    """
    return replace_entries(path, read_replacement(path, first))


def trim(context: Context, max_messages: int | None = None) -> Context:
    """Keep the summaries and the newest whole turns, at most as many messages as the settings allow, or `max_messages`.

    The newest turn is always kept whole.
    """
    maximum = context.settings.max_messages if max_messages is None else max_messages
    items = context.items
    if not maximum or len(items) <= maximum:
        return context
    start = len(items) - maximum  # back to where a turn begins: all before it is left out
    while start and items[start].turn in (0, items[start - 1].turn):
        start -= 1
    turns = group_by_turn(item for item in items[start:] if not item.pinned)
    kept = list(takewhile(lambda item: item.pinned, items))
    room, first = maximum - len(kept), len(turns)
    while first and (first == len(turns) or len(turns[first - 1]) <= room):
        first -= 1
        room -= len(turns[first])
    kept += [item for turn in turns[first:] for item in turn]
    return replace(context, items=tuple(kept))


def replace_entries(path: Sequence[Entry], replacement: Replacement) -> Context:
    """Return the whole context at the end of a path with replaced entries."""
    settings = fold_settings(path)
    head = head_length(path)
    seeds = [entry for entry in path[:head] if entry.message is not None and settings.prompt is None]
    prompts = [entry.message.text for entry in seeds if entry.message is not None]
    evidence = tuple(entry.evidence for entry in seeds)
    if settings.prompt is not None:
        prompts = [settings.prompt]
    if settings.prompt_patch is not None:
        prompts.append(settings.prompt_patch)
    items = list(replacement.summaries)
    items.extend(item for item in map(replacement.item, path[head:]) if item is not None)
    return Context(tuple(prompts), tuple(items), settings, evidence if any(evidence) else ())


def head_length(path: Sequence[Entry]) -> int:
    """Return the number of entries before the first message outside the system prompt."""
    for index, entry in enumerate(path):
        if entry.message is not None and entry.message.role != "system":
            return index
        if isinstance(entry.payload, BranchSummary):
            return index
    return len(path)


def _first_complete_turn(path: Sequence[Entry]) -> int:
    """Return the seq of the first complete turn of a window; 1 for a whole path."""
    if not path or path[0].seq == 1:
        return 1
    for entry in path:
        if entry.turn == entry.seq:
            return entry.seq
    return path[-1].seq + 1


def context_item(entry: Entry) -> Item | None:
    """Return an entry as the model sees it; None for an invisible entry."""
    message = entry.payload
    if type(message) is Message:
        if entry.finish == INTERRUPTED and not message.calls:
            return None  # the model was asked again, or will be
        if entry.finish == PARTIAL:
            message = replace(message, parts=(*message.parts, Text("(interrupted)")))
        if message.details is not None:
            message = replace(message, details=None)
        paused = entry.finish == PAUSED and not message.calls
        return Item(message, entry.seq, entry.turn, evidence=entry.evidence, paused=paused)
    if isinstance(entry.payload, BranchSummary):
        branch = entry.payload
        text = f"A branch of this conversation was left at message {branch.leaf_seq}. What it found:\n\n{branch.summary}"
        return Item(user(Text(text)), entry.seq, entry.turn)
    return None


def summary_item(seq: int, compaction: Compaction) -> Item:
    """Return a summary as the model sees it."""
    head = "The conversation before this point was summarised"
    if compaction.kept_input:
        head = "The conversation so far was summarised, with the first steps that answer the message after this summary"
    text = f"{head}:\n\n{compaction.summary}"
    return Item(user(Text(text)), seq, 0, pinned=True)
