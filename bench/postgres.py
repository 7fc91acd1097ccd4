"""The same against PostgreSQL: a step beside one bare `psycopg` statement that inserts the same rows.

A server of its own, `fsync` and `synchronous_commit` on, and the store as an ordinary role under row level
security, as it is deployed, in a space that has some thousand sessions. Bare is one table without policies, one
prepared statement per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from threading import Thread
from time import perf_counter_ns
from typing import Any

import psycopg

import bough
from bough.core.messages import Message
from tests.postgres import Cluster, Database, Server

from .bare import decode, encode
from .measure import Plan, System, Times, alternate, middle, ms, percentile, step_by_step
from .ours import add, messages_of
from .report import Figure, at_most
from .workload import Step, turns_of

OTHERS = """
insert into bough.session select (jsonb_populate_record(session, jsonb_build_object(
    'no', nextval('bough.session_no'), 'id', 'ses_other' || n))).*
from bough.session cross join generate_series(1, 2000) as n
"""
DURABLE = ("fsync=on", "synchronous_commit=on", "shared_buffers=256MB", "max_wal_size=4GB")


class DurableCluster(Cluster):
    def __init__(self) -> None:
        self._given, self._made = None, []
        self.server = Server(DURABLE)
        self.server.start()


class BarePostgres:
    """The driver alone: a table of bodies, one statement and so one commit per step."""

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


class OurPostgres:
    def __init__(self, database: Database, name: str = "") -> None:
        self.sessions = bough.open(database.url)
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
    """Fresh tables grown side by side, several times over."""
    steps = [step for turn in turns_of(plan.pick(800, 240)) for step in turn]
    found: Times = {"bare": [], "ours": [], "control": []}
    for number in range(plan.pick(4, 1)):
        systems: dict[str, System] = {
            "bare": BarePostgres(database, f"a{number}"),
            "ours": OurPostgres(database),
            "control": BarePostgres(database, f"c{number}"),
        }
        for name, times in step_by_step(systems, steps, seed=number).items():
            found[name] += times
        for system in systems.values():
            system.close()
    ours, bare = found["ours"], [*found["bare"], *found["control"]]
    beside = {
        "mean": mean(ours) / mean(bare),
        "more µs": (middle(ours) - middle(bare)) / 1e3,
        "p50 ms": ms(middle(ours)),
        "bare": ms(middle(bare)),
        "p99 ms": ms(percentile(ours, 0.99)),
        "noise ×": middle(found["control"]) / middle(found["bare"]),
    }
    ratio = middle(ours) / middle(bare)
    return Figure("postgres_append", "PostgreSQL: append a step", ratio, "× bare", at_most(1.25), beside)


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
    """A fork of a fork of a fork, one turn each, beside the same turns in one branch."""
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
    """16 sessions, each driven by a thread of its own."""
    store = bough.open(database.url)
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
