"""`oakleaf ls`: list sessions."""

from __future__ import annotations

import sys
from typing import Any, get_args

import click

from oakleaf.cli.reference import complete, resolve_stored_session
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import (
    clip,
    echo,
    format_age,
    format_time,
    json_option,
    notify,
    print_json,
    table,
    to_json_value,
)
from oakleaf.cli.rendering.pager import page_errors, print_next_page
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.time_text import parse_time
from oakleaf.core.usage import format_cost
from oakleaf.errors import NotFound, SessionTrashed
from oakleaf.ext import read_store
from oakleaf.store import Store
from oakleaf.stores.base import SessionPage, SessionRow, Status

_NONE = "no sessions match"
_MARKS = {"fork": "⑂ fork of {}", "task": "↳ task of {}", "replay": "↻ replay of {}", "import": "⇣ imported"}


@click.command()
@click.option("--status", type=click.Choice(get_args(Status)), help="Only sessions with this status.")
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option("--owner", metavar="NAME", help="Only sessions of this owner.")
@click.option("--conversation", "conversation_id", metavar="ID", help="Only sessions of this conversation.")
@click.option("--tag", metavar="NAME=VALUE", help="Only sessions with this tag.")
@click.option(
    "--relation", type=click.Choice(["fork", "task", "replay", "import"]), help="Only sessions made this way."
)
@click.option(
    "--parent",
    metavar="REFERENCE",
    shell_complete=complete,
    help="Only forks, tasks and replays of this session.",
)
@click.option(
    "--after",
    metavar="TIME",
    help="Only sessions started at or after this: 2026-11-01, yesterday, monday, or 7d.",
)
@click.option("--before", "before", metavar="TIME", help="Only sessions started before this.")
@click.option("--trashed", is_flag=True, help="List the trash.")
@click.option("--all", "is_all", is_flag=True, help="Include tasks and replays.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 100_000),
    default=30,
    show_default=True,
    metavar="N",
    help="List at most N.",
)
@click.option("--page", metavar="NEXT", help="Continue after a previous page, as its last line says.")
@json_option
@pass_location
def ls(
    location: StoreLocation,
    /,
    parent: str | None,
    tag: str | None,
    after: str | None,
    before: str | None,
    page: str | None,
    is_all: bool,
    is_json: bool,
    **query: Any,
) -> None:
    """List sessions, last active first. A session without a title is listed by its first input.

    A session whose process was killed is listed as interrupted; oakleaf resume continues it.

    \b
    oakleaf ls --status interrupted
    oakleaf ls --agent support --tag team=blue --after 7d
    oakleaf ls --owner ann --status failed
    oakleaf ls --parent ses_3f --all --json
    """
    store = location.open()
    now = read_store(store).now()
    query["parent_session"] = None if parent is None else _parent(location, store, parent)
    query["tag"] = None if tag is None else _pair(tag)
    query["started_from"] = None if after is None else parse_time("--after", after, now)
    query["started_before"] = None if before is None else parse_time("--before", before, now)
    query["include_children"] = is_all or bool(query["relation"]) or bool(query["parent_session"])
    with page_errors(page):
        listed = store.sessions(before=page, **query)
    if is_json:
        names = store.headings(listed.sessions)
        rows = [{**as_data(row), "heading": names[row.session_id]} for row in listed.sessions]
        print_json(sessions=rows, next=listed.next)
    elif listed.sessions:
        _print(listed, store.headings(listed.sessions), now)
    else:
        notify(_empty_message(store, query))


def _parent(location: StoreLocation, store: Store, reference: str) -> str:
    """Resolve the parent's id, also of one in the trash. A purged parent may still have forks: then return it as typed."""
    try:
        return resolve_stored_session(location, reference).session_id
    except SessionTrashed as trashed:
        return trashed.session_id
    except NotFound:
        if not store.sessions(parent_session=reference, limit=1).sessions:
            raise
        return reference


def _empty_message(store: Store, query: dict[str, Any]) -> str:
    """Explain an empty list."""
    if not store.sessions(trashed=query["trashed"], limit=1).sessions:
        if query["trashed"]:
            return "the trash is empty"
        if store.sessions(trashed=True, limit=1).sessions:
            return "all sessions are in the trash; oakleaf ls --trashed lists them, oakleaf restore takes one out"
        return "there are no sessions yet; oakleaf chat starts one"
    is_complete = query["include_children"] or query["trashed"]
    return _NONE if is_complete else f"{_NONE}; oakleaf ls --all includes tasks and replays"


def _pair(tag: str) -> tuple[str, str]:
    name, equals, value = tag.partition("=")
    if not equals or not name:
        raise CommandError(f"--tag {tag} is not NAME=VALUE; to find any value use oakleaf search tag:{tag}")
    return name, value


def _print(page: SessionPage, names: dict[str, str], now: int) -> None:
    head = ("SESSION", "ACTIVE", "STATUS", "TURNS", "COST", "MODEL", "TITLE")
    rows = [_line(row, names[row.session_id], now) for row in page.sessions]
    echo("\n".join(table(rows, head, drop_first=("MODEL", "TURNS", "COST", "ACTIVE", "STATUS"))))
    if page.next:
        print_next_page(page.next)


def as_data(row: SessionRow) -> dict[str, Any]:
    """Return a session's row as JSON data, its id as `id`."""
    data: dict[str, Any] = to_json_value(row)
    return {"id": data.pop("session_id"), **data}


def _line(row: SessionRow, heading: str, now: int) -> tuple[str, ...]:
    relation = _MARKS[row.relation].format((row.parent_session or "")[:12]) if row.relation else ""
    if row.relation == "import" and (tool := row.tags.get("imported_from")):
        relation = f"⇣ {tool}"
    name = "" if heading == row.session_id else heading
    title = " ".join(filter(None, [name, f"({relation})" if relation else ""]))
    return (
        row.session_id[:16],
        format_age(row.updated_at, now) if sys.stdout.isatty() else format_time(row.updated_at),
        status(row),
        str(row.turns),
        format_cost(row.totals),
        clip(row.model or "", 24) if sys.stdout.isatty() else row.model or "",
        title,
    )


_COLOURS = {
    "running": "green",
    "waiting": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "cancelled": "yellow",
}


def status(row: SessionRow) -> str:
    return click.style(row.status, fg=_COLOURS.get(row.status))
