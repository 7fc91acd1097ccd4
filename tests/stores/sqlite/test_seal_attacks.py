"""Whoever alters a column or removes a row of a sealed file is found, whatever else is made to match."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import oakleaf
from oakleaf import Seal, SealCheck
from oakleaf.core.codec import chain_id
from support.sealed_store import fill

MOVES_BY_ITSELF = {
    "session.number",
    "session.holder",
    "session.lease_until",
    "session.fence",
    "session.trashed_at",
    "session.imported_facts",
    "session.active_at",
    "session.needs_indexing",
    "session_detail.session_number",
    "session_detail.state",
    "entry.id",
    "entry.evidence",
    "usage.id",
    "journal.id",
    "branch.id",
}
"""Keys, and columns that leases, the trash, the search index and an import set without a fact."""
NAMED = {"entry": "entry 1:4", "usage": "call 1", "journal": "fact 2", "branch": "", "session": "row"}
ROWS = {
    "session": "id = 'ses_sealed'",
    "session_detail": "session_number = 1",
    "branch": "id = 2",
    "entry": "id = (1 << 32) + 4",
    "usage": "id = (1 << 32) + 1",
    "journal": "id = (1 << 32) + 2",
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Seal]:
    path = tmp_path_factory.mktemp("sealed") / "s.db"
    with oakleaf.open(path) as store:
        fill(store)
        return path, store.seal()


@pytest.fixture
def attacked(sealed: tuple[Path, Seal], tmp_path: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(shutil.copy(sealed[0], tmp_path / "s.db")))) as connection:
        connection.execute("pragma foreign_keys = off")
        yield connection


def compare(connection: apsw.Connection, seal: Seal) -> SealCheck:
    with oakleaf.open(connection.filename) as store:
        return store.check_seal(seal)


def columns() -> list[tuple[str, str]]:
    schema = Path(oakleaf.__file__).parent / "stores" / "sqlite" / "schema.sql"
    with apsw.Connection(":memory:") as connection:
        connection.execute(schema.read_text())
        query = "select name, type from pragma_table_info(?)"
        return [
            (f"{table}.{name}", kind) for table in ROWS for name, kind in connection.execute(query, (table,))
        ]


@pytest.mark.parametrize(("column", "kind"), [one for one in columns() if one[0] not in MOVES_BY_ITSELF])
def test_an_altered_column_is_found(
    column: str, kind: str, attacked: apsw.Connection, sealed: tuple[Path, Seal]
) -> None:
    table, _, name = column.partition(".")
    other = {"INTEGER": f"coalesce({name}, 0) + 1", "BLOB": f"{name} || x'20'"}.get(
        kind.upper(), f"coalesce({name}, '') || 'x'"
    )
    if name in ("tags", "tool_names", "spec", "policy", "workspace"):
        other = '\'{"x":"y"}\'' if name != "tool_names" else "'[\"x\"]'"
    attacked.execute(f"update {table} set {name} = {other} where {ROWS[table]}")
    assert attacked.changes() == 1
    problems = compare(attacked, sealed[1]).problems
    assert "ses_sealed" in {problem.session_id for problem in problems}, problems


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("update entry set at = at - 86400000000 where id = (1 << 32) + 4", "entry 1:4"),
        ("update entry set model = 'small' where id = (1 << 32) + 3", "entry 1:3"),
        ("update entry set finish = 'cancelled' where id = (1 << 32) + 5", "entry 1:5"),
        ("update session set owner = 'bob' where number = 1", "row owner"),
        ("update session set agent = 'sales' where number = 1", "row agent"),
        ("update session set title = 'Gift' where number = 1", "row title"),
        ("update usage set cost_microcents = 1 where id = (1 << 32) + 2", "call 2"),
        ("update journal set at = at + 1 where id = (1 << 32) + 3", "fact 3"),
        ("delete from entry where id = (1 << 32) + 5", "entry 1:5"),
    ],
)
def test_the_place_is_named(
    statement: str, place: str, attacked: apsw.Connection, sealed: tuple[Path, Seal]
) -> None:
    attacked.execute(statement)
    found = compare(attacked, sealed[1]).problems
    assert place in {problem.where for problem in found if problem.session_id == "ses_sealed"}


def test_the_place_is_named_after_the_session_went_on(
    attacked: apsw.Connection, sealed: tuple[Path, Seal]
) -> None:
    with oakleaf.open(attacked.filename) as store:
        store.session("ses_sealed").append([oakleaf.user("more"), oakleaf.assistant("yes")])
    attacked.execute("update entry set at = 1 where id = (1 << 32) + 4")
    attacked.execute("update session set agent = 'sales' where number = 1")
    found = [
        str(problem) for problem in compare(attacked, sealed[1]).problems if "ses_sealed" in str(problem)
    ]
    assert found == [
        "ses_sealed entry 1:4: it was altered since the seal",
        "ses_sealed row agent: it was altered since the seal",
    ]


def test_a_chain_that_was_made_anew_is_found(attacked: apsw.Connection, sealed: tuple[Path, Seal]) -> None:
    """A plain verify finds nothing: every id matches its content and its parent."""
    rows = attacked.execute("select id, turn, step, kind, body from entry where id >> 32 = 1 order by id")
    parent = b""
    for key, turn, step, kind, body in rows.fetchall():
        altered = body.replace(b"Refund order 41", b"Refund order 99")
        parent = chain_id(parent, kind or "message", turn, step, altered)
        attacked.execute("update entry set body = ?, entry_id = ? where id = ?", (altered, parent, key))
    found = {problem.where for problem in compare(attacked, sealed[1]).problems}
    assert {"entry 1:2", "entry 1:3"} <= found


def test_a_session_removed_from_every_table_is_found(
    attacked: apsw.Connection, sealed: tuple[Path, Seal]
) -> None:
    (number,) = attacked.execute("select number from session where id = 'ses_task'").fetchone()
    for table in ("session_detail", "draft", "inbox", "branch"):
        attacked.execute(f"delete from {table} where session_number = ?", (number,))
    for table in ("usage", "journal"):
        attacked.execute(f"delete from {table} where id >> 32 = ?", (number,))
    attacked.execute("delete from session where number = ?", (number,))
    check = compare(attacked, sealed[1])
    assert check.removed == ["ses_task"]
