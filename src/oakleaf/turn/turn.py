"""One turn of your own loop: input, answers and results, each durable on return."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, overload
from weakref import WeakMethod

from msgspec.structs import replace

from oakleaf import wire
from oakleaf.agent.cancellation import cancel_check, is_cancel_requested
from oakleaf.core.context import fold_settings
from oakleaf.core.drafts import Blob, Draft
from oakleaf.core.entries import Entry
from oakleaf.core.facts import LeftStatus, ModelCallFailed, TaskWaits, TurnRefused, TurnResumed, TurnStarted
from oakleaf.core.messages import Message, Outcome, ToolCall, assistant, to_user_message, tool_result
from oakleaf.core.tool_definitions import ToolSet, changed_tools
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import OpenCall
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import (
    ApprovalPending,
    ApprovalRequired,
    CallAlreadyStarted,
    Fenced,
    ImportNotAccepted,
    InvalidOperation,
    OpenBatch,
    OrphanResult,
    Refused,
    SessionRunning,
    StaleLeaf,
    TurnCancelled,
)
from oakleaf.log.changes import check_callers_key
from oakleaf.log.keyed_turn import KeyedTurn, RecordedSteps, find_turn
from oakleaf.log.lease import require_free
from oakleaf.log.log import Log
from oakleaf.log.turn_start import trigger_columns
from oakleaf.models.prices import price
from oakleaf.stores.base import MADE_KEY, SessionRow
from oakleaf.turn.runner import ModelName, Runner
from oakleaf.wire import Answer

if TYPE_CHECKING:
    from oakleaf.agent.call_status import CallStatus
    from oakleaf.agent.events import Event
    from oakleaf.agent.limits import Limits
    from oakleaf.agent.tasks import TaskRunner
    from oakleaf.agent.tools.tool import Approval, PendingApproval, RunTask, Tool, ToolContext
    from oakleaf.log.hooks import Watch, WatchedTurn
    from oakleaf.models.base import Model
    from oakleaf.turn.async_turn import AsyncTurn

P = ParamSpec("P")
R = TypeVar("R")


class RunBlocking(Protocol):
    """Runs work with store access, here or on another thread."""

    def __call__(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class Turn:
    """Opened by `with session.turn("…") as turn`; closed by an answer without tool calls.

    Leaving the block early marks the session as failed (exception), cancelled (Ctrl-C), waiting (for an approval) or
    interrupted. The turn itself stays open; `session.turn()` continues the turn. The loop is the same for both:

        while not turn.done:
            for call in turn.open_tool_calls:
                turn.run(call, TOOLS[call.call.name])
            if not turn.done:
                turn.answer(client.messages.create(**session.request("anthropic"), …))  # tools included

    With a key the same lines may run again, after a crash or a second delivery, and leave the same entries as once.
    An ended turn is done at once, and returns the recorded answers and results; an open turn continues. Nothing
    is written or run for recorded steps.
    """

    def __init__(
        self,
        log: Log,
        content: str | Message | dict[str, Any] | None,
        *,
        key: str | None,
        model: str | None,
        started: TurnStarted,
        tools: ToolSet | None = None,
        task_models: Sequence[Model] = (),
    ) -> None:
        from oakleaf.log.hooks import Watch  # loads logging, which a program without a turn need not wait for

        self._log = log
        self._content = content
        self._key = key
        self._started = started
        self._tools = tools
        """The definitions of the tools, until appended to the path."""
        self._turn = 0
        self._allowed: tuple[int, tuple[str, ...] | None] = (0, None)
        """The seq of the latest answer with the session's allowed tools at the answer."""
        self._leaves_paths: bool | None = None
        self._recorded: RecordedSteps | None = None
        """The recorded steps of an earlier run of the keyed turn."""
        self._is_closed = False
        """Whether the earlier run ended the turn: this run writes nothing."""
        self._caps: Limits | None = None
        """The limits of the session itself; the defaults of `send` do not hold here."""
        self._runner = Runner(log, None if model is None else _model_name(model))
        self._task_models = task_models
        self._tasks: TaskRunner | None = None
        """Runs the tasks of the tools, if there are models for tasks. Built for the first tool."""
        self._told = 0
        """The number of the latest fact that `events` has returned."""
        self._async_turn: AsyncTurn
        self._text = ""
        # Not a method: a turn that is dropped without its end must be freed at once.
        self.watch = Watch(log, "turn", None, partial(_watched_turn, log, content, started))
        """The host's hooks around the turn."""
        self._tool_watches: dict[str, Watch] = {}
        """The hooks around the tool calls run by the host, by call id."""
        self._asked_at = 0
        """The time since which a model may be asked."""
        self._is_cancelled = False
        """Whether a cancellation from elsewhere was seen."""
        self.interrupt: Callable[[], None] | None = None
        """Ends the block of an async turn at a cancellation. A sync turn raises at the next verb."""

    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException as error:
            self.watch.fail(error)
            self.watch.end()
            if isinstance(error, SessionRunning):
                raise error.with_hint(
                    "wait for its turn to end, or queue your input with session.enqueue(text); if its runner is gone, call "
                    "session.turn(…, take_over=True)"
                ) from None
            raise
        self.watch.enter()
        return self

    def _enter(self) -> None:
        """Open, repeat or continue the turn."""
        draft = None if self._content is None else _input(self._content)
        while not self.is_entered:
            row = self._runner.look()
            self._runner.on_tick = cancel_check(self._log, row.facts, weak_call(self._note_cancel))
            self._told = row.facts if row.turns else 0  # the first turn begins with the start of the session
            recorded = find_turn(self._log, self._key, None if draft is None else _message(draft))
            try:
                if recorded is not None:
                    self._repeat(recorded)
                elif draft is not None:
                    self._start(draft, row)
                else:
                    self._continue(row)
            except (StaleLeaf, Fenced) as error:  # another process has run the session since it was read
                require_free(self._log.store.session(self._log.session_id), self._log.runtime)
                if isinstance(error, StaleLeaf) and recorded is None and draft is not None:
                    raise

    async def __aenter__(self) -> AsyncTurn:
        from oakleaf.turn.async_turn import AsyncTurn

        self._async_turn = AsyncTurn(self)
        await self._async_turn.enter()
        return self._async_turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._async_turn.exit(kind, error, traceback)
        finally:
            del self._async_turn  # it refers to this turn

    def _tell_model_call(self, call: Call, answer: Answer, why: str | None = None) -> None:
        """Call the hooks for a model call that the host has made."""
        from oakleaf.log.hooks import Ending, Watch, WatchedModelCall

        def watched() -> WatchedModelCall:
            return WatchedModelCall(
                session_id=self._log.session_id,
                turn=self._turn,
                at=self._asked_at,
                provider=call.provider,
                model=call.model,
                request=None,
            )

        watch = Watch(self._log, "model_call", call.model, watched, may_refuse=False)
        watch.begin()
        if why is None:
            watch.ending = Ending(message=answer.message, call=call, finish=answer.finish)
        else:
            watch.ending = Ending(status="failed", error=why, error_type="failed", call=call)
        watch.end()

    def _start(self, draft: Draft, row: SessionRow) -> None:
        """Append the input."""
        from oakleaf.agent.limits import hook_limit
        from oakleaf.agent.start_facts import turn_start

        log, runner = self._log, self._runner
        if log.cursor.open_calls:
            self._refuse_open_calls(row)
        self._refuse_past_caps(row)
        try:
            self.watch.begin()
        except Refused as refused:
            hit = hook_limit(refused)
            log.record(TurnRefused(hit.refusal))
            raise hit.to_error(log.session_id) from None
        about = turn_start(self._started, row, runner.detail)
        drafts = [*self._changed_settings(), draft]
        started = runner.open(drafts, about, trigger_columns(self._started), key=self._key)
        if not started.is_repeat:  # else it was delivered to another process at the same time
            self._tools = None
            log.fence = runner.lease.fence
            self._turn, self._asked_at = log.cursor.turn, log.runtime.now()

    def _refuse_open_calls(self, row: SessionRow) -> None:
        """Raise the reason why no input may follow: tool calls of the turn before have no result."""
        log, calls = self._log, self._log.cursor.open_calls
        require_free(row, log.runtime)
        if row.leaf != log.leaf:
            raise StaleLeaf(log.session_id, log.leaf, row.leaf)
        status = self._call_status()
        pending = [
            c.call.name for c in calls if (c.seq, c.index) in status.approval_requested - status.denied
        ]
        if pending:
            decide = "decide with session.approve(call) or session.approve(call, allow=False)"
            raise ApprovalPending(
                log.session_id, pending, f"{decide}, then continue the turn: session.turn()"
            )
        ends = 'session.turn() continues the open turn, session.close_batch("reason") ends its calls'
        raise OpenBatch([call.call.id for call in calls], "user", ends)

    def _continue(self, row: SessionRow) -> None:
        """Continue the open turn of the session, wherever this handle was."""
        log = self._log
        log.seek(row.leaf)
        if self._key is not None or not log.cursor.turn:
            under = "" if self._key is None else f" under key {self._key!r}"
            raise InvalidOperation(
                f"no turn is open in session {log.session_id}{under}; pass an input: session.turn(text)"
            )
        self._resume()
        self._turn, self._asked_at = log.cursor.turn, log.runtime.now()

    def _resume(self) -> None:
        """Take the lease, if the open turn is still at the leaf of this handle."""
        from oakleaf.agent.limits import hook_limit, session_caps

        try:
            self.watch.begin()
        except Refused as refused:
            raise hook_limit(refused).to_error(self._log.session_id) from None
        self._caps = session_caps(self._log)
        self._is_cancelled = is_cancel_requested(self._log.facts_backwards(), self._log.cursor.turn)
        settings = [] if self._log.cursor.open_calls else self._changed_settings()
        self._runner.resume(TurnResumed(self._log.cursor.turn), settings)
        self._log.fence = self._runner.lease.fence
        if not self._log.cursor.open_calls:
            self._tools = None

    def _refuse_past_caps(self, row: SessionRow) -> None:
        """Raise `TurnLimit` if the session's own limits allow no other turn. The refusal is recorded, the input is not."""
        from oakleaf.agent.limits import check_own_caps, session_caps

        self._caps = session_caps(self._log)
        if self._caps is not None and (hit := check_own_caps(self._log, self._caps, turns=row.turns)):
            self._log.record(TurnRefused(hit.refusal))
            raise hit.to_error(self._log.session_id)

    def _stop_at_caps(self) -> None:
        """End the turn in public and raise `TurnLimit` if the session's own limits allow no other model call."""
        from oakleaf.agent.limits import check_own_caps

        log = self._log
        if self._caps is None or log.cursor.open_calls or not log.cursor.turn:
            return
        if hit := check_own_caps(log, self._caps, rounds=log.cursor.step):
            self._runner.close([Draft(assistant(f"(stopped: {hit})"), finish="error")], str(hit))
            self._note_end()
            raise hit.to_error(log.session_id)

    def _changed_settings(self) -> list[Draft]:
        """Return the settings to append before the next model call: new definitions of the tools."""
        if self._tools is None:
            return []
        path = self._log.store.control_entries(self._log.session_id, leaf=self._log.leaf)
        tools = changed_tools(self._tools, fold_settings(path).tool_definitions)
        return [] if tools is None else [tools.draft()]

    def _repeat(self, recorded: KeyedTurn) -> None:
        """Continue the recorded turn if the turn is open; else write nothing.

        The handle goes back to its input.
        """
        if recorded.is_open:
            self._resume()
        self._turn, self._is_closed = recorded.turn, not recorded.is_open
        self._text = _final_text(recorded.entries)
        self._recorded = RecordedSteps(recorded)
        self._log.seek(recorded.leaf)
        self._log.recorded_steps = self._recorded

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        from oakleaf.log.hooks import turn_ending

        self.watch.leave()
        try:
            self._end(kind, error)
        finally:
            self._runner.lease.stop()  # after its end is stored: until then the turn is this one's
            for watch in (*self._tool_watches.values(), self.watch):
                if watch.is_told:
                    watch.ending = turn_ending(self._log, self._turn)
                watch.end()
        if self._is_cancelled and not self.done:
            from oakleaf.agent.run import cancel_turn

            cancel_turn(self._log)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Record how the turn was left, unless the turn has ended."""
        self._log.fence = self._log.recorded_steps = None
        if self._recorded is not None:
            self._log.refresh()
        if self.done:
            return
        status: LeftStatus = "interrupted"
        if isinstance(error, ApprovalRequired):
            status = "waiting"
        elif kind is not None:
            status = "failed" if issubclass(kind, Exception) else "cancelled"
        message = (
            None if error is None else f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
        )
        with suppress(Fenced):  # another runner has driven the session meanwhile; its status stands
            # Left without an error: the call was not made. After an error it may have been, and stays counted.
            self._runner.is_call_made = kind is not None
            self._runner.leave(status, message)

    @property
    def log(self) -> Log:
        """The log of the session."""
        return self._log

    @property
    def is_entered(self) -> bool:
        """Whether the turn was opened."""
        return bool(self._turn)

    @property
    def is_repeating(self) -> bool:
        """Whether the keyed turn runs again and has repeated no answer yet.

        The next line decides where the turn continues.
        """
        return self._recorded is not None and not self._recorded.passed

    @property
    def done(self) -> bool:
        """Whether the turn has ended: by an answer without tool calls, or by a tool."""
        return self._is_closed or self._log.cursor.turn != self._turn

    @property
    def is_cancel_requested(self) -> bool:
        """Whether `session.cancel()` or `oakleaf cancel` ends the turn.

        The next verb stores a known answer or result, then raises `TurnCancelled`. A long step of your own may
        look here, and leave the block.
        """
        if not self._is_cancelled and self.interrupt is None:
            self._is_cancelled = is_cancel_requested(self._log.facts_backwards(), self._turn)
        return self._is_cancelled

    def _note_cancel(self) -> None:
        """Note a cancellation from elsewhere. Called on the thread of the lease."""
        self._is_cancelled = True
        if self.interrupt is not None:
            self.interrupt()

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled and self.interrupt is None and not self.done:
            raise TurnCancelled(self._log.session_id)

    @property
    def text(self) -> str:
        """The text of this turn's final answer; empty before the answer.

        A keyed turn that runs again has the text of the first run, whatever turns followed.
        """
        return self._text

    def events(self) -> list[Event]:
        """Return the events of everything durable since the last call of `events`: the durable events of `send`.

        After the block, return the rest: the end of the turn, or the way the turn was left.
        """
        from oakleaf.agent.turn_events import turn_events

        after, self._told = self._told, max(self._told, self._runner.journal_number)
        return turn_events(self._log, after, self._told)

    @property
    def open_tool_calls(self) -> tuple[OpenCall, ...]:
        """The tool calls without a result, in call order, with the model's arguments.

        A secret in the arguments is not stored. After a crash, a call with a secret shows placeholders and
        must not be run (`call.call.is_hidden`), unless every placeholder is a named secret known to this process.
        """
        if self.is_repeating:
            if self._is_closed:
                return ()
            self._catch_up()  # a loop that begins here continues where the turn is, and repeats no answer
        return self._original_calls()

    def _original_calls(self) -> tuple[OpenCall, ...]:
        return tuple(self._with_original(call) for call in self._log.cursor.open_calls)

    def recorded_answer(self) -> Message | None:
        """Return the next recorded answer of an earlier run of the keyed turn, None if there is none.

        Saves the model call: `answer = turn.recorded_answer() or turn.answer(client.messages.create(…))`.
        """
        entry = None if self._recorded is None else self._recorded.next_answer()
        if entry is None or entry.message is None:
            return None
        self._log.seek(Leaf(entry.branch, entry.seq))
        return self._with_original_calls(entry.message, entry.seq)

    def _recorded_result(self, call_id: str) -> Message | None:
        entry = None if self._recorded is None else self._recorded.result(call_id)
        if entry is not None and entry.seq > self._log.leaf.seq:
            self._log.seek(Leaf(entry.branch, entry.seq))
        return None if entry is None else entry.message

    def _catch_up(self) -> None:
        """Move from the last repeated step to the session's leaf, to write there."""
        if not self.is_entered:
            raise InvalidOperation(
                "the turn is not open, so nothing was written",
                "open it: with session.turn(text) as turn: …; in asyncio: async with",
            )
        if self._is_closed:
            raise InvalidOperation(f"turn {self._turn} has ended; open another: session.turn(text)")
        if self._recorded is not None:
            self._recorded.leave(self._log)

    def answer(
        self,
        reply: object,
        *,
        usage: Usage | None = None,
        provider: str | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> Message:
        """Append a model's answer: an SDK object, a dict or a Message.

        The reply also gives usage and evidence.

        Returns the stored answer, with the model's own tool calls: tools run on the original arguments. In a
        repeated keyed turn, the recorded answer is returned instead.
        """
        recorded = self.recorded_answer()
        if recorded is not None:
            return recorded
        self._catch_up()
        if self.done:
            raise InvalidOperation(f"turn {self._turn} has ended; open another: session.turn(text)")
        read = wire.parse_reply(reply)
        usage = read.usage if usage is None else usage
        read = replace(read, usage=usage, provider=provider or read.provider, model=model or read.model)
        draft = Draft(read.message, read.model, read.finish, read.evidence)
        runner = self._runner
        # A reply that names its model was paid for, though its server may report no tokens: they are unknown, not 0.
        is_call = usage is not None or runner.call_id is not None or read.model is not None
        call = self._ledger(read, is_answered=True) if is_call else None
        appended = runner.answer([draft], call, key=self._key_of(draft, key))
        self._note_end()
        self._recorded = self._log.recorded_steps = None
        message = appended.payloads[0]
        assert isinstance(message, Message)
        self._text = message.text if self.done else ""
        if call is not None:
            self._tell_model_call(call, read)
        self._raise_if_cancelled()
        return self._with_original_calls(message, appended.leaf.seq)

    def _with_original_calls(self, message: Message, seq: int) -> Message:
        if not [call for call in message.calls if call.is_hidden]:
            return message
        calls_made = (
            self._with_original(OpenCall(seq, index, call)).call for index, call in enumerate(message.calls)
        )
        parts = tuple(next(calls_made) if isinstance(part, ToolCall) else part for part in message.parts)
        return replace(message, parts=parts)

    def _with_original(self, call: OpenCall) -> OpenCall:
        original = self._log.original_call(call)
        return call if original is None else OpenCall(call.seq, call.index, original)

    def failed(
        self, why: str, *, usage: Usage | None = None, provider: str | None = None, model: str | None = None
    ) -> None:
        """Record a model call without an answer: the call counts, and the path stays as before."""
        if self._is_closed or (self._recorded is not None and self._recorded.has_answers):
            return
        self._catch_up()
        answer = wire.Answer(Message("assistant"), usage, None, provider, model, None)
        call = self._ledger(answer, is_answered=False)
        self._runner.fail(call, ModelCallFailed(why))
        self._tell_model_call(call, answer, why)
        self._asked_at = self._log.runtime.now()

    def result(
        self,
        call_id: str,
        content: object = "",
        *,
        error: bool = False,
        outcome: Outcome = "done",
        ends_turn: bool = False,
        state: dict[str, Any] | None = None,
        details: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Message:
        """Append the result of one call.

        `state` is merged into the session's state; `details` are for the host.

        In a repeated keyed turn, the recorded result is returned instead.
        """
        from oakleaf.log.hooks import tool_ending

        recorded = self._recorded_result(call_id)
        if recorded is not None:
            return recorded
        self._catch_up()
        message = tool_result(
            call_id, content, error=error, outcome=outcome, ends_turn=ends_turn, state=state, details=details
        )
        draft = Draft(message)
        watch = self._tool_watches.pop(call_id, None) or self._watch_tool(call_id, may_refuse=False)
        self._runner.append_result(draft, self._due_settings(), key=self._key_of(draft, key))
        if watch is not None:
            watch.begin()
            watch.ending = tool_ending(message)
            watch.end()
        self._note_result()
        self._raise_if_cancelled()
        return message

    # -- running tools -----------------------------------------------------------------------------

    @overload
    def run(self, call: ToolCall | OpenCall, function: Tool) -> Any: ...
    @overload
    def run(
        self, call: ToolCall | OpenCall, function: Callable[..., Coroutine[Any, Any, Any]]
    ) -> Coroutine[Any, Any, Message]: ...
    @overload
    def run(self, call: ToolCall | OpenCall, function: Callable[..., Any]) -> Message: ...
    def run(
        self, call: ToolCall | OpenCall, function: Tool | Callable[..., Any]
    ) -> Message | Coroutine[Any, Any, Message]:
        """Run a tool call once: record the start, call the function, append and return the result.

        An exception becomes an error result. An async function, or a tool of one, is awaited: `await
        turn.run(…)`. A call started before a crash, without a result, is not run again: the result says that
        the outcome is unknown. An `oakleaf.tool` with the effect `read` or `idempotent` is run again, under
        the same key; a tool with a `verify` function finds out what happened. An unsafe call already made on
        a path left behind raises `ApprovalRequired`, unless the path decides
        about the call (docs/effects.md).
        """
        tool = _as_tool(call, function)
        running = self._run(call, tool, _directly, in_thread=tool.is_async)
        return running if tool.is_async else _run_without_loop(running)

    async def run_async(
        self, call: ToolCall | OpenCall, function: Tool | Callable[..., Any], run_blocking: RunBlocking
    ) -> Message:
        """Do the same as `run` without blocking the event loop. Store access goes through `run_blocking`."""
        return await self._run(call, _as_tool(call, function), run_blocking, in_thread=True)

    def started(self, call: ToolCall | OpenCall) -> None:
        """Record the start of a tool call, before you run the call yourself. Append the result with `result`.

        Raises `CallAlreadyStarted` after an earlier start, here or by a dead process: the call may have taken
        effect.
        """
        if self._recorded_result(_call_id(call)) is not None:
            return
        open_call = self._open_call(call)
        self._require_accepted(open_call, None)
        if self._was_started(open_call):
            raise CallAlreadyStarted(open_call.call.id, open_call.call.name)
        if open_call.call.is_hidden:
            hidden = ", ".join(dict.fromkeys(open_call.call.placeholders))
            raise InvalidOperation(
                f"call {open_call.call.id} of {open_call.call.name} cannot be run: {hidden} stands in its arguments for "
                "what only the process knew that has ended; append turn.result(call_id, why, error=True) and let the "
                "model call it again"
            )
        self._refuse_repeat(open_call)
        watch = self._watch_tool(open_call.call.id)
        if watch is not None:
            watch.begin()
            self._tool_watches[open_call.call.id] = watch
        self._runner.start(open_call)

    def _watch_tool(self, call_id: str, *, may_refuse: bool = True) -> Watch | None:
        """Return the hooks around a tool call that the host runs itself, None without such a call."""
        from oakleaf.agent.tool_batch import watch_tool

        calls = [call for call in self._log.cursor.open_calls if call.call.id == call_id]
        return watch_tool(self._log, calls[0], may_refuse=may_refuse) if calls else None

    def _refuse_repeat(self, call: OpenCall) -> None:
        """Raise unless the call may run. The same call on a path left behind needs a decision first."""
        definitions = self._log.settings().tool_definitions if self._has_left_paths() else None
        is_unsafe = definitions is None or call.call.name not in definitions.repeatable
        decision = self._decide(call, approval=False, is_unsafe=is_unsafe)
        if decision is not True:
            why = (
                "was denied"
                if decision is False
                else "has a result on another path, which is to be used again"
            )
            raise InvalidOperation(
                f"call {call.call.id} of {call.call.name} {why}; it was not started",
                "append that result with turn.run(call, function), which does not run the function then",
            )

    async def _run(
        self, tool_call: ToolCall | OpenCall, tool: Tool, run_blocking: RunBlocking, *, in_thread: bool
    ) -> Message:
        from oakleaf.agent.tool_batch import UNKNOWN_OUTCOME, refused_result, watch_tool
        from oakleaf.agent.tools.tool import Happened, NeverHappened
        from oakleaf.log.hooks import Watching, tool_ending

        begun = await run_blocking(self._begin, tool_call, tool)
        if isinstance(begun, Message):
            return begun
        call, context, was_started = begun
        if was_started and tool.effect == "unsafe":
            outcome = await tool.check_outcome(context, in_thread=in_thread)
            if isinstance(outcome, Happened):
                happened = tool.result(context, outcome.value)
                return await run_blocking(self._store_result, call, happened, context.blobs)
            if not isinstance(outcome, NeverHappened):
                unknown = tool_result(call.call.id, UNKNOWN_OUTCOME, error=True, outcome="unknown")
                return await run_blocking(self._store_result, call, unknown)
        try:
            async with Watching(watch_tool(self._log, call, context), run_blocking) as watch:
                settled = await self._run_or_wait(tool, context, in_thread=in_thread)
                watch.ending = tool_ending(settled)
        except Refused as refused:
            settled = refused_result(call.call, refused)
        if not isinstance(settled, Message):
            raise await run_blocking(self._note_wait, call, settled)
        return await run_blocking(self._store_result, call, settled, context.blobs)

    async def _run_or_wait(
        self, tool: Tool, context: ToolContext, *, in_thread: bool
    ) -> Message | list[PendingApproval]:
        from oakleaf.agent.tools.tool import TaskNeedsApproval

        try:
            return await tool.run(context, in_thread=in_thread)
        except TaskNeedsApproval:
            assert self._tasks is not None
            return await self._tasks.settle_wait(tool, context)

    def _note_wait(self, call: OpenCall, approvals: Sequence[PendingApproval]) -> ApprovalRequired:
        """Record what the tasks of a call wait for, and return the error that leaves the block."""
        from oakleaf.agent.tool_batch import call_key

        known = self._call_status().task_approvals.get((call.seq, call.index), ())
        for asked in approvals:
            if asked not in known:
                waits = TaskWaits(call.seq, call.index, asked.session_id, call_key(asked))
                self._runner.record_task_wait(waits)
        return ApprovalRequired(self._log.session_id, call.call.id, call.call.name)

    def _refuse_undecided(self, call: OpenCall, tool: Tool) -> None:
        """Raise if a person must first decide about a call of a task. The task is not run again before."""
        status, tools = self._call_status(), {call.call.name: tool}
        if status.is_waiting(call, tools):
            status.raise_if_trashed(self._log, tools)
            raise ApprovalRequired(self._log.session_id, call.call.id, call.call.name)

    def _run_task(self) -> RunTask | None:
        """Return the way for a tool to run a task, None without models for tasks."""
        if self._tasks is None and self._task_models:
            from oakleaf.agent.loop import build_tasks

            self._tasks = build_tasks(self._log, self._task_models)
        return None if self._tasks is None else self._tasks.run

    def _begin(
        self, tool_call: ToolCall | OpenCall, tool: Tool
    ) -> Message | tuple[OpenCall, ToolContext, bool]:
        """Record the start of a call and return call, context and an earlier start; or return the result.

        The call must not run if a result is returned.
        """
        from oakleaf.agent.tool_batch import DENIED, NO_TOOL, hidden_result
        from oakleaf.agent.tools.tool import ToolContext, error_result

        recorded = self._recorded_result(_call_id(tool_call))
        if recorded is not None:
            return recorded
        self._raise_if_cancelled()
        call = self._open_call(tool_call)
        if not self._is_allowed(call):
            return self._store_result(call, error_result(call.call, NO_TOOL))
        if (refusal := tool.refusal(call.call)) is not None:
            return self._store_result(call, refusal)
        decision = self._decide(call, approval=tool.approval, is_unsafe=tool.effect == "unsafe")
        if isinstance(decision, Message):
            return self._store_result(call, decision)
        if not decision:
            return self._store_result(call, tool_result(call.call.id, DENIED, error=True, outcome="denied"))
        self._require_accepted(call, tool)
        was_started = self._was_started(call)
        if was_started:
            self._refuse_undecided(call, tool)
        if call.call.is_hidden:
            may_have_run = was_started and tool.effect != "read"
            return self._store_result(call, hidden_result(call.call, may_have_run=may_have_run))
        key = self._log.idempotency_key(call.seq, call.index)
        context = ToolContext(key, self._log.session_id, call.call, self._log.state, self._run_task())
        if not was_started:
            self._runner.start(call)
        return call, context, was_started

    def _is_allowed(self, call: OpenCall) -> bool:
        """Whether the session still has the tool. No settings can be appended while a call of the answer is open."""
        if self._allowed[0] != call.seq:
            row, names = self._runner.row, self._log.settings().tools
            own = () if row is None else row.tool_names
            allowed = tuple(name for name in own if names is None or name in names) if own else names
            self._allowed = call.seq, allowed
        return self._allowed[1] is None or call.call.name in self._allowed[1]

    def _open_call(self, call: ToolCall | OpenCall) -> OpenCall:
        self._catch_up()
        call_id, open_calls = _call_id(call), self._original_calls()
        for open_call in open_calls:
            if open_call.call.id == call_id:
                return open_call
        raise OrphanResult(call_id, [open_call.call.id for open_call in open_calls])

    def _was_started(self, call: OpenCall) -> bool:
        """Whether the start of the call was recorded.

        The journal is read only for an answer of an earlier process.
        """
        is_started = self._runner.was_started_here(call)
        return (call.seq, call.index) in self._call_status().started if is_started is None else is_started

    def _require_accepted(self, call: OpenCall, tool: Tool | None) -> None:
        """Raise `ImportNotAccepted` for an imported open call with an effect.

        Without a tool the call may have an effect.
        """
        if call.seq in self._runner.answers:
            return
        tools = None if tool is None else {call.call.name: tool}
        if self._call_status().needing_acceptance([call], tools):
            from oakleaf.agent.import_plan import require_accepted

            try:
                require_accepted(self._log, tools, inputs=False)
            except ImportNotAccepted as error:
                raise error.with_hint(
                    "accept it with session.turn(accept_imported=True) or session.accept_imported(); session.fork() goes "
                    "on without it"
                ) from None

    def _call_status(self) -> CallStatus:
        from oakleaf.agent.call_status import read_call_status

        return read_call_status(self._log)

    def _decide(self, call: OpenCall, *, approval: Approval, is_unsafe: bool) -> bool | Message:
        """Whether the call may run, False after a denial; or the recorded result of another path.

        Raises `ApprovalRequired` if a person must decide first: the tool needs approval, or a path left
        behind has the same call.
        """
        from oakleaf.agent.earlier_calls import effects_in_force, find_earlier_call, reused_result

        position = call.seq, call.index
        if position in self._runner.starts or not (approval or (is_unsafe and self._has_left_paths())):
            return True
        status = self._call_status()
        if position in status.decided:
            return position not in status.denied
        if position in status.approval_requested:
            raise ApprovalRequired(self._log.session_id, call.call.id, call.call.name)
        stored = next(each for each in self._log.cursor.open_calls if (each.seq, each.index) == position)
        earlier = find_earlier_call(self._log, stored.call) if is_unsafe and self._has_left_paths() else None
        effects = "ask" if earlier is None else effects_in_force(self._log)
        if earlier is not None and effects == "reuse" and (result := reused_result(call.call, earlier)):
            return result
        if not approval and (earlier is None or effects == "repeat"):
            return True
        reference = earlier.reference if earlier is not None and effects != "repeat" else None
        self._runner.request_approval(call, reference, named=approval == "named")
        raise ApprovalRequired(self._log.session_id, call.call.id, call.call.name)

    def _has_left_paths(self) -> bool:
        """Whether unsafe calls may have been left behind on other paths; read once in a turn."""
        if self._leaves_paths is None:
            from oakleaf.agent.earlier_calls import has_left_paths

            self._leaves_paths = has_left_paths(self._log)
        return self._leaves_paths

    def _store_result(self, call: OpenCall, message: Message, blobs: Sequence[Blob] = ()) -> Message:
        settings, key = self._due_settings(), self._key_of(Draft(message), None)
        stored = self._runner.store_result(call.call, message, blobs, settings, key=key).payloads[0]
        assert isinstance(stored, Message)
        self._note_result()
        self._raise_if_cancelled()
        return stored

    def _ledger(self, read: Answer, *, is_answered: bool) -> Call:
        cost = price(read.usage or Usage(), read.provider, read.model, read.units)
        model = ModelName(read.provider, read.model, None)
        return self._runner.ledger_row(model, read.usage, cost, is_answered=is_answered)

    def _due_settings(self) -> list[Draft]:
        """Return the settings due after a batch, if the next result ends the batch."""
        return [] if len(self._log.cursor.open_calls) > 1 else self._changed_settings()

    def _note_result(self) -> None:
        if not self._log.cursor.open_calls:
            self._tools = None
        self._asked_at = self._log.runtime.now()
        self._note_end()
        self._stop_at_caps()

    def _note_end(self) -> None:
        if not self._runner.is_holding:
            self._log.fence = None

    def _key_of(self, draft: Draft, key: str | None) -> str | None:
        check_callers_key(key)
        return key or self._step_key(draft)

    def _step_key(self, draft: Draft) -> str | None:
        """Return the key of a step of a keyed turn: the place in the turn, or the place of the answered
        call."""
        message, cursor = draft.payload, self._log.cursor
        if self._key is None or not isinstance(message, Message):
            return None
        place = f"{cursor.seq + 1 - self._turn}"
        for open_call in cursor.open_calls:
            if message.results and open_call.call.id == message.results[0].call_id:
                place = f"{open_call.seq - self._turn}.{open_call.index}"
                break
        return f"{MADE_KEY}{self._key}/{place}"


async def _directly(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return work(*args, **kwargs)


def _as_tool(call: ToolCall | OpenCall, function: Tool | Callable[..., Any]) -> Tool:
    from oakleaf.agent.tools.tool import Tool, function_tool

    name = (call if isinstance(call, ToolCall) else call.call).name
    return function if isinstance(function, Tool) else function_tool(name, function)


def _input(content: str | Message | dict[str, Any]) -> Draft:
    if not isinstance(content, dict):
        return Draft(to_user_message(content))
    parsed = wire.parse_history([content])[0]
    return Draft(to_user_message(parsed.message), evidence=parsed.evidence)


def _message(draft: Draft) -> Message:
    assert isinstance(draft.payload, Message)
    return draft.payload


def _watched_turn(
    log: Log, content: str | Message | dict[str, Any] | None, started: TurnStarted
) -> WatchedTurn:
    from oakleaf.agent.start_facts import turn_trace
    from oakleaf.log.hooks import WatchedTurn

    return WatchedTurn(
        session_id=log.session_id,
        agent=log.store.session(log.session_id).agent,
        turn=0 if content is not None else log.cursor.turn,
        at=log.runtime.now(),
        input=None if content is None else _message(_input(content)),
        trace=turn_trace(log) if content is None else started.trace,
    )


def _model_name(name: str) -> ModelName:
    provider, model = wire.split_name(name)
    return ModelName(provider or None, model, name)


def _call_id(call: ToolCall | OpenCall) -> str:
    return call.id if isinstance(call, ToolCall) else call.call.id


def _run_without_loop(running: Coroutine[Any, Any, Message]) -> Message:
    """Run a coroutine without real awaits. So one implementation serves sync and async functions."""
    try:
        running.send(None)
    except StopIteration as ended:
        message: Message = ended.value
        return message
    raise AssertionError("a tool that is not async awaited something")


def _final_text(entries: Sequence[Entry]) -> str:
    """Return the text of the newest answer without tool calls."""
    answers = (entry for entry in reversed(entries) if entry.role == "assistant" and not entry.calls)
    return next((entry.text for entry in answers), "")


def weak_call(method: Callable[[], None]) -> Callable[[], None]:
    """Return a call of a method that keeps its object not alive: a dropped turn has left its lease."""
    reference = WeakMethod(method)

    def call() -> None:
        if (bound := reference()) is not None:
            bound()

    return call
