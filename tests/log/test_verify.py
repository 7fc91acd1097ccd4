"""Verify names the first entry altered, removed or reordered, and every cache that lies. It changes nothing."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

import oakleaf
from oakleaf import (
    Attachment,
    Compaction,
    Message,
    Session,
    ToolCall,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.errors import ModelError, StoreError
from oakleaf.ext import read
from oakleaf.wire import PROVIDERS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def session(place: Path) -> Session:
    store = oakleaf.open(place)
    session = store.start("a", [system("s")])
    with session.turn("q") as turn:
        turn.answer(assistant(ToolCall("c", "t")), usage=Usage(10, 1))
        turn.result("c", "r", state={"a": 1})
        turn.answer(assistant("a"), usage=Usage(10, 1))
    session.append([user("see", Attachment(b"bytes", "image/png")), assistant("b")])
    session.rewind(to=2)
    session.append([assistant("other")])
    assert session.verify() == []
    return session


def tamper(place: Path, sql: str) -> None:
    with apsw.Connection(str(place)) as connection:
        connection.execute("pragma foreign_keys = off")
        connection.execute(sql)


TAMPERINGS = [
    (
        "a body altered",
        "update entry set body = replace(cast(body as text), '\"r\"', '\"R\"') where role = 'tool'",
        "1:4",
    ),
    (
        "a role altered in the body",
        "update entry set body = replace(cast(body as text), 'user', 'system') where id = (1 << 32) + 2",
        "1:2",
    ),
    ("an entry removed", "delete from entry where id = (1 << 32) + 4", "1:5"),
    ("the first entry removed", "delete from entry where id = (1 << 32) + 1", "1:2"),
    ("a turn altered", "update entry set turn = 1 where id = (1 << 32) + 3", "1:3"),
    ("a step altered", "update entry set step = 7 where id = (1 << 32) + 3", "1:3"),
    ("a kind altered", "update entry set kind = 'note' where id = (1 << 32) + 3", "1:3"),
    ("an id altered", "update entry set entry_id = zeroblob(20) where id = (1 << 32) + 4", "1:4"),
    ("made public", "update entry set internal = 0 where id = (1 << 32) + 3", "visibility"),
    (
        "an entry on an abandoned branch altered",
        "update entry set body = '{}' where id = (1 << 32) + 7",
        "1:7",
    ),
    ("a fact removed", "delete from journal where id & 4294967295 = 3", "fact 3 is missing"),
    (
        "the last fact removed",
        "delete from journal where id = (select max(id) from journal)",
        "facts, the row says",
    ),
    ("totals altered", "update session set cost_microcents = 5", "totals"),
    ("a call removed", "delete from usage where id = (select max(id) from usage)", "totals"),
    ("turns altered", "update session set turns = 9", "turns"),
    ("state altered", "update session_detail set state = '{\"a\":2}'", "state"),
    ("leaf nowhere", "update session set seq = 99", "leaf"),
    ("leaf on no branch", "update session set branch = 99", "leaf"),
    ("a blob removed", "delete from blob", "blob"),
    ("an anchor removed", "update branch set parent_seq = 99 where id = 2", ""),
    ("running without a turn", "update session set status = 'running'", "status"),
    ("waiting without a turn", "update session set status = 'waiting'", "status"),
    ("the role column altered", "update entry set role = null where role = 'tool'", "role column is None"),
    ("a blob altered", "update blob set bytes = x'00'", "has other bytes than its hash says"),
    ("a blob's use removed", "delete from blob_use", "is not linked to the entry"),
    ("a tool call's place removed", "delete from tool_call", "the index of tool calls"),
    ("an answer nowhere", "update usage set answer_seq = 99", "its answer 1:99 is not an answer"),
    ("a call nowhere", "update usage set after_seq = 77", "it follows 1:77, which does not exist"),
    ("a status that is none", "update session set status = 'zzz'", "Invalid enum value 'zzz'"),
    ("broken state", "update session_detail set state = '{'", "cannot be read"),
    ("a broken fact", "update journal set data = '{' where kind = 'turn_started'", "cannot be read"),
    (
        "a root behind entry 1",
        "update branch set parent_seq = 1 where id = 1",
        "it has no parent, yet starts",
    ),
]


@pytest.mark.parametrize(("sql", "named"), [t[1:] for t in TAMPERINGS], ids=[t[0] for t in TAMPERINGS])
def test_what_was_tampered_with_is_named(place: Path, session: Session, sql: str, named: str) -> None:
    if "state =" in sql:
        session.note(state={"a": 1})
    tamper(place, sql)
    problems = session.verify()
    assert problems
    assert named in " ".join(map(str, problems))


UNVERIFIABLE = {
    # Not derived from anything else in the store: who it belongs to, what it is called, when, who runs it.
    "session": {
        *("id", "space", "owner", "conversation_id", "agent", "title", "trigger_type", "trigger_id", "model"),
        *(
            "context_window",
            "tool_names",
            "tags",
            "fence",
            "holder",
            "lease_until",
            "started_at",
            "updated_at",
            "needs_indexing",
            "active_at",
        ),
        *("completed_at", "trashed_at", "imported_facts"),
    },
    "session_detail": {"spec", "policy", "workspace"},
    "branch": set(),
    # Beside the chained content: who answered, why it stopped, and when.
    "entry": {"model", "finish", "at"},
    # The sums and the answer's position are known, the labels of a call are not; its number only orders.
    "usage": {"id", "call_id", "purpose", "bucket", "provider", "model", "price_version", "at"},
    # What a change appended is compared with the entries; what the host recorded beside it is not.
    "journal": {"key", "data", "at"},
    "blob": {"mime", "at"},
    "blob_use": set(),
    "tool_call": set(),
}
"""By table: the columns whose alteration cannot be known. Drafts and queued inputs are no part of the log."""


def test_every_deleted_row_and_every_altered_column_is_reported(place: Path, session: Session) -> None:
    session.note(state={"a": 1})
    problems: dict[str, list[str]] = {}
    with oakleaf.open(place) as store, closing(apsw.Connection(str(place))) as file:
        assert list(store.verify()) == []
        file.execute("pragma foreign_keys = off; pragma synchronous = off")
        for table in UNVERIFIABLE:
            columns = [column[1] for column in file.execute(f"pragma table_info({table})")]
            rows = list(file.execute(f"select * from {table}"))
            where = " and ".join(f"{name} is ?" for name in columns)
            insert = f"insert into {table} values ({', '.join('?' * len(columns))})"
            for row in rows:
                file.execute(f"delete from {table} where {where}", row)
                assert list(store.verify()), f"{table} {row} was deleted"
                file.execute(insert, row)
            problems[table] = []
            row = rows[-1]
            for n, (name, value) in enumerate(zip(columns, row, strict=True)):
                altered = (*row[:n], _altered(name, value), *row[n + 1 :])
                file.execute(f"delete from {table} where {where}", row)
                file.execute(insert, altered)
                if not list(store.verify()):
                    problems[table].append(name)
                file.execute(f"delete from {table} where {where}", altered)
                file.execute(insert, row)
        assert list(store.verify()) == []
    for table, columns in UNVERIFIABLE.items():
        assert set(problems[table]) == columns, table


@pytest.mark.parametrize(
    ("forged", "problem"),
    [
        ("status = 'idle', error = null", "it is idle, the journal says failed"),
        ("status = 'completed'", "it is completed, the journal says failed"),
        ("error = null", "the journal says"),
        ("error = 'the vendor was down'", "the journal says"),
    ],
)
def test_a_forged_status_or_error_is_found(place: Path, forged: str, problem: str) -> None:
    with oakleaf.open(place) as store:
        session = store.start()
        with suppress(oakleaf.OakleafError):
            session.send_sync(
                "go", model=oakleaf.ScriptedModel([ModelError("m", "refused by the vendor", "wait")])
            )
        assert session.row.status == "failed"
        assert list(store.verify()) == []
        with closing(apsw.Connection(str(place))) as file:
            file.execute(f"update session set {forged} where id = ?", (session.session_id,))
        assert [found.what for found in session.verify() if problem in found.what]


def _altered(name: str, value: object) -> object:
    if isinstance(value, int):
        return value + 1
    if isinstance(value, bytes):
        return value + b"\0"
    json = {"tool_names": "[]", "tags": "{}", "data": '{"note":1}'}
    return json.get(name) or {"relation": "task", "parent_session": "ses_other", "status": "running"}.get(
        name, f"{value or ''}1"
    )


def _forge(place: Path, session: Session, last: int) -> None:
    """Remove the entries of the leaf's branch after `last` and make the row agree, as a careful forger would."""
    branch = session.leaf.branch
    condition = f"id > ({branch} << 32) + {last} and id < ({branch} + 1) << 32"
    tamper(place, f"delete from blob_use where entry in (select id from entry where {condition})")
    tamper(place, f"delete from entry where {condition}")
    tamper(place, f"update session set seq = {last}")
    tamper(place, "update session_detail set state = null")
    inputs = "select count(*) from entry where turn = id & 4294967295"
    tamper(place, f"update session set turns = ({inputs}), status = 'idle'")


@pytest.mark.parametrize("last", [3, 4, 5, 6])
def test_a_removed_tail_is_found_by_the_journal_though_the_row_agrees(place: Path, last: int) -> None:
    store = oakleaf.open(place)
    session = store.start("a", [system("s")])
    for text in ("q", "p", "o"):
        session.append([user(text)])
        session.append([assistant(text)])
    _forge(place, session, last)
    [problem] = store.session(session.session_id).verify()
    assert f"entry 1:{last + 1}" in problem.what
    assert "removed" in problem.what


def test_a_removed_branch_is_found_by_the_journal(place: Path, session: Session) -> None:
    tamper(place, "delete from entry where id > 2 << 32 and id < 3 << 32")
    tamper(place, "delete from branch where id = 2")
    tamper(place, "update session set branch = 1, seq = 7")
    tamper(place, "update session_detail set state = null")
    assert "2:3" in str(session.verify()[0])
    assert "removed" in str(session.verify()[0])


@pytest.mark.parametrize("count", range(1, 11))
def test_a_removed_end_of_the_journal_is_found_by_the_entries(
    place: Path, session: Session, count: int
) -> None:
    """The row agrees: it counts as many facts as are left."""
    tamper(place, f"delete from journal where id > (select max(id) from journal) - {count}")
    tamper(place, "update session set facts = (select count(*) from journal)")
    assert session.verify()


def test_a_bundle_without_its_tail_is_refused(place: Path, session: Session, tmp_path: Path) -> None:
    """Export and import walk with verify's eyes."""
    _forge(place, session, session.leaf.seq - 1)
    with pytest.raises(oakleaf.OakleafError, match="removed"):
        session.export(tmp_path / "s.oakleaf")


def test_two_entries_swapped_are_found(place: Path, session: Session) -> None:
    tamper(place, "update entry set id = id + 1000 where id = (1 << 32) + 4")
    tamper(place, "update entry set id = (1 << 32) + 4 where id = (1 << 32) + 5")
    tamper(place, "update entry set id = (1 << 32) + 5 where id = (1 << 32) + 1004")
    assert "1:4" in str(session.verify()[0])


def test_damaged_bytes_are_reported_and_never_sent(tmp_path: Path) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + bytes(60)
    place = tmp_path / "damaged.db"
    with oakleaf.open(place) as store:
        session = store.start("a")
        session.append([user(Attachment(picture, "image/png")), assistant("a")])
        (media,) = session.path()[0].message.media
        tamper(place, "update blob set bytes = cast(substr(bytes, 1, 8) || randomblob(60) as blob)")
        session = store.session(session.session_id)
        for provider in PROVIDERS:
            assert "68 bytes: is missing]" in str(session.messages(provider))
        with pytest.raises(StoreError, match="do not match its hash"):
            store.blob(media)
        assert read(session).blob(media.hash) is None
        assert any("has other bytes than its hash says" in problem.what for problem in session.verify())


def test_verify_changes_nothing(place: Path, session: Session) -> None:
    tamper(place, "update session set turns = 9")
    before = _dump(place)
    session.verify()
    assert _dump(place) == before


def test_the_whole_store_is_verified_trash_and_forks_too(place: Path, session: Session) -> None:
    with oakleaf.open(place) as store:
        fork = store.session(session.session_id).fork()
        fork.append([user("x")])
        store.delete(fork.session_id)
        assert list(store.verify()) == []
        tamper(place, "update entry set body = '{}' where id = (1 << 32) + 2")
        named = {problem.session_id for problem in store.verify()}
        assert session.session_id in named


@pytest.mark.parametrize(
    ("payload", "named"),
    [(tool_result("nobody asked", "x"), "nobody asked"), (Compaction("hides all", 10**6), "1000000")],
)
def test_an_entry_that_may_not_follow_cannot_be_forged_in(
    place: Path, payload: Message | Compaction, named: str
) -> None:
    """Entries chained by the rules of hashing alone are still held to the rules of order."""
    from oakleaf.core.codec import chain_id, encode
    from oakleaf.core.entries import kind_of

    store = oakleaf.open(place)
    session = store.start("a")
    session.append([user("q")])
    body, kind = encode(payload), kind_of(payload)
    role = payload.role if isinstance(payload, Message) else None
    forged = chain_id(session.path()[-1].entry_id, kind, 1, 0, body)
    with apsw.Connection(str(place)) as connection:
        connection.execute(
            "insert into entry values ((1 << 32) + 2, 1, 0, ?, ?, 1, null, null, ?, 1, null, ?)",
            (kind, role, forged, body),
        )
    assert named in str(session.verify()[0])


def _dump(place: Path) -> str:
    with apsw.Connection(str(place)) as connection:
        return str(
            [
                list(connection.execute(f"select * from {table}"))
                for table in ("session", "entry", "journal", "usage")
            ]
        )


def test_a_session_that_is_being_written_is_not_called_broken(tmp_path: Path) -> None:
    with oakleaf.open(tmp_path / "agent.db", synchronous="normal") as store:
        session = store.start()
        ends = threading.Event()

        def write() -> None:
            while not ends.is_set():
                session.append([user("q"), assistant("a")])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with oakleaf.open(tmp_path / "agent.db") as other:
                assert [other.session(session.session_id).verify() for _ in range(10)] == [[]] * 10
        finally:
            ends.set()
            writer.join()
