"""MCP servers over HTTP: public addresses only, and a bounded answer whatever the server sends."""

from __future__ import annotations

import asyncio
import gzip
import json
import shlex
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

import oakleaf
import oakleaf_mcp
from oakleaf import ScriptedModel, ToolCall, assistant
from oakleaf_mcp.client.egress import CheckedTransport, http_client
from oakleaf_mcp.errors import McpServerUnavailable
from support import mcp_stdio_server
from support.certificates import MAKE_CERTIFICATE


class Handler(BaseHTTPRequestHandler):
    """Answers each message with one JSON body, as a stateless server may."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_error(405)

    def do_POST(self) -> None:
        self.server.requests.append(dict(self.headers))  # type: ignore[attr-defined]
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in request:
            self._reply(b"", status=202)
            return
        result = self._result(request["method"], request.get("params") or {})
        self._reply(json.dumps({"jsonrpc": "2.0", "id": request["id"], **result}).encode())

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            info = {"name": "test", "version": "1"}
            return {
                "result": {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": info,
                }
            }
        if method == "tools/list":
            names = ("echo", "flood", "gzip", "moved", "hang")
            return {
                "result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
            }
        if method != "tools/call":
            return {"error": {"code": -32601, "message": "no such method"}}
        if params["name"] == "hang":
            time.sleep(30)
        if params["name"] == "flood":
            self._flood()
        if params["name"] == "gzip":
            self._reply(gzip.compress(b"0" * 10_000_000), {"Content-Encoding": "gzip"})
        if params["name"] == "moved":
            self._reply(b"", {"Location": "http://127.0.0.1:9/"}, status=307)
        return {"result": mcp_stdio_server.call("echo", params["arguments"])}

    def _reply(self, data: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _flood(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" " * 65_536)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def web() -> Iterator[ThreadingHTTPServer]:
    with serving() as server:
        yield server


def url(web: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{web.server_address[1]}/mcp"


def call(name: str, server: oakleaf_mcp.McpServer, **arguments: Any) -> oakleaf.ToolResult:
    model = ScriptedModel([assistant(ToolCall("c1", name, arguments)), assistant("done")])
    with oakleaf.open("memory:") as store:
        session = store.start()
        session.send_sync("go", model=model, tools=[server])
        return next(
            entry.message.results[0] for entry in session.path() if entry.message and entry.message.results
        )


def test_a_tool_is_called_with_the_headers_that_were_passed(web: ThreadingHTTPServer) -> None:
    result = call("echo", oakleaf_mcp.server(url(web), headers={"Authorization": "Bearer abc"}), text="hello")
    assert result.content == (oakleaf.Text("hello"),)
    assert {headers["Authorization"] for headers in web.requests} == {"Bearer abc"}  # type: ignore[attr-defined]


def test_a_call_that_hangs_is_an_error_in_time(web: ThreadingHTTPServer) -> None:
    begin = time.monotonic()
    result = call("hang", oakleaf_mcp.server(url(web), timeout=0.2))
    assert (result.error, result.outcome) == (True, "unknown")
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("name", ["flood", "gzip", "moved"])
def test_an_answer_without_end_a_compressed_one_and_a_redirect_elsewhere_are_errors(
    web: ThreadingHTTPServer, name: str
) -> None:
    result = call(name, oakleaf_mcp.server(url(web), max_bytes=100_000, timeout=20))
    assert result.error
    assert "took longer" not in str(result.content)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://10.0.0.1/mcp", "10.0.0.1 is at 10.0.0.1, which is private"),
        ("http://169.254.169.254/mcp", "which is private"),
        ("http://[::ffff:127.0.0.1]/mcp", "an IPv4 address written as IPv6"),
        ("http://2130706433/mcp", "an IP address in an unusual form"),
        ("http://user:pass@example.com/mcp", "it contains a user or password"),
    ],
)
def test_an_address_that_is_not_public_is_refused_before_anything_is_written(
    address: str, reason: str
) -> None:
    with oakleaf.open("memory:") as store:
        session = store.start()
        with pytest.raises(McpServerUnavailable, match=reason):
            session.send_sync("go", model=ScriptedModel(["x"]), tools=[oakleaf_mcp.server(address)])
        assert session.path() == []


def test_a_server_that_does_not_listen_is_named() -> None:
    with (
        oakleaf.open("memory:") as store,
        pytest.raises(McpServerUnavailable, match=r"http://127\.0\.0\.1:9/mcp"),
    ):
        store.start().send_sync(
            "go", model=ScriptedModel(["x"]), tools=[oakleaf_mcp.server("http://127.0.0.1:9/mcp")]
        )


class TestEgress:
    """Each request is checked, not only the first: a name may resolve to another address a moment later."""

    async def get(self, address: str, resolved: list[str], **how: Any) -> httpx2.Response:
        server = oakleaf_mcp.server(address, **how)
        async with http_client(server, lambda host, port: resolved) as client:
            return await client.get(address)

    async def _refused(self, address: str, resolved: list[str]) -> str:
        with pytest.raises(httpx2.ConnectError) as excinfo:
            await self.get(address, resolved)
        return str(excinfo.value)

    def test_a_public_name_at_a_private_address_is_refused(self) -> None:
        text = asyncio.run(self._refused("http://mcp.example.com/mcp", ["93.184.216.34", "127.0.0.1"]))
        assert "mcp.example.com is at 127.0.0.1" in text

    def test_a_named_host_may_be_private_and_keeps_its_name(self, web: ThreadingHTTPServer) -> None:
        port = web.server_address[1]
        address = f"http://tools.internal:{port}/mcp"
        reply = asyncio.run(self.get(address, ["127.0.0.1"], hosts=[f"tools.internal:{port}"]))
        assert reply.status_code == 405

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
    def test_the_certificate_must_be_for_the_name_not_the_address(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subprocess.run(shlex.split(MAKE_CERTIFICATE), cwd=tmp_path, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        with serving() as server:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
            port = server.server_address[1]
            how = {"hosts": ["x.example", "y.example"]}
            reply = asyncio.run(self.get(f"https://x.example:{port}/mcp", ["127.0.0.1"], **how))
            assert reply.status_code == 405
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                asyncio.run(self.get(f"https://y.example:{port}/mcp", ["127.0.0.1"], **how))

    def test_the_environment_adds_no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        client = http_client(oakleaf_mcp.server("https://example.com/mcp"))
        assert isinstance(client._transport, CheckedTransport)
        assert client._mounts == {}
