"""The model of a service without a key: it refunds the order of the input, and takes a minute for "Think"."""

from __future__ import annotations

import re

from oakleaf import Message, Request, ScriptedModel, Slow, ToolCall, assistant


def answer(request: Request) -> Message | Slow:
    last = request.messages[-1]
    if last.role == "tool":
        return assistant(f"I am told: {last.results[0].text}.")
    if order := re.search(r"[Rr]efund order (\d+)", last.text):
        return assistant(ToolCall("call_1", "refund", {"order": int(order[1])}))
    if last.text == "Think":
        return Slow(60, assistant("I thought."))
    return assistant("How can I help you?")


model = ScriptedModel(answer)
