"""OpenAI Agents: a SQLite file of its sessions, an item of the Responses API in each row.

Knows the plain file and the advanced one, in which a branch lists again the rows it shares with another, and what a turn
cost stands by itself. Which model answered is told by few rows; how a turn's tokens spread over its calls by none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from ...core.messages import Message
from ...core.usage import Usage
from ...formats.jsonl import INVALID_JSON, decode_json, parse_time, text_or_none, token_counts
from ...formats.records import START, EntryRecord, LossReport, SessionRecord
from ...formats.responses_items import AnswerBuilder, Item, read_input_item
from .sqlite_files import Row, Tables, tables

MESSAGES, STRUCTURE, USAGE = "agent_messages", "message_structure", "turn_usage"
SEALED = "an item the session's owner has encrypted"


def sessions(place: str) -> Iterator[SessionRecord]:
    with tables(place, "openai-agents", MESSAGES) as found:
        about = {row.get("session_id"): row for row in found.rows("agent_sessions")}
        names = dict.fromkeys(row.get("session_id") for row in found.rows(MESSAGES, order="id"))
        for name in names:
            if isinstance(name, str):
                yield Reading(found, name).foreign(about.get(name, {}))


class Reading:
    """One session of a file."""

    def __init__(self, found: Tables, name: str) -> None:
        self.found, self.name = found, name
        self.losses = LossReport()
        self.told: dict[str, EntryRecord] = {}
        self._keys: dict[tuple[str, ...], str] = {}
        self.items = {
            row["id"]: (self._item(row), parse_time(row.get("created_at")))
            for row in found.rows(MESSAGES, "session_id = ?", name, order="id")
            if isinstance(row.get("id"), int)
        }
        self.leaf = START
        newest = -1
        for branch, rows in self._branches().items():
            tip, last = self._tell(branch, rows)
            if last > newest:  # which branch is in use is nowhere kept: the one that grew last
                self.leaf, newest = tip, last

    def foreign(self, about: Row) -> SessionRecord:
        at = parse_time(about.get("created_at"))
        where = {"leaf": self.leaf, "started_at": at, "losses": self.losses}
        return SessionRecord("openai-agents", self.name, tuple(self.told.values()), **where)  # type: ignore[arg-type]

    def key(self, after: str, *rows: int) -> str:
        """What an entry is called that these rows make behind that one: the same on every branch that shares it."""
        return self._keys.setdefault((after, *map(str, rows)), str(len(self._keys) + 1))

    def _item(self, row: Row) -> Item:
        data = row.get("message_data")
        try:
            found: Any = (
                decode_json(data.encode(), self.losses, f"row {row['id']}") if isinstance(data, str) else None
            )
        except (*INVALID_JSON, UnicodeEncodeError):
            found = None
        if not isinstance(found, dict):
            self.losses.add("a row that is no item", f"row {row['id']}")
            return {}
        return found

    def _branches(self) -> dict[str, list[Row]]:
        """By their names the rows of each, in order; one of all rows if the file knows no branches."""
        branches: dict[str, list[Row]] = {}
        listed = set()
        order = "sequence_number, id"
        for row in self.found.rows(STRUCTURE, "session_id = ?", self.name, order=order):
            listed.add(row.get("message_id"))
            branches.setdefault(str(row.get("branch_id")), []).append(row)
        loose = [{"message_id": number, "id": number} for number in self.items if number not in listed]
        if listed and loose:
            self.losses.add("an item no branch lists", count=len(loose))
        if not listed:
            return {"main": loose}
        first = {name: min(_number(row.get("id")) for row in rows) for name, rows in branches.items()}
        return {name: branches[name] for name in sorted(branches, key=lambda name: first[name])}

    def _tell(self, branch: str, rows: list[Row]) -> tuple[str, int]:
        """Tells a branch; returns the key of its tip and when it grew last. What it shares is told already."""
        line = Line(self)
        for row in rows:
            item, at = self.items.get(row.get("message_id"), ({}, None))
            if item:
                line.add(item, at, _number(row.get("message_id")), row.get("user_turn_number"))
        line.close()
        for spent in self.found.rows(
            USAGE, "session_id = ? and branch_id = ?", self.name, branch, order="id"
        ):
            self._charge(line, spent)
        return line.tip, max((_number(row.get("id")) for row in rows), default=-1)

    def _charge(self, line: Line, spent: Row) -> None:
        tokens = token_counts(spent, ("input_tokens", "output_tokens"))
        key = line.last_of_turn.get(_number(spent.get("user_turn_number")))
        if tokens is None or key is None:
            self.losses.add("usage of a turn that is not there", str(spent.get("user_turn_number")))
            return
        if _number(spent.get("requests")) > 1:
            self.losses.add(
                "how a turn's tokens spread over its model calls", str(spent.get("user_turn_number"))
            )
        self.told[key] = replace(self.told[key], usage=Usage(tokens[0], tokens[1], _cached(spent)))


class Line:
    """The entries of one branch, as its items go by."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.tip = reading, START
        self.last_of_turn: dict[int, str] = {}
        """By the number of a turn the key of its last answer, or of its last entry if it has none."""
        self._answering = AnswerBuilder(reading.losses)
        self._ids: list[int] = []
        self._answered: tuple[int | None, int, str | None] = (None, -1, None)

    def add(self, item: Item, at: int | None, number: int, turn: object) -> None:
        if "__enc__" in item:
            self.reading.losses.add(SEALED)
        elif self._answering.add(item):
            self._ids.append(number)
            self._answered = (at, _number(turn), _model(item) or self._answered[2])
        else:
            self.close()
            for message in read_input_item(item, self.reading.losses):
                self._tell(
                    EntryRecord(message, self.reading.key(self.tip, number), self.tip, at=at), _number(turn)
                )

    def close(self) -> None:
        said = self._answering.finish()
        at, turn, model = self._answered
        if said is not None:
            key = self.reading.key(self.tip, *self._ids)
            self._tell(
                EntryRecord(said.message, key, self.tip, at=at, model=model, evidence=said.evidence),
                turn,
                is_answer=True,
            )
        self._ids, self._answered = [], (None, -1, None)

    def _tell(self, told: EntryRecord, turn: int, *, is_answer: bool = False) -> None:
        assert told.key is not None
        self.reading.told.setdefault(told.key, told)
        self.tip = told.key
        if is_answer or not self._has_answer(turn):
            self.last_of_turn[turn] = told.key

    def _has_answer(self, turn: int) -> bool:
        payload = self.reading.told[self.last_of_turn[turn]].payload if turn in self.last_of_turn else None
        return isinstance(payload, Message) and payload.role == "assistant"


def _number(value: object) -> int:
    return value if type(value) is int else -1


def _cached(spent: Row) -> int | None:
    details = spent.get("input_tokens_details")
    try:
        told = msgspec.json.decode(details) if isinstance(details, str) else None
    except INVALID_JSON:
        return None
    found = token_counts(told, ("cached_tokens",))
    return found[0] if found else None


def _model(item: Item) -> str | None:
    about = item.get("provider_data")
    return text_or_none(about.get("model")) if isinstance(about, dict) else None
