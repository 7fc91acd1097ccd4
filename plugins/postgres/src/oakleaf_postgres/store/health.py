"""The health of a PostgreSQL store: who may do what, and where others may create. Reads only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oakleaf.stores.base import Finding
from oakleaf_postgres.store.rights import SELECT_PATH, compare_rights, open_schemas

if TYPE_CHECKING:
    from oakleaf_postgres.store.store import PostgresStore

MIGRATE = "oakleaf --store URL migrate, as the role that owns the schema"


def rights_health(store: PostgresStore) -> list[Finding]:
    """Findings about rights other than the grants of `migrate`, and about schemas open to clients."""
    ((path,),) = store.connections.query(SELECT_PATH)
    found, schemas = store.connections.read_snapshot(
        lambda connection: (compare_rights(connection), open_schemas(connection, path))
    )
    return [
        *(Finding("problem", f"a right too many: {right}", MIGRATE) for right in found.dangerous),
        *(Finding("problem", f"a right is missing: {right}", MIGRATE) for right in found.missing),
        *(Finding("warning", f"a right too many: {right}", MIGRATE) for right in found.needless),
        *(
            Finding(
                "warning",
                f"{schema}; Oakleaf calls nothing there, other programs may",
                "revoke create on schema NAME from public, or from the role",
            )
            for schema in schemas
        ),
    ]


def login_health(store: PostgresStore) -> list[Finding]:
    """Findings about logins of this space's owners with a missing role."""
    return [
        Finding(
            "problem",
            f"the login {role!r} was bound to the owner {owner!r}, and there is no such role: a restore brings none",
            f"create the role and select oakleaf.bind({_sql(_identifier(role))}, {_sql(store.space)}, {_sql(owner)}), "
            f"or select oakleaf.forget_login({_sql(role)})",
        )
        for role, owner in store.lost_logins()
    ]


def _sql(text: str) -> str:
    """Write a value as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _identifier(role: str) -> str:
    """Write a role for `regrole`, with quotes to keep capitals."""
    return role if re.fullmatch("[a-z_][a-z0-9_]*", role) else '"' + role.replace('"', '""') + '"'
