"""Read a path for export page by page, without evidence, and redacted again if requested.

Stored content was redacted when it was written; redacting again hides what has become known as a secret since. The
redactor leaves ids and tool names alone. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.entries import Entry, Payload, Unknown
from oakleaf.core.messages import Text, ToolResult
from oakleaf.core.redact import Redactor
from oakleaf.log.log import Log

PAGE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def path_entries(log: Log, since: int = 0) -> Iterator[Entry]:
    """Yield the entries of the path after `since`, page by page. Entries never change, so the pages fit together."""
    leaf = log.leaf
    for first in range(since + 1, leaf.seq + 1, PAGE):
        last = min(first + PAGE - 1, leaf.seq)
        yield from log.store.path(log.session_id, leaf=leaf, first=first, last=last).entries


def redact_entries(entries: Iterable[Entry], redactor: Redactor | None) -> Iterator[Entry]:
    """Yield the entries without evidence and, with a redactor, without secrets."""
    for entry in entries:
        payload = entry.payload if redactor is None else _redact(entry.payload, redactor)
        yield replace(entry, payload=payload, evidence=None)


def _redact(payload: Payload, redactor: Redactor) -> Payload:
    if isinstance(payload, Unknown):
        return Unknown(payload.kind, to_json(redactor.redact_json(from_json(payload.body)), payload.kind))
    return redactor.redact_payload(payload)


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def result_text(result: ToolResult) -> str:
    return "\n".join(piece.text for piece in result.content if isinstance(piece, Text))


def iso(at: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC, exactly."""
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
