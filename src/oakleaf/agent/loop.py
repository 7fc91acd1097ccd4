"""The agent loop: decide the next action, perform the action, make the result durable, repeat.

`next_action` alone decides, so resuming after a crash is the same loop. Input is durable before the model is
called, an answer before its tools run, each result as it arrives. Collaborators do the work: the runner writes, the
model caller gets answers, the tool runner runs tool calls; limits and compaction are policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from msgspec.structs import replace

from oakleaf.agent.call_status import CallStatus, read_call_status
from oakleaf.agent.cancellation import cancel_check, is_cancel_requested
from oakleaf.agent.compaction import Compactor
from oakleaf.agent.events import Emit, Event, StopRun, answer_data, ignore
from oakleaf.agent.import_plan import accept_import, require_accepted
from oakleaf.agent.limits import LimitChecker, LimitHit, Limits, NextCall, hook_limit, narrow
from oakleaf.agent.model_call import ModelCaller
from oakleaf.agent.policy import RunPolicy, local_run
from oakleaf.agent.start_facts import (
    FIRST_FACT,
    is_one_shot_turn,
    runner_fields,
    session_data,
    turn_limits,
    turn_start,
    turn_trace,
)
from oakleaf.agent.tasks import TaskRunner
from oakleaf.agent.tool_batch import ToolRunner
from oakleaf.agent.tools.tool import error_text
from oakleaf.agent.writer import Writer, run_uncancelled
from oakleaf.core.codec import decode
from oakleaf.core.drafts import Draft
from oakleaf.core.facts import TurnResumed, TurnStarted
from oakleaf.core.messages import Message, assistant, to_user_message
from oakleaf.core.turns import ENDED_BY_TOOL, CallModel, Rest, RunTools, next_action
from oakleaf.errors import (
    ApprovalPending,
    ClaimLost,
    ContextOverflow,
    Fenced,
    InputsQueued,
    ModelError,
    Overloaded,
    PromptTooLarge,
    Refused,
    SessionRunning,
    StaleLeaf,
    TaskTrashed,
    ToolsMissing,
)
from oakleaf.log.hooks import Watch, WatchedTurn, Watching, turn_ending
from oakleaf.log.keyed_turn import KeyedTurn, calls_of_turn, find_turn, turn_end
from oakleaf.log.lease import Hold, require_free
from oakleaf.log.log import Log
from oakleaf.log.threads import run_to_end
from oakleaf.log.turn_start import trigger_columns
from oakleaf.models.base import Model
from oakleaf.stores.base import QueuedInput, SessionRow

CANCELLED = "(cancelled)"


class Loop:
    """A run of a session: the order of all steps."""

    def __init__(
        self,
        writer: Writer,
        model_caller: ModelCaller,
        tool_runner: ToolRunner,
        limits: LimitChecker,
        compactor: Compactor,
        policy: RunPolicy,
    ) -> None:
        self.writer, self.runner, self.log = writer, writer.runner, writer.log
        self.model_caller, self.tool_runner = model_caller, tool_runner
        self.limits, self.compactor = limits, compactor
        self._goes_on, self._about = policy.goes_on, policy.recorded.about
        self._is_first_turn = False
        self._is_driving = self._is_cancel_requested = self._is_stopping = False
        self.first_number = 0
        """The number of the latest fact before this run."""
        self._behind: Message | None = None
        """The input of this run, to be queued behind earlier inputs."""
        self._behind_number: int | None = None
        """The number of this input in the queue."""
        self._emit: Emit = ignore

    async def run(
        self, content: str | Message | None, key: str | None = None, *, emit: Emit = ignore
    ) -> None:
        """Run a turn and the queued turns. Without content, resume the open turn. `emit` is called with each
        event.

        If an input was recorded under the key, its turn continues if it is open; else its end is told again.
        """
        self._emit = emit
        content = None if content is None else to_user_message(content)
        try:
            while not await self._attempt(content, key):
                pass  # another runner was faster, and this run has written nothing
        finally:
            self.runner.on_tick = None  # which refers to this loop
            self.writer.forget_path()
            if self.tool_runner.connections is not None:
                await run_uncancelled(self.tool_runner.connections.close())

    async def _attempt(self, content: Message | None, key: str | None) -> bool:
        """Run from the session's present row on. Return False if another runner wrote before the first
        commit.

        The row is read first. Whatever else the first commit depends on is read afterwards, and so is not older than the
        fence which that commit carries.
        """
        row = await self.writer.load()
        self.runner.journal_number = self.first_number = row.facts
        recorded = await self._find_turn(key, content)
        if recorded is not None and not recorded.is_open:
            await self._tell_again(recorded)
            return True
        if recorded is not None:
            content = None
        self.writer.check(row)
        self.model_caller.check_options()
        if self.model_caller.answers.recording is None:  # it has the effects of the session's limits
            self.limits.narrow(self.writer.settings().limits)
        if self._goes_on.checks_turn and self.log.cursor.turn:
            self.limits.narrow(await self.writer.run_blocking(turn_limits, self.log))
        for warning in await self.tool_runner.connect():
            self._emit(warning)
        if content is None:
            await self._require_tools()
        await self._require_accepted(row, is_resumed=content is None)
        limit = None if content is None else await self._check_turn(row.turns, content)
        if limit is not None:
            await self._refuse(limit)
            return True
        require_free(row, self.log.runtime)
        try:
            self._watch_cancel_requests(row)
            await self._run(content, row, key)
        except (StaleLeaf, Fenced):
            if self.runner.has_committed:
                raise
            return False
        finally:
            self._is_driving = False
            with suppress(ClaimLost):  # there is nothing to give back
                await self.writer.write(self.runner.release)
        return True

    def stop(self) -> None:
        """Call no model any more and take no input from the queue. A task runs to its end, as a part of a
        tool call."""
        self._is_stopping = True

    async def _tell_again(self, recorded: KeyedTurn) -> None:
        for event in await self.writer.run_blocking(self._recorded_events, recorded):
            self._emit(event)

    async def _find_turn(self, key: str | None, content: Message | None) -> KeyedTurn | None:
        return None if key is None else await self.writer.run_blocking(find_turn, self.log, key, content)

    async def _run(self, content: Message | None, row: SessionRow, key: str | None) -> None:
        try:
            self._is_first_turn = not row.turns
            if content is not None and self._goes_on.inputs != 0 and self.writer.queued:
                await self._run_after_queued(content, key)
            else:
                await self._turn(content, row, key=key)
            await self._run_inbox()
        except asyncio.CancelledError:
            with suppress(Fenced, StaleLeaf, SessionRunning, ClaimLost):  # another process owns the turn now
                await run_uncancelled(self._cancel_turn())
            task = asyncio.current_task()
            if not self._is_cancel_requested or task is None or task.uncancel():
                raise
            self._emit(self._completed("cancelled"))
        except (Fenced, TaskTrashed, ApprovalPending, InputsQueued, SessionRunning, StopRun):
            raise  # another process owns the turn now, it waits as before, or the caller wants no more
        except BaseException as error:  # also SystemExit and groups: the row must not say `running` for good
            if not isinstance(error, StaleLeaf) or self.runner.has_committed:
                with suppress(Fenced):
                    await self._record_crash(error)
            raise

    async def _require_tools(self) -> None:
        """Refuse to resume calls with tools of another process only. A result about the missing tools would
        spoil these calls."""
        if not self._goes_on.needs_tools:
            return
        status = await self.tool_runner.call_status()
        missing = status.needing_tool(self.log.cursor.open_calls, self.tool_runner.tools)
        if missing:
            raise ToolsMissing(self.log.session_id, missing)

    async def _require_accepted(self, row: SessionRow, *, is_resumed: bool) -> None:
        """Refuse unaccepted work of an import: queued inputs and, on a resumption, open calls."""
        if not row.imported_facts:
            return
        tools, run_blocking = self.tool_runner.allowed(), self.writer.run_blocking
        if self._goes_on.accepts_imported:
            await run_blocking(accept_import, self.log)
        takes_inbox = self._goes_on.inputs != 0
        await run_blocking(require_accepted, self.log, tools, calls=is_resumed, inputs=takes_inbox)

    def _watch_cancel_requests(self, row: SessionRow) -> None:
        """Cancel the open turn, not the iterating task, on a request from elsewhere."""
        if not self._goes_on.watches_cancel:
            return
        events, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            if self._is_driving and not self._is_cancel_requested:
                self._is_cancel_requested = task.cancel()

        self._is_driving = True
        # The journal is read with each tick of the lease, on the thread that renews it: appending costs nothing more.
        self.runner.on_tick = cancel_check(self.log, row.facts, lambda: events.call_soon_threadsafe(cancel))

    async def close(self) -> None:
        """Close the open turn as a cancellation does. Raise `SessionRunning` if another process drives the
        turn."""
        require_free(await self.writer.load(), self.log.runtime)
        try:
            await self._cancel_turn()
        finally:
            await self.writer.write(self.runner.release)

    async def _run_after_queued(self, content: Message, key: str | None) -> None:
        """Run the inputs queued before `content`, then `content`, with no other input in between. Once the
        first of them has taken the lease, `content` is queued behind them, so that a crash loses none: if one
        of them waits or failed, `content` waits too."""
        await self._refuse_pending_approval()
        is_one_shot, self.runner.gives_back = self.runner.is_one_shot, False
        # One with a key is sent again instead: the queue knows no keys.
        self._behind = content if key is None else None
        await self._run_inbox(self.writer.queued, is_one_shot=is_one_shot)
        self._behind, self.runner.gives_back = None, True
        if self._behind_number is not None:
            return
        if self.log.cursor.turn:
            raise InputsQueued(self.log.session_id)
        self.runner.is_one_shot = is_one_shot
        row = await self._row() if self.runner.is_holding else await self.writer.look()
        limit = await self._check_turn(row.turns, content)
        if limit is not None:
            await self._refuse(limit)
            return
        await self._turn(content, row, key=key)

    async def _run_inbox(self, count: int | None = None, *, is_one_shot: bool = False) -> None:
        """Run the queued inputs in order, each as a turn. With `count`, run only so many and the input of
        this run behind them, though a turn is open. That input completes the session if it is `is_one_shot`."""
        inputs_run = 0
        while (
            not self._is_stopping
            and not self.runner.has_stopped
            and (count is None or inputs_run < count + (self._behind_number is not None))
            and (self._goes_on.inputs is None or inputs_run < self._goes_on.inputs)
            and (not self.log.cursor.turn or (count is not None and not inputs_run))
        ):
            if count is None and self.runner.is_holding:
                # One who queues an input while the lease is held relies on this run to take it: so it looks afterwards.
                await self.writer.write(self.runner.release)
            queued = await self._next_input()
            if queued is None:
                return
            self.runner.is_one_shot = is_one_shot and queued.number == self._behind_number
            try:
                await self._run_queued(queued)
            except (StaleLeaf, Fenced):
                if self.runner.has_committed:
                    raise
                continue  # another runner was faster
            inputs_run += 1

    async def _next_input(self) -> QueuedInput | None:
        """Return the oldest queued input. None: no input is queued, or another run takes the input."""
        queued = await self.writer.first_queued()
        if queued is None or self.runner.is_holding:
            return queued
        row = await self.writer.look()
        return None if Hold(row, self.log.runtime).is_held else await self.writer.first_queued()

    async def _run_queued(self, queued: QueuedInput) -> None:
        row = await self._row()
        if queued.is_imported:
            await self._require_accepted(row, is_resumed=False)
        message = decode("message", queued.body)
        assert isinstance(message, Message)
        limit = await self._check_turn(row.turns, message)
        if limit is not None:
            await self._refuse(limit, takes=queued.number)
        else:
            await self._turn(message, row, takes=queued.number)

    async def _row(self) -> SessionRow:
        """Return the present row: read anew while the lease is held, else as read before the first commit."""
        row = self.runner.row
        if row is None or self.runner.is_holding:
            return await self.writer.run_blocking(self.log.store.session, self.log.session_id)
        return row

    # -- one turn ----------------------------------------------------------------------------------

    async def _turn(
        self, content: Message | None, row: SessionRow, takes: int | None = None, key: str | None = None
    ) -> None:
        """Run a turn between the hooks of the host."""
        trace = self._about.trace if content is not None and takes is None else None
        if content is None and self.log.runtime.hooks:
            trace = await self.writer.run_blocking(turn_trace, self.log)

        def watched() -> WatchedTurn:
            return WatchedTurn(
                session_id=row.session_id,
                agent=row.agent,
                turn=0 if content is not None else self.log.cursor.turn,
                at=self.log.runtime.now(),
                input=content,
                trace=trace,
            )

        try:
            async with Watching(Watch(self.log, "turn", row.agent, watched), run_to_end) as watch:
                try:
                    await self._run_turn(content, row, takes, key)
                except StopRun:  # the turn was left as interrupted
                    await self._note_ending(watch)
                    raise
                await self._note_ending(watch)
        except Refused as refused:
            limit = hook_limit(refused)
            if content is not None:
                await self._refuse(limit, takes)
            elif self._is_unchecked:
                await self._withdraw(limit)
            else:
                raise limit.to_error(row.session_id) from None

    async def _note_ending(self, watch: Watch) -> None:
        if watch.is_told:
            turn = self.writer.path[-1].turn if self.writer.path else 0
            watch.ending = await self.writer.run_blocking(turn_ending, self.log, turn)

    async def _run_turn(
        self, content: Message | None, row: SessionRow, takes: int | None, key: str | None
    ) -> None:
        self.compactor.start_turn()
        if content is not None:
            await self._start_turn(content, row, takes, key)
        elif not self.log.cursor.turn:
            self._emit(Event("session:turn_completed", {"stop_reason": "nothing to resume"}))
            return
        elif await self._is_cancelled():
            await self._cancel_turn()
            self._emit(self._completed("cancelled"))
            return
        elif self._is_unchecked and (limit := await self._check_turn(row.turns - 1, None)):
            await self._withdraw(limit)  # its sender did not know the limits of this run
            return
        else:
            await self._resume_turn()
        await self._steps()

    async def _withdraw(self, limit: LimitHit) -> None:
        """Take the input of the open turn back."""
        await self.writer.write(self.runner.withdraw, limit.refusal)
        await self.writer.load()
        self._emit(_refusal_event(limit, self.runner.journal_number))

    @property
    def _is_unchecked(self) -> bool:
        """Whether the open turn was never compared with the limits of this run, for no model was called yet."""
        return self._goes_on.checks_turn and not self.runner.earlier_calls

    async def _is_cancelled(self) -> bool:
        """Whether a person cancelled the open turn before this run."""
        log = self.log
        return await self.writer.run_blocking(
            lambda: is_cancel_requested(log.facts_backwards(), log.cursor.turn)
        )

    async def _check_turn(self, turns: int, message: Message | None) -> LimitHit | None:
        """Return the limit against a turn with this input, after `turns` turns. A limit that only warns is
        not returned."""
        caller = self.model_caller
        next_call = NextCall(caller.models[0], lambda: caller.request(message))
        limit = await self.limits.check_turn(turns, next_call)
        if limit is not None and limit.is_warning and limit.limit == "turns":
            self._emit(Event("session:warning", {**limit.data, "code": "turn_limit_near"}))
        return None if limit is None or limit.is_warning else limit

    async def _refuse(self, limit: LimitHit, takes: int | None = None) -> None:
        """Record the refusal of an input for every watcher. The input itself is not stored."""
        await self.writer.write(self.runner.refuse, limit.refusal, takes)
        self._emit(_refusal_event(limit, self.runner.journal_number))

    async def _start_turn(
        self, message: Message, row: SessionRow, takes: int | None, key: str | None
    ) -> None:
        runner = self.runner
        await self._refuse_pending_approval()
        about = self._about if takes is None else TurnStarted(0)  # a queued input was sent by somebody else
        start = turn_start(about, row, runner.detail)
        start = replace(start, one_shot=runner.is_one_shot, **self._runner_fields())
        abandoned = await self.tool_runner.abandoned_results()
        drafts = [*abandoned, *self.model_caller.changed_settings(), Draft(message)]
        columns = trigger_columns(about)
        started = await self.writer.write(runner.open, drafts, start, columns, key=key, inbox_number=takes)
        if started.is_repeat:  # it was delivered twice at once
            raise StaleLeaf(self.log.session_id, self.log.leaf, started.leaf)
        if self._is_first_turn:
            self._is_first_turn = False
            self._emit(Event("session:started", session_data(row, runner.detail), FIRST_FACT))
        stored = started.payloads[-1]  # with its secrets redacted, as every event shows it
        assert isinstance(stored, Message)
        text = {"seq": started.leaf.seq, "text": stored.text}
        self._emit(Event("session:turn_started", text, runner.journal_number))
        if takes is not None and self._behind is not None:
            behind, self._behind = self._behind, None
            self._behind_number = await self.writer.run_blocking(self.log.enqueue, behind)

    async def _resume_turn(self) -> None:
        self.runner.is_one_shot = await self.writer.run_blocking(is_one_shot_turn, self.log)
        await self.writer.write(self.runner.resume, self._resumed(), announces=True)

    async def _resume_again(self) -> bool:
        """Resume the turn just left by this run. Return False if another run has done so."""
        try:
            row = await self.writer.look()
            if Hold(row, self.log.runtime).is_held or not self.log.cursor.turn:
                return False
            await self.writer.write(self.runner.resume, self._resumed(), announces=True)
        except (SessionRunning, StaleLeaf, Fenced):
            return False
        return True

    def _resumed(self) -> TurnResumed:
        return TurnResumed(self.log.cursor.turn, **self._runner_fields())

    def _runner_fields(self) -> dict[str, Any]:
        caller = self.model_caller
        return runner_fields(caller.models, caller.all_options())

    async def _steps(self) -> None:
        writer = self.writer
        while True:
            status = await self.tool_runner.call_status()
            match next_action(writer.path, status.started):
                case CallModel():
                    if self.runner.has_stopped:
                        raise StopRun
                    if self._is_stopping:
                        await self._interrupt()
                    if not await self._model_step():
                        return
                case RunTools(calls=open_calls, started=started):
                    await self.tool_runner.run(open_calls, started, status, self._emit)
                    waiting = await self._waiting_status()
                    if waiting is not None:
                        queue = writer.recorded.queue
                        await writer.write(self.runner.leave, "waiting", queue=queue)
                        waiting.raise_if_trashed(self.log, self.tool_runner.tools)
                        # If it was decided since it was read, perhaps before the session was waiting, nobody else would
                        # resume it.
                        if await self._waiting_status() is not None or not await self._resume_again():
                            return
                case Rest(reason=reason):
                    if self.log.cursor.turn:  # rewound to before its closing answer
                        await writer.write(self.runner.end)
                    self._emit(self._completed(reason))
                    return

    async def _interrupt(self) -> NoReturn:
        """Leave the open turn to another run."""
        await self.writer.write(self.runner.leave, "interrupted")
        raise StopRun

    async def _model_step(self) -> bool:
        """Get an answer and return True. Or end the turn at a limit or without an answer of any model."""
        caller = self.model_caller
        limit = await self.limits.check_call(self.log.cursor.step, NextCall(caller.models[0], caller.request))
        if limit is not None:
            self._emit(await self._limit_event(limit))
            if not limit.is_warning:
                return False
        ended = await self.model_caller.prepare()
        if ended is not None:
            self._emit(ended)
            return False
        if changed := caller.changed_settings():  # started by another process, or resumed with other tools
            await self.writer.write(self.runner.append, changed)
        return await self._ask()

    async def _ask(self) -> bool:
        """Call each model of the chain in turn until an answer comes; call an overloaded model several times."""
        caller, limits = self.model_caller, self.limits.limits
        error: ModelError | None = None
        for model in caller.models:
            failures, overflow = 0, None
            while failures < max(1, limits.tries):
                next_call = NextCall(model, caller.request)
                limit = await self.limits.check_cost(next_call) if error is not None else None
                if limit is not None:
                    self._emit(await self._limit_event(limit))
                    if not limit.is_warning:
                        return False
                try:
                    compacted = await self.compactor.fit(model, caller)
                    if compacted is not None:
                        self._emit(compacted)
                    await caller.ask(model, self._emit)
                    return True
                except Refused as refused:
                    self._emit(await self._limit_event(hook_limit(refused)))
                    return False
                except Overloaded as overloaded:
                    error = overloaded
                    await caller.record_failure(model, overloaded)
                    seconds = limits.pause(failures) if overloaded.after is None else overloaded.after
                    failures += 1
                    if failures >= limits.tries:
                        break  # the next in the chain need not wait
                    why = self.log.runtime.redactor.redact_text(overloaded.reason)
                    data = {"model": model.model, "why": why, "seconds": seconds}
                    self._emit(Event("session:retry", data))
                    await asyncio.sleep(seconds)
                except PromptTooLarge as too_large:
                    error = too_large if overflow is None else overflow.explain(too_large)
                    break
                except ContextOverflow as refused:
                    error = overflow = refused
                    await caller.record_failure(model, refused)
                    await self.compactor.learn(model, refused, caller)
                except ModelError as other:
                    error = other
                    await caller.record_failure(model, other)
                    break
        assert error is not None
        self._emit(await self._give_up(error))
        return False

    # -- waiting for a person ----------------------------------------------------------------------

    async def _waiting_status(self) -> CallStatus | None:
        """Read the status of the open calls anew, and return the status if all of them wait for a person. A
        decision may have come while their siblings ran. None otherwise."""
        open_calls = self.log.cursor.open_calls
        if not open_calls:
            return None
        status = await self.writer.run_blocking(read_call_status, self.log)
        tools = self.tool_runner.tools
        return status if all(status.is_waiting(call, tools) for call in open_calls) else None

    async def _refuse_pending_approval(self) -> None:
        """Raise `ApprovalPending` if a new input would abandon a requested or allowed call."""
        status = await self.tool_runner.call_status()
        pending = [
            call.call.name
            for call in self.log.cursor.open_calls
            if status.is_waiting(call, self.tool_runner.tools) or status.is_allowed(call)
        ]
        if pending:
            raise ApprovalPending(self.log.session_id, pending)

    # -- how a turn ends ---------------------------------------------------------------------------

    def _recorded_events(self, recorded: KeyedTurn) -> list[Event]:
        """Return the events of a recorded turn's end. The model calls of the turn become the calls of this
        run."""
        self.runner.calls = {call.call_id: call for call in calls_of_turn(self.log, recorded)}
        first, last = recorded.entries[0].message, recorded.last
        assert first is not None
        events = [Event("session:turn_started", {"seq": recorded.turn, "text": first.text})]
        ended = turn_end(self.log, recorded)
        if last.finish == "cancelled":
            return [*events, Event("session:turn_completed", {"stop_reason": "cancelled"})]
        if ended is not None and ended.error is not None:
            error = {"code": "turn_limit", "message": ended.error, "command_message": ended.error}
            return [*events, Event("session:turn_completed", {"stop_reason": "error", "error": error})]
        is_ended_by_tool = last.role == "tool" or last.finish == ENDED_BY_TOOL
        if not is_ended_by_tool and last.message is not None:
            # An answer of one's own loop may have no finish.
            answer = answer_data(last.message, last.finish or "stop")
            events.append(Event("session:answer", {"seq": last.seq, "text": last.message.text, **answer}))
        reason = "ended by a tool" if is_ended_by_tool else "answered"
        return [*events, Event("session:turn_completed", {"stop_reason": reason})]

    def _completed(self, stop_reason: str) -> Event:
        return Event("session:turn_completed", {"stop_reason": stop_reason}, self.runner.journal_number)

    async def _limit_event(self, limit: LimitHit) -> Event:
        """Warn, or end the turn with a public closing answer, so no client waits for an answer."""
        if limit.is_warning:
            return Event("session:limit_passed", limit.data)
        closing = Draft(assistant(f"(stopped: {limit})"), finish="error")
        await self.writer.write(self.runner.close, [closing], str(limit))
        return _refusal_event(limit, self.runner.journal_number)

    async def _give_up(self, error: ModelError) -> Event:
        await self._record_failed_turn(error.reason)
        redact = self.log.runtime.redactor.redact_text
        texts = {"code": error.code, "message": str(error), "command_message": error.command_text}
        data = {"stop_reason": "error", "error": {name: redact(text) for name, text in texts.items()}}
        return Event("session:turn_completed", data, self.runner.journal_number)

    async def _record_crash(self, error: BaseException) -> None:
        """Mark the turn as failed after an unexpected error or a concurrent write. The turn can be resumed."""
        if isinstance(error, StaleLeaf):
            await self.writer.run_blocking(self.log.refresh)
        if self.log.cursor.turn:
            await self._record_failed_turn(error_text(error))

    async def _record_failed_turn(self, why: str) -> None:
        text = why.encode("utf-8", "replace").decode().replace("\0", "")
        await self.writer.write(self.runner.leave, "failed", text)

    async def _cancel_turn(self) -> None:
        """Close every open call and the turn, so that the session stays valid and takes the next input. Or
        leave the turn as a crash does, if the policy says so."""
        if not self.log.cursor.turn or self.runner.lease.is_lost:
            return
        if self.runner.has_committed and not self.runner.is_holding:  # it was left in this moment
            await self.writer.look()
        if self._goes_on.cancel == "leave":
            await self.writer.write(self.runner.drop)
            return
        status = await self.writer.run_blocking(read_call_status, self.log)
        await self.tool_runner.tasks.cancel(status.tasks)
        results = [
            Draft(self.tool_runner.cancelled_result(call, status.started))
            for call in self.log.cursor.open_calls
        ]
        text: str | None = self.model_caller.shown_text
        if not text:  # shown by an earlier try, or by an earlier process
            text = await self.writer.run_blocking(self.log.partial_text)
        closing = Draft(assistant(f"{(text or '').rstrip()} {CANCELLED}".strip()), finish="cancelled")
        await self.writer.write(self.runner.close, [*results, closing])


def _refusal_event(limit: LimitHit, journal_number: int | None = None) -> Event:
    data = {"stop_reason": "error", "error": limit.data}
    return Event("session:turn_completed", data, journal_number)


def build_loop(writer: Writer, policy: RunPolicy, parent: LimitChecker | None = None) -> Loop:
    """Build a loop with all collaborators. For a task, `parent` checks the limits of the session above."""
    checker = LimitChecker(writer, policy.limits, parent)
    tasks = TaskRunner(writer, policy.answers.models, checker, build_loop, policy.tools.effects)
    tool_runner = ToolRunner(writer, policy.tools, tasks)
    caller = ModelCaller(writer, policy.answers, tool_runner, checker)
    return Loop(writer, caller, tool_runner, checker, Compactor(writer, checker), policy)


def build_tasks(log: Log, models: Sequence[Model]) -> TaskRunner:
    """Build the runner of the tasks of a caller's own loop. The session's limits hold for the tasks too."""
    policy = local_run(models, {}, narrow(Limits(), log.settings().limits))
    writer = Writer(log, policy)
    return TaskRunner(writer, models, LimitChecker(writer, policy.limits), build_loop)
