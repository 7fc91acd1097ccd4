"""The agent on the OpenAI Agents SDK: its SQLite session, run again with the same input."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from bank import QUESTION, refund
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

FOLDER = Path(sys.argv[1])


@function_tool
def refund_order(order: int) -> str:
    """Give the money back."""
    return refund(FOLDER, order)


class Scripted(Model):
    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        last = input[-1] if isinstance(input, list) else {}
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(type="output_text", text="Order 41 is refunded.", annotations=[])
            item: Any = ResponseOutputMessage(
                id="msg_1", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            item = ResponseFunctionToolCall(
                type="function_call", call_id="call_1", name="refund_order", arguments='{"order": 41}'
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("this example does not stream")


async def main() -> None:
    agent = Agent(name="support", model=Scripted(), tools=[refund_order])
    session = SQLiteSession("case-41", FOLDER / "agent.db")
    result = await Runner.run(agent, QUESTION, session=session, run_config=RunConfig(tracing_disabled=True))
    print(result.final_output)


asyncio.run(main())
