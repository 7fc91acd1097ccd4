"""Facts of a newer format: kinds and fields that this version does not know come through unchanged."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Session, Store, assistant, user
from oakleaf.core.facts import UnknownFact
from support.forged_bundles import Line, lines_of, written


@pytest.fixture
def newer() -> bytes:
    """A bundle with an unknown kind, and with an unknown field in each known one."""
    session = oakleaf.open("memory:").start(title="Lost parcel")
    with session.turn("Where?", model="m") as turn:
        turn.answer(assistant("Here."))
    session.rewind(0)
    session.append([user("Or there?"), assistant("There.")])
    session.label(1, "start")
    bundle = io.BytesIO()
    session.export(bundle)
    lines = lines_of(bundle.getvalue())
    facts = [line for line in lines if line["line"] == "fact"]
    for fact in facts:
        fact["body"] = {**fact.get("body", {}), "mood": {"is": ["blue", fact["number"]]}}
    number = facts[-1]["number"] + 1
    unknown: Line = {
        "line": "fact",
        "number": number,
        "kind": "quantum",
        "at": 5,
        "body": {"spin": [0.5, None]},
    }
    lines.insert(lines.index(facts[-1]) + 1, unknown)
    lines[1]["row"]["facts"] = number
    return written(lines)


def exported(session: Session) -> list[bytes]:
    bundle = io.BytesIO()
    session.export(bundle)
    return content(bundle.getvalue())


def content(bundle: bytes) -> list[bytes]:
    """The lines of a bundle but the last, whose counts `written` puts in another order."""
    return bundle.splitlines()[:-1]


def taken_in(store: Store, bundle: bytes) -> Session:
    return store.session(store.import_bundle(io.BytesIO(bundle)).session_id)


def test_an_import_and_an_export_keep_every_byte(store: Store, newer: bytes) -> None:
    store.start().append([user("other branches have the first numbers")])
    session = taken_in(store, newer)
    assert exported(session) == content(newer)
    assert session.verify() == []
    assert session.journal()[-1].fact == UnknownFact("quantum", b'{"spin":[0.5,null]}')
    assert [fact.data["mood"]["is"][1] for fact in session.journal()[:-1]] == list(
        range(1, session.row.facts)
    )
    assert store.import_bundle(io.BytesIO(newer)).added == ()


def test_a_copy_keeps_every_byte(store: Store, newer: bytes) -> None:
    session, target = taken_in(store, newer), oakleaf.open("memory:")
    store.copy(session, target)
    assert exported(target.session(session.session_id)) == content(newer)


def test_a_backup_keeps_every_byte(tmp_path: Path, newer: bytes) -> None:
    with oakleaf.open(tmp_path / "agent.db") as store:
        name = taken_in(store, newer).session_id
        store.backup(tmp_path / "copy.db")
    with oakleaf.open(tmp_path / "copy.db") as store:
        assert exported(store.session(name)) == content(newer)


def test_a_copy_under_a_new_id_keeps_unknown_facts(store: Store, newer: bytes) -> None:
    taken_in(store, newer)
    copy = store.session(store.import_bundle(io.BytesIO(newer), new_id=True).session_id)
    facts = [line for line in content(newer) if b'"line":"fact"' in line]
    assert [line for line in exported(copy) if b'"line":"fact"' in line] == facts


def test_a_session_with_newer_facts_goes_on(store: Store, newer: bytes) -> None:
    session = taken_in(store, newer)
    session.undo()
    session.redo()
    session.append([user("on"), assistant("and on")])
    assert session.verify() == []
    assert session.journal()[-1].number == session.row.facts
