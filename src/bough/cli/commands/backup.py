"""`bough backup` and `bough migrate`: the file as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ...stores.sqlite.file import FORMAT
from ...stores.sqlite.health import format_of
from ..rendering.error_text import Refused, check_folder
from ..rendering.output import as_json, confirmed, say, say_json
from ..store_option import Here, here
from .worker import install_engine


@click.command()
@click.argument("to", required=False, type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@as_json
@here
def backup(place: Here, to: str | None, force: bool, is_json: bool) -> None:
    """Write a whole copy of the store while others go on.

    TO defaults to the store's name with the time in it, beside it.
    """
    if not place.is_file:
        raise Refused(f"{place.where} is no file; only a SQLite store is backed up by a copy")
    sessions = place.sessions()
    target = Path(to or f"{place.url}.{sessions.runtime.now() // 1_000_000}.bak")
    check_folder(target)
    if target.exists() and not force:
        raise Refused(f"{target} is there already; --force writes over it")
    if target.exists() and os.path.samefile(target, place.url):
        raise Refused("a store is no backup of itself; name another file")
    if target.exists() and not target.is_file():
        raise Refused(f"{target} is no file; name another path")
    from ...stores.sqlite.store import SqliteStore

    assert isinstance(sessions.backend, SqliteStore)
    sessions.backend.backup(target)
    if is_json:
        say_json(backup={"path": str(target), "bytes": target.stat().st_size})
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
@as_json
@here
def migrate(
    place: Here,
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
        return install_engine(place, queue, service_role, yes=yes, is_json=is_json)
    if place.is_postgres:
        return _migrate_server(place, service_role, client_role, yes=yes, is_json=is_json)
    if not place.is_file:
        raise Refused(f"{place.where} has no format to migrate")
    if not Path(place.url).exists():
        place.sessions()
    found = format_of(place.url)
    if found < FORMAT:
        say(f"{place.url}: format {_spoken(found)} → {_spoken(FORMAT)}, after a backup beside it")
        if not confirmed("Migrate?", yes=yes):
            return 1
    place.sessions()
    if is_json:
        say_json(backend=place.where, format_before=_spoken(found), format=_spoken(max(found, FORMAT)))
    elif found < FORMAT:
        click.echo(f"{place.url} has format {_spoken(FORMAT)} now")
    else:
        click.echo(f"{place.url} has format {_spoken(found)}; nothing to do")
    return 0


def _migrate_server(place: Here, service: str, client: str, *, yes: bool, is_json: bool) -> int:
    from ...stores.postgres.schema import migrate as migrate_schema

    say(f"{place.where}: the schema bough, and the roles {service} and {client} if they are missing")
    if not confirmed("Migrate?", yes=yes):
        return 1
    done = migrate_schema(place.url, service=service, client=client)
    if is_json:
        say_json(backend=place.where, format_before=done.before, format=done.after)
    elif done.before == done.after:
        click.echo(f"{place.where} has schema {done.after}; nothing to do")
    else:
        click.echo(f"{place.where} has schema {done.after} now")
    return 0


def _spoken(version: int) -> str:
    return f"{version // 1_000}.{version % 1_000}"
