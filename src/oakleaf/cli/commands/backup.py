"""`oakleaf backup` and `oakleaf migrate`."""

from __future__ import annotations

import os
from pathlib import Path

import click

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
from oakleaf.ext import read_store
from oakleaf.stores.opening import plan_migration


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
    target = Path(to or f"{name}.{read_store(store).now() // 1_000_000}.bak")
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
    "--queue",
    metavar="NAME",
    help="PostgreSQL: also install what workers need, and create this queue. Theirs by default: oakleaf.",
)
@json_option
@pass_location
def migrate(
    location: StoreLocation,
    yes: bool,
    service_role: str | None,
    client_role: str | None,
    queue: str | None,
    is_json: bool,
) -> int:
    """Upgrade the store to this version's format, after a backup.

    A file from a newer Oakleaf is refused and left unchanged. On PostgreSQL this creates or upgrades the schema and its
    roles, owned by the role of the URL. It makes no backup there: use the server's own.
    """
    if queue is not None and location.scheme is None:
        raise PostgresRequired(location.display_url)
    if location.is_file and not Path(location.url).is_file():
        location.open()  # raises what is wrong with it
    given = {"service_role": service_role, "client_role": client_role, "queue": queue}
    options = {name: value for name, value in given.items() if value is not None}
    migration = plan_migration(location.url, options)
    if migration is None:
        raise CommandError(f"{location.display_url} has nothing to migrate")
    for line in migration.plan:
        notify(line)
    if migration.plan and not confirm_plan("Migrate?", yes=yes):
        return 1
    done = migration.run()
    for warning in done.warnings:
        notify(f"warning: {warning}")
    if is_json:
        print_json(backend=location.display_url, **done.report)
    else:
        echo("\n".join(done.lines))
    return 0
