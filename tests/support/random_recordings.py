"""Random sessions recorded by the agent loop: turns of several steps, parallel calls, errors, state, host entries."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

import oakleaf
from oakleaf import Limits, ScriptedModel, Session, ToolCall, ToolContext, assistant, system
from oakleaf.store import Store
from support.stopped_runs import stopped

WORDS = ["yes", "no", "it is lost", "look again", "", "größer ☃"]


@oakleaf.tool(effect="read")
async def look(n: int, ctx: ToolContext) -> dict[str, int]:
    """Looks; the later the smaller n is."""
    for _ in range(3 - n):
        await asyncio.sleep(0)
    ctx.update(seen=n)
    return {"n": n}


@oakleaf.tool
async def send(n: int, ctx: ToolContext) -> str:
    """Sends, and remembers it."""
    ctx.update(sent={str(n): True})
    ctx.details["receipt"] = n
    return f"sent {n}"


@oakleaf.tool(effect="idempotent")
async def fail(n: int) -> str:
    """Always fails."""
    raise ValueError(f"no {n}")


TOOLS = [look, send, fail]


class Turn(Struct, frozen=True):
    text: str
    steps: tuple[tuple[tuple[str, int], ...], ...]
    """The calls of each step before the final answer."""
    final: str
    host: str | None = None
    """What the host does before the turn."""


calls = st.tuples(st.sampled_from(["look", "send", "fail", "none"]), st.integers(0, 2))
turns = st.builds(
    Turn,
    st.sampled_from(["go", "go", "where?", "and now?"]),
    st.lists(st.lists(calls, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    st.sampled_from(WORDS),
    st.sampled_from(
        [None, None, None, "note", "set", "compact", "uncompact", "unanswered", "limit", "rewind"]
    ),
)
scripts = st.lists(turns, min_size=1, max_size=5)


def answers(turn: Turn, number: int) -> list[Any]:
    lines: list[Any] = []
    for step, calls in enumerate(turn.steps):
        parts = [ToolCall(f"c{n}", name, {"n": value}) for n, (name, value) in enumerate(calls)]
        lines.append(assistant(*([f"step {step}"] if step % 2 else []), *parts))
    return [*lines, f"{turn.final} {number}"]


def host_action(session: Session, action: str | None) -> None:
    """Change the session as a host application would, outside turns and tools."""
    if action == "note":
        session.note({"by": "host"}, state={"noted": session.leaf.seq})
    elif action == "set":
        session.set(prompt_patch="Be brief.")
    elif action == "compact":
        with suppress(oakleaf.OakleafError):  # there may be nothing to replace
            session.compact("short")
    elif action == "uncompact":
        with suppress(oakleaf.OakleafError):  # or nothing to cancel
            session.uncompact()
    elif action == "unanswered":
        session.send_sync("nobody hears", model=ScriptedModel([]))
    elif action == "limit":
        model = ScriptedModel([assistant(ToolCall("x", "look", {"n": 1}))])
        stopped(session.send_sync, "too long", model=model, tools=TOOLS, limits=Limits(rounds=1))
    elif action == "rewind" and session.leaf.seq > 3:
        session.rewind(session.leaf.seq - 1, summary="left it")


def record(store: Store, script: list[Turn]) -> Session:
    session = store.start("support", [system("You help."), oakleaf.user("context"), assistant("noted")])
    for number, turn in enumerate(script):
        host_action(session, turn.host)
        session.send_sync(turn.text, model=ScriptedModel(answers(turn, number)), tools=TOOLS)
    return session
