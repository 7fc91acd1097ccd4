"""`bough backup` and `bough migrate`: the file as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ...stores.sqlite.file import FORMAT
from ...stores.sqlite.health import format_of
from ..rendering.error_text import CommandError, require_folder
from ..rendering.output import confirm_plan, json_option, notify, print_json
from ..store_option import StoreLocation, pass_location
from .worker import install_absurd


@click.command()
@click.argument("to", required=False, type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@json_option
@pass_location
def backup(location: StoreLocation, to: str | None, force: bool, is_json: bool) -> None:
    """Write a whole copy of the store while others go on.

    TO defaults to the store's name with the time in it, beside it.
    """
    if not location.is_file:
        raise CommandError(f"{location.display_url} is no file; only a SQLite store is backed up by a copy")
    store = location.open()
    target = Path(to or f"{location.url}.{store.runtime.now() // 1_000_000}.bak")
    require_folder(target)
    if target.exists() and not force:
        raise CommandError(f"{target} is there already; --force writes over it")
    if target.exists() and os.path.samefile(target, location.url):
        raise CommandError("a store is no backup of itself; name another file")
    if target.exists() and not target.is_file():
        raise CommandError(f"{target} is no file; name another path")
    from ...stores.sqlite.store import SqliteStore

    assert isinstance(store.backend, SqliteStore)
    store.backend.backup(target)
    if is_json:
        print_json(backup={"path": str(target), "bytes": target.stat().st_size})
    else:
        click.echo(str(target))


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Do it; without it a person is asked.")
@click.option(
    "--service-role",
    default="bough_service",
    show_default=True,
    help="On PostgreSQL: who sees its whole space.",
)
@click.option(
    "--client-role", default="bough_client", show_default=True, help="On PostgreSQL: who sees what is public."
)
@click.option("--engine", type=click.Choice(["absurd"]), help="The engine's schema and queue, on PostgreSQL.")
@click.option(
    "--queue", default="default", show_default=True, metavar="NAME", help="Of --engine: the queue to make."
)
@json_option
@pass_location
def migrate(
    location: StoreLocation,
    yes: bool,
    service_role: str,
    client_role: str,
    engine: str | None,
    queue: str,
    is_json: bool,
) -> int:
    """Bring the store to this version's format, with a backup.

    A file of a newer Bough is refused and not touched. On PostgreSQL it makes or brings forward the schema and its
    roles, as the role of the URL, which then owns them; backups there are the server's.
    """
    if engine is not None:
        return install_absurd(location, queue, service_role, yes=yes, is_json=is_json)
    if location.is_postgres:
        return _migrate_server(location, service_role, client_role, yes=yes, is_json=is_json)
    if not location.is_file:
        raise CommandError(f"{location.display_url} has no format to migrate")
    if not Path(location.url).exists():
        location.open()
    found = format_of(location.url)
    if found < FORMAT:
        notify(
            f"{location.url}: format {_version_text(found)} → {_version_text(FORMAT)}, after a backup beside it"
        )
        if not confirm_plan("Migrate?", yes=yes):
            return 1
    location.open()
    if is_json:
        print_json(
            backend=location.display_url,
            format_before=_version_text(found),
            format=_version_text(max(found, FORMAT)),
        )
    elif found < FORMAT:
        click.echo(f"{location.url} has format {_version_text(FORMAT)} now")
    else:
        click.echo(f"{location.url} has format {_version_text(found)}; nothing to do")
    return 0


def _migrate_server(location: StoreLocation, service: str, client: str, *, yes: bool, is_json: bool) -> int:
    from ...stores.postgres.schema import migrate as migrate_schema

    notify(
        f"{location.display_url}: the schema bough, and the roles {service} and {client} if they are missing"
    )
    if not confirm_plan("Migrate?", yes=yes):
        return 1
    done = migrate_schema(location.url, service=service, client=client)
    if is_json:
        print_json(backend=location.display_url, format_before=done.before, format=done.after)
    elif done.before == done.after:
        click.echo(f"{location.display_url} has schema {done.after}; nothing to do")
    else:
        click.echo(f"{location.display_url} has schema {done.after} now")
    return 0


def _version_text(version: int) -> str:
    return f"{version // 1_000}.{version % 1_000}"
