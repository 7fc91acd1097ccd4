"""The engine from the command line: migrate, worker, run, approve; a worker there is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf_postgres import absurd
from support import paths
from support.collector import collecting
from support.postgres import Database, DatabaseHost
from support.processes import wait_until
from support.terminal import oakleaf

numbers = count(1)

AGENTS = """
import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant
from oakleaf_postgres.absurd import Agent


@oakleaf.tool(approval=True)
def refund(order: int) -> str:
    '''Give the money back.'''
    return f"refunded {order}"


def answer(request):
    said = sum(message.role == "assistant" for message in request.messages)
    return [assistant("I refund it.", ToolCall("c", "refund", {"order": 41})), "Refunded.", "Welcome."][said]


support = Agent("support", ScriptedModel(answer), [refund])
"""


@pytest.fixture(scope="module")
def installed(postgres: DatabaseHost) -> Database:
    return Database(postgres, "absurd_cli")


@pytest.fixture
def queue(installed: Database) -> str:
    name = f"c{next(numbers)}"
    done = oakleaf("migrate", "--queue", name, "--yes", "--json", store=installed.owner_url)
    assert done.json["report"]["queue"] == name
    return name


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    place = tmp_path / "agents.py"
    place.write_text(AGENTS)
    return place


@contextmanager
def worker(installed: Database, queue: str, agents: Path) -> Iterator[Path]:
    command = [sys.executable, "-m", "oakleaf.cli.main", "--store", installed.url, "worker", "--queue", queue]
    options = ["--agents", str(agents), "--concurrency", "2", "--lease", "5s"]
    output_path = agents.parent / "said"
    with output_path.open("w") as file, subprocess.Popen([*command, *options], stderr=file) as process:
        try:
            yield output_path
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


class TestWorker:
    def test_an_input_is_answered_by_a_worker_after_a_person_has_spoken(
        self, installed: Database, queue: str, agents: Path
    ) -> None:
        result = oakleaf("enqueue", "--queue", queue, "--agent", "support", "Refund 41", store=installed.url)
        assert result.code == 0, result.err
        session_id = result.out.strip()
        assert "oakleaf tail -f" in result.err
        sleeping = f"select 1 from absurd.t_{queue} where state = 'sleeping'"
        with worker(installed, queue, agents) as output_path:
            wait_until(lambda: installed.run(sleeping))
            hint = oakleaf("show", session_id, store=installed.url).err
            assert f"oakleaf approve {session_id}, then its worker continues" in hint, (
                "not oakleaf resume here"
            )
            assert oakleaf("approve", session_id, "--yes", store=installed.url).code == 0
            wait_until(lambda: "Refunded." in oakleaf("show", session_id, store=installed.url).out)
            report = json.loads(oakleaf("show", session_id, "--json", store=installed.url).out)
            assert report["session"]["status"] == "completed"
            more = oakleaf("enqueue", "--queue", queue, "--resume", session_id, "Thanks", store=installed.url)
            assert more.code == 0, more.err
            wait_until(lambda: "Welcome." in oakleaf("show", session_id, store=installed.url).out)
        assert "runs tasks" in output_path.read_text()
        assert "stopping" in output_path.read_text()

    def test_an_input_of_a_busy_session_waits_for_its_task(self, installed: Database, queue: str) -> None:
        command = ["enqueue", "--queue", queue]
        result = oakleaf(*command, "--agent", "support", "--json", "One", store=installed.url)
        name = result.json["sent"]["session_id"]
        assert oakleaf(*command, "--resume", name, "--key", "k", "Two", store=installed.url).code == 3
        queued = oakleaf(*command, "--resume", name, "--json", "Two", store=installed.url)
        assert queued.json["sent"]["task_id"] == result.json["sent"]["task_id"]
        assert installed.run(f"select count(*) from absurd.t_{queue}") == [(1,)]


class TestTelemetry:
    TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def test_spans_of_a_worker_are_in_the_trace_of_the_sender(
        self, installed: Database, queue: str, tmp_path: Path
    ) -> None:
        agents = tmp_path / "agents.py"
        agents.write_text(AGENTS.replace("(approval=True)", '(effect="read")'))
        command = [sys.executable, "-m", "support.traced_process", "oakleaf.cli.main"]
        options = ["--store", installed.url, "worker", "--queue", queue, "--agents", str(agents)]
        with collecting() as collector, library.open(installed.url) as store:
            session = store.start("support")
            absurd.send(session, "Refund 41", queue=queue, trace=self.TRACE)
            environment = {**os.environ, **collector.environment, "PYTHONPATH": str(paths.ROOT / "tests")}
            with subprocess.Popen(
                [*command, *options], env=environment, stderr=subprocess.DEVNULL
            ) as process:
                try:
                    wait_until(lambda: session.row.status in ("idle", "completed"))
                finally:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(30) == 0
        inner = [("chat scripted", []), ("execute_tool refund", []), ("chat scripted", [])]
        assert collector.tree() == [("invoke_agent support", inner)]
        (agent,) = collector.named("invoke_agent support")
        assert f"00-{agent.trace_id.hex()}-{agent.parent_span_id.hex()}-01" == self.TRACE
        assert "gen_ai.client.token.usage" in {metric.name for metric in collector.metrics}


AGENT_FILE = """
model = "scripted:answers.json"
prompt = "For {{ctx.who}}."
tools = ["shop.py"]
approval = ["refund"]

[limits]
turns = 5

[context]
variables = { who = "Ann" }
"""
SHOP = """
import oakleaf

@oakleaf.tool
def refund(order: int) -> str:
    'Give the money back.'
    return f"refunded {order}"
"""


class TestAgentFile:
    @pytest.mark.parametrize("kind", ["toml", "py"])
    def test_a_worker_and_an_input_share_one_file(
        self, installed: Database, queue: str, tmp_path: Path, kind: str
    ) -> None:
        call = {"calls": [{"name": "refund", "arguments": {"order": 41}}]}
        (tmp_path / "answers.json").write_text(json.dumps([call, "Refunded."]))
        (tmp_path / "shop.py").write_text(SHOP)
        python = AGENT_FILE.replace("[limits]\nturns", "limits = {}\nlimits['turns']")
        python = python.replace("[context]\nvariables = { who =", "context = {'variables': {'who':").replace(
            '"Ann" }', '"Ann"}}'
        )
        file = tmp_path / f"support.{kind}"
        file.write_text(AGENT_FILE if kind == "toml" else python)
        command = ("enqueue", "--queue", queue, "--agent", file, "--set", "trigger=email:17")
        result = oakleaf(*command, "Refund 41", store=installed.url)
        assert result.code == 0, result.err
        session_id = result.out.strip()
        with library.open(installed.url) as store:
            session = store.session(session_id)
            assert (session.row.agent, session.context().system) == ("support", ("For Ann.",))
        sleeping = f"select 1 from absurd.t_{queue} where state = 'sleeping'"
        with worker(installed, queue, file):
            wait_until(lambda: installed.run(sleeping))
            assert oakleaf("approve", session_id, "--yes", store=installed.url).code == 0
            wait_until(lambda: "Refunded." in oakleaf("show", session_id, store=installed.url).out)

    @pytest.mark.parametrize("key", ["model=x:y", "tools=x.py", "limits.rounds=3", "workspace.scope=full"])
    def test_an_input_does_not_decide_what_the_worker_decides(
        self, installed: Database, queue: str, key: str
    ) -> None:
        command = ("enqueue", "--queue", queue, "--agent", "support", "--set", key, "hi")
        refused = oakleaf(*command, store=installed.url)
        assert (refused.code, "the worker decides it" in refused.err) == (2, True)

    def test_a_worker_needs_a_model(self, installed: Database, tmp_path: Path) -> None:
        (tmp_path / "support.toml").write_text("prompt = 'x'\n")
        refused = oakleaf("worker", "--agents", tmp_path / "support.toml", store=installed.url)
        assert (refused.code, "names no model" in refused.err) == (2, True)


class TestBadInput:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (["enqueue", "hi"], "needs --agent NAME"),
            (["enqueue", "--agent", "a", "--model", "x:y", "hi"], "No such option '--model'"),
            (["enqueue", "--queue", "nowhere", "--agent", "a", "hi"], "--queue nowhere"),
            (["worker"], "name an agent file: oakleaf worker --agents support.toml"),
            (["worker", "--agents", "nothing.py"], "no file nothing.py"),
            (["worker", "--queue", "nowhere", "--agents", "AGENTS"], "--queue nowhere"),
            (["worker", "--lease", "soon", "--agents", "AGENTS"], "a duration: 30s"),
            (["worker", "--grace", "2", "--agents", "AGENTS"], "a duration: 30s"),
            (["worker", "--agents", paths.__file__], "has no agents"),
        ],
    )
    def test_each_says_what_to_do(
        self, installed: Database, queue: str, agents: Path, line: list[str], words: str
    ) -> None:
        command = [str(agents) if word == "AGENTS" else word for word in line]
        done = oakleaf(*command, store=installed.url)
        assert done.code in (1, 2), done.err
        assert words in done.err
        assert "runs tasks" not in done.err
        assert "Traceback" not in done.err

    @pytest.mark.parametrize("line", [["enqueue", "--agent", "a", "hi"], ["migrate"]])
    def test_a_file_has_no_workers(self, tmp_path: Path, line: list[str]) -> None:
        done = oakleaf(*line, "--queue", "q", store=tmp_path / "s.db")
        assert done.code == 2
        assert "need PostgreSQL" in done.err
        assert not (tmp_path / "s.db").exists()

    def test_without_the_schema_it_says_what_to_run(self, migrated_database: Database) -> None:
        done = oakleaf("enqueue", "--agent", "a", "hi", store=migrated_database.url)
        assert done.code == 1
        assert "migrate --queue oakleaf" in done.err

    def test_one_command_sets_up_an_empty_database(self, postgres: DatabaseHost) -> None:
        url = postgres.url(postgres.create_database("absurd_empty"))
        assert "migrate --queue" in oakleaf("worker", "--help").out
        done = oakleaf("migrate", "--queue", "oakleaf", "--yes", store=url)
        assert done.code == 0, done.err
        assert "now has schema" in done.out
        assert "queue 'oakleaf' is ready" in done.out
        queued = oakleaf("enqueue", "--agent", "support", "hi", store=url)
        assert queued.code == 0, queued.err
