"""Measure the overhead of our loop over calling the same model and log by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter_ns

import oakleaf
from oakleaf import ScriptedModel, Session, ToolCall, assistant
from oakleaf.ext import read
from oakleaf.models.base import Request
from oakleaf.wire import Answer

from .measure import Plan, middle, ms
from .report import Figure

STEPS = 4


def answer(request: Request) -> oakleaf.Message:
    turn = [item for item in request.context.items if item.turn == request.context.items[-1].turn]
    answers = sum(item.message.role == "assistant" for item in turn)
    if answers == STEPS - 1:
        return assistant("That is all.")
    return assistant("Looking.", ToolCall(f"c{answers}", "look", {"n": answers}))


@oakleaf.tool(effect="read")
def look(n: int) -> str:
    """Look around."""
    return "seen " * 100


async def by_hand(session: Session) -> None:
    """Make the same calls in the same order without a lease, limits or facts about started calls."""
    model = ScriptedModel(answer)
    with session.turn("Look around.", tools=[look]) as turn:
        while True:
            request = Request(session.context(), read(session).blob)
            async for piece in model.stream(request):
                if isinstance(piece, Answer):
                    message = turn.answer(piece.message, usage=piece.usage)
            if not message.calls:
                return
            for waiting in turn.open_tool_calls:
                turn.result(waiting.call.id, look.function(**waiting.call.arguments))


async def by_loop(session: Session) -> None:
    async for _ in session.send("Look around.", model=ScriptedModel(answer), tools=[look]):
        pass


def figures(plan: Plan) -> Iterator[Figure]:
    times: dict[str, list[int]] = {"loop": [], "hand": []}
    with oakleaf.open(plan.path("runner")) as store:
        for _ in range(plan.pick(60, 10)):
            for name, work in (("loop", by_loop), ("hand", by_hand)):
                session = store.start("bench")
                began = perf_counter_ns()
                asyncio.run(work(session))
                times[name].append(perf_counter_ns() - began)
    more = (middle(times["loop"]) - middle(times["hand"])) / STEPS / 1e6
    beside = {"turn ms": ms(middle(times["loop"])), "by hand": ms(middle(times["hand"]))}
    yield Figure("runner", "our loop, overhead per step", more, "ms", None, beside)
