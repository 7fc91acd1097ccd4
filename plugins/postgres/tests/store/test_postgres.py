"""PostgreSQL keeps the whole contract, and its own: lost answers, restarts, many writers, poolers and wrong set-ups."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import StaleLeaf, Store, ToolCall, Usage, assistant, errors, system, user
from oakleaf.core.drafts import Blob, Draft
from oakleaf.core.facts import Titled
from oakleaf.core.tree import Leaf
from oakleaf.stores.base import Change, NewSession
from oakleaf.testing.stores.writer import SessionWriter
from oakleaf_postgres.absurd.schema import install
from oakleaf_postgres.errors import MissingPermission
from oakleaf_postgres.store import connections as postgres_connections
from oakleaf_postgres.store import schema as postgres_schema
from oakleaf_postgres.store.rights import CLIENT, SERVICE
from oakleaf_postgres.store.store import PostgresStore
from oakleaf_postgres.store.url import Address
from support.pgbouncer import pgbouncer_path
from support.postgres import APP, Database, DatabaseHost, PostgresServer
from support.postgres_fixtures import PostgresStoreCache
from support.postgres_proxy import PostgresProxy
from support.processes import wait_until
from support.soak import SOAK
from support.store_contract import PostgresConformance
from support.terminal import oakleaf as command

PERVERSE = ("enable_nestloop", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")
CRASHING = ("fsync=off", "synchronous_commit=on")
CUT = f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{APP}'"


class TestPostgres(PostgresConformance):
    @pytest.fixture
    def url(self, database: Database) -> str:
        return database.url


class TestAnyPlan(TestPostgres):
    """The identity is set before anything is read, however PostgreSQL chooses to read it.

    A statement that stands alone sets it in its own condition; were a table read before that, the policies would
    let nothing through and the contract would fail here.
    """

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _plans(cls, migrated_database: Database) -> Iterator[None]:
        migrated_database.run("; ".join(f"alter role {APP} set {setting} = off" for setting in PERVERSE))
        yield
        migrated_database.run(f"alter role {APP} reset all")


@pytest.fixture
def wire(database: Database) -> Iterator[PostgresProxy]:
    if database.host.server is None:
        pytest.skip("wants a server of our own")
    proxy = PostgresProxy(database.host.server.folder)
    yield proxy
    proxy.close()


if SOAK or pgbouncer_path() is None:  # else test_pgbouncer.py runs the contract behind the real one

    class TestBehindAPooler(TestPostgres):
        """Each transaction meets another server connection, and nothing is prepared: the contract holds all the same."""

        @pytest.fixture
        def url(self, database: Database) -> Iterator[str]:
            if database.host.server is None:
                pytest.skip("wants a server of our own")
            pooler = PostgresProxy(database.host.server.folder, upstreams=3)
            yield pooler.url(database.name, APP, prepared="off")
            pooler.close()


# -- lost answers ----------------------------------------------------------------------------------


@pytest.fixture
def store(database: Database, wire: PostgresProxy) -> Iterator[Store]:
    with oakleaf.open(wire.url(database.name, APP)) as opened_store:
        yield opened_store


def texts(session: oakleaf.Session) -> list[str]:
    return [entry.message.text for entry in session.path() if entry.message]


def how(wire: PostgresProxy, has_answer: bool) -> Callable[[bytes], None]:
    return wire.lose_answer if has_answer else wire.lose_request


@pytest.mark.parametrize("has_answer", [True, False], ids=["answer lost", "request lost"])
class TestALostConnection:
    """Whether the change was carried out or not before the connection broke, it is there once afterwards."""

    @pytest.mark.smoke
    def test_an_append_is_there_once(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        session.append([user("1")])
        how(wire, has_answer)(b"the second")
        done = session.append([user("the second"), assistant("3")])
        session.append([user("4")])
        assert wire.loss_count == 1
        assert not done.is_repeat
        assert texts(session) == ["1", "the second", "3", "4"]
        facts = store.backend.journal(session.session_id)
        assert [fact.number for fact in facts] == list(range(1, 9))
        assert done.fact_number == 6
        assert list(store.verify()) == []

    def test_a_change_of_many_statements_is_there_once(
        self, store: Store, wire: PostgresProxy, has_answer: bool
    ) -> None:
        session = store.start()
        session.append([user("1"), assistant("2")])
        session.rewind(1)
        how(wire, has_answer)(b"COMMIT")
        session.append([assistant("other 2")])
        assert (wire.loss_count, texts(session)) == (1, ["1", "other 2"])
        assert len(store.backend.branches(session.session_id)) == 2
        assert list(store.verify()) == []

    def test_a_change_that_leaves_the_leaf_is_there_once(
        self, store: Store, wire: PostgresProxy, has_answer: bool
    ) -> None:
        session = store.start()
        how(wire, has_answer)(b"titled")
        session.title("named")
        facts = store.backend.journal(session.session_id)
        assert (wire.loss_count, [fact.kind for fact in facts]) == (1, ["started", "titled"])
        assert session.row.title == "named"

    def test_a_session_is_made_once_and_known_as_new(
        self, store: Store, wire: PostgresProxy, has_answer: bool
    ) -> None:
        how(wire, has_answer)(b"ses_mine")
        writer = SessionWriter(store.backend, "ses_mine", seeds=[system("s")])
        assert (wire.loss_count, writer.is_new, writer.texts()) == (1, True, ["s"])

    def test_a_fork_is_made_once(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        session.append([user("1")])
        how(wire, has_answer)(b'"relation":"fork"')
        fork = session.fork(at=1)
        assert (wire.loss_count, texts(fork)) == (1, ["1"])
        assert len(store.sessions().sessions) == 2

    def test_a_rewind_is_there_once(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        session.append([user("1"), assistant("2")])
        how(wire, has_answer)(b'{"from":')
        session.rewind(1)
        facts = store.backend.journal(session.session_id)
        assert (wire.loss_count, [fact.kind for fact in facts].count("moved")) == (1, 1)
        assert (session.leaf.seq, session.row.leaf.seq) == (1, 1)

    def test_queued_input_waits_once(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        how(wire, has_answer)(b"COMMIT")
        assert session.enqueue("later") == 1
        assert (wire.loss_count, len(store.backend.inbox(session.session_id))) == (1, 1)

    def test_queued_input_that_a_runner_takes_at_once_is_answered_once(
        self, store: Store, wire: PostgresProxy, has_answer: bool, database: Database
    ) -> None:
        session = store.start()
        with oakleaf.open(database.url) as elsewhere:
            runner = elsewhere.session(session.session_id)

            def take() -> None:
                for queued in runner.log.store.inbox(session.session_id):
                    runner.log.append([Draft(user("later"))], takes=queued.number)

            wire.on_loss = take
            how(wire, has_answer)(b"COMMIT")
            assert session.enqueue("later") == 1
            take()
            session.log.refresh()
            assert (wire.loss_count, texts(session)) == (1, ["later"])

    def test_a_purge_tells_what_it_did(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        session.append([user("1"), assistant("2")])
        store.delete(session.session_id)
        how(wire, has_answer)(b"COMMIT")
        purged = store.purge(session.session_id)
        assert (wire.loss_count, purged.sessions, purged.entries) == (1, (session.session_id,), 2)

    def test_a_lease_is_taken_once(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        how(wire, has_answer)(session.session_id.encode())
        assert store.backend.lease(session.session_id, "me", until=2**50, at=1) == 1
        assert wire.loss_count == 1

    def test_a_read_is_asked_again(self, store: Store, wire: PostgresProxy, has_answer: bool) -> None:
        session = store.start()
        session.append([user("1")])
        how(wire, has_answer)(session.session_id.encode())
        assert (texts(session), wire.loss_count) == (["1"], 1)

    def test_what_is_taken_in_is_there_or_refused(
        self, store: Store, wire: PostgresProxy, has_answer: bool
    ) -> None:
        with oakleaf.open("memory:") as elsewhere:
            other = elsewhere.start(session_id="ses_moved")
            other.append([user("1"), assistant("2")])
            other.export(bundle := io.BytesIO())
        how(wire, has_answer)(b"COMMIT")
        if has_answer:
            assert store.import_bundle(io.BytesIO(bundle.getvalue())).added == ("ses_moved",)
        else:  # what comes is read once, so it cannot be written twice
            with pytest.raises(errors.ServerUnreachable, match="nothing was imported"):
                store.import_bundle(io.BytesIO(bundle.getvalue()))
            store.import_bundle(io.BytesIO(bundle.getvalue()))
        assert texts(store.session("ses_moved")) == ["1", "2"]


def test_a_writer_that_is_stale_stays_stale_when_its_connection_breaks(
    store: Store, wire: PostgresProxy
) -> None:
    session = store.start()
    other = store.session(session.session_id)
    other.append([user("first")])
    wire.lose_answer(b"late")
    with pytest.raises(StaleLeaf):
        session.append([user("late")])
    assert texts(other) == ["first"]


def test_what_was_written_is_not_denied_because_somebody_took_over_since(
    store: Store, wire: PostgresProxy, database: Database
) -> None:
    session = store.start()
    fence = store.backend.lease(session.session_id, "me", until=2**50, at=1)
    wire.lose_answer(b"mine")
    wire.on_loss = lambda: database.run("update oakleaf.session set fence = fence + 1, holder = 'other'")
    done = session.log.append([Draft(user("mine"))], fence=fence)
    assert (wire.loss_count, done.leaf.seq, texts(session)) == (1, 1, ["mine"])
    with pytest.raises(errors.Fenced):
        session.log.append([Draft(user("late"))], fence=fence)


def test_a_server_that_does_not_come_back_is_told_of(
    store: Store, wire: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "SERVER_TIMEOUT_SECONDS", -1.0)
    session = store.start()
    wire.lose_answer(b"titled")
    with pytest.raises(errors.UnknownCommit, match="with the same key"):
        session.title("named")


# -- restarts, and many at once ----------------------------------------------------------------------


def write_all(store: Store, count: int, name: str, after_each: Callable[[], None] = lambda: None) -> str:
    session = store.start(title=name)
    for n in range(count):
        with session.turn(f"{name} {n}") as turn:
            turn.answer(assistant(f"answer {n}"), usage=Usage(10, 1))
        after_each()
    return session.session_id


def check_all(store: Store, session_id: str, count: int, name: str) -> None:
    session = store.session(session_id)
    expected = [text for n in range(count) for text in (f"{name} {n}", f"answer {n}")]
    assert texts(session) == expected
    assert session.row.totals.calls == count
    facts = store.backend.journal(session_id)
    assert [fact.number for fact in facts] == list(range(1, len(facts) + 1))
    keys = [fact.key for fact in facts if fact.key is not None]
    assert len(keys) == len(set(keys)) == 1 + 2 * count


def database_waits(database: Database, query: str) -> int:
    with psycopg.connect(database.owner_url) as connection:
        row = connection.execute(query, (database.name,)).fetchone()  # type: ignore[arg-type]
        return 0 if row is None else int(row[0])


class TestManyWriters:
    def test_of_two_writers_at_one_leaf_exactly_one_wins(self, database: Database) -> None:
        with oakleaf.open(database.url) as store:
            session = store.start()
            for n in range(30):
                handles = [store.session(session.session_id) for _ in range(2)]
                barrier = threading.Barrier(2)
                with ThreadPoolExecutor(2) as pool:
                    outcomes = list(pool.map(lambda h, n=n, b=barrier: _try(h, b, f"go {n}"), handles))
                assert sorted(outcomes) == ["stale", "written"]
            assert store.session(session.session_id).leaf.seq == 30
            assert list(store.verify()) == []

    def test_sixteen_threads_write_sixteen_sessions(self, database: Database) -> None:
        with oakleaf.open(database.url) as store, ThreadPoolExecutor(16) as pool:
            names = [f"writer {n}" for n in range(16)]
            ids = list(pool.map(lambda name: write_all(store, 8, name), names))
            for session_id, name in zip(ids, names, strict=True):
                check_all(store, session_id, 8, name)

    def test_a_conversation_is_started_once_by_many_who_ask_for_it(self, database: Database) -> None:
        with oakleaf.open(database.url) as store, ThreadPoolExecutor(8) as pool:
            names = list(pool.map(lambda _: store.latest_or_start("con_1").session_id, range(24)))
            assert len(set(names)) == 1

    def test_sessions_that_use_one_blob_do_not_write_it_again(self, database: Database) -> None:
        """Each new session uses the blob of its tools; with an update of its row they waited for each other's disk."""
        version = "select xmin::text, at from oakleaf.blob"
        picture = user("see", oakleaf.Attachment(b"\x89PNG", "image/png"))
        with oakleaf.open(database.url) as store:
            store.start("a").append([picture])
            before = database.run(version)
            store.start("a", [picture]).append([picture])
            assert database.run(version) == before
            assert list(store.verify()) == []
            rows = list(store.all_sessions())
            for row in rows:
                store.delete(row.session_id)
            assert [store.purge(row.session_id).blobs for row in rows] == [0, 1]

    def test_connections_cut_at_random_lose_and_double_nothing(self, database: Database) -> None:
        is_over = threading.Event()

        def cut() -> None:
            while not is_over.wait(0.15):
                database.run(CUT)

        with oakleaf.open(database.url) as store, ThreadPoolExecutor(7) as pool:
            cutting = pool.submit(cut)
            names = [f"writer {n}" for n in range(6)]
            ids = list(pool.map(lambda name: write_all(store, 15, name), names))
            is_over.set()
            cutting.result()
            for session_id, name in zip(ids, names, strict=True):
                check_all(store, session_id, 15, name)

    def test_an_append_that_the_server_ends_in_a_deadlock_runs_again(self, database: Database) -> None:
        """As beside a migration, which locks the tables in another order."""
        with oakleaf.open(database.url) as store:
            session = store.start()
            with psycopg.connect(database.owner_url) as other, ThreadPoolExecutor(2) as pool:
                other.execute(
                    "set local deadlock_timeout = '60s'"
                )  # so that the append is the one that is ended
                other.execute("lock table oakleaf.journal in access exclusive mode")
                append = pool.submit(session.append, [user("once")])
                waits = "select count(*) from pg_locks join pg_database on database = pg_database.oid where datname = %s and not granted"
                while not database_waits(database, waits):
                    time.sleep(0.01)
                other.execute("lock table oakleaf.session in access exclusive mode")
                other.commit()
                append.result(timeout=60)
            assert texts(session) == ["once"]

    @pytest.mark.parametrize("isolation", ["repeatable%5C%20read", "serializable"])
    def test_an_append_beside_another_write_is_there_once_whatever_isolation_is_the_default(
        self, database: Database, isolation: str
    ) -> None:
        url = f"{database.url}&options=-c%20default_transaction_isolation%3D{isolation}"
        with oakleaf.open(url) as store:
            session = store.start()
            with psycopg.connect(database.owner_url) as other, ThreadPoolExecutor(1) as pool:
                other.execute("update oakleaf.session set title = 'renamed'")
                append = pool.submit(session.append, [user("once")])
                wait_until(lambda: database.run("select 1 from pg_locks where not granted"))
                other.commit()
                append.result(timeout=60)
            assert texts(session) == ["once"]
            assert session.row.title == "renamed"

    def test_a_fork_and_a_purge_of_its_source_do_not_cross(self, database: Database) -> None:
        with oakleaf.open(database.url) as store:
            for _ in range(12):
                source = store.start()
                source.append([user("1"), assistant("2")])
                handle = store.session(source.session_id)
                barrier = threading.Barrier(2)
                with ThreadPoolExecutor(2) as pool:
                    forked = pool.submit(_fork, handle, barrier)
                    purged = pool.submit(_purge, store, source.session_id, barrier)
                    fork, _ = forked.result(), purged.result()
                if fork is not None:
                    assert texts(fork) == ["1", "2"]
            assert list(store.verify()) == []


def _try(session: oakleaf.Session, barrier: threading.Barrier, text: str) -> str:
    barrier.wait()
    try:
        session.append([user(text)])
    except StaleLeaf:
        return "stale"
    return "written"


def _fork(session: oakleaf.Session, barrier: threading.Barrier) -> oakleaf.Session | None:
    barrier.wait()
    try:
        return session.fork(at=2)
    except (errors.NotFound, errors.InvalidPosition, errors.SessionTrashed):
        return None


def _purge(store: Store, session_id: str, barrier: threading.Barrier) -> Any:
    barrier.wait()
    store.delete(session_id)
    return store.purge(session_id)


@pytest.fixture
def crashing(postgres: DatabaseHost) -> Iterator[Database]:
    """A server of its own, to be stopped as by a power cut."""
    if postgres.server is None:
        pytest.skip("wants a server of our own")
    cluster = DatabaseHost.__new__(DatabaseHost)
    cluster._external_url, cluster._database_names, cluster.server = None, [], PostgresServer(CRASHING)
    cluster.server.start()
    yield Database(cluster)
    cluster.close()


def test_a_server_stopped_in_mid_commit_loses_and_doubles_nothing(crashing: Database) -> None:
    server, done = crashing.host.server, threading.Semaphore(0)
    assert server is not None
    names = [f"writer {n}" for n in range(4)]
    with oakleaf.open(crashing.url) as store, ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write_all, store, 25, name, done.release) for name in names]
        for wait_for in (10, 30):
            for _ in range(wait_for):
                done.acquire()
            server.stop(signal.SIGQUIT)
            time.sleep(0.1)
            server.start()
        for writer, name in zip(writing, names, strict=True):
            check_all(store, writer.result(), 25, name)
        assert list(store.verify()) == []


BROKEN = """
import logging, sys
import psycopg, oakleaf
owner, url, cut = sys.argv[1:4]
if sys.argv[4:]:
    logging.basicConfig(format="%(name)s: %(message)s")
with oakleaf.open(url) as store:
    session = store.start()
    for text in ("1", "2"):
        with psycopg.connect(owner, autocommit=True) as admin:
            admin.execute(cut)
        session.append([oakleaf.user(text)])
    assert len(session.path()) == 2
"""


@pytest.mark.parametrize("has_log", [False, True], ids=["as it comes", "with logging"])
def test_a_broken_connection_is_logged_and_not_printed(database: Database, has_log: bool) -> None:
    """psycopg's pool logs, too, and Python prints the warnings of a logger that nobody handles."""
    command = [sys.executable, "-c", BROKEN, database.owner_url, database.url, CUT, *["log"] * has_log]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("psycopg.pool: ")]
    assert len(lines) == 2 * has_log
    assert all(line.startswith("oakleaf.postgres: ") and "a connection broke" in line for line in lines)
    assert has_log or not done.stderr


INTERRUPTED = """
import random, signal, sys, threading
import oakleaf
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
random.seed(7)
store = oakleaf.open(sys.argv[1])
mine = store.start()
is_over, written = threading.Event(), []
def write():
    while not is_over.is_set():
        mine.append([oakleaf.user("from another thread"), oakleaf.assistant("unharmed")])
        written.append(1)
writer = threading.Thread(target=write)
writer.start()
for n in range(400):
    try:
        try:
            # Again after a second: the callback of a weak reference swallows an interrupt.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.008), 1)
            while True:
                store.start().append([oakleaf.user("x")])
                store.sessions(limit=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
is_over.set()
writer.join()
assert written and len(mine.path()) == 2 * len(written)
connection = store.backend._connections._connection
with connection(), connection():
    pass
for _ in range(4):
    store.start().append([oakleaf.user("x")])
assert list(store.verify()) == []
store.close()
print("sound")
"""


class TestConnections:
    @pytest.fixture(autouse=True)
    def _alone(self, store_cache: PostgresStoreCache) -> None:
        """The connections of the tests before are not to be counted."""
        store_cache.close()

    def test_whoever_comes_alone_has_always_the_same_one(self, database: Database) -> None:
        """The pool lends its connections in turn: two for a lone caller would each have to learn the plans."""
        with oakleaf.open(database.url) as store:
            for _ in range(5):
                store.start()
            assert _connections(database, 1) == 1

    def test_there_are_never_more_than_the_address_allows(self, database: Database) -> None:
        with (
            oakleaf.open(f"{database.url}&connections=3") as store,
            ThreadPoolExecutor(12) as pool,
            store.backend._connections._connection(),
        ):
            names = list(pool.map(lambda n: write_all(store, 5, f"writer {n}"), range(12)))
            assert len(set(names)) == 12
            assert _connections(database, 3) == 3

    def test_who_waits_too_long_for_one_is_told_how_to_have_more(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_connections, "SERVER_TIMEOUT_SECONDS", 0.05)
        with (
            oakleaf.open(f"{database.url}&connections=1") as store,
            store.backend._connections._connection(),
            pytest.raises(
                errors.StoreError, match=r"all 1 connections .* in use for 0 s; .*\?connections=N$"
            ),
        ):
            store.sessions()

    def test_a_storm_of_interrupts_leaves_the_pool_full(self, database: Database) -> None:
        """Connections were never given back, or said for ever that a statement was prepared already."""
        command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED, f"{database.url}&connections=2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr

    def test_an_interrupt_costs_no_other_thread_its_connection(self, database: Database) -> None:
        with oakleaf.open(database.url) as store, ThreadPoolExecutor(1) as pool:
            connections = store.backend._connections
            slow = pool.submit(connections.query, "select 1, pg_sleep(0.5)")
            wait_until(lambda: _connections(database, 1) == 1)
            with pytest.raises(KeyboardInterrupt), connections.snapshot():
                raise KeyboardInterrupt
            assert slow.result()[0][0] == 1
            assert _connections(database, 0) == 0
            store.start()
            assert _connections(database, 1) == 1

    def test_a_handler_that_ends_a_long_wait_is_heard_at_once(self, database: Database) -> None:
        """Rolling back waited for the statement that was to be left."""

        def out_of_time(*_: Any) -> None:
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, out_of_time)
        with oakleaf.open(database.url) as store:
            connections = store.backend._connections
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            began = time.monotonic()
            try:
                with pytest.raises(TimeoutError), connections.snapshot() as connection:
                    connection.execute("select pg_sleep(5)")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert time.monotonic() - began < 3
            store.start()

    def test_closing_leaves_none_behind(self, database: Database) -> None:
        store = oakleaf.open(database.url)
        with store.backend._connections._connection():
            store.sessions()
            store.close()
        assert _connections(database, 0) == 0


def _connections(database: Database, expected: int) -> int:
    """How many server processes serve the application; one that was let go of takes a moment to end."""
    query = f"select count(*) from pg_stat_activity where usename = '{APP}' and datname = current_database()"
    deadline = time.monotonic() + 10
    while (count := int(database.run(query)[0][0])) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return count


def test_a_forked_process_opens_connections_of_its_own(database: Database) -> None:
    import os

    with oakleaf.open(database.url) as store:
        session = store.start()
        session.append([user("parent")])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.session(session.session_id).append([user("child")])
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        session.refresh()
        session.append([user("parent again")])
        assert texts(session) == ["parent", "child", "parent again"]


# -- what a row looks like to others -----------------------------------------------------------------


def test_bodies_are_the_bytes_that_were_hashed(database: Database) -> None:
    with oakleaf.open(database.url) as store:
        session = store.start()
        session.append([user("nul \0 and ü"), assistant(ToolCall("c", "t", {"z": 1, "a": [1.5]}))])
        bodies = [bytes(body) for (body,) in database.run("select body from oakleaf.entry order by seq")]
        assert bodies == [stored.entry.body for stored in store.backend.entries(session.session_id)]


def test_people_read_each_active_message_once_in_psql(database: Database) -> None:
    with oakleaf.open(database.url) as store:
        session = store.start()
        session.append([user("1"), assistant("2")])
        session.rewind(1)
        session.append([assistant("other \0 2")])
        rows = database.run("select seq, role, text from oakleaf.active_message order by seq")
        assert rows == [(1, "user", "1"), (2, "assistant", "other \ufffd 2")]


# -- wrong set-ups -----------------------------------------------------------------------------------

NEXT = """
alter table oakleaf.session add column mood text not null default 'calm';
create index session_by_mood on oakleaf.session (space, mood);
"""


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version after this one: it adds a column and an index."""
    path = tmp_path / "next.sql"
    path.write_text(NEXT)
    version = postgres_schema.VERSION + 1
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", {**postgres_schema.MIGRATIONS, version: str(path)})
    monkeypatch.setattr(postgres_schema, "VERSION", version)
    return version


def _columns(database: Database) -> list[Any]:
    query = "select table_name, column_name, data_type, is_nullable from information_schema.columns"
    indexes = "select indexname, indexdef from pg_indexes where schemaname = 'oakleaf' order by 1"
    return [database.run(f"{query} where table_schema = 'oakleaf' order by 1, 2"), database.run(indexes)]


def _policies(database: Database) -> list[Any]:
    query = "select tablename, policyname, roles, cmd, qual, with_check from pg_policies where schemaname = 'oakleaf'"
    return sorted(database.run(query), key=str)


class TestOpening:
    def test_a_database_without_a_schema_says_what_to_run(self, postgres: DatabaseHost) -> None:
        bare = postgres.create_database("bare")
        with pytest.raises(
            errors.MigrationNeeded, match="no Oakleaf schema yet; run oakleaf --store URL migrate"
        ):
            oakleaf.open(postgres.url(bare))

    def test_an_older_one_says_what_to_run_and_migrate_brings_it_up(
        self, postgres: DatabaseHost, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """Also policies of its own version, which every migration writes again."""
        database = Database(postgres, "older")
        running = oakleaf.open(database.url)
        session = running.start(title="kept")
        old = "space = nullif(current_setting('oakleaf.space', true), '')"
        database.run(f"alter policy service on oakleaf.session using ({old}) with check ({old})")
        version = request.getfixturevalue("next_version")
        message = f"has schema {version - 1}, this Oakleaf needs {version}; run oakleaf --store URL migrate"
        with pytest.raises(errors.MigrationNeeded, match=message):
            oakleaf.open(database.url)
        done = postgres_schema.migrate(database.owner_url)
        assert done == postgres_schema.MigrationResult(version - 1, version)
        assert postgres_schema.migrate(database.owner_url).before == version
        fresh = Database(postgres, "fresh")
        assert _policies(database) == _policies(fresh)
        assert _columns(database) == _columns(fresh)
        session.append([user("from a program of the version before")])
        running.close()
        with oakleaf.open(database.url) as store:
            assert store.session(session.session_id).row.title == "kept"
            assert store.session(session.session_id).verify() == []
            store.start(title="new").append([user("from one of this")])

    def test_a_migration_that_fails_changes_nothing(
        self, postgres: DatabaseHost, next_version: int, tmp_path: Path
    ) -> None:
        database = Database(postgres, "failing")
        database.run("drop index oakleaf.session_by_mood; alter table oakleaf.session drop column mood")
        database.run(f"delete from oakleaf.migration where version = {next_version}")
        before = _columns(database)
        (tmp_path / "next.sql").write_text(f"{NEXT}; select 1 / 0")
        with pytest.raises(errors.StoreError, match="division by zero; nothing was changed"):
            postgres_schema.migrate(database.owner_url)
        assert _columns(database) == before

    def test_a_database_of_the_former_name_is_refused_until_its_schema_is_gone(
        self, postgres: DatabaseHost
    ) -> None:
        database = Database(postgres, "prerelease")
        database.run("alter schema oakleaf rename to bough")
        for use in (oakleaf.open, postgres_schema.migrate):
            with pytest.raises(errors.PrereleaseFormat, match=r"written by Bough.*nothing was changed"):
                use(database.owner_url)
        database.run("alter schema bough rename to archive")
        postgres_schema.migrate(database.owner_url)
        with oakleaf.open(database.url) as store:
            assert list(store.all_sessions()) == []

    def test_what_migrate_writes_changes_only_with_its_version(self) -> None:
        """A database in use hears of it by nothing else. Changed: a version more in MIGRATIONS, and its line here."""
        files = [name for name in postgres_schema.MIGRATIONS.values() if name] + [postgres_schema.RIGHTS]
        texts = [re.sub(r"--.*|\s+", " ", postgres_schema._file(name)) for name in files]
        texts += [f"{name}: {granted}" for lists in (SERVICE, CLIENT) for name, granted in lists.items()]
        written = sha256(" ".join(" ".join(texts).split()).encode()).hexdigest()[:16]
        assert {postgres_schema.VERSION: written} == {1: "be32d9155a1fe123"}

    def test_a_migration_by_another_role_keeps_the_owner_or_is_refused(self, postgres: DatabaseHost) -> None:
        """Its policies named the role that ran it: the next look found every table empty, and nothing said why."""
        database = Database(postgres, "owned")
        with oakleaf.open(database.url) as store:
            session = store.start(owner="ann")
            session.append([user("hello")])
        before = _policies(database)
        database.run("drop role if exists other_admin, somebody")
        database.run("create role other_admin login superuser password 'other_admin'")
        database.run("create role somebody login createrole password 'somebody'")
        postgres_schema.migrate(postgres.url(database.name, "other_admin"))
        assert _policies(database) == before
        with oakleaf.open(database.url) as store:
            assert len(store.search("hello").hits) == 1
        with pytest.raises(
            MissingPermission, match=r"the schema oakleaf belongs to .*; connect as that role"
        ):
            postgres_schema.migrate(postgres.url(database.name, "somebody"))
        assert _policies(database) == before
        postgres_schema.migrate(database.owner_url)

    def test_a_bound_login_that_was_dropped_stops_neither_migrate_nor_unbind(
        self, postgres: DatabaseHost
    ) -> None:
        database = Database(postgres, "dropped")
        for name in ("leaver", "second_leaver"):
            database.run(f"drop role if exists {name}")
            database.run(f"create role {name} login")
            database.run(f"select oakleaf.bind('{name}', 'default', 'ann')")
        ((number,),) = database.run("select role::oid::bigint from oakleaf.login order by role limit 1")
        database.run("drop owned by leaver, second_leaver; drop role leaver, second_leaver")
        database.run(f"select oakleaf.unbind({number}::oid::regrole)")
        assert len(database.run("select role from oakleaf.login")) == 1
        postgres_schema.migrate(database.owner_url)
        assert database.run("select role from oakleaf.login") == []

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    def test_a_database_that_cannot_hold_every_text_is_refused(
        self, postgres: DatabaseHost, encoding: str
    ) -> None:
        name = f"oakleaf_{encoding.lower()}_{os.getpid()}"
        with postgres.admin() as admin:
            admin.execute(f"drop database if exists {name}")  # type: ignore[arg-type]
            admin.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0")  # type: ignore[arg-type]
        try:
            for use in (postgres_schema.migrate, oakleaf.open):
                with pytest.raises(
                    errors.StoreError, match=f"has the encoding {encoding}.*createdb --encoding=UTF8"
                ):
                    use(postgres.url(name))
        finally:
            with postgres.admin() as admin:
                admin.execute(f"drop database {name} with (force)")  # type: ignore[arg-type]

    def test_a_newer_schema_and_one_without_a_version_are_refused(self, postgres: DatabaseHost) -> None:
        database = Database(postgres, "versions")
        database.run("insert into oakleaf.migration values (99)")
        with pytest.raises(errors.NewerFormat, match="has format 99"):
            oakleaf.open(database.url)
        with pytest.raises(errors.NewerFormat):
            postgres_schema.migrate(database.owner_url)
        database.run("delete from oakleaf.migration")
        with pytest.raises(errors.MigrationNeeded, match="migrate"):
            oakleaf.open(database.url)

    def test_a_role_without_rights_is_told_what_to_grant(self, database: Database) -> None:
        with pytest.raises(MissingPermission, match="grant oakleaf_service to oakleaf_person"):
            oakleaf.open(database.client_url)
        with pytest.raises(MissingPermission, match="create a schema"):
            postgres_schema.migrate(database.host.url(database.host.create_database("theirs"), APP))

    def test_a_wrong_address_is_told_without_its_password(self) -> None:
        with pytest.raises(errors.ServerUnreachable) as excinfo:
            oakleaf.open("postgresql://ann:s3cret@localhost:1/none?connect_timeout=2&sslpassword=hush")
        assert "s3cret" not in str(excinfo.value)
        assert "hush" not in str(excinfo.value)
        assert "ann@localhost:1/none" in str(excinfo.value)

    @pytest.mark.parametrize(
        "enter", [oakleaf.open, postgres_schema.migrate, install], ids=["open", "migrate", "install"]
    )
    def test_a_refused_connection_says_what_to_do(
        self, database: Database, enter: Callable[[str], Any]
    ) -> None:
        url = database.host.url(database.name)
        place = url.partition("?")[2]
        for wrong, what, remedy in (
            (database.host.url("nowhere"), 'database "nowhere" does not exist', "createdb -E UTF8"),
            (
                database.host.url(database.name, "nobody_here"),
                'role "nobody_here" does not exist',
                "createuser",
            ),
            (f"postgresql:///{database.name}?host=/tmp/no-such-folder", "No such file", "start the server"),
            ("postgresql://ann@127.0.0.1:1/x", "refused", "start the server"),
            ("postgresql://ann@no-such-host.invalid/x?connect_timeout=2", "no-such-host", "check the host"),
        ):
            with pytest.raises(errors.ServerUnreachable, match=what) as excinfo:
                enter(wrong)
            assert remedy in str(excinfo.value)
        with pytest.raises(errors.InvalidArgument, match="postgresql://USER@HOST/DATABASE") as invalid:
            enter(f"postgresql://ann:s3cret@[::1/x?{place}")
        assert "s3cret" not in str(invalid.value)

    def test_a_role_at_its_limit_of_connections_is_told_so(
        self, postgres: DatabaseHost, database: Database
    ) -> None:
        database.run("drop role if exists limited")
        database.run("create role limited login password 'limited' connection limit 0")
        with pytest.raises(errors.ServerUnreachable, match="use fewer connections"):
            oakleaf.open(postgres.url(database.name, "limited"))

    def test_a_wrong_password_is_told_as_such(self, postgres: DatabaseHost, database: Database) -> None:
        if postgres.server is None:
            pytest.skip("wants the files of the server")
        rules = postgres.server.data / "pg_hba.conf"
        before = rules.read_text()
        database.run("drop role if exists locked")
        database.run("create role locked login password 'right'")
        rules.write_text(f"local all locked scram-sha-256\n{before}")
        try:
            database.run("select pg_reload_conf()")
            url = postgres.url(database.name, "locked")
            for wrong in (url.replace("locked@", "locked:wrong@"), url.replace(":locked@", "@")):
                deadline = time.monotonic() + 10
                while True:  # the server reads its rules in its own time
                    with pytest.raises(errors.StoreError) as excinfo:
                        oakleaf.open(wrong)
                    if isinstance(excinfo.value, errors.ServerUnreachable):
                        break
                    assert time.monotonic() < deadline
                assert "~/.pgpass" in str(excinfo.value)
        finally:
            rules.write_text(before)
            database.run("select pg_reload_conf()")
            database.run("drop role locked")

    def test_a_server_that_only_reads_is_not_called_a_file(self, database: Database) -> None:
        read_only = "&options=-c%20default_transaction_read_only%3Don"
        with oakleaf.open(database.url) as store:
            name = store.start().session_id
        with oakleaf.open(database.url + read_only) as store:
            for write in (
                lambda: store.session(name).append([user("x")]),
                store.start,
                lambda: postgres_schema.migrate(database.owner_url + read_only),
            ):
                with pytest.raises(errors.StoreReadOnly, match="connect to the primary") as excinfo:
                    write()
                assert "file" not in str(excinfo.value)

    def test_a_server_that_became_a_standby_is_left_for_the_primary(self, database: Database) -> None:
        """Its connections survive some failovers, and a pool that kept them refused every write for up to an hour."""
        role = f"alter role {APP} in database {database.name}"
        database.run(f"{role} set default_transaction_read_only = on")
        try:
            store = oakleaf.open(database.url)
            store.sessions()
        finally:
            database.run(f"{role} reset default_transaction_read_only")
        with store:
            with pytest.raises(errors.StoreReadOnly):
                store.start()
            store.start().append([user("to the primary")])

    def test_a_statement_that_the_server_ends_says_which_setting_does_it(self, database: Database) -> None:
        with oakleaf.open(database.url + "&options=-c%20statement_timeout%3D200") as store:
            assert isinstance(store.backend, PostgresStore)
            with pytest.raises(errors.StoreError, match="statement_timeout of the role"):
                store.backend.connections.query("select pg_sleep(5)")
            with pytest.raises(errors.StoreError, match="You might need to add explicit type casts"):
                store.backend.connections.query("select length(1)")

    def test_a_migration_takes_as_long_as_it_needs_whatever_timeouts_its_role_has(
        self, postgres: DatabaseHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow = tmp_path / "slow.sql"
        slow.write_text("select pg_sleep(0.7)")
        version = postgres_schema.VERSION + 1
        monkeypatch.setattr(postgres_schema, "MIGRATIONS", {**postgres_schema.MIGRATIONS, version: str(slow)})
        monkeypatch.setattr(postgres_schema, "VERSION", version)
        url = postgres.url(postgres.create_database("impatient"))
        timeouts = "&options=-c%20statement_timeout%3D500%20-c%20idle_in_transaction_session_timeout%3D500"
        assert postgres_schema.migrate(url + timeouts).after == version

    def test_a_newer_schema_is_not_called_a_file(self, database: Database) -> None:
        database.run("insert into oakleaf.migration (version) values (99)")
        try:
            for enter in (
                lambda: oakleaf.open(database.url),
                lambda: postgres_schema.migrate(database.owner_url),
            ):
                with pytest.raises(errors.NewerFormat, match="nothing was changed") as excinfo:
                    enter()
                assert "file" not in str(excinfo.value)
        finally:
            database.run("delete from oakleaf.migration where version = 99")

    def test_what_is_handled_is_not_printed(self, database: Database) -> None:
        """psycopg warns of a pipeline that broke, and Python prints a warning that nobody handles."""
        code = (
            "import oakleaf, logging, sys; store = oakleaf.open(sys.argv[1]); "
            "logging.getLogger('psycopg').warning('error ignored terminating Pipeline'); "
            "logging.getLogger('oakleaf.postgres').warning('a connection broke')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, database.url], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""

    def test_a_bound_login_whose_role_is_missing_is_a_problem_for_doctor(
        self, postgres: DatabaseHost
    ) -> None:
        """A dump has no roles: its rows name some that the other cluster does not have, and `migrate` drops them."""
        database = Database(postgres, "restored")
        for name in ("goes_away", "stays"):
            database.run(f"drop role if exists {name}")
            database.run(f"create role {name} login")
            database.run(f"select oakleaf.bind('{name}', 'default', 'ann')")
        with oakleaf.open(database.url) as store:
            assert store.backend.lost_logins() == []
            database.run("drop owned by goes_away; drop role goes_away")
            assert store.backend.lost_logins() == [("goes_away", "ann")]
            postgres_schema.migrate(database.owner_url)
            problems = [finding for finding in store.findings() if finding.level == "problem"]
            assert "'goes_away' was bound to the owner 'ann'" in problems[0].message
            assert "select oakleaf.bind('goes_away', 'default', 'ann')" in str(problems[0].fix)
        with oakleaf.open(database.url, space="other") as store:
            assert store.backend.lost_logins() == []
        database.run("create role goes_away login")
        database.run("select oakleaf.bind('goes_away', 'default', 'ann')")
        with oakleaf.open(database.url) as store:
            assert store.backend.lost_logins() == []
            database.run(
                "drop owned by goes_away; drop role goes_away; select oakleaf.forget_login('goes_away')"
            )
            assert store.backend.lost_logins() == []
        database.run("select oakleaf.unbind('stays'); drop role stays")

    def test_doctor_names_statements_about_a_lost_login_that_run_as_printed(
        self, postgres: DatabaseHost
    ) -> None:
        database = Database(postgres, "quoted")
        role = '"Ann O\'Hara"'
        database.run(f"create role {role} login")
        with oakleaf.open(database.url) as store:

            def printed() -> tuple[str, str]:
                [(_, fix)] = [(one.level, one.fix) for one in store.findings() if one.fix]
                bind, forget = fix.removeprefix("create the role and ").split(", or ")
                return bind, forget

            with psycopg.connect(database.owner_url, autocommit=True) as owner:
                owner.execute("select oakleaf.bind(%s, 'default', %s)", (role, "ann o'hara"))
            database.run(f"drop owned by {role}; drop role {role}")
            bind, _ = printed()
            database.run(f"create role {role} login; {bind}")
            assert store.backend.lost_logins() == []
            database.run(f"drop owned by {role}; drop role {role}")
            _, forget = printed()
            database.run(forget)
            assert store.backend.lost_logins() == []

    def test_our_own_options_do_not_reach_the_server(self) -> None:
        for plain in ("postgresql:///db?host=/tmp/x", "postgresql:///db", "postgresql://a@h/d#e"):
            assert (
                Address.parse(plain).safe_url == plain
            )  # an empty host lost its slashes, and libpq its database
            assert Address.parse(plain).url.partition("?")[0] == plain.partition("?")[0]
        address = Address.parse("postgresql://a:p@h/d?prepared=off&connections=3&sslmode=require")
        assert address.url == "postgresql://a:p@h/d?sslmode=require"
        assert address.safe_url == "postgresql://a@h/d?sslmode=require"
        assert (address.is_prepared, address.connections) == (False, 3)
        for wrong in ("prepared=maybe", "connections=0", "connections=many"):
            with pytest.raises(errors.InvalidArgument):
                Address.parse(f"postgresql://h/d?{wrong}")

    def test_an_at_sign_in_a_password_is_told_how_to_write_without_showing_it(self) -> None:
        """libpq took its end for the host, and named it in the error."""
        with pytest.raises(errors.InvalidArgument, match="%40") as excinfo:
            Address.parse("postgresql://app:hunter@2two@db/agents")
        assert "hunter" not in str(excinfo.value)
        assert "2two" not in str(excinfo.value)

    @pytest.mark.parametrize(
        "text",
        ["host=db user=app password=hunter2 dbname=agents", "dbname = agents", "password=hunter2 service=x"],
    )
    def test_a_connection_string_is_no_path_of_a_file(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            errors.InvalidArgument, match=r"SCHEME://USER@HOST/DATABASE .* postgresql"
        ) as excinfo:
            oakleaf.open(text)
        assert "hunter2" not in str(excinfo.value)
        for line in (["ls"], ["run", "hello"], ["doctor"], ["migrate", "--yes"]):
            done = command(*line, store=text)
            assert (done.code, "hunter2" in done.err + done.out) == (2, False)
            assert "SCHEME://USER@HOST/DATABASE with one of these schemes: postgres, postgresql" in done.err
        assert list(tmp_path.iterdir()) == []

    def test_every_text_is_kept_whatever_encoding_clients_have_by_default(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
        with oakleaf.open(database.url) as store:
            session = store.start(title="東京")
            session.append([user("Straße nach 東京")])
            assert store.session(session.session_id).row.title == "東京"
            assert [hit.session_id for hit in store.search("straße").hits] == [session.session_id]

    def test_a_closed_store_says_so(self, database: Database) -> None:
        store = oakleaf.open(database.url)
        session = store.start()
        store.close()
        store.close()
        with pytest.raises(errors.StoreClosed):
            session.append([user("x")])

    def test_two_migrations_at_once_make_one_schema(self, postgres: DatabaseHost) -> None:
        name = postgres.create_database("twice")
        with ThreadPoolExecutor(4) as pool:
            versions = list(pool.map(lambda _: postgres_schema.migrate(postgres.url(name)), range(4)))
        assert sorted(one.before for one in versions) == [0, *[postgres_schema.VERSION] * 3]

    def test_roles_may_have_other_names_and_an_owner_that_is_no_superuser(
        self, postgres: DatabaseHost
    ) -> None:
        name = postgres.create_database("named")
        with psycopg.connect(postgres.url(name), autocommit=True) as admin:
            admin.execute("drop role if exists shop_owner, shop_app, shop_service, shop_client")
            admin.execute("create role shop_owner login createrole password 'shop_owner'")
            admin.execute(f"grant create on database {name} to shop_owner")  # type: ignore[arg-type]
        url = postgres.url(name, "shop_owner")
        postgres_schema.migrate(url, service="shop_service", client="shop_client")
        with psycopg.connect(postgres.url(name), autocommit=True) as admin:
            admin.execute("create role shop_app login password 'shop_app' in role shop_service")
        with oakleaf.open(postgres.url(name, "shop_app")) as store:
            session = store.start()
            session.append([user("hello there")])
            assert texts(session) == ["hello there"]
            assert len(store.search("hello").hits) == 1
        with psycopg.connect(postgres.url(name, "shop_owner"), autocommit=True) as owner:
            assert owner.execute("select count(*) from oakleaf.entry").fetchone() == (0,)  # it is bound, too
        with pytest.raises(MissingPermission, match="row level security hides every session from it"):
            oakleaf.open(url)
        with pytest.raises(errors.InvalidArgument):
            postgres_schema.migrate(url, service="x'; drop", client="c")


def test_a_branch_whose_session_was_removed_is_reported(database: Database) -> None:
    """The policies show a branch only to a statement that is bound to its space."""
    with oakleaf.open(database.url) as store:
        kept, removed = store.start(), store.start()
        for session in (kept, removed):
            session.append([user("x")])
        fork = kept.fork()
        assert store.backend.lost_branches() == []
        database.run(f"""
            delete from oakleaf.session_detail using oakleaf.session
            where number = session_number and id = '{removed.session_id}';
            delete from oakleaf.session where id = '{removed.session_id}'
        """)
        assert store.backend.lost_branches() == [removed.leaf.branch]
        assert fork.verify() == []


def test_an_append_is_one_statement_and_leaves_no_transaction_open(database: Database) -> None:
    """The identity rides in the statement: no begin, no commit, nothing left in the connection."""
    with oakleaf.open(database.url) as store:
        session = store.start()
        for n in range(8):
            session.append([user(str(n))])
        before = _transactions(database)
        for n in range(20):
            session.append([user(str(n))])
        assert _transactions(database) - before <= 25
        with store.backend._connections._connection() as connection:
            row = connection.execute("select current_setting('oakleaf.space', true)").fetchone()
        assert row in [("",), (None,)]


def test_what_is_done_often_is_one_round_trip(store: Store, wire: PostgresProxy) -> None:
    session = store.start()
    session.append([user("1"), assistant("2")])
    deep = session.fork()
    deep.append([user("3"), assistant("4")])
    often: dict[str, Callable[[], object]] = {
        "an append": lambda: session.append([user("x"), assistant("y")]),
        "a path": session.path,
        "a path of several branches": deep.path,
        "the newest of a path": lambda: session.path(last=2),
        "hydrate": session.hydrate,
        "a title": lambda: session.title("named"),
        "a lease": lambda: store.backend.lease(session.session_id, "me", until=2**50, at=1),
        "letting go of it": lambda: store.backend.release(session.session_id, 1),
        "an inbox with nothing in it": lambda: store.backend.inbox(session.session_id),
        "a ledger without a call": lambda: store.backend.calls(session.session_id),
        "a journal behind its last fact": lambda: store.backend.journal(session.session_id, 2**40),
    }
    for name, do in often.items():
        do()
        do()  # by now it is prepared
        before = wire.request_count
        do()
        assert (name, wire.request_count - before) == (name, 1)


def test_a_rewind_is_two_round_trips_and_a_fork_six(store: Store, wire: PostgresProxy) -> None:
    """Reads where it cuts and what it leaves behind; a fork also the row that it copies, and its write is a transaction."""
    session = store.start()
    session.append([user("1"), assistant("2"), user("3"), assistant("4")])
    moves: dict[str, tuple[Callable[[], object], int]] = {
        "fork": (lambda: session.fork(2), 6),
        "rewind": (lambda: session.rewind(session.leaf.seq - 1), 2),
        "undo": (session.undo, 3),  # reads first where the newest turn begins
    }
    for name, (do, count) in moves.items():
        do()
        session.append([user("x"), assistant("y")])
        before = wire.request_count
        do()
        assert (name, wire.request_count - before) == (name, count)


def test_a_fork_is_refused_where_what_it_would_stand_on_is_purged(database: Database) -> None:
    """The branch may still be there, for another fork stands on the beginning of it."""
    with oakleaf.open(database.url) as store:
        source = store.start()
        source.append([user("1"), assistant("2"), user("3"), assistant("4")])
        other = source.fork(2)
        store.delete(source.session_id)
        store.purge(source.session_id)
        late = replace(other.row, session_id="ses_late")
        leaf = Leaf(source.leaf.branch, 4)
        for blobs in ((), (Blob(sha256(b"picture").hexdigest(), "image/png", b"picture"),)):
            with pytest.raises(errors.InvalidPosition):
                store.backend.create(NewSession(late, "late", blobs=blobs, fork_point=leaf))
        database.run("delete from oakleaf.lock")
        with pytest.raises(errors.StoreError, match=r"oakleaf\.lock lacks rows .* run: oakleaf migrate"):
            other.fork(2)
        postgres_schema.migrate(database.owner_url)
        assert texts(other.fork(2)) == texts(other) == ["1", "2"]
        assert list(store.verify()) == []


def test_a_session_is_found_by_its_id_however_many_its_space_has(database: Database) -> None:
    """PostgreSQL once took a bare setting in a policy for empty, and read every session of the space instead."""
    many = 2_000
    with oakleaf.open(database.url) as store:
        session = store.start()
        database.run(f"""
            insert into oakleaf.session select (jsonb_populate_record(session, jsonb_build_object(
                'number', nextval('oakleaf.session_number'), 'id', 'ses_copy' || n))).*
            from oakleaf.session cross join generate_series(1, {many}) as n""")
        before = _sessions_read(database)
        for n in range(8):  # past the plans that are made for single values
            session.append([user(str(n)), assistant("yes")])
            assert len(session.path()) == 2 * n + 2
            store.backend.journal(session.session_id)
            store.backend.draft(session.session_id)
            store.backend.lease(session.session_id, "me", until=2**50, at=1)
        with store.backend._connections._connection() as connection:
            connection.execute("select pg_stat_force_next_flush()")
    read = _sessions_read(database) - before
    assert 40 <= read < 2 * many, f"{read} rows of sessions were read for 40 statements about one"


def _sessions_read(database: Database) -> int:
    query = "select idx_tup_fetch + seq_tup_read from pg_stat_user_tables where relid = 'oakleaf.session'::regclass"
    return int(database.run(query)[0][0])


def test_what_goes_with_a_purge_is_told_in_the_order_of_every_store(database: Database) -> None:
    """The state machine taught it: a level was once told by age alone, whoever the parents were."""

    def listed_seqs(store: Store) -> list[int]:
        root = store.start()
        root.append([user("1")])
        names = [root.session_id]
        first, second = root.fork(), root.fork()
        for one in (first, second, second.fork(), first.fork()):
            names.append(one.session_id)
        store.delete(root.session_id)
        return [names.index(name) for name in store.purge(root.session_id, with_forks=True).sessions]

    with oakleaf.open(database.url) as store, oakleaf.open("memory:") as other:
        assert listed_seqs(store) == listed_seqs(other)


def test_a_store_that_saw_a_branch_grow_notices_that_another_moved_back(database: Database) -> None:
    with oakleaf.open(database.url) as one, oakleaf.open(database.url) as other:
        session = one.start()
        for n in range(3):
            session.append([user(str(n)), assistant("yes")])
        other.session(session.session_id).rewind(2)
        session.refresh()
        session.append([user("instead")])
        assert texts(session) == ["0", "yes", "instead"]
        assert len(one.backend.branches(session.session_id)) == 2
        assert list(one.verify()) == []


def _transactions(database: Database) -> int:
    database.run("select pg_stat_force_next_flush()")
    time.sleep(0.05)
    query = f"select xact_commit from pg_stat_database where datname = '{database.name}'"
    return int(database.run(query)[0][0])


def test_a_change_too_large_for_one_statement_is_written_all_the_same(database: Database) -> None:
    with oakleaf.open(database.url) as store:
        session = store.start()
        session.append([user(str(n)) for n in range(60)])
        assert texts(session) == [str(n) for n in range(60)]
        change = Change(session_id=session.session_id, key="k", at=1, fact=Titled())
        assert store.backend.commit(change).leaf == session.leaf
