"""Routes for the tree: all branches in a compact form, outlines of any part, labels, and calls left behind."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter

from oakleaf.core.entries import Entry
from oakleaf.core.tree import Leaf
from oakleaf.errors import InvalidArgument, InvalidPosition
from oakleaf.ext import read, read_store
from oakleaf.session import Session
from oakleaf.stores.base import SessionQuery
from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, find_session, in_thread
from oakleaf_server.failed_calls import failed_calls
from oakleaf_server.json_views import FAILURES, entry_failures, entry_flags, line_view
from oakleaf_server.path_window import read_entries
from oakleaf_server.routes.sessions import list_rows
from oakleaf_server.schemas import BranchList, LabelList, Outline
from oakleaf_server.truncate import SizedPage

LINES, MAX_POSITIONS, RELATED = 500, 200, 500
MAX_SCANNED, STEP = 5_000, 250
MAX_LABELS = 2_000
KINDS = ("inputs", "messages", "errors", "all")
TROUBLE = FAILURES | {"denied"}


@get("/api/sessions/{session_id:str}/branches", tags=["tree"])
@in_thread
def branches(request: ApiRequest, session_id: FromPath[str]) -> BranchList:
    """List every branch of the session's tree, and the current path as ranges of branches."""
    context, caller = context_and_caller(request)
    session = context.session(caller, session_id)
    tree, store = context.tree(session), read_store(context.store_of(caller))
    rows: list[list[int | None]] = [
        [row.branch, row.parent, row.parent_seq, tree.reach[row.branch], int(row.session_id == session_id)]
        for row in tree.branches.values()
        if row.branch in tree.reach
    ]
    query = SessionQuery(parent_session=session_id, limit=RELATED)
    related = store.sessions(query)
    return BranchList(
        leaf=str(session.leaf),
        columns=["branch", "parent", "parent_seq", "tail", "own"],
        branches=rows,
        path=[[part.branch, part.first, part.last] for part in read(session).ranges()],
        related=[
            {
                "id": each.row.session_id,
                "relation": each.row.relation,
                "parent_seq": each.row.parent_seq,
                "status": each.row.status,
                "heading": each.heading,
            }
            for each in list_rows(store, related)
        ],
        related_next=related.next,
    )


@get("/api/sessions/{session_id:str}/outline", tags=["tree"])
@in_thread
def outline(
    request: ApiRequest,
    session_id: FromPath[str],
    branch: Annotated[
        int | None, QueryParameter(ge=1, le=2**31, description="The entries of this branch")
    ] = None,
    leaf: Annotated[str | None, QueryParameter(description="Or those of the path to this position")] = None,
    positions: Annotated[str | None, QueryParameter(description="Or these: 3:8,1:2")] = None,
    first: Annotated[int, QueryParameter(ge=1, le=2**32)] = 1,
    last: Annotated[int | None, QueryParameter(ge=0, le=2**32)] = None,
    kinds: Annotated[str, QueryParameter(description="inputs, messages, errors or all")] = "all",
    limit: Annotated[int, QueryParameter(ge=1, le=LINES)] = LINES,
) -> Outline:
    """List entries as one line each: of a branch, of a path, or at single positions."""
    context, caller = context_and_caller(request)
    session = context.session(caller, session_id)
    if kinds not in KINDS:
        raise InvalidArgument("kinds", kinds, ", ".join(KINDS))
    if positions is not None:
        return _outline_positions(context, session, positions.split(","))
    if branch is not None:
        tree = context.tree(session)
        if branch not in tree.reach:
            raise InvalidPosition(branch, 0, session.leaf.seq)
        first = max(first, tree.branches[branch].parent_seq + 1)
        there = context.session_at(session, f"{branch}:{tree.reach[branch]}")
    else:
        there = context.session_at(session, leaf)
    last = there.leaf.seq if last is None else min(last, there.leaf.seq)
    failed = (
        {
            (one["branch"], one["seq"])
            for one in failed_calls(there, context.tree(session), first, min(last, first + MAX_SCANNED - 1))
        }
        if kinds == "errors"
        else set()
    )
    return _outline_range(there, first, last, kinds, limit, failed)


def _outline_range(
    there: Session, first: int, last: int, kinds: str, limit: int, failed: set[tuple[int, int]]
) -> Outline:
    page, covered = SizedPage(), first - 1
    for begin in range(first, min(last, first + MAX_SCANNED - 1) + 1, STEP):
        stop = min(begin + STEP - 1, last)
        for entry in read_entries(there, begin, stop):
            if not is_listed(entry, kinds) and (entry.branch, entry.seq) not in failed:
                _mark_trouble(page.items, entry)
                continue
            if len(page.items) == limit or not page.add(line_view(entry)):
                return Outline(first=first, last=entry.seq - 1, has_after=True, lines=page.items)
        covered = stop
    return Outline(first=first, last=covered, has_after=covered < last, lines=page.items)


def _mark_trouble(lines: list[dict[str, Any]], entry: Entry) -> None:
    """Show a failure of a skipped entry on the line before: in a tree of messages, a tool's failure."""
    trouble = [flag for flag in entry_flags(entry) if flag in TROUBLE]
    if lines and trouble and entry.turn == lines[-1]["turn"]:
        lines[-1]["flags"] = list(dict.fromkeys([*lines[-1]["flags"], *trouble]))


def is_listed(entry: Entry, kinds: str) -> bool:
    if kinds == "errors":
        return bool(entry_failures(entry))
    if kinds == "inputs":
        return bool(entry.turn) and entry.turn == entry.seq
    message = entry.message
    has_text = message is not None and message.role in ("user", "assistant") and bool(message.text.strip())
    return kinds == "all" or has_text


def _outline_positions(context: ServerContext, session: Session, places: list[str]) -> Outline:
    """Outline the existing positions, in the requested order."""
    if len(places) > MAX_POSITIONS:
        raise InvalidArgument("positions", len(places), f"at most {MAX_POSITIONS} positions")
    tree, page = context.tree(session), SizedPage()
    for place in places:
        leaf = _parse_position(place)
        if leaf.seq and tree.contains(leaf):
            there = context.session_at(session, str(leaf))
            page.add(line_view(read_entries(there, leaf.seq, leaf.seq)[0]))
    return Outline(first=0, last=0, has_after=False, lines=page.items)


def _parse_position(place: str) -> Leaf:
    branch, colon, seq = place.partition(":")
    if not (colon and branch.isdecimal() and seq.isdecimal() and len(place) <= 30):
        raise InvalidArgument("positions", place, "branch:seq, separated by commas")
    return Leaf(int(branch), int(seq))


@get("/api/sessions/{session_id:str}/labels", tags=["tree"])
@in_thread
def read_labels(request: ApiRequest, session_id: FromPath[str]) -> LabelList:
    """List the labels of a session's tree, newest last."""
    labels = list(find_session(request, session_id).labels().items())
    return LabelList(
        labels=[{"position": str(place), "label": label} for place, label in labels[-MAX_LABELS:]],
        total=len(labels),
    )


HANDLERS = [branches, outline, read_labels]
