"""Full-text search: search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from oakleaf import SearchHit
from oakleaf.core.search import Search as Query
from oakleaf.core.search import parse_query
from oakleaf.errors import plural
from oakleaf.ext import read_store
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help, Words
from oakleaf.verbs.screen import Line, Screen, clip, format_time, safe, style
from oakleaf.verbs.views import next_page, page_errors


class HitView(Struct, frozen=True, kw_only=True):
    """A match of a search; `reference` opens it."""

    reference: str
    heading: str
    session_id: str
    branch: int
    seq: int
    turn: int
    role: str | None
    kind: str
    tool: str | None
    at: int
    title: str | None
    relation: str | None
    """The session's relation to its parent: replay, fork, task, import or null."""
    snippet: str
    marks: list[list[int]]
    """First and last position of each match in the snippet, in characters."""
    on_path: bool


class Found(Struct, frozen=True, kw_only=True):
    hits: list[HitView]
    next: str | None
    """The `page` that goes on; null on the last page."""
    unindexed_sessions: int
    """Sessions with text that is not indexed yet: hits may be missing."""
    index_error: str | None = None
    """Why they cannot be indexed now."""


class Search(Verb, frozen=True):
    """Search messages, tool inputs and tool outputs.

    Matches all words; use "a phrase", prefix* and -excluded. Filters: role:tool tool:refund model:gpt error:true
    agent:support tag:team=blue session:ses_3f kind:note before:2026-11-01 after:yesterday (today, monday … sunday, 7d,
    24h; local time). is:replay searches replays instead, is:all both, is:trashed the trash. Hits are grouped by session;
    each starts with its reference, as in oakleaf show ses_3f@7. Exit code 1 if nothing is found.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    examples = (
        "oakleaf search lost parcel after:yesterday",
        "oakleaf search '\"lost at sea\"' role:tool -refund",
    )

    query: Annotated[Words, Help("Words and filters.", metavar="WORDS…")]
    limit: Annotated[int, Help("List at most N.", short="n"), Meta(ge=1, le=1_000)] = 20
    page: Annotated[str | None, Help("Go on after a page before, as its last line says.", metavar="NEXT")] = (
        None
    )

    def run(self, caller: Caller) -> Found:
        store = read_store(caller.store)
        query = self._query(caller, parse_query(self.query, store.now()))
        error = caller.index()
        page = store.search(query)
        names = store.hit_headings(page.hits)
        return Found(
            hits=[_view(hit, names[hit.session_id]) for hit in page],
            next=page.next,
            unindexed_sessions=page.unindexed_sessions,
            index_error=error if page.unindexed_sessions else None,
        )

    def _query(self, caller: Caller, query: Query) -> Query:
        """Return the query with the whole id of its session, for this page."""
        if query.session_id is not None:
            position = caller.stored_position(query.session_id, trashed=query.trashed)
            query = replace(query, session_id=position.session.session_id)
        with page_errors(self.page):
            return replace(query, limit=self.limit, before=self.page)

    def exit_code(self, result: Found) -> int:
        return 0 if result.hits else 1

    def lines(self, result: Found, screen: Screen) -> Iterator[Line]:
        """Yield the hits below their sessions, in the order in which these were found."""
        groups: dict[str, list[HitView]] = {}
        for hit in result.hits:
            groups.setdefault(hit.session_id, []).append(hit)
        for number, group in enumerate(groups.values()):
            yield from [""] * bool(number)
            facts = " · ".join(filter(None, [group[0].relation, plural(len(group), "hit")]))
            yield f"{style(screen.fit(safe(group[0].heading), len(facts) + 6), 'bold')}  {style(facts, 'dim')}"
            for hit in group:
                yield from _lines(hit)

    def notes(self, result: Found, screen: Screen) -> Iterator[str]:
        if result.unindexed_sessions:
            reason = f" now ({result.index_error})" if result.index_error else " yet"
            yield f"results may be incomplete: {plural(result.unindexed_sessions, 'session')} not indexed{reason}"
        if not result.hits:
            yield "no results; try fewer words, a prefix*, another filter, or is:all to search replays too"
        yield from next_page(self, result.next)


def _view(hit: SearchHit, heading: str) -> HitView:
    fields = asdict(hit) | {"marks": [list(mark) for mark in hit.marks]}
    return HitView(reference=hit.reference, heading=heading, **fields)


def _lines(hit: HitView) -> Iterator[str]:
    what = " ".join(filter(None, [hit.role or hit.kind, hit.tool]))
    facts = f"{clip(safe(what), 40)} · {format_time(hit.at)}"
    yield f"  {hit.reference}  {style(facts, 'dim')}"
    yield f"    {' '.join(_highlighted(hit).split())}"


def _highlighted(hit: HitView) -> str:
    """Return the snippet with its matches in colour."""
    pieces, end = list[str](), 0
    for begin, stop in hit.marks:
        pieces += [safe(hit.snippet[end:begin]), style(safe(hit.snippet[begin:stop]), "yellow", "bold")]
        end = stop
    return "".join([*pieces, safe(hit.snippet[end:])])
