"""What importers share: a list of entries under construction, and sessions with the sub-agents they started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from oakleaf.core.entries import Payload
from oakleaf.core.usage import Usage
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, unknown_note

NEWER_FORMAT = "a format newer than the importer knows; update oakleaf-importers, and see with --report what was understood"
MAX_TASK_DEPTH = 20
"""Sub-agents nested deeper become sessions of their own."""

K = TypeVar("K")


class EntryList:
    """The entries of one session during reading, numbered from 1, and the losses."""

    def __init__(self, tool: str, losses: LossReport | None = None) -> None:
        self.tool = tool
        self.losses = LossReport() if losses is None else losses
        self.entries: list[EntryRecord] = []

    def add(self, payload: Payload, at: int | None, *, key: str | None = None, **more: Any) -> str:
        """Add an entry and return the key; `more` are fields of `EntryRecord`."""
        return self.append(EntryRecord(payload, key, at=at, **more))

    def append(self, entry: EntryRecord) -> str:
        """Append an entry under the given key, or under the next number; return the key."""
        key = entry.key or str(len(self.entries) + 1)
        self.entries.append(replace(entry, key=key))
        return key

    def add_unknown(self, kind: object, item: object, at: int | None, **more: Any) -> str:
        """Add a note with an item of an unknown kind, and count the item."""
        return self.add(unknown_note(self.tool, kind, item, self.losses), at, **more)

    def to_record(self, source: str, **about: Any) -> SessionRecord:
        """Return the session; `about` are further fields of `SessionRecord`."""
        return SessionRecord(self.tool, source, tuple(self.entries), losses=self.losses, **about)

    def add_total_usage(self, usage: Usage, provider: str | None, call_id: str) -> None:
        """Add the tokens of all calls to the first answer, for a tool with sums only."""
        for index, entry in enumerate(self.entries):
            if entry.is_answer:
                self.entries[index] = replace(entry, usage=usage, provider=provider, call_id=call_id)
                return
        self.losses.add("the tokens of a session without an answer")


class EntryTree(EntryList):
    """The same for a session with branches: each entry follows the entry at `tip`."""

    def __init__(self, tool: str, losses: LossReport | None = None) -> None:
        super().__init__(tool, losses)
        self.tip = START

    def append(self, entry: EntryRecord) -> str:
        self.tip = super().append(replace(entry, after=self.tip))
        return self.tip

    def to_record(self, source: str, **about: Any) -> SessionRecord:
        return super().to_record(source, leaf=self.tip if self.entries else None, **about)


def with_tasks(
    parents: Mapping[K, K | None], read: Callable[[K, tuple[SessionRecord, ...]], SessionRecord | None]
) -> Iterator[SessionRecord]:
    """Yield every session with the tasks. `parents` names the session that started each, `read` converts one."""
    children: dict[K, list[K]] = {}
    for key, parent in parents.items():
        if parent is not None and parent in parents and parent != key:
            children.setdefault(parent, []).append(key)
    visited: set[K] = set()

    def read_with_tasks(key: K, depth: int = 0) -> SessionRecord | None:
        visited.add(key)
        own = children.get(key, ()) if depth < MAX_TASK_DEPTH else ()
        tasks = [read_with_tasks(child, depth + 1) for child in own if child not in visited]
        return read(key, tuple(task for task in tasks if task is not None))

    tasks = {child for own in children.values() for child in own}
    for key in (*(key for key in parents if key not in tasks), *parents):  # a circle of parents has no root
        if key not in visited:
            record = read_with_tasks(key)
            if record is not None:
                yield record


def note_newer(losses: LossReport, version: object, known: int) -> None:
    """Count a format newer than the importer."""
    if type(version) is int and version > known:
        losses.add(NEWER_FORMAT, f"version {version}; known is {known}")


def without_empty(sessions: Iterable[SessionRecord]) -> Iterator[SessionRecord]:
    return (session for session in sessions if not session.is_empty)


def with_source_losses(
    tool: str, sessions: Iterable[SessionRecord], losses: LossReport
) -> Iterator[SessionRecord]:
    """Yield the sessions; move `losses`, filled by the reader, to a session or to an empty session."""
    last: SessionRecord | None = None
    for session in sessions:
        if last is not None:
            yield last
        losses.move_to(session.losses)
        last = session
    if last is None and losses:
        last = SessionRecord(tool, "unreadable", ())
    if last is not None:
        losses.move_to(last.losses)
        yield last
