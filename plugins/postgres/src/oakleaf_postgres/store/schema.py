"""The schema of a PostgreSQL store: its owner creates and migrates it, opening a store checks it.

Knows versions, roles and locks. A store never creates or changes its schema: running agents and changing tables are
the rights of different roles. Migrations only go forward; several may start at once and one does the work.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import psycopg
from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql

from oakleaf.errors import (
    InvalidArgument,
    MigrationNeeded,
    NewerFormat,
    PrereleaseFormat,
    ServerUnreachable,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from oakleaf_postgres.errors import MissingPermission, UnsafeRights
from oakleaf_postgres.store.rights import (
    SELECT_PATH,
    Roles,
    client_grants,
    compare_rights,
    foreign_triggers,
    grant_all,
    open_schemas,
)
from oakleaf_postgres.store.url import Address, first_line

MIGRATIONS: Mapping[int, str | None] = {1: "schema.sql"}
"""The file that migrates the schema to each version; a new one runs them all. None: only the rights changed
(`RIGHTS`), which every migration writes again. They have a version because opening must notice old policies, which
may be slow or worse.
"""
RIGHTS = "roles.sql"
VERSION = max(MIGRATIONS)
OLDEST_SERVER = 150_000
LOCK = 0x6F616B6C656166  # "oakleaf": one first migration at a time per database
LOCK_TIMEOUT = "3s"
SAFE_PATH = "pg_catalog, pg_temp"
"""A search path in which no other role can create: a function or an operator of a client, with arguments that match better
than PostgreSQL's own, would run with the rights of the caller. Temporary objects come last, since by default they come first."""
# Others may be set for the role, to end what an application does.
SET_TIMEOUTS = "set local lock_timeout = {}; set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"

CREATE_SCHEMA = """
create schema if not exists oakleaf;
create table if not exists oakleaf.migration (
    version integer primary key,
    at      timestamptz not null default now()
);
"""
SCHEMA_EXISTS = "select to_regclass('oakleaf.migration') is not null"
# The schema of the product under its former name, in a database that holds none of ours.
IS_PRERELEASE = (
    "select to_regclass('oakleaf.migration') is null and to_regclass('bough.migration') is not null"
)
SELECT_VERSION = "select coalesce(max(version), 0) from oakleaf.migration"
# Does the schema exist, and may this role use it?
SELECT_RIGHTS = """
select current_user, to_regnamespace('oakleaf') is not null,
       coalesce(has_schema_privilege(to_regnamespace('oakleaf'), 'usage'), false)
"""
SELECT_TABLE_RIGHTS = """
select to_regclass('oakleaf.session') is not null,
       coalesce(has_table_privilege(to_regclass('oakleaf.session'), 'select, insert'), false),
       coalesce(not row_security_active(to_regclass('oakleaf.session')), false) or exists (
           select from pg_policy cross join unnest(polroles) as role
           where polrelid = to_regclass('oakleaf.session') and polname = 'service' and pg_has_role(role, 'usage'))
"""
SELECT_OWNER = """
select pg_get_userbyid(nspowner), pg_has_role(nspowner, 'member'), pg_has_role(nspowner, 'usage')
from pg_namespace where nspname = 'oakleaf'
"""
DEFAULT_SERVICE, DEFAULT_CLIENT = "oakleaf_service", "oakleaf_client"
ROLE_NAME = re.compile("[a-z_][a-z0-9_]{0,62}")


class MigrationResult(Struct, frozen=True):
    before: int
    """0: there was no schema."""
    after: int
    warnings: tuple[str, ...] = ()
    """What only an administrator of the database can change, in words."""


def migrate(url: str, *, service: str | None = None, client: str | None = None) -> MigrationResult:
    """Create the schema or migrate the schema to this version, as the role of `url`, the later owner.

    Creates the roles if they are missing, without the right to log in: grant them to the logins that need them. Without
    their names the schema keeps the roles it has; a new one gets `oakleaf_service` and `oakleaf_client`. Revokes what else
    these roles and everybody may do with it.
    """
    for name in (service, client):
        if name is not None and not ROLE_NAME.fullmatch(name):
            raise InvalidArgument("role", name, "lower-case letters, digits and underscores")
    address = Address.parse(url).for_maintenance()
    with address.connect() as connection, plain_errors(address, connection):
        path = _fetch_value(connection, SELECT_PATH)
        with safe_transaction(connection):
            _check_server(connection, address.safe_url)
            _check_owner(connection, address.safe_url)
            lock_schema(connection)
            roles = Roles.read(connection)
            done = _migrate(
                connection,
                address.safe_url,
                service or roles.service or DEFAULT_SERVICE,
                client or roles.client or DEFAULT_CLIENT,
            )
            return replace(done, warnings=_warnings(connection, path))


def _warnings(connection: psycopg.Connection[Any], path: list[str]) -> tuple[str, ...]:
    """Return rights that differ although granted anew, and places where others may create."""
    found = compare_rights(connection)
    return *found.dangerous, *found.missing, *found.needless, *open_schemas(connection, path)


@contextlib.contextmanager
def safe_transaction(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Run the block in a transaction closed to clients' code: see `SAFE_PATH`."""
    with connection.transaction():
        connection.execute(f"set local search_path = {SAFE_PATH}")
        yield


@contextlib.contextmanager
def plain_errors(
    address: Address, connection: psycopg.Connection[Any], command: str = "oakleaf --store URL migrate"
) -> Iterator[None]:
    """Translate the server's refusals during the making or checking of a schema."""
    url = address.safe_url
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise StoreError(
            f"{url}: an open transaction blocked migrate for {LOCK_TIMEOUT}; nothing was changed",
            f"look in pg_stat_activity for sessions idle in a transaction, end them, and run {command} again",
        ) from None
    except psycopg.Error as error:
        if connection.closed:
            raise ServerUnreachable(url, first_line(error)) from None
        raise refusal(url, _user(connection), error, "changed") from None


def refusal(url: str, role: str, error: psycopg.Error, done: str) -> StoreError:
    """Translate the server's refusals of any request; nothing was `done`."""
    match error:
        case psycopg.errors.DiskFull():
            return StoreFull(url)
        case psycopg.errors.ReadOnlySqlTransaction():
            return StoreReadOnly(url)
        case psycopg.errors.InsufficientPrivilege():
            return MissingPermission(url, role, first_line(error))
        case psycopg.errors.QueryCanceled():
            hint = f"raise the statement_timeout of the role {role}, unless a person cancelled it"
        case _:
            hint = error.diag.message_hint or ""
    return StoreError(f"{url} refused: {first_line(error)}; nothing was {done}", hint)


def lock_schema(connection: psycopg.Connection[Any]) -> None:
    """Let a single migration run at a time.

    Every login can take an advisory lock, so one is used only while there is no table of ours to lock. Waiting for a
    table makes all later transactions wait, so the wait is short.
    """
    connection.execute(sql.SQL(SET_TIMEOUTS).format(sql.Literal(LOCK_TIMEOUT)))
    if not _fetch_value(connection, SCHEMA_EXISTS):
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
    if _fetch_value(connection, SCHEMA_EXISTS):
        connection.execute("lock table oakleaf.migration in exclusive mode")


def _migrate(connection: psycopg.Connection[Any], url: str, service: str, client: str) -> MigrationResult:
    _refuse_prerelease(connection, url)
    for name in (service, client):
        _create_role(connection, name)
    _become_owner(connection)
    # Checked first: `create if not exists` needs a right that an owner of the schema alone may lack.
    if not _fetch_value(connection, SCHEMA_EXISTS):
        connection.execute(CREATE_SCHEMA)
    _refuse_triggers(connection, url)
    # The policies of a dump that was restored as another owner name the former one. `RIGHTS` forces them again.
    connection.execute("alter table oakleaf.migration no force row level security")
    before = int(_fetch_value(connection, SELECT_VERSION))
    if before > VERSION:
        raise NewerFormat(url, str(before), str(VERSION))
    for version in range(before + 1, VERSION + 1):
        file = MIGRATIONS[version]
        if file is not None:
            connection.execute(_file(file))
        connection.execute("insert into oakleaf.migration (version) values (%s)", (version,))
    _compress(connection)
    former = Roles.read(connection)
    names = {"owner": _current_role(connection), "service": service, "client": client}
    identifiers = {key: sql.Identifier(name) for key, name in names.items()}
    connection.execute(sql.SQL(_file(RIGHTS)).format(client_grants=client_grants(), **identifiers))
    grant_all(connection, Roles(service, client), former)
    return MigrationResult(before, VERSION)


def _refuse_triggers(connection: psycopg.Connection[Any], url: str) -> None:
    """Raise if writing would run another role's function, with the migrating role's rights."""
    triggers = foreign_triggers(connection)
    if triggers:
        raise UnsafeRights(url, triggers)


def _refuse_prerelease(connection: psycopg.Connection[Any], url: str) -> None:
    if _fetch_value(connection, IS_PRERELEASE):
        raise PrereleaseFormat(url)


def _check_owner(connection: psycopg.Connection[Any], url: str) -> None:
    row = connection.execute(SELECT_OWNER).fetchone()
    if row is not None and not row[1]:
        raise _not_the_owner(connection, url, row[0])


def _not_the_owner(connection: psycopg.Connection[Any], url: str, owner: str) -> MissingPermission:
    return MissingPermission(
        url, _user(connection), f"the schema oakleaf belongs to {owner!r}; connect as that role"
    )


def _become_owner(connection: psycopg.Connection[Any]) -> None:
    """Act as the schema's owner, if any: the policies name the owner, and other roles would see nothing."""
    row = connection.execute(SELECT_OWNER).fetchone()
    if row is not None and row[0] != _current_role(connection):
        connection.execute(sql.SQL("set local role {}").format(sql.Identifier(row[0])))


def _current_role(connection: psycopg.Connection[Any]) -> str:
    return str(_fetch_value(connection, "select current_user"))


def _file(name: str) -> Any:
    return files("oakleaf_postgres").joinpath(name).read_text("utf-8")


def _fetch_value(connection: psycopg.Connection[Any], query: Any) -> Any:
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _user(connection: psycopg.Connection[Any]) -> str:
    return connection.info.user


def _compress(connection: psycopg.Connection[Any]) -> None:
    """Compress with lz4 if available: measured as fast as no compression, while the default costs a tenth of
    a step.
    """
    methods = _fetch_value(
        connection, "select enumvals from pg_settings where name = 'default_toast_compression'"
    )
    if methods and "lz4" in methods:
        connection.execute("alter table oakleaf.entry alter column body set compression lz4")


def _create_role(connection: psycopg.Connection[Any], name: str) -> None:
    query = "select 1 from pg_roles where rolname = %s"
    if connection.execute(query, (name,)).fetchone() is not None:
        return
    try:
        with connection.transaction():
            connection.execute(sql.SQL("create role {} nologin").format(sql.Identifier(name)))
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        pass  # roles belong to the cluster: a migration of another database just created it


def _check_server(connection: psycopg.Connection[Any], url: str) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        version = connection.info.server_version // 10_000
        raise StoreError(f"{url} is PostgreSQL {version}; Oakleaf needs 15 or newer")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"{url} has the encoding {encoding}, which cannot hold every text; Oakleaf needs UTF8",
            "create a database for it: createdb --encoding=UTF8 --template=template0 NAME",
        )


def check_schema(connection: psycopg.Connection[Any], url: str) -> None:
    """Raise unless the schema exists, may be used and has the right version."""
    _check_server(connection, url)
    threshold, connection.prepare_threshold = (
        connection.prepare_threshold,
        None,
    )  # none of this is asked again
    with safe_transaction(connection):
        _check_schema(connection, url)
    connection.prepare_threshold = threshold


def _check_schema(connection: psycopg.Connection[Any], url: str) -> None:
    row = connection.execute(SELECT_RIGHTS).fetchone()
    assert row is not None
    user, exists, may_use = row
    if not exists:
        _refuse_prerelease(connection, url)
        raise MigrationNeeded(url, 0, VERSION)
    if not may_use:
        raise MissingPermission(url, user, "it may not use the schema oakleaf")
    tables = connection.execute(SELECT_TABLE_RIGHTS).fetchone()
    if tables is None or not tables[0]:
        raise MigrationNeeded(url, 0, VERSION)
    if not tables[1]:
        raise MissingPermission(url, user, "it may not read and write the table oakleaf.session")
    if not tables[2]:  # the owner of the schema: it has every right, and would find an empty store
        raise MissingPermission(url, user, "row level security hides every session from it")
    version = int(_fetch_value(connection, SELECT_VERSION))
    if version < VERSION:
        raise MigrationNeeded(url, version, VERSION)
    if version > VERSION:
        raise NewerFormat(url, str(version), str(VERSION))
    rights = compare_rights(connection)
    if rights.dangerous:
        raise UnsafeRights(url, rights.dangerous)
    if rights.missing:
        why = f"it needs the rights that migrate grants: {rights.missing[0]}"
        raise MissingPermission(
            url, user, why, "run oakleaf --store URL migrate, as the role that owns the schema"
        )
