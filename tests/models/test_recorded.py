"""A model that says what was said before, found by the history that led to it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings

import oakleaf
from oakleaf import Entry, RecordedModel, Session, ToolCall, assistant, system, tool_result, user
from oakleaf.core import context as contexts
from oakleaf.errors import ModelError
from oakleaf.models.base import Delta, Request
from oakleaf.models.recorded import History
from oakleaf.store import Store
from support.random_logs import SOAK, paths


@pytest.fixture
def session(store: Store) -> Session:
    session = store.start("s", [system("You help."), user("seed"), assistant("seen")])
    session.append([user("q"), assistant("Hm.", ToolCall("c", "look", {"n": 1}))])
    session.append([tool_result("c", "saw 1"), assistant("Done.")])
    session.append([user("again"), assistant("Done again.")])
    return session


def find_answer(model: RecordedModel, path: list[Entry]) -> Entry | None:
    return model.find(contexts.build_context(path))


def test_every_answer_is_found_by_the_history_before(session: Session) -> None:
    session.compact("They looked.")
    session.append([user("and now?"), assistant("Now.")])
    session.uncompact()
    session.append([user("and then?"), assistant("Then.")])
    path = session.path()
    model = RecordedModel(path)
    answers = [entry for entry in path if entry.role == "assistant" and entry.turn]
    assert len(answers) == 5
    for entry in answers:
        assert find_answer(model, path[: entry.seq - 1]) == entry


@settings(max_examples=2_000 if SOAK else 50, deadline=None)
@given(paths())
def test_a_followed_history_finds_the_same_answers(path: list[Entry]) -> None:
    model, history = RecordedModel(path), History()
    for n, entry in enumerate(path, 1):
        history.follow(entry)
        known = find_answer(model, path[:n])
        if known is None:
            with pytest.raises(ModelError, match="was not recorded"):
                model.answer(history)
        else:
            assert model.answer(history).message == known.message


def test_another_input_or_answer_is_a_miss(session: Session) -> None:
    model = RecordedModel(session.path())
    assert find_answer(model, session.path()[:4]) is not None
    fork = session.fork(at=3)
    fork.append([user("q?")])
    assert find_answer(model, fork.path()) is None
    fork = session.fork(at=4)
    fork.append([assistant("Hm!", ToolCall("c", "look", {"n": 1})), tool_result("c", "saw 1")])
    assert find_answer(model, fork.path()) is None


def test_other_words_of_a_result_and_other_ids_are_not(session: Session) -> None:
    model = RecordedModel(session.path())
    fork = session.fork(at=4)
    fork.append([assistant("Hm.", ToolCall("other", "look", {"n": 1})), tool_result("other", "saw 2")])
    answer = find_answer(model, fork.path())
    assert answer is not None
    assert answer.message.text == "Done."


def test_a_result_less_is_a_miss(session: Session) -> None:
    model = RecordedModel(session.path())
    assert find_answer(model, session.path()[:5]) is None


def test_another_prompt_is_the_same_history(session: Session) -> None:
    fork = session.fork(at=4, prompt="Be brief.")
    assert find_answer(RecordedModel(session.path()), fork.path()) is not None


def test_a_recorded_model_streams_and_costs_nothing(session: Session) -> None:
    async def stream(path: list[Entry]) -> list[object]:
        request = Request(contexts.build_context(path), lambda digest: None)
        return [piece async for piece in RecordedModel(session.path()).stream(request)]

    delta, answer = asyncio.run(stream(session.path()[:6]))
    assert delta == Delta("Done.")
    assert answer.message == assistant("Done.")
    assert (answer.usage.input_tokens, answer.finish) == (0, "stop")
    with pytest.raises(ModelError, match="was not recorded"):
        asyncio.run(stream(session.path()[:1]))


def test_the_recorded_model_is_public() -> None:
    assert oakleaf.RecordedModel is RecordedModel
