"""The application: every handler, one guard, one way to tell an error, behind the gate.

`serve` runs it; `built` is for whoever has an ASGI server of his own. Knows what begins and ends with the
server: runs are cancelled, so that the log says so, and streams end.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

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

from .. import __version__
from .auth import AuthMiddleware, Caller
from .context import ServerContext
from .jobs import Jobs
from .problems import MEDIA_TYPE, Problem, Refusal, handled
from .routes import blobs, events, labels, pages, sessions, usage
from .routes import bundles as exchange
from .routes import moves as moving
from .routes import path as paths
from .routes import replay as replaying
from .routes import request_view as seen
from .routes import run as running
from .routes import search as searching
from .routes import tree as trees
from .runs import ActiveRuns
from .search_indexer import SearchIndexer

ROOMS = (
    sessions,
    paths,
    trees,
    labels,
    seen,
    events,
    running,
    moving,
    replaying,
    usage,
    searching,
    blobs,
    exchange,
    pages,
)
DESCRIPTION = """\
Sessions of LLM agents: read, watch, run, move, compare. Times are microseconds since 1970, UTC; money is microcents
(1e-8 of a dollar); a place is `branch:seq`. No JSON answer is larger than 1 MB: long strings end early and say so in
`cut`. Requests that change something want `X-Bough: 1`. Errors are problem details (RFC 9457)."""
TAGS = {
    "server": "The server itself",
    "sessions": "Sessions: list, count, start, read, name, trash",
    "entries": "Entries of a path, in windows, and one by one",
    "tree": "Branches and outlines",
    "what the model saw": "The exact request behind an answer",
    "events": "Facts by number, and live",
    "running": "Send, resume, cancel, approve",
    "moving": "Fork, rewind, undo, redo, compact",
    "replay": "Replay without effects, and compare",
    "usage": "Tokens, money and bytes",
    "search": "Search everything",
    "blobs": "Media",
    "exchange": "Bundles, out and in",
}


PROBLEMS = {
    400: "The request makes no sense; `detail` says what of it",
    401: "A token is needed",
    403: "Not for whoever asks, or from another site",
    404: "No such session, place, blob or job",
    408: "The body stopped coming",
    409: "It is not so now: moved, running, trashed, past a limit, or there already",
    413: "The body is too large",
    415: "The body has the wrong Content-Type",
    500: "Something broke; `reference` is in the server's log",
    503: "The store could not be reached",
    507: "The store has no room",
}


def _problem(said: str) -> ResponseSpec:
    return ResponseSpec(Problem, description=said, media_type=MEDIA_TYPE, generate_examples=False)


def handlers() -> list[HTTPRouteHandler]:
    """Every handler, described by its function's own name and words."""
    found = [handler for room in ROOMS for handler in room.HANDLERS]
    for handler in found:
        function = handler.fn
        handler.operation_id = function.__name__.strip("_")
        handler.description = function.__doc__
        handler.summary = (function.__doc__ or "").partition(".")[0] or None
        handler.responses = {status: _problem(said) for status, said in PROBLEMS.items()}
        handler.opt["takes"] = _takes(handler)
    return found


def _takes(handler: HTTPRouteHandler) -> frozenset[str]:
    """The names its functions, and those it depends on, take from a request."""
    below = (handler.dependencies or {}).values()
    functions = [handler.fn, *(one.dependency if isinstance(one, Provide) else one for one in below)]
    return frozenset(name for function in functions for name in signature(function).parameters)


def refuse_unknown_parameters(
    connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """A filter that is mistyped is told and not passed over, or all would be taken for what was asked for."""
    takes = handler.opt.get("takes", frozenset())
    odd = next((name for name in connection.query_params if name not in takes), None)
    if odd is not None and connection.url.path.startswith("/api/"):
        raise Refusal(
            400,
            "invalid_argument",
            f"{odd[:80]!r} is not asked for here",
            "/openapi.json tells what it takes",
        )


def refuse_clients(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A client reaches what says so, and nothing else."""
    caller: Caller | None = connection.scope["state"].get("caller")
    if caller is not None and caller.is_client and not handler.opt.get("client"):
        raise Refusal(403, "service_only", "this is not for clients", "ask with a token of the service")


def _state(context: ServerContext) -> State:
    return State(
        {
            "context": context,
            "runs": ActiveRuns(context),
            "jobs": Jobs(),
            "indexing": SearchIndexer(context.store.index),
            "viewer": pages.viewer_files(),
        }
    )


def create_litestar(context: ServerContext) -> Litestar:
    """The application without its gate."""
    tokens = SecurityScheme(type="http", scheme="bearer", description="A token of the service or a client")
    return Litestar(
        handlers(),
        guards=[refuse_clients, refuse_unknown_parameters],
        exception_handlers={Exception: handled, 404: handled},
        request_max_body_size=context.access.max_body_bytes,
        logging_config=None,
        state=_state(context),
        openapi_config=OpenAPIConfig(
            title="Bough",
            version=__version__,
            description=DESCRIPTION,
            path="/api/openapi",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=Components(security_schemes={"token": tokens}),
            security=[{"token": []}, {}],
            tags=[Tag(name=name, description=said) for name, said in TAGS.items()],
        ),
    )


def create_app(context: ServerContext) -> AuthMiddleware:
    """The whole application, for an ASGI server."""
    return AuthMiddleware(create_litestar(context), context.access)


class Server(uvicorn.Server):
    """Ends what is going on before it waits for connections: a stream would never end by itself."""

    def __init__(self, config: uvicorn.Config, app: Litestar, context: ServerContext) -> None:
        super().__init__(config)
        self._app, self._context = app, context

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and a polite kill end it, and are not raised again behind it: it did what they asked."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self._app.state
        await asyncio.gather(state.runs.close(), state.jobs.close(), state.indexing.close())
        self._context.live.is_closing.set()
        await super().shutdown(sockets)


def create_server(context: ServerContext) -> Server:
    """A server that is not running yet; `serve` and tests run it."""
    app = create_litestar(context)
    config = uvicorn.Config(
        AuthMiddleware(app, context.access),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="h11",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
        limit_concurrency=1_000,
    )
    return Server(config, app, context)


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens: port 0 takes any that is free, and a port in use is told before anything starts."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(*found[:3])  # with its protocol, or asyncio leaves Nagle on: 40 ms per answer
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(found[4])
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def serve(context: ServerContext, listener: socket.socket, ready: Callable[[], None] | None = None) -> None:
    """Serve until interrupted. `ready` is told once, when requests are answered."""

    async def run() -> None:
        made = create_server(context)
        task = asyncio.create_task(made.serve([listener]))
        while not made.started and not task.done():
            await asyncio.sleep(0.01)
        if ready is not None and not task.done():
            ready()
        await task

    asyncio.run(run())
