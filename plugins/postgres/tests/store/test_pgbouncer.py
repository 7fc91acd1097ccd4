"""The whole contract behind a real PgBouncer in transaction mode: three server connections for everybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import oakleaf
from oakleaf import ScriptedModel, assistant, user
from oakleaf_postgres import absurd
from oakleaf_postgres.absurd import schema as absurd_schema
from oakleaf_postgres.absurd.engine import Agent
from oakleaf_postgres.absurd.worker import Worker
from support.pgbouncer import PgBouncer, pgbouncer_path
from support.postgres import APP, CLIENT, Database, DatabaseHost
from support.processes import wait_until
from support.store_contract import PostgresConformance

pytestmark = pytest.mark.skipif(
    pgbouncer_path() is None, reason="PgBouncer is not here: apt-get install pgbouncer"
)


@pytest.fixture(scope="module")
def bouncers() -> Iterator[dict[str, PgBouncer]]:
    """One for each server, and a server is made for each worker: so one."""
    running_bouncers: dict[str, PgBouncer] = {}
    yield running_bouncers
    for bouncer in running_bouncers.values():
        bouncer.close()


@pytest.fixture
def url(database: Database, bouncers: dict[str, PgBouncer]) -> str:
    if database.host.server is None:
        pytest.skip("wants a server of our own")
    folder = database.host.server.folder
    if str(folder) not in bouncers:
        bouncers[str(folder)] = PgBouncer(folder, (APP, CLIENT)).wait(database.name, APP)
    return bouncers[str(folder)].url(database.name, APP)


class TestBehindPgBouncer(PostgresConformance):
    """At the address above."""


@pytest.mark.parametrize("option", ["", "&prepared=on", "&prepared=off"])
def test_tenants_that_share_its_connections_never_see_each_other(url: str, option: str) -> None:
    """The identity is set in each transaction: what the last one left on a connection is gone.

    A version that does not support prepared statements is noticed: without the option, clients ran each other's.
    """
    url = url.partition("&prepared")[0] + option

    def live(tenant: int) -> list[str]:
        texts: list[str] = []
        with oakleaf.open(url, space=f"space {tenant}") as store:
            for number in range(10):
                session = store.start(title=f"{tenant}.{number}")
                session.append([user(f"from {tenant}"), assistant("yes")])
                texts += [row.title or "" for row in store.sessions(limit=100).sessions]
        return texts

    with ThreadPoolExecutor(8) as pool:
        for tenant, texts in enumerate(pool.map(live, range(8))):
            assert len(texts) == 55
            assert {title.partition(".")[0] for title in texts} == {str(tenant)}


def test_a_worker_and_its_clients_share_its_connections(url: str, database: Database) -> None:
    pooled = Database(database.host, "pooled")
    absurd_schema.install(pooled.owner_url, "pooled")
    plain = url.partition("&prepared")[0].replace(database.name, pooled.name)
    worker = Worker(plain, [Agent("a", ScriptedModel(lambda request: "Hi."))], queue="pooled", lease=5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with oakleaf.open(plain) as store:
            sessions = [store.start("a") for _ in range(6)]
            for session in sessions:
                absurd.send(session, "hello", queue="pooled")
            wait_until(lambda: all(session.refresh().status == "idle" for session in sessions))
            assert [len(session.path()) for session in sessions] == [2] * 6
    finally:
        worker.stop()
        thread.join()


def test_calls_go_on_soon_after_the_server_behind_it_has_restarted() -> None:
    """What holds them is the pooler: it asks a server that refused it again after `server_login_retry`, 15 s by default."""
    host = DatabaseHost()
    server = host.server
    if server is None:
        pytest.skip("wants a server of our own")
    database = Database(host)
    bouncer = PgBouncer(server.folder, (APP, CLIENT)).wait(database.name, APP)
    try:
        with oakleaf.open(bouncer.url(database.name, APP)) as store, ThreadPoolExecutor(8) as pool:
            sessions = [store.start() for _ in range(8)]
            server.stop()
            calls = [pool.submit(session.append, [user("while it was away")]) for session in sessions]
            reads = [pool.submit(lambda: len(store.sessions().sessions)) for _ in range(4)]
            time.sleep(0.5)
            server.start()
            began = time.monotonic()
            for call in calls:
                call.result(timeout=20)
            assert [read.result(timeout=20) for read in reads] == [8] * 4
            assert time.monotonic() - began < 8
            assert [session.leaf.seq for session in sessions] == [1] * 8
            assert [len(session.path()) for session in sessions] == [1] * 8
    finally:
        bouncer.close()
        host.close()
