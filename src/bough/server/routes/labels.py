"""Labels over HTTP."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from ...log.labels import MAX_LENGTH
from ..context import ApiRequest, context_and_caller, in_thread
from ..schemas import LabelList, LabelResult

MOST = 2_000  # in one answer


@get("/api/sessions/{session_id:str}/labels", tags=["tree"])
@in_thread
def read_labels(request: ApiRequest, session_id: FromPath[str]) -> LabelList:
    """The labels of a session's tree, the newest last."""
    context, caller = context_and_caller(request)
    found = list(context.session(caller, session_id).labels().items())
    return LabelList(
        labels=[{"position": str(place), "label": label} for place, label in found[-MOST:]], total=len(found)
    )


class LabelBody(Struct, forbid_unknown_fields=True):
    at: Annotated[str, Meta(description="branch:seq, or a seq of the present path")]
    label: Annotated[str | None, Meta(description=f"At most {MAX_LENGTH} characters; null takes it away")]


@post("/api/sessions/{session_id:str}/labels", status_code=200, tags=["tree"])
@in_thread
def set_label(request: ApiRequest, session_id: FromPath[str], data: JSONBody[LabelBody]) -> LabelResult:
    """Name a place of the tree. Nothing is moved, and no model sees it."""
    context, caller = context_and_caller(request)
    session = context.session(caller, session_id)
    place = context.position(session, data.at)
    return LabelResult(position=str(place), label=session.label(place, data.label))


HANDLERS = [read_labels, set_label]
