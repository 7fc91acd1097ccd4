"""`oakleaf mcp`: an MCP server on standard input and output or over HTTP.

Knows MCP, tokens and hosts; does not know verbs. Over HTTP a request needs the token, if there is one, and a Host that
is this server's: else a web page could read the sessions through its visitor's browser.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import sys
from collections.abc import Callable

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from oakleaf import Store
from oakleaf.errors import TokenRequired
from oakleaf_mcp.listener import SignalledServer, is_loopback, open_listener
from oakleaf_mcp.verb_tools import build_server

PATH = "/mcp"
ANY_ADDRESS = ("0.0.0.0", "::")


def serve_stdio(store: Store) -> None:
    """Serve until standard input ends, the client closes standard output, or until Ctrl-C or SIGTERM."""
    try:
        asyncio.run(_serve_stdio(store))
    except BaseExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is not None:
            raise
        # The client is gone. What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _serve_stdio(store: Store) -> None:
    def stop() -> None:
        # The thread that waits for input cannot be interrupted, and the interpreter would wait for it.
        store.close()
        sys.stdout.flush()
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    server = build_server(store)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


class HttpServer:
    """The server over streamable HTTP."""

    def __init__(self, store: Store, host: str, port: int, token: str | None) -> None:
        if token is not None and not token.strip():
            raise TokenRequired(host, "the token is empty", "give it a value or leave it out")
        if token is None and not is_loopback(host):
            raise TokenRequired(host)
        self._token = token
        self._socket = open_listener(host, port)
        self._host, self.port = host, self._socket.getsockname()[1]
        self._app = build_server(store).streamable_http_app(
            streamable_http_path=PATH, stateless_http=True, transport_security=self._security(), host=host
        )

    @property
    def address(self) -> str:
        name = "127.0.0.1" if self._host in ANY_ADDRESS else self._name
        return f"http://{name}:{self.port}{PATH}"

    @property
    def _name(self) -> str:
        """The host as URLs write it."""
        return f"[{self._host}]" if ":" in self._host else self._host

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until Ctrl-C or SIGTERM. `ready` is called once, when requests are accepted."""
        app = self._app if self._token is None else _require_token(self._app, self._token)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, timeout_graceful_shutdown=2, ws="none"
        )
        self._server = SignalledServer(config, ready)
        asyncio.run(self._server.serve([self._socket]))

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True

    def _security(self) -> TransportSecuritySettings:
        """Return the accepted Host and Origin: the local names, and the requested name. Where every
        address is served, the token is what protects."""
        if self._host in ANY_ADDRESS:
            return TransportSecuritySettings(enable_dns_rebinding_protection=False)
        names = {"127.0.0.1", "localhost", "[::1]", self._name}
        hosts = sorted(f"{name}:{self.port}" for name in names)
        return TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
        )


def _require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return the application behind `Authorization: Bearer TOKEN`, compared in constant time."""
    secret = b"Bearer " + token.encode()

    async def check_token(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(sent, secret):
                headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send(
                    {"type": "http.response.body", "body": b"send the token: Authorization: Bearer TOKEN"}
                )
                return
        await app(scope, receive, send)

    return check_token
