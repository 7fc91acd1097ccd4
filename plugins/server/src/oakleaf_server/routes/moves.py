"""Routes that fork a session or move its leaf: fork, rewind, undo, redo, compact, uncompact, settings."""

from __future__ import annotations

from typing import Any

from litestar import get, post
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from oakleaf.core.entries import Effects
from oakleaf.errors import StaleLeaf
from oakleaf.ext import read
from oakleaf.session import Session
from oakleaf_server.context import ApiRequest, context_and_caller, find_session, in_thread
from oakleaf_server.json_views import to_json
from oakleaf_server.pending_calls import left_behind_views
from oakleaf_server.schemas import CompactResult, LeftBehindResult, MoveResult, UncompactResult
from oakleaf_server.truncate import truncate_value


class RewindBody(Struct, forbid_unknown_fields=True):
    to: str
    summary: str | None = None
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/rewind", status_code=200, tags=["moving"])
@in_thread
def rewind(request: ApiRequest, session_id: FromPath[str], data: JSONBody[RewindBody]) -> MoveResult:
    """Move the leaf to any position of the tree; nothing is deleted."""
    session = _session_at_leaf(request, session_id, data.leaf)
    to = context_and_caller(request)[0].position(session, data.to)
    if read(session).contains(to):
        return _move_result(session, to_json(session.rewind(to.seq, summary=data.summary)))
    leaf = session.checkout(to)
    return _move_result(session, {"at": leaf.seq, "requested": to.seq})


def _session_at_leaf(request: ApiRequest, session_id: str, leaf: str | None) -> Session:
    """Return a session, or raise StaleLeaf if its leaf is not the one the caller expects."""
    session = find_session(request, session_id)
    if leaf is not None and str(session.leaf) != leaf:
        expected = context_and_caller(request)[0].position(session, leaf)
        raise StaleLeaf(session_id, expected, session.leaf)
    return session


def _move_result(session: Session, cut: dict[str, int] | None) -> MoveResult:
    return MoveResult(leaf=str(session.leaf), cut=cut, left_behind=left_behind_views(session))


@get("/api/sessions/{session_id:str}/left-behind", tags=["moving"])
@in_thread
def left_behind(request: ApiRequest, session_id: FromPath[str]) -> LeftBehindResult:
    """List the calls of unsafe tools that the session's path left behind, with their results."""
    return LeftBehindResult(left_behind=left_behind_views(find_session(request, session_id)))


class LeafBody(Struct, forbid_unknown_fields=True):
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/undo", status_code=200, tags=["moving"])
@in_thread
def undo(request: ApiRequest, session_id: FromPath[str], data: JSONBody[LeafBody]) -> MoveResult:
    """Rewind to before the latest input."""
    session = _session_at_leaf(request, session_id, data.leaf)
    return _move_result(session, to_json(session.undo()))


@post("/api/sessions/{session_id:str}/redo", status_code=200, tags=["moving"])
@in_thread
def redo(request: ApiRequest, session_id: FromPath[str], data: JSONBody[LeafBody]) -> MoveResult:
    """Return to where the last rewind started."""
    session = _session_at_leaf(request, session_id, data.leaf)
    session.redo()
    return _move_result(session, None)


class CompactBody(Struct, forbid_unknown_fields=True):
    summary: str | None = None
    keep_from: int | None = None
    context_tokens: int | None = None
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/compact", status_code=200, tags=["moving"])
@in_thread
def compact(request: ApiRequest, session_id: FromPath[str], data: JSONBody[CompactBody]) -> CompactResult:
    """Replace the entries before the newest turn, or before `keep_from`, with a summary for the model; or with
    `context_tokens` as much as is needed to fit."""
    session = _session_at_leaf(request, session_id, data.leaf)
    read(session).check_free()
    compacted = session.compact(data.summary, first_kept=data.keep_from, context_tokens=data.context_tokens)
    compaction, _ = truncate_value(to_json(compacted))
    return CompactResult(leaf=str(session.leaf), compaction=compaction)


@post("/api/sessions/{session_id:str}/uncompact", status_code=200, tags=["moving"])
@in_thread
def uncompact(request: ApiRequest, session_id: FromPath[str], data: JSONBody[LeafBody]) -> UncompactResult:
    """Cancel the latest compaction, which restores the exact earlier context."""
    session = _session_at_leaf(request, session_id, data.leaf)
    read(session).check_free()
    cancelled = session.uncompact()
    return UncompactResult(leaf=str(session.leaf), cancels=cancelled.cancels)


class SettingsBody(Struct, forbid_unknown_fields=True):
    model: str | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    tools: list[str] | None = None
    options: dict[str, Any] | None = None
    """Options of the model's calls; null removes one."""
    effects: Effects | None = None
    """What becomes of an unsafe call that a path which was left has made: ask, repeat or reuse."""
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/settings", status_code=200, tags=["moving"])
@in_thread
def settings(request: ApiRequest, session_id: FromPath[str], data: JSONBody[SettingsBody]) -> MoveResult:
    """Change model, prompt, tools or options from here on."""
    context, _ = context_and_caller(request)
    context.agent.check_model(data.model)
    session = _session_at_leaf(request, session_id, data.leaf)
    read(session).check_free()
    tools = None if data.tools is None else tuple(data.tools)
    session.set(
        model=data.model,
        prompt=data.prompt,
        prompt_patch=data.prompt_patch,
        tools=tools,
        options=data.options,
        effects=data.effects,
    )
    return MoveResult(leaf=str(session.leaf))


HANDLERS = [left_behind, rewind, undo, redo, compact, uncompact, settings]
