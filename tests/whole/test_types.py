"""A user's script is checked by mypy and pyright: right calls pass, wrong keywords and types are caught by name."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oakleaf
from support.paths import ROOT

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


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "right.py").write_text(RIGHT)
    for number, line in enumerate(WRONG.values()):
        (folder / f"wrong_{number}.py").write_text(HEAD + line + "\n")
    return folder


def test_mypy_accepts_right_calls_and_catches_wrong_ones(scripts: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}"]
    done = subprocess.run(
        [*command, *map(str, sorted(scripts.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        cwd=scripts,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )
    assert not [line for line in done.stdout.splitlines() if "right.py" in line], done.stdout
    for number, name in enumerate(WRONG):
        assert f"wrong_{number}.py:{LINE}: error" in done.stdout, name


def test_pyright_accepts_right_calls_and_catches_wrong_ones(scripts: Path) -> None:
    """Through basedpyright, whose wheel brings all it needs; its rules set to pyright's."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}
    (scripts / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [Path(sys.executable).with_name("basedpyright"), "--outputjson", "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=scripts,
    )
    errors = [
        (Path(error["file"]).name, error["range"]["start"]["line"])
        for error in json.loads(done.stdout)["generalDiagnostics"]
        if error["severity"] == "error"
    ]
    assert not [file for file, _ in errors if file == "right.py"], done.stdout
    for number, name in enumerate(WRONG):
        assert (f"wrong_{number}.py", LINE - 1) in errors, name


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
