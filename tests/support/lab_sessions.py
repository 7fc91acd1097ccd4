"""A cohort of recorded sessions, and models that change their mind at random: seeded by the cell, so that a cell is the
same whenever and in whatever order it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

import oakleaf
from oakleaf import Rates, ScriptedModel, Store, ToolCall, assistant, system
from oakleaf.core.context import Context
from oakleaf.core.usage import Usage
from oakleaf.models.base import Request
from oakleaf_lab.experiment import Cell, TurnClass

RATES = Rates(input=3, output=15)
TURNS = 3


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    """Look an order up."""
    return {"order": order, "status": "lost"}


@oakleaf.tool(effect="read")
def track(order: int) -> str:
    """Track a parcel."""
    return "at sea"


def write_cohort(path: Path, count: int) -> Path:
    """Write a store of recorded sessions."""
    path.touch(0o600)
    path.write_bytes(_cohort_bytes(count))
    return path


@cache
def _cohort_bytes(count: int) -> bytes:
    """Record them once per test process; a closed store is one file that can be copied."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"
        with oakleaf.open(path, synchronous="normal") as store:
            record_sessions(store, count)
        return path.read_bytes()


def record_sessions(store: Store, count: int, *, turns: int = TURNS, agent: str = "support") -> list[str]:
    """Record sessions of some turns: each looks an order up, then answers."""
    ids = []
    for number in range(count):
        session = store.start(
            agent,
            [system("You help customers.")],
            title=f"case {number}",
            session_id=f"ses_case_{number:03d}",
        )
        model = ScriptedModel(answer, model="recorded-model", rates=RATES)
        for turn in range(turns):
            session.send_sync(f"Where is order {number * 100 + turn}?", model=model, tools=[look_up, track])
        ids.append(session.session_id)
    return ids


def ledger(store: Store) -> list[bytes]:
    """Return the calls that have usage, without the ids that each process makes up."""
    return sorted(
        msgspec.json.encode(
            [row.session_id, replace(call, call_id="", branch=0, after_seq=0, answer_seq=None)]
        )
        for row in store.all_sessions(relation="replay")
        for call in store.session(row.session_id).model_calls()
        if call.usage != Usage()
    )


def answer(request: Request) -> str | oakleaf.Message:
    """Look up the order of the last input, then answer."""
    order, step = position(request.context)
    if step == 0:
        return assistant(ToolCall(f"c{order}", "look_up", {"order": order}))
    return f"Order {order} is lost."


def noisy(
    seed: int,
    *,
    reworded: float = 0.2,
    tool_changed: float = 0.05,
    planted: float = 0.0,
    name: str = "noisy",
    on_call: Callable[[], None] = lambda: None,
) -> Callable[[Cell], ScriptedModel]:
    """Return the models of a run: each rewords and changes tools at random, the candidate some `planted` more.
    `on_call` is called before each answer."""

    def model(cell: Cell) -> ScriptedModel:
        def line(request: Request) -> str | oakleaf.Message:
            on_call()
            order, step = position(request.context)
            kind = draw_class(
                seed, cell, order, reworded=reworded, tool_changed=tool_changed, planted=planted
            )
            if step == 0:
                tool = "track" if kind == "tool changed" else "look_up"
                return assistant(ToolCall(f"c{order}", tool, {"order": order}))
            return f"Order {order} is lost" + ("; sorry." if kind == "reworded" else ".")

        return ScriptedModel(line, model=name, rates=RATES)

    model.__name__ = name
    return model


def draw_class(
    seed: int, cell: Cell, order: int, *, reworded: float, tool_changed: float, planted: float
) -> TurnClass:
    """Return what the model of a cell does in the turn about an order."""
    key = f"{seed} {cell.source} {cell.lane} {cell.number} {order}"
    digest = sha256(key.encode()).digest()
    first, second = (int.from_bytes(part) / 2**64 for part in (digest[:8], digest[8:16]))
    if first < tool_changed + (planted if cell.lane == "candidate" else 0.0):
        return "tool changed"
    return "reworded" if second < reworded else "same"


def position(context: Context) -> tuple[int, int]:
    """Return the number of the order in the last input, and how many answers followed it."""
    step, order = 0, 0
    for item in context.items:
        message = item.message
        if message.role == "user":
            order, step = int(message.text.split()[-1].rstrip("?")), 0
        elif message.role == "assistant":
            step += 1
    return order, step
