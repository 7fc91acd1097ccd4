"""A session gets no id under which another one is addressed, wherever it is born."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Session, Store, assistant, user
from oakleaf.core.entries import Settings
from oakleaf.errors import InvalidBundle, InvalidId
from oakleaf.log.fork import fork
from oakleaf.stores.memory.store import MemoryStore
from support.import_sources import import_all
from support.runtime import deterministic_runtime
from support.terminal import oakleaf as command

pytestmark = pytest.mark.attack
UNUSABLE = ["ses_vic/", "..", "ses_vic?", "ses_vic#x", "ses_vic%2f", "ses\x1b[2Jvic", "a\\b", ".x"]
each_id = pytest.mark.parametrize("session_id", UNUSABLE)


def renamed_bundle(session: Session, session_id: str, path: Path) -> Path:
    """Write a bundle of the session as a stranger might: under another id, with a checksum that is right."""
    session.export(path)
    *lines, end = map(json.loads, path.read_text().splitlines())
    lines[0]["session"] = lines[1]["row"]["session_id"] = session_id
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    end["sha256"] = sha256(body).hexdigest()
    path.write_bytes(body + json.dumps(end).encode() + b"\n")
    return path


@each_id
class TestAnIdOfAnotherSession:
    def test_is_refused_at_the_start(self, store: Store, session: Session, session_id: str) -> None:
        with pytest.raises(InvalidId):
            store.start(session_id=session_id)
        facts = session.row.facts
        with pytest.raises(InvalidId):
            store.start_task(session, session_id=session_id)
        assert session.row.facts == facts
        session.append([user("q"), assistant("a")])
        with pytest.raises(InvalidId):
            fork(session.log, session.log.place(session.leaf.seq), Settings(), session_id=session_id)
        assert len(list(store.all_sessions())) == 1

    def test_is_refused_in_a_bundle(
        self, store: Store, session: Session, session_id: str, tmp_path: Path
    ) -> None:
        session.append([user("q"), assistant("a")])
        path = renamed_bundle(session, session_id, tmp_path / "b.oakleaf")
        with pytest.raises(InvalidBundle, match="session id"):
            store.import_bundle(path)
        assert len(list(store.all_sessions())) == 1

    def test_in_a_store_is_named_by_verify_and_copied_under_a_new_id(
        self, store: Store, session_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        older = Store(MemoryStore(), deterministic_runtime())
        with monkeypatch.context() as patch:
            patch.setattr("oakleaf.log.new_session.check_id", lambda name: None)
            session = older.start(session_id=session_id)
        session.append([user("q"), assistant("a")])
        assert any("session id" in problem.what for problem in session.verify())
        with pytest.raises(InvalidId, match="new_id"):
            older.copy(session, store)
        assert list(store.all_sessions()) == []
        copied = older.copy(session, store, new_id=True)
        assert "session id" not in str(copied.verify())

    @pytest.mark.extra
    def test_of_another_tool_is_escaped_and_found_again(
        self, store: Store, session_id: str, tmp_path: Path
    ) -> None:
        line = {
            "id": session_id,
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        }
        plain = {**line, "id": "ses_vic"}
        (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(plain) + "\n")
        first = import_all(store, "chat", tmp_path / "a.jsonl")
        assert [report.error for report in first] == [None, None]
        assert len({report.session_id for report in first}) == 2
        again = import_all(store, "chat", tmp_path / "a.jsonl")
        assert [report.existing for report in again] == [(report.session_id,) for report in first]

    def test_may_name_a_conversation(self, store: Store, session_id: str) -> None:
        """It is only asked for, never a part of an address."""
        session = store.latest_or_start(session_id)
        assert store.latest_or_start(session_id).session_id == session.session_id
        assert store.latest_or_start("ses_vic").session_id != session.session_id


@pytest.mark.extra
def test_a_command_refuses_such_an_id_in_words(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "s.db") as store:
        session = store.start()
        session.append([user("q"), assistant("a")])
        path = renamed_bundle(session, "ses_vic/", tmp_path / "b.oakleaf")
    done = command("import", path, store=tmp_path / "s.db")
    assert done.code == 1
    assert "'/'" in done.err


@pytest.mark.extra
def test_a_server_starts_no_session_with_such_an_id() -> None:
    from support.server import LocalServer

    with oakleaf.open("memory:") as store, LocalServer(store) as server:
        server.post("/api/sessions", {"session_id": "ses_vic"}, 201)
        for session_id in UNUSABLE:
            refused = server.post("/api/sessions", {"session_id": session_id}, 400)
            assert "session id" in str(refused)
        assert [row.session_id for row in store.all_sessions()] == ["ses_vic"]
