"""Read events of Google's ADK as its session services store them: contents in Gemini's shape, usage, compactions.

This module does not know tables, sessions or ADK's own classes.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from oakleaf.core.entries import Evidence, Note
from oakleaf.core.messages import Message
from oakleaf.core.usage import Usage
from oakleaf.ingest.records import EntryRecord, LossReport, unknown_note
from oakleaf.wire import PROVIDERS
from oakleaf.wire.gemini import NAME
from oakleaf.wire.gemini.parse import parse_reply
from oakleaf_importers.formats.json_values import (
    UNEXPECTED_SHAPE,
    gemini_signature,
    json_object,
    parse_time,
    text_or_none,
)

Event = dict[str, Any]
GENERATED_ID = "adk-"
"""The prefix of ids that ADK gives to calls for which the model named none. Gemini never sees them."""


def read_event(event: Event, at: int | None, losses: LossReport) -> list[EntryRecord]:
    """Convert an event: messages, an answer, or a note of an error or of an unknown kind."""
    content = json_object(event.get("content"))
    author = text_or_none(event.get("author"))
    try:
        if content.get("parts") and content.get("role") == "model":
            return [_read_answer(event, content, author, at)]
        if content.get("parts"):
            messages = PROVIDERS[NAME].parse_messages([content])
            return [EntryRecord(_with_author(message, author), at=at) for message in messages]
    except UNEXPECTED_SHAPE as error:
        note = unknown_note("adk", error, event, losses)
        model = text_or_none(event.get("model_version"))
        return [EntryRecord(note, at=at, model=model, provider=NAME, usage=read_usage(event))]
    if event.get("error_code") or event.get("error_message"):
        error_text = str(event.get("error_message") or event["error_code"])
        return [
            EntryRecord(Note({"adk": "a failed answer", "error": error_text}), at=at, usage=read_usage(event))
        ]
    return []


def _read_answer(event: Event, content: Event, author: str | None, at: int | None) -> EntryRecord:
    answer = parse_reply({"candidates": [{"content": content}]})
    return EntryRecord(
        _with_author(answer.message, author),
        at=at,
        model=text_or_none(event.get("model_version")),
        provider=NAME,
        finish=text_or_none(event.get("finish_reason")),
        evidence=None if answer.evidence is None else gemini_evidence(answer.evidence),
        usage=read_usage(event),
    )


def _with_author(message: Message, author: str | None) -> Message:
    """Keep the name of the agent in `details`, invisible to models."""
    return replace(message, details={"author": author}) if author and author != "user" else message


def gemini_evidence(evidence: Evidence) -> Evidence | None:
    """Return the evidence as Gemini issued the evidence, without ADK's generated ids."""
    parts: dict[str, dict[str, Any]] = {}
    for index, proof in evidence.parts.items():
        signature, item_id = gemini_signature(proof.get("signature")), text_or_none(proof.get("id"))
        issued = {"signature": signature} if signature else {}
        if item_id and not item_id.startswith(GENERATED_ID):
            issued["id"] = item_id
        if issued:
            parts[index] = issued
    return Evidence(evidence.issuer, parts) if parts else None


def read_usage(event: Event) -> Usage | None:
    metadata = json_object(event.get("usage_metadata"))
    if not metadata:
        return None
    try:
        return parse_reply({"parts": [], "role": "model", "usage_metadata": metadata}).usage
    except UNEXPECTED_SHAPE:
        return None


def read_compaction(actions: Event) -> tuple[str, int | None]:
    """Return the summary of a compaction, empty without a compaction, and the end of the summarised time."""
    compaction = json_object(actions.get("compaction"))
    parts = json_object(compaction.get("compacted_content")).get("parts")
    texts = [text_or_none(json_object(part).get("text")) for part in parts] if isinstance(parts, list) else []
    return "\n\n".join(text for text in texts if text), parse_time(compaction.get("end_timestamp"))
