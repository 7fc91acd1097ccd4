"""JSON lines: one object per entry or event, each readable on its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from oakleaf import Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core.codec import encode
from oakleaf.core.entries import Entry, Unknown
from oakleaf.core.redact import Redactor
from oakleaf.core.redact_entries import redact_entries
from oakleaf.errors import InvalidArgument
from oakleaf.exports.jsonl import entry_lines, event_lines
from oakleaf.store import Store
from support.import_sources import store
from support.random_logs import path_of, paths, thorough_settings
from support.sessions import exported_lines, exported_pieces

__all__ = ["store"]


def sample_session(store: Store) -> Session:
    session = store.start("support", [system("You help.")])
    session.append([user("Where?"), assistant("Look.", ToolCall("c", "lookup", {"z": 1, "a": 2}))])
    session.append([tool_result("c", "lost", error=True), assistant("Lost.")])
    return session


FIELDS = [
    *(
        "schema_version",
        "session_id",
        "branch",
        "seq",
        "entry_id",
        "turn",
        "step",
        "kind",
        "role",
        "internal",
    ),
    *("at", "model", "finish", "payload"),
]


def read(lines: Any) -> list[dict[str, Any]]:
    records = list(lines)
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in records)
    return [json.loads(line) for line in records]


class TestEntries:
    def test_every_entry_of_the_path_is_a_line_with_all_the_fields(self, store: Store) -> None:
        session = sample_session(store)
        records = read(exported_lines(session, "jsonl"))
        assert [line["seq"] for line in records] == [1, 2, 3, 4, 5]
        assert all(list(line) == FIELDS for line in records)
        third = session.path()[2]
        assert records[2] == {
            "schema_version": 1,
            "session_id": session.session_id,
            "branch": third.branch,
            "seq": 3,
            "entry_id": third.entry_id.hex(),
            "turn": 2,
            "step": 1,
            "kind": "message",
            "role": "assistant",
            "internal": True,
            "at": third.at,
            "model": None,
            "finish": None,
            "payload": {
                "role": "assistant",
                "parts": [
                    {"type": "text", "text": "Look."},
                    {"type": "tool_call", "id": "c", "name": "lookup", "arguments": {"z": 1, "a": 2}},
                ],
            },
        }

    def test_a_line_holds_the_very_content_of_its_entry(self, store: Store) -> None:
        session = sample_session(store)
        for line, entry in zip(exported_lines(session, "jsonl", redact=False), session.path(), strict=True):
            assert encode(entry.payload).decode() in line

    def test_since_leaves_out_what_was_seen(self, store: Store) -> None:
        session = sample_session(store)
        assert [line["seq"] for line in read(exported_lines(session, "jsonl", since=3))] == [4, 5]
        assert exported_lines(session, "jsonl", since=99) == []

    def test_all_tells_the_branches_that_were_left_too(self, store: Store) -> None:
        session = sample_session(store)
        session.rewind(to=1)
        session.append([user("Why?")])
        assert [line["seq"] for line in read(exported_lines(session, "jsonl"))] == [1, 2]
        everything = read(exported_lines(session, "jsonl", what="all"))
        assert sorted(line["seq"] for line in everything) == [1, 2, 2, 3, 4, 5]
        assert len({(line["branch"], line["seq"]) for line in everything}) == 6

    def test_a_fork_tells_what_it_shares(self, store: Store) -> None:
        fork = sample_session(store).fork(at=2)
        assert [line["payload"]["role"] for line in read(exported_lines(fork, "jsonl"))] == ["system", "user"]
        assert read(exported_lines(fork, "jsonl", what="all")) == []

    def test_it_streams(self, store: Store) -> None:
        session = store.start()
        session.append([message for n in range(700) for message in (user(f"q{n}"), assistant(f"a{n}"))])
        pieces = exported_pieces(session, "jsonl")
        assert [line["seq"] for line in read(pieces)] == list(range(1, 1_401))

    def test_an_entry_of_a_newer_format_is_told_whole(self) -> None:
        path = [replace(path_of(user("q"))[0], payload=Unknown("vote", b'{"x":["late-secret-2"]}'))]
        (line,) = read(entry_lines("s", redact_entries(path, Redactor(unnamed=["late-secret-2"]))))
        assert (line["kind"], line["payload"]) == ("vote", {"x": ["[redacted secret 1]"]})

    def test_an_unknown_choice_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidArgument, match="expected path or all"):
            exported_lines(store.start(), "jsonl", what="everything")


class TestEvents:
    def test_a_session_is_told_in_the_five_event_types(self, store: Store) -> None:
        session = sample_session(store)
        records = read(exported_lines(session, "events"))
        assert [(line["type"], line["seq"], line["tool_call_id"]) for line in records] == [
            ("system_message", 1, None),
            ("user_message", 2, None),
            ("assistant_message", 3, None),
            ("tool_call", 3, "c"),
            ("tool_result", 4, "c"),
            ("assistant_message", 5, None),
        ]
        assert all(
            line["schema_version"] == 1 and line["session_id"] == session.session_id for line in records
        )
        assert records[3]["content"] == {"id": "c", "name": "lookup", "arguments": {"z": 1, "a": 2}}

    def test_events_can_be_asked_for_from_a_place_on(self, store: Store) -> None:
        assert [line["type"] for line in read(exported_lines(sample_session(store), "events", since=4))] == [
            "assistant_message"
        ]


class TestWhatStaysOut:
    @thorough_settings
    @given(paths())
    def test_every_log_can_be_told_and_tells_no_secret(self, path: list[Entry]) -> None:
        hidden = list(redact_entries(path, Redactor(unnamed=["snowman ☃ 🎄"])))
        for lines in (entry_lines, event_lines):
            records = list(lines("ses_1", hidden))
            assert records == list(lines("ses_1", hidden))
            read(records)
            assert "SIG-" not in "".join(records)
            assert "snowman" not in "".join(records)
        assert [line["seq"] for line in read(entry_lines("ses_1", path))] == [entry.seq for entry in path]
