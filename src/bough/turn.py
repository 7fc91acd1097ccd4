"""One turn of your own loop: the input, the answers, the results, each durable when its line returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from . import wire
from .core.drafts import Draft
from .core.messages import Message, Outcome, to_user_message, tool_result
from .core.turns import OpenCall
from .core.usage import Call, Usage
from .errors import Fenced, InvalidOperation
from .log.changes import AppendResult
from .log.log import LEASE_MICROSECONDS, Log
from .models.prices import price
from .wire import Answer


class Turn:
    """Opened by `with session.turn("…") as turn`; closed by the answer that calls no tool.

    Leaving the block early marks the session as failed (exception), cancelled (Ctrl-C) or interrupted. The turn itself
    stays open; `session.turn()` continues it.
    """

    def __init__(
        self,
        log: Log,
        content: str | Message | dict[str, Any] | None,
        *,
        key: str | None,
        model: str | None,
        started: dict[str, Any],
    ) -> None:
        self._log = log
        self._content = content
        self._key = key
        self._model = model
        self._started = started
        self._call_id: str | None = None
        self._turn = 0
        self._fence = 0

    def __enter__(self) -> Self:
        log = self._log
        # A later runner raises the fence, so that a turn that comes late writes nothing.
        self._fence = log.raise_if_leased().fence
        row = {
            "status": "running",
            "holder": log.runtime.holder(),
            "lease_until": log.runtime.now() + LEASE_MICROSECONDS,
            "completed_at": None,
        }
        if self._content is None:
            if not log.cursor.turn:
                raise InvalidOperation(
                    f"no turn is open in session {log.session_id}; pass an input: session.turn(text)"
                )
            log.record("turn_resumed", data={"turn": log.cursor.turn}, row=row, fence=self._fence)
        else:
            self._append(Draft(_input(self._content)), key=self._key, row=row, data=self._started)
        self._turn = log.cursor.turn
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self._log.cursor.turn or self._is_held_by_another():
            return
        status = "interrupted" if kind is None else "failed" if issubclass(kind, Exception) else "cancelled"
        message = (
            None if error is None else f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
        )
        row = {
            "status": status,
            "error": message and message.replace("\0", ""),
            "holder": None,
            "lease_until": None,
        }
        data = {"turn": self._log.cursor.turn, "status": status, "error": message}
        with suppress(Fenced):  # another runner has driven the session meanwhile; its status stands
            self._log.record("turn_ended", data=data, row=row, fence=self._fence)

    def _is_held_by_another(self) -> bool:
        """Whether another runner holds the session by now: then this turn does not set its status."""
        holder = self._log.store.session(self._log.session_id).holder
        return holder is not None and holder != self._log.runtime.holder()

    @property
    def open_tool_calls(self) -> tuple[OpenCall, ...]:
        """The tool calls without a result, in call order."""
        return self._log.cursor.open_calls

    def answer(
        self,
        reply: object,
        *,
        usage: Usage | None = None,
        provider: str | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> Message:
        """Append a model's answer: an SDK object, a dict or a Message. Usage and evidence are read from it."""
        if self._log.cursor.turn != self._turn:
            raise InvalidOperation(f"turn {self._turn} has ended; open another: session.turn(text)")
        read = wire.parse_reply(reply)
        usage = read.usage if usage is None else usage
        read = replace(read, usage=usage, provider=provider or read.provider, model=model or read.model)
        draft = Draft(read.message, read.model, read.finish, read.evidence)
        seq = self._log.leaf.seq
        calls = [self._ledger(read, seq)] if usage is not None or self._call_id is not None else []
        replaces = self._call_id is not None
        appended = self._append(draft, key=key, calls=calls, replaces_call=replaces)
        self._call_id = None  # only now: if the answer is refused, the call is still to be recorded
        message = appended.payloads[0]
        assert isinstance(message, Message)
        return message

    def failed(
        self, why: str, *, usage: Usage | None = None, provider: str | None = None, model: str | None = None
    ) -> None:
        """Record a model call without an answer: it is counted, and nothing is appended to the path."""
        answer = wire.Answer(Message("assistant"), usage, None, provider, model, None)
        call = replace(self._ledger(answer, self._log.leaf.seq), answer_seq=None, failed=True)
        replaces = self._call_id is not None
        self._log.record(
            "call_failed", data={"why": why}, calls=[call], replaces_call=replaces, fence=self._fence
        )
        self._call_id = None

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
        """Append the result of one call. `state` is merged into the session's state; `details` are for the host."""
        message = tool_result(
            call_id, content, error=error, outcome=outcome, ends_turn=ends_turn, state=state, details=details
        )
        self._append(Draft(message), key=key)
        return message

    def _ledger(self, read: Answer, after: int) -> Call:
        usage = read.usage or Usage()
        return Call(
            call_id=self._call_id or self._log.runtime.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=after + 1,
            at=self._log.runtime.now(),
            usage=usage,
            provider=read.provider,
            model=read.model,
            price=price(usage, read.provider, read.model),
        )

    def _append(
        self,
        draft: Draft,
        *,
        key: str | None,
        calls: Sequence[Call] = (),
        replaces_call: bool = False,
        row: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
    ) -> AppendResult:
        """Append. If the model is called next and its name is known, the start of that call is part of the commit."""
        start = self._start(draft) if self._model is not None and not calls else None
        return self._log.append(
            [draft],
            key=key,
            calls=calls if start is None else [start],
            replaces_call=replaces_call,
            row={"holder": None, "lease_until": None} if self._closes(draft) else row,
            data=data,
            fence=self._fence,
        )

    def _closes(self, draft: Draft) -> bool:
        """Whether the turn ends with this entry, and with it this process's lease."""
        message, cursor = draft.payload, self._log.cursor
        if not isinstance(message, Message) or message.role == "user":
            return False
        if message.role == "assistant":
            return not message.calls
        ends = cursor.ends_turn or any(result.ends_turn for result in message.results)
        return ends and len(cursor.open_calls) == len(message.results)

    def _start(self, draft: Draft) -> Call | None:
        message = draft.payload
        assert isinstance(message, Message)
        assert self._model is not None
        open_calls = len(self._log.cursor.open_calls) - len(message.results)
        if message.role == "assistant" or open_calls > 0 or any(r.ends_turn for r in message.results):
            return None
        self._call_id = self._log.runtime.new_id("")
        provider, _, model = self._model.rpartition(":")
        after, now = self._log.leaf.seq + 1, self._log.runtime.now()
        return Call(self._call_id, 0, after, None, now, provider=provider or None, model=model)


def _input(content: str | Message | dict[str, Any]) -> Message:
    return to_user_message(wire.parse_messages([content])[0] if isinstance(content, dict) else content)
