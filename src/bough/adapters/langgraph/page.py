"""What a checkpoint appends: the messages it adds, as entries where the order of a log allows it.

Knows that order through `core.turns`. A graph's state is freer than a log: a call may stay without a result, a result
may stand without its call. A batch that was left open is closed by results that say so and are none of the graph's;
a message that may not stand is kept in a note at its place. Does not know branches or checkpoints.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from msgspec import Struct

from ...core.codec import decode, encode, from_json, to_json
from ...core.drafts import Draft
from ...core.entries import Entry, Note
from ...core.messages import Message, Text, ToolResult
from ...core.tree import Leaf
from ...core.turns import Cursor, advance
from ...core.usage import Call
from ...errors import OrphanResult
from ...log.log import Log
from ...models.prices import price
from .index import FILLER, messages_on, told_by
from .messages import NAME, rendered, reported, restored, usage_of
from .values import Values

NO_RESULT = "The graph went on without a result of this call."


class Said(Struct, frozen=True):
    """A message of the graph as it stands in the log. Bytes: nothing a node does to a message reaches them."""

    seq: int
    body: bytes
    is_entry: bool
    """Else it is held by a note."""
    packed: dict[str, Any] | None
    """As the serde wrote it, if it is kept so: what it holds may be equal to nothing but itself."""
    copies: list[BaseMessage] = []
    """What to compare with, made when it is needed: as it is kept and, if that hides something, as it was said."""

    def message(self, values: Values) -> BaseMessage:
        """The graph's own message again, another one each time."""
        if self.is_entry:
            return restored(cast(Message, decode("message", self.body)), values.unpack)
        found: BaseMessage = values.decode(from_json(self.body))
        return found

    def is_still(self, message: BaseMessage, values: Values) -> bool:
        """Whether this message is the same, in every field."""
        if self.packed is not None:
            return self.packed == values.pack(message)
        if not self.copies:
            self.copies.append(self.message(values))
        for copy in self.copies:  # noqa: SIM110 - `any` costs a generator
            if _is_equal(copy, message):
                return True
        return False


def said_as(seq: int, kept: Message | dict[str, Any]) -> Said:
    """A message of the graph, by what an entry or a note holds of it."""
    if isinstance(kept, Message):
        return Said(seq, encode(kept), True, (kept.details or {}).get(NAME, {}).get("whole"))
    return Said(seq, to_json(kept, "message"), False, kept if "serde" in kept else None)


def _is_equal(one: BaseMessage, other: BaseMessage) -> bool:
    """What pydantic's own comparison tells of messages, in a third of its time: each put compares all of them."""
    return (
        type(one) is type(other)
        and one.__dict__ == other.__dict__
        and (one.__pydantic_extra__ or {}) == (other.__pydantic_extra__ or {})
    )


class Page:
    """Entries to be appended, as they grow, with the calls that made them and the facts they will be."""

    def __init__(self, log: Log, values: Values, at: Leaf | None = None, said: Sequence[Said] = ()) -> None:
        self._log, self.values = log, values
        self._cursor: Cursor = log.cursor if at is None or at == log.leaf else log.cursor_at(at)
        self.said = list(said)
        self.drafts: list[Draft] = []
        self.calls: list[Call] = []
        self.facts = 1

    def add(self, payload: Message | Note, **told: Any) -> None:
        after = advance(self._cursor, payload).cursor
        self.facts += isinstance(payload, Message) and payload.role == "user"
        self.facts += bool(self._cursor.turn and not after.turn)
        self.drafts.append(Draft(payload, **told))
        self._cursor = after

    def say(self, message: BaseMessage, counted: Container[str] | None) -> None:
        """A message of the graph. Its call is put in the ledger unless it was `counted`, or none is to be."""
        made = rendered(message, self.values.pack) if self.values.is_open else None
        if made is not None:
            made = self._enter(made, message)
        if made is None:
            tagged = self.values.encode(message)
            self.add(Note({NAME: {"message": tagged}}))
            self._remember(tagged)
            return
        self._remember(made)
        if counted is not None:
            self._count(message, counted)

    def _remember(self, kept: Message | dict[str, Any]) -> None:
        said, redactor = said_as(self._cursor.seq, kept), self._log.runtime.redactor
        if redactor.may_contain_secret(said.body):
            hidden = (
                redactor.redact_payload(kept) if isinstance(kept, Message) else redactor.redact_json(kept)
            )
            as_kept = said_as(said.seq, cast(Message | dict[str, Any], hidden))
            as_kept.copies.extend([as_kept.message(self.values), said.message(self.values)])
            said = as_kept
        self.said.append(said)

    def _count(self, message: BaseMessage, counted: Container[str]) -> None:
        usage, name = usage_of(message), message.id
        if usage is None or not name or "\0" in name or name in counted:
            return
        provider, model = reported(message, "model_provider"), reported(message, "model_name", "model")
        self.calls.append(
            Call(
                call_id=name,
                branch=0,
                after_seq=self._cursor.seq - 1,
                answer_seq=self._cursor.seq,
                at=self._log.runtime.now(),
                usage=usage,
                provider=provider,
                model=model,
                price=price(usage, provider, model),
            )
        )

    def _enter(self, made: Message, message: BaseMessage) -> Message | None:
        """The entry; None if it may not stand here."""
        told = {}
        if made.role == "assistant":
            told["model"] = reported(message, "model_name", "model")
            told["finish"] = reported(message, "finish_reason", "stop_reason")
        if made.role != "tool":
            for waits in self._cursor.open_calls:
                result = ToolResult(waits.call.id, (Text(NO_RESULT),), error=True, outcome="interrupted")
                self.add(Message("tool", (result,), details={NAME: FILLER}))
        try:
            self.add(made, **told)
        except OrphanResult:
            return None
        return made


def said_on(path: Iterable[Entry]) -> list[Said]:
    """The messages of the graph that stand on a path."""
    found = messages_on(path)
    return [said_as(entry.seq, entry.message or (told_by(entry) or {})["message"]) for entry in found]


def shared(said: Sequence[Said], messages: Sequence[BaseMessage] | None, values: Values) -> int:
    """How many messages are as they were. A checkpoint without the channel leaves all of them where they are."""
    if messages is None:
        return len(said)
    for count, (was, now) in enumerate(zip(said, messages, strict=False)):
        if not was.is_still(now, values):
            return count
    return min(len(said), len(messages))
