"""Checks that hold for every importer, and ways to damage the source that an importer reads."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from hypothesis import strategies as st

from oakleaf.core.entries import Entry
from oakleaf.errors import OakleafError
from oakleaf.ingest.ingest import ToolImportResult
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.wire import PROVIDERS
from support.runtime import deterministic_runtime

Record = dict[str, Any]

JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 1.5, "", " ", "\0", "\ud800", "x" * 5_000, "2026-01-01T00:00:00Z"),
    *([], {}, [[]], [None], ["type"], {"type": []}, {"type": "text"}, {"id": 1}, {"": {"": []}}),
)


def memory_store() -> Store:
    return Store(MemoryStore(), deterministic_runtime())


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory; `test_ingest` covers the other stores."""
    with memory_store() as sessions:
        yield sessions


def import_all(store: Store, tool: str, place: Path | str) -> list[ToolImportResult]:
    """Import every session of the source and check each imported session."""
    reports = list(store.import_from(tool, str(place)))
    for report in reports:
        if report.error is None:
            for session_id in (report.session_id, *report.added):
                assert_sound(store.session(session_id))
    return reports


def import_one(store: Store, tool: str, place: Path | str) -> tuple[Session, ToolImportResult]:
    """Import the only session of the source."""
    (report,) = import_all(store, tool, place)
    assert report.error is None, report.error
    return store.session(report.session_id), report


def assert_sound(session: Session) -> None:
    problems = session.verify()
    assert problems == [], problems
    for name, wire in PROVIDERS.items():
        violations = wire.violations(session.request(name))
        assert violations == [], (name, violations)


def entries_of(session: Session) -> list[Entry]:
    return list(session.path())


def message_texts(session: Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message is not None]


def file_contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the modification time of every file below the folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_jsonl(path: Path, records: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    an_hour_ago = time.time() - 3_600  # at rest: of a file that is being written the last answer waits
    os.utime(path, (an_hour_ago, an_hour_ago))
    return path


def assert_survived(tool: str, place: Path | str) -> None:
    """Check that the import either fails with an `OakleafError` or yields sound sessions, and that a second one adds nothing."""
    with memory_store() as store:
        try:
            first = import_all(store, tool, place)
        except OakleafError:
            return
        again = list(store.import_from(tool, str(place)))
        assert [report.entries for report in again] == [0] * len(first)


@st.composite
def mangled_records(draw: st.DrawFn, records: Sequence[Record]) -> list[Record]:
    """Drop, duplicate or swap records, or replace a value in one."""
    mangled = [copy.deepcopy(record) for record in records]
    for _ in range(draw(st.integers(1, 4))):
        if not mangled:
            break
        at = draw(st.integers(0, len(mangled) - 1))
        match draw(st.sampled_from(("drop", "double", "swap", "put", "put"))):
            case "drop":
                del mangled[at]
            case "double":
                mangled.insert(at, copy.deepcopy(mangled[at]))
            case "swap":
                other = draw(st.integers(0, len(mangled) - 1))
                mangled[at], mangled[other] = mangled[other], mangled[at]
            case _:
                holder, key = draw(st.sampled_from(_locations(mangled[at])))
                holder[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return mangled


def mangle(records: Sequence[Record], random: Random) -> list[Record]:
    """The same by chance: for long campaigns, and to name a case by its seed."""
    mangled = [copy.deepcopy(record) for record in records]
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(mangled))
        match random.randrange(8):
            case 0 if len(mangled) > 1:
                del mangled[at]
            case 1:
                mangled.insert(at, copy.deepcopy(mangled[at]))
            case 2:
                other = random.randrange(len(mangled))
                mangled[at], mangled[other] = mangled[other], mangled[at]
            case _ if locations := _locations(mangled[at]):
                holder, key = random.choice(locations)
                holder[key] = copy.deepcopy(random.choice(JUNK))
    return mangled


def write_sqlite(path: Path, rows: Sequence[Record]) -> Path:
    """Write each record as a row of the table named by its `table` key; values SQLite cannot store become JSON."""
    path.unlink(missing_ok=True)
    columns: dict[str, dict[str, None]] = {}
    for row in rows:
        if isinstance(row.get("table"), str) and row["table"].isidentifier():
            columns.setdefault(row["table"], {}).update(dict.fromkeys(key for key in row if key != "table"))
    with contextlib.closing(apsw.Connection(str(path))) as connection, connection:
        for table, names in columns.items():
            connection.execute(f"create table {table} ({', '.join(f'{name!r}' for name in names)})")
        for row in rows:
            if row.get("table") in list(columns):
                values = [_column(row.get(name)) for name in columns[row["table"]]]
                connection.execute(
                    f"insert into {row['table']} values ({', '.join('?' * len(values))})", values
                )
    return path


def _column(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, dict | list) or (isinstance(value, int) and abs(value) > 2**60):
        return json.dumps(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _locations(value: Any) -> list[tuple[Any, Any]]:
    """Return a (container, key) pair for every nested value that can be replaced."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [location for key in keys for location in _locations(value[key])]


SECRETS = ("hunter2hunter2", "sk-ant-" + "a1" * 20)
"""One that the store knows by the name TOKEN, one of a shape that is known."""


def with_secrets(value: Any) -> Any:
    """Return a record with both secrets in every text that a person, a model or a tool may have written."""
    if isinstance(value, dict):
        return {
            name: f"/home/{SECRETS[0]}" if name == "cwd" else with_secrets(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [with_secrets(item) for item in value]
    if isinstance(value, str) and " " in value and not value.startswith(("<", "{", "[")):
        return f"{value} {SECRETS[0]} {SECRETS[1]}"
    return value


def assert_masked(path: Path, reports: object) -> None:
    """Check that neither the store, with all files beside it, nor what was told of the import holds a secret."""
    stored = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    for secret in SECRETS:
        assert secret.encode() not in stored
        assert secret not in repr(reports)
    assert b"[redacted TOKEN]" in stored
