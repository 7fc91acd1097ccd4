"""What people wait for in a store with 1,000 and with 100,000 sessions, with the ratio, on SQLite and on PostgreSQL.

A hundred sessions are written by the store itself and copied under other numbers and times, ten minutes apart: so a day
has as many in both, and what is rare is as rare. A small space beside it must not pay for the large one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter_ns, time_ns

import apsw
import psycopg
from msgspec import Struct

import oakleaf
from oakleaf import Store, ToolCall, assistant, user
from oakleaf.core.usage import Usage
from oakleaf.log.doctor import session_health
from oakleaf.stores.base import SessionQuery
from oakleaf.stores.sqlite.search_index import MERGED_PAGES, SqliteSearchIndex, merge_segments
from tests.support.postgres import Database

from .measure import Plan, ms, size_on_disk
from .postgres import DurableCluster
from .report import Figure, at_most

ROUNDS = 25
TEMPLATES = 100
GAP = 600 * 1_000_000
"""Microseconds between two sessions."""
COPY_SQLITE = """
create temp table step as with recursive n (n) as (select 1 union all select n + 1 from n where n < {copies})
    select n * 1000 as step, n * {templates} * {gap} as later from n;
insert into session (number, id, conversation_id, branch, started_at, updated_at, active_at, {columns})
    select number + step, id || '_' || step, conversation_id || '_' || step, branch + step, started_at + later, updated_at + later, active_at + later, {columns}
    from step, session where number <= {most};
insert into session_detail select session_number + step, spec, policy, workspace, state from step, session_detail where session_number <= {most};
insert into branch select id + step, session_number + step, parent + step, parent_seq from step, branch where id <= {most};
insert into entry select id + (step.step << 32), turn, entry.step, kind, role, internal, model, finish, entry_id, at, evidence, body
    from step, entry where entry.id >> 32 <= {most};
insert into usage select id + (step << 32), call_id, branch + step, after_seq, answer_seq, purpose, bucket, provider, model,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_microcents, price_version, failed, at + later
    from step, usage where id >> 32 <= {most};
insert into journal select id + (step << 32), kind, key, branch + step, first_seq, last_seq, data, at from step, journal where id >> 32 <= {most};
insert into search_entry select id + (step << 32), session_number + step, at from step, search_entry where session_number <= {most};
insert into search_progress select session_number + step, facts, title from step, search_progress where session_number <= {most};
update sqlite_sequence set seq = 1000000000 where name in ('session', 'branch');
drop table step;
"""
COPY_WORDS = """
insert into search (rowid, text, tool, model, marker) select id + (? << 32), text, tool, model, mark from document order by id
"""
COPY_POSTGRES = """
set session_replication_role = replica;
drop index oakleaf.search_by_word;
create temp table step as select n * 1000 as step, n::bigint * {templates} * {gap} as later from generate_series(1, {copies}) as n;
insert into oakleaf.session select (jsonb_populate_record(session, jsonb_build_object(
    'number', number + step, 'id', id || '_' || step, 'conversation_id', conversation_id || '_' || step, 'branch', branch + step, 'started_at', started_at + later,
    'updated_at', updated_at + later, 'active_at', active_at + later))).* from step, oakleaf.session where number <= {most};
insert into oakleaf.session_tag select space, tag_hash, session_number + step, active_at + later from step, oakleaf.session_tag where session_number <= {most};
insert into oakleaf.session_detail select session_number + step, space, spec, policy, workspace, state
    from step, oakleaf.session_detail where session_number <= {most};
insert into oakleaf.branch select id + step, space, session_number + step, parent + step, parent_seq from step, oakleaf.branch where id <= {most};
insert into oakleaf.entry (branch, seq, space, owner, turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body)
    select branch + step.step, seq, space, owner, turn, entry.step, kind, role, internal, model, finish, entry_id, at, evidence, body
    from step, oakleaf.entry where branch <= {most};
insert into oakleaf.usage (session_number, number, space, owner, call_id, branch, after_seq, answer_seq, purpose, bucket, provider, model,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_microcents, price_version, failed, at)
    select session_number + step, number, space, owner, call_id, branch + step, after_seq, answer_seq, purpose, bucket, provider, model,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_microcents, price_version, failed, at + later
    from step, oakleaf.usage where session_number <= {most};
insert into oakleaf.journal (session_number, number, space, owner, kind, key, branch, first_seq, last_seq, data, at)
    select session_number + step, number, space, owner, kind, key, branch, first_seq, last_seq, data, at from step, oakleaf.journal where session_number <= {most};
insert into oakleaf.search select id + (step::bigint << 32), space, session_number + step, at, words from step, oakleaf.search where session_number <= {most};
insert into oakleaf.search_progress select session_number + step, space, facts, title from step, oakleaf.search_progress where session_number <= {most};
create index search_by_word on oakleaf.search using gin (words);
select setval('oakleaf.session_number', 1000000000), setval('oakleaf.branch_id', 1000000000);
drop table step;
reset session_replication_role;
vacuum analyze;
"""


class FilledStore(Struct):
    url: str
    sessions: int
    seconds: float

    def open(self, space: str = "default") -> Store:
        return (
            oakleaf.open(self.url, space=space, synchronous="normal")
            if "://" not in self.url
            else oakleaf.open(self.url, space=space)
        )


def write_templates(store: Store) -> None:
    """Write a hundred sessions of ten entries, of which the copies are made."""
    for n in range(TEMPLATES):
        session = store.start(
            ("support", "sales", "research", "billing")[n % 4],
            title=f"case {n}",
            tags={"team": ("north", "south")[n % 2]},
            owner=f"owner-{n % 10}",
            model=f"model-{n % 7}",
        )
        for turn_number in range(2):
            with session.turn(f"Question {turn_number}: where is the parcel of order {n}?") as turn:
                turn.answer(assistant(ToolCall("c", "track", {"order": n})), usage=Usage(900, 40, 100))
                turn.result(
                    "c", {"order": n, "seen": "in the harbour of the northern town, waiting for a ship"}
                )
                turn.answer(assistant(f"Parcel {n} waits in the harbour."), usage=Usage(1_000, 30, 900))
        session.append([user("Thank you."), assistant("Gladly.")])
        if n % 20 == 3:
            session.end("completed")


def write_rare(store: Store) -> None:
    for n in range(5):
        session = store.start(
            "rare", session_id=f"ses_rare{n}", tags={"team": "rare"}, conversation_id="con_rare", owner="rare"
        )
        session.append([user("Where is zanzibar?"), assistant("Far away.")])
        session.label(1, "first")
        session.end("failed", "no answer")
    store.delete(store.start().session_id)
    store.index()


def set_times(run: Callable[[str], object], schema: str) -> None:
    """Put the templates ten minutes apart, and the last copy of the last one now."""
    first = f"(select min(number) from {schema}session)"
    for column in ("started_at", "updated_at", "active_at"):
        run(f"update {schema}session set {column} = {{at}} + (number - {first}) * {GAP}")
    number = "session_number" if schema else "(id >> 32)"
    run(f"update {schema}usage set at = {{at}} + ({number} - {first}) * {GAP}")


def fill_sqlite(path: Path, sessions: int) -> FilledStore:
    began, copies = perf_counter_ns(), sessions // TEMPLATES - 1
    at = time_ns() // 1_000 - sessions * GAP
    with oakleaf.open(path, synchronous="normal") as store:
        write_templates(store)
        connection = apsw.Connection(str(path))
        documents = read_documents(store)
        store.index()
        with connection:
            connection.execute("create temp table document (id integer primary key, text, tool, model, mark)")
            connection.executemany("insert into document values (?, ?, ?, ?, ?)", documents)
            set_times(lambda query: connection.execute(query.format(at=at)), "")
            most = connection.execute("select max(id) from branch").get
            own_columns = (
                "number",
                "id",
                "conversation_id",
                "branch",
                "started_at",
                "updated_at",
                "active_at",
            )
            names = [
                row[1]
                for row in connection.execute("pragma table_info(session)")
                if row[1] not in own_columns
            ]
            columns = ", ".join(names)
            connection.execute(
                COPY_SQLITE.format(copies=copies, templates=TEMPLATES, gap=GAP, most=most, columns=columns)
            )
            for copy in range(1, copies + 1):
                connection.execute(COPY_WORDS, (copy * 1_000,))
            while merge_segments(connection, MERGED_PAGES):  # as after so many batches of new text
                pass
        connection.close()
        write_rare(store)
    write_small(str(path))
    return FilledStore(str(path), sessions, (perf_counter_ns() - began) / 1e9)


def read_documents(store: Store) -> list[tuple[object, ...]]:
    """Return what the search index will hold of the templates, so that it is copied, too: indexing takes longer than all else."""
    index, first = SqliteSearchIndex(store.backend._connections, "default", None, ""), 0  # type: ignore[attr-defined]
    documents: dict[int, tuple[object, ...]] = {}
    while True:
        batch = store.backend._connections.read_snapshot(partial(index.read_batch, first=first))  # type: ignore[attr-defined]
        rows = [*batch.rows, *(indexed.title_row for indexed in batch.sessions)]
        documents |= {row.key: (row.key, *row.document) for row in rows}
        if batch.next_session is None:
            return list(documents.values())
        first = batch.next_session


def fill_postgres(database: Database, sessions: int) -> FilledStore:
    began, copies = perf_counter_ns(), sessions // TEMPLATES - 1
    at = time_ns() // 1_000 - sessions * GAP
    with oakleaf.open(database.url) as store:
        write_templates(store)
        store.index()
        with psycopg.connect(database.host.url(database.name), autocommit=True) as connection:
            set_times(lambda query: connection.execute(query.format(at=at)), "oakleaf.")
            ((most,),) = connection.execute("select max(id) from oakleaf.branch").fetchall()
            script = COPY_POSTGRES.format(copies=copies, templates=TEMPLATES, gap=GAP, most=most)
            for statement in filter(str.strip, script.split(";\n")):
                connection.execute(statement)
        write_rare(store)
    write_small(database.url)
    return FilledStore(database.url, sessions, (perf_counter_ns() - began) / 1e9)


def write_small(url: str) -> None:
    with oakleaf.open(url, space="small") as store:
        for n in range(20):
            store.start("support", session_id=f"ses_small{n}").append(
                [user(f"The parcel of {n}?"), assistant("In the harbour.")]
            )
        store.index()


Work = Callable[[Store], object]


def _list(**filters: object) -> Work:
    return lambda store: store.backend.sessions(SessionQuery(order="active", **filters))  # type: ignore[arg-type]


def _append(store: Store) -> None:
    store.session("ses_rare0").append([user("And now?"), assistant("Still far away.")])


def _purge(store: Store) -> None:
    session = store.start()
    session.append([user("to be purged"), assistant("yes")])
    store.index()
    store.delete(session.session_id)
    store.purge(session.session_id)


def works() -> dict[str, tuple[str, Work]]:
    """By name, with the space it is asked in."""
    day = 86_400 * 1_000_000
    return {
        "list": ("default", _list()),
        "list, by creation": ("default", lambda store: store.backend.sessions(SessionQuery())),
        "list by status, rare": ("default", _list(status="failed")),
        "list by status, common": ("default", _list(status="idle")),
        "list by agent, rare": ("default", _list(agent="rare")),
        "list by agent, a quarter": ("default", _list(agent="sales")),
        "list by owner": ("default", _list(owner="rare")),
        "list by tag, rare": ("default", _list(tag=("team", "rare"))),
        "list by tag, a half": ("default", _list(tag=("team", "north"))),
        "list by conversation": ("default", _list(conversation_id="con_rare")),
        "the trash": ("default", _list(trashed=True)),
        "list of the small space": ("small", _list()),
        # As many of each as the small store has, so that both count the same.
        "counts of statuses": ("default", lambda store: store.backend.status_counts(50)),
        "counts by agent": ("default", lambda store: store.backend.count(SessionQuery(), "agent", 500)),
        "usage of a day": ("default", lambda store: store.backend.daily_usage(time_ns() // 1_000 - day)),
        "open": ("default", lambda store: store.session("ses_rare0").path(last=4)),
        "latest": ("default", lambda store: store.latest()),
        "labels": ("default", lambda store: store.session("ses_rare0").labels()),
        "append": ("default", _append),
        "search, a rare word": ("default", lambda store: store.search("zanzibar", limit=20)),
        "search, a word of most entries": ("default", lambda store: store.search("harbour", limit=20)),
        "search, nowhere": ("default", lambda store: store.search("qqqq", limit=20)),
        "search of the small space": ("small", lambda store: store.search("harbour", limit=20)),
        "doctor": ("default", lambda store: list(session_health(store.backend, store.runtime))),
        "purge": ("default", _purge),
    }  # fmt: skip


GROWS = {"doctor", "purge"}
"""One counts all sessions, by an index; the other rewrites an SQLite file, so that no byte is left."""


def measure(few: FilledStore, many: FilledStore) -> dict[str, tuple[float, float]]:
    """Ask both stores in turn, warm: what else the machine does then falls on both alike, and neither has just been filled."""
    times: dict[str, tuple[float, float]] = {}
    stores = [{space: filled.open(space) for space in ("default", "small")} for filled in (few, many)]
    try:
        for name, (space, work) in works().items():
            each: tuple[list[int], list[int]] = ([], [])
            for number in range(4 if name == "purge" else ROUNDS + 3):
                gc.collect()
                pairs = list(zip(stores, each, strict=True))
                # The second is asked warmer.
                for spaces, durations in pairs if number % 2 else reversed(pairs):
                    began = perf_counter_ns()
                    work(spaces[space])
                    durations.append(perf_counter_ns() - began)
            times[name] = (
                ms(min(each[0])),
                ms(min(each[1])),
            )  # of a busy machine only the best time says something
    finally:
        for spaces in stores:
            for store in spaces.values():
                store.close()
    return times


def compare(kind: str, few: FilledStore, many: FilledStore) -> Iterator[Figure]:
    times = measure(few, many)
    yield Figure(
        f"many {kind} fill",
        f"{kind}: fill {many.sessions:,} sessions",
        many.seconds,
        "s",
        None,
        {"sessions": many.sessions},
    )
    for name in works():
        first, last = times[name]
        beside = {f"ms at {few.sessions:,}": first, f"ms at {many.sessions:,}": last}
        target = None if name in GROWS else at_most(1.5)
        yield Figure(f"many {kind} {name}", f"{kind}: {name}", last / first, "× first", target, beside)


def figures(plan: Plan) -> Iterator[Figure]:
    sizes = (1_000, plan.pick(100_000, 10_000))
    few, many = (fill_sqlite(plan.path(f"many-{size}"), size) for size in sizes)
    yield from compare("SQLite", few, many)
    yield Figure(
        "many SQLite size", "SQLite: bytes a session", size_on_disk(Path(many.url)) / many.sessions, "B"
    )
    cluster = DurableCluster()
    try:
        databases = [Database(cluster, f"many{size}") for size in sizes]
        few, many = (fill_postgres(database, size) for database, size in zip(databases, sizes, strict=True))
        yield from compare("PostgreSQL", few, many)
        yield from _table_sizes(databases[-1])
    finally:
        cluster.close()


def _table_sizes(database: Database) -> Iterator[Figure]:
    query = (
        "select relname, pg_table_size(oid), pg_indexes_size(oid) from pg_class where relnamespace = 'oakleaf'::regnamespace "
        "and relkind = 'r' order by pg_total_relation_size(oid) desc limit 6"
    )
    for name, table, indexes in database.run(query):
        beside = {"rows MB": table / 1e6, "indexes MB": indexes / 1e6}
        yield Figure(
            f"many size {name}", f"PostgreSQL: size of {name}", (table + indexes) / 1e6, "MB", None, beside
        )
