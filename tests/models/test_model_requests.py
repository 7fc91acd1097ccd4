"""The request of a model call: system prompt, messages and tools, ready to use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import oakleaf
from oakleaf import Answer, Delta, Message, Request, ScriptedModel, ToolCall, Usage, assistant, system, user
from oakleaf.store import Store


@oakleaf.tool(effect="read")
def look(n: int) -> str:
    """Looks."""
    return f"saw {n}"


class Echo:
    """A model of a user: says what it was asked."""

    provider, model = "echo", "echo-1"

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        names = ", ".join(tool.name for tool in request.tools)
        said = f"{request.system} {request.messages[-1].text} {names}"
        yield Answer(assistant(said), Usage(1, 1, 0, 0), None, self.provider, self.model, "stop")


def test_a_custom_model_reads_prompt_messages_and_tools_of_the_request(store: Store) -> None:
    session = store.start(seeds=[system("You help."), system("Be brief.")])
    assert (
        session.send_sync("Where?", model=Echo(), tools=[look]).text == "You help.\n\nBe brief. Where? look"
    )


def test_the_messages_of_a_request_are_those_a_model_sees_without_the_prompt(store: Store) -> None:
    requests: list[Request] = []

    def answer(request: Request) -> str | Message:
        requests.append(request)
        return "Done." if request.messages[-1].results else assistant(ToolCall("c1", "look", {"n": 4}))

    session = store.start(seeds=[system("You help.")])
    session.append([user("old"), assistant("first"), user("new"), assistant("second")])
    session.compact("They said hello.")
    session.send_sync("q", model=ScriptedModel(answer), tools=[look])
    assert [request.system for request in requests] == ["You help."] * 2
    summary, *texts, call, result = requests[-1].messages
    assert summary.text.endswith("They said hello.")
    assert [message.text for message in texts] == ["new", "second", "q"]
    assert (call.calls[0].name, result.results[0].text) == ("look", "saw 4")
    assert requests[-1].messages == session.context(at=session.leaf.seq - 1).messages
    assert [request.tools for request in requests] == [(look.spec,)] * 2


def test_a_request_without_prompt_and_tools_says_so_by_empty_values(store: Store) -> None:
    model = ScriptedModel(["a"])
    store.start().send_sync("q", model=model)
    assert (model.requests[0].system, model.requests[0].tools) == ("", ())
