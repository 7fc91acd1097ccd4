"""The schema of Absurd beside ours: its owner installs and migrates it, its users check it.

Its SQL comes bundled with `absurdctl`, pinned to the version of the SDK. Knows queues and who may use them; does not
know tasks.
"""

from __future__ import annotations

from typing import Any

import absurdctl
import psycopg
from msgspec import Struct
from psycopg import sql

from oakleaf.errors import (
    InvalidArgument,
    MigrationNeeded,
    NewerFormat,
)
from oakleaf.stores.tasks import DEFAULT_QUEUE
from oakleaf_postgres.absurd import registry
from oakleaf_postgres.errors import EngineNotInstalled, MissingPermission
from oakleaf_postgres.store.connections import store_error
from oakleaf_postgres.store.rights import Roles, close_tables
from oakleaf_postgres.store.schema import (
    DEFAULT_SERVICE,
    SAFE_PATH,
    lock_schema,
    plain_errors,
    safe_transaction,
)
from oakleaf_postgres.store.schema import VERSION as SCHEMA_VERSION
from oakleaf_postgres.store.statement import fetch_row
from oakleaf_postgres.store.url import Address

MAX_QUEUE_BYTES = 57
"""Absurd makes names of tables and indexes from it."""
VERSION: str = absurdctl.ABSURD_SCHEMA_TARGET_VERSION

# Does the schema exist, and may this role use it? In a schema that it may not use PostgreSQL looks nothing up.
SELECT_RIGHTS = """
select case when may_use then to_regprocedure('absurd.get_schema_version()') is not null else oid is not null end,
       may_use, current_user
from (select oid, coalesce(has_schema_privilege(oid, 'usage'), false) as may_use
      from (select to_regnamespace('absurd')::oid as oid) as name) as schema
"""
SELECT_QUEUE = """
select absurd.get_schema_version(), to_regclass(format('absurd.%%I', 't_' || %s)) is not null,
       coalesce(has_table_privilege(to_regclass(format('absurd.%%I', 't_' || %s)), 'select, insert'), false),
       to_regclass('absurd.oakleaf_worker') is not null,
       not exists (select from pg_proc where pronamespace = 'absurd'::regnamespace and prokind = 'f' and proconfig is null)
"""
# Absurd's functions run with the rights of the caller.
GRANT = """
grant usage on schema absurd to {service};
grant execute on all functions in schema absurd to {service};
grant select on absurd.queues to {service};
"""
# Without it a claim reads and sorts every task that waits: 1 ms with 100 of them, 600 ms with 100,000.
INDEX_CLAIM = """
create index if not exists {index} on absurd.{runs} (available_at, run_id) where state in ('pending', 'sleeping')
"""
# To find the task of a session that waits without reading all tasks.
INDEX_SESSION = """
create index if not exists {index} on absurd.{tasks} ((params ->> 'session')) where state in ('pending', 'sleeping')
"""
# Absurd's functions call others by their bare names, also when a client's is in the caller's search path.
PIN_FUNCTIONS = f"""
do $$
declare
    called regprocedure;
begin
    for called in select oid from pg_proc where pronamespace = 'absurd'::regnamespace and prokind = 'f' loop
        execute format('alter function %s set search_path = {SAFE_PATH}', called);
    end loop;
end
$$
"""
GRANT_TABLE = "grant select, insert, update, delete on absurd.{table} to {service}"


class InstallResult(Struct, frozen=True):
    before: str | None
    """None: it was not installed."""
    after: str
    queue: str


def install(url: str, queue: str = DEFAULT_QUEUE) -> InstallResult:
    """Create or migrate Absurd's schema, create the queue, and let the service role use both."""
    if not 0 < len(queue.encode()) <= MAX_QUEUE_BYTES or "\0" in queue:
        raise InvalidArgument("queue", queue, f"a name of 1 to {MAX_QUEUE_BYTES} bytes")
    address = Address.parse(url).for_maintenance()
    command = f"oakleaf --store URL migrate --queue {queue}"
    with (
        address.connect() as connection,
        plain_errors(address, connection, command),
        safe_transaction(connection),
    ):
        _check_ours(connection, address.safe_url)
        lock_schema(connection)
        before = _install(connection, address.safe_url)
        connection.execute("select absurd.create_queue(%s)", (queue,))
        names = {"index": sql.Identifier(f"r_{queue}_bc"), "runs": sql.Identifier(f"r_{queue}")}
        connection.execute(sql.SQL(INDEX_CLAIM).format(**names))
        names = {"index": sql.Identifier(f"t_{queue}_bs"), "tasks": sql.Identifier(f"t_{queue}")}
        connection.execute(sql.SQL(INDEX_SESSION).format(**names))
        connection.execute(PIN_FUNCTIONS)
        _grant(connection, queue, Roles.read(connection).service or DEFAULT_SERVICE)
        close_tables(connection, "absurd")
    return InstallResult(before, VERSION, queue)


def _check_ours(connection: psycopg.Connection[Any], where: str) -> None:
    """Require our schema, since tasks name sessions."""
    if not fetch_row(connection, "select to_regclass('oakleaf.migration') is not null")[0]:
        raise MigrationNeeded(where, 0, SCHEMA_VERSION)


def _install(connection: psycopg.Connection[Any], where: str) -> str | None:
    if not fetch_row(connection, SELECT_RIGHTS)[0]:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        return None
    before = str(fetch_row(connection, "select absurd.get_schema_version()")[0])
    _check_not_newer(where, before)
    migrations = absurdctl.discover_bundled_migrations()
    for step in absurdctl.resolve_migration_path(before, VERSION, migrations):
        connection.execute(step["sql"])
    return before


def _check_not_newer(where: str, version: str) -> None:
    if absurdctl.compare_versions(version, VERSION) > 0:
        raise NewerFormat(f"the schema absurd of {where}", version, VERSION)


def _grant(connection: psycopg.Connection[Any], queue: str, service: str) -> None:
    role = sql.Identifier(service)
    connection.execute(sql.SQL(GRANT).format(service=role))
    connection.execute(sql.SQL(registry.CREATE).format(service=role))
    for kind in "trcew":
        table = sql.Identifier(f"{kind}_{queue}")
        connection.execute(sql.SQL(GRANT_TABLE).format(table=table, service=role))


def check_queue(connection: psycopg.Connection[Any], where: str, queue: str) -> None:
    """Raise unless the queue exists, has the right version and may be used."""
    try:
        _check_queue(connection, where, queue)
    except psycopg.Error as error:
        raise store_error(where, error) from None


def _check_queue(connection: psycopg.Connection[Any], where: str, queue: str) -> None:
    is_installed, may_use, user = fetch_row(connection, SELECT_RIGHTS)
    if not is_installed:
        raise EngineNotInstalled(where, queue, "has no schema of Absurd yet")
    if not may_use:
        raise MissingPermission(where, user, "it may not use the schema absurd", _grant_hint(queue))
    version, has_queue, may_write, has_registry, is_pinned = fetch_row(
        connection, SELECT_QUEUE, [queue, queue]
    )
    _check_not_newer(where, version)
    if version != VERSION:
        raise EngineNotInstalled(
            where, queue, f"has schema {version} of Absurd, this Oakleaf needs {VERSION}"
        )
    if not has_queue or not has_registry:
        raise EngineNotInstalled(
            where, queue, "has no registry of workers" if has_queue else f"has no queue {queue!r}"
        )
    if not is_pinned:  # it was migrated by somebody else
        raise EngineNotInstalled(
            where, queue, "has functions of Absurd that a client's could take the place of"
        )
    if not may_write:
        raise MissingPermission(where, user, f"it may not use the queue {queue!r}", _grant_hint(queue))


def _grant_hint(queue: str) -> str:
    return (
        f"run oakleaf --store URL migrate --queue {queue}, as the role that owns the schema: "
        "it grants them to the service role"
    )
