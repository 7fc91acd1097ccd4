"""Public reads: the input and the final answer, of one's own sessions, whatever query is run."""

from __future__ import annotations

from pathlib import Path

import pytest

import oakleaf
from oakleaf import Evidence, Reasoning, ToolCall, assistant, system, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.errors import NotAStore, NotFound, OakleafError
from oakleaf.stores.sqlite.public_reader import PublicReader


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = str(tmp_path_factory.mktemp("public") / "agent.db")
    for owner in ("ann", "bob", None):
        with oakleaf.open(where, owner=owner) as store:
            session = store.start(
                "support", [system(f"SECRET prompt of {owner}")], title=f"{owner}'s", state={"SECRET": 1}
            )
            session.append(
                [user(f"question of {owner}"), assistant("SECRET thought", ToolCall("c", "t", {"SECRET": 1}))]
            )
            session.append([tool_result("c", "SECRET result", details={"SECRET": 2})])
            answer = assistant(Reasoning("SECRET reasoning"), f"answer for {owner}")
            session.log.append([Draft(answer, evidence=Evidence("p", {"0": {"signature": "SECRET"}}))])
            session.note({"SECRET": 3})
            session.append([user("left behind")])
            session.rewind(session.leaf.seq - 1)
    return where


def test_the_public_sees_inputs_and_final_answers_of_the_owner(place: str) -> None:
    with PublicReader(place, owner="ann") as reader:
        (session,) = reader.sessions()
        assert session.title == "ann's"
        texts = [(message.role, message.text) for message in reader.transcript(session.session_id)]
        assert texts == [("user", "question of ann"), ("assistant", "answer for ann")]


def test_a_foreign_session_is_not_found(place: str) -> None:
    with oakleaf.open(place) as store:
        foreign = [row.session_id for row in store.sessions().sessions if row.owner != "ann"]
    with PublicReader(place, owner="ann") as reader:
        assert len(foreign) == 2
        for session_id in foreign:
            with pytest.raises(NotFound):
                reader.transcript(session_id)


def test_a_stranger_sees_nothing(place: str) -> None:
    for owner, space in (
        ("nobody", "default"),
        ("ann", "elsewhere"),
        ("ann' or '1'='1", "default"),
        ("", "default"),
    ):
        with PublicReader(place, owner=owner, space=space) as reader:
            assert reader.sessions() == []
            assert list(reader.query("select * from public_message")) == []


ATTACKS = [
    "select * from entry",
    "select body from main.entry",
    "select * from session",
    "select state from session_detail",
    "select * from journal",
    "select * from usage",
    "select * from blob",
    "select * from branch",
    "select * from active_message",
    "select * from sqlite_schema",
    "select * from sqlite_master",
    "select * from temp.sqlite_schema",
    "select * from pragma_table_info('entry')",
    "select sql from sqlite_temp_schema",
    "with public_message as (select * from entry) select * from public_message",
    "with public_session as (select * from session) select * from public_session",
    "with line as (select * from entry) select * from line",
    "with recursive line (x) as (select id from entry union select x from line) select * from line",
    "select * from (select * from entry) as public_message",
    "select (select body from entry limit 1) from public_session",
    "select * from public_message join entry on 1",
    "select * from public_message where seq in (select id from entry)",
    "create temp view mine as select * from entry",
    "create temp table public_session (x)",
    "drop view public_session",
    "attach database 'x.db' as other",
    "pragma table_info(entry)",
    "pragma query_only = off",
    "pragma writable_schema = on",
    "insert into entry (id) values (1)",
    "update session set title = 'x'",
    "delete from entry",
    "vacuum into 'copy.db'",
    "select load_extension('x')",
    "select readfile('/etc/passwd')",
    "explain select * from entry",
    "explain query plan select * from public_message",
    "explain select * from public_message",
    "select * from dbstat",
    "select writefile('x', 'y')",
    "reindex",
    "analyze",
    "begin; select * from entry",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_raw_sql_reaches_no_table_behind_the_views(place: str, attack: str) -> None:
    before = Path(place).read_bytes()
    with PublicReader(place, owner="ann") as reader, pytest.raises(OakleafError):
        list(reader.query(attack))
    assert Path(place).read_bytes() == before


def test_no_query_over_the_views_shows_a_secret(place: str) -> None:
    with PublicReader(place, owner="ann") as reader:
        for view in ("public_session", "public_message"):
            rows = list(reader.query(f"select * from {view}"))
            assert rows
            assert "SECRET" not in str(rows)
            assert "bob" not in str(rows)
            assert "left behind" not in str(rows)


def test_the_api_draws_the_same_line(place: str) -> None:
    with oakleaf.open(place, owner="ann") as store:
        session = store.session(store.sessions().sessions[0].session_id)
        assert "SECRET" not in str([entry.message and entry.message.text for entry in session.transcript()])
        assert len(session.transcript()) == 2
        assert len(session.path()) == 7
        assert "signature" not in repr(session.path())


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        PublicReader(str(tmp_path / "none.db"), owner="ann")
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(NotAStore):
        PublicReader(str(tmp_path / "text.db"), owner="ann")


def test_the_tasks_of_an_agent_are_not_the_publics(tmp_path: Path) -> None:
    """What a parent asks its child is tool traffic: a person who may see the parent may not see that."""
    where = str(tmp_path / "agent.db")
    with oakleaf.open(where, owner="ann") as store:
        child = store.start_task(store.start("support"), "searcher", title="SECRET task")
        child.append([user("SECRET tool input"), assistant("SECRET tool output")])
        with PublicReader(where, space="default", owner="ann") as reader:
            assert "SECRET" not in str(list(reader.query("select * from public_session")))
            assert list(reader.query("select * from public_message")) == []
