"""Labels over HTTP."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from ...log.labels import LONGEST
from ..context import Asked, asked_by, threaded
from ..schemas import LabelList, OneLabel

MOST = 2_000  # in one answer


@get("/api/sessions/{session_id:str}/labels", tags=["tree"])
@threaded
def read_labels(request: Asked, session_id: FromPath[str]) -> LabelList:
    """The labels of a session's tree, the newest last."""
    desk, who = asked_by(request)
    found = list(desk.session(who, session_id).labels().items())
    return LabelList(
        labels=[{"place": str(place), "label": words} for place, words in found[-MOST:]], of=len(found)
    )


class Labelling(Struct, forbid_unknown_fields=True):
    at: Annotated[str, Meta(description="branch:seq, or a seq of the present path")]
    label: Annotated[str | None, Meta(description=f"At most {LONGEST} characters; null takes it away")]


@post("/api/sessions/{session_id:str}/labels", status_code=200, tags=["tree"])
@threaded
def set_label(request: Asked, session_id: FromPath[str], data: JSONBody[Labelling]) -> OneLabel:
    """Name a place of the tree. Nothing is moved, and no model sees it."""
    desk, who = asked_by(request)
    session = desk.session(who, session_id)
    place = desk.place(session, data.at)
    return OneLabel(place=str(place), label=session.label(place, data.label))


HANDLERS = [read_labels, set_label]
