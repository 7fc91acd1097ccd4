"""The whole request is a function of the leaf: prompt, tools, messages and options, byte for byte, in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from random import Random

import bough
from bough import Session, Store, ToolCall, assistant, system
from bough.wire import PROVIDERS, render
from support.random_logs import SOAK

TOOLS = [
    {
        "name": f"tool_{number}",
        "description": f"Does {number} things to an order, and says what it did.",
        "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]},
    }
    for number in range(8)
]


def digests(store: Store) -> dict[str, str]:
    """The digest of every session's request for every provider."""
    return {
        f"{row.session_id} {provider}": sha256(
            render(store.session(row.session_id).request(provider))
        ).hexdigest()
        for row in store.all_sessions()
        for provider in PROVIDERS
    }


def random_session(store: Store, random: Random) -> Session:
    session = store.start(seeds=[system("You help.")])
    for number in range(random.randint(1, 5)):
        if random.random() < 0.4:
            session.set(
                options={"temperature": random.choice([None, 0, 0.5]), "max_tokens": random.randint(1, 999)}
            )
        if random.random() < 0.2:
            session.set(prompt=f"You help, politely ({number}).")
        tools = random.sample(TOOLS, random.randint(0, 4)) if random.random() < 0.7 else None
        with session.turn(f"question {number}", tools=tools) as turn:
            if tools:
                turn.answer(assistant(ToolCall("c1", str(tools[0]["name"]), {"order": number})))
                turn.result("c1", "done " * random.randint(1, 99))
            turn.answer(assistant("answer"))
        if random.random() < 0.2:
            session.rewind(random.randint(1, session.leaf.seq))
        if random.random() < 0.2:
            session = session.fork(options={"max_tokens": 7})
    return session


def test_requests_of_random_sessions_are_byte_equal_in_another_process(tmp_path: Path) -> None:
    random = Random(15)
    with bough.open(tmp_path / "s.db", synchronous="normal") as store:
        for _ in range(1_000 if SOAK else 60):
            random_session(store, random)
        here = digests(store)
    script = (
        "import json, sys, bough; from test_request import digests\n"
        "with bough.open(sys.argv[1]) as store: print(json.dumps(digests(store)))"
    )
    tests = Path(__file__).parent
    there = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tests)!r})\n{script}",
            tmp_path / "s.db",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(there.stdout) == here
    assert len(here) >= 240


def test_definitions_that_stay_the_same_cost_nothing_a_turn(tmp_path: Path) -> None:
    """The names of the tools are in the fact that starts a turn, as before; their definitions are stored once."""
    names = [str(tool["name"]) for tool in TOOLS]
    sizes = []
    for tools in (None, TOOLS):
        path = tmp_path / f"{len(sizes)}.db"
        with bough.open(path, synchronous="normal") as store:
            session = store.start()
            for number in range(400):
                with session.turn(f"question {number}", tools=tools, tool_names=names) as turn:
                    turn.answer(assistant("answer"))
            settings = [entry for entry in session.path() if entry.message is None]
            assert len(settings) == (tools is not None)
        sizes.append(path.stat().st_size)
    assert (sizes[1] - sizes[0]) / 400 < 25  # a few pages, whatever the number of turns
