"""Routes for entries: windows of a path, single entries, turns and state."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from oakleaf.core.entries import Entry
from oakleaf.core.tree import Leaf
from oakleaf.errors import InvalidArgument, InvalidPosition
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, find_session, in_thread
from oakleaf_server.failed_calls import failed_calls
from oakleaf_server.json_views import call_view, client_entry, entry_view
from oakleaf_server.path_window import PathReader, calls_by_entry, read_entries, truncated_entry
from oakleaf_server.schemas import CallList, EntryDetail, PathWindow, StateSnapshot, TurnList
from oakleaf_server.truncate import truncate_to_page, truncate_value
from oakleaf_server.turn_summary import turns_before
from oakleaf_server.waiting_facts import waiting_facts

LeafParam = Annotated[str | None, QueryParameter(description="branch:seq; default: the current leaf")]


@get("/api/sessions/{session_id:str}/path", opt={"client": True}, tags=["entries"])
@in_thread
def path(
    request: ApiRequest,
    session_id: FromPath[str],
    leaf: LeafParam = None,
    first: Annotated[int | None, QueryParameter(ge=1, le=2**32, description="From this seq on")] = None,
    last: Annotated[int | None, QueryParameter(ge=0, le=2**32, description="Up to this seq")] = None,
    around: Annotated[
        int | None, QueryParameter(ge=1, le=2**32, description="This seq in the middle")
    ] = None,
    newest: Annotated[bool, QueryParameter(description="The end of the path; the default")] = False,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
    public: Annotated[bool, QueryParameter(description="The transcript only")] = False,
) -> PathWindow:
    """Read one window of a path: from, up to or around a seq, or the newest entries."""
    context, caller = context_and_caller(request)
    if sum([first is not None, last is not None, around is not None, newest]) > 1:
        raise InvalidArgument("first, last, around, newest", "several", "one of them")
    session = context.session(caller, session_id)
    facts = session.refresh().facts
    session = session if caller.is_client else context.session_at(session, leaf)
    is_public = public or caller.is_client
    reader = PathReader(session, client_entry if caller.is_client else truncated_entry, is_public)
    end = session.leaf.seq
    if first is not None:
        window = reader.forward(first, limit)
    elif around is not None:
        window = reader.around(min(around, max(end, 1)), limit)
    else:
        window = reader.backward(end if last is None else min(last, end), limit)
    return PathWindow(
        session_id=session_id,
        leaf=str(session.leaf),
        total=end,
        facts=facts,
        first=window.first,
        last=window.last,
        has_before=window.first > 1 and end > 0,
        has_after=window.last < end,
        entries=window.entries,
    )


@get("/api/sessions/{session_id:str}/entries/{place:str}", tags=["entries"])
@in_thread
def entry(request: ApiRequest, session_id: FromPath[str], place: FromPath[str]) -> EntryDetail:
    """Read one entry, up to 1 MB of it, and the model call it answers."""
    session = find_session(request, session_id)
    item = _entry(request, session_id, place)
    answered = next(iter(read(session).calls_at(item)), None)
    return EntryDetail(
        entry=truncate_to_page(entry_view(item)),
        reference=f"{session_id}@{item.branch}:{item.seq}",
        on_path=read(session).contains(Leaf(item.branch, item.seq)),
        call=None if answered is None else call_view(answered),
    )


def _entry(request: ApiRequest, session_id: str, place: str) -> Entry:
    there = find_session(request, session_id, place)
    seq = there.leaf.seq
    entries = read_entries(there, seq, seq) if seq else []
    if not entries:
        raise InvalidPosition(place, 1, there.leaf.seq)
    return entries[0]


@get("/api/sessions/{session_id:str}/entries/{place:str}/raw", tags=["entries"])
@in_thread
def raw(request: ApiRequest, session_id: FromPath[str], place: FromPath[str]) -> Response[bytes]:
    """Download the JSON of one entry of any length."""
    item = _entry(request, session_id, place)
    body = msgspec.json.encode(entry_view(item))
    headers = {"content-disposition": f'attachment; filename="entry-{item.branch}-{item.seq}.json"'}
    return Response(body, media_type="application/json", headers=headers)


@get("/api/sessions/{session_id:str}/turns", tags=["entries"])
@in_thread
def turns(
    request: ApiRequest,
    session_id: FromPath[str],
    leaf: LeafParam = None,
    before: Annotated[int | None, QueryParameter(ge=1, le=2**32, description="The `next` of a page")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> TurnList:
    """List the turns of a path, newest first."""
    context, _ = context_and_caller(request)
    session = find_session(request, session_id, leaf)
    end = session.leaf.seq if before is None else min(before - 1, session.leaf.seq)
    summaries, next_seq = turns_before(session, context.tree(session), end, limit)
    return TurnList(leaf=str(session.leaf), turns=summaries, next=next_seq)


@get("/api/sessions/{session_id:str}/calls", tags=["usage"])
@in_thread
def calls(
    request: ApiRequest,
    session_id: FromPath[str],
    first: Annotated[int, QueryParameter(ge=1, le=2**32, description="From this seq on")] = 1,
    last: Annotated[
        int, QueryParameter(ge=1, le=2**32, description="Up to this seq, at most 500 entries")
    ] = 2**32,
    leaf: LeafParam = None,
) -> CallList:
    """List the model calls behind the answers of a range of the path, with their tokens and cost, and what calls waited for."""
    context, _ = context_and_caller(request)
    return call_list(context, find_session(request, session_id, leaf), first, last)


def call_list(context: ServerContext, session: Session, first: int, last: int) -> CallList:
    """Return the calls of a range of the path, and the facts between them."""
    last, tree = min(last, first + 499, session.leaf.seq), context.tree(session)
    by_entry = calls_by_entry(session, first, last)
    in_order = [call for place in sorted(by_entry, key=lambda place: place[1]) for call in by_entry[place]]
    facts = waiting_facts(session, tree, first, last) + failed_calls(session, tree, first, last)
    return CallList(leaf=str(session.leaf), calls=[call_view(call) for call in in_order], facts=facts)


@get("/api/sessions/{session_id:str}/state", tags=["entries"])
@in_thread
def state(request: ApiRequest, session_id: FromPath[str], leaf: LeafParam = None) -> StateSnapshot:
    """Read the session's state at a position, folded from its tools' and notes' records."""
    session = find_session(request, session_id, leaf)
    value, omitted = truncate_value(session.state)
    return StateSnapshot(leaf=str(session.leaf), state=value, omitted_chars=omitted)


HANDLERS = [path, entry, raw, turns, calls, state]
