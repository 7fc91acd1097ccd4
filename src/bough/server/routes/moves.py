"""Moving over HTTP: fork, rewind, undo, redo, compact, uncompact, and what holds from here on."""

from __future__ import annotations

from litestar import Response, post
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from ...core.tree import Leaf
from ...session import Session
from ..context import Asked, asked_by, threaded
from ..json_views import plain
from ..schemas import Compacted, Forked, Moved, Uncompacted
from ..truncate import cut_any
from .sessions import one


class Forking(Struct, forbid_unknown_fields=True):
    at: str | None = None
    model: str | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    tools: list[str] | None = None
    title: str | None = None


@post("/api/sessions/{session_id:str}/fork", tags=["moving"])
@threaded
def fork(request: Asked, session_id: FromPath[str], data: JSONBody[Forking]) -> Response[Forked]:
    """A new session from any place of this one; no entry is copied."""
    desk, who = asked_by(request)
    made = desk.at(desk.session(who, session_id), data.at).fork(
        model=data.model,
        prompt=data.prompt,
        prompt_patch=data.prompt_patch,
        tools=data.tools,
        title=data.title,
    )
    headers = {"location": f"/api/sessions/{made.session_id}"}
    return Response(Forked(session=one(made).session, cut=plain(made.cut)), status_code=201, headers=headers)


class Rewinding(Struct, forbid_unknown_fields=True):
    to: str
    summary: str | None = None
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/rewind", status_code=200, tags=["moving"])
@threaded
def rewind(request: Asked, session_id: FromPath[str], data: JSONBody[Rewinding]) -> Moved:
    """Move the leaf to any place of the tree; nothing is lost."""
    desk, who = asked_by(request)
    session = desk.unmoved(desk.session(who, session_id), data.leaf)
    to = desk.place(session, data.to)
    if _is_on_path(session, to):
        return _moved(session, plain(session.rewind(to.seq, summary=data.summary)))
    stands = session.checkout(to)
    return _moved(session, {"at": stands.seq, "asked": to.seq})


def _is_on_path(session: Session, to: Leaf) -> bool:
    return any(
        part.branch == to.branch and part.first <= to.seq <= part.last for part in session.log.ranges()
    )


def _moved(session: Session, cut: dict[str, int] | None) -> Moved:
    return Moved(leaf=str(session.leaf), cut=cut)


class Standing(Struct, forbid_unknown_fields=True):
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/undo", status_code=200, tags=["moving"])
@threaded
def undo(request: Asked, session_id: FromPath[str], data: JSONBody[Standing]) -> Moved:
    """Rewind to before the latest input."""
    desk, who = asked_by(request)
    session = desk.unmoved(desk.session(who, session_id), data.leaf)
    return _moved(session, plain(session.undo()))


@post("/api/sessions/{session_id:str}/redo", status_code=200, tags=["moving"])
@threaded
def redo(request: Asked, session_id: FromPath[str], data: JSONBody[Standing]) -> Moved:
    """Go back to where the last rewind came from."""
    desk, who = asked_by(request)
    session = desk.unmoved(desk.session(who, session_id), data.leaf)
    session.redo()
    return _moved(session, None)


class Compacting(Struct, forbid_unknown_fields=True):
    summary: str | None = None
    keep_from: int | None = None
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/compact", status_code=200, tags=["moving"])
@threaded
def compact(request: Asked, session_id: FromPath[str], data: JSONBody[Compacting]) -> Compacted:
    """Let a summary stand for what lies before the newest turn, or before `keep_from`."""
    desk, who = asked_by(request)
    session = desk.unmoved(desk.session(who, session_id), data.leaf)
    session.log.raise_if_leased()
    made = session.compact(data.summary, first_kept=data.keep_from)
    told, _ = cut_any(plain(made))
    return Compacted(leaf=str(session.leaf), compaction=told)


@post("/api/sessions/{session_id:str}/uncompact", status_code=200, tags=["moving"])
@threaded
def uncompact(request: Asked, session_id: FromPath[str], data: JSONBody[Standing]) -> Uncompacted:
    """Cancel the latest compaction: the exact earlier context is back."""
    desk, who = asked_by(request)
    session = desk.unmoved(desk.session(who, session_id), data.leaf)
    session.log.raise_if_leased()
    cancelled = session.uncompact()
    return Uncompacted(leaf=str(session.leaf), cancels=cancelled.cancels)


class Setting(Struct, forbid_unknown_fields=True):
    model: str | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    tools: list[str] | None = None
    leaf: str | None = None


@post("/api/sessions/{session_id:str}/settings", status_code=200, tags=["moving"])
@threaded
def settings(request: Asked, session_id: FromPath[str], data: JSONBody[Setting]) -> Moved:
    """What holds from here on: model, prompt, tools."""
    desk, who = asked_by(request)
    session = desk.unmoved(desk.session(who, session_id), data.leaf)
    session.log.raise_if_leased()
    tools = None if data.tools is None else tuple(data.tools)
    session.set(model=data.model, prompt=data.prompt, prompt_patch=data.prompt_patch, tools=tools)
    return _moved(session, None)


HANDLERS = [fork, rewind, undo, redo, compact, uncompact, settings]
