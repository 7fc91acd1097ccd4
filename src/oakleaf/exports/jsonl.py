"""Export JSON Lines: one object per entry of a path, or one per event. docs/exports.md lists the fields.

Each line carries the schema version, so that it can be read without the others. Does not know stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from oakleaf.core.codec import from_json
from oakleaf.core.entries import Entry, Unknown
from oakleaf.core.log_events import log_events

SCHEMA_VERSION = 1


def entry_lines(session_id: str, entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        payload = entry.payload
        line = {
            "schema_version": SCHEMA_VERSION,
            "session_id": session_id,
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
            "payload": from_json(payload.body) if isinstance(payload, Unknown) else payload,
        }
        yield _to_line(line)


def event_lines(session_id: str, entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the five event types; a message without calls is one line, every call and result one more."""
    for event in log_events(entries):
        head = {"schema_version": SCHEMA_VERSION, "session_id": session_id}
        yield _to_line({**head, **msgspec.structs.asdict(event)})


def _to_line(line: object) -> str:
    return msgspec.json.encode(line).decode() + "\n"
