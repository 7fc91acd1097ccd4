"""The health of a PostgreSQL store: who may do what, and where others may create. Reads only."""

from __future__ import annotations

from oakleaf.stores.sqlite.health import Finding
from oakleaf_postgres.store.rights import SELECT_PATH, compare_rights, open_schemas
from oakleaf_postgres.store.store import PostgresStore

MIGRATE = "oakleaf --store URL migrate, as the role that owns the schema"


def rights_health(store: PostgresStore) -> list[Finding]:
    """Findings about rights that differ from those that `migrate` grants, and about schemas that are open to clients."""
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
