"""The server's door: who may come in, from where, with how much, and what it tells when something is wrong."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

import oakleaf
from oakleaf import user
from oakleaf.errors import TokenRequired
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_server.app import create_litestar
from oakleaf_server.auth import LOGIN_SECONDS, AccessSettings, Caller
from oakleaf_server.capacity import LOGIN
from oakleaf_server.context import ServerContext
from oakleaf_server.host_header import host_name
from support.runtime import deterministic_runtime
from support.secret_session import ANN, SERVICE, TOKENS
from support.server import CHANGE_HEADERS, LocalServer, bearer


@pytest.fixture
def plain() -> Store:
    """A store for what no store has a part in."""
    return Store(MemoryStore(), deterministic_runtime())


@pytest.fixture
def server(plain: Store) -> Iterator[LocalServer]:
    with LocalServer(plain) as running:
        yield running


class TestTheDoor:
    def test_loopback_without_a_token_is_the_service(self, server: LocalServer) -> None:
        about = server.get("/api")
        assert (about["level"], about["owner"], about["schema_version"]) == ("service", None, 1)

    def test_a_host_others_can_reach_wants_a_token(self) -> None:
        for host in ("0.0.0.0", "::", "192.0.2.1", "agents.example"):
            with pytest.raises(TokenRequired, match="--token"):
                AccessSettings(host=host)
            AccessSettings(host=host, token="x")
        with pytest.raises(TokenRequired):
            AccessSettings(client_tokens={"ann": "x"})

    @pytest.mark.parametrize("empty", ["", " "])
    @pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
    def test_an_empty_token_is_none_and_the_server_does_not_start(self, host: str, empty: str) -> None:
        """A variable that is not set must not open the door: `--token "$UNSET"`."""
        settings = (
            {"token": empty},
            {"token": "x", "internal_token": empty},
            {"token": "x", "client_tokens": {"ann": empty}},
        )
        for tokens in settings:
            with pytest.raises(TokenRequired, match="empty"):
                AccessSettings(host=host, **tokens)

    @pytest.mark.attack
    @pytest.mark.parametrize(
        "host",
        [
            *(
                "evil.example",
                "evil.example:80",
                "127.0.0.1.evil.example",
                "",
                "localhost.evil",
                "localhost.",
            ),
            *(
                "[::1].evil",
                "[::1]evil:80",
                "[::1%25lo]",
                "[::1%lo]:80",
                "[localhost]",
                "[127.0.0.1.evil]",
                "::1",
            ),
            *(
                "evil@localhost",
                "localhost@evil",
                "localhost/evil",
                "localhost:80:80",
                "localhost:99999",
                "null",
            ),
            *(
                "localhost:",
                "localhost:x",
                "127.1",
                "2130706433",
                "0x7f.0.0.1",
                "localhost evil",
                "localhost,evil",
            ),
        ],
    )
    def test_a_foreign_host_name_is_refused(self, server: LocalServer, host: str) -> None:
        reply = server.client.get("/api", headers={"host": host})
        assert (reply.status_code, reply.json()["code"]) == (400, "bad_host")

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:80", "LOCALHOST:1"])
    def test_the_names_of_loopback_are_known(self, server: LocalServer, host: str) -> None:
        assert server.client.get("/api", headers={"host": host}).status_code == 200

    @pytest.mark.attack
    @pytest.mark.parametrize(
        "head",
        [
            "GET /api HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
            "GET /api HTTP/1.1\r\nHost: evil.example\r\nHost: localhost",
            "GET http://evil.example/api HTTP/1.1\r\nHost: localhost",
            "GET /api HTTP/1.1",
        ],
        ids=["the second is foreign", "the first is foreign", "the target is foreign", "none"],
    )
    def test_one_host_is_named_and_by_its_header_alone(self, server: LocalServer, head: str) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
            wire.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
            assert wire.makefile("rb").readline().split()[1] == b"400"

    def test_a_server_for_all_addresses_takes_addresses_and_the_names_it_was_told(self) -> None:
        rules = AccessSettings(host="0.0.0.0", token="x", allowed_hosts=("agents.example",))
        assert rules.allows_host("10.0.0.7:8377")
        assert rules.allows_host("agents.example")
        assert not rules.allows_host("evil.example")
        assert host_name("[fe80::1]:80") == "fe80::1"

    def test_without_the_token_nothing_is_told(self, plain: Store) -> None:
        with LocalServer(plain, **TOKENS) as server:
            for headers in ({}, bearer("wrong"), {"authorization": "Basic x"}, {"cookie": "a=b"}):
                reply = server.client.get("/api/sessions", headers=headers)
                assert (reply.status_code, reply.json()["code"]) == (401, "no_token")
                assert reply.headers["www-authenticate"] == "Bearer"
            assert server.get("/api", token=SERVICE)["level"] == "service"
            assert server.get("/api", token=ANN)["owner"] == "ann"

    def test_a_token_can_be_kept_in_a_cookie_no_script_can_read(self, plain: Store) -> None:
        with LocalServer(plain, **TOKENS) as server:
            server.post("/api/login", {"token": "wrong"}, 401)
            reply = server.client.post("/api/login", json={"token": ANN}, headers=CHANGE_HEADERS)
            assert (reply.status_code, reply.json()["owner"]) == (200, "ann")
            cookie = reply.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert "max-age=604800" in cookie
            assert ANN.lower() not in cookie
            assert server.get("/api")["owner"] == "ann"
            server.client.delete("/api/login", headers={"x-oakleaf": "1"})
            server.get("/api", 401)

    def test_a_login_is_for_one_port_and_survives_other_cookies(self, plain: Store) -> None:
        """Browsers send the cookies of all ports of a host, in whatever form another application gave them."""
        with LocalServer(plain, **TOKENS) as server, LocalServer(plain, token="other") as neighbour:
            for local, token in ((server, ANN), (neighbour, "other")):
                local.client.post("/api/login", json={"token": token}, headers=CHANGE_HEADERS)
            jar = {**dict(server.client.cookies), **dict(neighbour.client.cookies)}
            assert len(jar) == 2
            cookie = "; ".join(['settings={"a": [1, "x; y"]}', *(f"{k}={v}" for k, v in jar.items())])
            for local, level in ((server, "client"), (neighbour, "service")):
                reply = httpx.get(f"{local.url}/api", headers={"cookie": cookie})
                assert (reply.status_code, reply.json()["level"]) == (200, level)

    def test_a_login_ends_with_its_time_or_its_token(self) -> None:
        access = AccessSettings(token="service", client_tokens={"ann": "hers"})
        value = access.login_cookie("hers", now=1_000)
        assert access.cookie_caller(value, now=1_000 + LOGIN_SECONDS) == Caller("client", "ann")
        assert access.cookie_caller(value, now=1_001 + LOGIN_SECONDS) is None
        later = f"{int(value.partition('.')[0]) + 1}.{value.partition('.')[2]}"
        for forged in (None, "", "hers", later, value.upper(), f"{value}0", "99999999999." + "0" * 64):
            assert access.cookie_caller(forged, now=1_000) is None
        changed = AccessSettings(token="service", client_tokens={"ann": "another"})
        assert changed.cookie_caller(value, now=1_000) is None

    def test_no_second_spelling_of_a_path_avoids_the_token(self, plain: Store) -> None:
        with LocalServer(plain, **TOKENS) as server:
            routes = api_routes(server)
            assert len(routes) > 30
            prefixes = (
                "//api",
                "///api",
                "/api/",
                "/%61pi",
                "/./api",
                "/x/../api",
                "/api;x",
                "/API",
                "/x%2f..%2fapi",
            )
            wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            for number, (path, method) in enumerate(routes):
                # The first prefixes for every route, and each of the others for some.
                for prefix in (prefixes[0], prefixes[1 + number % (len(prefixes) - 1)]):
                    spelling = path.replace("/api", prefix, 1)
                    wire.request(method, spelling, headers={"x-oakleaf": "1"})
                    reply = wire.getresponse()
                    body = reply.read()
                    is_page = reply.status == 200 and body.startswith(b"<!")
                    assert reply.status in (400, 401, 404, 405) or is_page, (method, spelling, body[:200])
            wire.close()

    @pytest.mark.attack
    def test_a_path_has_one_spelling(self, server: LocalServer) -> None:
        session = server.sessions.start(title="mine")
        path = f"/api/sessions/{session.session_id}"
        ways = ["%2f", "%2F", "%5c", "\\", "//", "/./", "/x/../", "/%2e/", "%00/", "%0a/", "%/", "%zz/"]
        spellings = [path.replace("/sessions/", f"/sessions{way}") for way in ways]
        spellings += [
            f"{path}/",
            f"{path}%2f",
            path.replace("ses_", "se%73_"),
            f"{path}%2fusage",
            f"{path}/.",
        ]
        wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for spelling in spellings:
            wire.putrequest("GET", spelling, skip_host=False)
            wire.endheaders()
            reply = wire.getresponse()
            assert (reply.status, json.loads(reply.read())["code"]) == (400, "bad_path"), spelling
        for other in (f"{path};x", f"{path}%20", f"{path}%3b"):
            assert server.client.get(other).status_code == 404, other
        wire.close()

    def test_a_route_reached_past_the_middleware_refuses(self, plain: Store) -> None:
        """The router, not the path, decides which handlers need a caller."""
        app = create_litestar(ServerContext(plain, AccessSettings(**TOKENS)))
        with TestClient(app) as client:
            for path, method in api_routes(client):
                reply = client.request(method, path, headers=CHANGE_HEADERS)
                assert reply.status_code == 401, (method, path, reply.text)


def api_routes(server: Any) -> list[tuple[str, str]]:
    """Every path and method under /api, with something in the place of its parameters."""
    paths = (
        (server.client if isinstance(server, LocalServer) else server).get("/openapi.json").json()["paths"]
    )
    return [
        (re.sub(r"\{[^}]*\}", "1", path), method.upper())
        for path, methods in paths.items()
        if path.startswith("/api") and path != LOGIN
        for method in methods
    ]


class TestCrossSite:
    def refusal_code(self, server: LocalServer, headers: dict[str, str], content: bytes = b"{}") -> str:
        reply = server.client.post("/api/sessions", content=content, headers=headers)
        assert reply.status_code in (403, 415), reply.text
        assert server.get("/api/sessions")["sessions"] == []
        return reply.json()["code"]

    def test_a_form_of_another_site_changes_nothing(self, server: LocalServer) -> None:
        form = {"content-type": "application/x-www-form-urlencoded", "origin": "https://evil.example"}
        assert self.refusal_code(server, form) == "cross_site"
        assert self.refusal_code(server, {"content-type": "text/plain"}) == "cross_site"
        assert self.refusal_code(server, {"content-type": "application/json"}) == "cross_site"
        assert self.refusal_code(server, {**CHANGE_HEADERS, "origin": "https://evil.example"}) == "cross_site"
        assert self.refusal_code(server, {**CHANGE_HEADERS, "origin": "null"}) == "cross_site"
        assert self.refusal_code(server, {**CHANGE_HEADERS, "sec-fetch-site": "cross-site"}) == "cross_site"

    def test_the_own_page_and_programs_may(self, server: LocalServer) -> None:
        own = {"content-type": "application/json", "origin": server.url}
        assert server.client.post("/api/sessions", content=b"{}", headers=own).status_code == 201
        assert server.client.post("/api/sessions", content=b"{}", headers=CHANGE_HEADERS).status_code == 201

    def test_a_wrong_content_type_is_refused(self, server: LocalServer) -> None:
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
            assert self.refusal_code(server, {"x-oakleaf": "1", "content-type": kind}) == "wrong_content_type"

    def test_no_answer_has_a_cors_header(self, server: LocalServer) -> None:
        reply = server.client.options("/api/sessions", headers={"origin": "https://evil.example"})
        other = server.client.get("/api/sessions", headers={"origin": "https://evil.example"})
        for headers in (reply.headers, other.headers):
            assert not [name for name in headers if name.startswith("access-control")]


class TestSizes:
    def test_a_body_of_100_mb_is_refused_before_it_is_read(self, server: LocalServer) -> None:
        wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        wire.putrequest("POST", "/api/sessions")
        for name, value in {**CHANGE_HEADERS, "content-length": str(100_000_000)}.items():
            wire.putheader(name, value)
        wire.endheaders()
        reply = wire.getresponse()
        assert (reply.status, json.loads(reply.read())["code"]) == (413, "too_large")
        wire.close()

    def test_a_body_that_does_not_tell_its_length_is_cut_off_too(self, server: LocalServer) -> None:
        chunks = (b'{"agent": "' if n == 0 else b"x" * 65_536 for n in range(40))
        try:
            reply = server.client.post("/api/sessions", content=chunks, headers=CHANGE_HEADERS)
        except httpx.HTTPError:
            return  # the server hung up in the middle, which is an answer too
        assert (reply.status_code, reply.json()["code"]) == (413, "too_large")

    def test_a_body_that_stops_coming_is_not_waited_for(self, plain: Store) -> None:
        with LocalServer(plain, body_timeout=0.2) as server:
            wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            wire.putrequest("POST", "/api/sessions")
            for name, value in {**CHANGE_HEADERS, "content-length": "100"}.items():
                wire.putheader(name, value)
            wire.endheaders(b'{"age')
            reply = wire.getresponse()
            assert (reply.status, json.loads(reply.read())["code"]) == (408, "too_slow")
            wire.close()

    def test_a_thousand_half_sent_heads_keep_nobody_out(self, plain: Store) -> None:
        with LocalServer(plain) as server:
            slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(600)]
            for connection in slow:
                connection.sendall(b"GET /api HTTP/1.1\r\nHost: localhost\r\nX-Half: ")
            assert httpx.get(f"{server.url}/api").status_code == 200
            for connection in slow:
                connection.close()

    def test_a_head_that_stops_coming_is_not_waited_for(self, plain: Store) -> None:
        server = LocalServer(plain)
        server._server.config.timeout_keep_alive = 1
        with server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            for head in (b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /api HTTP/1.1\r\nHost: "):
                connection.sendall(head)
                received = connection.recv(65_536)
                while head.endswith(b"\r\n\r\n") and b'"level"' not in received:
                    received += connection.recv(65_536)
            assert received == b"", "the server closed the connection"


class TestErrors:
    def test_an_error_is_told_in_the_words_of_the_command_line(self, server: LocalServer) -> None:
        reply = server.client.get("/api/sessions/ses_x")
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json() == {
            "type": "about:blank",
            "title": "Not Found",
            "status": 404,
            "code": "not_found",
            "detail": "no session 'ses_x' in this store, space and owner",
            "hint": "oakleaf ls lists the sessions",
        }

    def test_a_wrong_value_is_named(self, server: LocalServer) -> None:
        problem = server.get("/api/sessions", 400, limit="many")
        assert problem["code"] == "invalid_argument"
        assert "limit" in problem["detail"]
        assert server.get("/api/sessions", 400, page="x")["code"] == "invalid_argument"
        assert server.get("/api/sessions", 400, query="after:soon")["code"] == "invalid_search"
        assert server.get("/api/search", 400, query="role:king")["code"] == "invalid_search"

    def test_a_number_or_a_depth_beyond_all_measure_is_the_callers_fault(self, server: LocalServer) -> None:
        huge = "9" * 26
        assert server.get("/api/sessions", 400, page=huge)["code"] == "invalid_argument"
        assert server.get("/api/search", 400, query="x", page=huge)["code"] == "invalid_argument"
        assert server.get("/api/storage", 400, page=huge)["code"] == "invalid_argument"
        deep = b'{"agent": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        for body in (deep, b'{"agent": "\xff\xfe"}', b'{"\xff": 1}', b'{"agent": "\xed\xa0\x80"}'):
            reply = server.client.post("/api/sessions", content=body, headers=CHANGE_HEADERS)
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_body"), reply.text

    @pytest.mark.parametrize("body", [b"{", b"[]", b'{"agent": 7}', b'{"unknown": 1}', b"\xff\xfe", b'"x"'])
    def test_a_body_that_does_not_fit_is_refused(self, server: LocalServer, body: bytes) -> None:
        reply = server.client.post("/api/sessions", content=body, headers=CHANGE_HEADERS)
        assert reply.status_code == 400, reply.text
        assert reply.json()["code"] in ("invalid_body", "invalid_value")

    def test_what_is_not_there_and_what_is_not_done_there(self, server: LocalServer) -> None:
        assert server.get("/api/nothing", 404)["code"] == "no_page"
        assert server.change("PUT", "/api/sessions", {}, 405)["code"] == "method_not_allowed"

    def test_a_broken_store_tells_neither_its_path_nor_sql(self, tmp_path: Path) -> None:
        store = oakleaf.open(tmp_path / "hidden-name.db")
        session = store.start()
        session.append([user("x")])
        with LocalServer(store) as server:
            store.close()
            reply = server.client.get(f"/api/sessions/{session.session_id}")
            assert reply.status_code == 503
            assert "hidden-name" not in reply.text
            assert "select" not in reply.text.lower()
            assert reply.json()["reference"]

    def test_a_line_break_in_an_address_breaks_no_header(self, server: LocalServer) -> None:
        for path in ("/api/sessions/a%0d%0aset-cookie:x=1", "/api/sessions/a%00b", "/api/blobs/%0d%0ax:y"):
            reply = server.client.get(path)
            assert reply.status_code == 400
            assert "set-cookie" not in reply.headers
            assert "x" not in reply.headers


class TestTheViewersFiles:
    def test_every_answer_says_what_a_browser_may_do_with_it(self, server: LocalServer) -> None:
        for path in ("/", "/api", "/api/nothing", "/openapi.json", "/assets/none.js"):
            headers = server.client.get(path).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-frame-options"] == "DENY"
            assert "server" not in headers
        assert server.client.get("/api").headers["cache-control"] == "no-store"

    def test_the_page_is_at_every_address_a_person_may_share(self, server: LocalServer) -> None:
        first = server.client.get("/")
        assert first.headers["content-type"] == "text/html; charset=utf-8"
        for path in ("/s/ses_x", "/diff", "/usage"):
            assert server.client.get(path).content == first.content
        assert server.client.get("/", headers={"if-none-match": first.headers["etag"]}).status_code == 304

    def test_the_script_and_the_style_are_fetched_once_per_version(self, server: LocalServer) -> None:
        for name in re.findall(r'"(/assets/[0-9a-f]+/viewer\.(?:js|css))"', server.client.get("/").text):
            reply = server.client.get(name)
            assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert reply.headers["content-encoding"] == "gzip"
            assert int(reply.headers["content-length"]) < len(reply.content) / 3
            plain = server.client.get(name, headers={"accept-encoding": "identity"})
            assert "content-encoding" not in plain.headers
            assert plain.content == reply.content

    def test_long_answers_are_compressed_for_who_accepts_it(self, server: LocalServer) -> None:
        reply = server.client.get("/openapi.json")
        assert reply.headers["content-encoding"] == "gzip"
        assert int(reply.headers["content-length"]) < len(reply.content) / 4
        plain = server.client.get("/openapi.json", headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.json() == reply.json()
        assert "content-encoding" not in server.client.get("/api/nothing").headers

    def test_head_answers_like_get_without_the_body_even_for_a_stream(self, server: LocalServer) -> None:
        session_id = server.sessions.start().session_id
        for path in ("/", "/api", f"/api/sessions/{session_id}", f"/api/sessions/{session_id}/events"):
            reply = server.client.head(path)
            assert (reply.status_code, reply.content) == (200, b"")
        assert server.client.head("/api/sessions/ses_none").status_code == 404

    @pytest.mark.parametrize(
        "path",
        [
            "/assets/../app.py",
            "/assets/..%2fapp.py",
            "/assets/%2e%2e/%2e%2e/errors.py",
            "/assets//etc/passwd",
            "/assets/..%5c..%5capp.py",
            "/assets/%00",
            "/../../etc/passwd.txt",
        ],
    )
    def test_no_path_leads_out_of_the_viewer(self, server: LocalServer, path: str) -> None:
        wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        wire.request("GET", path)  # as it stands: a client library would tidy it up
        reply = wire.getresponse()
        body = reply.read()
        assert reply.status in (400, 404), body[:100]
        assert b"import" not in body
        assert b"root:" not in body
        wire.close()

    def test_a_blob_is_never_run(self, server: LocalServer) -> None:
        page = server.sessions.put_blob(b"<script>alert(1)</script>", "text/html")
        drawing = server.sessions.put_blob(b"<svg onload='alert(1)'/>", "image/svg+xml")
        odd = server.sessions.put_blob(b"x", "text/html; charset=x\r\nx-evil: 1")
        for media in (page, drawing, odd):
            reply = server.client.get(f"/api/blobs/{media.hash}")
            assert reply.headers["content-type"] == "application/octet-stream"
            assert reply.headers["content-disposition"].startswith("attachment")
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert "x-evil" not in reply.headers
        picture = server.sessions.put_blob(b"\x89PNG", "image/png")
        reply = server.client.get(f"/api/blobs/{picture.hash}")
        assert (reply.headers["content-type"], reply.content) == ("image/png", b"\x89PNG")
        assert "sandbox" in reply.headers["content-security-policy"]
        missing = server.get(f"/api/blobs/{'0' * 64}", 404)
        assert missing["code"] == "missing_blob"
        assert "put_blob" not in missing["detail"]


class TestTheCommand:
    def start(self, tmp_path: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
        environment = {**os.environ, "OAKLEAF_STORE": str(tmp_path / "agent.db")}
        process = subprocess.Popen(
            [sys.executable, "-m", "oakleaf.cli.main", "serve", "--port", "0", "--no-open", *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    def test_it_serves_says_where_and_ends_with_ctrl_c(self, tmp_path: Path) -> None:
        process, address = self.start(tmp_path)
        try:
            assert httpx.get(f"{address}api").json()["name"] == "oakleaf"
            with httpx.stream("GET", f"{address}api/sessions", timeout=10) as reply:
                assert reply.status_code == 200
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert err.endswith("stopped\n")
        assert "Traceback" not in err
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{address}api")

    def test_its_log_is_json_on_request_without_secrets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One object per line, whatever it says: requests with their session, failures, what it says to people."""
        monkeypatch.setenv("OAKLEAF_LOG", "json")
        process, address = self.start(tmp_path, "--token", "a-secret-token")
        address = address.partition("#")[0]
        try:
            headers = {**CHANGE_HEADERS, **bearer("a-secret-token")}
            made = httpx.post(f"{address}api/sessions", content=b"{}", headers=headers).json()["session"][
                "id"
            ]
            httpx.get(f"{address}api/sessions/{made}?token=a-secret-token", headers=headers)
            httpx.get(f"{address}api/sessions/ses_none/sk-ant-api03-{'x' * 80}", headers=headers)
            httpx.get(f"{address}api/sessions")
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        lines = [json.loads(line) for line in err.splitlines()]
        assert all(line.keys() >= {"time", "level", "logger", "event", "message"} for line in lines)
        requests = [line for line in lines if line["event"] == "request"]
        assert [line["status"] for line in requests] == [201, 400, 404, 401]
        assert requests[1]["session"] == made
        assert requests[1]["ms"] >= 0
        assert [line["message"] for line in lines if line["event"] == "notice"][-1] == "stopped"
        assert "a-secret-token" not in err
        assert "sk-ant-api03-xx" not in err

    def test_a_stream_does_not_keep_it_alive(self, tmp_path: Path) -> None:
        process, address = self.start(tmp_path)
        try:
            session_id = httpx.post(f"{address}api/sessions", content=b"{}", headers=CHANGE_HEADERS).json()[
                "session"
            ]["id"]
            with httpx.stream("GET", f"{address}api/sessions/{session_id}/events", timeout=10) as reply:
                lines = reply.iter_lines()
                assert next(lines).startswith("retry")
                title = {"text": "Something that happens"}
                httpx.post(f"{address}api/sessions/{session_id}/title", json=title, headers=CHANGE_HEADERS)
                assert any(line == "event: session:titled" for line in lines)
                # From here on the stream waits for what comes next, which took it until it was cancelled.
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=20) == 0
        finally:
            process.kill()
            _, err = process.communicate()
        assert err.splitlines()[1:] == ["stopped"]

    @pytest.mark.parametrize(
        ("options", "message"), [((), "pass --token SECRET"), (("--token", ""), "a token is empty")]
    )
    def test_it_is_not_served_to_others_without_a_token(
        self, tmp_path: Path, options: tuple[str, ...], message: str
    ) -> None:
        process, address = self.start(tmp_path, "--host", "0.0.0.0", *options)
        _, err = process.communicate(timeout=20)
        assert address == ""
        assert process.returncode == 2
        assert message in err

    def test_a_port_in_use_is_told(self, tmp_path: Path) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            process, _ = self.start(tmp_path, "--port", str(listener.getsockname()[1]))
            _, err = process.communicate(timeout=20)
        assert process.returncode == 2
        assert "--port" in err
        assert "Traceback" not in err


def test_no_server_survives_its_block(plain: Store) -> None:
    with LocalServer(plain) as server:
        server.get("/api")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
