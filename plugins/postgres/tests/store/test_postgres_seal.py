"""Whoever alters a column of a sealed store with SQL is found, and so is a seal that moved to another kind of store."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import oakleaf
from oakleaf import Store
from support.postgres import Database
from support.sealed_store import fill

ROOT = "(select min(id) from oakleaf.branch)"


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("update oakleaf.entry set at = at - 1 where branch = {root} and seq = 4", "entry 1:4"),
        ("update oakleaf.entry set model = 'small' where branch = {root} and seq = 3", "entry 1:3"),
        ("update oakleaf.entry set finish = 'cancelled' where branch = {root} and seq = 5", "entry 1:5"),
        ("update oakleaf.entry set internal = not internal where branch = {root} and seq = 5", "entry 1:5"),
        ("update oakleaf.session set owner = 'bob' where id = 'ses_sealed'", "row owner"),
        ("update oakleaf.session set agent = 'sales' where id = 'ses_sealed'", "row agent"),
        ("update oakleaf.session set started_at = 1 where id = 'ses_sealed'", "row started_at"),
        ("update oakleaf.usage set input_tokens = 1 where number = 2", "call 2"),
        (
            "update oakleaf.journal set at = at + 1 where number = 3 and session_number = "
            "(select number from oakleaf.session where id = 'ses_sealed')",
            "fact 3",
        ),
        (
            "update oakleaf.journal set data = replace(data, 'no money', 'all money') where data like '%no money%'",
            "fact 12",
        ),
        ("delete from oakleaf.entry where branch = {root} and seq = 5", "entry 1:5"),
        ("update oakleaf.session set id = 'ses_gone' where id = 'ses_sealed'", "session"),
    ],
)
def test_the_place_is_named(
    statement: str,
    place: str,
    database: Database,
    owner_connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    with oakleaf.open(database.url) as store:
        fill(store)
        sealed = store.seal()
        assert store.check_seal(sealed).problems == []
        assert owner_connection.execute(statement.format(root=ROOT)).rowcount == 1  # type: ignore[arg-type]
        found = store.check_seal(sealed).problems
        assert place in {problem.where for problem in found if problem.session_id == "ses_sealed"}


def test_a_seal_fits_a_copy_on_another_kind_of_store(store: Store, tmp_path: Path) -> None:
    session = fill(store)
    with oakleaf.open(tmp_path / "copy.db") as copy:
        for name in ("ses_sealed", *(row.session_id for row in store.sessions(parent_session="ses_sealed"))):
            if not copy.sessions(id_prefix=name):
                store.copy(name, copy)
        assert copy.check_seal(store.seal()).problems == []
        copy.session(session.session_id).append([oakleaf.user("here"), oakleaf.assistant("yes")])
        assert copy.check_seal(store.seal()).problems == []
