"""Processes killed inside and around an unsafe tool under each framework, and resumed as the framework resumes.

Effects are counted in a file. However often a process is killed, a call takes effect at most once; if it took effect and its
result was lost, Oakleaf reports its outcome as unknown. `make soak` kills at random moments instead of chosen ones.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agents import Runner as OpenAIRunner
from agents import function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

import oakleaf
from oakleaf.agent.call_status import read_call_status
from oakleaf_frameworks.adk import OakleafSessionService
from oakleaf_frameworks.langgraph import OakleafSaver
from oakleaf_frameworks.openai_agents import OakleafHooks, OakleafSession
from oakleaf_frameworks.pydantic_ai import OakleafConversationStore, OakleafSteps

SOAK = os.environ.get("OAKLEAF_SOAK") == "1"
ORDERS = (41, 42)
NAME = "killed"
MOMENTS = ("before the effect", "after the effect", "before the last answer")


class Shop:
    """The effects, and the moment at which this process is killed."""

    def __init__(self, folder: Path, moment: str | None) -> None:
        self.folder, self.moment = folder, moment

    def reach(self, moment: str) -> None:
        if self.moment == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def refund(self, order: int) -> str:
        """Give the money back. The second call is the one that is killed, so that the first may have ended."""
        if order == ORDERS[-1]:
            self.reach("before the effect")
        with (self.folder / "effects").open("a") as effects:
            effects.write(f"{order}\n")
        if order == ORDERS[-1]:
            self.reach("after the effect")
        return f"refunded {order}"

    def effects(self) -> Counter[str]:
        path = self.folder / "effects"
        return Counter(path.read_text().split() if path.exists() else ())


# -- the same agent under each framework: it refunds two orders in one answer, then says that it is done ----------


def run_langgraph(store: oakleaf.Store, shop: Shop) -> None:
    def answer(state: MessagesState) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            shop.reach("before the last answer")
            return {"messages": [AIMessage("Done.")]}
        calls = [{"name": "refund", "args": {"order": n}, "id": f"call-{n}"} for n in ORDERS]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    saver = OakleafSaver(store)
    tools = ToolNode([tool("refund")(shop.refund)], wrap_tool_call=saver.run_once)
    builder = StateGraph(MessagesState).add_node("model", answer).add_node("tools", tools)
    builder.add_edge(START, "model").add_edge("tools", "model").add_conditional_edges(
        "model", tools_condition
    )
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": NAME}}
    is_new = not graph.get_state(config).values.get("messages")
    graph.invoke({"messages": [HumanMessage("Refund!")]} if is_new else None, config)  # type: ignore[arg-type]


def run_openai(store: oakleaf.Store, shop: Shop) -> None:
    class Model(ScriptedModel):
        async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> Any:
            has_called = any(item.get("type") == "function_call_output" for item in input)
            if has_called:
                shop.reach("before the last answer")
            calls = [function_call("refund", {"order": n}, call_id=f"call-{n}") for n in ORDERS]
            self.enqueue([assistant_message("Done.")] if has_called else calls)
            return await super().get_response(system_instructions, input, *rest, **more)

    async def run() -> None:
        session = OakleafSession(NAME, store)
        await session.close_batch()
        agent = OpenAIAgent("shop", model=Model([]), tools=[function_tool(shop.refund)])
        await OpenAIRunner.run(agent, "Refund!", session=session, hooks=OakleafHooks(session))

    asyncio.run(run())


def run_adk(store: oakleaf.Store, shop: Shop) -> None:
    class Model(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            parts = [part for content in llm_request.contents for part in content.parts]
            if any(part.function_response for part in parts):
                shop.reach("before the last answer")
                yield LlmResponse(content=types.ModelContent("Done."))
                return
            calls = [types.FunctionCall(id=f"call-{n}", name="refund", args={"order": n}) for n in ORDERS]
            yield LlmResponse(content=types.ModelContent([types.Part(function_call=call) for call in calls]))

    async def run() -> None:
        service = OakleafSessionService(store)
        named = {"app_name": "shop", "user_id": "ann", "session_id": NAME}
        if await service.get_session(**named) is None:
            await service.create_session(**named)
        agent = LlmAgent(name="shop", model=Model(model="scripted"), tools=[shop.refund])
        runner = AdkRunner(app_name="shop", agent=agent, session_service=service)
        message = types.UserContent("Refund!")
        async for _ in runner.run_async(user_id="ann", session_id=NAME, new_message=message):
            pass

    asyncio.run(run())


def run_pydantic(store: oakleaf.Store, shop: Shop) -> None:
    def answer(messages: Any, info: Any) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
            shop.reach("before the last answer")
            return ModelResponse([TextPart("Done.")])
        return ModelResponse([ToolCallPart("refund", {"order": n}, f"call-{n}") for n in ORDERS])

    async def run() -> None:
        conversations = OakleafConversationStore(store)
        agent = PydanticAgent(FunctionModel(answer), capabilities=[OakleafSteps(conversations)])
        agent.tool_plain(shop.refund)
        conversation = await conversations.load(NAME)
        prompt = "Refund!" if conversation is None else None
        await agent.run(prompt, conversation=conversation or Conversation(conversation_id=NAME))

    asyncio.run(run())


RUNS: dict[str, Callable[[oakleaf.Store, Shop], None]] = {
    "langgraph": run_langgraph,
    "openai-agents": run_openai,
    "adk": run_adk,
    "pydantic-ai": run_pydantic,
}


def run(framework: str, folder: Path, moment: str | None) -> None:
    with oakleaf.open(folder / "agent.db") as store:
        RUNS[framework](store, Shop(folder, moment))


def start_process(framework: str, folder: Path, moment: str | None) -> Any:
    """Forked: it need not load the framework again, which takes seconds."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(framework, folder, moment))
    process.start()
    return process


def check(framework: str, folder: Path) -> None:
    """Every call took effect at most once, and one whose effect Oakleaf does not know of is reported as unknown."""
    with oakleaf.open(folder / "agent.db") as store:
        session = store.latest(NAME)
        assert session is not None
        assert session.verify() == []
        assert session.open_tool_calls == ()
        assert session.path()[-1].kind == "note" or "Done." in str(session.path()[-1].payload)
        outcomes: dict[str, set[str]] = {}
        for entry in session.path():
            for result in entry.message.results if entry.message is not None else ():
                outcomes.setdefault(result.call_id.removeprefix("call-"), set()).add(result.outcome)
        for order, count in Shop(folder, None).effects().items():
            assert count == 1, f"{order} was refunded {count} times under {framework}"
            assert outcomes[order] in ({"done"}, {"unknown"}), f"{order}: {outcomes[order]} under {framework}"


@pytest.mark.parametrize("framework", RUNS)
class TestAProcessKilledWithAnUnsafeTool:
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_has_each_effect_once_or_reported_as_unknown(
        self, framework: str, moment: str, tmp_path: Path
    ) -> None:
        killed = start_process(framework, tmp_path, moment)
        killed.join(60)
        assert killed.exitcode == -signal.SIGKILL
        for _ in range(2):  # the second goes on with what the first left, or finds nothing to do
            resumed = start_process(framework, tmp_path, None)
            resumed.join(60)
            assert resumed.exitcode == 0
            if moment != "before the last answer":
                break
        check(framework, tmp_path)

    def test_is_shown_with_calls_that_may_have_run(self, framework: str, tmp_path: Path) -> None:
        killed = start_process(framework, tmp_path, "after the effect")
        killed.join(60)
        with oakleaf.open(tmp_path / "agent.db") as store:
            session = store.latest(NAME)
            assert session is not None
            open_calls = [call for call in session.open_tool_calls if call.call.id == "call-42"]
            status = read_call_status(session.log)
            assert [(call.seq, call.index) in status.started for call in open_calls] == [True]

    def test_killed_at_random_has_each_effect_once(self, framework: str, tmp_path: Path) -> None:
        for number in range(60 if SOAK else 2):
            folder = tmp_path / str(number)
            folder.mkdir()
            for _ in range(random.randint(1, 3)):
                process = start_process(framework, folder, None)
                process.join(random.uniform(0, 0.4))
                if process.exitcode is None:
                    os.kill(process.pid, signal.SIGKILL)
                process.join(60)
            for _ in range(2):
                resumed = start_process(framework, folder, None)
                resumed.join(60)
                assert resumed.exitcode == 0
            check(framework, folder)
