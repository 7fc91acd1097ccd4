"""What one client holds in PostgreSQL, on purpose or by leaving, keeps nobody else waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import oakleaf
from oakleaf import assistant, errors, user
from oakleaf_postgres.store import commit as postgres_commit
from oakleaf_postgres.store import connections as postgres_connections
from oakleaf_postgres.store import create as postgres_create
from oakleaf_postgres.store import schema as postgres_schema
from oakleaf_postgres.store.schema import LOCK, migrate
from support.postgres import Database
from support.postgres_attacks import IDENTITY

Client = psycopg.Connection[Any]


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with psycopg.connect(database.client_url, autocommit=True) as connection:
        yield connection


class TestDenial:
    def test_an_advisory_lock_stops_no_migration_no_fork_and_no_purge(
        self, database: Database, client: Client
    ) -> None:
        keys = [
            str(LOCK),
            *(f"hashtextextended('{name}', {n})" for name in ("default", "other") for n in (0, 1)),
        ]
        client.execute(f"select {', '.join(f'pg_advisory_lock({key})' for key in keys)}")
        migrate(database.owner_url)
        with oakleaf.open(database.url) as sessions:
            conversation = sessions.latest_or_start("conversation")
            conversation.append([user("q"), assistant("a")])
            fork = conversation.fork()
            for session_id in (fork.session_id, conversation.session_id):
                sessions.backend.trash(session_id, 1)
                sessions.backend.purge(session_id)
            assert list(sessions.all_sessions()) == list(sessions.all_sessions(trashed=True)) == []
        client.execute("discard all")

    def test_an_input_that_is_not_committed_stops_no_step(self, database: Database, client: Client) -> None:
        with oakleaf.open(database.url) as sessions, client.transaction():
            mine = sessions.start(owner="ann")
            client.execute(IDENTITY)
            statement = "insert into oakleaf.public_input (session_id, text) values (%s, 'x')"
            client.execute(statement, (mine.session_id,))
            mine.append([user("q"), assistant("a")])
            sessions.backend.release(mine.session_id, sessions.backend.lease(mine.session_id, "h", 9, 1))
            sessions.backend.trash(mine.session_id, 1)
            assert mine.row.trashed_at == 1

    def test_who_waits_for_it_is_told_in_time(
        self, database: Database, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        short = postgres_connections.IDENTITY.replace("25s", "100ms")
        monkeypatch.setattr(postgres_connections, "IDENTITY", short)
        with oakleaf.open(database.url) as sessions, client.transaction():
            mine = sessions.start(owner="ann")
            client.execute(IDENTITY)
            statement = "insert into oakleaf.public_input (session_id, text) values (%s, 'x')"
            client.execute(statement, (mine.session_id,))
            with pytest.raises(errors.StoreError, match="held a lock"):
                mine.enqueue("the service's own")

    @pytest.mark.parametrize(
        "write",
        [
            lambda store, session: session.append([user("more")]),
            lambda store, session: session.append([user("more")], key="caller"),
            lambda store, session: session.rewind(1),
            lambda store, session: session.title("other"),
            lambda store, session: session.tag(team="other"),
            lambda store, session: store.start(session_id="ses_new"),
        ],
        ids=["append", "keyed", "rewind", "title", "tag", "start"],
    )
    def test_no_write_waits_for_ever_for_a_row_that_somebody_holds(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, write: Any
    ) -> None:
        for module in (postgres_connections, postgres_commit, postgres_create):
            short = postgres_connections.SET_LOCK_TIMEOUT.replace("25s", "100ms")
            monkeypatch.setattr(module, "SET_LOCK_TIMEOUT", short)
        monkeypatch.setattr(
            postgres_connections, "IDENTITY", postgres_connections.IDENTITY.replace("25s", "100ms")
        )
        for cached in (postgres_commit.statement, postgres_create.statement):
            cached.cache_clear()
        with oakleaf.open(database.url) as store:
            session = store.start(session_id="ses_held")
            session.append([user("q"), assistant("a")])
            with psycopg.connect(database.host.url(database.name)) as other:
                other.execute("select from oakleaf.session where id = 'ses_held' for update")
                other.execute(
                    "insert into oakleaf.session select (jsonb_populate_record(session, "
                    "jsonb_build_object('number', 999, 'id', 'ses_new'))).* from oakleaf.session where id = 'ses_held'"
                )
                with pytest.raises(
                    errors.StoreError, match=r"another client held a lock .* nothing was written, try again"
                ):
                    write(store, session)
                other.rollback()
            assert store.session("ses_held").leaf.seq == 2
        for cached in (postgres_commit.statement, postgres_create.statement):
            cached.cache_clear()

    def test_a_reader_that_stays_makes_migrate_give_up_and_say_so(
        self, database: Database, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_schema, "LOCK_TIMEOUT", "100ms")
        with client.transaction():
            client.execute("table oakleaf.public_message")
            with pytest.raises(errors.StoreError, match="nothing was changed"):
                migrate(database.owner_url)

    def test_nothing_is_notified_that_could_be_overheard(self, database: Database, client: Client) -> None:
        for channel in ("oakleaf", "default", "ann", "session", "entry", "journal", "ses_1"):
            client.execute(f'listen "{channel}"')
        with oakleaf.open(database.url) as sessions:
            sessions.start(session_id="ses_1", owner="bob").append([user("q"), assistant("a")])
        assert list(client.notifies(timeout=0.1)) == []
        client.execute("discard all")
