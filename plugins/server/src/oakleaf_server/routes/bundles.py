"""Routes to export and import bundles, and to download a session for sharing. Export requires the internal token and no other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from tempfile import TemporaryFile
from typing import Annotated, BinaryIO, Literal

from litestar import Response, get, post
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import Stream

from oakleaf_server.context import ApiRequest, ServerContext, context_and_caller, find_session
from oakleaf_server.jobs import Jobs, Progress
from oakleaf_server.json_views import to_json
from oakleaf_server.problems import Refusal
from oakleaf_server.schemas import ImportResponse, JobResult, Json

CHUNK = 256 * 1024


@get(
    "/sessions/{session_id:str}/export",
    opt={"internal": True},
    tags=["exchange"],
    media_type="application/octet-stream",
)
async def bundle(
    request: ApiRequest,
    session_id: FromPath[str],
    blobs: Annotated[bool, QueryParameter(description="Include media")] = False,
    children: Annotated[bool, QueryParameter(description="Include tasks")] = True,
    redact: Annotated[bool, QueryParameter(description="Redact secrets, under a new session id")] = False,
    hide: Annotated[list[str] | None, QueryParameter(description="Redact these words, too")] = None,
    internal_token: Annotated[str | None, HeaderParameter(name="X-Internal-Token")] = None,
) -> Stream:
    """Export a session as a bundle; the same session gives the same bytes. Needs no token but the internal one."""
    context: ServerContext = request.app.state.context
    _require_internal_token(context, internal_token)

    def write(file: BinaryIO) -> None:
        session = context.store.session(session_id)
        session.export(file, blobs=blobs, children=children, redact=redact, hide=hide or [])

    return await download(write, f"{file_name(session_id)}.oakleaf")


@get("/api/sessions/{session_id:str}/share", tags=["exchange"], media_type="application/octet-stream")
async def share(
    request: ApiRequest,
    session_id: FromPath[str],
    format: Annotated[
        Literal["html", "markdown", "bundle"],
        QueryParameter(description="A page that opens from disk, a text, or a file for oakleaf import"),
    ] = "html",
    redact: Annotated[bool, QueryParameter(description="Mask secrets")] = True,
) -> Stream:
    """Download a session for someone else: as a web page, as Markdown, or as a bundle. Secrets are masked."""

    def write(file: BinaryIO) -> None:
        find_session(request, session_id).export(file, format, redact=redact)

    ending = {"html": "html", "markdown": "md", "bundle": "oakleaf"}[format]
    # Never shown in this origin: its content is a session's, and the page has a script.
    return await download(write, f"{file_name(session_id)}.{ending}")


def file_name(session_id: str) -> str:
    return re.sub(r"[^0-9A-Za-z_-]", "_", session_id)[:80]


def _require_internal_token(context: ServerContext, token: str | None) -> None:
    if context.access.internal_token is None:
        raise Refusal(
            403,
            "export_disabled",
            "export is disabled on this server",
            "start oakleaf serve with --internal-token, or $OAKLEAF_INTERNAL_TOKEN",
        )
    if not context.access.is_internal_token(token):
        raise Refusal(403, "bad_internal_token", "X-Internal-Token is wrong")


async def download(
    write: Callable[[BinaryIO], None], name: str, media_type: str = "application/octet-stream"
) -> Stream:
    """Send what `write` writes into a file. It is complete before the first byte is sent, so that errors can still be
    reported."""
    file = await asyncio.to_thread(_write_file, write)
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Stream(_file_chunks(file), media_type=media_type, headers=headers)


def _write_file(write: Callable[[BinaryIO], None]) -> BinaryIO:
    file = TemporaryFile()  # noqa: SIM115 – closed by the sender
    try:
        write(file)
        file.seek(0)
    except BaseException:  # also a cancelled request: nobody else closes the file
        file.close()
        raise
    return file


def _file_chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


@post("/api/import", request_max_body_size=None, tags=["exchange"])
async def import_(
    request: ApiRequest,
    new_id: Annotated[bool, QueryParameter(description="Import under a new id")] = False,
) -> Response[ImportResponse]:
    """Import a bundle, all or nothing; importing it twice adds nothing. The body is the file."""
    context, _ = context_and_caller(request)
    with TemporaryFile() as file:
        await _receive(request.stream(), file, context.access.max_import_bytes)
        report = await asyncio.to_thread(context.store.import_bundle, file, new_id=new_id)
    result = ImportResponse(
        session_id=report.session_id,
        added=list(report.added),
        known=list(report.existing),
        entries=report.entries,
        blobs=report.blobs,
        missing_blobs=report.missing_blobs,
        redacted=report.redacted,
        foreign_addresses=list(report.foreign_addresses),
    )
    return Response(result, status_code=201 if report.added else 200)


@post("/api/import/{tool:str}", status_code=202, tags=["exchange"])
async def import_tool(request: ApiRequest, tool: FromPath[str]) -> JobResult:
    """Import another tool's sessions from where it keeps them on this computer, as `oakleaf import --from` does.

    Only on a server without a token, which nobody but this computer reaches.
    """
    context, _ = context_and_caller(request)
    if context.access.token is not None:
        raise Refusal(
            403,
            "import_disabled",
            "this server is for others too",
            f"run oakleaf import --from {tool[:40]} there",
        )
    results = context.store.import_from(tool)

    async def work(progress: Progress) -> Json:
        report = {"sessions": 0, "entries": 0, "failed": 0}
        while (result := await asyncio.to_thread(next, results, None)) is not None:
            report["sessions"] += result.error is None
            report["entries"] += result.entries
            report["failed"] += result.error is not None
            progress(report["sessions"] + report["failed"], 0)
        return dict(report)

    jobs: Jobs = request.app.state.jobs
    return JobResult(job=to_json(jobs.start("import", "", work)))


async def _receive(body: AsyncIterator[bytes], file: BinaryIO, limit: int) -> None:
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > limit:
            raise Refusal(413, "too_large", f"the body is larger than {limit:,} bytes")
        await asyncio.to_thread(file.write, chunk)
    file.seek(0)


HANDLERS = [bundle, share, import_, import_tool]
