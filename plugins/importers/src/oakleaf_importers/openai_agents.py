"""Import OpenAI Agents: a SQLite file of its sessions with one Responses API item per row.

Reads both the plain and the advanced layout. In the advanced one a branch lists again the rows it shares with another, and
usage is stored per turn. Few rows name the model, and none says how a turn's tokens are distributed over its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

from msgspec.structs import replace

from oakleaf.core.entries import Note
from oakleaf.core.json_repair import INVALID_JSON
from oakleaf.core.messages import Message
from oakleaf.core.usage import Usage
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import START, EntryRecord, LossReport, SessionRecord, unknown_note
from oakleaf_importers.formats.json_values import as_dict, first_text, json_object, parse_time, token_counts
from oakleaf_importers.formats.jsonl import decode_json
from oakleaf_importers.formats.responses_items import AnswerBuilder, Item, is_input_item, read_input_item
from oakleaf_importers.sqlite_files import Row, SourceTables, open_tables

MESSAGES, STRUCTURE, USAGE = "agent_messages", "message_structure", "turn_usage"


def read_sessions(source: str) -> Iterator[SessionRecord]:
    with open_tables(source, "openai-agents", MESSAGES) as tables:
        session_rows = {row.get("session_id"): row for row in tables.rows("agent_sessions")}
        names = dict.fromkeys(row.get("session_id") for row in tables.rows(MESSAGES, order="id"))
        for name in names:
            if isinstance(name, str):
                yield AgentsSession(tables, name).record(session_rows.get(name, {}))


IMPORTER = Importer(
    source="a SQLite file of OpenAI Agents sessions",
    sessions=read_sessions,
    versions="0.24",
    checked=date(2026, 11, 19),
)


class AgentsSession:
    """Reads one session: items, branches, and the usage of turns."""

    def __init__(self, tables: SourceTables, name: str) -> None:
        self.tables, self.name = tables, name
        self.losses = LossReport()
        self.entries: dict[str, EntryRecord] = {}
        self._keys: dict[tuple[str, ...], str] = {}
        self.items = {
            row["id"]: (self._read_item(row), parse_time(row.get("created_at")))
            for row in tables.rows(MESSAGES, "session_id = ?", name, order="id")
            if isinstance(row.get("id"), int)
        }
        self.leaf = START
        newest = -1
        for branch, rows in self._branches().items():
            tip, last = self._add_branch(branch, rows)
            if last > newest:  # the current branch is not stored; take the one with the newest row
                self.leaf, newest = tip, last

    def record(self, row: Row) -> SessionRecord:
        return SessionRecord(
            "openai-agents",
            self.name,
            tuple(self.entries.values()),
            leaf=self.leaf,
            conversation_id=self.name,
            started_at=parse_time(row.get("created_at")),
            losses=self.losses,
            missing=("system prompt", "tool definitions", "options"),
        )

    def entry_key(self, after: str, *rows: int) -> str:
        """Return the key of the rows' entry after another: the same on every branch with the rows."""
        return self._keys.setdefault((after, *map(str, rows)), str(len(self._keys) + 1))

    def _read_item(self, row: Row) -> Item:
        data = row.get("message_data")
        try:
            item: Any = (
                decode_json(data.encode(), self.losses, f"row {row['id']}") if isinstance(data, str) else None
            )
        except (*INVALID_JSON, UnicodeEncodeError):
            item = None
        if not isinstance(item, dict):
            self.losses.misread("a row that is not a JSON object", f"row {row['id']}")
            return {}
        return item

    def _branches(self) -> dict[str, list[Row]]:
        """Return the rows of each branch in order, oldest branch first; a single branch for a plain file."""
        branches: dict[str, list[Row]] = {}
        listed = set()
        for row in self.tables.rows(STRUCTURE, "session_id = ?", self.name, order="sequence_number, id"):
            listed.add(row.get("message_id"))
            branches.setdefault(str(row.get("branch_id")), []).append(row)
        unlisted = [{"message_id": number, "id": number} for number in self.items if number not in listed]
        if listed and unlisted:
            self.losses.add("an item that is on no branch", count=len(unlisted))
        if not listed:
            return {"main": unlisted}
        first_ids = {name: min(_integer(row.get("id")) for row in rows) for name, rows in branches.items()}
        return {name: branches[name] for name in sorted(branches, key=lambda name: first_ids[name])}

    def _add_branch(self, name: str, rows: list[Row]) -> tuple[str, int]:
        """Add the new entries of a branch; return the key of the tip and the newest row id."""
        branch = AgentsBranch(self)
        for row in rows:
            item, at = self.items.get(row.get("message_id"), ({}, None))
            if item:
                branch.add(item, at, _integer(row.get("message_id")), _integer(row.get("user_turn_number")))
        branch.finish_answer()
        usage_rows = self.tables.rows(USAGE, "session_id = ? and branch_id = ?", self.name, name, order="id")
        for row in usage_rows:
            self._add_usage(branch, row)
        return branch.tip, max((_integer(row.get("id")) for row in rows), default=-1)

    def _add_usage(self, branch: AgentsBranch, row: Row) -> None:
        turn = row.get("user_turn_number")
        tokens = token_counts(row, ("input_tokens", "output_tokens"))
        key = branch.last_of_turn.get(_integer(turn))
        if tokens is None or key is None:
            self.losses.add("usage of a missing turn", str(turn))
            return
        if _integer(row.get("requests")) > 1:
            self.losses.add("how a turn's tokens are distributed over its model calls", str(turn))
        details = json_object(row.get("input_tokens_details"))
        cached = token_counts(details, ("cached_tokens",)) if details else None
        usage = Usage(tokens[0], tokens[1], cached[0] if cached else None)
        self.entries[key] = replace(self.entries[key], usage=usage)


class AgentsBranch:
    """Converts the items of one branch, in order."""

    def __init__(self, session: AgentsSession) -> None:
        self.session, self.tip = session, START
        self.last_of_turn: dict[int, str] = {}
        """By turn number: the key of its last answer, or of its last entry if it has no answer."""
        self._answer = AnswerBuilder(session.losses)
        self._answer_rows: list[int] = []
        self._answer_source: tuple[int | None, int, str | None] = (None, -1, None)
        """Time, turn and model of the answer's last item."""

    def add(self, item: Item, at: int | None, row_id: int, turn: int) -> None:
        if "__enc__" in item:
            self.session.losses.add("an item encrypted by the application")
        elif self._answer.add(item):
            self._answer_rows.append(row_id)
            self._answer_source = (at, turn, _model(item) or self._answer_source[2])
        else:
            self.finish_answer()
            for payload in self._read(item):
                key = self.session.entry_key(self.tip, row_id)
                self._add_entry(EntryRecord(payload, key, self.tip, at=at), key, turn)

    def _read(self, item: Item) -> Sequence[Message | Note]:
        if is_input_item(item):
            return read_input_item(item, self.session.losses)
        return [unknown_note("openai-agents", item.get("type"), item, self.session.losses)]

    def finish_answer(self) -> None:
        answer = self._answer.finish()
        at, turn, model = self._answer_source
        if answer is not None:
            key = self.session.entry_key(self.tip, *self._answer_rows)
            entry = EntryRecord(answer.message, key, self.tip, at=at, model=model, evidence=answer.evidence)
            self._add_entry(entry, key, turn)
        self._answer_rows, self._answer_source = [], (None, -1, None)

    def _add_entry(self, entry: EntryRecord, key: str, turn: int) -> None:
        self.session.entries.setdefault(key, entry)
        self.tip = key
        if entry.is_answer or not self._has_answer(turn):
            self.last_of_turn[turn] = key

    def _has_answer(self, turn: int) -> bool:
        return turn in self.last_of_turn and self.session.entries[self.last_of_turn[turn]].is_answer


def _integer(value: object) -> int:
    return value if type(value) is int else -1


def _model(item: Item) -> str | None:
    return first_text(as_dict(item.get("provider_data")), "model")
