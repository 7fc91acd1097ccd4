"""Prepare entries for others: without evidence, and redacted again if requested.

Stored content was redacted when it was written; redacting again hides what has become known as a secret since. The
redactor leaves ids and tool names alone. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.entries import Entry, Payload, Unknown
from oakleaf.core.redact import Redactor


def redact_entries(entries: Iterable[Entry], redactor: Redactor | None) -> Iterator[Entry]:
    """Yield the entries without evidence and, with a redactor, without secrets."""
    for entry in entries:
        payload = entry.payload if redactor is None else _redact(entry.payload, redactor)
        yield replace(entry, payload=payload, evidence=None)


def _redact(payload: Payload, redactor: Redactor) -> Payload:
    if isinstance(payload, Unknown):
        return Unknown(payload.kind, to_json(redactor.redact_json(from_json(payload.body)), payload.kind))
    return redactor.redact_payload(payload)
