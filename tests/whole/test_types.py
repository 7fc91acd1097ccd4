"""A user's script is checked by mypy and pyright: right calls pass, wrong keywords and types are caught by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import oakleaf
from support.type_checkers import Error, mypy_errors, pyright_errors

RIGHT = """
from collections.abc import AsyncIterator, Callable, Sequence

import oakleaf
from oakleaf import Answer, Delta, Event, Limits, Message, Model, Request, RunResult, ScriptedModel, Session
from oakleaf import Store, Tool, system, user


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, int]:
    '''Look up an order.'''
    return {"order": order}


@oakleaf.tool
async def refund(order: int, ctx: oakleaf.ToolContext) -> str:
    '''Refund an order.'''
    return ctx.key


store: Store = oakleaf.open("memory:", space="acme", secrets=["a long secret value"])
session: Session = store.start("support", [system("You help.")], title="Order 41", tags={"team": "blue"})
model: Model = ScriptedModel(["It is lost."])
result: RunResult = session.send_sync("Where is it?", model=model, tools=[look_up, refund], limits=Limits(turns=3))
text: str = result.text
status: str = result.status
tokens: int | None = result.usage.input_tokens
order: dict[str, int] = look_up(order=41)
call: Callable[[int], dict[str, int]] = look_up
tools: list[Tool] = [look_up, refund]
different = [look_up, refund]
session.send_sync("Where is it?", model=model, tools=different)


class Echo:
    provider, model = "echo", "echo-1"

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        prompt: str = request.system
        asked: Sequence[Message] = request.messages
        names: list[str] = [tool.name for tool in request.tools]
        usage = oakleaf.Usage(1, 1, 0, 0)
        text = f"{prompt} {asked[-1].text} {names}"
        yield Answer(oakleaf.assistant(text), usage, None, self.provider, self.model, "stop")


async def main(ctx: oakleaf.ToolContext) -> None:
    async for event in session.send("And now?", model="anthropic:claude", tools=[look_up]):
        kind: str = event.type
        print(kind)
    answer: RunResult = await session.send("And now?", model=Echo())
    key: str = await refund(41, ctx)
    report = await session.replay(start=2, mode="dry", tools=[look_up])
    print(answer.text, report.mode)
    chat: Session = await store.aio.latest_or_start("41", "support", [system("You help.")])
    entries: list[oakleaf.Entry] = await chat.aio.path(since=2)
    spent: oakleaf.Totals = await chat.aio.usage()
    await chat.aio.export("chat.md", "markdown")
    async for each in store.aio.all_sessions(status="failed"):
        name: str = each.session_id
        print(name, entries, spent, (await chat.aio.row()).title)
    async with await chat.aio.turn("Thanks") as turn:
        said: Message = await turn.answer({"role": "assistant", "content": "Welcome."})
        print(said)


newest: Session | None = store.latest()
for row in store.sessions(status="failed", agent="support", limit=10):
    print(row.session_id)
for hit in store.search("lost parcel"):
    print(hit.snippet)
fork = session.fork(at=1, model="openai:gpt", tools=["look_up"])
fork.set(prompt="Be brief.", limits={"turns": 5})
fork.append([user("hi")], key="k")
messages = fork.context(at=1).items
events: list[Event] = list(result.events)
"""

WRONG = {
    "modle": 'session.send_sync("q", modle="anthropic:claude")',
    "modle of send": 'session.send("q", modle="anthropic:claude")',
    "no model": 'session.send_sync("q")',
    "tools as text": 'session.send_sync("q", model="anthropic:claude", tools="nonsense")',
    "seedz": 'store.start("support", seedz=[])',
    "seeds as text": 'store.start("support", "You help.")',
    "stauts": 'store.sessions(stauts="failed")',
    "unknown status": 'store.sessions(status="faild")',
    "unknown filter": 'list(store.all_sessions(agnet="a"))',
    "promt": 'session.fork(promt="x")',
    "unknown setting": "session.set(tempo=3)",
    "from_": "session.replay_sync(from_=4)",
    "unknown mode": 'session.replay_sync(mode="wet")',
    "unknown effect": 'oakleaf.tool(effect="safe")',
    "unknown tool option": "oakleaf.tool(retries=3)",
    "unknown open option": 'oakleaf.open("a.db", sapce="x")',
    "summary as number": "session.compact(5)",
    "unknown resume option": 'session.resume_sync(model="m", tolls=[])',
    "unknown task option": 'store.start_task(session, "child", titel="x")',
    "unknown limit": "oakleaf.Limits(truns=3)",
    "text to a tool's number": 'look_up("41")',
    "a tool without its argument": "look_up()",
    "unknown argument of a tool": 'refund(order=41, why="lost")',
    "a tool's result as another type": "number: int = look_up(41)",
    "an async tool's result, not awaited": "said: str = refund(41)",
    "a scripted answer of a wrong type": "oakleaf.ScriptedModel(lambda request: 5)",
    "a request's prompt as a message": "oakleaf.ScriptedModel(lambda request: request.system.text)",
    "unknown option of an awaited verb": "session.aio.path(sicne=3)",
    "unknown filter of an awaited verb": "store.aio.all_sessions(agnet='a')",
    "an awaited verb's result, not awaited": "newest: oakleaf.Session | None = store.aio.latest()",
    "a page's row as an id": "ids: list[str] = list(store.sessions())",
}
HEAD = '''
import oakleaf


@oakleaf.tool(effect="read")
def look_up(order: int) -> str:
    """Look up an order."""
    return f"order {order}"


@oakleaf.tool
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


store = oakleaf.open("memory:")
session = store.start("support")
'''
LINE = HEAD.count("\n") + 1


@pytest.mark.parametrize("errors_in", [mypy_errors, pyright_errors])
def test_a_type_checker_accepts_right_calls_and_catches_wrong_ones(
    tmp_path: Path, errors_in: Callable[[Path], list[Error]]
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    for number, line in enumerate(WRONG.values()):
        (tmp_path / f"wrong_{number}.py").write_text(HEAD + line + "\n")
    errors = errors_in(tmp_path)
    assert not [error for error in errors if error[0] == "right.py"]
    lines = {(file, line) for file, line, _ in errors}
    assert [name for number, name in enumerate(WRONG) if (f"wrong_{number}.py", LINE) not in lines] == []


@pytest.mark.parametrize(
    "face", [oakleaf.Session, oakleaf.Store, oakleaf.Turn], ids=lambda face: face.__name__
)
def test_no_public_verb_takes_untyped_keywords(face: type) -> None:
    for name, verb in vars(face).items():
        if name.startswith("_") or not inspect.isfunction(verb):
            continue
        for parameter in inspect.signature(verb).parameters.values():
            is_open = parameter.kind is inspect.Parameter.VAR_KEYWORD
            assert not (is_open and str(parameter.annotation) == "Any"), f"{name}(**{parameter.name})"


def test_help_lists_the_options_of_a_tool() -> None:
    parameters = inspect.signature(oakleaf.tool).parameters
    assert {"effect", "name", "verify", "dry_run", "approval", "timeout"} <= parameters.keys()
    for option in ("effect", "verify", "dry_run", "approval", "timeout"):
        assert option in (oakleaf.tool.__doc__ or ""), option
