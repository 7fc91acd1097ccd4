"""Import Google's ADK: a SQLite file written by `DatabaseSessionService` or `SqliteSessionService`.

Older files store the actions of an event as a pickle, which is not opened; only their final state is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from urllib.parse import quote

from oakleaf.core.entries import Compaction, Note
from oakleaf.core.messages import Message
from oakleaf.core.state import State, merge_state
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import EntryRecord, SessionRecord, patches
from oakleaf_importers.formats.adk import Event, read_compaction, read_event
from oakleaf_importers.formats.json_values import json_object, known_texts, parse_time, text_or_none
from oakleaf_importers.session_records import EntryTree
from oakleaf_importers.sqlite_files import Row, SourceTables, open_tables

OLD_COLUMNS = ("content", "usage_metadata", "error_code", "error_message", "branch", "author")
"""The columns that held an event before `event_data` did."""


def read_sessions(source: str) -> Iterator[SessionRecord]:
    with open_tables(source, "adk", "events") as tables:
        for row in tables.rows("sessions"):
            if all(isinstance(row.get(name), str) for name in ("app_name", "user_id", "id")):
                session = AdkSession(tables, row)
                if session.entries:
                    yield session.record()


IMPORTER = Importer(
    source="a SQLite file of ADK's sessions",
    sessions=read_sessions,
    versions="2.13",
    checked=date(2026, 11, 19),
)


class AdkSession(EntryTree):
    """Reads one session: events, compactions, rewinds and state changes."""

    def __init__(self, tables: SourceTables, row: Row) -> None:
        super().__init__("adk")
        self.tables, self.row = tables, row
        self.state: State = {}
        self._tip_before: dict[str, str] = {}
        """By invocation id: the key of the entry before its first event."""
        self._message_times: list[tuple[str, int]] = []
        condition = "app_name = ? and user_id = ? and session_id = ?"
        for event in tables.rows("events", condition, row["app_name"], row["user_id"], row["id"]):
            self._add_event(event)
        self._add_final_state()

    def record(self) -> SessionRecord:
        app, user = str(self.row["app_name"]), str(self.row["user_id"])
        return self.to_record(
            ":".join(quote(part, safe="@ ") for part in (app, user, str(self.row["id"]))),
            conversation_id=str(self.row["id"]),
            agent=text_or_none(app),
            started_at=parse_time(self.row.get("create_time")),
            tags=known_texts(app=app, user=user),
            missing=("system prompt", "tool definitions", "options"),
        )

    def _add_event(self, row: Row) -> None:
        event = json_object(row.get("event_data"))
        if "event_data" not in row:
            event = {name: row.get(name) for name in OLD_COLUMNS}
            if row.get("actions"):
                self.losses.add("the actions of an event, stored as a pickle", str(row.get("id")))
        at = parse_time(event.get("timestamp")) or parse_time(row.get("timestamp"))
        invocation = row.get("invocation_id")
        if isinstance(invocation, str):
            self._tip_before.setdefault(invocation, self.tip)
        actions = json_object(event.get("actions"))
        self._count_losses(event, actions)
        rewind = actions.get("rewind_before_invocation_id")
        if isinstance(rewind, str) and rewind in self._tip_before:
            self.tip = self._tip_before[rewind]
        for entry in read_event(event, at, self.losses):
            self._add(entry)
        self._add_compaction(actions, at)
        self._change_state(json_object(actions.get("state_delta")), at)

    def _count_losses(self, event: Event, actions: Event) -> None:
        artifacts = json_object(actions.get("artifact_delta"))
        if artifacts:
            self.losses.add("an artifact, which is stored elsewhere", ", ".join(artifacts))
        if event.get("branch"):
            description = "the separate history of an agent branch; imported into one path"
            self.losses.add(description, str(event["branch"]))

    def _add(self, entry: EntryRecord) -> None:
        key = self.append(entry)
        if entry.at is not None and isinstance(entry.payload, Message):
            self._message_times.append((key, entry.at))

    def _add_compaction(self, actions: Event, at: int | None) -> None:
        """The summary replaces the messages up to its end; later messages are kept."""
        summary, end = read_compaction(actions)
        if summary:
            later = (key for key, time in self._message_times if end is not None and time > end)
            self._add(EntryRecord(Compaction(summary, 0), refers_to=next(later, None), at=at))

    def _change_state(self, delta: State, at: int | None) -> None:
        delta = {name: value for name, value in delta.items() if not name.startswith("temp:")}
        for patch in patches(self.state, delta):
            self.state = merge_state(self.state, patch)
            self._add(EntryRecord(Note(state=patch), at=at))

    def _add_final_state(self) -> None:
        """Add values no event set: the initial state, and the state shared by the app's and the user's sessions."""
        app, user = self.row["app_name"], self.row["user_id"]
        final = json_object(self.row.get("state"))
        app_state = self.tables.row("app_states", "app_name = ?", app)
        user_state = self.tables.row("user_states", "app_name = ? and user_id = ?", app, user)
        final |= {f"app:{name}": value for name, value in json_object(app_state.get("state")).items()}
        final |= {f"user:{name}": value for name, value in json_object(user_state.get("state")).items()}
        missing = {name: value for name, value in final.items() if self.state.get(name) != value}
        if self.entries:
            self._change_state(missing, None)
        wrong = [name for name, value in final.items() if value is not None and self.state.get(name) != value]
        if wrong:
            self.losses.add("a state value that is null", ", ".join(wrong), len(wrong))
