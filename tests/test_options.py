"""Options of model calls: on the path from where they were set, in the request, in the facts; never written if refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from oakleaf import Leaf, ScriptedModel, Session, Settings, ToolCall, ToolContext, assistant, user
from oakleaf import tool as make_tool
from oakleaf.core.context import fold_settings
from oakleaf.errors import InvalidOption, Overloaded
from oakleaf.models.base import Request
from oakleaf.store import Store
from oakleaf.wire.options import OPTIONS, request_fields
from support.sessions import tasks_of


def _sent_options(model: ScriptedModel) -> list[dict[str, Any] | None]:
    return [request.context.settings.options for request in model.requests]


def _options(session: Session) -> dict[str, Any] | None:
    return fold_settings(session.path()).options


class AnthropicLike(ScriptedModel):
    """Answers from a script and has Anthropic's options."""

    provider = "anthropic"


class ResponsesLike(ScriptedModel):
    provider = "openai"


def test_options_of_a_send_hold_from_its_input_on_and_are_written_once(store: Store) -> None:
    session, model = store.start(), ScriptedModel(["a", "b", "c"])
    session.send_sync("one", model=model, options={"temperature": 0, "stop": ["x"]}, key="k")
    session.send_sync("two", model=model, options={"temperature": 0.0})
    session.send_sync("three", model=model, options={"temperature": None})
    assert _sent_options(model) == [{"temperature": 0, "stop": ["x"]}] * 2 + [{"stop": ["x"]}]
    settings = [
        (entry.seq, entry.payload.options) for entry in session.path() if isinstance(entry.payload, Settings)
    ]
    assert settings == [(1, {"temperature": 0, "stop": ["x"]}), (6, {"temperature": None})]
    started = [fact.data for fact in session.journal() if fact.kind == "turn_started"]
    assert [data.get("options") for data in started] == [{"temperature": 0, "stop": ["x"]}] * 2 + [
        {"stop": ["x"]}
    ]
    appended = [fact.first for fact in session.journal() if fact.kind == "appended"]
    assert 1 in appended, "settings and input are one commit"
    assert 2 not in appended, "settings and input are one commit"
    again = session.send_sync("one", model=model, options={"temperature": 0, "stop": ["x"]}, key="k")
    assert again.text == "a"
    assert len(model.requests) == 3
    assert session.verify() == []


def test_set_fork_and_rewind_move_the_options_with_the_path(store: Store) -> None:
    session = store.start(model="openai-chat:m")
    session.set(options={"temperature": 0, "seed": 7})
    session.set(options={"seed": None, "max_tokens": 9})
    fork = session.fork(1, options={"temperature": 1})
    assert _options(session) == {"temperature": 0, "max_tokens": 9}
    assert _options(fork) == {"temperature": 1, "seed": 7}
    assert session.fork(options={"max_tokens": None}).context().settings.options == {"temperature": 0}
    session.rewind(1)
    assert _options(session) == {"temperature": 0, "seed": 7}


def test_options_of_a_resume_are_written_before_its_call(store: Store) -> None:
    session = store.start()
    session.send_sync("q", model=ScriptedModel([Overloaded("m", "529")] * 4), limits=_no_wait())
    model = ScriptedModel(["a"])
    session.resume_sync(model=model, options={"effort": "low"})
    assert _sent_options(model) == [{"effort": "low"}]
    assert [entry.kind for entry in session.path()] == ["message", "settings", "message"]
    resumed = [fact.data for fact in session.journal() if fact.kind == "turn_resumed"]
    assert resumed[-1]["options"] == {"effort": "low"}
    assert session.verify() == []


def _no_wait() -> Any:
    from oakleaf import Limits

    return Limits(tries=1)


@pytest.mark.parametrize("way", ["send", "resume", "set", "fork", "replay"])
def test_an_option_that_is_refused_writes_nothing(store: Store, way: str) -> None:
    session = store.start(model="anthropic:m")
    session.append(
        [user("q"), assistant("a"), user("open")] if way == "resume" else [user("q"), assistant("a")]
    )
    before, facts, sessions = session.path(), session.row.facts, len(store.sessions().sessions)
    model, bad = AnthropicLike(["b"]), {"seed": 7}
    ways: dict[str, Callable[[], object]] = {
        "send": lambda: session.send_sync("x", model=model, options=bad),
        "resume": lambda: session.resume_sync(model=model, options=bad),
        "set": lambda: session.set(options=bad),
        "fork": lambda: session.fork(options=bad),
        "replay": lambda: session.replay_sync(model=model, options=bad),
    }
    with pytest.raises(InvalidOption, match="anthropic has no option 'seed'"):
        ways[way]()
    session.refresh()
    assert (session.path(), session.row.facts) == (before, facts)
    assert len(store.sessions().sessions) == sessions
    assert model.requests == []


def test_an_option_of_another_provider_on_the_path_is_left_out(store: Store) -> None:
    session = store.start(model="openai-chat:m")
    session.set(options={"seed": 7, "temperature": 0})
    model = ResponsesLike(["a", "b", "c"])
    session.send_sync("q", model=model)
    session.set(model="openai:m")
    assert session.request("openai")["temperature"] == 0
    assert "seed" not in session.request("openai")
    assert session.fork(model="openai:m").request("openai-chat")["seed"] == 7
    assert session.replay_sync(model=model).turns == 1


def test_a_task_without_a_model_of_its_own_has_the_options_of_its_parent(store: Store) -> None:
    @make_tool
    async def ask(ctx: ToolContext) -> str:
        """Ask a child."""
        return await ctx.task("sub")

    @make_tool
    async def ask_other(ctx: ToolContext) -> str:
        """Ask a child with another model."""
        return await ctx.task("sub", models=[other], options={"seed": 1})

    other = ScriptedModel(["o"])
    calls = assistant(ToolCall("1", "ask", {}), ToolCall("2", "ask_other", {}))
    model = ScriptedModel(lambda request: _reply(request, calls))
    session = store.start()
    session.send_sync("q", model=model, tools=[ask, ask_other], options={"temperature": 0})
    assert _sent_options(model) == [{"temperature": 0}] * 3
    assert _sent_options(other) == [{"seed": 1}]
    assert sorted(str(_options(child)) for child in tasks_of(session)) == [
        "{'seed': 1}",
        "{'temperature': 0}",
    ]


def _reply(request: Request, calls: Any) -> Any:
    last = request.messages[-1]
    return "done" if last.role == "tool" or last.text == "sub" else calls


def test_the_request_has_the_fields_of_the_options_folded_along_any_path(store: Store) -> None:
    random_ = random.Random(15)
    provider = random_.choice(["openai-chat", "gemini", "anthropic"])
    values: dict[str, list[Any]] = {
        "temperature": [0, 0.5, 1, None],
        "max_tokens": [1, 500, None],
        "top_p": [0.1, None],
        "stop": ["x", ["y"], None],
        "effort": ["low", "high", None],
    }
    session = store.start(model=f"{provider}:m")
    expected: dict[Leaf, dict[str, Any]] = {session.leaf: {}}
    for _ in range(30):
        step, at = random_.random(), session.leaf
        if step < 0.25 and at.seq:
            session.checkout(random_.choice(sorted(expected)))
            continue
        if step < 0.4:
            session.append([user("q"), assistant("a")])
            expected[session.leaf] = expected[at]
            continue
        names = random_.sample(sorted(values), random_.randint(1, 3))
        options = {name: random_.choice(values[name]) for name in names}
        session.set(options=options)
        merged = {**expected[at], **options}
        expected[session.leaf] = {name: value for name, value in merged.items() if value is not None}
    for leaf, options in expected.items():
        session.checkout(leaf)
        assert (_options(session) or {}) == options
        fork = session.fork()
        request = fork.request(provider)
        fields = request_fields(provider, options)
        assert {name: request[name] for name in fields} == fields
        assert request.keys() - fields.keys() <= {"messages", "contents"}
        own = {name: value for name, value in options.items() if name in OPTIONS[provider]}
        assert own == options
