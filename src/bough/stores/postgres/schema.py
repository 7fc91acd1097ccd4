"""The schema of a PostgreSQL store: made and brought up to date by its owner, looked at by whoever opens it.

Knows versions, roles and locks. A store never makes or changes its schema: what a running agent may do and
what shapes its data are two people's rights. Migrations only go forward; several may start at once and one
does the work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import psycopg
from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql

from ...errors import InvalidArgument, MigrationNeeded, MissingPermission, NewerFormat, StoreError
from .url import Address

MIGRATIONS: Mapping[int, str | None] = {1: "schema.sql", 2: None}
"""Each brings the schema to that version; a fresh one runs them all. None: only the rights changed (`RIGHTS`), and
those are written anew by every migration. They have a version for whoever opens: old policies are right but slow,
or worse, and nothing else would tell.

2: a session is found by its id however many its space has.
"""
RIGHTS = "roles.sql"
VERSION = max(MIGRATIONS)
OLDEST_SERVER = 150_000
LOCK = 0x626F756768  # "bough": one first migration at a time per database
LOCK_TIMEOUT = "10s"

MAKE_SCHEMA = """
create schema if not exists bough;
create table if not exists bough.migration (
    version integer primary key,
    at      timestamptz not null default now()
);
"""
IS_MADE = "select to_regclass('bough.migration') is not null"
SELECT_VERSION = "select coalesce(max(version), 0) from bough.migration"
# One question for whoever opens: is there a schema, may I use it, and which one is it.
SELECT_RIGHTS = """
select current_user, to_regnamespace('bough') is not null,
       coalesce(has_schema_privilege(to_regnamespace('bough'), 'usage'), false)
"""
SELECT_TABLE_RIGHTS = """
select to_regclass('bough.session') is not null,
       coalesce(has_table_privilege(to_regclass('bough.session'), 'select, insert'), false)
"""
ROLE_NAME = re.compile("[a-z_][a-z0-9_]{0,62}")


class MigrationResult(Struct, frozen=True):
    before: int
    """0: there was none."""
    after: int


def migrate(url: str, *, service: str = "bough_service", client: str = "bough_client") -> MigrationResult:
    """Make the schema or bring it to this version, as the role of `url`, which then owns it.

    The roles are made if they are missing, without the right to log in: grant them to the logins that need them.
    """
    for name in (service, client):
        if not ROLE_NAME.fullmatch(name):
            raise InvalidArgument("role", name, "small letters, digits and underscores")
    address = replace(Address.parse(url), is_prepared=False)  # a file of several statements cannot be
    with address.connect() as connection, connection.transaction():
        _check_server(connection, address.safe_url)
        try:
            lock_schema(connection)
            return _migrate(connection, address.safe_url, service, client)
        except psycopg.errors.LockNotAvailable:
            raise StoreError(
                f"{address.safe_url}: an open transaction kept migrate waiting for {LOCK_TIMEOUT}; nothing was changed. "
                "See pg_stat_activity for who is idle in a transaction, and run it again"
            ) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise MissingPermission(
                address.safe_url, _user(connection), str(error.diag.message_primary)
            ) from None


def lock_schema(connection: psycopg.Connection[Any]) -> None:
    """One migration at a time, and no client can hold it: advisory locks are anybody's, so one is taken only while
    there is no table of ours to lock. Whoever waits for a table makes all others wait behind: not for long."""
    connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
    if not _one(connection, IS_MADE):
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
    if _one(connection, IS_MADE):
        connection.execute("lock table bough.migration in exclusive mode")


def scrub(url: str) -> None:
    """Write every table anew, as their owner, so that no byte of what was purged is left in their files.

    Takes each table for itself while it does. The write-ahead log keeps its own until it is recycled or archived.
    """
    address = replace(Address.parse(url), is_prepared=False)
    with address.connect() as connection:
        names = connection.execute("select tablename from pg_tables where schemaname = 'bough'").fetchall()
        for (name,) in names:
            connection.execute(sql.SQL("vacuum (full) bough.{}").format(sql.Identifier(name)))
        # The old files are emptied at once and unlinked by the next checkpoint, which not everybody may ask for.
        if _one(connection, "select pg_has_role(current_user, 'pg_checkpoint', 'usage')"):
            connection.execute("checkpoint")


def _migrate(connection: psycopg.Connection[Any], where: str, service: str, client: str) -> MigrationResult:
    # Asked first: creating what is there wants a right that an owner of the schema alone may lack.
    if not _one(connection, IS_MADE):
        connection.execute(MAKE_SCHEMA)
    before = int(_one(connection, SELECT_VERSION))
    if before > VERSION:
        raise NewerFormat(where, str(before), str(VERSION))
    connection.execute("set local search_path = bough")
    for version in range(before + 1, VERSION + 1):
        changed = MIGRATIONS[version]
        if changed is not None:
            connection.execute(_file(changed))
        connection.execute("insert into bough.migration (version) values (%s)", (version,))
    _compress(connection)
    for name in (service, client):
        _make_role(connection, name)
    names = {"owner": _user(connection), "service": service, "client": client}
    roles = sql.SQL(_file(RIGHTS)).format(**{k: sql.Identifier(v) for k, v in names.items()})
    connection.execute(roles)
    return MigrationResult(before, VERSION)


def _file(name: str) -> Any:
    return files("bough.stores.postgres").joinpath(name).read_text()


def _one(connection: psycopg.Connection[Any], query: Any) -> Any:
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _user(connection: psycopg.Connection[Any]) -> str:
    return connection.info.user


def _compress(connection: psycopg.Connection[Any]) -> None:
    """lz4 where the server has it: measured as fast as none, where the default costs a tenth of a step."""
    offered = _one(connection, "select enumvals from pg_settings where name = 'default_toast_compression'")
    if offered and "lz4" in offered:
        connection.execute("alter table bough.entry alter column body set compression lz4")


def _make_role(connection: psycopg.Connection[Any], name: str) -> None:
    query = "select 1 from pg_roles where rolname = %s"
    if connection.execute(query, (name,)).fetchone() is not None:
        return
    try:
        with connection.transaction():
            connection.execute(sql.SQL("create role {} nologin").format(sql.Identifier(name)))
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        pass  # roles are the cluster's: a migration of another database made it in this moment


def _check_server(connection: psycopg.Connection[Any], where: str) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        found = connection.info.server_version // 10_000
        raise StoreError(f"{where} is PostgreSQL {found}; Bough needs 15 or newer")


def check_schema(connection: psycopg.Connection[Any], where: str) -> None:
    """Refuse to open what is not there, not ours to use, too old or too new."""
    _check_server(connection, where)
    found = connection.execute(SELECT_RIGHTS).fetchone()
    assert found is not None
    user, is_there, may_use = found
    if not is_there:
        raise MigrationNeeded(where, 0, VERSION)
    if not may_use:
        raise MissingPermission(where, user, "it may not use the schema bough")
    tables = connection.execute(SELECT_TABLE_RIGHTS).fetchone()
    if tables is None or not tables[0]:
        raise MigrationNeeded(where, 0, VERSION)
    if not tables[1]:
        raise MissingPermission(where, user, "it may not read and write the table bough.session")
    version = int(_one(connection, SELECT_VERSION))
    if version < VERSION:
        raise MigrationNeeded(where, version, VERSION)
    if version > VERSION:
        raise NewerFormat(where, str(version), str(VERSION))
