"""Drives a turn from the terminal: passes events to a watcher, Ctrl-C to the turn, and approvals to the user.

One event loop runs all turns of a command. A tool that blocks its thread cannot be stopped: the log records its
outcome as unknown, and `exit` does not wait for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Self

from msgspec import Struct

from oakleaf import Event, PendingApproval, Run
from oakleaf.cli.agent_options import CommandAgent
from oakleaf.cli.person import COMMAND_LINE, user_name
from oakleaf.cli.rendering.error_text import TakenOver
from oakleaf.cli.rendering.turn_events import Watcher
from oakleaf.cli.signals import signal_handlers
from oakleaf.cli.store_option import StoreLocation
from oakleaf.core.messages import Message
from oakleaf.errors import ImportNotAccepted, NotFound, SessionTrashed, TaskTrashed, TurnLimit
from oakleaf.session import Session

Ask = Callable[[PendingApproval], bool | None]
"""Ask the user about a call: True allows it, False denies it, None decides later."""
Accept = Callable[[ImportNotAccepted], bool]
"""Ask the user whether what an import left open may run."""

CANCELLED_CODE = 130


class TurnEnd(Struct, frozen=True):
    """How a turn ended."""

    reason: str
    error: dict[str, Any] | None = None
    """Why it failed or was refused: a refused input leaves calls that wait as they are."""
    waiting: tuple[PendingApproval, ...] = ()
    """Calls that wait for approval."""

    @property
    def is_fine(self) -> bool:
        return self.error is None and not self.waiting and self.reason != "cancelled"

    @property
    def is_limit(self) -> bool:
        return self.error is not None and self.error["code"] == TurnLimit.code


class Driver:
    """Runs turns one after the other. Ctrl-C cancels the turn; a second Ctrl-C ends the program."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._loop = asyncio.new_event_loop()
        self._has_cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())  # closes connections to vendors
        self._loop.close()
        if kind is KeyboardInterrupt:
            self.exit(CANCELLED_CODE)

    def drive(self, run: Run, watcher: Watcher) -> Event | None:
        """Consume the run and return the last event, `session:turn_completed`, if any."""
        is_interrupted = False

        def interrupt() -> None:
            nonlocal is_interrupted
            if is_interrupted:
                raise KeyboardInterrupt
            is_interrupted = self._has_cancelled = True
            run.cancel()

        with signal_handlers(self._loop, {signal.SIGINT: interrupt}), watcher:
            last = self._loop.run_until_complete(_consume(run, watcher))
        if last is not None and last.data["stop_reason"] == "cancelled":  # here, or from another process
            self._has_cancelled = True
        return last

    def exit(self, code: int) -> int:
        """Return the exit code. After a cancel exit at once: Python would wait for a tool's thread, perhaps for hours."""
        if self._has_cancelled:
            self._location.close()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code


async def _consume(run: Run, watcher: Watcher) -> Event | None:
    last = None
    # Closed at once if the watcher fails: that cancels the run, and the log records it.
    async with aclosing(aiter(run)) as events:
        with suppress(TurnLimit):  # its event says so
            async for event in events:
                watcher.watch(event)
                last = event if event.type == "session:turn_completed" else last
    return last


def run_turn(
    driver: Driver,
    session: Session,
    agent: CommandAgent,
    content: str | Message | None,
    watcher: Watcher,
    ask: Ask | None = None,
    accept: Accept | None = None,
    *,
    one_shot: bool = False,
    key: str | None = None,
    about: dict[str, Any] | None = None,
) -> TurnEnd:
    """Run an input, or the open turn, to the end, asking for the needed approvals."""
    arguments = agent.run_arguments(session)

    resume: Callable[[], Run] = partial(session.resume, **arguments)
    start = (
        resume
        if content is None
        else partial(session.send, content, **arguments, **(about or {}), one_shot=one_shot, key=key)
    )
    while True:
        try:
            last = driver.drive(start(), watcher)
        except ImportNotAccepted as error:  # nothing was run or written
            if accept is None or not accept(error):
                raise
            session.accept_imported()
            continue
        except TaskTrashed:
            raise  # a task of this session, not the session itself
        except (NotFound, SessionTrashed) as error:
            raise TakenOver(f"the session was removed during the turn: {error.command_text}") from error
        end = _end(last, tuple(session.pending_approvals()))
        if end.reason != "waiting" or ask is None or not _decide(session, end.waiting, ask):
            return end
        start = resume


def _decide(session: Session, waiting: tuple[PendingApproval, ...], ask: Ask) -> bool:
    """Ask about each call; return whether all calls were decided."""
    for call in waiting:
        allow = ask(call)
        if allow is None:
            return False
        session.approve(call, allow=allow, by=user_name(), surface=COMMAND_LINE)
    return True


def _end(last: Event | None, waiting: tuple[PendingApproval, ...]) -> TurnEnd:
    error = None if last is None else last.data.get("error")
    if waiting and error is None:
        return TurnEnd("waiting", None, waiting)
    if last is None:
        return TurnEnd("nothing to resume")
    return TurnEnd(str(last.data["stop_reason"]), error, waiting)
