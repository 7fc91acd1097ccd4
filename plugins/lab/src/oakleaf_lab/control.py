"""What the command and the workers of a lab run tell each other, across processes and machines.

    begin     the command starts anew: tasks of an earlier start make no further call
    start     the limit, what was spent before, and the judge; the tasks are spawned after it
    reserve   the most that a call may cost, before it is made
    settle    what it did cost
    stop      no further call is to be made, and why

Each is a note in a session of its own, appended only behind the notes that were read: two processes cannot both reserve the
last cent. A worker that dies leaves its reservation: what the call cost is not known, so all of it counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_hex
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from oakleaf import Store
from oakleaf.core.typed_json import converter
from oakleaf.errors import NotFound, StaleLeaf
from oakleaf.ext import Reservation, notebook, run_uncancelled
from oakleaf.models.base import Model, Request
from oakleaf_lab.budget import CostBudget, RunStopping, budget_reached
from oakleaf_lab.cohort import create_lab_session
from oakleaf_lab.errors import BudgetReached

CONTROL_PREFIX = "labqueue_"


class JudgeSpec(Struct, frozen=True):
    """A judge as stored for workers."""

    model: str
    prompt: str
    name: str


class Start(Struct, frozen=True):
    number: int
    queue: str
    limit: int | None
    """The most that the run may cost, in microcents."""
    spent: int
    """What it had cost before."""
    judge: JudgeSpec | None = None


_to_start = converter(Start)


class RunControl:
    """The notes of one run, folded. Safe to use from several threads."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._notebook = notebook(store.session(session_id))
        self._lock = Lock()
        self.number = 0
        """Of the latest start that was begun."""
        self.start: Start | None = None
        self.spent = 0
        self._reserved: dict[str, int] = {}
        self.is_stopped = False
        self.why: str | None = None
        """Why it was stopped; None: it was asked to."""
        with self._lock:
            self._read()

    @classmethod
    def find(cls, store: Store, run_id: str) -> RunControl | None:
        """Return the control of a run once given to workers."""
        try:
            return cls(store, control_id(run_id))
        except NotFound:
            return None

    @classmethod
    def create(cls, store: Store, run_id: str) -> RunControl:
        create_lab_session(store, control_id(run_id), f"queue of {run_id}")
        return cls(store, control_id(run_id))

    def update(self) -> None:
        """Read the writes of other processes since."""
        with self._lock:
            self._read()

    def is_over(self, number: int) -> bool:
        """Whether tasks of the start are to make no further call."""
        return self.is_stopped or number != self.number

    def begin(self) -> int:
        """Return a new number: tasks with earlier numbers end at the next call."""
        self._append(lambda: {"begin": self.number + 1})
        return self.number

    def open(self, start: Start) -> None:
        """Let tasks of the start make calls."""
        self._append(lambda: {"start": msgspec.to_builtins(start)})

    def stop(self, number: int, why: str | None) -> None:
        """Let tasks of the start make no further call. The first reason is kept."""

        def data() -> dict[str, Any] | None:
            return None if self.is_over(number) else {"stop": {"why": why}}

        self._append(data)

    def check(self, number: int) -> None:
        """Raise RunStopping if the run was stopped."""
        self.update()
        if self.is_over(number):
            raise RunStopping

    def reserve(self, number: int, amount: int) -> str:
        """Reserve the amount and return the key; raise BudgetReached if the amount could pass the limit."""
        key = token_hex(6)

        def data() -> dict[str, Any]:
            if self.is_over(number) or self.start is None:
                raise RunStopping
            limit, reserved = self.start.limit, sum(self._reserved.values())
            if limit is not None and self.spent + reserved + amount > limit:
                raise budget_reached(self.spent, reserved, amount, limit)
            return {"reserve": {"key": key, "amount": amount}}

        self._append(data)
        return key

    def settle(self, key: str, cost: int) -> None:
        self._append(lambda: {"settle": {"key": key, "cost": cost}})

    # -- notes -------------------------------------------------------------------------------------

    def _append(self, data: Callable[[], dict[str, Any] | None]) -> None:
        """Append the result of `data`, decided on all notes before; nothing for None."""
        with self._lock:
            while True:
                try:
                    note = data()
                except BudgetReached:
                    if not self._read():  # a call of another process may have ended since
                        raise
                    continue
                if note is None:
                    return
                try:
                    self._notebook.add_next(note)
                except StaleLeaf:
                    self._read()
                    continue
                self._apply(note)
                return

    def _read(self) -> bool:
        """Read the new notes; return whether any came."""
        notes = self._notebook.read()
        for note in notes:
            self._apply(note)
        return bool(notes)

    def _apply(self, data: dict[str, Any]) -> None:
        match data:
            case {"begin": number}:
                self.number, self.is_stopped, self.why = number, False, None
            case {"start": start}:
                self.start = _to_start(start)
                self.spent, self._reserved = self.start.spent, {}
            case {"reserve": {"key": key, "amount": amount}}:
                self._reserved[key] = amount
            case {"settle": {"key": key, "cost": cost}}:
                # Else it is of an earlier start, which counted it.
                if self._reserved.pop(key, None) is not None:
                    self.spent += cost
            case {"stop": {"why": why}}:
                self.is_stopped, self.why = True, why


def control_id(run_id: str) -> str:
    return f"{CONTROL_PREFIX}{run_id.removeprefix('lab_')}"


class SharedBudget:
    """The budget of one task: each call is reserved among all processes of the run."""

    def __init__(
        self, control: RunControl, number: int, prices: CostBudget, is_stopping: Callable[[], bool]
    ) -> None:
        self._control, self._number, self._prices, self._is_stopping = control, number, prices, is_stopping

    async def reserve(self, model: Model, request: Request) -> Reservation:
        if self._is_stopping():
            raise RunStopping
        start = self._control.start
        if start is None or start.limit is None:
            await asyncio.to_thread(self._control.check, self._number)
            return Reservation()
        self._prices.limit = start.limit
        most = self._prices.most(model, request)
        return Reservation(most, await asyncio.to_thread(self._control.reserve, self._number, most))

    async def settle(self, reserved: Reservation, cost: int | None) -> None:
        if reserved.key:
            paid = reserved.microcents if cost is None else cost
            await run_uncancelled(asyncio.to_thread(self._control.settle, reserved.key, paid))
