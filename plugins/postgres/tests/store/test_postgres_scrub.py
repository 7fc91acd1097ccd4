"""After a purge and a scrub nothing of it is left: in no table's file, in no statistics, for no reader and no slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import oakleaf
from oakleaf import Store, assistant, user
from oakleaf.verbs.erase import Erase
from oakleaf_postgres.errors import MissingPermission, StoreHeld
from oakleaf_postgres.store.scrub import scrub
from support.postgres import Database, DatabaseHost, PostgresServer
from support.processes import wait_until

PURGED, KEPT = "canary-5e81", "kept-77ab"


def data_folder(database: Database) -> Path:
    if database.host.server is None:
        pytest.skip("wants the files of the server")
    return database.host.server.data / "base"


def files_with(folder: Path, word: str) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.is_file() and word.encode() in p.read_bytes()]


def write(store: Store, word: str, n: int) -> str:
    session = store.start(
        title=f"{word} title {n}",
        tags={"t": f"{word} tag {n}"},
        spec={"s": f"{word} spec {n}"},
        owner=f"{word}-owner-{n}",
    )
    session.append([user(f"{word} {n} {'long ' * 4000}"), assistant(f"{word} answer {n}")])
    session.append([user(f"short {word} {n}")], key=f"{word}-key-{n}")
    session.enqueue(f"{word} queued {n}")
    return session.session_id


def purge_all(store: Store, session_ids: list[str]) -> None:
    for session_id in session_ids:
        store.delete(session_id)
        store.purge(session_id)
    store.gc(grace=-(10**12))


def test_after_purge_and_scrub_no_byte_of_it_is_in_the_files_of_the_database(database: Database) -> None:
    """`analyze` had sampled titles, tags and bodies into pg_statistic, which no purge empties."""
    folder = data_folder(database)
    with oakleaf.open(database.url) as store:
        for n in range(2):
            write(store, KEPT, n)
        purged = [write(store, PURGED, n) for n in range(4)]
        store.put_blob(f"{PURGED} blob".encode(), "text/plain")
        store.search("anything")
        database.run("analyze")
        purge_all(store, purged)
    scrub(database.owner_url)
    assert (files_with(folder, PURGED), bool(files_with(folder, KEPT))) == ([], True)


def test_an_erasure_leaves_no_byte_once_the_owner_of_the_tables_ran_it(
    database: Database, tmp_path: Path
) -> None:
    """The service deletes the rows, and its receipt says that bytes are left. The owner goes on with the receipt."""
    folder = data_folder(database)
    erase = Erase(owner=f"{PURGED}-owner-1", receipt=str(tmp_path / "receipt.json"))
    with oakleaf.open(database.url) as store:
        write(store, KEPT, 0)
        purged = write(store, PURGED, 1)
        database.run("analyze")
        by_service = erase(store)
    assert (by_service.done, by_service.scrubbed, by_service.purged) == (True, False, [purged])
    assert erase.exit_code(by_service) == 1
    assert "lacks a permission" in by_service.problems[0]
    with oakleaf.open(database.owner_url) as store:
        by_owner = erase(store)
    assert (by_owner.scrubbed, by_owner.purged) == (True, [purged])
    assert (files_with(folder, PURGED), bool(files_with(folder, KEPT))) == ([], True)


def test_nothing_is_left_of_a_store_that_is_empty_after_the_purge(database: Database) -> None:
    folder = data_folder(database)
    with oakleaf.open(database.url) as store:
        purged = [write(store, PURGED, n) for n in range(4)]
        database.run("analyze")
        purge_all(store, purged)
    scrub(database.owner_url)
    assert files_with(folder, PURGED) == []


def test_what_people_wrote_is_not_sampled(database: Database) -> None:
    with oakleaf.open(database.url) as store:
        for n in range(4):
            write(store, PURGED, n)
        store.search("anything")
        database.run("analyze")
        rows = database.run(
            "select tablename, attname from pg_stats where schemaname = 'oakleaf' and pg_stats::text like '%canary%'"
        )
        assert {column for _, column in rows} <= {"owner"}
        purge_all(store, [row.session_id for row in store.all_sessions()])


def test_who_may_not_rewrite_the_tables_is_told_so(database: Database) -> None:
    """PostgreSQL skips such a table with a warning: the caller thought that every byte was gone."""
    for url in (database.url, database.client_url):
        with pytest.raises(MissingPermission, match="the schema oakleaf belongs to"):
            scrub(url)


# -- who still reads it ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slotted() -> Iterator[Database]:
    """A database of a server with replication slots and prepared transactions."""
    host = DatabaseHost.__new__(DatabaseHost)
    settings = ("fsync=off", "wal_level=logical", "max_prepared_transactions=5")
    host._external_url, host._database_names, host.server = None, [], PostgresServer(settings)
    host.server.start()
    yield Database(host)
    host.close()


@contextmanager
def snapshot(database: Database) -> Iterator[str]:
    with psycopg.connect(database.owner_url) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1")
        yield f"pid {reader.info.backend_pid}"


@contextmanager
def writer(database: Database) -> Iterator[str]:
    """A transaction that has written and is idle: it has no snapshot, and keeps those of all others old."""
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("select pg_current_xact_id()")
        yield f"pid {connection.info.backend_pid}"


@contextmanager
def writer_elsewhere(database: Database) -> Iterator[str]:
    with psycopg.connect(database.host.url("postgres")) as connection:
        connection.execute("select pg_current_xact_id()")
        yield f"pid {connection.info.backend_pid} of postgres on postgres"


@contextmanager
def slot(database: Database) -> Iterator[str]:
    database.run("select pg_create_logical_replication_slot('old_slot', 'pgoutput')")
    try:
        yield "slot 'old_slot'"
    finally:
        database.run("select pg_drop_replication_slot('old_slot')")


@contextmanager
def prepared(database: Database) -> Iterator[str]:
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        connection.execute("begin; select pg_current_xact_id(); prepare transaction 'forgotten'")
        try:
            yield "transaction 'forgotten'"
        finally:
            connection.execute("rollback prepared 'forgotten'")


HOLDERS = [snapshot, writer, writer_elsewhere, slot, prepared]


@pytest.mark.parametrize("holder", HOLDERS, ids=[each.__name__ for each in HOLDERS])
def test_a_scrub_names_who_can_still_read_what_was_purged(
    slotted: Database, holder: Callable[[Database], contextmanager[str]]
) -> None:
    """Their rows were copied into the new files, and the scrub had ended well."""
    folder = data_folder(slotted)
    with oakleaf.open(slotted.url) as store:
        session_id = write(store, PURGED, 1)
        with holder(slotted) as name:
            purge_all(store, [session_id])
            with pytest.raises(StoreHeld, match=name) as refused:
                scrub(slotted.owner_url, wait=0.2)
            assert "scrub again" in (refused.value.hint or "")
        scrub(slotted.owner_url)
    assert files_with(folder, PURGED) == []


def test_a_scrub_waits_for_a_reader_that_ends(slotted: Database) -> None:
    with ThreadPoolExecutor(1) as pool:
        with snapshot(slotted):
            done = pool.submit(scrub, slotted.owner_url)
            time.sleep(0.3)
            assert not done.done()
        done.result(30)


def test_who_has_begun_after_the_purge_keeps_no_scrub_waiting(slotted: Database) -> None:
    with oakleaf.open(slotted.url) as store:
        purge_all(store, [write(store, PURGED, 1)])
        with snapshot(slotted):
            pass
        scrub(slotted.owner_url, wait=0)
    assert files_with(data_folder(slotted), PURGED) == []


def test_an_idle_client_with_a_lock_is_named_and_stops_no_tenant(database: Database) -> None:
    """`vacuum full` waited for it without an end, and every statement of everybody waited behind the vacuum."""
    with (
        oakleaf.open(database.url) as store,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(database.owner_url) as idle,
    ):
        session = store.start()
        idle.execute("lock table oakleaf.session in access share mode")
        scrubbing = pool.submit(scrub, database.owner_url, 4.0)
        wait_until(lambda: database.run(WAITS_FOR_LOCK))
        session.append([user("meanwhile")])
        assert not scrubbing.done()
        name = rf"oakleaf\.session: the session with pid {idle.info.backend_pid}"
        with pytest.raises(StoreHeld, match=name):
            scrubbing.result(60)


WAITS_FOR_LOCK = (
    "select 1 from pg_stat_activity where query ilike 'vacuum%session' and wait_event_type = 'Lock'"
)
