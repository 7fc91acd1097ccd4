"""Route for blobs. They are untrusted: browsers may display a few types and run none."""

from __future__ import annotations

import re
from hashlib import sha256

from litestar import Response, get
from litestar.params import FromPath

from oakleaf.errors import MissingBlob
from oakleaf.ext import read_store
from oakleaf_server.context import ApiRequest, context_and_caller, in_thread

INLINE_TYPES = frozenset(
    ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "text/plain", "application/pdf"]
)
_HASH = re.compile(r"[0-9a-f]{64}")


@get("/api/blobs/{digest:str}", tags=["blobs"])
@in_thread
def read_blob(request: ApiRequest, digest: FromPath[str]) -> Response[bytes]:
    """Return the bytes of a blob. HTML, SVG and other active content are served as downloads only."""
    context, _ = context_and_caller(request)
    blob = read_store(context.store).blob(digest) if _HASH.fullmatch(digest) else None
    if blob is None or sha256(blob.data).hexdigest() != digest:
        raise MissingBlob(digest[:80])
    mime = blob.mime.partition(";")[0].strip().lower()
    is_inline = mime in INLINE_TYPES
    headers = {
        "cache-control": "private, max-age=31536000, immutable",
        "content-disposition": "inline" if is_inline else f'attachment; filename="{digest[:16]}"',
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return Response(blob.data, media_type=mime if is_inline else "application/octet-stream", headers=headers)


HANDLERS = [read_blob]
