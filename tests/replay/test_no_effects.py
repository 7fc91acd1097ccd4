"""A replay has no effects: five tools that reach out of the process, recorded for real, replayed under guards.

The guards see what Python itself reports (audit hooks: connections, processes, files opened for writing); counters on
the other side see what arrives. Both are checked to trip when a tool really runs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import oakleaf
import oakleaf.replay.replay  # loaded now: compiling it later would write a file under the guards
from oakleaf import ScriptedModel, Session, ToolCall, assistant, system
from oakleaf.store import Store

WATCHED = {
    "socket.connect",
    "socket.sendto",
    "socket.sendmsg",
    "socket.bind",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.mkdir",
}
_tripped: list[str] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _tripped is None:
        return
    is_write = (
        event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    if event in WATCHED or is_write:
        _tripped.append(f"{event} {args[:2]}")


sys.addaudithook(_hook)


@contextmanager
def guard_process() -> Iterator[list[str]]:
    """What reached out of the process while it was open."""
    global _tripped
    _tripped = paths = []
    try:
        yield paths
    finally:
        _tripped = None


class Outside:
    """The outside: a folder, a raw socket, a web server and an outbox, each counting what arrives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests = self.connections = 0
        self.outbox: list[str] = []
        outside = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outside.requests += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.01,)),  # how soon it hears `shutdown`
            threading.Thread(target=self._accept),
        ]
        for thread in self.threads:
            thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                if connection.recv(4) == b"stop":
                    return
            self.connections += 1

    def close(self) -> None:
        self.server.shutdown()
        with socket.create_connection(self.listener.getsockname()) as last:
            last.sendall(b"stop")
        for thread in self.threads:
            thread.join()
        self.listener.close()
        self.server.server_close()

    def counts(self) -> dict[str, int]:
        files = sorted(self.folder.glob("*.txt"))
        return {
            "files": len(files),
            "lines": sum(len(file.read_text().splitlines()) for file in files),
            "requests": self.requests,
            "connections": self.connections,
            "outbox": len(self.outbox),
        }

    def tools(self) -> list[oakleaf.Tool]:
        @oakleaf.tool
        def write_file(name: str) -> str:
            """Write a file."""
            with (self.folder / f"{name}.txt").open("a") as file:
                file.write("written\n")
            return "written"

        @oakleaf.tool
        def knock(word: str) -> str:
            """Open a socket."""
            with socket.create_connection(self.listener.getsockname()) as line:
                line.sendall(word.encode())
                line.shutdown(socket.SHUT_WR)
                line.recv(1)
            return "knocked"

        @oakleaf.tool
        async def post(text: str) -> int:
            """Send an HTTP request."""
            line = HTTPConnection("127.0.0.1", self.server.server_port)
            line.request("POST", "/", text)
            status = line.getresponse().status
            line.close()
            return status

        @oakleaf.tool
        def run(word: str) -> str:
            """Run a program."""
            place = self.folder / "run.txt"
            subprocess.run(
                [sys.executable, "-S", "-c", f"open({str(place)!r}, 'a').write('{word}\\n')"], check=True
            )
            return "ran"

        @oakleaf.tool
        def send_mail(to: str, ctx: oakleaf.ToolContext) -> str:
            """Put a mail into the outbox."""
            self.outbox.append(to)
            ctx.update(mailed=to)
            return "sent"

        return [write_file, knock, post, run, send_mail]


CALLS = [
    ToolCall("c1", "write_file", {"name": "a"}),
    ToolCall("c2", "knock", {"word": "open"}),
    ToolCall("c3", "post", {"text": "hello"}),
    ToolCall("c4", "run", {"word": "go"}),
    ToolCall("c5", "send_mail", {"to": "ann"}),
]
ONCE = {"files": 2, "lines": 2, "requests": 1, "connections": 1, "outbox": 1}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    folder = tmp_path / "outside"
    folder.mkdir()
    runtime = Outside(folder)
    yield runtime
    runtime.close()


@pytest.fixture
def recorded(store: Store, outside: Outside) -> Session:
    """Two turns: all five at once, then one after the other with a read between."""
    session = store.start("outreach", [system("You reach out.")])
    with guard_process() as tripped:
        session.send_sync(
            "do it all", model=ScriptedModel([assistant(*CALLS), "Done."]), tools=outside.tools()
        )
    assert outside.counts() == ONCE
    kinds = {line.split()[0] for line in tripped}
    assert {"open", "socket.connect", "subprocess.Popen"} <= kinds, "the guards see nothing"
    return session


def unrecorded(name: str) -> list[Any]:
    """A model that calls each tool with arguments nobody recorded."""
    new = [ToolCall(call.id, call.name, dict.fromkeys(call.arguments, name)) for call in CALLS]
    return [assistant(*new), "Done."]


def test_a_strict_replay_has_no_effects(recorded: Session, outside: Outside) -> None:
    with guard_process() as tripped:
        report = recorded.replay_sync(tools=outside.tools())
    assert tripped == []
    assert outside.counts() == ONCE
    assert report.is_identical
    assert (report.effects_sent, report.recorded_results) == (0, 5)


@pytest.mark.parametrize("on_miss", ["stop", "next", "continue"])
@pytest.mark.parametrize("mode", ["recorded", "dry"])
def test_calls_nobody_recorded_have_no_effects(
    recorded: Session, outside: Outside, mode: Any, on_miss: Any
) -> None:
    model = ScriptedModel(unrecorded("other"))
    with guard_process() as tripped:
        report = recorded.replay_sync(model=model, tools=outside.tools(), mode=mode, on_miss=on_miss)
    assert tripped == []
    assert outside.counts() == ONCE
    assert report.effects_sent == 0
    assert sorted(report.missed_calls) == sorted(call.name for call in CALLS)


def test_the_same_calls_by_another_model_have_no_effects(recorded: Session, outside: Outside) -> None:
    model = ScriptedModel([assistant(*reversed(CALLS)), "Done, in another order."])
    with guard_process() as tripped:
        report = recorded.replay_sync(model=model, tools=outside.tools())
    assert tripped == []
    assert outside.counts() == ONCE
    assert (report.recorded_results, report.missed_calls) == (5, ())


def test_a_dry_run_says_what_it_would_have_done_and_does_nothing(store: Store, outside: Outside) -> None:
    tools = [
        oakleaf.tool(name=tool.name, dry_run=lambda **arguments: f"would use {sorted(arguments)}")(
            tool.function
        )
        for tool in outside.tools()
    ]
    session = store.start()
    session.send_sync("hello", model=ScriptedModel(["Hi."]))
    with guard_process() as tripped:
        report = session.replay_sync(
            model=ScriptedModel([assistant(*CALLS), "Done."]), tools=tools, mode="dry"
        )
    assert tripped == []
    assert set(outside.counts().values()) == {0}
    assert sum(report.dry_runs.values()) == 5
    assert report.effects_sent == 0
    results = [
        entry.message.results[0] for entry in store.session(report.replay).path() if entry.role == "tool"
    ]
    assert {result.outcome for result in results} == {"dry_run"}
    assert results[0].content[0].text.startswith("would use")


def test_live_runs_the_named_tool_and_no_other(recorded: Session, outside: Outside) -> None:
    with guard_process() as tripped:
        report = recorded.replay_sync(tools=outside.tools(), live=["send_mail"], effects="repeat")
    assert tripped == []
    assert outside.counts() == {**ONCE, "outbox": 2}
    assert report.effects == {"send_mail": 1}
    assert report.recorded_results == 4


def test_a_replay_cannot_be_driven_on_by_accident(store: Store, recorded: Session, outside: Outside) -> None:
    report = recorded.replay_sync()
    replay = store.session(report.replay)
    model = ScriptedModel([assistant(*CALLS), "Done."])
    with pytest.raises(oakleaf.OakleafError, match="is a replay"):
        replay.send_sync("again", model=model, tools=outside.tools())
    with pytest.raises(oakleaf.OakleafError, match="is a replay"):
        replay.resume_sync(model=model, tools=outside.tools())
    assert outside.counts() == ONCE
    fork = replay.fork(effects="repeat")
    fork.send_sync("again", model=model, tools=outside.tools())
    assert outside.counts()["outbox"] == 2
