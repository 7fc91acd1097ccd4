"""Scrub a PostgreSQL store: rewrite its tables, so that no byte of what was purged is left in their files.

PostgreSQL keeps a deleted row while somebody may still read it: an open transaction, a replication slot or a prepared
transaction that is older than the purge. A rewrite would copy such rows. So the scrub waits for what is older, and raises with
its name when the wait is over. Knows snapshots, locks and statistics; does not know what is purged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from oakleaf_postgres.errors import MissingPermission, StoreHeld
from oakleaf_postgres.store.schema import SAFE_PATH, SELECT_OWNER, plain_errors
from oakleaf_postgres.store.statement import fetch_row
from oakleaf_postgres.store.url import Address

WAIT_SECONDS = 30.0
PAUSE_SECONDS = 0.1
# Whoever waits for a table to itself makes all later ones wait, so each try is short. It is longer than the second after which
# PostgreSQL ends an autovacuum that is in the way.
SET_TIMEOUTS = "set lock_timeout = '3s'; set statement_timeout = 0"
PAUSE_AFTER_LOCK_SECONDS = 1.0
"""How long the others may work between two tries."""

# What is as old as the transaction {0}. A writer holds rows of every database: no snapshot is newer than its transaction. A
# vacuum keeps no row; one that is listed there is none that rewrites.
SELECT_HOLDERS = """
with horizon as (select pg_catalog.age(%s::text::xid) as age)
select 'the session with pid ' || pid || coalesce(' of ' || usename, '') || coalesce(' on ' || datname, ''),
       'select pg_terminate_backend(' || pid || ')'
from pg_catalog.pg_stat_activity, horizon
where pid <> pg_catalog.pg_backend_pid() and pid not in (select pid from pg_catalog.pg_stat_progress_vacuum)
  and (pg_catalog.age(backend_xid) >= horizon.age
       or (pg_catalog.age(backend_xmin) >= horizon.age and (datname is null or datname = pg_catalog.current_database())))
union all
select 'the replication slot ' || pg_catalog.quote_literal(slot_name),
       'let its reader catch up, or select pg_drop_replication_slot(' || pg_catalog.quote_literal(slot_name) || ')'
from pg_catalog.pg_replication_slots, horizon
where pg_catalog.age(xmin) >= horizon.age or pg_catalog.age(catalog_xmin) >= horizon.age
union all
select 'the prepared transaction ' || pg_catalog.quote_literal(gid) || ' on ' || database,
       'commit or rollback prepared ' || pg_catalog.quote_literal(gid)
from pg_catalog.pg_prepared_xacts, horizon where pg_catalog.age(transaction) >= horizon.age
"""
# Who has a lock on a table; a prepared transaction was named before.
SELECT_LOCKERS = """
select distinct 'the session with pid ' || pid || coalesce(' of ' || usename, ''), 'select pg_terminate_backend(' || pid || ')'
from pg_catalog.pg_locks join pg_catalog.pg_stat_activity using (pid)
where relation = %s::text::regclass and granted and pid <> pg_catalog.pg_backend_pid()
"""
SELECT_TABLES = (
    "select 'oakleaf.' || quote_ident(tablename) from pg_tables where schemaname = 'oakleaf' order by 1"
)
STATISTICS = "pg_catalog.pg_statistic"
# Of columns of which no new ones are made, or of a table that is empty now. Before PostgreSQL 18 there is no such function.
CLEAR_STATISTICS = """
select pg_catalog.pg_clear_attribute_stats('oakleaf', relname, attname, false)
from pg_catalog.pg_attribute join pg_catalog.pg_class on pg_class.oid = attrelid
where relnamespace = 'oakleaf'::regnamespace and relkind = 'r' and attnum > 0 and not attisdropped
"""
CAN_CLEAR_STATISTICS = 180_000
OWNS_DATABASE = """
select pg_catalog.pg_has_role(datdba, 'usage') from pg_catalog.pg_database where datname = pg_catalog.current_database()
"""


def scrub(url: str, wait: float = WAIT_SECONDS) -> None:
    """Rewrite every table, as the tables' owner, so no purged byte is left in the files.

    Waits so many seconds for transactions that may still read what was purged, and as long for each table, then raises
    StoreHeld. Locks each table while it is rewritten. The write-ahead log still has its copies until it is recycled or
    archived.
    """
    address = Address.parse(url).for_maintenance()
    with address.connect(search_path=SAFE_PATH) as connection, plain_errors(address, connection):
        Scrub(connection, address.safe_url, wait).run()


class Scrub:
    """A scrub, on a separate connection."""

    def __init__(self, connection: psycopg.Connection[Any], url: str, wait: float) -> None:
        self._connection, self._url, self._wait = connection, url, wait

    def run(self) -> None:
        self._check_owner()
        self._connection.execute(SET_TIMEOUTS)
        self._wait_for_snapshots()
        tables = [name for (name,) in self._connection.execute(SELECT_TABLES)]
        for name in tables:
            self._rewrite(name)
        self._refresh_statistics(tables)
        # The old files are emptied at once and unlinked by the next checkpoint, which not every role may request.
        if self._value("select pg_has_role(current_user, 'pg_checkpoint', 'usage')"):
            self._connection.execute("checkpoint")

    def _value(self, query: Any) -> Any:
        return fetch_row(self._connection, query)[0]

    def _check_owner(self) -> None:
        """Raise unless the role owns the tables: PostgreSQL would skip each table with a warning."""
        row = self._connection.execute(SELECT_OWNER).fetchone()
        if row is not None and not row[2]:
            reason = f"the schema oakleaf belongs to {row[0]!r}; connect as that role"
            raise MissingPermission(self._url, self._connection.info.user, reason)

    def _wait_for_snapshots(self) -> None:
        """Wait until nobody reads rows deleted before now."""
        horizon = str(self._value("select pg_current_xact_id()::xid::text"))

        def is_free() -> bool:
            return self._connection.execute(SELECT_HOLDERS, (horizon,)).fetchone() is None

        if not _wait_until(is_free, self._wait, PAUSE_SECONDS):
            what = "can still read what was purged"
            raise StoreHeld(self._url, what, self._connection.execute(SELECT_HOLDERS, (horizon,)).fetchall())

    def _rewrite(self, table: str) -> None:
        if not _wait_until(lambda: self._try_rewrite(table), self._wait, PAUSE_AFTER_LOCK_SECONDS):
            lockers = self._connection.execute(SELECT_LOCKERS, (table,)).fetchall()
            raise StoreHeld(self._url, f"locks the table {table}", lockers)

    def _try_rewrite(self, table: str) -> bool:
        """Rewrite a table unless locked for longer than a try lasts."""
        try:
            self._connection.execute(sql.SQL("vacuum (full) {}").format(sql.SQL(table)))
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def _refresh_statistics(self, tables: list[str]) -> None:
        """Replace PostgreSQL's samples of ids and owners, and rewrite the table of older versions."""
        if self._connection.info.server_version >= CAN_CLEAR_STATISTICS:
            self._connection.execute(CLEAR_STATISTICS)
        self._connection.execute(f"analyze {', '.join(tables)}")
        if self._value(OWNS_DATABASE):
            self._rewrite(STATISTICS)


def _wait_until(condition: Callable[[], bool], seconds: float, pause: float) -> bool:
    """Return whether the condition held within the seconds given; the condition is tried at least once."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
