"""Export JSON Lines: one object per entry of a path, or one per event. docs/exports.md lists the fields.

Each line carries the schema version, so that it can be read without the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from oakleaf import Session
from oakleaf.core.codec import from_json
from oakleaf.core.entries import Entry, Unknown
from oakleaf.core.log_events import log_events
from oakleaf.core.redact_entries import redact_entries
from oakleaf.errors import InvalidArgument
from oakleaf.exports.values import PathOptions, redactor_of
from oakleaf.ext import Exporter, read

SCHEMA_VERSION = 1


class EventOptions(PathOptions, frozen=True, kw_only=True):
    """The part of the path to write."""

    since: int = 0
    """Only what comes after this entry."""


class Options(EventOptions, frozen=True, kw_only=True):
    """The entries to write."""

    what: str = "path"
    """Those of the path, or those of all branches that the session owns."""

    def __post_init__(self) -> None:
        if self.what not in ("path", "all"):
            raise InvalidArgument("what", self.what, "path or all")


def write(session: Session, to: BinaryIO, options: Options) -> None:
    """Write entries, a JSON object per line."""
    for line in entry_lines(session.session_id, _entries(session, options)):
        to.write(line.encode())


def _entries(session: Session, options: Options) -> Iterator[Entry]:
    if options.what == "path":
        return read(session).shared_entries(options.since, redact=options.redact)
    own = (entry for entry in session.entries() if entry.seq > options.since)
    return redact_entries(own, redactor_of(session, options))


def write_events(session: Session, to: BinaryIO, options: EventOptions) -> None:
    """Write the path as events, a JSON object per line."""
    path = read(session).shared_entries(options.since, redact=options.redact)
    for line in event_lines(session.session_id, path):
        to.write(line.encode())


EXPORTER = Exporter(suffix=".jsonl", write=write, options=Options)
EVENTS = Exporter(suffix=".jsonl", write=write_events, options=EventOptions)


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
    """Yield the five event types; a message without calls is a line, every call and result another."""
    for event in log_events(entries):
        head = {"schema_version": SCHEMA_VERSION, "session_id": session_id}
        yield _to_line({**head, **msgspec.structs.asdict(event)})


def _to_line(line: object) -> str:
    return msgspec.json.encode(line).decode() + "\n"
