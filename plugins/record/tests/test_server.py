"""The proxy passes bytes untouched and at once, whatever the framing, and says what is wrong when it cannot."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import subprocess
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf_record import server
from oakleaf_record.http_stream import BadMessage, ChunkedBody, Head, LengthBody
from oakleaf_record.server import ApiCall, Listener, Proxy
from oakleaf_record.upstreams import child_environment, find_upstreams

Handler = Callable[[bytes, bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Calls(Listener):
    def __init__(self) -> None:
        self.calls: list[ApiCall] = []
        self.ended: list[ApiCall] = []
        self.passed: list[str] = []

    def request_sent(self, call: ApiCall) -> None:
        self.calls.append(call)

    def call_ended(self, call: ApiCall) -> None:
        self.ended.append(call)

    def passed_through(self, path: str) -> None:
        self.passed.append(path)


@asynccontextmanager
async def upstream(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server whose handler gets the head and the body of each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(Head.parse(head).get(b"content-length") or b"0")
                await handler(head, await reader.readexactly(length), reader, writer)
                await writer.drain()
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def proxied(url: str, *origins: str) -> AsyncIterator[tuple[int, Calls]]:
    calls = Calls()
    proxy = Proxy(find_upstreams({}, {"openai": f"{url}/v1", "anthropic": url}), calls, origins)
    address = await proxy.start()
    try:
        yield int(address.rpartition(":")[2]), calls
    finally:
        await proxy.close()


async def exchange(port: int, request: bytes, *, closes: bool = True) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = await reader.read() if closes else await reader.read(65536)
    writer.close()
    return response


def post(path: str, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHAT = "/openai/v1/chat/completions"


class TestBodies:
    @given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
    def test_chunks_are_read_alike_however_they_arrive(
        self, chunks: list[bytes], data: st.DataObject
    ) -> None:
        raw = (
            b"".join(f"{len(c):X};ext=1\r\n".encode() + c + b"\r\n" for c in chunks)
            + b"0\r\nTrailer: x\r\n\r\n"
        )
        cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
        body = ChunkedBody()
        used = 0
        for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            used += body.feed(raw[start:end])
            seen = raw[:used]
            assert b"".join(chunks).startswith(body.content())
            assert (body.length, b"".join(body.pieces)) == (len(seen), seen)
        assert (body.content(), body.is_complete, used) == (b"".join(chunks), True, len(raw))

    def test_what_follows_a_body_is_left_for_the_next_message(self) -> None:
        chunked, sized = ChunkedBody(), LengthBody(3)
        assert chunked.feed(b"1\r\na\r\n0\r\n\r\nNEXT") == len(b"1\r\na\r\n0\r\n\r\n")
        assert (sized.feed(b"abcNEXT"), sized.is_complete) == (3, True)

    def test_a_wrong_length_is_refused(self) -> None:
        for length in (b"zz", b"-3", b""):
            with pytest.raises(BadMessage, match=f"length '{length.decode()}'"):
                ChunkedBody().feed(length + b"\r\n")
        with pytest.raises(BadMessage, match="-3"):
            Head.parse(b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n").request_body()


@pytest.mark.smoke
def test_bytes_pass_untouched_and_the_next_request_uses_the_same_connections() -> None:
    bodies: list[bytes] = []
    zipped = gzip.compress(b'{"choices": []}')
    responses = [
        b"HTTP/1.1 200 OK\r\nX-Odd:  two  blanks\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(zipped) + zipped,
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]

    async def answer(head: bytes, body: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(head + body)
        writer.write(responses[len(bodies) - 1])

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, calls):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for response in responses:
                writer.write(
                    post(CHAT, b'{"a": 1}', "Authorization: Bearer k", "Accept-Encoding: gzip, br;q=1")
                )
                assert await reader.readexactly(len(response)) == response
            writer.close()
            while len(calls.ended) < len(responses):
                await asyncio.sleep(0.01)
            assert [call.end for call in calls.ended] == ["complete"] * 3
            assert [call.response for call in calls.ended] == [b"abc", zipped, b""]
            assert all(call.request == b'{"a": 1}' for call in calls.calls)
            assert not any(b"Bearer" in repr(call).encode() for call in calls.ended)
            first = bodies[0].split(b"\r\n")
            assert first[0] == b"POST /v1/chat/completions HTTP/1.1"
            assert f"Host: {url.removeprefix('http://')}".encode() in first
            assert b"Accept-Encoding: gzip" in first

    asyncio.run(main())


def test_a_stream_arrives_piece_by_piece() -> None:
    go_on = asyncio.Event()

    async def answer(_: bytes, __: bytes, ___: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await go_on.wait()
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(CHAT))
            await reader.readuntil(b"first\r\n")  # the second piece does not exist yet
            go_on.set()
            await reader.readuntil(b"0\r\n\r\n")
            writer.close()

    asyncio.run(main())


def test_a_program_that_leaves_ends_the_call_upstream() -> None:
    ended = asyncio.Event()

    async def answer(_: bytes, __: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await reader.read()
        ended.set()

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, calls):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(CHAT))
            await reader.readuntil(b"half\r\n")
            writer.close()
            await asyncio.wait_for(ended.wait(), 10)
            while not calls.ended:
                await asyncio.sleep(0.01)
            assert (calls.ended[0].end, calls.ended[0].response) == ("cancelled", b"half")

    asyncio.run(main())


def test_a_stream_that_the_upstream_cuts_is_cut_for_the_program_too() -> None:
    async def answer(_: bytes, __: bytes, ___: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await writer.drain()
        raise ConnectionError

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, calls):
            response = await exchange(port, post(CHAT))
            assert response.endswith(b"4\r\nhalf\r\n")
            assert (calls.ended[0].end, calls.ended[0].response) == ("cut", b"half")

    asyncio.run(main())


def test_a_kept_connection_that_the_upstream_closed_is_opened_again() -> None:
    count = 0

    async def answer(_: bytes, __: bytes, ___: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % count)
        await writer.drain()
        writer.transport.abort()

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in (b"1", b"2"):
                writer.write(post(CHAT))
                assert (await reader.readuntil(b"\r\n\r\n" + number)).endswith(number)
            writer.close()

    asyncio.run(main())


def test_a_request_that_the_upstream_worked_on_before_it_closed_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program decides whether to pay for it twice."""
    monkeypatch.setattr(server, "KEPT_CONNECTION_SECONDS", 0.01)
    requests = 0

    async def answer(_: bytes, __: bytes, ___: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        if requests == 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        else:
            await asyncio.sleep(0.05)
            writer.transport.abort()

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(CHAT))
            await reader.readuntil(b"\r\n\r\n1")
            writer.write(post(CHAT))
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 502 ")
            assert b"closed the connection without an answer" in response
            writer.close()
        assert requests == 2

    asyncio.run(main())


def test_other_paths_and_protocols_pass() -> None:
    async def answer(
        head: bytes, _: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if b"Upgrade" in head:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nhello ")
            while data := await reader.read(100):
                writer.write(data.upper())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    async def main() -> None:
        async with upstream(answer) as url, proxied(url) as (port, calls):
            models = b"GET /anthropic/v1/models?limit=2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert (await exchange(port, models, closes=False)).endswith(b"[]")
            thread = b"POST /openai/v1/threads/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
            assert (await exchange(port, thread, closes=False)).endswith(b"[]")
            assert calls.passed == ["GET /v1/models", "POST /threads/t/messages"]
            calls.passed.clear()
            assert not calls.ended
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /openai/v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n")
            await reader.readuntil(b"hello ")
            writer.write(b"anybody")
            await reader.readuntil(b"ANYBODY")
            writer.close()
            assert calls.passed == ["GET /realtime over WebSocket"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("base", "given", "path", "target"),
    [
        ("", True, "/messages", "/v1/messages"),
        ("", True, "/v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/v1", True, "/messages", "/v1/messages"),
        ("/gateway", False, "/messages", "/gateway/messages"),
    ],
)
def test_anthropic_is_asked_at_its_path_with_either_base(
    base: str, given: bool, path: str, target: str
) -> None:
    """AI SDK programs add /messages to their base URL, Anthropic's SDKs /v1/messages."""
    url = f"http://gateway.example{base}"
    urls, environment = ({"anthropic": url}, {}) if given else ({}, {"ANTHROPIC_BASE_URL": url})
    found = {upstream.name: upstream for upstream in find_upstreams(environment, urls)}
    assert found["anthropic"].target(path) == target


def test_a_chatgpt_login_goes_to_its_own_server() -> None:
    (openai,) = (upstream for upstream in find_upstreams({}) if upstream.name == "openai")
    assert openai.serving(b"").url == "https://api.openai.com/v1"
    assert openai.serving(b"account").url == "https://chatgpt.com/backend-api/codex"
    given = find_upstreams({}, {"openai": "http://gateway.example/v1"})
    assert [upstream.serving(b"account") for upstream in given] == list(given)


def test_a_websocket_of_codex_is_declined_and_comes_again_over_http() -> None:
    async def main() -> None:
        async with upstream(accept) as url, proxied(url) as (port, calls):
            request = b"GET /openai/v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            answer = await exchange(port, request + b"originator: codex_exec\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 426 ")
            assert (await exchange(port, post("/openai/v1/responses"))).startswith(b"HTTP/1.1 200 ")
            assert (calls.passed, len(calls.ended)) == ([], 1)

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(8))
def test_closing_ends_in_whatever_moment_an_answer_ends(steps: int) -> None:
    """A cancellation was lost while the request's own task ended, and the connection waited for a next request."""

    async def main() -> None:
        async with upstream(keep) as url:
            proxy = Proxy(find_upstreams({}, {"openai": f"{url}/v1"}), Calls())
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int((await proxy.start()).rpartition(":")[2])
            )
            writer.write(post(CHAT))
            await reader.readuntil(b"\r\n\r\n{")
            for _ in range(steps):
                await asyncio.sleep(0)
            await asyncio.wait_for(proxy.close(), 10)
            writer.close()

    asyncio.run(main())


async def keep(head: bytes, body: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (post("/elsewhere/v1/messages"), 404, "set the base URL to one of http://127.0.0.1/anthropic, "),
        (post(CHAT).replace(b"Host: 127.0.0.1", b"Host: evil.example"), 403, "127.0.0.1 only"),
        (b"HELLO\r\n\r\n", 400, "cannot read"),
        (post(CHAT), 502, "127.0.0.1:9/v1 cannot be reached: nothing listens there; check that it runs, or"),
    ],
)
def test_what_cannot_be_forwarded_says_why(request_: bytes, status: int, message: str) -> None:
    async def main() -> None:
        async with proxied("http://127.0.0.1:9") as (port, calls):
            head, _, body = (await exchange(port, request_)).partition(b"\r\n\r\n")
            assert int(head.split(b" ")[1]) == status
            assert message in json.loads(body)["error"]["message"]
            assert [call.end for call in calls.ended] == (["unreachable"] if status == 502 else [])

    asyncio.run(main())


async def accept(head: bytes, body: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")


async def statuses_of(port: int, requests: list[bytes]) -> list[int]:
    return [int((await exchange(port, request)).split(b" ")[1]) for request in requests]


@pytest.mark.attack
def test_a_page_of_another_site_sends_nothing() -> None:
    """A page could post to the proxy as a form does, without asking: calls of a model, and a store full of them."""
    foreign = [
        ("Origin: https://evil.example",),
        ("Origin: https://evil.example", "Content-Type: text/plain", "Sec-Fetch-Site: cross-site"),
        ("Origin: null",),
        ("Origin: http://127.0.0.1:3000",),
        ("Origin: http://127.0.0.1", "Origin: https://evil.example"),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: same-site",),
    ]
    requests = [post(CHAT, b"{}", *headers) for headers in foreign]
    requests += [request.replace(b"POST", b"GET", 1) for request in requests]

    async def main() -> None:
        async with upstream(accept) as url, proxied(url) as (port, calls):
            assert await statuses_of(port, requests) == [403] * len(requests)
            refusal = await exchange(port, requests[0])
            assert b"start the proxy with --allow-origin https://evil.example" in refusal
            assert (calls.calls, calls.ended, calls.passed) == ([], [], [])
            assert (
                await statuses_of(port, [post(CHAT), post(CHAT, b"{}", "Sec-Fetch-Site: none")]) == [200] * 2
            )
        async with upstream(accept) as url, proxied(url, "http://127.0.0.1:3000") as (port, _):
            assert await statuses_of(port, requests[:4]) == [403, 403, 403, 200]

    asyncio.run(main())


@pytest.mark.attack
@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "[::1].evil",
            "[::1]:80.evil",
            "127.0.0.1.evil",
            "localhost.",
            "localhost:80:80",
            "::1",
        ),
        *(
            "evil@localhost",
            "localhost\r\nHost: evil.example",
            "127.0.0.1:99999",
            "",
            "localhost, evil.example",
        ),
    ],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    request = post(CHAT).replace(b"Host: 127.0.0.1", f"Host: {host}".encode())

    async def main() -> None:
        async with upstream(accept) as url, proxied(url) as (port, calls):
            assert await statuses_of(port, [request]) == [403]
            assert calls.ended == []

    asyncio.run(main())


class TestMemory:
    """Traffic passes whatever its length; copies of it do not fill the memory."""

    LENGTH, PIECE = 40_000_000, 250_000

    async def upload(self, port: int, path: str, length: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        writer.write(head.encode())
        for at in range(0, length, self.PIECE):
            writer.write(b"x" * min(self.PIECE, length - at))
            await writer.drain()
        response = await reader.read()
        writer.close()
        return response

    @staticmethod
    @asynccontextmanager
    async def sink(received: list[int]) -> AsyncIterator[str]:
        """A server that reads bodies piece by piece, and says how long they were."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = Head.parse(await reader.readuntil(b"\r\n\r\n"))
            left = length = int(head.get(b"content-length"))
            while left:
                left -= len(await reader.read(min(left, 65_536)))
            received.append(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        listening.close()

    @pytest.mark.attack
    @pytest.mark.parametrize(("path", "ends"), [("/openai/v1/files", []), (CHAT, ["too long"])])
    def test_a_long_upload_passes_and_is_not_kept(
        self, path: str, ends: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "MAX_COPY_BYTES", 2_000_000)
        received: list[int] = []

        async def main() -> int:
            async with self.sink(received) as url, proxied(url) as (port, calls):
                tracemalloc.start()
                try:
                    response = await self.upload(port, path, self.LENGTH)
                    return tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
                    assert response.startswith(b"HTTP/1.1 200")
                    assert [call.end for call in calls.ended] == ends

        peak = asyncio.run(main())
        assert received == [self.LENGTH]
        assert peak < self.LENGTH / 3

    @pytest.mark.attack
    def test_many_uploads_at_once_pass_and_as_many_are_kept_as_there_is_room_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "MAX_COPIES_BYTES", 3_500_000)
        received: list[int] = []

        async def main() -> Calls:
            async with self.sink(received) as url, proxied(url) as (port, calls):
                uploads = (self.upload(port, CHAT, 1_000_000) for _ in range(8))
                responses = await asyncio.gather(*uploads)
                assert all(response.startswith(b"HTTP/1.1 200") for response in responses)
                for _ in range(3):  # the room was given back
                    await self.upload(port, CHAT, 1_000_000)
                return calls

        calls = asyncio.run(main())
        assert received == [1_000_000] * 11
        assert [call.end for call in calls.ended[-3:]] == ["complete"] * 3
        ends = Counter(call.end for call in calls.ended[:8])
        assert set(ends) <= {"complete", "too long"}
        assert ends["too long"] >= 1

    @pytest.mark.attack
    def test_requests_that_come_ahead_are_not_read_without_end(self) -> None:
        """While an answer came, everything that followed on the connection was read into memory."""
        is_over = asyncio.Event()

        async def stall(head: bytes, *rest: object) -> None:
            await is_over.wait()

        async def main() -> None:
            async with upstream(stall) as url, proxied(url) as (port, _):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(post(CHAT))

                async def send_ahead() -> None:
                    for _ in range(600):  # 60 MB; the buffers of both sides hold a few
                        writer.write(b"x" * 100_000)
                        await asyncio.wait_for(writer.drain(), 0.5)

                with pytest.raises(TimeoutError):
                    await send_ahead()
                is_over.set()
                writer.transport.abort()

        asyncio.run(main())


def test_an_upstream_with_a_wrong_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert"), "-subj", "/CN=other"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names], check=True, capture_output=True
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def answer(*_: object) -> None:
        raise AssertionError

    async def main() -> None:
        async with upstream(answer, tls) as url, proxied(url) as (port, _):
            response = await exchange(port, post(CHAT))
            assert b"502" in response.partition(b"\r\n")[0]
            assert b"not trusted: self-signed certificate; set SSL_CERT_FILE" in response
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
            server._tls_context.cache_clear()
            response = await exchange(port, post(CHAT))
            assert b"certificate is not valid for '127.0.0.1'; write its address with the name" in response
        async with upstream(answer, tls) as url, proxied(url.replace("https", "http")) as (port, _):
            assert b"if it speaks TLS, its address begins with https://" in await exchange(port, post(CHAT))

    try:
        asyncio.run(main())
    finally:
        server._tls_context.cache_clear()


def test_an_upstream_without_tls_is_told_and_its_password_is_not() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as plain:
            address = f"https://ann:hush@127.0.0.1:{plain.sockets[0].getsockname()[1]}"
            async with proxied(address) as (port, _):
                response = await exchange(port, post(CHAT))
                assert b"does not speak TLS; if it is meant to be reached without, its address" in response
                assert b"hush" not in response

    asyncio.run(main())


def test_a_child_finds_the_proxy_and_the_upstreams_stay_those_of_the_environment() -> None:
    environment = {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1", "no_proxy": "example.org"}
    upstreams = find_upstreams(environment)
    assert {upstream.name: upstream.url for upstream in upstreams}["openai"] == "http://127.0.0.1:8000/v1"
    child = child_environment(environment, "http://127.0.0.1:5", upstreams)
    assert child["OPENAI_BASE_URL"] == "http://127.0.0.1:5/openai/v1"
    assert child["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:5/anthropic"
    assert child["NO_PROXY"] == "example.org,127.0.0.1"
