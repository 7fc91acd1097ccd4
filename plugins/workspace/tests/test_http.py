"""One request to the web: what is refused, by a resolver of our own; what works, against loopback servers."""

from __future__ import annotations

import shlex
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf_workspace.http import HttpTools
from support.certificates import MAKE_CERTIFICATE

Requests = list[tuple[str, str, dict[str, str], bytes]]


def keep(data: bytes, mime: str) -> str:
    return f"blob of {len(data)} {mime}"


def no_network(host: str, port: int) -> list[str]:
    raise AssertionError(f"{host} must not be resolved")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.requests: Requests = []
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what some of these tests are about."""

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, body))
        self.server.routes.get(self.path, lambda handler: reply(handler, 404))(self)

    do_GET = do_POST = do_HEAD = do_PUT = answer  # noqa: N815 - http.server's names

    def log_message(self, *args: object) -> None:
        pass


def reply(handler: BaseHTTPRequestHandler, status: int = 200, body: bytes = b"", **fields: str) -> None:
    handler.send_response(status)
    for name, value in {"content_length": str(len(body)), **fields}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def serving(body: bytes = b"", status: int = 200, **fields: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: reply(handler, status, body, **fields)


@pytest.fixture
def server() -> Iterator[Server]:
    yield from start_server()


@pytest.fixture
def other() -> Iterator[Server]:
    yield from start_server()


def start_server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def web(*servers: Server, timeout: float = 10.0, largest: int = 100_000) -> HttpTools:
    return HttpTools(keep, frozenset(server.at for server in servers), no_network, timeout, largest)


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["93.184.216.34", "10.0.0.1"], []])
def test_a_name_that_leads_inwards_is_refused(addresses: list[str]) -> None:
    with pytest.raises(OutOfScope):
        HttpTools(keep, resolver=lambda host, port: addresses).fetch("GET", "http://x.example/")


class TestRebinding:
    def test_a_name_is_resolved_once_and_what_was_checked_is_reached(self, server: Server) -> None:
        server.routes["/"] = serving(b"hello")
        lookups: list[str] = []

        def turncoat(host: str, port: int) -> list[str]:
            lookups.append(host)
            return ["127.0.0.1"] if len(lookups) == 1 else ["10.0.0.1"]

        port = server.server_address[1]
        answer = HttpTools(keep, frozenset({"name.example"}), turncoat).fetch(
            "GET", f"http://NAME.example.:{port}/"
        )
        assert answer.body == b"hello"
        assert lookups == ["name.example"]
        assert server.requests[0][2]["host"] == f"name.example:{port}"

    def test_the_next_address_is_tried_when_one_does_not_answer(self, server: Server) -> None:
        server.routes["/"] = serving(b"hello")
        client = HttpTools(keep, frozenset({"x.example"}), lambda host, port: ["127.0.0.2", "127.0.0.1"])
        assert client.fetch("GET", f"http://x.example:{server.server_address[1]}/").body == b"hello"


class TestRedirect:
    @pytest.mark.parametrize(
        "where",
        [
            "http://127.0.0.1:1/",
            "http://169.254.169.254/",
            "//10.0.0.1/",
            "http://[::1]/",
            "file:///etc/passwd",
            "http://inward.example/",
            "http://user:pass@93.184.216.34/",
            "http://2130706433/",
        ],
    )
    def test_is_checked_like_the_first(self, server: Server, where: str) -> None:
        server.routes["/"] = serving(status=302, location=where)
        client = HttpTools(keep, frozenset({server.at}), lambda host, port: ["192.168.0.1"])
        with pytest.raises(OutOfScope):
            client.fetch("GET", f"http://{server.at}/")

    def test_another_port_of_an_allowed_host_is_not_allowed(self, server: Server, other: Server) -> None:
        server.routes["/"] = serving(status=302, location=f"http://{other.at}/")
        with pytest.raises(OutOfScope):
            web(server).fetch("GET", f"http://{server.at}/")
        assert other.requests == []

    def test_five_are_followed_and_a_sixth_is_not(self, server: Server) -> None:
        for n in range(6):
            server.routes[f"/{n}"] = serving(status=302, location=f"/{n + 1}")
        server.routes["/6"] = serving(b"there")
        assert web(server).fetch("GET", f"http://{server.at}/1").body == b"there"
        with pytest.raises(OutOfScope, match="more than 5"):
            web(server).fetch("GET", f"http://{server.at}/0")

    def test_credentials_stay_with_their_host(self, server: Server, other: Server) -> None:
        server.routes["/"] = serving(status=307, location="/again")
        server.routes["/again"] = serving(status=307, location=f"http://{other.at}/")
        other.routes["/"] = serving(status=307, location=f"http://{server.at}/back")
        mine = {
            "Authorization": "Bearer hunter2",
            "Cookie": "hunter2",
            "X-Api-Key": "hunter2",
            "Accept": "a/b",
        }
        web(server, other).fetch("GET", f"http://{server.at}/", mine)
        assert server.requests[1][2]["authorization"] == "Bearer hunter2"
        assert "hunter2" not in str(other.requests)
        assert other.requests[0][2]["accept"] == "a/b"
        assert server.requests[2][1] == "/back"
        assert "hunter2" not in str(server.requests[2])

    def test_a_body_is_not_taken_to_another_host(self, server: Server, other: Server) -> None:
        server.routes["/"] = serving(status=307, location=f"http://{other.at}/")
        with pytest.raises(OutOfScope, match="body"):
            web(server, other).fetch("POST", f"http://{server.at}/", body=b"hunter2")
        assert other.requests == []

    @pytest.mark.parametrize(
        ("status", "method", "body"), [(303, "GET", b""), (302, "GET", b""), (307, "POST", b"x")]
    )
    def test_keeps_or_drops_method_and_body(
        self, server: Server, status: int, method: str, body: bytes
    ) -> None:
        server.routes["/"] = serving(status=status, location="/next")
        web(server).fetch("POST", f"http://{server.at}/", body=b"x")
        assert (server.requests[1][0], server.requests[1][3]) == (method, body)

    def test_without_a_place_is_an_answer(self, server: Server) -> None:
        server.routes["/"] = serving(b"?", status=302)
        assert web(server).fetch("GET", f"http://{server.at}/").status == 302


class TestRequest:
    @pytest.mark.parametrize("method", ["get", "CONNECT", "TRACE", "GET / HTTP/1.1\r\nX: y", ""])
    def test_other_methods_are_refused(self, method: str) -> None:
        with pytest.raises(InvalidArgument):
            HttpTools(keep, resolver=no_network).http_request(method, "http://x.example/")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("Host", "evil"),
            ("hOST", "evil"),
            ("Content-Length", "0"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "upgrade"),
            ("Upgrade", "h2c"),
            ("Proxy-Authorization", "x"),
            ("X", "a\r\nHost: evil"),
            ("X", "a\nb"),
            ("X", "a\0"),
            ("X\r\nY", "a"),
            ("X:", "a"),
            ("", "a"),
            ("X", "é"),
        ],
    )
    def test_headers_that_steer_the_connection_are_refused(self, name: str, value: str) -> None:
        with pytest.raises(InvalidArgument):
            HttpTools(keep, resolver=no_network).http_request("GET", "http://x.example/", {name: value})

    def test_sends_method_path_headers_and_body(self, server: Server) -> None:
        server.routes["/a?b=c"] = serving(b"ok")
        web(server).http_request("PUT", f"http://{server.at}/a?b=c#part", {"X-A": "b"}, "ä")
        method, path, headers, body = server.requests[0]
        assert (method, path, headers["x-a"], body) == ("PUT", "/a?b=c", "b", "ä".encode())

    def test_no_proxy_of_the_environment_is_used(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        server.routes["/"] = serving(b"direct")
        assert web(server).fetch("GET", f"http://{server.at}/").body == b"direct"


class TestAnswer:
    def test_is_told_with_its_headers_but_no_cookie(self, server: Server) -> None:
        server.routes["/"] = serving(
            "grün".encode("latin-1"), content_type="text/plain; charset=iso-8859-1", set_cookie="hunter2"
        )
        output = web(server).http_request("GET", f"http://{server.at}/")
        assert output.startswith(f"200 OK http://{server.at}/\n")
        assert output.endswith("\n\ngrün")
        assert "hunter2" not in output

    def test_a_charset_that_makes_half_characters_is_not_used(self, server: Server) -> None:
        server.routes["/"] = serving(rb"\ud800", content_type="text/plain; charset=unicode_escape")
        web(server).http_request("GET", f"http://{server.at}/").encode()

    def test_bytes_that_are_no_text_are_kept_aside(self, server: Server) -> None:
        server.routes["/"] = serving(b"\x89PNG\0", content_type="image/png")
        assert "stored as blob of 5 image/png" in web(server).http_request("GET", f"http://{server.at}/")

    def test_more_than_the_cap_is_cut_and_said(self, server: Server) -> None:
        server.routes["/"] = serving(b"x" * 200_000)
        assert len(web(server).fetch("GET", f"http://{server.at}/").body) == 100_000
        output = web(server).http_request("GET", f"http://{server.at}/")
        assert "only the first 100,000 bytes" in output
        assert "read_spill('blob of" in output
        assert len(output) < 17_000

    def test_head_has_no_body(self, server: Server) -> None:
        server.routes["/"] = serving(b"12345")
        assert web(server).fetch("HEAD", f"http://{server.at}/").body == b""

    def test_one_that_breaks_off_is_an_error(self, server: Server) -> None:
        server.routes["/"] = serving(b"half", content_length="8")
        with pytest.raises(ConnectionError, match="4 bytes missing"):
            web(server).fetch("GET", f"http://{server.at}/")

    def test_one_that_is_not_http_is_an_error(self, server: Server) -> None:
        server.routes["/"] = lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH\r\n") and None
        with pytest.raises(ConnectionError, match="not HTTP"):
            web(server).fetch("GET", f"http://{server.at}/")


class TestTime:
    @pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
    def test_a_server_that_trickles_is_cut_off(self, server: Server, start: bytes) -> None:
        done = threading.Event()

        def trickle(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(start)
            try:
                while not done.wait(0.02):
                    handler.wfile.write(b"x")
            except OSError:
                return

        server.routes["/"] = trickle
        began = time.monotonic()
        try:
            with pytest.raises(TimeoutError, match=r"longer than 0\.3 s"):
                web(server, timeout=0.3).fetch("GET", f"http://{server.at}/")
        finally:
            done.set()
        assert time.monotonic() - began < 3

    def test_redirects_share_one_limit(self, server: Server) -> None:
        done = threading.Event()

        def slow(handler: BaseHTTPRequestHandler) -> None:
            done.wait(0.2)
            reply(handler, 302, location="/")

        server.routes["/"] = slow
        with pytest.raises(TimeoutError):
            web(server, timeout=0.5).fetch("GET", f"http://{server.at}/")
        done.set()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
class TestTls:
    @pytest.fixture
    def secure(self, server: Server, tmp_path: Path) -> tuple[Server, Path]:
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        subprocess.run(
            shlex.split(MAKE_CERTIFICATE),
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.routes["/"] = serving(b"secret")
        return server, cert

    def client(self, host: str, tls: ssl.SSLContext | None) -> HttpTools:
        return HttpTools(keep, frozenset({host}), lambda host, port: ["127.0.0.1"], 10.0, tls=tls)

    def test_the_certificate_must_be_for_the_name_not_the_address(self, secure: tuple[Server, Path]) -> None:
        server, cert = secure
        tls, port = ssl.create_default_context(cafile=cert), server.server_address[1]
        assert self.client("x.example", tls).fetch("GET", f"https://x.example:{port}/").body == b"secret"
        with pytest.raises(ssl.SSLCertVerificationError):
            self.client("y.example", tls).fetch("GET", f"https://y.example:{port}/")

    def test_a_certificate_nobody_vouches_for_is_refused(self, secure: tuple[Server, Path]) -> None:
        server, _ = secure
        with pytest.raises(ssl.SSLCertVerificationError):
            self.client("x.example", None).fetch("GET", f"https://x.example:{server.server_address[1]}/")
