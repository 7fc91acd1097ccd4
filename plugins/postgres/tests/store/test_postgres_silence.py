"""A server that hangs, a proxy that swallows what is sent, a process that is paused: nobody waits for them without an end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest

import oakleaf
from oakleaf import assistant, errors, user
from oakleaf_postgres.store import connections
from oakleaf_postgres.store.url import Address
from support.postgres import APP, Database, DatabaseHost, PostgresServer
from support.postgres_proxy import PostgresProxy
from support.processes import wait_until


@pytest.fixture
def proxy(database: Database) -> Iterator[PostgresProxy]:
    if database.host.server is None:
        pytest.skip("wants a server of our own")
    wire = PostgresProxy(database.host.server.folder)
    yield wire
    wire.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes 30 s takes one."""
    monkeypatch.setattr(connections, "SERVER_TIMEOUT_SECONDS", 1.0)


@pytest.mark.usefixtures("short")
class TestASilentServer:
    def test_a_read_of_a_proxy_that_swallows_what_is_sent_ends(
        self, database: Database, proxy: PostgresProxy
    ) -> None:
        with oakleaf.open(proxy.url(database.name, APP, silence="1")) as store:
            store.start()
            proxy.is_silent = True
            began = time.monotonic()
            with pytest.raises(errors.ServerUnreachable, match="did not answer for 1 s"):
                store.sessions()
            assert time.monotonic() - began < 5
            proxy.is_silent = False
            assert len(store.sessions().sessions) == 1

    @pytest.mark.parametrize("write", ["append", "fork", "title", "enqueue", "start"])
    def test_a_write_ends_with_an_unknown_outcome(
        self, database: Database, proxy: PostgresProxy, write: str
    ) -> None:
        with oakleaf.open(proxy.url(database.name, APP, silence="1")) as store:
            session = store.start()
            session.append([user("1"), assistant("2")])
            writes: dict[str, Any] = {
                "append": lambda: session.append([user("3")]),
                "fork": lambda: session.fork(at=1),
                "title": lambda: session.title("t"),
                "enqueue": lambda: session.enqueue("later"),
                "start": store.start,
            }
            proxy.is_silent = True
            with pytest.raises((errors.UnknownCommit, errors.ServerUnreachable)):
                writes[write]()
            proxy.is_silent = False
            writes[write]()
            assert list(store.verify()) == []

    def test_opening_a_store_ends_too(self, database: Database, proxy: PostgresProxy) -> None:
        proxy.is_silent = True
        with pytest.raises(errors.ServerUnreachable, match="did not answer for 1 s"):
            oakleaf.open(proxy.url(database.name, APP, silence="1"))

    def test_a_statement_that_is_at_work_for_long_can_have_more(self, database: Database) -> None:
        slow = "select pg_sleep(1.5)"
        with oakleaf.open(f"{database.url}&silence=0.5") as store, pytest.raises(errors.ServerUnreachable):
            store.backend.connections.query(slow)  # type: ignore[attr-defined]
        with oakleaf.open(f"{database.url}&silence=off") as store:
            assert store.backend.connections.query(slow)  # type: ignore[attr-defined]


@contextmanager
def servers() -> Iterator[tuple[Database, PostgresServer]]:
    """A primary, and a standby of it."""
    host = DatabaseHost.__new__(DatabaseHost)
    host._external_url, host._database_names, host.server = None, [], PostgresServer()
    host.server.start()
    database = Database(host)
    standby = PostgresServer(primary=host.server)
    standby.start()
    try:
        yield database, standby
    finally:
        standby.close()
        host.close()


def processes_of(server: PostgresServer) -> list[int]:
    assert server._process is not None
    main = server._process.pid
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [main, *(pid for pid, parent in pairs if parent == main)]


def test_a_primary_that_hangs_is_left_for_the_one_that_took_over() -> None:
    """Its connections were kept for ever: the kernel of a machine whose server is paused answers."""
    with servers() as (database, standby):
        assert database.host.server is not None
        hosts = ",".join(quote(str(server.folder), safe="") for server in (database.host.server, standby))
        url = f"postgresql://{APP}@/{database.name}?host={hosts}&target_session_attrs=read-write&connect_timeout=2&silence=1"
        with oakleaf.open(url) as store:
            session = store.start(session_id="ses_moves")
            session.append([user("before")])
            received = "select pg_last_wal_replay_lsn() >= '{}'::pg_lsn"
            ((position,),) = database.run("select pg_current_wal_insert_lsn()::text")
            wait_until(lambda: _fetch(standby, database.name, received.format(position)) == [(True,)])
            paused = processes_of(database.host.server)
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            try:
                standby.promote()
                session.append([assistant("after")])
                assert len(store.session("ses_moves").path()) == 2
            finally:
                for pid in paused:
                    os.kill(pid, signal.SIGCONT)


def _fetch(server: PostgresServer, database: str, query: str) -> list[Any]:
    import psycopg

    with psycopg.connect(server.url(database)) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


class TestTheAddress:
    def test_the_kernel_notices_a_machine_that_is_gone(self) -> None:
        options = Address.parse("postgresql://ann@db/x").connect_options
        assert options["tcp_user_timeout"] == 30_000
        seconds = options["keepalives_idle"] + options["keepalives_interval"] * options["keepalives_count"]
        assert (seconds, options["connect_timeout"]) == (30, 10)

    def test_the_url_decides(self) -> None:
        url = "postgresql://ann@db/x?tcp_user_timeout=5&keepalives_idle=1&connect_timeout=3&silence=7.5"
        address = Address.parse(url)
        assert not {"tcp_user_timeout", "keepalives_idle", "connect_timeout"} & set(address.connect_options)
        assert (address.silence, Address.parse("postgresql://db/x?silence=off").silence) == (7.5, None)
        assert "silence" not in address.url

    @pytest.mark.parametrize("silence", ["0", "-1", "soon", "1e3", ""])
    def test_a_limit_that_is_none_is_refused(self, silence: str) -> None:
        with pytest.raises(errors.InvalidArgument, match="off, or seconds such as 60"):
            Address.parse(f"postgresql://db/x?silence={silence}")


# -- a process that is paused ------------------------------------------------------------------------

PAUSED = """
import os, signal, sys
import oakleaf
from oakleaf_postgres.store import store as module

def pausing(work):
    def run(*arguments):
        done = work(*arguments)
        print("paused", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return done
    return run

module.lock_row = pausing(module.lock_row)
with oakleaf.open(sys.argv[1]) as store:
    {act}
    print("done", flush=True)
"""
ACTS = {
    "purge": ("store.purge('ses_old')", lambda store: store.purge("ses_old")),
    "latest_or_start": (
        "print(store.latest_or_start('conv').session_id)",
        lambda store: store.latest_or_start("conv"),
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_paused_process_holds_the_lock_of_its_space_no_longer(
    act: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held it until somebody ended the process; nobody else could purge, fork or start there."""
    code, again = ACTS[act]
    program = PAUSED.format(act=code)
    program = f"from oakleaf_postgres.store import connections as c\nc.READ_COMMITTED = c.READ_COMMITTED.replace('20s', '1s')\n{program}"
    with oakleaf.open(database.url) as store:
        store.delete(store.start(session_id="ses_old").session_id)
        command = [sys.executable, "-c", program, database.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as paused:
            assert paused.stdout is not None
            try:
                assert paused.stdout.readline() == "paused\n"
                began = time.monotonic()
                again(store)
                assert 0.2 < time.monotonic() - began < 15
            finally:
                _continue(paused)
            assert ("NotFound" if act == "purge" else "done") in paused.stdout.read()
        assert list(store.verify()) == []


def _continue(paused: subprocess.Popen[str]) -> None:
    """Let it run to its end; it pauses at each lock."""
    while paused.poll() is None:
        paused.send_signal(signal.SIGCONT)
        time.sleep(0.05)


def test_who_waits_for_a_lock_waits_longer_than_a_paused_process_may_hold_it() -> None:
    (idle,) = re.findall(r"timeout = '(\d+)s'", connections.READ_COMMITTED)
    (lock,) = re.findall(r"lock_timeout', '(\d+)s'", connections.SET_FOR_WRITE)
    assert int(idle) < int(lock) < (Address.parse("postgresql://db/x").silence or 0)
