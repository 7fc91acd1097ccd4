"""One process serves many tenants on one pool of connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import oakleaf
from oakleaf import assistant, user
from support.postgres import Database, DatabaseHost, PostgresServer

SPACES = 300


def test_three_hundred_spaces_share_one_pool() -> None:
    """Each space had cost a pool of its own, and the 98th was refused."""
    host = DatabaseHost.__new__(DatabaseHost)
    settings = ("fsync=off", "max_connections=100")
    host._external_url, host._database_names, host.server = None, [], PostgresServer(settings)
    host.server.start()
    try:
        database = Database(host)
        with oakleaf.open(f"{database.url}&connections=8") as store, ThreadPoolExecutor(16) as threads:
            tenants = [store.in_space(f"tenant-{n}") for n in range(SPACES)]

            def work(n: int) -> None:
                session = tenants[n].start(session_id=f"ses_{n}", owner="ann")
                session.append([user(f"question {n}"), assistant("answer")])

            list(threads.map(work, range(SPACES)))
            ((most,),) = database.run("show max_connections")
            query = "select count(*) from pg_stat_activity where application_name = 'oakleaf'"
            ((used,),) = database.run(query)
            assert (most, 0 < used <= 8) == ("100", True)
            for n, tenant in enumerate(tenants):
                assert [row.session_id for row in tenant.sessions()] == [f"ses_{n}"]
    finally:
        host.close()
