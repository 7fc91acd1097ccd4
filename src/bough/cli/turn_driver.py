"""Driving a turn from a terminal: events to whoever shows them, Ctrl-C to the turn, approvals to a person.

One event loop serves all the runs of a command. A tool that blocks its thread cannot be stopped, only left: the
log says that its outcome is unknown, and `leave` does not wait for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, cast

from msgspec import Struct

from ..agent.events import Event
from ..agent.tools.tool import PendingApproval
from ..core.messages import Message
from ..core.turns import OpenCall
from ..engines.local import Run
from ..errors import NotFound, SessionTrashed, TaskTrashed
from ..session import Session
from .agent_options import Agent
from .rendering.error_text import TakenOver
from .rendering.turn_events import Watcher
from .store_option import StoreLocation

Ask = Callable[[OpenCall], bool | None]
"""A person's word on a call: allow, deny, or None: not now."""

CANCELLED_CODE = 130


class TurnEnd(Struct, frozen=True):
    """How a run ended."""

    reason: str
    error: dict[str, Any] | None = None
    waiting: tuple[OpenCall, ...] = ()
    """Calls that wait for a person."""

    @property
    def is_fine(self) -> bool:
        return self.error is None and not self.waiting and self.reason != "cancelled"


class Driver:
    """Runs turns one after the other; Ctrl-C cancels the turn and not the program, twice ends the program."""

    def __init__(self, pass_location: StoreLocation) -> None:
        self._here = pass_location
        self._loop = asyncio.new_event_loop()
        self._has_cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._loop.close()
        if kind is KeyboardInterrupt:
            self.leave(CANCELLED_CODE)

    def drive(self, run: Run, watcher: Watcher) -> Event | None:
        """The whole run; returns its last word."""
        is_interrupted = False

        def interrupt() -> None:
            nonlocal is_interrupted
            if is_interrupted:
                raise KeyboardInterrupt
            is_interrupted = self._has_cancelled = True
            run.cancel()

        self._loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            with watcher:
                return self._loop.run_until_complete(_consume(run, watcher))
        finally:
            self._loop.remove_signal_handler(signal.SIGINT)

    def leave(self, code: int) -> int:
        """The exit code, or after a cancel the exit itself: Python would wait for a tool's thread, perhaps for hours."""
        if self._has_cancelled:
            self._here.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code


async def _consume(run: Run, watcher: Watcher) -> Event | None:
    last = None
    # Closed at once if the watcher fails: a run that nobody watches is cancelled, and says so in its log.
    async with aclosing(cast(AsyncGenerator[Event, None], run.__aiter__())) as events:
        async for event in events:
            watcher.watch(event)
            last = event if event.type == "session:turn_completed" else last
    return last


def run_turn(
    driver: Driver,
    session: Session,
    agent: Agent,
    content: str | Message | None,
    watcher: Watcher,
    ask: Ask | None = None,
    *,
    one_shot: bool = False,
) -> TurnEnd:
    """One input, or the turn that is open, and the approvals it needs, to its end."""
    how = agent.how(session)
    run = session.resume(**how) if content is None else session.send(content, **how, one_shot=one_shot)
    while True:
        try:
            last = driver.drive(run, watcher)
        except TaskTrashed:
            raise  # not this one: what it waits for
        except (NotFound, SessionTrashed) as gone:
            raise TakenOver(f"taken away in the middle of the turn: {gone.command_text}") from gone
        waiting = waiting_calls(session)
        if not waiting or ask is None or not _decide(session, waiting, ask):
            return _end(last, waiting)
        run = session.resume(**how)


def waiting_calls(session: Session) -> tuple[PendingApproval, ...]:
    """The calls that wait for a person, those of its tasks too; each knows its session."""
    return tuple(session.pending_approvals())


def _decide(session: Session, waiting: tuple[PendingApproval, ...], ask: Ask) -> bool:
    """Whether every one of them has its answer now."""
    for call in waiting:
        word = ask(call)
        if word is None:
            return False
        session.approve(call, allow=word)
    return True


def _end(last: Event | None, waiting: tuple[OpenCall, ...]) -> TurnEnd:
    if waiting:
        return TurnEnd("waiting", None, waiting)
    if last is None:
        return TurnEnd("nothing to resume")
    return TurnEnd(str(last.data["stop_reason"]), last.data.get("error"))
