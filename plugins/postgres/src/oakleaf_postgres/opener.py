"""How `oakleaf.open` gets to a PostgreSQL store: the entry points `postgresql` and `postgres` of the group `oakleaf.stores`."""

from __future__ import annotations

from collections.abc import Mapping

from oakleaf.errors import StoreError
from oakleaf.stores.opening import Migration, MigrationResult, StoreOptions
from oakleaf_postgres.errors import needs_absurd
from oakleaf_postgres.store.schema import migrate
from oakleaf_postgres.store.store import PostgresStore
from oakleaf_postgres.store.url import Address


def open_store(url: str, *, space: str, owner: str | None, options: StoreOptions) -> PostgresStore:
    if options.key is not None:
        raise StoreError("key= is for files; on PostgreSQL encrypt the server's disk and use TLS")
    if options.synchronous != "full":
        raise StoreError("synchronous= is for files; set synchronous_commit on the PostgreSQL server or role")
    return PostgresStore(url, space=space, owner=owner)


def display_url(url: str) -> str:
    return Address.parse(url).safe_url


def plan_migration(url: str, options: Mapping[str, str]) -> Migration:
    """Plan to create or upgrade our schema and, with a queue, Absurd's schema after."""
    where, service, client = display_url(url), options.get("service_role"), options.get("client_role")
    role = service or "oakleaf_service (or the service role it has)"
    public = client or "oakleaf_client (or the client role it has)"
    plan = [
        f"{where}: create or upgrade the schema oakleaf, and the roles {role} and {public} if they are missing; "
        "what else these roles and everybody may do with it is revoked"
    ]
    queue = options.get("queue")
    if queue is None:
        return Migration(plan, lambda: _migrate(url, service, client))
    with needs_absurd():
        from oakleaf_postgres.absurd.schema import install
    plan.append(f"{where}: install the schema absurd and the queue {queue!r}, and grant them to {role}")

    def run() -> MigrationResult:
        done = _migrate(url, service, client)
        engine = install(url, queue)
        state = "was installed already" if engine.before == engine.after else "installed"
        about = {"version_before": engine.before, "version": engine.after, "queue": queue}
        return MigrationResult(
            [*done.lines, f"Absurd {engine.after} {state}; queue {queue!r} is ready"],
            {**done.report, "engine": "absurd", **about},
            done.warnings,
        )

    return Migration(plan, run)


def _migrate(url: str, service: str | None, client: str | None) -> MigrationResult:
    where, done = display_url(url), migrate(url, service=service, client=client)
    state = (
        f"has schema {done.after}; nothing to do"
        if done.before == done.after
        else f"now has schema {done.after}"
    )
    report = {"format_before": done.before, "format": done.after, "warnings": done.warnings}
    return MigrationResult([f"{where} {state}"], report, done.warnings)


open_store.display_url = display_url  # type: ignore[attr-defined]
open_store.plan_migration = plan_migration  # type: ignore[attr-defined]
