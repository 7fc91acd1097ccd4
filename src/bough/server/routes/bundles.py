"""Bundles over HTTP, out and in. Out wants the internal token; in takes a file of any length the server allows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from tempfile import TemporaryFile
from typing import IO, Annotated

from litestar import Response, get, post
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import Stream

from ..auth import Caller
from ..context import ApiRequest, ServerContext, context_and_caller
from ..problems import Refusal
from ..schemas import ImportResult

CHUNK = 256 * 1024


@get("/api/sessions/{session_id:str}/bundle", tags=["exchange"], media_type="application/octet-stream")
async def bundle(
    request: ApiRequest,
    session_id: FromPath[str],
    blobs: Annotated[bool, QueryParameter(description="The media too")] = False,
    children: Annotated[bool, QueryParameter(description="Its tasks too")] = True,
    redact: Annotated[bool, QueryParameter(description="Secrets hidden, under another id")] = False,
    internal_token: Annotated[str | None, HeaderParameter(name="X-Internal-Token")] = None,
) -> Stream:
    """A session as a bundle, the same bytes every time."""
    context, caller = context_and_caller(request)
    _check(context, internal_token)
    file = await asyncio.to_thread(_written, context, caller, session_id, blobs, children, redact)
    name = re.sub(r"[^0-9A-Za-z_-]", "_", session_id)[:80]
    headers = {"content-disposition": f'attachment; filename="{name}.bough"'}
    return Stream(_chunks(file), media_type="application/octet-stream", headers=headers)


def _check(context: ServerContext, token: str | None) -> None:
    if context.access.internal_token is None:
        raise Refusal(
            403,
            "export_disabled",
            "this server exports nothing",
            "start bough serve with --internal-token, or $BOUGH_INTERNAL_TOKEN",
        )
    if not context.access.is_internal_token(token):
        raise Refusal(403, "bad_internal_token", "X-Internal-Token is not the one that is set")


def _written(
    context: ServerContext, caller: Caller, session_id: str, blobs: bool, children: bool, redact: bool
) -> IO[bytes]:
    """Whole before the first byte is sent, so that what goes wrong is still told as a problem."""
    session = context.session(caller, session_id)
    file = TemporaryFile()  # noqa: SIM115 – closed by whoever sends it
    try:
        session.export(file, blobs=blobs, children=children, redact=redact)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


@post("/api/import", request_max_body_size=None, tags=["exchange"])
async def import_(
    request: ApiRequest,
    new_id: Annotated[bool, QueryParameter(description="Beside what has its id here")] = False,
) -> Response[ImportResult]:
    """Take a bundle in, all of it or nothing; twice adds nothing. The body is the file."""
    context, _ = context_and_caller(request)
    with TemporaryFile() as file:
        await _received(request.stream(), file, context.access.max_import_bytes)
        found = await asyncio.to_thread(context.store.import_bundle, file, new_id=new_id)
    told = ImportResult(
        session_id=found.session_id,
        added=list(found.added),
        known=list(found.existing),
        entries=found.entries,
        blobs=found.blobs,
        missing_blobs=found.missing_blobs,
        redacted=found.redacted,
    )
    return Response(told, status_code=201 if found.added else 200)


async def _received(body: AsyncIterator[bytes], file: IO[bytes], most: int) -> None:
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > most:
            raise Refusal(413, "too_large", f"the body is larger than {most:,} bytes")
        await asyncio.to_thread(file.write, chunk)
    file.seek(0)


HANDLERS = [bundle, import_]
