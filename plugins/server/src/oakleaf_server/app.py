"""The ASGI application and the server process around it.

`serve` runs the application until it is interrupted. Then it accepts no more connections, lets active runs finish their
step, and ends event streams.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from types import FrameType
from typing import Any

import h11
import uvicorn
from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme, Tag
from litestar.params import QueryParameter
from litestar.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from oakleaf import __version__
from oakleaf_server import verb_routes
from oakleaf_server.active_runs import ActiveRuns
from oakleaf_server.auth import AuthMiddleware, Caller, token_required
from oakleaf_server.capacity import Capacity, max_connections
from oakleaf_server.context import ServerContext
from oakleaf_server.jobs import Jobs
from oakleaf_server.pages import AddedPage
from oakleaf_server.problems import MEDIA_TYPE, ProblemDetails, Refusal, handle_error
from oakleaf_server.request_log import observe_requests
from oakleaf_server.routes import (
    blobs,
    bundles,
    entries,
    events,
    home,
    operations,
    replay,
    requests,
    runs,
    sessions,
    tree,
    usage,
    viewer_files,
)
from oakleaf_server.uvicorn_server import SignalledServer

ROUTES = (
    sessions,
    home,
    entries,
    tree,
    requests,
    events,
    runs,
    replay,
    usage,
    blobs,
    bundles,
    operations,
    viewer_files,
)
DESCRIPTION = """\
Sessions of LLM agents: read, watch, run, move, compare. Times are microseconds since 1970, UTC; money is microcents
(1e-8 of a dollar); a position is `branch:seq`. No JSON response is larger than 1 MB: long strings are truncated, and
`omitted_chars` counts what is missing. POST, PATCH and DELETE require `X-Oakleaf: 1`. Errors are problem details (RFC 9457)."""
TAGS = {
    "server": "The server itself",
    "sessions": "List, count, start, read",
    "entries": "Entries of a path, in windows or one by one",
    "tree": "Branches, outlines, labels, and calls left behind",
    "requests": "The exact request behind an answer",
    "events": "Facts by number, and live events",
    "running": "Send, resume",
    "replay": "Replay without effects, and compare",
    "usage": "Tokens, money and bytes",
    "search": "Search everything",
    "blobs": "Media",
    "exchange": "Export and import of bundles",
}

EXIT_AT_ONCE = 130
"""The exit code after a second signal."""
STALL_SECONDS = 30.0
"""How long a caller may leave an answer unread."""
MAX_WIDE_READS = 4
"""Requests at a time that read thousands of entries: each takes some ten megabytes."""

PROBLEMS = {
    400: "The request is invalid; `detail` says why",
    401: "A token is required",
    403: "Not allowed for this caller, or sent from another site",
    404: "No such session, position, blob or job",
    408: "The body took too long",
    409: "Conflict: the session moved, is running, is trashed, is past a limit, or exists already",
    413: "The body is too large",
    415: "The body has the wrong Content-Type",
    429: "The caller has too many requests or event streams under way",
    500: "Internal error; look for `reference` in the server's log",
    503: "The store could not be reached, or the server is stopping",
    507: "The store is full",
}


def _problem_spec(description: str) -> ResponseSpec:
    return ResponseSpec(
        ProblemDetails, description=description, media_type=MEDIA_TYPE, generate_examples=False
    )


OWN_HANDLERS: list[HTTPRouteHandler] = [handler for module in ROUTES for handler in module.HANDLERS]


def own_names() -> frozenset[str]:
    """Return the first parts of the server's own addresses, barred for added pages."""
    paths = (path.removeprefix("/api").lstrip("/") for handler in OWN_HANDLERS for path in handler.paths)
    return frozenset({"api", *(path.partition("/")[0] for path in paths)})


FOR_CLIENTS: dict[str, verb_routes.ClientAnswer] = {"ls": sessions.list_for_client}
"""The verbs that clients call, too, and what answers them."""


def route_handlers(pages: Iterable[AddedPage]) -> list[HTTPRouteHandler]:
    """Return every route handler, documented by the function's name and docstring."""
    added = (handler for page in pages for handler in page.handlers)
    handlers = [*OWN_HANDLERS, *verb_routes.handlers(FOR_CLIENTS), *added]
    for handler in handlers:
        function = handler.fn
        handler.operation_id = function.__name__.strip("_")
        handler.description = function.__doc__
        handler.summary = (function.__doc__ or "").partition(".")[0] or None
        handler.responses = {status: _problem_spec(text) for status, text in PROBLEMS.items()}
        handler.opt["parameters"] = _parameters(handler)
    return handlers


def _parameters(handler: HTTPRouteHandler) -> frozenset[str]:
    """Return the parameter names of a handler and of the handler's dependencies."""
    dependencies = (handler.dependencies or {}).values()
    functions = [handler.fn, *(d.dependency if isinstance(d, Provide) else d for d in dependencies)]
    parameters = (
        one for function in functions for one in signature(function, eval_str=True).parameters.values()
    )
    return frozenset(_query_name(one) for one in parameters)


def _query_name(parameter: Parameter) -> str:
    """Return a parameter's name in requests: `query` is a name of Litestar's own."""
    notes = getattr(parameter.annotation, "__metadata__", ())
    return next(
        (note.name for note in notes if isinstance(note, QueryParameter) and note.name), parameter.name
    )


def refuse_unknown_parameters(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Refuse unknown query parameters: a mistyped filter, if ignored, would match everything."""
    parameters = handler.opt.get("parameters", frozenset())
    if "verb" in handler.opt:
        return  # in the words of verbs
    unknown = next((name for name in connection.query_params if name not in parameters), None)
    if unknown is not None and connection.url.path.startswith("/api/"):
        raise Refusal(
            400,
            "invalid_argument",
            f"unknown query parameter {unknown[:80]!r}",
            "see /openapi.json",
        )


def require_caller(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse requests without a known caller, and clients except on handlers marked `client`.

    The middleware finds the caller by the path; this check holds for every route, whatever path led to it.
    """
    if handler.opt.get("open"):
        return
    caller: Caller | None = connection.scope["state"].get("caller")
    if caller is None and not handler.opt.get("internal"):  # those check the internal token
        raise token_required()
    if caller is not None and caller.is_client and not handler.opt.get("client"):
        raise Refusal(403, "service_only", "clients may not use this endpoint", "use the service token")


def _state(context: ServerContext, viewer: viewer_files.ViewerFiles) -> State:
    return State(
        {
            "context": context,
            "runs": ActiveRuns(context),
            "jobs": Jobs(),
            "viewer": viewer,
            "openapi": None,
            "wide_reads": asyncio.Semaphore(MAX_WIDE_READS),
        }
    )


def create_litestar(context: ServerContext) -> Litestar:
    """Build the application without authentication."""
    viewer = viewer_files.ViewerFiles.read(own_names())
    tags = {**TAGS, **{page.name: page.title for page in viewer.pages}}
    tokens = SecurityScheme(type="http", scheme="bearer", description="A service or client token")
    return Litestar(
        route_handlers(viewer.pages),
        guards=[require_caller, refuse_unknown_parameters],
        exception_handlers={Exception: handle_error, 404: handle_error},
        request_max_body_size=context.access.max_body_bytes,
        logging_config=None,
        state=_state(context, viewer),
        openapi_config=OpenAPIConfig(
            title="Oakleaf",
            version=__version__,
            description=DESCRIPTION,
            path="/api/openapi",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=Components(security_schemes={"token": tokens}),
            security=[{"token": []}, {}],
            tags=[Tag(name=name, description=text) for name, text in tags.items()],
        ),
    )


def _with_middleware(app: Litestar, context: ServerContext) -> ASGIApp:
    return observe_requests(AuthMiddleware(app, context.access, Capacity(max_connections())), context.metrics)


class Connection(H11Protocol):
    """An HTTP connection, closed unless a complete request head comes and answers are read in time.

    Half-sent heads and idle connections never keep others out: when there are too many connections, the oldest one
    without a request is closed.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _opened_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        self._watch_head()
        if len(self.connections) > max_connections():
            idle = [c for c in self.connections if isinstance(c, Connection) and c._is_idle]
            if idle:
                min(idle, key=lambda connection: connection._opened_at).transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        self._stop_stall_timer()

    def pause_writing(self) -> None:
        """Give the caller time to read sent data; an idle caller would keep the place for ever."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stall_timer()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE

    def _watch_head(self) -> None:
        """Run the timer as long as the head of the next request is incomplete; more bytes do not restart the
        timer.
        """
        if not self._is_idle:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.timeout_keep_alive, self._close_idle)

    def _close_idle(self) -> None:
        if self._is_idle:
            self.transport.close()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Server(SignalledServer):
    """Ends runs and streams before waiting for connections to close: an event stream never closes alone."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: Litestar,
        context: ServerContext,
        ready: Callable[[], None] | None = None,
        report: Callable[[str], None] = lambda _: None,
        grace: float = 0.0,
    ) -> None:
        """Make the server; a stop waits at most `grace` seconds for runs to finish the step, and tells the
        wait by `report`.
        """
        super().__init__(config, ready)
        self._app, self._context, self.report, self._grace = app, context, report, grace
        self.unfinished_runs = 0
        """How many runs were still in a step when the grace period ended."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at the second signal exit at once, as after kill -9: durable entries suffice to resume."""
        if self.should_exit:
            os._exit(EXIT_AT_ONCE)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        runs: ActiveRuns = self._app.state.runs
        if runs:
            one_or_more = "1 turn finishes its" if len(runs) == 1 else f"{len(runs)} turns finish their"
            self.report(f"stopping: {one_or_more} step first; press Ctrl-C again to exit at once")
        self.unfinished_runs = await runs.close(self._grace)
        await asyncio.gather(self._app.state.jobs.close(), asyncio.to_thread(self._context.indexer.close))
        self._context.live.close()
        await super().shutdown(sockets)


def create_server(
    context: ServerContext,
    ready: Callable[[], None] | None = None,
    report: Callable[[str], None] = lambda _: None,
    grace: float = 0.0,
) -> Server:
    """Create a server without starting. `ready` is called once, when it accepts requests."""
    app = create_litestar(context)
    config = uvicorn.Config(
        _with_middleware(app, context),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=Connection,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
    )
    return Server(config, app, context, ready, report, grace)


def serve(server: Server, listener: socket.socket) -> None:
    """Serve until interrupted; the process ends here if a tool still runs then."""

    async def run() -> None:
        await server.serve([listener])
        if server.unfinished_runs:
            one_or_more = (
                "1 turn was" if server.unfinished_runs == 1 else f"{server.unfinished_runs} turns were"
            )
            server.report(f"stopped: {one_or_more} interrupted within a step; oakleaf resume continues")
            os._exit(0)  # Python would wait for the threads of tools, perhaps for hours

    asyncio.run(run())
