"""The store as a whole: backup, migrate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from oakleaf.errors import InvalidValue, PostgresRequired
from oakleaf.ext import read_store
from oakleaf.stores.address import display_url, is_path, store_scheme
from oakleaf.stores.opening import Migration, MigrationResult, plan_migration
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help, Place
from oakleaf.verbs.files import check_target
from oakleaf.verbs.screen import Screen

# -- backup ------------------------------------------------------------------------------------------------


class BackupFile(Struct, frozen=True):
    path: str
    bytes: int


class Backup(Verb, frozen=True):
    """Copy the store to a file without blocking writers.

    TO defaults to the store's path with the time appended. A server has its own backup.
    """

    section = "Maintain"
    effect = "write"
    callers = frozenset({"operator"})

    to: Place | None = None
    force: Annotated[bool, Help("Overwrite an existing file.")] = False

    def run(self, caller: Caller) -> BackupFile:
        store = caller.store
        name = caller.address if is_path(caller.address) else "oakleaf"
        target = Path(self.to or f"{name}.{read_store(store).now() // 1_000_000}.bak")
        check_target(target, force=self.force)
        if target.exists():
            _check_replaced(target, caller.address)
        with caller.progress("backup", "pages") as step:
            store.backup(target, step)
        return BackupFile(str(target), target.stat().st_size)

    def lines(self, result: BackupFile, screen: Screen) -> Iterator[str]:
        yield result.path


def _check_replaced(target: Path, address: str) -> None:
    if not target.is_file():
        raise InvalidValue(f"{target} is not a regular file", "name another path")
    if is_path(address) and os.path.samefile(target, address):
        raise InvalidValue("the backup cannot replace the store itself", "name another file")


# -- migrate -----------------------------------------------------------------------------------------------


class Migrated(Struct, frozen=True, kw_only=True):
    backend: str
    """The address of the store, without a password."""
    done: bool
    """False for a plan."""
    steps: list[str]
    """What was done, or would be."""
    warnings: list[str] = []
    report: dict[str, Any] = {}
    """The versions of formats and schemas, before and after."""


class Migrate(Verb, frozen=True):
    """Upgrade the store to this version's format, after a backup.

    A file from a newer Oakleaf is refused and left unchanged. On PostgreSQL this creates or upgrades the schema and its
    roles, owned by the role of the URL. It makes no backup there: use the server's own.
    """

    section = "Maintain"
    effect = "destroy"
    callers = frozenset({"operator"})

    service_role: Annotated[
        str | None,
        Help(
            "PostgreSQL: role that sees its whole space. Default: the one it has, else oakleaf_service.",
            metavar="NAME",
        ),
    ] = None
    client_role: Annotated[
        str | None,
        Help(
            "PostgreSQL: role that sees public entries only. Default: the one it has, else oakleaf_client.",
            metavar="NAME",
        ),
    ] = None
    queue: Annotated[
        str | None,
        Help(
            "PostgreSQL: also install what workers need, and create this queue. Theirs by default: oakleaf.",
            metavar="NAME",
        ),
    ] = None

    def plan(self, caller: Caller) -> Migrated:
        migration = self._migration(caller)
        if not migration.plan:
            return _migrated(caller, migration.run())
        return Migrated(backend=display_url(caller.address), done=False, steps=list(migration.plan))

    def question(self, planned: Migrated) -> str | None:
        return None if planned.done else "Migrate?"

    def run(self, caller: Caller) -> Migrated:
        return _migrated(caller, self._migration(caller).run())

    def _migration(self, caller: Caller) -> Migration:
        address = caller.address
        if self.queue is not None and store_scheme(address) is None:
            raise PostgresRequired(display_url(address))
        if is_path(address) and not Path(address).is_file():
            caller.store  # noqa: B018  # raises what is wrong with it
        given = {"service_role": self.service_role, "client_role": self.client_role, "queue": self.queue}
        migration = plan_migration(
            address, {name: value for name, value in given.items() if value is not None}
        )
        if migration is None:
            raise InvalidValue(f"{display_url(address)} has nothing to migrate")
        return migration

    def lines(self, result: Migrated, screen: Screen) -> Iterator[str]:
        yield from result.steps

    def notes(self, result: Migrated, screen: Screen) -> Iterator[str]:
        yield from (f"warning: {warning}" for warning in result.warnings)


def _migrated(caller: Caller, done: MigrationResult) -> Migrated:
    return Migrated(
        backend=display_url(caller.address),
        done=True,
        steps=list(done.lines),
        warnings=list(done.warnings),
        report=done.report,
    )
