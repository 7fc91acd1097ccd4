"""Entries: what results say of them, and what people read of one.

A result may come back from JSON, with long texts cut: what people read is made from the view alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from oakleaf.core.codec import to_json
from oakleaf.core.entries import INTERRUPTED, KINDS, PARTIAL, Entry, Payload, Unknown
from oakleaf.core.messages import (
    Media,
    Message,
    Outcome,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.core.tree_text import describe_entry
from oakleaf.core.typed_json import converter
from oakleaf.ext import SessionReader
from oakleaf.verbs.screen import Screen, columns, safe, style

MAX_RESULT_LINES = 12
"""Lines of a tool's result that a transcript shows."""
NUMBERED = 2_000
"""Entries of a path whose turns are numbered when only a part of it is read."""
_INDENT = " " * 6
_ROLES = {"user": "cyan", "assistant": "green", "tool": "magenta", "system": "blue"}
_OUTCOMES: dict[Outcome, str] = {
    "unknown": "outcome unknown",
    "denied": "denied",
    "interrupted": "interrupted",
    "dry_run": "dry run",
    "not_recorded": "not recorded",
}


class EntryView(Struct, frozen=True, kw_only=True):
    """An entry of a session, without what only its provider can read."""

    branch: int
    seq: int
    entry_id: str
    turn: int
    """The seq of the input it answers; 0 for seeds and entries between turns."""
    number: int | None = None
    """The number of the turn that begins here, counted from 1."""
    step: int
    kind: str
    role: str | None
    internal: bool
    at: int
    model: str | None
    finish: str | None
    payload: dict[str, Any]


def entry_view(entry: Entry, number: int | None = None) -> EntryView:
    return EntryView(
        branch=entry.branch,
        seq=entry.seq,
        entry_id=entry.entry_id.hex(),
        turn=entry.turn,
        number=number,
        step=entry.step,
        kind=entry.kind,
        role=entry.role,
        internal=entry.internal,
        at=entry.at,
        model=entry.model,
        finish=entry.finish,
        payload=msgspec.to_builtins(entry.payload),
    )


def path_views(reader: SessionReader, entries: list[Entry]) -> list[EntryView]:
    """Return a part of a path. Its turns are numbered if no long path must be read for that."""
    if not entries:
        return []
    if entries[0].seq == 1:
        before = 0
    elif reader.leaf.seq <= NUMBERED:
        before = sum(seq < entries[0].seq for seq in reader.inputs())
    else:
        return [entry_view(entry) for entry in entries]
    return list(_numbered(entries, before))


def turn_number(reader: SessionReader, entry: Entry) -> int | None:
    """Return the number of an entry's turn; None between turns, and where a long path must be read to count."""
    if not entry.turn or reader.leaf.seq > NUMBERED:
        return None
    return sum(seq <= entry.turn for seq in reader.inputs())


def _numbered(entries: Iterable[Entry], before: int) -> Iterator[EntryView]:
    for entry in entries:
        before += entry.is_input
        yield entry_view(entry, before if entry.is_input else None)


_to_payload = {name: converter(kind) for name, kind in KINDS.items()}


def as_entry(view: EntryView) -> Entry:
    """Return the entry behind a view, as far as people read it."""
    payload: Payload = Unknown(view.kind, b"")
    if view.kind in _to_payload:
        payload = _to_payload[view.kind](view.payload)
    return Entry(
        branch=view.branch,
        seq=view.seq,
        entry_id=b"",
        turn=view.turn,
        step=view.step,
        payload=payload,
        internal=view.internal,
        at=view.at,
        model=view.model,
        finish=view.finish,
    )


# -- what people read --------------------------------------------------------------------------------------


def transcript_lines(views: Iterable[EntryView], screen: Screen, *, full: bool, trace: bool) -> Iterator[str]:
    """Yield the messages of a path under their roles; with `trace` the other entries too."""
    for view in views:
        if trace or view.kind == "message":
            yield from entry_lines(view, screen, full=full)


def entry_lines(view: EntryView, screen: Screen, *, full: bool) -> Iterator[str]:
    entry = as_entry(view)
    seq, name = style(f"{view.seq:>5}", "dim"), view.role or view.kind
    if entry.message is None:
        yield f"{seq} {style(screen.fit(f'{name}: {describe_entry(entry)}', len(_INDENT)), 'dim')}"
        return
    facts = [f"turn {view.number}" if view.number else None, screen.time(view.at) if view.number else None]
    known = " · ".join(safe(fact) for fact in [*facts, view.model] if fact)
    after = style(f"  {known}", "dim") if known else ""
    if view.finish in (INTERRUPTED, PARTIAL):
        after += style("  interrupted", "yellow")
    yield ""
    yield f"{seq} {style(safe(name), *role_colour(name), 'bold')}{after}"
    yield from message_lines(entry.message, screen, full=full)


def role_colour(name: str) -> list[str]:
    return [_ROLES[name]] if name in _ROLES else []


def message_lines(message: Message, screen: Screen, *, full: bool) -> Iterator[str]:
    """Yield the parts of a message, indented."""
    for part in message.parts:
        yield from ((_INDENT + line).rstrip() for line in _part_lines(part, screen, full=full))


def _part_lines(part: object, screen: Screen, *, full: bool) -> Iterator[str]:
    match part:
        case Text(text=text):
            yield from _wrapped(text, screen)
        case Reasoning(text=text) if text:
            yield from _dimmed(text if full else "(reasoning)", screen)
        case ProviderBlock(stub=stub):
            yield from _dimmed(stub if full else stub.partition("\n")[0], screen)
        case ToolCall(name=name, arguments=arguments):
            text = f"{safe(name)} {safe(to_json(arguments, name).decode())}"
            first, *rest = screen.wrap(text, len(_INDENT) + 2) or [""]
            end = first.partition(" ")
            yield f"{style('→', 'yellow')} {style(end[0], 'bold')}{end[1]}{end[2]}"
            yield from (f"  {line}" for line in rest)
        case ToolResult() as result:
            yield from _result_lines(result, screen, full=full)
        case Media(mime=mime, size=size, name=name):
            yield style(f"[{safe(name or 'media')}: {safe(mime)}, {size:,} bytes]", "dim")


def _wrapped(text: str, screen: Screen, indent: int = len(_INDENT)) -> list[str]:
    return screen.wrap(safe(text), indent)


def _dimmed(text: str, screen: Screen) -> Iterator[str]:
    return (style(line, "dim") for line in _wrapped(text, screen))


def _result_lines(result: ToolResult, screen: Screen, *, full: bool) -> Iterator[str]:
    marks = [_OUTCOMES.get(result.outcome, ""), "error" if result.error and result.outcome == "done" else ""]
    reused = (result.details or {}).get("reused")
    if isinstance(reused, dict):
        marks.append(f"reused from {reused.get('session')}@{reused.get('seq')}")
    marked = "".join(f"[{safe(mark)}] " for mark in marks if mark)
    text = "\n".join(piece.text for piece in result.content if isinstance(piece, Text))
    lines = screen.wrap(safe(text), len(_INDENT) + 2 + columns(marked)) or [""]
    visible = lines if full else lines[:MAX_RESULT_LINES]
    yield " ".join(filter(None, ["←", style(marked.strip(), "red"), visible[0]]))
    yield from (f"  {line}" for line in visible[1:])
    if len(visible) < len(lines):
        yield style(f"  … {len(lines) - len(visible)} more lines; use --full", "dim")
    for piece in result.content:
        if isinstance(piece, Media):
            yield style(f"  [{safe(piece.mime)}, {piece.size:,} bytes]", "dim")
