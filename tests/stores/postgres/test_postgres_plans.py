"""On a filled database no list, search, read or write of ours reads a whole table.

PostgreSQL counts for every table how often it was read sequentially and how many rows that returned; a store that is
closed has reported its counts. One space is large and one is small: the small one must not pay for the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import bough
from bough import Store, assistant, user
from bough.core.usage import Usage
from bough.stores.base import SessionQuery
from support.postgres import Database

SESSIONS, COPIES = 40, 100
TABLES = (
    "session",
    "branch",
    "entry",
    "usage",
    "journal",
    "search",
    "search_mark",
    "blob_use",
    "session_detail",
)
# Copies what the store itself wrote, under other numbers: 4,000 sessions in a second.
COPY = """
insert into bough.session select (jsonb_populate_record(session, jsonb_build_object(
    'no', no + {step}, 'id', id || '_{step}', 'branch', branch + {step}))).* from bough.session where no <= {most};
insert into bough.session_detail select no + {step}, space, spec, policy, workspace, state from bough.session_detail where no <= {most};
insert into bough.branch select id + {step}, space, session_no + {step}, parent + {step}, parent_seq from bough.branch where id <= {most};
insert into bough.entry select (jsonb_populate_record(entry, jsonb_build_object('branch', branch + {step}))).*
    from bough.entry where branch <= {most};
insert into bough.usage select (jsonb_populate_record(usage, jsonb_build_object('session_no', session_no + {step}, 'branch', branch + {step}))).*
    from bough.usage where session_no <= {most};
insert into bough.journal select (jsonb_populate_record(journal, jsonb_build_object('session_no', session_no + {step}))).*
    from bough.journal where session_no <= {most};
insert into bough.search select place + ({step}::bigint << 32), space, session_no + {step}, at, words from bough.search where session_no <= {most};
insert into bough.search_mark select no + {step}, space, facts, title from bough.search_mark where no <= {most};
"""


@pytest.fixture
def filled(database: Database) -> Database:
    with bough.open(database.url) as store:
        for n in range(SESSIONS):
            tags = {"team": "rare"} if n == 0 else {"team": "common"}
            session = store.start(
                "support" if n % 2 else f"agent-{n}", owner=f"owner-{n}", title=f"title {n}", tags=tags
            )
            with session.turn(f"question {n} about herring") as turn:
                turn.answer(assistant("an answer about mackerel"), usage=Usage(10, 5))
        store.start().end("failed", "no answer")
        assert store.search("herring", limit=1).hits
    ((most,),) = database.run("select max(id) from bough.branch")
    for copy in range(1, COPIES + 1):
        database.run(COPY.format(step=copy * 1_000, most=most))
    database.run("select setval('bough.session_no', 1000000), setval('bough.branch_id', 1000000)")
    with bough.open(database.url, space="small") as store:
        session = store.start("support", session_id="ses_small", owner="ann")
        session.append([user("herring of the small one")])
        assert store.search("herring").hits
    database.run("analyze")
    return database


def sequential_rows(database: Database) -> dict[str, int]:
    names = ", ".join(f"'{name}'" for name in TABLES)
    rows = database.run(
        f"select relname, seq_tup_read from pg_stat_all_tables where schemaname = 'bough' and relname in ({names})"
    )
    return {name: int(count) for name, count in rows}


READS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "a page of the list": ("default", lambda store: store.sessions(limit=50)),
    "by last activity": ("default", lambda store: store.backend.sessions(SessionQuery(order="active"))),
    "by a rare status": ("default", lambda store: store.backend.sessions(SessionQuery(status="failed", order="active"))),
    "by a rare agent": ("default", lambda store: store.backend.sessions(SessionQuery(agent="agent-2", order="active"))),
    "by owner": ("default", lambda store: store.backend.sessions(SessionQuery(owner="owner-3", order="active"))),
    "by a rare tag": ("default", lambda store: store.backend.sessions(SessionQuery(tag=("team", "rare"), order="active"))),
    "latest": ("default", lambda store: store.latest()),
    "usage since today": ("default", lambda store: store.backend.daily_usage(time.time_ns() // 1_000)),
    "a search": ("default", lambda store: store.search("herring", limit=10)),
    "a search of the small one": ("small", lambda store: store.search("herring", limit=10)),
    "a list of the small one": ("small", lambda store: store.sessions(limit=10)),
    "opening and reading": ("small", lambda store: store.session("ses_small").path()),
    "appending": ("small", lambda store: store.session("ses_small").append([user("more")])),
    "forking and rewinding": ("small", lambda store: store.session("ses_small").fork(at=1).rewind(1)),
    "purging": ("small", lambda store: purge(store)),
}  # fmt: skip


KNOWN = {
    # Under a policy no operator of jsonb may use an index: a list by tag compares every row of its space.
    "by a rare tag": {"session"},
    # Which sessions have new text is found by comparing each with its mark.
    "a search": {"session", "search_mark"},
}


def purge(store: Store) -> None:
    session = store.start()
    session.append([user("to be purged")])
    store.index()
    store.delete(session.session_id)
    store.purge(session.session_id)


def test_no_statement_reads_a_whole_table(filled: Database) -> None:
    faults = []
    for name, (space, work) in READS.items():
        before = sequential_rows(filled)
        with bough.open(filled.url, space=space) as store:
            work(store)
        deadline = time.monotonic() + 10  # the server reports what a connection read when it ends
        while filled.run(
            f"select 1 from pg_stat_activity where usename = 'bough_app' and datname = '{filled.name}'"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        after = sequential_rows(filled)
        read = {table: after[table] - before[table] for table in TABLES if after[table] - before[table] > 200}
        if read.keys() - KNOWN.get(name, set()):
            faults.append((name, read))
    assert not faults, "\n".join(map(str, faults))
