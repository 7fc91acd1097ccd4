"""On a filled database nothing that people ask for reads more rows than it returns, or than few pages hold.

PostgreSQL counts for every table how many rows were read, in order or by an index; a store that is closed has reported
its counts. One space is large and one is small: the small one must not pay for the other.
"""

from __future__ import annotations

import time

import psycopg
import pytest

import oakleaf
from oakleaf import assistant
from oakleaf.stores.base import SessionQuery
from support.filled_store import READS, write_rare_sessions, write_sessions, write_small_space
from support.postgres import Database, DatabaseHost

COPIES = 100
MOST_ROWS = 600
TABLES = (
    *("session", "branch", "entry", "usage", "journal", "search", "search_progress", "blob_use"),
    *("session_detail", "session_tag"),
)
# Copies what the store itself wrote, under other numbers: 4,000 sessions in a second.
COPY = """
create temp table step as select n * 1000 as step from generate_series(1, {copies}) as n;
insert into oakleaf.session select (jsonb_populate_record(session, jsonb_build_object(
    'number', number + step, 'id', id || '_' || step, 'branch', branch + step))).* from oakleaf.session, step where number <= {most};
insert into oakleaf.session_detail select session_number + step, space, spec, policy, workspace, state
    from oakleaf.session_detail, step where session_number <= {most};
insert into oakleaf.branch select id + step, space, session_number + step, parent + step, parent_seq
    from oakleaf.branch, step where id <= {most};
insert into oakleaf.entry select (jsonb_populate_record(entry, jsonb_build_object('branch', branch + step.step))).*
    from oakleaf.entry, step where branch <= {most};
insert into oakleaf.usage select (jsonb_populate_record(usage, jsonb_build_object('session_number', session_number + step, 'branch', branch + step))).*
    from oakleaf.usage, step where session_number <= {most};
insert into oakleaf.journal select (jsonb_populate_record(journal, jsonb_build_object('session_number', session_number + step))).*
    from oakleaf.journal, step where session_number <= {most};
insert into oakleaf.search select id + (step::bigint << 32), space, session_number + step, at, words
    from oakleaf.search, step where session_number <= {most};
insert into oakleaf.search_progress select session_number + step, space, facts, title from oakleaf.search_progress, step where session_number <= {most};
"""
LONG_JOURNAL = """
insert into oakleaf.journal (session_number, number, space, kind, at)
select number, 1000 + n, space, 'appended', 0 from oakleaf.session, generate_series(1, 4000) as n where id = 'ses_rare'
"""
LONG_LEDGER = """
insert into oakleaf.usage (session_number, number, space, call_id, branch, after_seq, answer_seq, failed, at)
select number, 1 + n, space, 'call-' || n, branch, 2 * n - 1, 2 * n, false, 0
from oakleaf.session, generate_series(1, 4000) as n where id = 'ses_rare'
"""


@pytest.fixture(scope="module")
def filled(postgres: DatabaseHost) -> Database:
    database = Database(postgres, "plans")  # to which no other test has a connection
    with oakleaf.open(database.url) as store:
        write_sessions(store)
    ((most,),) = database.run("select max(id) from oakleaf.branch")
    database.run(COPY.format(copies=COPIES, most=most))
    database.run("select setval('oakleaf.session_number', 1000000), setval('oakleaf.branch_id', 1000000)")
    with oakleaf.open(database.url) as store:
        write_rare_sessions(store)
    database.run(LONG_JOURNAL)
    database.run(LONG_LEDGER)
    write_small_space(database.url)
    database.run("analyze")
    return database


def rows_read(database: Database) -> dict[str, int]:
    names = ", ".join(f"'{name}'" for name in TABLES)
    rows = database.run(
        "select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_all_tables "
        f"where schemaname = 'oakleaf' and relname in ({names})"
    )
    return {name: int(count) for name, count in rows}


@pytest.mark.parametrize("name", READS)
def test_nothing_reads_more_than_it_returns(name: str, filled: Database) -> None:
    space, work = READS[name]
    before = rows_read(filled)
    with oakleaf.open(filled.url, space=space) as store:
        work(store)
    deadline = time.monotonic() + 10  # the server reports what a connection read when it ends
    while filled.run(
        f"select 1 from pg_stat_activity where usename = 'oakleaf_app' and datname = '{filled.name}'"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    after = rows_read(filled)
    read = {table: after[table] - before[table] for table in TABLES}
    assert {table: count for table, count in read.items() if count > MOST_ROWS} == {}


@pytest.mark.parametrize(
    "query",
    [
        SessionQuery(order="active"),
        SessionQuery(),
        SessionQuery(order="active", status="idle"),
        SessionQuery(order="active", agent="agent-2"),
        SessionQuery(order="active", owner="owner-0"),
        SessionQuery(order="active", tag=("team", "rare")),
    ],
)
def test_a_list_is_planned_once_for_a_connection(query: SessionQuery, filled: Database) -> None:
    """Planning takes as long as reading a page. PostgreSQL makes five plans for the values before it decides."""
    for space in ("default", "small"):
        with oakleaf.open(filled.url, space=space) as store:
            for _ in range(16):
                store.backend.sessions(query)
            plans = store.backend.connections.query(  # type: ignore[attr-defined]
                "select generic_plans, custom_plans from pg_prepared_statements where statement ~ '^select session.number.*limit'"
            )
        assert plans == [(11, 5)], space


def test_a_client_reads_the_rows_of_one_session_of_many(filled: Database) -> None:
    """PostgreSQL before version 18 plans a function once for all arguments."""
    with oakleaf.open(filled.url, owner="ann") as store:
        session = store.start("support")
        with session.turn("hello") as turn:
            turn.answer(assistant("Hello yourself."))
        fork = session.fork()
        with fork.turn("again") as turn:
            turn.answer(assistant("Hello again."))
    filled.run("update oakleaf.session set owner = 'ann' where number % 10 = 0")
    filled.run("analyze oakleaf.session")
    before = rows_read(filled)
    with psycopg.connect(filled.client_url) as client:
        client.execute("set plan_cache_mode = force_generic_plan")
        client.execute(
            "select set_config('oakleaf.space', 'default', true), set_config('oakleaf.owner', 'ann', true)"
        )
        query = "select text from oakleaf.own_messages(%s)"
        texts = [text for (text,) in client.execute(query, (fork.session_id,))]
    assert texts == ["hello", "Hello yourself.", "again", "Hello again."]
    deadline = time.monotonic() + 10
    while filled.run(
        f"select 1 from pg_stat_activity where usename = 'oakleaf_person' and datname = '{filled.name}'"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    after = rows_read(filled)
    assert {table: after[table] - before[table] for table in ("session", "branch", "entry")} == {
        "session": 1,
        "branch": 2,
        "entry": 4,
    }
