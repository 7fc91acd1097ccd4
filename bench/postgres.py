"""Measure PostgreSQL: a step against one bare `psycopg` statement that inserts the same messages.

Uses its own server with `fsync` and `synchronous_commit` on, and the store as an ordinary role under row level
security, as deployed, in a space with a few thousand sessions. Bare is one table without policies and one
prepared statement per step; `SameRows` is a statement that writes all the rows Oakleaf does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from threading import Thread
from time import perf_counter_ns, time_ns
from typing import Any

import psycopg

import oakleaf
from oakleaf.core.messages import Message
from tests.support.postgres import Database, DatabaseHost, PostgresServer

from .bare import decode, encode
from .floor import Rows, counts, new_key
from .measure import Plan, System, Times, alternate, middle, ms, percentile, step_by_step
from .ours import add, messages_of
from .report import Figure, at_most
from .workload import Step, turns_of

OTHERS = """
insert into oakleaf.session select (jsonb_populate_record(session, jsonb_build_object(
    'number', nextval('oakleaf.session_number'), 'id', 'ses_other' || n))).*
from oakleaf.session cross join generate_series(1, 2000) as n
"""
DURABLE = ("fsync=on", "synchronous_commit=on", "shared_buffers=256MB", "max_wal_size=4GB")


class DurableCluster(DatabaseHost):
    def __init__(self) -> None:
        self._external_url, self._database_names = None, []
        self.server = PostgresServer(DURABLE)
        self.server.start()


class BarePostgres:
    """The driver alone: a table of bodies, one statement and one commit per step."""

    def __init__(self, database: Database, name: str) -> None:
        self.table = f"bare_{name}"
        self.connection: psycopg.Connection[Any] = psycopg.connect(
            database.owner_url, autocommit=True, prepare_threshold=0
        )
        self.connection.execute(
            f"create table {self.table} (id bigint generated always as identity primary key, body bytea)"
        )
        offered = self.connection.execute(
            "select enumvals from pg_settings where name = 'default_toast_compression'"
        ).fetchone()
        if offered and "lz4" in offered[0]:
            self.connection.execute(f"alter table {self.table} alter body set compression lz4")

    def append(self, messages: Sequence[Message]) -> None:
        places = ", ".join(["(%s)"] * len(messages))
        query: Any = f"insert into {self.table} (body) values {places}"
        self.connection.execute(query, [encode(message) for message in messages])

    def step(self, step: Step) -> None:
        self.append(step.messages)

    def load(self) -> list[Any]:
        query: Any = f"select body from {self.table} where id between %s and %s order by id"
        rows = self.connection.execute(query, (1, 1 << 62), binary=True).fetchall()
        return [decode(body) for (body,) in rows]

    def close(self) -> None:
        self.connection.close()


class SameRows(Rows):
    """The rows of an Oakleaf step in one bare statement, without policies, checks or Oakleaf's code."""

    TABLES = """
    create table {0}_entry (id bigint primary key, turn bigint, step bigint, kind text, role text, internal boolean,
        model text, finish text, entry_id bytea, at bigint, evidence bytea, body bytea);
    create index on {0}_entry (id) where not internal;
    create table {0}_session (number bigint primary key, branch bigint, seq bigint, facts bigint, calls bigint, input bigint,
        output bigint, cache_read bigint, cache_write bigint, at bigint) with (fillfactor = 50);
    insert into {0}_session values (1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    create table {0}_journal (id bigint primary key, kind text, key text, branch bigint, first bigint, last bigint, data text, at bigint);
    create table {0}_usage (id bigint primary key, call_id text, branch bigint, after_seq bigint, answer_seq bigint,
        input bigint, output bigint, cache_read bigint, cache_write bigint, purpose text, model text, at bigint);
    """

    def __init__(self, database: Database, name: str) -> None:
        super().__init__()
        self.name = f"rows_{name}"
        self.connection: psycopg.Connection[Any] = psycopg.connect(
            database.owner_url, autocommit=True, prepare_threshold=0
        )
        tables: Any = self.TABLES.format(self.name)
        self.connection.execute(tables, prepare=False)

    def step(self, step: Step) -> None:
        at, first, usage = time_ns() // 1_000, self.seq + 1, step.usage
        inserts = {"entry": self.entries(step, at)}
        spent = counts(usage)
        self.facts += 1
        inserts["journal"] = [(1 << 32 | self.facts, "appended", new_key(), 1, first, self.seq, None, at)]
        if usage is not None:
            self.calls += 1
            call = (new_key(), 1, first - 1, first, *spent, None, None)
            inserts["usage"] = [(1 << 32 | self.calls, *call, at)]
        head = (self.facts, at, self.seq, usage is not None, *spent, first - 1, self.facts - 1)
        values = [*head, *(value for rows in inserts.values() for row in rows for value in row)]
        self.connection.execute(self._statement({name: len(rows) for name, rows in inserts.items()}), values)

    def _statement(self, counted: dict[str, int]) -> Any:
        widths = {"entry": 12, "journal": 8, "usage": 12}
        parts = [
            f"{name} as (insert into {self.name}_{name} values "
            + ", ".join([f"({', '.join(['%s'] * widths[name])})"] * count)
            + ")"
            for name, count in counted.items()
        ]
        return (
            f"with head as (update {self.name}_session set facts = %s, at = %s, seq = %s, calls = calls + %s::int, "
            "input = input + %s, output = output + %s, cache_read = cache_read + %s, cache_write = cache_write + %s "
            f"where number = 1 and seq = %s and facts = %s returning number), {', '.join(parts)} select number from head"
        )

    def close(self) -> None:
        self.connection.close()


class OurPostgres:
    def __init__(self, database: Database, name: str = "") -> None:
        self.sessions = oakleaf.open(database.url)
        self.session = self.sessions.start(agent="bench")

    def step(self, step: Step) -> None:
        add(self.session, step)

    def load(self) -> list[Any]:
        return self.session.path()

    def close(self) -> None:
        self.sessions.close()


def figures(plan: Plan) -> Iterator[Figure]:
    cluster = DurableCluster()
    try:
        database = Database(cluster)
        OurPostgres(database).close()
        database.run(OTHERS)
        yield _append(plan, database)
        for messages in [80, 800] if plan.is_quick else [80, 800, 8_000]:
            yield from _read(plan, database, messages)
        yield _deep(plan, database)
        yield _crowd(plan, database)
    finally:
        cluster.close()


def _append(plan: Plan, database: Database) -> Figure:
    """Grow fresh tables in parallel for several rounds."""
    steps = [step for turn in turns_of(plan.pick(800, 240)) for step in turn]
    by_kind: Times = {"bare": [], "ours": [], "control": [], "same rows": []}
    for number in range(plan.pick(4, 1)):
        systems: dict[str, System] = {
            "bare": BarePostgres(database, f"a{number}"),
            "ours": OurPostgres(database),
            "control": BarePostgres(database, f"c{number}"),
            "same rows": SameRows(database, f"r{number}"),
        }
        for name, times in step_by_step(systems, steps, seed=number).items():
            by_kind[name] += times
        for system in systems.values():
            system.close()
    ours, bare, same = by_kind["ours"], [*by_kind["bare"], *by_kind["control"]], by_kind["same rows"]
    beside = {
        "mean": mean(ours) / mean(bare),
        "more µs": (middle(ours) - middle(bare)) / 1e3,
        "p50 ms": ms(middle(ours)),
        "bare": ms(middle(bare)),
        "p99 ms": ms(percentile(ours, 0.99)),
        "× same rows": middle(ours) / middle(same),
        "noise ×": middle(by_kind["control"]) / middle(by_kind["bare"]),
    }
    ratio = middle(ours) / middle(bare)
    return Figure("postgres_append", "PostgreSQL: append a step", ratio, "× bare", at_most(2.5), beside)


def _read(plan: Plan, database: Database, messages: int) -> Iterator[Figure]:
    ours, bare = OurPostgres(database), BarePostgres(database, f"load_{messages}")
    for turn in turns_of(messages):
        ours.session.append(messages_of(turn))
        bare.append(messages_of(turn))
    assert len(ours.load()) == len(bare.load()) == messages
    times = alternate({"ours": ours.load, "bare": bare.load}, plan.pick(40, 15))
    one, other = middle(times["ours"]), middle(times["bare"])
    best = min(times["ours"]) / min(times["bare"])
    beside = {"ms": ms(one), "bare": ms(other), "best ×": best}
    what = f"PostgreSQL: load a path of {messages:,}"
    yield Figure(f"postgres_load_{messages}", what, one / other, "× bare", at_most(1.3), beside)
    tail = alternate({"last": lambda: ours.session.path(last=20)}, plan.pick(100, 30))["last"]
    yield Figure(f"postgres_last_20_of_{messages}", "  the last 20 of it", ms(middle(tail)), "ms")
    forks = alternate({"fork": lambda: ours.session.fork(messages // 2)}, plan.pick(60, 20))["fork"]
    what = f"PostgreSQL: fork at the middle of {messages:,}"
    beside = {"p99 ms": ms(percentile(forks, 0.99))}
    yield Figure(f"postgres_fork_{messages}", what, ms(middle(forks)), "ms", at_most(5), beside)
    ours.close()
    bare.close()


def _deep(plan: Plan, database: Database) -> Figure:
    """Compare a chain of forks, one turn each, with the same turns in one branch."""
    depth = plan.pick(300, 40)
    deep, flat = OurPostgres(database), OurPostgres(database)
    for turn in turns_of(8 * depth):
        flat.session.append(messages_of(turn))
        deep.session.append(messages_of(turn))
        deep.session = deep.session.fork()
    times = alternate({"deep": deep.load, "flat": flat.load}, plan.pick(15, 10))
    one, other = middle(times["deep"]), middle(times["flat"])
    deep.close()
    flat.close()
    what = f"PostgreSQL: load a path of {depth:,} branches"
    beside = {"ms": ms(one), "flat": ms(other)}
    return Figure("postgres_load_deep", what, one / other, "× flat", at_most(1.3), beside)


def _crowd(plan: Plan, database: Database) -> Figure:
    """Append to 16 sessions from 16 threads."""
    store = oakleaf.open(database.url)
    steps = [step for turn in turns_of(plan.pick(240, 80)) for step in turn]
    times: list[int] = []

    def drive() -> None:
        session = store.start(agent="bench")
        for step in steps:
            began = perf_counter_ns()
            add(session, step)
            times.append(perf_counter_ns() - began)

    threads = [Thread(target=drive) for _ in range(16)]
    began = perf_counter_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = (perf_counter_ns() - began) / 1e9
    store.close()
    beside = {"p50 ms": ms(middle(times)), "p99 ms": ms(percentile(times, 0.99)), "worst ms": ms(max(times))}
    return Figure(
        "postgres_crowd", "PostgreSQL: steps/s of 16 sessions", len(times) / took, "/s", None, beside
    )
