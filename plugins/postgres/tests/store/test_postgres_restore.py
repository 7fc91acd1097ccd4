"""The runbook's restore: a dump of one cluster becomes a store on another, whose roles are other ones."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import oakleaf
from oakleaf import assistant, user
from oakleaf_postgres.store.schema import migrate
from support.postgres import APP, CLIENT, Database, DatabaseHost, PostgresServer, binaries


@pytest.fixture
def other_cluster() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.close()


def test_a_dump_restored_without_its_roles_is_whole_after_migrate_and_doctor_names_what_is_missing(
    postgres: DatabaseHost, database: Database, other_cluster: PostgresServer, tmp_path: Path
) -> None:
    database.run("drop role if exists reader")
    database.run("create role reader login; select oakleaf.bind('reader', 'default', 'ann')")
    with oakleaf.open(database.url) as store:
        session = store.start("support", owner="ann", tags={"team": "north"}, title="lost parcel")
        session.append([user("Where is the parcel?"), assistant("In the harbour.")])
        fork = session.fork(1)
        fork.append([assistant("At the airport.")])
        assert store.search("harbour").hits
        expected = [entry.entry_id for entry in fork.path()]
    dump = tmp_path / "agents.dump"
    subprocess.run([binaries() / "pg_dump", "-Fc", "-f", dump, postgres.url(database.name)], check=True)

    target = other_cluster.url("agents")
    with psycopg.connect(other_cluster.url("postgres"), autocommit=True) as admin:
        admin.execute("create database agents encoding 'UTF8' template template0")
    restored = subprocess.run(
        [binaries() / "pg_restore", "-d", target, dump], capture_output=True, text=True, check=False
    )
    assert (
        'role "oakleaf_service" does not exist' in restored.stderr
    )  # it goes on, and migrate makes what is missing
    migrate(target)
    with psycopg.connect(target, autocommit=True) as admin:
        admin.execute(f"create role {APP} login in role oakleaf_service")  # type: ignore[arg-type]

    with oakleaf.open(other_cluster.url("agents", APP)) as store:
        assert list(store.verify()) == []
        assert [entry.entry_id for entry in store.session(fork.session_id).path()] == expected
        assert store.search("harbour").hits
        assert [row.title for row in store.sessions(tag=("team", "north")).sessions] == ["lost parcel"]
        problems = [one for one in store.findings() if one.level == "problem"]
        assert [one.message.split(" was bound")[0] for one in problems] == ["the login 'reader'"]
        with psycopg.connect(target, autocommit=True) as admin:
            admin.execute("create role reader login")
            admin.execute("select oakleaf.bind('reader', 'default', 'ann')")
        assert store.backend.lost_logins() == []
    with psycopg.connect(other_cluster.url("agents", "reader")) as reader:
        rows = reader.execute(
            "select text from oakleaf.public_message where session_id = %s", (session.session_id,)
        )
        assert [text for (text,) in rows] == ["Where is the parcel?", "In the harbour."]
    database.run("select oakleaf.unbind('reader'); drop role reader")


def test_a_dump_restored_as_another_owner_is_whole_after_migrate(
    postgres: DatabaseHost, database: Database, tmp_path: Path
) -> None:
    with oakleaf.open(database.url) as store:
        session = store.start("support", owner="ann")
        session.append([user("Where is the parcel?"), assistant("In the harbour.")])
        assert store.search("harbour").hits
    dump = tmp_path / "agents.dump"
    subprocess.run([binaries() / "pg_dump", "-Fc", "-f", dump, postgres.url(database.name)], check=True)

    name = postgres.create_database("handed_over")
    with psycopg.connect(postgres.url(name), autocommit=True) as admin:
        admin.execute("drop role if exists heir")
        admin.execute("create role heir login createrole password 'heir'")
        admin.execute(f"grant create on database {name} to heir")  # type: ignore[arg-type]
    restore = [binaries() / "pg_restore", "--no-owner", "--role=heir", "-d", postgres.url(name), dump]
    subprocess.run(restore, check=True)
    done = migrate(postgres.url(name, "heir"))
    assert done.before == done.after

    with oakleaf.open(postgres.url(name, APP)) as store:
        assert list(store.verify()) == []
        assert store.search("harbour").hits
    with psycopg.connect(postgres.url(name, CLIENT)) as client:
        client.execute(
            "select set_config('oakleaf.space', 'default', true), set_config('oakleaf.owner', 'ann', true)"
        )
        rows = client.execute("select text from oakleaf.public_message")
        assert [text for (text,) in rows] == ["Where is the parcel?", "In the harbour."]
