"""`oakleaf record` with a real program that knows nothing of Oakleaf: the one bundled with the Claude Agent SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import claude_agent_sdk
import pytest

import oakleaf
from support.fake_providers import STREAMS, Call, Completion

CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
_numbers = count(1)
"""Claude joins answers that have one id."""
KEY = "sk-ant-the-key-of-the-user"


class _Anthropic(BaseHTTPRequestHandler):
    """Asks for a shell command if the input wants a list, and is done when it sees the result."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = json.dumps(body["messages"][-1:])
        command = json.dumps({"command": "echo hello", "description": "say hello"})
        wants_list = "list the files" in json.dumps(body["messages"][-2:]) and "tool_result" not in last
        says = (
            Completion("I look.", "", (Call("toolu_1", "Bash", command),))
            if wants_list
            else Completion("All done.")
        )
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in STREAMS["anthropic"](says, next(_numbers)):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def anthropic() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Anthropic)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_claude_is_recorded_and_continued_in_another_run(anthropic: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    record = [sys.executable, "-m", "oakleaf.cli.main", "--store", str(tmp_path / "s.db")]
    record += ["record", "--upstream", f"anthropic={anthropic}", "--", str(CLAUDE)]

    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [*record, *arguments],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (ran.returncode, ran.stdout.strip()) == (0, "All done."), ran.stderr
        return ran.stderr

    assert "2 calls in 1 session" in run("-p", "list the files", "--allowedTools", "Bash")
    assert "1 call in 1 session" in run("--continue", "-p", "and again")
    with oakleaf.open(tmp_path / "s.db") as store:
        (row,) = store.sessions().sessions
        session = store.session(row.session_id)
        assert (row.turns, row.tags["recorded_from"]) == (2, "claude-cli")
        messages = [entry.message for entry in session.path() if entry.message is not None]
        assert [call.name for message in messages for call in message.calls] == ["Bash"]
        assert [result.content[0].text for message in messages for result in message.results] == ["hello"]  # type: ignore[union-attr]
        assert [m.text for m in messages if m.role == "assistant"] == ["I look.", "All done.", "All done."]
        tools = session.request("anthropic")["tools"]
        assert "Bash" in [tool["name"] for tool in tools]
        assert not list(store.verify())
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("s.db*"))
    assert KEY.encode() not in stored
