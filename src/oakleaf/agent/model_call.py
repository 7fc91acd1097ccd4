"""One model call: the stream, the answer, and the remains of an interrupted answer.

Knows streams, drafts of answers and the call's row in the ledger. Does not know which model is called next, nor
when to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec.structs import replace

from oakleaf.agent.call_meter import Reservation, call_started
from oakleaf.agent.events import Emit, Event, answer_data
from oakleaf.agent.limits import LimitChecker
from oakleaf.agent.policy import Answers
from oakleaf.agent.tool_batch import ToolRunner
from oakleaf.agent.writer import Writer, name_of, run_uncancelled
from oakleaf.core import context as contexts
from oakleaf.core.context import Context, Item
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Endpoint, Settings
from oakleaf.core.facts import ModelCallFailed
from oakleaf.core.messages import Message, with_unique_ids
from oakleaf.core.redact import Redactor, is_key_text
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import (
    Fenced,
    InvalidMessage,
    InvalidValue,
    ModelError,
    ModelUnavailable,
    Overloaded,
    TruncatedReply,
)
from oakleaf.log.hooks import Ending, Watching, watch_model_call
from oakleaf.log.request import Committed
from oakleaf.log.threads import MANY_ENTRIES, run_long, run_to_end
from oakleaf.models.base import Delta, Model, Request
from oakleaf.wire import Answer
from oakleaf.wire.options import check_options

FLUSH_CHARACTERS = 400
FLUSH_MICROSECONDS = 500_000


class ModelCaller:
    """Calls the models of a run and appends the answers."""

    def __init__(
        self,
        writer: Writer,
        answers: Answers,
        tool_runner: ToolRunner,
        limits: LimitChecker,
    ) -> None:
        self.writer, self.runner, self.log = writer, writer.runner, writer.log
        self.answers, self.models, self._options = answers, answers.models, answers.options
        self.tool_runner, self.limits = tool_runner, limits
        self._buffer: StreamBuffer | None = None
        self._failed_usage: Usage | None = None  # of a call that was paid for and gave no usable answer

    async def prepare(self) -> Event | None:
        """Append due entries before a model call of a turn. Return the event of the turn's end if its
        recording has no answer."""
        await self.writer.append_host_entries()
        recording = self.answers.recording
        if recording is None or recording.has_answer(self.log.cursor.step):
            return None
        await self.writer.write(self.runner.leave, "interrupted")
        return Event("session:turn_completed", {"stop_reason": "unanswered"}, self.runner.journal_number)

    def context(self) -> Context:
        """Return the context of the next call."""
        return self.writer.history.context(self.limits.limits.max_messages)

    async def next_request(self) -> Request:
        """Return the next request. Slow work is done on a thread: other sessions share the event loop."""
        if self.writer.history.unread > MANY_ENTRIES:
            await run_long(self.context)
        return self.request()

    def request(self, message: Message | None = None) -> Request:
        """Return the next request, with `message` as an input not yet in the log."""
        context = self.context()
        if message is not None:
            item = Item(message, self.log.leaf.seq + 1, 0)
            context = replace(context, items=(*context.items, item))
        context = replace(context, settings=replace(context.settings, options=self.all_options()))
        tools = self.tool_runner.tool_set()
        if tools is None:
            return Request(context, self.log.read_blob)
        definitions = contexts.fold_tools(context.settings.tool_definitions, tools.definitions)
        context = replace(context, settings=replace(context.settings, tool_definitions=definitions))
        blob, read_blob = tools.blob, self.log.read_blob  # the definitions may not be stored yet
        return Request(context, lambda hash: blob.data if hash == blob.hash else read_blob(hash))

    def all_options(self) -> dict[str, Any] | None:
        """Return the options of the next call: the options on the path and the run's own."""
        return contexts.merge_options(self.writer.settings().options, self._options)

    def check_options(self) -> None:
        """Raise for wrong options of this run before anything is written: `InvalidOption` if a model of the chain lacks
        one, `SecretInName` if one contains a secret. Options of a recording are not checked, because no provider is
        sent those; options on the path that a model lacks are left out of its requests."""
        if self.answers.recording is not None:
            return
        self.log.runtime.redactor.check_options(self._options)
        for model in self.models:
            check_options(model.provider, self._options, self.writer.settings().options)

    def changed_settings(self) -> list[Draft]:
        """Return the new settings of the next call, to be appended before the call."""
        if self.answers.recording is not None:
            return []
        settings = self.writer.settings()
        effects = self.tool_runner.box.effects
        new = Settings(
            options=contexts.changed_options(settings.options, self._options),
            endpoints=_changed_endpoints(self.models[0], settings) if self.models else None,
            effects=None if effects == settings.effects else effects,
            max_messages=contexts.changed_max_messages(settings, self.limits.limits.max_messages),
        )
        tools = self.tool_runner.tool_set()
        if tools is None:
            return [] if new == Settings() else [Draft(new)]
        return [Draft(replace(new, tool_definitions=tools.definitions), blobs=(tools.blob,))]

    @property
    def shown_text(self) -> str:
        """The shown part of the answer in flight."""
        return "" if self._buffer is None else self._buffer.text

    async def ask(self, model: Model, emit: Emit) -> None:
        """Append the answer of the recording, or call the model; a meter allows the call first."""
        recording = self.answers.recording
        if recording is not None:
            await self.append_answer(model, recording.answer())
            return
        request = await self.next_request() if self.log.runtime.hooks else None
        async with Watching(watch_model_call(self.log, model, request), run_to_end) as watch:
            answer = await self._call_metered(model, emit)
            watch.ending = Ending(message=answer.message, call=self._latest_call(), finish=answer.finish)

    async def _call_metered(self, model: Model, emit: Emit) -> Answer:
        meter = self.answers.meter
        if meter is None:
            return await self._call(model, emit)
        reserved = await meter.reserve(model, self.request())
        cost: int | None = None
        try:
            answer = await self._call(model, emit, reserved)
            price = self._latest_call().price
            cost = None if price is None else price.microcents
            return answer
        except (Overloaded, ModelUnavailable):  # refused, so it was not charged
            cost = 0
            raise
        finally:
            await meter.settle(reserved, cost)

    def _latest_call(self) -> Call:
        return next(reversed(self.runner.calls.values()))

    async def _call(self, model: Model, emit: Emit, reserved: Reservation | None = None) -> Answer:
        """Make one call and append the answer. The shown text is kept at any end of the call."""
        endpoints = _changed_endpoints(model, self.writer.settings())
        if endpoints is not None:  # the next model of the chain
            await self.writer.write(self.runner.append, [Draft(Settings(endpoints=endpoints))])
        if self.runner.call_id is None:  # after a failure, or metered: no earlier commit announced it
            # What the call may cost is durable before it is made: after a crash nothing else tells.
            started = partial(call_started, reserved=reserved)
            await self.writer.write(self.runner.announce, name_of(model), started)
        self._buffer = buffer = StreamBuffer(self.log.runtime.redactor)
        try:
            answer = await self._stream(model, buffer, emit)
            event = await self._finish(model, answer)
            assert answer is not None
            self._buffer = None
            emit(event)
            return answer
        except (asyncio.CancelledError, Fenced):
            raise  # the text becomes part of the closing answer, or another process closes the turn
        except Exception:  # whatever a model raises: the text that was shown is kept
            if self._buffer is buffer and not buffer.is_saved:
                await run_uncancelled(self._save(buffer))
            raise

    async def _stream(self, model: Model, buffer: StreamBuffer, emit: Emit) -> Answer | None:
        """Tell deltas as events and return the answer. Shown text is made durable soon afterwards."""
        answer: Answer | None = None
        saving = PeriodicSave(lambda: None if buffer.is_saved else self._save(buffer))
        try:
            request = await self.next_request()
            self.runner.is_call_made = True
            async for piece in model.stream(request):
                if isinstance(piece, Answer):
                    answer = piece
                    continue
                delta = buffer.add(piece)
                if buffer.is_due(self.log.runtime.now()):
                    await self._save(buffer)
                emit(Event("session:delta", delta))
        finally:
            await saving.end()  # a draft saved later would belong to another leaf
        if any((rest := buffer.rest()).values()):
            emit(Event("session:delta", rest))
        return answer

    async def _finish(self, model: Model, answer: Answer | None) -> Event:
        if answer is None or answer.finish is None:
            self._failed_usage = None if answer is None else answer.usage
            raise TruncatedReply(model.model, "the stream ended without a stop reason")
        if answer.message.role != "assistant":
            self._failed_usage = answer.usage
            raise ModelError(model.model, f"it answered in the role {answer.message.role!r}")
        try:
            appended = await self.append_answer(model, answer)
        except (InvalidValue, InvalidMessage) as error:
            self._failed_usage = answer.usage
            raise ModelError(model.model, f"its answer cannot be stored: {error}") from error
        message = appended.payloads[-1]
        assert isinstance(message, Message)
        data = {"seq": appended.leaf.seq, "text": message.text, **answer_data(message, answer.finish)}
        return Event("session:answer", data, self.runner.journal_number)

    async def append_answer(self, model: Model, answer: Answer) -> Committed:
        """Append the answer, the cost and the start of the tool calls in one commit, before any tool runs."""
        answer = replace(answer, message=with_unique_ids(answer.message))
        draft = Draft(answer.message, answer.model or model.model, answer.finish, answer.evidence)
        allowed = self.tool_runner.allowed()
        called = {call.name: allowed[call.name] for call in answer.message.calls if call.name in allowed}
        waiting = {name for name, tool in called.items() if tool.approval}
        unsafe = {name for name, tool in called.items() if tool.effect == "unsafe"}
        if unsafe - waiting and await self.tool_runner.has_left_paths():
            waiting |= unsafe  # until it is known that no path that was left has made the same call
        starts = [
            index
            for index, call in enumerate(answer.message.calls)
            if call.name in called and call.name not in waiting
        ]
        before: list[Draft] = []
        if answer.endpoint is not None:
            # What the server turned out to demand comes before the answer: that is how it was asked for it.
            endpoints = _changed_endpoints(model, self.writer.settings(), answer.endpoint)
            before = [] if endpoints is None else [Draft(Settings(endpoints=endpoints))]
        call = None
        if self.answers.recording is None:
            price = await self.writer.price(model, answer.usage, answer.units)
            call = self.runner.ledger_row(
                name_of(model), answer.usage, price, is_answered=True, settings=len(before)
            )
        return await self.writer.write(self.runner.answer, [*before, draft], call, starts=starts)

    async def record_failure(self, model: Model, error: ModelError) -> None:
        """Record a call without an answer. A recording without an answer was no call, nor was a request not sent."""
        if self.answers.recording is not None:
            return
        if not error.was_asked:
            await self.writer.write(self.runner.drop_failed, call_failed(self.runner.call_id, error))
            return
        usage = self._failed_usage or error.usage
        price = await self.writer.price(model, usage, None)
        call = self.runner.ledger_row(name_of(model), usage, price, is_answered=False)
        self._failed_usage = None
        await self.writer.write(self.runner.fail, call, call_failed(call.call_id, error))

    async def _save(self, buffer: StreamBuffer) -> None:
        text = buffer.mark_saved(self.log.runtime.now())
        if self.writer.recorded.drafts:
            await self.writer.run_blocking(self.runner.save_draft, text)


def call_failed(call_id: str | None, error: ModelError) -> ModelCallFailed:
    """Return the fact of a failed call. A call that the provider refused was not charged."""
    is_refused = isinstance(error, Overloaded | ModelUnavailable)
    raw = None if error.raw is None else _storable(error.raw)
    return ModelCallFailed(_storable(error.reason), raw, call_id if is_refused else None)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")


class PeriodicSave:
    """Saves the shown part of an answer even during silence of the stream. Until a save is due there is a
    timer and no task: most calls of many sessions at once end before."""

    def __init__(self, save: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        self._save = save
        self._saving: asyncio.Task[None] | None = None
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FLUSH_MICROSECONDS / 1_000_000, self._start)

    def _start(self) -> None:
        save = self._save()
        if save is None:
            self._wait()
        else:
            self._saving = asyncio.ensure_future(self._run(save))

    async def _run(self, save: Coroutine[Any, Any, None]) -> None:
        await save
        self._wait()

    async def end(self) -> None:
        """Save no more, and wait for a save in progress. If that save fails, the append that follows fails
        too and says why."""
        self._timer.cancel()
        if self._saving is not None:
            await run_uncancelled(_settled(self._saving))
            self._timer.cancel()


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it as never retrieved


def _changed_endpoints(
    model: Model, settings: Settings, endpoint: Endpoint | None = None
) -> dict[str, Endpoint] | None:
    """Return the asked endpoint, if missing on the path."""
    if endpoint is None:
        # By name: `isinstance` of a protocol lists the protocol's attributes at each call, 20 µs for every message.
        endpoint_for: Callable[[Settings], Endpoint] | None = getattr(model, "endpoint_for", None)
        endpoint = None if endpoint_for is None else endpoint_for(settings)
    is_known = endpoint is None or endpoint == contexts.endpoint_of(settings, model.provider)
    return None if is_known or endpoint is None else {model.provider: endpoint}


class StreamBuffer:
    """An answer in flight: the text to show, and the time to save, by size and by age."""

    def __init__(self, redactor: Redactor) -> None:
        self._text, self._reasoning = _RedactedText(redactor), _RedactedText(redactor)
        self._saved_length = 0
        self._saved_at: int | None = None

    @property
    def text(self) -> str:
        """The shown text. The rest is held back, for it may be half a secret."""
        return self._text.visible.encode("utf-8", "replace").decode().replace("\0", "")

    @property
    def is_saved(self) -> bool:
        """Whether everything shown is saved. Blanks alone need no save: an answer of blanks is empty."""
        return len(self._text.visible) == self._saved_length or not self._text.visible.strip()

    def add(self, delta: Delta) -> dict[str, str]:
        """Return the text to show now."""
        return {"text": self._text.add(delta.text), "reasoning": self._reasoning.add(delta.reasoning)}

    def rest(self) -> dict[str, str]:
        """Return the text held back, at the end of the stream."""
        return {"text": self._text.rest(), "reasoning": self._reasoning.rest()}

    def is_due(self, now: int) -> bool:
        self._saved_at = now if self._saved_at is None else self._saved_at
        is_long = len(self._text.visible) - self._saved_length >= FLUSH_CHARACTERS
        return not self.is_saved and (is_long or now - self._saved_at >= FLUSH_MICROSECONDS)

    def mark_saved(self, now: int) -> str:
        """Return the text to save, and count the text as saved."""
        self._saved_length, self._saved_at = len(self._text.visible), now
        return self.text


class _RedactedText:
    """Text in pieces. The end is held back until it is certain: a secret may arrive in pieces too."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""
        self._is_word = True
        self.visible = ""

    def add(self, piece: str) -> str:
        self._pending += piece
        if self._is_word and is_key_text(piece):
            return ""  # inside a long word: it need not be searched again for every letter
        text = self._show(self._redactor.safe_length(self._pending))
        self._is_word = is_key_text(self._pending)
        return text

    def rest(self) -> str:
        return self._show(len(self._pending))

    def _show(self, end: int) -> str:
        text, self._pending = self._redactor.redact_text(self._pending[:end]), self._pending[end:]
        self.visible += text
        return text
