"""Sessions, entries and calls as JSON. Evidence is never included."""

from __future__ import annotations

from typing import Any

import msgspec

from oakleaf.core.entries import CUT_OFF_FINISHES, INTERRUPTED, PARTIAL, Entry
from oakleaf.core.messages import Media, Message, Reasoning, Text, ToolResult
from oakleaf.core.tree_text import describe_entry, one_line
from oakleaf.core.usage import Call
from oakleaf.stores.base import SessionRow
from oakleaf_server.truncate import LINE

SCHEMA_VERSION = 1
PUBLIC_TEXT = 200_000
_MAX_TEXT = 2 * LINE
PUBLIC_ROW = ("id", "heading", "title", "agent", "status", "turns", "started_at", "updated_at", "facts")


def to_json(value: Any) -> Any:
    """Convert a value to plain JSON types."""
    return msgspec.to_builtins(value)


def row_view(row: SessionRow, heading: str) -> dict[str, Any]:
    data: dict[str, Any] = to_json(row)
    return {"id": data.pop("session_id"), "heading": heading, **data}


def public_row(view: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a session for clients."""
    return {name: view[name] for name in PUBLIC_ROW}


def entry_view(entry: Entry) -> dict[str, Any]:
    return {
        "branch": entry.branch,
        "seq": entry.seq,
        "entry_id": entry.entry_id.hex(),
        "turn": entry.turn,
        "step": entry.step,
        "kind": entry.kind,
        "role": entry.role,
        "internal": entry.internal,
        "at": entry.at,
        "model": entry.model,
        "finish": entry.finish,
        "payload": to_json(entry.payload),
    }


def client_entry(entry: Entry) -> dict[str, Any]:
    """Return an entry for clients: role and text, without reasoning."""
    text = entry.message.text if entry.message is not None else ""
    view: dict[str, Any] = {"seq": entry.seq, "role": entry.role, "at": entry.at, "text": text[:PUBLIC_TEXT]}
    return view if len(text) <= PUBLIC_TEXT else {**view, "omitted_chars": len(text) - PUBLIC_TEXT}


def call_view(call: Call) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "provider": call.provider,
        "model": call.model,
        "purpose": call.purpose,
        "bucket": call.bucket,
        "after_seq": call.after_seq,
        "answer_seq": call.answer_seq,
        "usage": to_json(call.usage),
        "cost_microcents": None if call.price is None else call.price.microcents,
        "failed": call.failed,
        "at": call.at,
    }


# -- one line --------------------------------------------------------------------------------------


def line_view(entry: Entry) -> dict[str, Any]:
    return {
        "branch": entry.branch,
        "seq": entry.seq,
        "turn": entry.turn,
        "step": entry.step,
        "kind": entry.kind,
        "role": entry.role,
        "text": one_line(describe_entry(_shorten(entry))),
        "flags": entry_flags(entry),
        "internal": entry.internal,
        "at": entry.at,
    }


def _shorten(entry: Entry) -> Entry:
    """Shorten the text before the formatting as a line."""
    message = entry.message
    if message is None:
        return entry
    parts = tuple(map(_short, message.parts[:20]))
    return msgspec.structs.replace(entry, payload=Message(message.role, parts))


def _short(part: Any) -> Any:
    match part:
        case Text(text=text):
            return Text(text[:_MAX_TEXT])
        case ToolResult(content=content):
            return msgspec.structs.replace(part, content=tuple(map(_short, content[:5])), details=None)
    return part


_FINISHES = {
    "cancelled": "cancelled",
    INTERRUPTED: "interrupted",
    PARTIAL: "interrupted",
    "error": "error",
    **dict.fromkeys(CUT_OFF_FINISHES, "cut_off"),
}


FAILURES = frozenset(["error", "unknown", "interrupted", "cut_off"])
"""Outcomes of tool calls and of answers that count as failures. A denied call is a decision."""


def entry_failures(entry: Entry) -> list[str]:
    """Return the failures of an entry: of tool calls, and of the answer itself."""
    results = entry.message.results if entry.message is not None else ()
    outcomes = [_outcome(result) for result in results] + [_FINISHES.get(entry.finish or "", "")]
    return [outcome for outcome in outcomes if outcome in FAILURES]


def _outcome(result: ToolResult) -> str:
    return "error" if result.error and result.outcome == "done" else result.outcome


def entry_flags(entry: Entry) -> list[str]:
    """Return short flags such as input, calls or error."""
    flags = ["input"] if entry.turn and entry.turn == entry.seq else []
    message = entry.message
    if message is None:
        return flags
    flags += ["calls"] if message.calls else []
    flags += ["result"] if message.results else []
    flags += [outcome for outcome in map(_outcome, message.results) if outcome != "done"]
    flags += [_FINISHES[entry.finish]] if entry.finish in _FINISHES else []
    flags += ["reasoning"] if any(isinstance(part, Reasoning) for part in message.parts) else []
    flags += ["media"] if any(isinstance(piece, Media) for piece in message.media) else []
    return list(dict.fromkeys(flags))
