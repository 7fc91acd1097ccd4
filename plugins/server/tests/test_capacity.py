"""Nobody takes all places of a server: each caller has a share, and what waits for too long is ended."""

from __future__ import annotations

import json
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from oakleaf import user
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf_server import app
from oakleaf_server.auth import Caller
from oakleaf_server.capacity import ADDRESS_LOGINS, CLIENT_REQUESTS, CLIENT_STREAMS, Capacity, max_connections
from oakleaf_server.problems import Refusal
from support.processes import wait_until
from support.runtime import deterministic_runtime
from support.secret_session import ANN, BOB, SERVICE, TOKENS, start_with_secrets
from support.server import LocalServer, bearer

pytestmark = pytest.mark.attack
SLOW_LOGIN = (
    b"POST /api/login HTTP/1.1\r\nHost: localhost\r\nX-Oakleaf: 1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


@pytest.fixture
def store() -> Store:
    return Store(MemoryStore(), deterministic_runtime())


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process, which is the server and its callers, open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Attackers(ExitStack):
    """Connections that send something and read nothing."""

    def __init__(self, server: LocalServer, count: int, data: bytes) -> None:
        super().__init__()
        self.sockets = [
            self.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            for _ in range(count)
        ]
        for each in self.sockets:
            each.sendall(data)

    def statuses_once(self, answered: int) -> Counter[int]:
        """Count the answers once so many connections have one; 0 for none."""
        replies: dict[socket.socket, int] = {}

        def read() -> bool:
            for each in self.sockets:
                each.settimeout(0)
                with suppress(OSError, IndexError):
                    if each not in replies:
                        replies[each] = int(each.recv(65_536).split(b" ")[1])
            return len(replies) >= answered

        wait_until(read)
        return Counter([*replies.values(), *[0] * (len(self.sockets) - len(replies))])

    def statuses(self, seconds: float = 0) -> Counter[int]:
        """Count the answers, those that come within so many seconds each; 0 for none."""
        counts: Counter[int] = Counter()
        for each in self.sockets:
            each.settimeout(seconds)
            try:
                counts[int(each.recv(65_536).split(b" ")[1])] += 1
            except (OSError, IndexError):
                counts[0] += 1
        return counts


def assert_serves_everybody_else(server: LocalServer, session_id: str) -> None:
    assert httpx.get(f"{server.url}/healthz").text == "ok\n"
    assert httpx.get(f"{server.url}/").status_code == 200
    assert server.get("/api", token=SERVICE)["level"] == "service"
    assert server.get("/api", token=BOB)["owner"] == "bob"
    with server.watch(f"/api/sessions/{session_id}/events", token=BOB):
        pass


class TestShares:
    def test_two_thousand_slow_logins_keep_nobody_out(self, store: Store, many_files: None) -> None:
        theirs = start_with_secrets(store, "bob", "bob")
        count = min(2_000, max_connections())
        with LocalServer(store, **TOKENS) as server, Attackers(server, count, SLOW_LOGIN) as attackers:
            assert_serves_everybody_else(server, theirs)
            # The others wait, or were cut before their answer was read.
            statuses = attackers.statuses_once(count - ADDRESS_LOGINS - count // 20)
            assert statuses[429] + statuses[0] == count

    def test_a_login_is_refused_in_words(self, store: Store) -> None:
        with LocalServer(store, **TOKENS) as server, Attackers(server, ADDRESS_LOGINS, SLOW_LOGIN):
            reply = server.client.post("/api/login", json={"token": ANN}, headers={"x-oakleaf": "1"})
            assert (reply.status_code, reply.json()["code"]) == (429, "too_many_requests")
            assert "8 logins of this caller" in reply.json()["detail"]

    def test_the_event_streams_of_one_client_keep_nobody_out(self, store: Store) -> None:
        mine, theirs = start_with_secrets(store, "ann", "ann"), start_with_secrets(store, "bob", "bob")
        path = f"/api/sessions/{mine}/events"
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\n\r\n".encode()
        with LocalServer(store, **TOKENS) as server:
            with Attackers(server, 400, head) as attackers:
                assert_serves_everybody_else(server, theirs)
                assert (
                    server.get("/api", token=ANN)["owner"] == "ann"
                )  # its requests have places of their own
                statuses = attackers.statuses(20)
                assert statuses[200] == CLIENT_STREAMS
                reply = server.client.get(path, headers=bearer(ANN))
                assert (reply.status_code, reply.json()["code"]) == (429, "too_many_requests")

            def is_open() -> bool:
                with server.client.stream("GET", path, headers=bearer(ANN)) as reply:
                    return reply.status_code == 200

            wait_until(is_open)  # once the server has noticed that they have ended

    def test_each_level_leaves_room_for_the_others(self) -> None:
        capacity = Capacity(400)

        def count(path: str, callers: list[Caller | None]) -> int:
            for number, caller in enumerate(callers):
                try:
                    capacity.take({"path": path, "client": (f"10.0.0.{number % 256}", 1)}, caller)
                except Refusal:
                    return number
            return len(callers)

        assert count("/", [None] * 400) == 400 // 8
        assert count("/api", [Caller("client", f"c{n}") for n in range(400)]) == 400 * 5 // 8
        assert count("/api", [Caller()] * 400) == 400 - 400 // 8 - 400 * 5 // 8
        assert capacity.take({"path": "/healthz"}, None) == ()

    def test_one_client_or_network_has_one_share(self) -> None:
        capacity = Capacity(2_000)
        for number in range(CLIENT_REQUESTS):
            capacity.take({"path": "/api"}, Caller("client", "ann"))
            capacity.take({"path": "/", "client": (f"2001:db8::{number:x}", 1)}, None)
        for caller, address in ((Caller("client", "ann"), "::1"), (None, "2001:db8::ffff:1")):
            with pytest.raises(Refusal, match="of this caller"):
                capacity.take({"path": "/api", "client": (address, 1)}, caller)
        place = capacity.take({"path": "/api"}, Caller("client", "bob"))
        capacity.give(place)
        capacity.take({"path": "/", "client": ("2001:db8:0:1::1", 1)}, None)


class TestTimes:
    def test_a_body_that_comes_byte_by_byte_is_not_waited_for(self, store: Store) -> None:
        """Each byte began the time anew: 100 bytes kept a place for an hour."""
        with (
            LocalServer(store, **TOKENS, body_timeout=0.3) as server,
            Attackers(server, 1, SLOW_LOGIN) as attackers,
        ):
            (wire,) = attackers.sockets
            is_answered = threading.Event()

            def drip() -> None:
                while not is_answered.wait(0.05):
                    wire.sendall(b" ")

            thread = threading.Thread(target=drip)
            thread.start()
            head, _, body = wire.recv(65_536).partition(b"\r\n\r\n")
            is_answered.set()
            thread.join()
            assert head.startswith(b"HTTP/1.1 408")
            assert json.loads(body or wire.recv(65_536))["code"] == "too_slow"

    def test_a_caller_that_reads_nothing_is_cut_off(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app, "STALL_SECONDS", 0.2)
        session = store.start()
        session.append([user("x" * 900_000)])
        head = f"GET /api/sessions/{session.session_id}/entries/1/raw HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with LocalServer(store) as server, socket.socket() as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            wire.connect(("127.0.0.1", server.port))
            wire.sendall(head * 20)  # more than the buffers of both sides hold
            connections = server._server.server_state.connections
            wait_until(lambda: connections)
            wait_until(lambda: not connections)
