"""An excerpt: a copy of a session in memory that ends earlier, with the same bytes each time."""

from __future__ import annotations

import io

import pytest

import oakleaf
from oakleaf import Session, Store
from oakleaf.ext import excerpt, scratch_store
from support.recorded_session import record_refund


def exported(session: Session) -> bytes:
    file = io.BytesIO()
    session.export(file)
    return file.getvalue()


def test_an_excerpt_ends_with_an_entry_and_the_source_stays(store: Store) -> None:
    session = record_refund(store)
    before, row = session.path(), session.row
    short = excerpt(session, 5)
    assert [entry.entry_id for entry in short.path()] == [entry.entry_id for entry in before[:5]]
    assert "Refunded" not in exported(short).decode()
    assert (session.path(), session.row) == (before, row)
    assert [row.session_id for row in store.all_sessions()] == [session.session_id]


def test_the_same_excerpt_has_the_same_bytes(store: Store) -> None:
    session = record_refund(store)
    assert exported(excerpt(session, 5)) == exported(excerpt(session, 5))
    assert exported(excerpt(session, 5)) != exported(excerpt(session, 9))


def test_an_excerpt_of_a_branch_has_the_branchs_entries(store: Store) -> None:
    session = record_refund(store)
    session.rewind(5)
    session.append([oakleaf.user("Never mind"), oakleaf.assistant("As you like.")])
    assert [entry.entry_id for entry in excerpt(session, 7).path()] == [
        entry.entry_id for entry in session.path()
    ]


def test_a_scratch_store_reads_a_bundle_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2-hunter2-hunter2")
    texts = []
    for store in (scratch_store(), oakleaf.open("memory:")):
        session = store.start("support")
        session.append([oakleaf.user("it is hunter2-hunter2-hunter2")])
        message = session.path()[-1].message
        assert message is not None
        texts.append(message.text)
    assert ["hunter2" in text for text in texts] == [True, False]
