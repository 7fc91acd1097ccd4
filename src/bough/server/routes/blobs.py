"""Blobs over HTTP: bytes of strangers, so that a browser shows few kinds of them and runs none."""

from __future__ import annotations

import re

from litestar import Response, get
from litestar.params import FromPath

from ...errors import MissingBlob
from ..context import ApiRequest, context_and_caller, in_thread

SHOWN = frozenset(
    ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "text/plain", "application/pdf"]
)
_HASH = re.compile(r"[0-9a-f]{64}")


@get("/api/blobs/{digest:str}", tags=["blobs"])
@in_thread
def blob(request: ApiRequest, digest: FromPath[str]) -> Response[bytes]:
    """The bytes behind a media handle. HTML, SVG and whatever else might run are only to be saved."""
    context, _ = context_and_caller(request)
    found = context.store.backend.blob(digest) if _HASH.fullmatch(digest) else None
    if found is None:
        raise MissingBlob(digest[:80])
    mime = found.mime.partition(";")[0].strip().lower()
    is_shown = mime in SHOWN
    headers = {
        "cache-control": "private, max-age=31536000, immutable",
        "content-disposition": "inline" if is_shown else f'attachment; filename="{digest[:16]}"',
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return Response(found.data, media_type=mime if is_shown else "application/octet-stream", headers=headers)


HANDLERS = [blob]
