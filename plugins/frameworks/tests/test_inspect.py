"""Inspect itself reads the logs we write for it, lists them, scores them and writes them again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from inspect_ai import score
from inspect_ai.log import EvalLog, EvalSample, list_eval_logs, read_eval_log, write_eval_log
from inspect_ai.log import read_eval_log_sample_summaries as summaries
from inspect_ai.scorer import includes

import oakleaf
from oakleaf import Attachment, Reasoning, Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core.usage import Usage
from support.random_logs import SOAK
from support.random_sessions import sessions
from support.sessions import exported


def read(session: Session, folder: Path) -> EvalLog:
    place = folder / "log.json"
    place.write_text(exported(session, "inspect"), encoding="utf-8")
    return read_eval_log(str(place))


def only(log: EvalLog) -> EvalSample:
    assert log.samples is not None
    (sample,) = log.samples
    return sample


def models(sample: EvalSample) -> list[Any]:
    return [event for event in sample.events if event.event == "model"]


@pytest.fixture
def session() -> Session:
    session = oakleaf.open("memory:").start("support", [system("You help.")], title="Order 41")
    with session.turn("Where is it?") as turn:
        looks = assistant(Reasoning("hm"), "I look.", ToolCall("c", "lookup", {"order": 41}))
        turn.answer(looks, usage=Usage(100, 10, 60, 30), provider="anthropic", model="m-1")
        turn.result("c", "lost", error=True)
        turn.answer(assistant("It is lost."), usage=Usage(150, 20), provider="anthropic", model="m-1")
    photo = Attachment(b"\x89PNG\r\n\x1a\n", "image/png", "cat.png")
    session.append([user("And this?", photo), assistant(ToolCall("d", "pay", malformed="{"))])
    session.append([tool_result("d", "no", outcome="denied"), assistant("I may not.")])
    session.compact("They asked for order 41.")
    session.append([user("Bye."), assistant("Bye.")])
    return session


class TestReading:
    def test_every_field_comes_back_as_a_value_of_inspect(self, session: Session, tmp_path: Path) -> None:
        log = read(session, tmp_path)
        assert (log.version, log.status, log.eval.task, log.eval.model) == (
            2,
            "success",
            "support",
            "anthropic/m-1",
        )
        sample = only(log)
        assert sample.id == session.session_id
        assert [message.role for message in sample.input] == ["system", "user"]  # type: ignore[union-attr]
        assert [message.text for message in sample.messages][-1] == "Bye."
        assert len(sample.messages) == len(session.path()) - 1
        assert sample.output.completion == "Bye."
        used = log.stats.model_usage["anthropic/m-1"]
        assert (used.input_tokens, used.input_tokens_cache_read, used.total_tokens) == (160, 60, 280)

    def test_what_each_call_was_given_comes_out_of_the_pool(self, session: Session, tmp_path: Path) -> None:
        texts = [[message.text for message in event.input] for event in models(only(read(session, tmp_path)))]
        assert texts[0] == ["You help.", "Where is it?"]
        assert texts[1] == ["You help.", "Where is it?", "I look.", "lost"]
        assert texts[-1][0] == "You help."
        assert "They asked for order 41." in texts[-1][1]

    def test_calls_and_their_errors_are_there(self, session: Session, tmp_path: Path) -> None:
        tools = [event for event in only(read(session, tmp_path)).events if event.event == "tool"]
        results = [(tool.function, tool.error and tool.error.type, tool.result) for tool in tools]
        assert results == [("lookup", "unknown", "lost"), ("pay", "approval", "no")]

    def test_the_header_can_be_read_alone(self, session: Session, tmp_path: Path) -> None:
        read(session, tmp_path)
        header = read_eval_log(str(tmp_path / "log.json"), header_only=True)
        assert (header.samples, header.eval.task) == (None, "support")
        (summary,) = summaries(str(tmp_path / "log.json"))
        assert (summary.id, summary.message_count) == (session.session_id, len(session.path()) - 1)

    def test_a_session_that_failed_is_an_eval_that_failed(self, tmp_path: Path) -> None:
        session = oakleaf.open("memory:").start()
        session.append([user("q")])
        session.end("failed", "the model is on holiday")
        log = read(session, tmp_path)
        assert log.status == "error"
        assert log.error is not None
        assert log.error.message == "the model is on holiday"

    def test_an_empty_session_and_one_in_mid_turn_are_read(self, tmp_path: Path) -> None:
        session = oakleaf.open("memory:").start()
        assert only(read(session, tmp_path)).messages == []
        session.turn("q", model="anthropic:m").__enter__()
        log = read(session, tmp_path)
        assert log.status == "started"
        (event,) = models(only(log))
        assert event.error == "no answer is known"


class TestUsing:
    def test_a_folder_of_logs_is_listed(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "s.db") as store:
            store.start("support_2", session_id="ses_case").append([user("q"), assistant("a")])
        line = [sys.executable, "-m", "oakleaf.cli.main", "--store", str(tmp_path / "s.db")]
        subprocess.run([*line, "export", "ses_case", "--format", "inspect", "-o", str(tmp_path)], check=True)
        (info,) = list_eval_logs(str(tmp_path))
        assert info.task == "support-2"
        assert only(read_eval_log(info)).id == "ses_case"

    def test_a_scorer_of_inspect_scores_it(self, session: Session, tmp_path: Path) -> None:
        log = read(session, tmp_path)
        only(log).target = "Bye"
        scored = score(log, includes(), display="none", model="mockllm/model")
        assert scored.results is not None
        assert scored.results.scores[0].metrics["accuracy"].value == 1
        scores = only(scored).scores
        assert scores is not None
        assert scores["includes"].value == "C"

    @pytest.mark.parametrize("ending", ["eval", "json"])
    def test_inspect_writes_it_again_and_nothing_is_lost(
        self, session: Session, tmp_path: Path, ending: str
    ) -> None:
        log = read(session, tmp_path)
        place = tmp_path / f"again.{ending}"
        write_eval_log(log, str(place))
        again = only(read_eval_log(str(place)))
        assert again.messages == only(log).messages
        assert [event.model_dump() for event in again.events] == [
            event.model_dump() for event in only(log).events
        ]


class TestAnyLog:
    @settings(max_examples=1_000 if SOAK else 25, deadline=None)
    @given(sessions())
    def test_every_log_is_read(self, tmp_path_factory: pytest.TempPathFactory, session: Session) -> None:
        sample = only(read(session, tmp_path_factory.getbasetemp()))
        messages = [entry.message for entry in session.path() if entry.message is not None]
        assert len(sample.messages) == sum(len(message.results) or 1 for message in messages)
        assert all(event.input_refs is None for event in models(sample))
