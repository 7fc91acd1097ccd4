"""Hooks: functions of the host, called before and after each turn, model call and tool call.

A hook sees the request and the outcome, and may refuse. Knows what a hook may do to the work: refuse, and nothing
else. A hook that fails or hangs is logged, and the work goes on. Does not know spans.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar, Token, copy_context
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from oakleaf.core.messages import Message, ToolCall
from oakleaf.core.usage import Call
from oakleaf.errors import Refused

if TYPE_CHECKING:
    from oakleaf.log.log import Log
    from oakleaf.models.base import Model, Request

logging.getLogger("oakleaf").addHandler(logging.NullHandler())

Status = Literal["done", "failed", "cancelled", "waiting", "refused"]


class Watched(Struct, frozen=True, kw_only=True):
    """The place of a watched call."""

    session_id: str
    turn: int
    """The seq of the turn's input; 0 before the input is stored."""
    at: int
    """The start, in microseconds since 1970, UTC. In an own loop it may lie before the call of the hook."""


class WatchedTurn(Watched, frozen=True, kw_only=True):
    """A turn about to run."""

    agent: str | None
    input: Message | None
    """None: an open turn goes on."""
    trace: str | None
    """The `traceparent` of the turn's sender."""


class WatchedModelCall(Watched, frozen=True, kw_only=True):
    """A model call about to be made; in an own loop, a call that was made."""

    provider: str | None
    model: str | None
    request: Request | None
    """The request; None in an own loop."""


class WatchedTool(Watched, frozen=True, kw_only=True):
    """A tool call about to run; without `turn.started` or `turn.run` of an own loop, a call that has run."""

    call: ToolCall
    key: str
    """The idempotency key of the call."""


class Ending(Struct, frozen=True, kw_only=True):
    """The outcome of a watched turn, model call or tool call."""

    status: Status = "done"
    error: str | None = None
    error_type: str | None = None
    """The class of the error."""
    message: Message | None = None
    """The answer of a model, or the result of a tool."""
    call: Call | None = None
    """The ledger row of an answered model call: usage and price."""
    finish: str | None = None
    """The reason why the model stopped."""
    turn: int = 0
    """The seq of the turn's input, at the end of a turn."""


After = Callable[[Ending], object]
"""Called with the outcome."""


class Hooks(Struct, frozen=True, kw_only=True):
    """Functions of the host. Each sees a request before the work, and may return a function for the outcome.

    `Refused("why")`, raised by a hook, refuses the work, if the work has not begun.
    """

    on_turn: Callable[[WatchedTurn], After | None] | None = None
    on_model_call: Callable[[WatchedModelCall], After | None] | None = None
    on_tool: Callable[[WatchedTool], After | None] | None = None
    timeout: float = 5.0
    """Seconds before the work goes on without a hook that has not returned."""


Kind = Literal["turn", "model_call", "tool"]


class Watch:
    """The hooks around one turn, model call or tool call.

    Hooks run on threads of their own. The context variables set by the hooks are then set for the work, so that a
    span started by a hook is the current span.
    """

    def __init__(
        self, log: Log, kind: Kind, name: str | None, watched: Callable[[], Any], *, may_refuse: bool = True
    ) -> None:
        """Prepare the hooks. `watched` makes the value for the hooks, called only if there are hooks."""
        self.hooks: Sequence[Hooks] = log.runtime.hooks
        self.ending: Ending | None = None
        """The outcome; None until known, and for work that is done."""
        self._log, self._kind, self._name, self._watched = log, kind, name, watched
        self._may_refuse, self._has_begun, self._has_ended = may_refuse, False, False
        self._afters: list[tuple[Hooks, After]] = []
        self._context: Context | None = None
        self._logger = logging.getLogger(f"oakleaf.{kind}")
        self._own: list[tuple[ContextVar[Any], Any]] = []
        """The context variables set by the hooks."""
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    @property
    def is_told(self) -> bool:
        """Whether anybody hears of the outcome: a hook, or the log."""
        return bool(self.hooks) or self._logger.isEnabledFor(logging.INFO)

    def begin(self) -> None:
        """Call the hooks in order. Raise `Refused` for the first refusal. A second call does nothing."""
        if self._has_begun:
            return
        self._has_begun = True
        if not self.hooks:
            return
        watched, self._context = self._watched(), self._context or copy_context()
        before = dict(self._context.items())
        for hooks in self.hooks:
            function = getattr(hooks, f"on_{self._kind}")
            if function is None:
                continue
            try:
                after = self._call(hooks, function, watched)
            except Refused as refused:
                if self._may_refuse:
                    self.ending = Ending(status="refused", error=refused.reason, error_type="refused")
                    raise
                self._warn(f"on_{self._kind} refused too late: {refused.reason}")
                continue
            if callable(after):
                self._afters.append((hooks, after))
        self._own = [(name, value) for name, value in self._context.items() if before.get(name) is not value]

    def end(self) -> None:
        """Call the functions for the outcome, the latest first, and log the outcome. A second call does nothing."""
        if self._has_ended or not self._has_begun:
            return
        self._has_ended = True
        while self._afters:
            hooks, after = self._afters.pop()
            with suppress(Refused):
                self._call(hooks, after, self.ending or Ending())
        self._log_ending()

    def fail(self, error: BaseException) -> None:
        """Note the error that ended the work."""
        self.ending = self.ending or ending_of(error)

    def capture(self) -> None:
        """Let the hooks run in a copy of the present context, wherever `begin` is called."""
        if self.hooks:
            self._context = copy_context()

    def enter(self) -> None:
        """Set the context variables of the hooks in the present context."""
        self._tokens = [(name, name.set(value)) for name, value in self._own]

    def leave(self) -> None:
        """Set the context variables back."""
        while self._tokens:
            name, token = self._tokens.pop()
            with suppress(ValueError):  # the block was left in another context
                name.reset(token)

    def _call(self, hooks: Hooks, function: Callable[[Any], Any], value: object) -> Any:
        """Return the value of a function on a thread of its own, None after an error or the timeout."""
        assert self._context is not None
        done: Future[Any] = Future()
        Thread(
            target=_settle, args=(done, self._context, function, value), name="oakleaf-hook", daemon=True
        ).start()
        try:
            return done.result(hooks.timeout)
        except Refused:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not done.done():
                raise
            if done.done():
                self._warn(f"on_{self._kind} failed: {type(error).__name__}: {error}", error)
            else:
                self._context = self._context.copy()  # nobody enters a context twice
                self._warn(f"on_{self._kind} has not returned after {hooks.timeout:g} s")
            return None

    def _warn(self, why: str, error: BaseException | None = None) -> None:
        trace = "" if error is None else "\n" + "".join(traceback.format_exception(error)).rstrip()
        text = self._log.runtime.redactor.redact_text(f"{why}; the work goes on without this hook{trace}")
        logging.getLogger("oakleaf.hooks").warning(text, extra=self._extra("hook_failed"))

    def _log_ending(self) -> None:
        ending = self.ending or Ending()
        level = logging.WARNING if ending.status in ("failed", "refused") else logging.INFO
        if self._logger.isEnabledFor(level):
            what = f"{self._kind.replace('_', ' ')} {self._name or ''}".strip()
            why = "" if ending.error is None else f": {ending.error}"
            text = self._log.runtime.redactor.redact_text(f"{what} {ending.status}{why}")
            self._logger.log(level, text, extra=self._extra(f"{self._kind}_ended", status=ending.status))

    def _extra(self, event: str, **fields: object) -> dict[str, Any]:
        turn = self._log.cursor.turn or (0 if self.ending is None else self.ending.turn)
        place = {"session_id": self._log.session_id, "turn": turn}
        return {**place, "fields": {"event": event, **place, **fields}}


def _settle(done: Future[Any], context: Context, function: Callable[[Any], Any], value: object) -> None:
    try:
        done.set_result(context.run(function, value))
    except BaseException as error:  # noqa: BLE001 - raised again where the outcome is awaited
        done.set_exception(error)


def ending_of(error: BaseException) -> Ending:
    """Return the outcome of work ended by an error."""
    name = type(error).__name__
    if not isinstance(error, Exception):
        return Ending(status="cancelled", error_type=name)
    return Ending(status="failed", error=str(error), error_type=name)


def tool_ending(message: object) -> Ending:
    """Return the outcome of a tool call with a result; without a message the call waits for a person."""
    if not isinstance(message, Message):
        return Ending(status="waiting")
    result = message.results[0]
    if not result.error:
        return Ending(message=message)
    kind = "tool_error" if result.outcome == "done" else result.outcome
    return Ending(status="failed", error=result.text, error_type=kind, message=message)


def turn_ending(log: Log, turn: int) -> Ending:
    """Return the outcome of the session's latest turn, by the row of the session."""
    row = log.store.session(log.session_id)
    match row.status:
        case "failed":
            return Ending(status="failed", error=row.error, error_type="failed", turn=turn)
        case "cancelled" | "interrupted":
            return Ending(status="cancelled", error=row.error, error_type=row.status, turn=turn)
        case "waiting":
            return Ending(status="waiting", turn=turn)
    return Ending(turn=turn)


def watch_model_call(log: Log, model: Model, request: Request | None) -> Watch:
    """Return the hooks around a call of a model."""

    def watched() -> WatchedModelCall:
        return WatchedModelCall(
            session_id=log.session_id,
            turn=log.cursor.turn,
            at=log.runtime.now(),
            provider=model.provider,
            model=model.model,
            request=request,
        )

    return Watch(log, "model_call", model.model, watched)


class Watching:
    """Call the hooks around a block. `run` runs the hooks, in asyncio without blocking the event loop."""

    def __init__(self, watch: Watch, run: Callable[..., Any]) -> None:
        self._watch, self._run = watch, run if watch.hooks else _directly

    async def __aenter__(self) -> Watch:
        watch = self._watch
        watch.capture()
        try:
            await self._run(watch.begin)
        except BaseException as error:
            watch.fail(error)
            await self._run(watch.end)
            raise
        watch.enter()
        return watch

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        watch = self._watch
        watch.leave()
        if error is not None:
            watch.fail(error)
        if kind is GeneratorExit:  # the event loop is gone, so nothing can be awaited
            watch.end()
        else:
            await self._run(watch.end)


async def _directly(work: Callable[[], None]) -> None:
    work()
