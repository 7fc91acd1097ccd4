"""Live telemetry: spans and metrics sent by the SDK's own exporter to a collector on a loopback port, and read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf
from oakleaf import Session
from support.collector import Collector, attributes, collecting
from support.paths import ROOT
from support.sessions import exported_lines

pytestmark = pytest.mark.extra
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SETUP = f"""
import logging
import oakleaf
from oakleaf import Rates, ScriptedModel, ToolCall, ToolContext, Usage, assistant
from oakleaf.errors import Overloaded
from oakleaf.telemetry import telemetry, traceparent

logging.basicConfig(level=logging.WARNING)
TRACE = "{TRACE}"
CALL = ToolCall("c", "lookup", {{"order": 41}})


@oakleaf.tool(effect="read")
def lookup(order: int) -> str:
    '''Look up.'''
    return traceparent()


@oakleaf.tool(effect="read")
async def delegate(ctx: ToolContext) -> str:
    '''Ask.'''
    return await ctx.task("Look", agent="clerk", models=[ScriptedModel(["Found."])])


store = oakleaf.open("agent.db", hooks=[telemetry()])
session = store.start("support", session_id="ses_1")
"""


def run(folder: Path, script: str, **environment: str) -> str:
    (folder / "script.py").write_text(SETUP + script)
    command = [sys.executable, "-m", "support.traced_process", "script.py"]
    known = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), **environment}
    done = subprocess.run(
        command, cwd=folder, env=known, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def recorded(folder: Path) -> Session:
    return oakleaf.open(folder / "agent.db").session("ses_1")


@pytest.fixture
def collector(tmp_path: Path):  # type: ignore[no-untyped-def]
    with collecting() as collector:
        yield collector


class TestSpans:
    def test_a_run_is_one_trace_of_agent_model_and_tool(self, tmp_path: Path, collector: Collector) -> None:
        script = """
model = ScriptedModel([assistant(CALL), "Lost."], rates=Rates(input=3, output=15))
session.send_sync("Where is it?", model=model, tools=[lookup], trace=TRACE)
"""
        run(tmp_path, script, **collector.environment)
        inner = [("chat scripted", []), ("execute_tool lookup", []), ("chat scripted", [])]
        assert collector.tree() == [("invoke_agent support", inner)]
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE[3:35]}
        (agent,) = collector.named("invoke_agent support")
        assert agent.parent_span_id.hex() == TRACE[36:52]
        (tool,) = collector.named("execute_tool lookup")
        session = recorded(tmp_path)
        result = next(entry.message for entry in session.path() if entry.role == "tool")
        assert result is not None
        assert result.results[0].text == f"00-{tool.trace_id.hex()}-{tool.span_id.hex()}-01", (
            "out of the tool"
        )
        (call, _), chats = session.model_calls(), collector.named("chat scripted")
        first = attributes(chats[0].attributes)
        assert first["gen_ai.usage.input_tokens"] == call.usage.input_tokens
        assert call.price is not None
        assert first["oakleaf.cost_microcents"] == call.price.microcents
        assert "Where is it?" not in str(collector.spans), "no content"

    def test_live_spans_have_the_attributes_of_the_export(self, tmp_path: Path, collector: Collector) -> None:
        run(
            tmp_path,
            'session.send_sync("Hi", model=ScriptedModel([assistant(CALL), "Lost."]), tools=[lookup])',
            **collector.environment,
        )

        (line,) = exported_lines(recorded(tmp_path), "otel")
        (scope,) = json.loads(line)["resourceSpans"][0]["scopeSpans"]
        for name in ("invoke_agent support", "chat scripted", "execute_tool lookup"):
            written = {
                one["key"] for span in scope["spans"] if span["name"] == name for one in span["attributes"]
            }
            live = {key for span in collector.named(name) for key in attributes(span.attributes)}
            assert live - {"oakleaf.status", "oakleaf.turn"} >= written - {
                "gen_ai.response.model",
                "oakleaf.outcome",
                "oakleaf.seq",
                "oakleaf.turn",
            }

    def test_a_task_is_inside_the_tool_that_started_it(self, tmp_path: Path, collector: Collector) -> None:
        script = """
model = ScriptedModel([assistant(ToolCall("c", "delegate", {})), "Done."])
session.send_sync("Go", model=model, tools=[delegate])
"""
        run(tmp_path, script, **collector.environment)
        task = ("invoke_agent clerk", [("chat scripted", [])])
        inner = [("chat scripted", []), ("execute_tool delegate", [task]), ("chat scripted", [])]
        assert collector.tree() == [("invoke_agent support", inner)]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_an_own_loop_has_the_same_spans(
        self, tmp_path: Path, collector: Collector, is_async: bool
    ) -> None:
        script = """
with session.turn("Where is it?", model="fake:m", trace=TRACE) as turn:
    turn.answer(assistant(CALL), usage=Usage(7, 3), model="m", provider="fake")
    turn.run(turn.open_tool_calls[0], lookup)
    turn.answer(assistant("Lost."), usage=Usage(7, 3), model="m", provider="fake")
"""
        if is_async:
            body = script.replace("with", "async with").replace("    turn.", "    await turn.")
            script = "import asyncio\n\n\nasync def main():\n" + body.replace("\n", "\n    ")
            script += "\n\nasyncio.run(main())\n"
        run(tmp_path, script, **collector.environment)
        inner = [("chat m", []), ("execute_tool lookup", []), ("chat m", [])]
        assert collector.tree() == [("invoke_agent support", inner)]
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE[3:35]}

    def test_a_failed_call_is_an_error_and_its_turn_too(self, tmp_path: Path, collector: Collector) -> None:
        script = """
session.send_sync("Hi", model=ScriptedModel([Overloaded("m", "busy")]), limits=oakleaf.Limits(tries=1))
"""
        run(tmp_path, script, **collector.environment)
        (chat,) = collector.named("chat scripted")
        assert (chat.status.code, attributes(chat.attributes)["error.type"]) == (2, "Overloaded")
        assert collector.named("invoke_agent support")[0].status.code == 2


class TestMetrics:
    def test_tokens_cost_seconds_and_failures_are_counted(self, tmp_path: Path, collector: Collector) -> None:
        script = """
model = ScriptedModel([assistant(CALL), "Lost."], rates=Rates(input=3, output=15))
session.send_sync("Where is it?", model=model, tools=[lookup])
session.send_sync("Hi", model=ScriptedModel([Overloaded("m", "busy")]), limits=oakleaf.Limits(tries=1))
"""
        run(tmp_path, script, **collector.environment)
        metrics = {metric.name: metric for metric in collector.metrics}
        spent = recorded(tmp_path).usage()
        tokens = {
            attributes(point.attributes)["gen_ai.token.type"]: point.sum
            for point in metrics["gen_ai.client.token.usage"].histogram.data_points
            if "scripted" in str(point.attributes)
        }
        assert tokens == {"input": spent.input_tokens, "output": spent.output_tokens}
        (cost,) = metrics["oakleaf.cost"].sum.data_points
        assert cost.as_int == spent.cost_microcents
        calls = metrics["gen_ai.client.operation.duration"].histogram.data_points
        failures = {attributes(point.attributes).get("error.type"): point.count for point in calls}
        assert failures == {None: 2, "Overloaded": 1}
        assert metrics["gen_ai.execute_tool.duration"].histogram.data_points[0].count == 1
        assert (
            sum(point.count for point in metrics["gen_ai.invoke_agent.duration"].histogram.data_points) == 2
        )


class TestFaults:
    def test_a_broken_collector_stops_nothing_and_is_reported(self, tmp_path: Path) -> None:
        script = 'assert session.send_sync("Hi", model=ScriptedModel(["Hello."])).answer == "Hello."'
        port = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
        assert "Failed to export" in run(tmp_path, script, **port)
        assert recorded(tmp_path).path()[-1].text == "Hello."

    def test_nothing_is_recorded_or_loaded_without_an_sdk(self, tmp_path: Path) -> None:
        script = """
import sys
import oakleaf
from oakleaf.telemetry import installed_telemetry, telemetry, traceparent
assert installed_telemetry() == () and not [name for name in sys.modules if "opentelemetry" in name]
store = oakleaf.open("agent.db", hooks=[telemetry()])
store.start().send_sync("Hi", model=oakleaf.ScriptedModel(["Hello."]))
assert traceparent() is None and not [name for name in sys.modules if "opentelemetry.sdk" in name]
"""
        command = [sys.executable, "-W", "error", "-c", script]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)

    def test_a_missing_package_is_named_with_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from oakleaf.telemetry import telemetry

        for name in ("opentelemetry", "opentelemetry.context"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(oakleaf.OakleafError, match=r"is not installed.*\[otel\]"):
            telemetry()
