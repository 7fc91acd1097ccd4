"""`oakleaf backup` and `oakleaf migrate`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from oakleaf import plugins
from oakleaf.cli.rendering.error_text import CommandError, check_target
from oakleaf.cli.rendering.output import (
    confirm_plan,
    echo,
    force_option,
    json_option,
    notify,
    print_json,
    progress_bar,
    yes_option,
)
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.errors import PostgresRequired
from oakleaf.stores.opening import Migration
from oakleaf.stores.sqlite.file import FORMAT
from oakleaf.stores.sqlite.health import format_of
from oakleaf.stores.tasks import DEFAULT_QUEUE


@click.command()
@click.argument("to", required=False, type=click.Path(dir_okay=False))
@force_option
@json_option
@pass_location
def backup(location: StoreLocation, to: str | None, force: bool, is_json: bool) -> None:
    """Copy the store to a file without blocking writers.

    TO defaults to the store's path with the time appended. A server has its own backup.
    """
    store = location.open()
    name = location.url if location.is_file else "oakleaf"
    target = Path(to or f"{name}.{store.runtime.now() // 1_000_000}.bak")
    check_target(target, force=force)
    if target.exists() and location.is_file and os.path.samefile(target, location.url):
        raise CommandError("the backup cannot replace the store itself; name another file")
    if target.exists() and not target.is_file():
        raise CommandError(f"{target} is not a regular file; name another path")
    with progress_bar("backup", unit="pages") as step:
        store.backup(target, step)
    if is_json:
        print_json(backup={"path": str(target), "bytes": target.stat().st_size})
    else:
        echo(str(target))


@click.command()
@yes_option
@click.option(
    "--service-role",
    metavar="NAME",
    show_default="the one it has, else oakleaf_service",
    help="PostgreSQL: role that sees its whole space.",
)
@click.option(
    "--client-role",
    metavar="NAME",
    show_default="the one it has, else oakleaf_client",
    help="PostgreSQL: role that sees public entries only.",
)
@click.option(
    "--engine", type=click.Choice(["absurd"]), help="PostgreSQL: also install this engine's schema and queue."
)
@click.option(
    "--queue",
    default=DEFAULT_QUEUE,
    show_default=True,
    metavar="NAME",
    help="With --engine: the queue to create.",
)
@json_option
@pass_location
def migrate(
    location: StoreLocation,
    yes: bool,
    service_role: str | None,
    client_role: str | None,
    engine: str | None,
    queue: str,
    is_json: bool,
) -> int:
    """Upgrade the store to this version's format, after a backup.

    A file from a newer Oakleaf is refused and left unchanged. On PostgreSQL this creates or upgrades the schema and its
    roles, owned by the role of the URL. It makes no backup there: use the server's own.
    """
    if location.scheme is not None:
        roles = {"service_role": service_role, "client_role": client_role}
        given = roles | ({} if engine is None else {"engine": engine, "queue": queue})
        options = {name: value for name, value in given.items() if value is not None}
        return _migrate_by_plugin(location, location.scheme, options, yes=yes, is_json=is_json)
    if engine is not None:
        raise PostgresRequired(engine, location.display_url)
    if not location.is_file:
        raise CommandError(f"{location.display_url} has nothing to migrate")
    if not Path(location.url).is_file():
        location.open()  # raises what is wrong with it
    version = format_of(location.url)
    if version < FORMAT:
        notify(
            f"{location.url}: format {_version_text(version)} → {_version_text(FORMAT)}, after a backup next to it"
        )
        if not confirm_plan("Migrate?", yes=yes):
            return 1
    location.open()
    if is_json:
        print_json(
            backend=location.display_url,
            format_before=_version_text(version),
            format=_version_text(max(version, FORMAT)),
        )
    elif version < FORMAT:
        echo(f"{location.url} now has format {_version_text(FORMAT)}")
    else:
        echo(f"{location.url} has format {_version_text(version)}; nothing to do")
    return 0


def _migrate_by_plugin(
    location: StoreLocation, scheme: str, options: dict[str, str], *, yes: bool, is_json: bool
) -> int:
    plan = getattr(plugins.find(plugins.STORES, scheme), "plan_migration", None)
    if plan is None:
        raise CommandError(f"{location.display_url} has nothing to migrate")
    migration: Migration = plan(location.url, options)
    for line in migration.plan:
        notify(line)
    if not confirm_plan("Migrate?", yes=yes):
        return 1
    done = migration.run()
    for warning in done.warnings:
        notify(f"warning: {warning}")
    if is_json:
        print_json(backend=location.display_url, **done.report, warnings=done.warnings)
    else:
        echo("\n".join(done.lines))
    return 0


def _version_text(version: int) -> str:
    return f"{version // 1_000}.{version % 1_000}"
