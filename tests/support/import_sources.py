"""What every importer owes, whatever the tool: laws to hold a place against, and ways to spoil one."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
from hypothesis import strategies as st

from bough.core.entries import Entry
from bough.errors import BoughError
from bough.exchange.importers.ingest import ToolImportResult
from bough.session import Session
from bough.store import Store
from bough.stores.memory.store import MemoryStore
from bough.wire import PROVIDERS
from support.runtime import deterministic_runtime

Record = dict[str, Any]

JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 1.5, "", " ", "\0", "\ud800", "x" * 5_000, "2026-01-01T00:00:00Z"),
    *([], {}, [[]], [None], ["type"], {"type": []}, {"type": "text"}, {"id": 1}, {"": {"": []}}),
)


def memory_store() -> Store:
    return Store(MemoryStore(), deterministic_runtime())


def import_all(store: Store, tool: str, place: Path | str) -> list[ToolImportResult]:
    """All that is there, each sound."""
    reports = list(store.import_from(tool, str(place)))
    for report in reports:
        if report.error is None:
            for session_id in (report.session_id, *report.added):
                assert_sound(store.session(session_id))
    return reports


def import_one(store: Store, tool: str, place: Path | str) -> tuple[Session, ToolImportResult]:
    """The one session of a place."""
    (report,) = import_all(store, tool, place)
    assert report.error is None, report.error
    return store.session(report.session_id), report


def assert_sound(session: Session) -> None:
    problems = session.verify()
    assert problems == [], problems
    for name, wire in PROVIDERS.items():
        broken = wire.violations(session.request(name))
        assert broken == [], (name, broken)


def entries_of(session: Session) -> list[Entry]:
    return list(session.path())


def file_contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a folder, its bytes and when it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_jsonl(path: Path, records: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def assert_survived(tool: str, place: Path | str) -> None:
    """What was taken in is sound and taking it in again adds nothing; or it was refused with a reason."""
    with memory_store() as store:
        try:
            first = import_all(store, tool, place)
        except BoughError:
            return
        again = list(store.import_from(tool, str(place)))
        assert [one.entries for one in again] == [0] * len(first)


@st.composite
def mangled_records(draw: st.DrawFn, records: Sequence[Record]) -> list[Record]:
    """Records dropped, doubled, swapped, or with some value in them replaced."""
    found = [copy.deepcopy(record) for record in records]
    for _ in range(draw(st.integers(1, 4))):
        if not found:
            break
        at = draw(st.integers(0, len(found) - 1))
        match draw(st.sampled_from(("drop", "double", "swap", "put", "put"))):
            case "drop":
                del found[at]
            case "double":
                found.insert(at, copy.deepcopy(found[at]))
            case "swap":
                other = draw(st.integers(0, len(found) - 1))
                found[at], found[other] = found[other], found[at]
            case _:
                holder, key = draw(st.sampled_from(_places(found[at])))
                holder[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return found


@st.composite
def mangled_bytes(draw: st.DrawFn, records: Sequence[Record]) -> bytes:
    """The lines of mangled records, some bytes gone from somewhere."""
    body = "".join(json.dumps(record) + "\n" for record in draw(mangled_records(records))).encode()
    start = draw(st.integers(0, len(body)))
    return body[:start] + body[start + draw(st.integers(0, 40)) :]


def write_sqlite(path: Path, rows: Sequence[Record]) -> Path:
    """A SQLite file: each record is a row, its table under `table`; what is no column value is written as JSON."""
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


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a value that could hold something else."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    found = [(value, key) for key in keys]
    return found + [place for key in keys for place in _places(value[key])]
