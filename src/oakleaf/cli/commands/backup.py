"""`oakleaf backup` and `oakleaf migrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from oakleaf.cli.commands.worker import load_absurd
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

    TO defaults to the store's path with the time appended.
    """
    if not location.is_file:
        raise CommandError(f"{location.display_url} is not a file; oakleaf backup copies SQLite stores only")
    store = location.open()
    target = Path(to or f"{location.url}.{store.runtime.now() // 1_000_000}.bak")
    check_target(target, force=force)
    if target.exists() and os.path.samefile(target, location.url):
        raise CommandError("the backup cannot replace the store itself; name another file")
    if target.exists() and not target.is_file():
        raise CommandError(f"{target} is not a regular file; name another path")
    from oakleaf.stores.sqlite.store import SqliteStore

    assert isinstance(store.backend, SqliteStore)
    with progress_bar("backup", unit="pages") as step:
        store.backend.backup(target, progress=step)
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
    if engine is not None or location.is_postgres:
        queue_name = None if engine is None else queue
        return _migrate_server(location, service_role, client_role, queue_name, yes=yes, is_json=is_json)
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


def _migrate_server(
    location: StoreLocation,
    service: str | None,
    client: str | None,
    queue: str | None,
    *,
    yes: bool,
    is_json: bool,
) -> int:
    """Create or upgrade our schema and, with a queue, Absurd's after it."""
    from oakleaf_postgres.store.schema import migrate as migrate_schema

    install_absurd = None if queue is None else load_absurd(location)
    where = location.display_url
    role = service or "oakleaf_service (or the service role it has)"
    public = client or "oakleaf_client (or the client role it has)"
    notify(
        f"{where}: create or upgrade the schema oakleaf, and the roles {role} and {public} if they are missing; "
        "what else these roles and everybody may do with it is revoked"
    )
    if queue is not None:
        notify(f"{where}: install the schema absurd and the queue {queue!r}, and grant them to {role}")
    if not confirm_plan("Migrate?", yes=yes):
        return 1
    done = migrate_schema(location.url, service=service, client=client)
    report: dict[str, Any] = {
        "backend": where,
        "format_before": done.before,
        "format": done.after,
        "warnings": done.warnings,
    }
    for warning in done.warnings:
        notify(f"warning: {warning}")
    lines = [
        f"{where} has schema {done.after}; nothing to do"
        if done.before == done.after
        else f"{where} now has schema {done.after}"
    ]
    if install_absurd is not None and queue is not None:
        engine = install_absurd(location.url, queue)
        report |= {
            "engine": "absurd",
            "version_before": engine.before,
            "version": engine.after,
            "queue": queue,
        }
        state = "was installed already" if engine.before == engine.after else "installed"
        lines.append(f"Absurd {engine.after} {state}; queue {queue!r} is ready")
    if is_json:
        print_json(**report)
    else:
        echo("\n".join(lines))
    return 0


def _version_text(version: int) -> str:
    return f"{version // 1_000}.{version % 1_000}"
