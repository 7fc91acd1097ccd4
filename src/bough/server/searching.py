"""Search over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from litestar import get
from litestar.params import FromQuery, QueryParameter

from ..errors import IndexBehind
from ..stores.hits import Hit
from .answers import Hits
from .desk import Asked, asked_by, threaded
from .views import plain


@get("/api/search", tags=["search"])
@threaded
def search(
    request: Asked,
    q: Annotated[
        str, QueryParameter(description='Words, "phrases", prefix*, -without, role:tool agent:support …')
    ],
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 20,
    page: Annotated[str | None, QueryParameter(description="The `next` of a page")] = None,
    trashed: FromQuery[bool] = False,
) -> Hits:
    """Every message, tool input and tool output that matches. What is new is indexed first, if it can be."""
    desk, _ = asked_by(request)
    ask = partial(desk.sessions.search, q, limit=limit, before=page, trashed=trashed)
    try:
        found = ask()
    except IndexBehind:
        found = ask(catch_up=False)  # `behind` tells how much is missing
    hits = [{"reference": reference(hit), **plain(hit)} for hit in found.hits]
    return Hits(hits=hits, next=found.next, behind=found.behind)


def reference(hit: Hit) -> str:
    """What opens it: on the path by its number, elsewhere by its branch too."""
    if not hit.seq:
        return hit.session_id
    return f"{hit.session_id}@{hit.seq}" if hit.on_path else f"{hit.session_id}@{hit.branch}:{hit.seq}"


HANDLERS = [search]
