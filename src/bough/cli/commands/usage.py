"""`bough usage`: tokens and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import click

from ...core.time_text import parse_time
from ...core.usage import Call, Totals, format_cost, total
from ...log.storage import SessionStorage
from ...session import Session, UsageView
from ...store import Store
from ...stores.base import SessionRow
from ..reference import complete, resolve
from ..rendering.error_text import CommandError
from ..rendering.output import clip, json_option, print_json, table, to_json_value
from ..store_option import StoreLocation, pass_location

SessionCall = tuple[SessionRow, Call]
_KEYS: dict[str, Callable[[SessionCall], str]] = {
    "day": lambda calls: datetime.fromtimestamp(calls[1].at / 1e6).strftime("%Y-%m-%d"),
    "model": lambda call: call[1].model or "(unknown)",
    "agent": lambda call: call[0].agent or "(none)",
    "session": lambda call: call[0].session_id,
    "purpose": lambda call: call[1].purpose,
    "bucket": lambda call: call[1].bucket,
}


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
@click.option("--by", type=click.Choice(list(_KEYS)), help="Print one line per day, model, agent, …")
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
    bough usage --by model --since 30d
    bough usage latest --view tree
    """
    if reference is None and view is not None:
        raise CommandError(f"--view needs a session, such as bough usage latest --view {view}")
    if reference is None and storage:
        raise CommandError("--storage needs a session, such as bough usage latest --storage")
    stored: SessionStorage | None = None
    turns = 0
    if reference is not None:
        session = resolve(location, reference).session_at()
        calls = _of_one(session, view or "own", since)
        if storage:
            stored, turns = session.storage(), session.row.turns
    else:
        store = location.open()
        floor = 0 if since is None else parse_time("--since", since, store.runtime.now())
        calls = [call for call in _of_all(store) if call[1].at >= floor]
    groups = _grouped(calls, by)
    if is_json:
        print_json(
            usage=[{"name": name, **to_json_value(sums)} for name, sums in groups.items()],
            total=to_json_value(_sum(calls)),
            **({} if stored is None else {"storage": to_json_value(stored)}),
        )
        return
    rows = [_line(name, sums) for name, sums in groups.items()]
    if len(rows) != 1:
        rows.append(_line("total", _sum(calls)))
    head = ("", "CALLS", "INPUT", "CACHED", "OUTPUT", "COST")
    click.echo(
        "\n".join(table(rows, head, drop_first=("CACHED", "INPUT", "OUTPUT", "CALLS"), clip_last=False))
    )
    if stored is not None:
        rows = list(_storage_rows(stored, turns))
        click.echo(
            "\n".join(["", *table(rows, ("STORED", "COUNT", "BYTES", "BYTES A TURN"), clip_last=False)])
        )


def _storage_rows(stored: SessionStorage, turns: int) -> Iterator[tuple[str, ...]]:
    per_turn = f"{stored.settings_bytes / turns:,.0f}" if turns else ""
    yield "entries", f"{stored.entries:,}", f"{stored.bytes:,}", ""
    yield "  settings: tools and options", f"{stored.settings:,}", f"{stored.settings_bytes:,}", per_turn
    yield "blobs", f"{stored.blobs:,}", f"{stored.blob_bytes:,}", ""
    yield "  definitions of tools", f"{stored.tool_sets:,}", f"{stored.tool_bytes:,}", ""


def _of_one(session: Session, view: UsageView, since: str | None) -> list[SessionCall]:
    row = session.row
    if since is not None and since.isdigit():
        return [(row, call) for call in session.model_calls(view, since=session.log.leaf_at(int(since)))]
    floor = 0 if since is None else parse_time("--since", since, session.log.runtime.now())
    return [(row, call) for call in session.model_calls(view) if call.at >= floor]


def _of_all(store: Store) -> Iterable[SessionCall]:
    for trashed in (False, True):
        for row in store.all_sessions(trashed=trashed, limit=500):
            if row.totals.calls:
                yield from ((row, call) for call in store.backend.calls(row.session_id))


def _grouped(calls: list[SessionCall], by: str | None) -> dict[str, Totals]:
    if by is None:
        return {"total": _sum(calls)}
    groups: dict[str, list[SessionCall]] = {}
    for call in calls:
        groups.setdefault(_KEYS[by](call), []).append(call)
    return {name: _sum(groups[name]) for name in sorted(groups)}


def _sum(calls: Iterable[SessionCall]) -> Totals:
    return total(call for _, call in calls)


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
