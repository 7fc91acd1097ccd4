"""A path on its way out: read page by page, without evidence, and redacted once more if asked.

Knows what no export may hold. Does not know any format. What is durable was redacted when it was written; doing it
again hides what has become known as a secret since. Ids and names of tools are left alone by the redactor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from ...core.codec import from_json, to_json
from ...core.entries import Entry, Payload, Unknown
from ...core.redact import Redactor
from ...log.log import Log

PAGE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def path_entries(log: Log, since: int = 0) -> Iterator[Entry]:
    """The entries of the path behind `since`, a page at a time: entries never change, so the pages fit together."""
    leaf = log.leaf
    for first in range(since + 1, leaf.seq + 1, PAGE):
        last = min(first + PAGE - 1, leaf.seq)
        yield from log.store.path(log.session_id, leaf=leaf, first=first, last=last).entries


def redact_entries(entries: Iterable[Entry], redactor: Redactor | None) -> Iterator[Entry]:
    """The same entries as they may leave: never with evidence; with a redactor, without what it hides."""
    for entry in entries:
        payload = entry.payload if redactor is None else _hidden(entry.payload, redactor)
        yield replace(entry, payload=payload, evidence=None)


def _hidden(payload: Payload, redactor: Redactor) -> Payload:
    if isinstance(payload, Unknown):
        return Unknown(payload.kind, to_json(redactor.redact_json(from_json(payload.body)), payload.kind))
    return redactor.redact_payload(payload)


def iso(at: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, exactly."""
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
