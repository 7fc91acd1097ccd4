"""`oakleaf search`: full-text search."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from oakleaf import SearchHit
from oakleaf.cli.reference import resolve_stored_session
from oakleaf.cli.rendering.output import (
    bold,
    clip,
    dim,
    echo,
    format_time,
    json_option,
    notify,
    plural,
    print_json,
    progress_bar,
    safe,
    to_json_value,
    width,
)
from oakleaf.cli.rendering.pager import page_errors, print_next_page
from oakleaf.cli.store_option import StoreLocation, pass_location
from oakleaf.errors import IndexBehind
from oakleaf.ext import read_store

_SESSION = re.compile(r"(?<!\S)session:([^\s\"]+)")
_EXCLUDED = re.compile(r"-(?!-|n\d+$|.$)")


class SearchCommand(click.Command):
    """Accepts words that begin with a minus: `-refund` excludes a word and is not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        excluded = [word for word in args[:end] if _EXCLUDED.match(word)]
        others = [word for word in args[:end] if not _EXCLUDED.match(word)]
        return super().parse_args(ctx, [*others, "--", *excluded, *args[end + 1 :]])


@click.command(cls=SearchCommand)
@click.argument("query", nargs=-1, required=True, metavar="WORDS…")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    metavar="N",
    help="List at most N.",
)
@click.option("--page", metavar="NEXT", help="Continue after a previous page, as its last line says.")
@click.option("--trashed", is_flag=True, help="Search the trash instead.")
@json_option
@pass_location
def search(
    location: StoreLocation,
    query: tuple[str, ...],
    limit: int,
    page: str | None,
    trashed: bool,
    is_json: bool,
) -> int:
    """Search messages, tool inputs and tool outputs.

    Matches all words; use "a phrase", prefix* and -excluded. Filters: role:tool tool:refund model:gpt error:true
    agent:support tag:team=blue session:ses_3f kind:note before:2026-11-01 after:yesterday (today, monday … sunday, 7d,
    24h; local time). Hits are grouped by session; each starts with its reference, as in oakleaf show ses_3f@7. Exit
    code 1 if nothing is found.

    \b
    oakleaf search lost parcel after:yesterday
    oakleaf search '"lost at sea"' role:tool -refund
    """
    store = location.open()
    typed = _SESSION.sub(lambda word: _whole_id(location, word[1], trashed=trashed), " ".join(query))
    try:
        with progress_bar("index", unit="entries") as step:
            store.index(lambda done, remaining: step(done, None))
    except IndexBehind as behind:  # the indexed part can still be searched
        notify(
            f"results may be incomplete: {plural(behind.sessions, 'session')} cannot be indexed now ({behind.reason})"
        )
    with page_errors(page):
        page_of_hits = store.search(typed, limit=limit, before=page, trashed=trashed, catch_up=False)
    names = read_store(store).hit_headings(page_of_hits.hits)
    if is_json:
        hits = [
            {"reference": hit.reference, "heading": names[hit.session_id], **to_json_value(hit)}
            for hit in page_of_hits.hits
        ]
        print_json(hits=hits, next=page_of_hits.next)
        return 0 if page_of_hits.hits else 1
    _print(page_of_hits.hits, names)
    if page_of_hits.next:
        print_next_page(page_of_hits.next)
    if not page_of_hits.hits:
        notify("no results; try fewer words, a prefix* or another filter")
    return 0 if page_of_hits.hits else 1


def _whole_id(location: StoreLocation, reference: str, *, trashed: bool) -> str:
    return f"session:{resolve_stored_session(location, reference, trashed=trashed).session_id}"


def _print(hits: Sequence[SearchHit], names: dict[str, str]) -> None:
    """Print the hits below their sessions, in the order in which these were found."""
    groups: dict[str, list[SearchHit]] = {}
    for hit in hits:
        groups.setdefault(hit.session_id, []).append(hit)
    for n, (session_id, group) in enumerate(groups.items()):
        count = plural(len(group), "hit")
        echo(f"{chr(10) if n else ''}{bold(clip(names[session_id], width() - 12))}  {dim(count)}")
        for hit in group:
            echo(_line(hit))


def _line(hit: SearchHit) -> str:
    turn = f"turn {hit.turn}" if hit.turn else ""
    what = " ".join(filter(None, [hit.role or hit.kind, hit.tool]))
    facts = filter(None, [clip(what, 40), turn, format_time(hit.at)])
    pieces, end = [], 0
    for begin, stop in hit.marks:
        pieces += [
            safe(hit.snippet[end:begin]),
            click.style(safe(hit.snippet[begin:stop]), fg="yellow", bold=True),
        ]
        end = stop
    pieces.append(safe(hit.snippet[end:]))
    return f"  {hit.reference}  {dim(' · '.join(facts))}\n    {' '.join(''.join(pieces).split())}"
