"""What operators ask of a server and of a store: is it alive, can it work, what does it count, what needs a look."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Rates, ScriptedModel, Session, Text, ToolResult
from oakleaf.core.facts import ModelCallStarted
from oakleaf.log.doctor import session_health
from oakleaf.store import Store
from oakleaf_server.context import ServerAgent
from oakleaf_server.metrics import Metrics
from support.processes import wait_until
from support.server import CHANGE_HEADERS, LocalServer, ManualModel, bearer

TOKEN = "a token of the service"


def samples(text: str) -> dict[str, float]:
    """Read the text format of Prometheus: one sample a line, and every family described."""
    values = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line), line
        else:
            name, _, value = line.rpartition(" ")
            assert re.fullmatch(
                r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")?\})?', name
            ), line
            values[name] = float(value)
    return values


class TestServer:
    def test_health_needs_no_token_and_metrics_needs_one_and_a_switch(self, store: Store) -> None:
        with LocalServer(store, token=TOKEN) as server:
            for path in ("/healthz", "/readyz"):
                assert server.client.get(path).text == "ok\n"
            assert server.client.get("/metrics").status_code == 401
            reply = server.client.get("/metrics", headers=bearer(TOKEN))
            assert (reply.status_code, "--metrics" in reply.text) == (404, True)

    def test_a_store_that_cannot_be_read_is_not_ready(self, store: Store) -> None:
        with LocalServer(store) as server:
            store.close()
            assert server.client.get("/healthz").status_code == 200
            assert server.client.get("/readyz").status_code == (200 if "memory" in store.backend.url else 503)

    def test_requests_commits_sessions_and_money_are_counted(self, store: Store) -> None:
        metrics = Metrics()
        store.runtime = replace(store.runtime, on_commit=metrics.commits.observe)
        model = ScriptedModel(["one", "two"], model='a "model"', rates=Rates(input=3, output=15))
        session = store.start("support")
        session.send_sync("Hello", model=model)
        session.send_sync("Again", model=model)
        store.start().enqueue("later")
        with LocalServer(store, metrics=metrics) as server:
            server.get("/api/sessions")
            server.get("/api/sessions/ses_none", status=404)
            reply = server.client.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        values = samples(reply.text)
        assert values["oakleaf_commit_seconds_count"] >= 4
        assert values['oakleaf_commit_seconds_bucket{le="+Inf"}'] == values["oakleaf_commit_seconds_count"]
        assert values['oakleaf_http_responses_total{code="2xx"}'] >= 1
        assert values['oakleaf_http_responses_total{code="4xx"}'] == 1
        assert values['oakleaf_sessions{space="default",status="idle"}'] == 2
        assert values['oakleaf_queued_inputs{space="default"}'] == 1
        assert values['oakleaf_model_calls_today{space="default",model="a \\"model\\""}'] == 2
        cost = values['oakleaf_cost_today_dollars{space="default",model="a \\"model\\""}']
        assert round(cost * 1e8) == session.usage().cost_microcents > 0


TOOLS = """
import pathlib
import oakleaf

HERE = pathlib.Path(__file__).parent

@oakleaf.tool
def charge(amount: int) -> str:
    with (HERE / "charges").open("a") as charges:
        charges.write(f"{amount}\\n")
    (HERE / "gate").read_text()  # until the test opens the gate
    return "charged"
"""
CALL = {"calls": [{"id": "c", "name": "charge", "arguments": {"amount": 5}}]}


class ChargingServer:
    """`oakleaf serve` with a session inside a tool, which returns when the gate opens."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        (folder / "tools.py").write_text(TOOLS)
        (folder / "script.json").write_text(json.dumps([CALL, "Paid.", "No."]))
        os.mkfifo(folder / "gate")
        agent = ("--model", "scripted:script.json", "--set", "tools=tools.py")
        command = [sys.executable, "-m", "oakleaf.cli.main", "--store", "agent.db", "serve", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--no-open", *agent, *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self.client = httpx.Client(base_url=address, headers=CHANGE_HEADERS, timeout=30)
        self.session_id = self.client.post("/api/sessions", content=b"{}").json()["session"]["id"]
        self.store = oakleaf.open(folder / "agent.db")
        self.send("Charge it")
        wait_until(lambda: self.charges)

    def send(self, text: str) -> httpx.Response:
        return self.client.post(f"/api/sessions/{self.session_id}/send", json={"text": text, "queue": True})

    @property
    def charges(self) -> list[str]:
        path = self.folder / "charges"
        return path.read_text().split() if path.exists() else []

    def is_listening(self) -> bool:
        with suppress(httpx.ConnectError):
            return httpx.get(f"{self.client.base_url}api").is_success
        return False

    def open_gate(self) -> None:
        (self.folder / "gate").write_text("")

    def stored(self) -> Session:
        return self.store.session(self.session_id)

    def resume(self) -> Session:
        """Resume the turn as another process does."""
        command = ["resume", self.session_id, "--model", "scripted:script.json", "--set", "tools=tools.py"]
        subprocess.run(
            [sys.executable, "-m", "oakleaf.cli.main", "--store", "agent.db", *command],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        return self.stored()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.client.close()
        self.store.close()


@pytest.fixture
def charging(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ChargingServer]:
    server = ChargingServer(tmp_path, *getattr(request, "param", ()))
    yield server
    server.close()


def results(session: Session) -> list[ToolResult]:
    return [result for entry in session.path() if entry.message for result in entry.message.results]


class TestStopping:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_tool_ends_first_and_its_turn_can_be_resumed(
        self, charging: ChargingServer, number: signal.Signals
    ) -> None:
        """It cancelled the turn and then waited for the tool, whose result was lost."""
        charging.send("And again")
        charging.process.send_signal(number)
        wait_until(lambda: not charging.is_listening())
        refused = charging.send("One more")
        assert (refused.status_code, refused.json()["code"]) == (503, "stopping")
        resume = {"take_over": True}
        refused = charging.client.post(f"/api/sessions/{charging.session_id}/resume", json=resume)
        assert refused.status_code == 503
        charging.open_gate()
        _, err = charging.process.communicate(timeout=30)
        assert charging.process.returncode == 0, err
        assert "stopping: 1 turn finishes its step first; press Ctrl-C again to exit at once" in err
        session = charging.stored()
        assert [result.content for result in results(session)] == [(Text("charged"),)]
        assert session.leaf.seq == 4  # settings, input, call, result
        assert (session.row.status, session.row.holder) == ("interrupted", None)
        assert session.usage().calls == 1
        session = charging.resume()
        assert [entry.message and entry.message.text for entry in session.transcript()] == [
            "Charge it",
            "Paid.",
            "And again",
            "No.",
        ]
        assert charging.charges == ["5"]

    def test_a_second_signal_ends_it_at_once(self, charging: ChargingServer) -> None:
        charging.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not charging.is_listening())
        charging.process.send_signal(signal.SIGTERM)
        assert charging.process.wait(30) == 130
        assert [result.outcome for result in results(charging.resume())] == ["unknown"]
        assert charging.charges == ["5"]

    @pytest.mark.parametrize("charging", [("--grace", "0s")], indirect=True)
    def test_a_tool_that_takes_too_long_is_left(self, charging: ChargingServer) -> None:
        charging.process.send_signal(signal.SIGTERM)
        _, err = charging.process.communicate(timeout=30)
        assert (charging.process.returncode, "stopped: 1 turn was interrupted within a step" in err) == (
            0,
            True,
        ), err
        session = charging.stored()
        assert (session.row.status, session.row.holder) == ("interrupted", None)
        assert [call.call.name for call in session.open_tool_calls] == ["charge"]

    def test_what_was_shown_of_an_answer_stays(self, store: Store) -> None:
        model = ManualModel()
        session = store.start()
        with LocalServer(store, ServerAgent(models=(model,))) as server:
            server.post(f"/api/sessions/{session.session_id}/send", {"text": "Hello"}, 202)
            model.send("Good day ", "to ")
            wait_until(lambda: store.backend.draft(session.session_id))
        assert session.row.status == "interrupted"
        result = session.resume_sync(model=ScriptedModel(["Good day to you"]))
        assert result.text == "Good day to you"
        assert [entry.finish for entry in session.path()][1:] == ["interrupted", "stop"]


class TestDoctor:
    def test_it_names_what_needs_a_look_and_reads_no_session_one_by_one(self, store: Store) -> None:
        for n in range(25):
            store.start(session_id=f"ses_i{n}").end("interrupted")
        store.start(session_id="ses_f").end("failed", "no answer")
        for n in range(22):
            store.start(session_id=f"ses_q{n:02}").enqueue("later")
        store.session("ses_q00").enqueue("and then")
        messages = [finding.message for finding in session_health(store.backend, store.runtime)]
        assert messages[0] == "48 sessions in the space default, 0 in the trash"
        assert sum("was interrupted" in message for message in messages) == 20
        assert "5 more sessions were interrupted" in messages
        assert "ses_f failed: no answer" in messages
        assert "ses_q00 has 2 queued inputs, and nothing runs it" in messages
        assert "ses_q19 has 1 queued input, and nothing runs it" in messages
        assert "2 more queued inputs in other sessions" in messages

    def test_however_many_runners_are_gone_it_names_the_newest_sessions(self, store: Store) -> None:
        for n in range(25):
            session = store.start(session_id=f"ses_r{n}")
            session.log.record(
                ModelCallStarted(), row={"status": "running", "holder": "web:1", "lease_until": 1}
            )
        messages = [finding.message for finding in session_health(store.backend, store.runtime)]
        assert sum("is marked running" in message for message in messages) == 20
        assert "5 more sessions are marked running, but their runners are gone" in messages
