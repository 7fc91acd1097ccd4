"""The whole contract behind a real PgBouncer in transaction mode: three server connections for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import bough
from bough import assistant, user
from support.pgbouncer import PgBouncer, pgbouncer_path
from support.postgres import APP, CLIENT, Database
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


def test_tenants_that_share_its_connections_never_see_each_other(url: str) -> None:
    """The identity is set in each transaction: what the last one left on a connection is gone."""

    def live(tenant: int) -> list[str]:
        texts: list[str] = []
        with bough.open(url, space=f"space {tenant}") as store:
            for number in range(10):
                session = store.start(title=f"{tenant}.{number}")
                session.append([user(f"from {tenant}"), assistant("yes")])
                texts += [row.title or "" for row in store.sessions(limit=100).sessions]
        return texts

    with ThreadPoolExecutor(8) as pool:
        for tenant, texts in enumerate(pool.map(live, range(8))):
            assert len(texts) == 55
            assert {title.partition(".")[0] for title in texts} == {str(tenant)}
