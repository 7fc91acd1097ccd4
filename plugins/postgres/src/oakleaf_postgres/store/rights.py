"""Who may do what in our schema: the list that `migrate` grants, and that opening a store and `doctor` compare with.

What an administrator granted otherwise, perhaps as a default for all new tables (`alter default privileges`), is revoked by
`migrate` and named by the others. Knows the catalog; does not know what the tables are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import sql

Connection = psycopg.Connection[Any]
WRITE = "select, insert, update, delete"
SERVICE: Mapping[str, str] = {
    "schema oakleaf": "usage",
    "table oakleaf.migration": "select",
    **{
        f"table oakleaf.{name}": WRITE
        for name in (
            *("session", "session_detail", "draft", "branch", "usage", "inbox", "blob", "search_progress"),
            "session_tag",
        )
    },
    **{
        f"table oakleaf.{name}": "select, insert, delete"
        for name in ("entry", "tool_call", "journal", "blob_use")
    },
    "table oakleaf.search": "select (id, space, session_number, at), insert, delete",
    "table oakleaf.active_message": "select",
    "table oakleaf.lock": "select, update",  # to lock rows: the policy allows no update
    "sequence oakleaf.session_number": "usage",
    "sequence oakleaf.branch_id": "usage",
    **{
        f"function oakleaf.{name}": "execute"
        for name in (
            *("message_text(bytea)", "tag_hash(text,text)", "spaces_with_client_input()", "lost_logins()"),
            "match_newest(tsquery,bigint,bigint,integer,integer)",
            "match_words(tsquery,bigint,bigint,integer)",
        )
    },
}
"""The rights of the service role: privileges by object, as in `grant`. Entries, facts and uses of blobs are never updated."""
CLIENT: Mapping[str, str] = {
    "schema oakleaf": "usage",
    **{f"table oakleaf.public_{name}": "select" for name in ("session", "message", "fact")},
    "table oakleaf.public_input": "select, insert (session_id, text)",
    **{
        f"function oakleaf.{name}": "execute"
        for name in ("own_sessions()", "own_messages(text)", "own_facts(text,bigint)", "own_inputs()")
    },
}
"""The rights of the client role, and of each login that is bound to an owner. Everybody else has none."""

PRIVILEGE = re.compile(r"(\w+)(?: \(([^()]*+)\))?")
REVOKE_DATA = """
revoke all on all tables in schema {schema} from {roles} cascade;
revoke all on all sequences in schema {schema} from {roles} cascade;
"""
REVOKE_ALL = f"""{REVOKE_DATA}
revoke all on all routines in schema {{schema}} from {{roles}} cascade;
revoke all on schema {{schema}} from {{roles}} cascade
"""
# The policies name the roles of a schema.
SELECT_ROLES = """
select polname::text, rolname::text from pg_policy cross join unnest(polroles) as role join pg_roles on pg_roles.oid = role
where (polrelid, polname) in ((to_regclass('oakleaf.session'), 'service'), (to_regclass('oakleaf.login'), 'client'))
"""
# Of our roles and of everybody; what has no list of its own has the default. In the schema of the engine, which other programs
# may use, only tables count, and only if the engine was installed for us: its functions run with the rights of the caller.
SELECT_GRANTS = """
with schema as (
    select oid, nspname, nspacl, nspowner from pg_namespace where nspname = 'oakleaf'
    or nspname = 'absurd' and exists (select from pg_class where relnamespace = pg_namespace.oid and relname = 'oakleaf_worker')
), listed (object, acl, column_name, kind, owner) as (
    select 'schema ' || nspname, nspacl, null::name, 'n'::"char", nspowner from schema where nspname = 'oakleaf'
    union all
    select case relkind when 'S' then 'sequence ' else 'table ' end || relation.oid::regclass::text, relacl, null,
           case relkind when 'S' then 's' else 'r' end::"char", relowner
    from pg_class as relation join schema on schema.oid = relnamespace where relkind in ('r', 'v', 'm', 'p', 'f', 'S')
    union all
    select 'table ' || attrelid::regclass::text, attacl, attname, null, relowner
    from pg_class as relation join schema on schema.oid = relnamespace join pg_attribute on attrelid = relation.oid
    where attacl is not null
    union all
    select 'function ' || routine.oid::regprocedure::text, proacl, null, 'f', proowner
    from pg_proc as routine join schema on schema.oid = pronamespace where nspname = 'oakleaf'
)
select coalesce(rolname::text, 'public'), object, lower(privilege_type), coalesce(column_name::text, '')
from listed cross join lateral aclexplode(coalesce(acl, acldefault(kind, owner))) as grants
left join pg_roles on pg_roles.oid = grantee
where (grantee = 0 or rolname = any(%(roles)s)) and grantee <> owner
"""
# A role that is another, or that no policy applies to.
SELECT_MEMBERSHIPS = """
select member.rolname::text,
       case when member.rolsuper then 'is superuser' when member.rolbypassrls then 'bypasses row level security'
            else 'is a member of ' || other.rolname end
from pg_roles as member left join pg_roles as other
  on not member.rolsuper and not member.rolbypassrls and other.oid <> member.oid and pg_has_role(member.oid, other.oid, 'member')
where member.rolname = any(%(roles)s) and (member.rolsuper or member.rolbypassrls
    or other.rolname = any(%(roles)s) and member.rolname = %(client)s
    or other.oid = (select nspowner from pg_namespace where nspname = 'oakleaf')
    or other.rolname in ('pg_read_all_data', 'pg_write_all_data') and member.rolname = %(client)s)
"""
# What runs when we write, and belongs to neither the owner of the schema nor to a superuser.
SELECT_TRIGGERS = """
select tgname::text, tgrelid::regclass::text, rolname::text
from pg_trigger join pg_class as relation on relation.oid = tgrelid join pg_namespace as schema on schema.oid = relnamespace
join pg_proc as routine on routine.oid = tgfoid join pg_roles on pg_roles.oid = proowner
where nspname = 'oakleaf' and not tgisinternal and proowner <> nspowner and not rolsuper
order by 1, 2
"""
# Schemas of a search path in which others than their owners may create.
SELECT_OPEN_SCHEMAS = """
select nspname::text, has_schema_privilege('public', oid, 'create') from pg_namespace
where nspname = any(%(path)s) and (has_schema_privilege('public', oid, 'create')
    or exists (select from pg_roles where rolname = %(client)s and has_schema_privilege(pg_roles.oid, pg_namespace.oid, 'create')))
order by 1
"""
SELECT_PATH = "select pg_catalog.current_schemas(false)"
"""The search path of the login: to be read before it is set."""


class Roles(Struct, frozen=True):
    """The roles of a schema's migration."""

    service: str | None
    client: str | None

    @classmethod
    def read(cls, connection: Connection) -> Roles:
        roles: dict[str, str] = dict(connection.execute(SELECT_ROLES).fetchall())
        return cls(roles.get("service"), roles.get("client"))


class RightsDifferences(Struct, frozen=True):
    """How the rights in a database differ from the list; each in words."""

    missing: tuple[str, ...] = ()
    """What the service or the client role lacks."""
    dangerous: tuple[str, ...] = ()
    """What everybody or the client role may do, and must not."""
    needless: tuple[str, ...] = ()
    """What the service role may do and does not need."""


def grant_all(connection: Connection, roles: Roles, former: Roles) -> None:
    """Revoke all rights from everybody and from the roles, then grant by the lists."""
    names = dict.fromkeys(
        name for name in (roles.service, roles.client, former.service, former.client) if name is not None
    )
    connection.execute(_revoke(REVOKE_ALL, "oakleaf", names))
    for role, rights in ((roles.service, SERVICE), (roles.client, CLIENT)):
        if role is not None:
            connection.execute(sql.SQL(_grants(rights)).format(sql.Identifier(role)))


def close_tables(connection: Connection, schema: str) -> None:
    """Revoke every right on the tables of an engine's schema from everybody and from the client role."""
    client = Roles.read(connection).client
    connection.execute(_revoke(REVOKE_DATA, schema, [] if client is None else [client]))


def _revoke(statements: Any, schema: str, roles: Iterable[str]) -> sql.Composed:
    names = sql.SQL(", ").join([sql.SQL("public"), *map(sql.Identifier, roles)])
    return sql.SQL(statements).format(schema=sql.Identifier(schema), roles=names)


def client_grants() -> str:
    """Return the statements for a client login's rights, with %1$s for the login."""
    return str(_grants(CLIENT)).replace("{0}", "%1$s")


def _grants(rights: Mapping[str, str]) -> Any:
    return "; ".join(f"grant {privileges} on {object} to {{0}}" for object, privileges in rights.items())


def compare_rights(connection: Connection) -> RightsDifferences:
    """Compare the granted rights with the lists. In a safe transaction, see `SAFE_PATH`: it names objects
    with their schemas.
    """
    roles = Roles.read(connection)
    names = [name for name in (roles.service, roles.client) if name is not None]
    values = {"roles": names, "client": roles.client}
    rows: set[tuple[str, ...]] = set(connection.execute(SELECT_GRANTS, values).fetchall())
    # Those of the service in the schema of the engine are the engine's affair.
    granted = {row for row in rows if row[0] != roles.service or "absurd." not in row[1]}
    listed = {*_listed(roles.service, SERVICE), *_listed(roles.client, CLIENT)}
    extra = sorted(granted - listed)
    dangerous = [_words(right) for right in extra if right[0] != roles.service]
    needless = [_words(right) for right in extra if right[0] == roles.service]
    for role, reason in connection.execute(SELECT_MEMBERSHIPS, values).fetchall():
        (needless if role == roles.service else dangerous).append(f"{role} {reason}")
    dangerous += foreign_triggers(connection)
    missing = map(_words, sorted(listed - granted))
    return RightsDifferences(tuple(missing), tuple(dangerous), tuple(needless))


def foreign_triggers(connection: Connection) -> list[str]:
    """Name the triggers on our tables that run another role's function with the writer's rights."""
    rows = connection.execute(SELECT_TRIGGERS).fetchall()
    return [f"the trigger {name!r} on {table} runs a function of {owner}" for name, table, owner in rows]


def _listed(role: str | None, rights: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    if role is None:
        return
    for object, privileges in rights.items():
        for privilege, columns in PRIVILEGE.findall(privileges):
            for column in columns.split(", "):
                yield role, object, privilege, column


def _words(right: tuple[str, ...]) -> str:
    role, object, privilege, column = right
    return f"{role} {privilege}{f' ({column})' if column else ''} on {object}"


def open_schemas(connection: Connection, path: list[str]) -> list[str]:
    """Name the schemas of a search path open for creation by clients or everybody, in words."""
    client = Roles.read(connection).client
    rows = connection.execute(SELECT_OPEN_SCHEMAS, {"path": path, "client": client}).fetchall()
    return [
        f"{'everybody' if is_public else client} may create in the schema {name!r}, which is in the search path"
        for name, is_public in rows
    ]
