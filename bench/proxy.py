"""Measure what the recording proxy adds: time to the first byte, the throughput of a stream of 5 MB, and its CPU time.

The client and the upstream are the same with and without the proxy, and each of the three is a process of its own. The
stream is read by OpenAI's SDK, as a program reads it that is recorded, from its first byte, which has a figure of its own.
Beside it the same stream read by a bare socket: at 50 MB/s, a thousand times as fast as a model, and as fast as upstream and
client can, which alone keep two cores busy, so that a third process always shows on a machine with two. Before each of these
the proxy has recorded what passed earlier: to read 5 MB that it holds takes a core for longer than to pass them on.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

from .measure import Plan, middle
from .report import Figure, at_least, at_most

STREAM_BYTES = 5_000_000
EVENT_BYTES = 4_000
PATH = "/v1/chat/completions"
BARE_STREAMS = 4
"""In each round: three processes on two cores, for 10 ms, differ by half from one time to the next."""
PACE = 50e6
"""Bytes per second of the paced stream."""
Rate = tuple[float, float]


def figures(plan: Plan) -> Iterator[Figure]:
    """Upstream, proxy and client each have a process of their own, as in life."""
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    upstream = _start(context, _serve_upstream, ports)
    direct = ports.get()
    proxy = _start(context, _serve_proxy, ports, direct, str(plan.path("recorded")))
    through = ports.get()
    try:
        rounds = plan.pick(30, 3)
        waits: list[tuple[float, float]] = []
        rates: list[tuple[Rate, Rate]] = []
        paced: list[tuple[Rate, Rate]] = []
        by_sdk: list[tuple[float, float]] = []
        cpu: list[float] = []
        for _ in range(rounds):
            waits.append((_first_byte(direct, PATH), _first_byte(through, f"/openai{PATH}")))
            by_sdk.append((_sdk_rate(direct, "/v1"), _sdk_rate(through, "/openai/v1")))
            for _ in range(BARE_STREAMS):
                _wait_until_idle(proxy.pid)
                before = _loop_seconds(proxy.pid)
                rates.append((_rate(direct, PATH), _rate(through, f"/openai{PATH}")))
                cpu.append(_loop_seconds(proxy.pid) - before)
            _wait_until_idle(proxy.pid)
            paced.append((_rate(direct, PATH, pace=True), _rate(through, f"/openai{PATH}", pace=True)))
    finally:
        for process in (proxy, upstream):
            process.kill()
            process.join()
    bare, ours = (middle([pair[side] for pair in waits]) for side in (0, 1))
    yield Figure(
        "proxy_first_byte",
        "first byte, added",
        1000 * (ours - bare),
        "ms",
        at_most(2),
        {"direct": 1000 * bare},
    )
    bare, ours = (middle([pair[side] for pair in by_sdk]) for side in (0, 1))
    what = "stream of 5 MB by OpenAI's SDK, × direct"
    yield Figure("proxy_sdk_stream", what, ours / bare, "×", at_least(0.9), {"direct MB/s": bare})
    (bare, bare_in_all), (ours, ours_in_all) = (_medians([pair[side] for pair in rates]) for side in (0, 1))
    beside = {
        "with its start": ours_in_all / bare_in_all,
        "direct MB/s": bare,
        "CPU ms per MB": 1000 * min(cpu) / (STREAM_BYTES / 1e6),
    }
    what = "by a bare socket as fast as it goes, × direct"
    yield Figure("proxy_stream", what, ours / bare, "×", at_least(0.9), beside)
    (bare, _), (ours, _) = (_medians([pair[side] for pair in paced]) for side in (0, 1))
    what = "by a bare socket at 50 MB/s, × direct"
    yield Figure("proxy_paced_stream", what, ours / bare, "×", at_least(0.9), {"direct MB/s": bare})


def _medians(rates: list[Rate]) -> Rate:
    return middle([rate for rate, _ in rates]), middle([rate for _, rate in rates])


def _loop_seconds(process: int) -> float:
    """Return the CPU seconds of a process's main thread, in which the bytes pass."""
    return int(Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]) / 1e9


def _wait_until_idle(process: int) -> None:
    """Wait until a process has recorded what passed before: its threads use no CPU for a moment."""
    used, before = _cpu_seconds(process), -1.0
    while used - before > 0.001:
        time.sleep(0.02)
        used, before = _cpu_seconds(process), used


def _cpu_seconds(process: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    schedules = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(schedule.read_text().split()[0]) for schedule in schedules) / 1e9


def _start(context: SpawnContext, target: Any, *arguments: Any) -> Any:
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _first_byte(port: int, path: str) -> float:
    """Return the median time to the first byte of a short answer, on one connection."""
    wire = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for _ in range(50):
        started = time.perf_counter()
        wire.request("POST", path, b'{"messages": [{"role": "user", "content": "hi"}]}')
        wire.getresponse().read()
        times.append(time.perf_counter() - started)
    wire.close()
    return middle(times)


def _rate(port: int, path: str, *, pace: bool = False) -> tuple[float, float]:
    """Return the megabytes per second of a long stream: from its first byte, which has a figure of its own, and in all."""
    wire = http.client.HTTPConnection("127.0.0.1", port)
    asked = time.perf_counter()
    wire.request("POST", path, b'{"long": "paced"}' if pace else b'{"long": true}')
    reply, length = wire.getresponse(), 0
    started = time.perf_counter()
    while piece := reply.read1(65536):
        length += len(piece)
    ended = time.perf_counter()
    wire.close()
    return length / (ended - started) / 1e6, length / (ended - asked) / 1e6


def _sdk_rate(port: int, path: str) -> float:
    """Return the megabytes per second of the long stream that OpenAI's SDK reads, from its first piece."""
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}{path}", api_key="none", max_retries=0)
    with client:
        stream = client.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": "long"}], stream=True
        )
        length = len(next(stream).choices[0].delta.content or "")
        started = time.perf_counter()
        length += sum(len(piece.choices[0].delta.content or "") for piece in stream)
        return length / (time.perf_counter() - started) / 1e6


def _serve_upstream(ports: Any) -> None:
    text = "x" * EVENT_BYTES
    piece = {"choices": [{"index": 0, "delta": {"content": text}}], "model": "bench"}
    event = (
        b"data: "
        + json.dumps(piece | {"id": "c", "created": 1, "object": "chat.completion.chunk"}).encode()
        + b"\n\n"
    )
    chunk = b"%x\r\n%s\r\n" % (len(event), event)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                if b"long" not in body:
                    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                started = time.perf_counter()
                for number in range(STREAM_BYTES // EVENT_BYTES):
                    writer.write(chunk)
                    await writer.drain()
                    early = number * EVENT_BYTES / PACE - (time.perf_counter() - started)
                    if b"paced" in body and early > 0.001:
                        await asyncio.sleep(early)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except (EOFError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def _serve_proxy(ports: Any, upstream: int, place: str) -> None:
    import oakleaf
    from oakleaf_record.recorder import Recorder
    from oakleaf_record.server import Proxy
    from oakleaf_record.upstreams import find_upstreams

    async def main() -> None:
        recorder = Recorder(oakleaf.open(Path(place)))
        proxy = Proxy(find_upstreams({}, {"openai": f"http://127.0.0.1:{upstream}/v1"}), recorder)
        ports.put(int((await proxy.start()).rpartition(":")[2]))
        await asyncio.Event().wait()

    asyncio.run(main())
