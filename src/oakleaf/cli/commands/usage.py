"""`oakleaf usage`: tokens and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import reduce
from typing import cast

import click

from oakleaf.cli.reference import complete, resolve
from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.cli.rendering.output import clip, echo, json_option, print_json, table, to_json_value
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.core.time_text import parse_time
from oakleaf.core.tree import parse_seq
from oakleaf.core.usage import Totals, add, format_cost
from oakleaf.ext import SessionStorage, read, read_store
from oakleaf.session import Session, UsageView
from oakleaf.stores.counts import UsageColumn

_GROUPS = ("day", "model", "agent", "session", "purpose", "bucket")


QUARTER_SECONDS = 900
"""A store sums by quarters of an hour: the days of every time zone begin with one."""


@click.command()
@click.argument("reference", required=False, shell_complete=complete)
@click.option(
    "--view",
    type=click.Choice(["own", "path", "tree"]),
    help="For one session: its own calls (default), those on its path, or those of its children too.",
)
@click.option(
    "--since", metavar="SEQ|TIME", help="Only calls after this entry of the path, or since this time."
)
@click.option("--by", type=click.Choice(_GROUPS), help="Print one line per day, model, agent, …")
@click.option("--storage", is_flag=True, help="For one session: its size in bytes, too.")
@json_option
@pass_location
def usage(
    location: StoreLocation,
    reference: str | None,
    view: UsageView | None,
    since: str | None,
    by: str | None,
    storage: bool,
    is_json: bool,
) -> None:
    """Sum tokens and cost by session, day, model or agent.

    Without REFERENCE all sessions of the store are summed, trashed ones too.

    \b
    oakleaf usage --by model --since 30d
    oakleaf usage latest --view tree
    """
    if reference is None and view is not None:
        raise CommandError(f"--view needs a session, such as oakleaf usage latest --view {view}")
    if reference is None and storage:
        raise CommandError("--storage needs a session, such as oakleaf usage latest --storage")
    stored: SessionStorage | None = None
    turns = 0
    if reference is not None:
        session = resolve(location, reference).session_at()
        if by is None and since is None:  # sums that the session has already
            groups = {"total": session.usage(view or "own")}
        else:
            groups = _of_one(session, view or "own", by, since)
        if storage:
            stored, turns = read(session).storage(), session.row.turns
    else:
        store = location.open()
        floor = 0 if since is None else parse_time("--since", since, read_store(store).now())
        # Summed in the database: a store may have millions of calls.
        groups = _group_by_name(read_store(store).usage_by(_column(by), floor), by)
    whole = reduce(add, groups.values(), Totals())
    if is_json:
        print_json(
            usage=[{"name": name, **to_json_value(sums)} for name, sums in groups.items()],
            total=whole,
            **({} if stored is None else {"storage": stored}),
        )
        return
    rows = [_line(name, sums) for name, sums in groups.items()]
    if len(rows) != 1:
        rows.append(_line("total", whole))
    head = ("", "CALLS", "INPUT", "CACHED", "OUTPUT", "COST")
    echo("\n".join(table(rows, head, drop_first=("CACHED", "INPUT", "OUTPUT", "CALLS"), clip_last=False)))
    if stored is not None:
        rows = list(_storage_rows(stored, turns))
        echo("\n".join(["", *table(rows, ("STORED", "COUNT", "BYTES", "BYTES A TURN"), clip_last=False)]))


def _storage_rows(stored: SessionStorage, turns: int) -> Iterator[tuple[str, ...]]:
    per_turn = f"{stored.settings_bytes / turns:,.0f}" if turns else ""
    yield "entries", f"{stored.entries:,}", f"{stored.bytes:,}", ""
    yield "  settings: tools and options", f"{stored.settings:,}", f"{stored.settings_bytes:,}", per_turn
    yield "blobs", f"{stored.blobs:,}", f"{stored.blob_bytes:,}", ""
    yield "  definitions of tools", f"{stored.tool_sets:,}", f"{stored.tool_bytes:,}", ""


def _of_one(session: Session, view: UsageView, by: str | None, since: str | None) -> dict[str, Totals]:
    reader, floor, leaf = read(session), 0, None
    if since is not None and (seq := parse_seq(since)) is not None:
        leaf = reader.leaf_at(seq)
    elif since is not None:
        floor = parse_time("--since", since, reader.store.now())
    return _group_by_name(reader.usage_by(_column(by), view, after=leaf, since=floor), by)


def _column(by: str | None) -> UsageColumn:
    columns: dict[str | None, UsageColumn] = {"day": "quarter", None: "bucket"}
    return columns.get(by, cast("UsageColumn", by))


def _group_by_name(sums: Mapping[str, Totals], by: str | None) -> dict[str, Totals]:
    """Return the sums by what each group is called, in order; those with the same name are added."""
    groups: dict[str, Totals] = {}
    for value, each in sums.items():
        name = _name(by, value)
        groups[name] = add(groups[name], each) if name in groups else each
    return {name: groups[name] for name in sorted(groups)} if groups or by else {"total": Totals()}


def _name(by: str | None, value: str) -> str:
    """Return what a group is called; a day begins where this machine is."""
    match by:
        case None:
            return "total"
        case "day":
            return datetime.fromtimestamp(int(value) * QUARTER_SECONDS).strftime("%Y-%m-%d")
        case "model":
            return value or "(unknown)"
        case "agent":
            return value or "(none)"
    return value


def _line(name: str, sums: Totals) -> tuple[str, ...]:
    unknown = f" ({sums.unknown_calls} unknown)" if sums.unknown_calls else ""
    return (
        clip(name, 60),
        f"{sums.calls:,}{unknown}",
        *(
            "unknown" if sums.is_unknown else f"{count:,}"
            for count in (sums.input_tokens, sums.cache_read_tokens, sums.output_tokens)
        ),
        format_cost(sums),
    )
