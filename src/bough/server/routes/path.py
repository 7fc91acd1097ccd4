"""Entries over HTTP: windows of a path, one entry whole, the outline by turns, state and journal."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from ...core.entries import Entry
from ...errors import InvalidArgument, InvalidPosition
from ..context import Asked, asked_by, threaded
from ..json_views import call_view, entry_view, plain
from ..outline import turns_before
from ..path_window import Walk, Window, for_client, read, short
from ..schemas import Journal, OneEntry, PathWindow, StateRead, TurnList
from ..truncate import Page, cut_any, cut_whole

LeafParam = Annotated[str | None, QueryParameter(description="branch:seq; default: where the session stands")]


@get("/api/sessions/{session_id:str}/path", opt={"client": True}, tags=["entries"])
@threaded
def path(
    request: Asked,
    session_id: FromPath[str],
    leaf: LeafParam = None,
    first: Annotated[int | None, QueryParameter(ge=1, le=2**32, description="From this seq on")] = None,
    last: Annotated[int | None, QueryParameter(ge=0, le=2**32, description="Up to this seq")] = None,
    around: Annotated[
        int | None, QueryParameter(ge=1, le=2**32, description="This seq in the middle")
    ] = None,
    newest: Annotated[
        bool, QueryParameter(description="The end of the path; so if nothing else is said")
    ] = False,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
    public: Annotated[bool, QueryParameter(description="The transcript only")] = False,
) -> PathWindow:
    """One window of a path: the entries from, up to or around a place, or the newest."""
    desk, who = asked_by(request)
    if sum([first is not None, last is not None, around is not None, newest]) > 1:
        raise InvalidArgument("first, last, around, newest", "several", "one of them")
    session = desk.session(who, session_id)
    session = session if who.is_client else desk.at(session, leaf)
    is_public = public or who.is_client
    walk = Walk(session, for_client if who.is_client else short, is_public)
    end = session.leaf.seq
    if first is not None:
        found = walk.forward(first, limit)
    elif around is not None:
        found = walk.around(min(around, max(end, 1)), limit)
    else:
        found = walk.backward(end if last is None else min(last, end), limit)
    return _told(session_id, str(session.leaf), end, found)


def _told(session_id: str, leaf: str, end: int, found: Window) -> PathWindow:
    return PathWindow(
        session_id=session_id,
        leaf=leaf,
        of=end,
        first=found.first,
        last=found.last,
        has_before=found.first > 1 and end > 0,
        has_after=found.last < end,
        entries=found.entries,
    )


@get("/api/sessions/{session_id:str}/entries/{place:str}", tags=["entries"])
@threaded
def entry(request: Asked, session_id: FromPath[str], place: FromPath[str]) -> OneEntry:
    """One entry, whole as far as 1 MB goes, and the model call that it answers."""
    desk, who = asked_by(request)
    session = desk.session(who, session_id)
    found = _entry(request, session_id, place)
    calls = desk.calls_by_place(session).get((found.branch, found.seq), [])
    answered = next((call for call in calls if call.answer_seq == found.seq), None)
    on_path = any(
        part.branch == found.branch and part.first <= found.seq <= part.last for part in session.log.ranges()
    )
    return OneEntry(
        entry=cut_whole(entry_view(found)),
        reference=f"{session_id}@{found.branch}:{found.seq}",
        on_path=on_path,
        call=None if answered is None else call_view(answered),
    )


def _entry(request: Asked, session_id: str, place: str) -> Entry:
    desk, who = asked_by(request)
    there = desk.at(desk.session(who, session_id), place)
    seq = there.leaf.seq
    found = read(there, seq, seq) if seq else []
    if not found:
        raise InvalidPosition(place, 1, there.leaf.seq)
    return found[0]


@get("/api/sessions/{session_id:str}/entries/{place:str}/raw", tags=["entries"])
@threaded
def raw(request: Asked, session_id: FromPath[str], place: FromPath[str]) -> Response[bytes]:
    """The JSON of one entry, however long, to be saved."""
    found = _entry(request, session_id, place)
    body = msgspec.json.encode(entry_view(found))
    headers = {"content-disposition": f'attachment; filename="entry-{found.branch}-{found.seq}.json"'}
    return Response(body, media_type="application/json", headers=headers)


@get("/api/sessions/{session_id:str}/turns", tags=["entries"])
@threaded
def turns(
    request: Asked,
    session_id: FromPath[str],
    leaf: LeafParam = None,
    before: Annotated[int | None, QueryParameter(ge=1, le=2**32, description="The `next` of a page")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> TurnList:
    """The outline of a path, turn by turn, newest first."""
    desk, who = asked_by(request)
    session = desk.at(desk.session(who, session_id), leaf)
    end = session.leaf.seq if before is None else min(before - 1, session.leaf.seq)
    found, following = turns_before(session, end, limit, desk.calls_by_place(session))
    return TurnList(leaf=str(session.leaf), turns=found, next=following)


@get("/api/sessions/{session_id:str}/state", tags=["entries"])
@threaded
def state(request: Asked, session_id: FromPath[str], leaf: LeafParam = None) -> StateRead:
    """The session's state at a place: the fold of what its tools and notes recorded."""
    desk, who = asked_by(request)
    session = desk.at(desk.session(who, session_id), leaf)
    told, cut = cut_any(session.state)
    return StateRead(leaf=str(session.leaf), state=told, cut=cut)


@get("/api/sessions/{session_id:str}/journal", tags=["events"])
@threaded
def journal(
    request: Asked,
    session_id: FromPath[str],
    after: Annotated[int, QueryParameter(ge=0, le=2**31)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
) -> Journal:
    """The numbered facts of a session, behind a number."""
    desk, who = asked_by(request)
    session = desk.session(who, session_id)
    page = Page()
    for fact in session.journal(after, limit):
        data, _ = cut_any(plain(fact.data), 8_000, 2_000)
        if not page.takes({"n": fact.number, "kind": fact.kind, "at": fact.at, "data": data}):
            break
    return Journal(facts=page.things, of=session.row.facts)


HANDLERS = [path, entry, raw, turns, state, journal]
