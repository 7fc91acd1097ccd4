"""With a synchronous standby nothing is acknowledged that the standby lacks, whatever happens to the connection."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from signal import SIGQUIT
from typing import Any

import psycopg
import pytest

import oakleaf
from oakleaf import Store, assistant, errors, user
from oakleaf_postgres.store import connections
from support.postgres import APP, Database, DatabaseHost, PostgresServer
from support.processes import wait_until
from support.terminal import oakleaf as run_command

SETTINGS = ("fsync=off", "synchronous_commit=on")
WAITING = f"select pid from pg_stat_activity where usename = '{APP}' and wait_event = 'SyncRep'"


class Primary(Database):
    """A database whose commits wait for a synchronous standby while one is required."""

    def _require(self, standby: str) -> None:
        self.run(f"alter system set synchronous_standby_names = '{standby}'")
        self.run("select pg_reload_conf()")
        wait_until(lambda: self.run("show synchronous_standby_names") == [(standby,)])
        wait_until(lambda: self._is_waited_for() == bool(standby))

    def _is_waited_for(self) -> bool:
        """Whether a commit waits for a standby: the server's checkpointer decides it, some time after the setting."""
        with psycopg.connect(self.owner_url, autocommit=True) as probe, ThreadPoolExecutor(1) as pool:
            pid = probe.info.backend_pid
            query = f"select pid from pg_stat_activity where pid = {pid} and wait_event = 'SyncRep'"
            done = pool.submit(probe.execute, "select pg_logical_emit_message(true, 'probe', '')")
            wait_until(lambda: done.done() or self.run(query))
            is_waiting = not done.done()
            self.run(f"select pg_cancel_backend({pid})")
            done.result(30)
            return is_waiting

    def waiting(self) -> set[int]:
        return {pid for (pid,) in self.run(WAITING)}

    @contextmanager
    def required(self, standby: str) -> Iterator[None]:
        """Require this standby, which may be absent."""
        self._require(standby)
        try:
            yield
        finally:
            self._require("")


@pytest.fixture(scope="module")
def primary() -> Iterator[Primary]:
    host = DatabaseHost.__new__(DatabaseHost)
    host._external_url, host._database_names, host.server = None, [], PostgresServer(SETTINGS)
    host.server.start()
    yield Primary(host)
    host.close()


@pytest.fixture
def store(primary: Primary) -> Iterator[Store]:
    with oakleaf.open(primary.url) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> oakleaf.Session:
    session = store.start()
    session.append([user("1"), assistant("2")])
    session.append([user("3")], key="mail-1")
    return session


Write = Callable[[Store, oakleaf.Session], object]
WRITES: dict[str, Write] = {
    "start": lambda store, session: store.start(title="new"),
    "start of a known id": lambda store, session: store.start(session_id=session.session_id),
    "fork": lambda store, session: session.fork(at=1),
    "enqueue": lambda store, session: session.enqueue("later"),
    "append": lambda store, session: session.append([assistant("4")]),
    "append with a key": lambda store, session: session.append([assistant("4")], key="mail-2"),
    "append of a known key": lambda store, session: session.append([user("3")], key="mail-1"),
    "rewind": lambda store, session: session.rewind(1),
    "delete": lambda store, session: store.delete(session.session_id),
}


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_what_no_standby_has_is_not_acknowledged(
    primary: Primary, store: Store, session: oakleaf.Session, write: Write, end: str
) -> None:
    """PostgreSQL commits locally, then waits. Whoever ends the wait makes it a commit that may be lost with the primary."""
    check_not_acknowledged(primary, lambda: write(store, session), end)
    assert list(store.verify()) == []


def check_not_acknowledged(
    primary: Primary, write: Callable[[], object], end: str = "pg_cancel_backend"
) -> None:
    """Check that a write is not acknowledged when its wait for the standby ends, but when the standby is there."""
    with ThreadPoolExecutor(1) as pool:
        with primary.required("absent"):
            done = pool.submit(write)
            wait_until(lambda: done.done() or primary.waiting())
            first = primary.waiting()
            assert first, "the write was acknowledged without a standby"
            primary.run(f"select {end}(pid) from ({WAITING}) as waiting")
            wait_until(lambda: done.done() or primary.waiting() - first)
            assert not done.done()
        done.result(30)


def test_a_change_that_the_server_has_not_ended_is_not_denied(
    primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is cut off, and the server holds the session's lock until a standby answers."""
    monkeypatch.setattr(connections, "IDENTITY", connections.IDENTITY.replace("25s", "200ms"))
    with oakleaf.open(primary.url) as store, ThreadPoolExecutor(1) as pool:
        session = store.start()
        with primary.required("absent"):
            done = pool.submit(session.append, [user("1")])
            wait_until(primary.waiting)
            cut_off(primary.waiting())
            with pytest.raises(errors.UnknownCommit, match="the server has not ended it yet"):
                done.result(30)
        wait_until(lambda: store.session(session.session_id).leaf.seq == 1)


def cut_off(server_processes: set[int]) -> None:
    """Break the connections of these server processes, which do not notice."""
    connections = [
        each for each in gc.get_objects() if isinstance(each, psycopg.Connection) and not each.closed
    ]
    for number in [
        os.dup(each.pgconn.socket) for each in connections if each.info.backend_pid in server_processes
    ]:
        with socket.socket(fileno=number) as wire:
            wire.shutdown(socket.SHUT_RDWR)


def test_a_role_that_wants_no_warnings_gets_this_one(primary: Primary) -> None:
    primary.run(f"alter role {APP} set client_min_messages = error")
    try:
        with oakleaf.open(primary.url) as store:
            session = store.start()
            check_not_acknowledged(primary, lambda: session.enqueue("later"))
            check_not_acknowledged(primary, lambda: session.append([user("1")]))
    finally:
        primary.run(f"alter role {APP} reset all")


def test_what_was_acknowledged_survives_a_failover(primary: Primary) -> None:
    server = primary.host.server
    assert server is not None
    standby = PostgresServer(SETTINGS, primary=server)
    standby.start()
    with oakleaf.open(primary.url) as store, ThreadPoolExecutor(4) as pool:
        session, other = store.start(session_id="ses_survives"), store.start()
        for each in (session, other):
            each.append([user("1")])
        with primary.required("*"):
            standby.stop()
            started = pool.submit(store.start)
            forked = pool.submit(session.fork, at=1)
            queued = pool.submit(session.enqueue, "later")
            appended = pool.submit(other.append, [assistant("2")], key="mail-1")
            writes: list[Future[Any]] = [started, forked, queued, appended]
            wait_until(lambda: len(primary.waiting()) >= 3)  # the fork and the input wait for each other
            server.stop(SIGQUIT)
            server.start()
            wait_until(lambda: any(write.done() for write in writes) or len(primary.waiting()) >= 3)
            assert not any(write.done() for write in writes)
            standby.start()
            ids = {started.result(30).session_id, forked.result(30).session_id}
            assert (queued.result(30), appended.result(30).is_repeat) == (1, False)
            server.stop(SIGQUIT)
            standby.promote()
            with oakleaf.open(standby.url(primary.name, APP)) as promoted:
                assert {row.session_id for row in promoted.sessions().sessions} >= ids
                assert len(promoted.backend.inbox("ses_survives")) == 1
                assert promoted.session(other.session_id).append([assistant("2")], key="mail-1").is_repeat
            standby.close()
            server.start()


def test_a_search_on_a_standby_says_what_is_not_indexed(primary: Primary) -> None:
    server = primary.host.server
    assert server is not None
    with oakleaf.open(primary.url) as store:
        store.start(title="indexed").append([user("an old whale")])
        store.index()
        standby = PostgresServer(SETTINGS, primary=server)
        standby.start()
        try:
            url = standby.url(primary.name, APP)
            store.start().append([user("a whale, a narwhal")])
            with psycopg.connect(url, autocommit=True) as reader:
                target = primary.run("select pg_current_wal_lsn()")[0][0]
                replayed = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
                wait_until(lambda: reader.execute(replayed, (target,)).fetchone() == (True,))
            found = run_command("search", "--json", "whale", store=url)
            assert (found.code, [hit["title"] for hit in found.json["hits"]]) == (0, ["indexed"])
            assert found.json["unindexed_sessions"] == 1
            assert "cannot be written" in found.json["index_error"]
            nothing = run_command("search", "--json", "narwhal", store=url)
            assert (nothing.code, nothing.json["hits"], nothing.json["unindexed_sessions"]) == (1, [], 1)
        finally:
            standby.close()
