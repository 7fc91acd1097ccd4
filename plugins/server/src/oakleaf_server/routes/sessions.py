"""Routes for sessions: list, count, start, read."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, Struct
from msgspec.structs import replace

from oakleaf import Workspace, __version__
from oakleaf.core.context import active_compactions, fold_settings
from oakleaf.core.messages import system
from oakleaf.core.turns import CallModel, Rest, RunTools
from oakleaf.ext import StoreReader, read, read_store, split_tools, store_of
from oakleaf.session import Session
from oakleaf.stores.base import SessionPage, SessionQuery, SessionRow
from oakleaf.stores.counts import CountColumn
from oakleaf.stores.filters import parse_sessions
from oakleaf.verbs.sessions import Ls, SessionList
from oakleaf.verbs.views import SessionView
from oakleaf.wire import PROVIDERS
from oakleaf_server.active_runs import responder
from oakleaf_server.auth import Caller
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, in_thread
from oakleaf_server.json_views import PUBLIC_ROW, public_row, row_view, to_json
from oakleaf_server.pending_calls import open_call_views, pending_approvals
from oakleaf_server.routes.entries import call_list
from oakleaf_server.schemas import (
    Facets,
    Figures,
    Json,
    ServerInfo,
    SessionResponse,
    SessionResult,
)
from oakleaf_server.truncate import truncate_value
from oakleaf_server.turn_summary import turns_before

RELATED, CLIENT_LIMIT = 100, 200
VISIBLE = ("status", "agent", "title", "started_from", "started_before")
"""The fields by which a client's list is filtered."""
COLUMNS: tuple[CountColumn, ...] = ("status", "agent", "model", "relation")
SETTINGS = ("model", "prompt", "prompt_patch", "tools", "limits", "options", "effects", "max_messages")
_MAX_VALUES = 100


class ListRow(Struct, frozen=True):
    row: SessionRow
    heading: str
    active_at: int


def list_rows(store: StoreReader, page: SessionPage) -> list[ListRow]:
    """Return the sessions of a page with headings and the times of last activity."""
    names = store.headings(page.sessions)
    return [ListRow(row, names[row.session_id], page.active_at[row.session_id]) for row in page.sessions]


@get("/api", opt={"client": True}, tags=["server"])
@in_thread
def server_info(request: ApiRequest) -> ServerInfo:
    """Describe the server and what the caller may do."""
    context, caller = context_and_caller(request)
    agent = context.agent
    own, _ = split_tools(agent.tools)  # those of a source are known in a run only
    tools = [{"name": t.name, "effect": t.effect, "approval": bool(t.approval)} for t in own.values()]
    return ServerInfo(
        version=__version__,
        level=caller.level,
        owner=caller.owner,
        space=read_store(context.store).space,
        models=[] if caller.is_client else agent.model_names,
        tools=[] if caller.is_client else tools,
        can_send=bool(agent.models) or not caller.is_client,
        can_import=context.access.token is None and not caller.is_client,
        can_export=context.access.internal_token is not None and not caller.is_client,
        providers=list(PROVIDERS),
        pages=[] if caller.is_client else request.app.state.viewer.links,
    )


def list_for_client(context: ServerContext, caller: Caller, verb: Ls) -> SessionList:
    """List a client's own sessions, last active first, with fewer fields.

    Only visible fields filter: filtering by a hidden field would reveal it.
    """
    store = context.store_of(caller)
    search = parse_sessions(verb.query, read_store(store).now())
    visible = {name: getattr(search.query, name) for name in VISIBLE}
    query = SessionQuery(include_children=False, order="active", **visible)
    found = replace(verb, limit=min(verb.limit, CLIENT_LIMIT)).find(store, replace(search, query=query))
    views = [SessionView(**{name: getattr(view, name) for name in PUBLIC_ROW}) for view in found.sessions]
    return SessionList(sessions=views, next=found.next)


def list_row(row: ListRow) -> Json:
    """Return a session as a row of a list."""
    return {**_truncated_row(row_view(row.row, row.heading)), "active_at": row.active_at}


def _truncated_row(view: Json) -> Json:
    """Truncate long tags, tool names and errors, each by itself: a reader finds every field."""
    return {name: truncate_value(value, 4_000, 2_000)[0] for name, value in view.items()}


@get("/api/facets", tags=["sessions"])
@in_thread
def facets(
    request: ApiRequest,
    filters: Annotated[
        str,
        QueryParameter(name="query", description="As of a list of sessions, whose words are not counted"),
    ] = "",
) -> Facets:
    """Count the matching sessions by status, agent, model and relation: the 1,000 last active ones at most."""
    context, _ = context_and_caller(request)
    store = read_store(context.store)
    wanted = parse_sessions(filters, store.now()).query
    totals = {column: store.count(replace(wanted, **{column: None}), column) for column in COLUMNS}
    counts: dict[str, dict[str, int]] = {
        column: dict(sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))[:_MAX_VALUES])
        for column, values in totals.items()
    }
    # The counts of an unfiltered column sum to the total.
    free = next((column for column in COLUMNS if getattr(wanted, column) is None), None)
    all_counts = store.count(wanted, "status") if free is None else totals[free]
    total = sum(all_counts.values())
    return Facets(total=min(total, store.MAX_COUNT), is_partial=total >= store.MAX_COUNT, facets=counts)


class WorkspaceBody(Workspace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the caller works; prompts name it `{{ctx.…}}`. It gives no tool any access: the server's own workspace does."""


class StartBody(Struct, forbid_unknown_fields=True):
    """All fields are optional."""

    agent: str | None = None
    prompt: str | None = None
    title: str | None = None
    tags: dict[str, str] = {}
    model: str | None = None
    conversation_id: str | None = None
    session_id: str | None = None
    owner: str | None = None
    workspace: WorkspaceBody | None = None


@post("/api/sessions", tags=["sessions"])
@in_thread
def start_session(request: ApiRequest, data: JSONBody[StartBody]) -> Response[SessionResult]:
    """Start a session; idempotent with a `session_id`."""
    context, _ = context_and_caller(request)
    context.agent.check_model(data.model or None)
    seeds = [system(data.prompt)] if data.prompt else []
    session = context.store.start(
        data.agent,
        seeds,
        session_id=data.session_id,
        conversation_id=data.conversation_id,
        title=data.title or None,
        tags=data.tags,
        model=data.model or None,
        owner=data.owner or None,
        workspace=data.workspace,
    )
    headers = {"location": f"/api/sessions/{session.session_id}"}
    return Response(session_result(session), status_code=201, headers=headers)


def session_result(session: Session) -> SessionResult:
    row = session.row
    return SessionResult(session=_truncated_row(row_view(row, read_store(store_of(session)).heading(row))))


@get("/api/sessions/{session_id:str}", opt={"client": True}, tags=["sessions"])
@in_thread
def read_session(
    request: ApiRequest,
    session_id: FromPath[str],
    figures: Annotated[
        int | None,
        QueryParameter(ge=1, le=2**32, description="With the figures of the entries from this seq on"),
    ] = None,
) -> SessionResponse:
    """Read a session: its fields, settings, next action, open tool calls and related sessions."""
    context, caller = context_and_caller(request)
    session = context.session(caller, session_id)
    # At the leaf of this row, or what is open might be older than the number of facts says.
    store, stored = read_store(context.store_of(caller)), read(session)
    row = store.current(session.refresh())
    view = row_view(row, store.heading(row))
    if caller.is_client:
        return SessionResponse(session=public_row(view))
    control_entries = stored.control_entries()
    current = fold_settings(control_entries)
    compactions = active_compactions(control_entries)
    settings, _ = truncate_value(to_json(current), 60_000)
    query = SessionQuery(parent_session=session_id, limit=RELATED)
    related = store.sessions(query)
    call_status = stored.call_status()
    return SessionResponse(
        session=_truncated_row(view),
        settings={**dict.fromkeys(SETTINGS), **settings},
        next_action=next_action(session),
        open_tool_calls=open_call_views(session, call_status),
        pending_approvals=pending_approvals(session, call_status),
        queued=len(stored.inbox()),
        draft=stored.draft(),
        is_running_here=request.app.state.runs.is_running(session_id),
        is_held=store.is_held(row),
        active_compaction=compactions[-1][0] if compactions else None,
        responder=responder(context.agent, session, current),
        parent=_parent(store, row),
        related=[_truncated_row(row_view(each.row, each.heading)) for each in list_rows(store, related)],
        related_next=related.next,
        figures=UNSET if figures is None else _figures(context, session, figures, row.status),
    )


def _figures(context: ServerContext, session: Session, first: int, status: str) -> Figures:
    """Return the figures for a reader of new entries, in an answer with the session."""
    calls = call_list(context, session, first, session.leaf.seq)
    turns, _ = (
        ([], None)
        if status == "running"
        else turns_before(session, context.tree(session), session.leaf.seq, 1)
    )
    return Figures(calls=calls.calls, facts=calls.facts, turns=turns)


def _parent(store: StoreReader, row: SessionRow) -> Json | None:
    if row.parent_session is None:
        return None
    if (parent := store.find_session(row.parent_session)) is None:
        return {"id": row.parent_session, "is_gone": True}
    return _truncated_row(row_view(parent, store.heading(parent)))


def next_action(session: Session) -> str:
    """Return the next action from the cursor, from only a few entries of the path."""
    cursor = read(session).cursor
    if cursor.open_calls:
        return RunTools.__name__
    return CallModel.__name__ if cursor.turn else Rest.__name__


HANDLERS = [
    server_info,
    facets,
    start_session,
    read_session,
]
