"""Google's ADK: a SQLite file of its sessions, as `DatabaseSessionService` and `SqliteSessionService` write it.

Knows events: contents in Gemini's shape, state changes, compactions, rewinds. An older file keeps what an event did as a
pickle, which is not opened; its state is taken as it was last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from ...core.entries import Compaction, Evidence, Note
from ...core.messages import Message
from ...core.state import State, merge_state
from ...core.usage import Usage
from ...formats.jsonl import INVALID_JSON, UNEXPECTED_SHAPE, gemini_signature, parse_time, text_or_none
from ...formats.records import START, EntryRecord, LossReport, SessionRecord, patches
from ...wire.gemini.request import parse_messages, parse_reply
from .sqlite_files import Row, Tables, tables

OLDER = ("content", "usage_metadata", "error_code", "error_message", "branch", "author")
"""What an older file keeps in columns of its own."""


def sessions(place: str) -> Iterator[SessionRecord]:
    with tables(place, "adk", "events") as found:
        for row in found.rows("sessions"):
            if all(isinstance(row.get(name), str) for name in ("app_name", "user_id", "id")):
                told = Reading(found, row)
                if told.told:
                    yield told.foreign()


def _object(value: object) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    except (*INVALID_JSON, UnicodeEncodeError):
        found = None
    return found if isinstance(found, dict) else {}


class Reading:
    """One session."""

    def __init__(self, found: Tables, row: Row) -> None:
        self.found, self.row = found, row
        self.losses = LossReport()
        self.told: list[EntryRecord] = []
        self.state: State = {}
        self._tip = START
        self._before: dict[str, str] = {}
        """By an invocation the key of what stood before it."""
        self._times: list[tuple[str, int]] = []
        where = "app_name = ? and user_id = ? and session_id = ?"
        for event in found.rows("events", where, row["app_name"], row["user_id"], row["id"]):
            self._read(event)
        self._settle()

    def foreign(self) -> SessionRecord:
        app, user = str(self.row["app_name"]), str(self.row["user_id"])
        name = ":".join(quote(part, safe="@ ") for part in (app, user, str(self.row["id"])))
        return SessionRecord(
            "adk",
            name,
            tuple(self.told),
            leaf=self._tip,
            agent=text_or_none(app),
            started_at=parse_time(self.row.get("create_time")),
            tags={key: value for key, value in (("app", app), ("user", user)) if value.strip()},
            losses=self.losses,
        )

    def _read(self, row: Row) -> None:
        event = _object(row.get("event_data"))
        if "event_data" not in row:
            event = {name: row.get(name) for name in OLDER}
            event |= {name: _object(event[name]) for name in ("content", "usage_metadata")}
            if row.get("actions"):
                self.losses.add("what an event did, kept as a pickle", str(row.get("id")))
        at = parse_time(event.get("timestamp")) or parse_time(row.get("timestamp"))
        invocation = row.get("invocation_id")
        if isinstance(invocation, str):
            self._before.setdefault(invocation, self._tip)
        actions = _object(event.get("actions"))
        self._count_lost(event, actions)
        self._rewind(actions.get("rewind_before_invocation_id"))
        self._tell_content(event, at)
        self._compact(_object(actions.get("compaction")), at)
        self._change(_object(actions.get("state_delta")), at)

    def _count_lost(self, event: Row, actions: Row) -> None:
        if _object(actions.get("artifact_delta")):
            self.losses.add(
                "an artifact, which lies elsewhere", ", ".join(_object(actions["artifact_delta"]))
            )
        if event.get("branch"):
            self.losses.add("an agent's own view of the history; told in one line", str(event["branch"]))

    # -- content -----------------------------------------------------------------------------------

    def _tell_content(self, event: Row, at: int | None) -> None:
        content = _object(event.get("content"))
        author = text_or_none(event.get("author"))
        if content.get("parts") and (content.get("role") == "model"):
            self._answer(event, content, author, at)
        elif content.get("parts"):
            try:
                for message in parse_messages([content]):
                    self._add(EntryRecord(_by(message, author), at=at))
            except UNEXPECTED_SHAPE as error:
                self.losses.add("an event of no shape we know", str(error))
        elif event.get("error_code") or event.get("error_message"):
            why = {
                "adk": "an answer that failed",
                "error": str(event.get("error_message") or event["error_code"]),
            }
            self._add(EntryRecord(Note(why), at=at, usage=_usage(event)))

    def _answer(self, event: Row, content: Row, author: str | None, at: int | None) -> None:
        try:
            said = parse_reply({"candidates": [{"content": content}]})
        except UNEXPECTED_SHAPE as error:
            self.losses.add("an event of no shape we know", str(error))
            return
        evidence = None if said.evidence is None else _issued(said.evidence)
        made = EntryRecord(
            _by(said.message, author), at=at, evidence=evidence, usage=_usage(event), provider="gemini"
        )
        self._add(
            replace(
                made,
                model=text_or_none(event.get("model_version")),
                finish=text_or_none(event.get("finish_reason")),
            )
        )

    def _add(self, told: EntryRecord) -> None:
        key = str(len(self.told) + 1)
        self.told.append(replace(told, key=key, after=self._tip))
        self._tip = key
        if told.at is not None and isinstance(told.payload, Message):
            self._times.append((key, told.at))

    # -- what events do ----------------------------------------------------------------------------

    def _rewind(self, invocation: object) -> None:
        if isinstance(invocation, str) and invocation in self._before:
            self._tip = self._before[invocation]

    def _compact(self, compaction: Row, at: int | None) -> None:
        """Its summary stands for what lies up to its end; what came later is kept."""
        content, end = (
            _object(compaction.get("compacted_content")),
            parse_time(compaction.get("end_timestamp")),
        )
        parts = content.get("parts")
        texts = [text_or_none(_object(part).get("text")) for part in parts] if isinstance(parts, list) else []
        summary = "\n\n".join(said for said in texts if said)
        if summary:
            first = next((key for key, told_at in self._times if end is not None and told_at > end), None)
            self._add(EntryRecord(Compaction(summary, 0), refers_to=first, at=at))

    def _change(self, delta: State, at: int | None) -> None:
        delta = {name: value for name, value in delta.items() if not name.startswith("temp:")}
        for patch in patches(self.state, delta):
            self.state = merge_state(self.state, patch)
            self._add(EntryRecord(Note(state=patch), at=at))

    def _settle(self) -> None:
        """What the state holds beside all changes: what it began with, and what the app's and the user's sessions share."""
        app, user = self.row["app_name"], self.row["user_id"]
        final = _object(self.row.get("state"))
        shared = self.found.row("app_states", "app_name = ?", app)
        own = self.found.row("user_states", "app_name = ? and user_id = ?", app, user)
        final |= {f"app:{name}": value for name, value in _object(shared.get("state")).items()}
        final |= {f"user:{name}": value for name, value in _object(own.get("state")).items()}
        other = {name: value for name, value in final.items() if self.state.get(name) != value}
        if self.told:
            self._change(other, None)
        wrong = [name for name, value in final.items() if value is not None and self.state.get(name) != value]
        if wrong:
            self.losses.add("a value of the state that holds null", ", ".join(wrong), len(wrong))


def _by(message: Message, author: str | None) -> Message:
    """Which agent said it is for the host."""
    return replace(message, details={"author": author}) if author and author != "user" else message


def _issued(evidence: Evidence) -> Evidence | None:
    """As Gemini gave it: ADK names calls itself where the model did not."""
    found: dict[str, dict[str, Any]] = {}
    for index, proof in evidence.parts.items():
        signed, named = gemini_signature(proof.get("signature")), text_or_none(proof.get("id"))
        kept = {"signature": signed} if signed else {}
        if named and not named.startswith("adk-"):
            kept["id"] = named
        if kept:
            found[index] = kept
    return Evidence(evidence.issuer, found) if found else None


def _usage(event: Row) -> Usage | None:
    told = _object(event.get("usage_metadata"))
    if not told:
        return None
    try:
        return parse_reply({"parts": [], "role": "model", "usage_metadata": told}).usage
    except UNEXPECTED_SHAPE:
        return None
