"""One turn of somebody's own loop: the input, the answers, the results, each durable when its line returns."""

from __future__ import annotations

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

    Leaving the block early marks the session: failed by an exception, cancelled by Ctrl-C, interrupted
    otherwise. The turn itself stays open and `session.turn()` goes on with it.
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
        # Whoever drives the session later raises it: a turn that comes late writes nothing.
        self._fence = log.raise_if_leased().fence
        held = {
            "status": "running",
            "holder": log.runtime.holder(),
            "lease_until": log.runtime.now() + LEASE_MICROSECONDS,
            "completed_at": None,
        }
        if self._content is None:
            if not log.cursor.turn:
                raise InvalidOperation(
                    f"no turn is open in session {log.session_id}; hand in an input: session.turn(text)"
                )
            log.record("turn_resumed", data={"turn": log.cursor.turn}, row=held, fence=self._fence)
        else:
            self._append([Draft(_input(self._content))], key=self._key, row=held, data=self._started)
        self._turn = log.cursor.turn
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if not self._log.cursor.turn or self._is_taken():
            return
        status = "interrupted" if kind is None else "failed" if issubclass(kind, Exception) else "cancelled"
        told = (
            None if error is None else f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
        )
        row = {
            "status": status,
            "error": told and told.replace("\0", ""),
            "holder": None,
            "lease_until": None,
        }
        data = {"turn": self._log.cursor.turn, "status": status, "error": told}
        with suppress(Fenced):  # then another has driven it meanwhile, and left it as it is
            self._log.record("turn_ended", data=data, row=row, fence=self._fence)

    def _is_taken(self) -> bool:
        """Whether another drives the session by now: then its status is not ours to set."""
        holder = self._log.store.session(self._log.session_id).holder
        return holder is not None and holder != self._log.runtime.holder()

    @property
    def open_tool_calls(self) -> tuple[OpenCall, ...]:
        """The calls that wait for results, in call order."""
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
        """A model's answer: an SDK object, a dict or a Message. Usage and evidence are taken from it."""
        if self._log.cursor.turn != self._turn:
            raise InvalidOperation(f"turn {self._turn} is over; open another one: session.turn(text)")
        read = wire.parse_reply(reply)
        usage = read.usage if usage is None else usage
        read = replace(read, usage=usage, provider=provider or read.provider, model=model or read.model)
        draft = Draft(read.message, read.model, read.finish, read.evidence)
        seq = self._log.leaf.seq
        calls = [self._ledger(read, seq)] if usage is not None or self._call_id is not None else []
        replaces = self._call_id is not None
        appended = self._append([draft], key=key, calls=calls, replaces_call=replaces)
        self._call_id = None  # only now: an answer that is refused leaves its call to be told of
        message = appended.payloads[0]
        assert isinstance(message, Message)
        return message

    def failed(
        self, why: str, *, usage: Usage | None = None, provider: str | None = None, model: str | None = None
    ) -> None:
        """A model call that gave no answer: it is counted all the same, and nothing enters the path."""
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
        """The result of one call. `state` is merged into the session's state; `details` are the host's."""
        message = tool_result(
            call_id, content, error=error, outcome=outcome, ends_turn=ends_turn, state=state, details=details
        )
        self._append([Draft(message)], key=key)
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

    def _append(self, drafts: list[Draft], **how: Any) -> AppendResult:
        """Append; if the model is to be called next and a call was announced, its start rides along."""
        starts = self._start(drafts) if self._model is not None and not how.get("calls") else None
        if starts is not None:
            how["calls"] = [starts]
        if self._closes(drafts[-1]):
            how["row"] = {"holder": None, "lease_until": None}
        return self._log.append(drafts, fence=self._fence, **how)

    def _closes(self, draft: Draft) -> bool:
        """Whether the turn ends with this entry, and with it this process's hold on the session."""
        message, cursor = draft.payload, self._log.cursor
        if not isinstance(message, Message) or message.role == "user":
            return False
        if message.role == "assistant":
            return not message.calls
        ends = cursor.ends_turn or any(result.ends_turn for result in message.results)
        return ends and len(cursor.open_calls) == len(message.results)

    def _start(self, drafts: list[Draft]) -> Call | None:
        asked = drafts[-1].payload
        assert isinstance(asked, Message)
        assert self._model is not None
        waiting = len(self._log.cursor.open_calls) - len(asked.results)
        if asked.role == "assistant" or waiting > 0 or any(result.ends_turn for result in asked.results):
            return None
        self._call_id = self._log.runtime.new_id("")
        provider, _, model = self._model.rpartition(":")
        after, now = self._log.leaf.seq + 1, self._log.runtime.now()
        return Call(self._call_id, 0, after, None, now, provider=provider or None, model=model)


def _input(content: str | Message | dict[str, Any]) -> Message:
    return to_user_message(wire.parse_messages([content])[0] if isinstance(content, dict) else content)
