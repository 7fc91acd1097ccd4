"""Models for tests: scripts, files of scripts, and recordings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import oakleaf
from oakleaf import ScriptedModel, ToolCall, assistant
from oakleaf.errors import ModelError, ModelUnavailable, TurnLimit
from oakleaf.models.names import model_by_name
from oakleaf.models.recorded import RecordedModel
from oakleaf.models.scripted import MAX_SCRIPT_BYTES
from oakleaf.store import Store

SCRIPT = """
- text: Let me see.
  calls:
    - {name: look, arguments: {n: 1}, id: c1}
- It is there.
"""


@oakleaf.tool(effect="read")
def look(n: int) -> str:
    """Looks."""
    return f"saw {n}"


@pytest.mark.parametrize("kind", [pytest.param("yaml", marks=pytest.mark.extra), "json"])
def test_a_script_file_goes_on_after_the_last_process(store: Store, tmp_path: Path, kind: str) -> None:
    place = tmp_path / f"script.{kind}"
    lines = '[{"text":"Let me see.","calls":[{"name":"look","arguments":{"n":1},"id":"c1"}]},"It is there."]'
    place.write_text(SCRIPT if kind == "yaml" else lines)
    session = store.start()
    session.append([oakleaf.user("q")])
    with pytest.raises(TurnLimit):
        session.resume_sync(model=f"scripted:{place}", tools=[look], limits=oakleaf.Limits(rounds=1))
    again = store.start()
    again.send_sync("q", model=f"scripted:{place}", tools=[look])
    assert [entry.message.text for entry in again.transcript()] == ["q", "It is there."]
    assert again.path()[-1].model == f"scripted:{place}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "wrong shape"),
        ("- {unknown: 1}", "wrong shape"),
        ("- [1]", "wrong shape"),
        ("\t:", "wrong shape"),
    ],
)
@pytest.mark.extra
def test_a_script_of_the_wrong_shape_is_named(tmp_path: Path, text: str, message: str) -> None:
    place = tmp_path / "script.yaml"
    place.write_text(text)
    with pytest.raises(ModelUnavailable, match=message):
        model_by_name(f"scripted:{place}")


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        model_by_name(f"scripted:{tmp_path / 'none.yaml'}")


@pytest.mark.attack
class TestFile:
    @pytest.mark.parametrize("path", ["/dev/zero", "/"])
    def test_only_a_regular_file_is_read(self, path: str) -> None:
        with pytest.raises(ModelUnavailable, match="it is not a regular file"):
            model_by_name(f"scripted:{path}")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(ModelUnavailable, match="it is not a regular file"):
            model_by_name(f"scripted:{tmp_path}/pipe.json")

    def test_a_large_file_is_refused_with_the_limit(self, tmp_path: Path) -> None:
        with (tmp_path / "large.json").open("wb") as file:
            file.truncate(MAX_SCRIPT_BYTES + 1)
        with pytest.raises(ModelUnavailable, match="it has more than 10,000,000 bytes"):
            model_by_name(f"scripted:{tmp_path}/large.json")


def test_a_script_that_ends_says_so(store: Store) -> None:
    session = store.start()
    events = session.send_sync("q", model=ScriptedModel([])).events
    assert "no more lines" in events[-1].data["error"]["message"]


class TestRecorded:
    def test_a_recording_says_the_same_again(self, store: Store) -> None:
        first = store.start()
        script = [assistant("Hm.", ToolCall("c1", "look", {"n": 1})), "Done."]
        first.send_sync("q", model=ScriptedModel(script), tools=[look])
        second = store.start()
        second.send_sync("q", model=RecordedModel(first.path()), tools=[look])
        assert [entry.payload for entry in second.path()] == [entry.payload for entry in first.path()]
        assert [entry.entry_id for entry in second.path()] == [entry.entry_id for entry in first.path()]

    def test_an_unasked_question_is_a_miss_and_never_a_guess(self, store: Store) -> None:
        first = store.start()
        first.send_sync("q", model=ScriptedModel(["a"]))
        second = store.start()
        events = second.send_sync("something else", model=RecordedModel(first.path())).events
        assert events[-1].data["error"]["code"] == ModelError("m", "r").code
        assert len(second.path()) == 1


def test_a_script_may_state_costs(tmp_path: Path) -> None:
    place = tmp_path / "priced.json"
    place.write_text('{"rates": {"input": 3.0, "output": 15.0, "cache_read": 0.3}, "lines": ["Hello."]}')
    with oakleaf.open("memory:") as store:
        session = store.start()
        session.send_sync("hi", model=f"scripted:{place}")
        (call,) = session.model_calls()
        spent = (call.usage.input_tokens or 0) * 300 + (call.usage.output_tokens or 0) * 1_500
        assert call.price == oakleaf.Price(spent, "rates of the model")


def test_rates_price_cached_tokens_once() -> None:
    rates = oakleaf.Rates(input=3.0, output=15.0, cache_read=0.3)
    price = rates.price(oakleaf.Usage(1_000_000, 0, 900_000, 0))
    assert price is not None
    assert price.microcents == 57_000_000  # 100,000 at 3 dollars and 900,000 at 30 cents a million
    assert rates.price(oakleaf.Usage()) is None


def test_a_script_counts_the_answers_of_the_session(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "answers.json"
    place.write_text('["One."]')
    session = store.start()
    session.append([oakleaf.user("q"), oakleaf.assistant("An imported answer.")])
    result = session.send_sync("q", model=f"scripted:{place}")
    assert result.error is not None
    assert "its script has 1 line, one for each answer of the session" in result.error.message
    assert "the session has 1 answer; add a line for each answer" in result.error.message
