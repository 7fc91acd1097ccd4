"""An ADK event on its way into a log: where it goes, what it moves, what the model call behind it cost.

Knows a session and one event. Does not know ADK's sessions, nor what their users share.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

from google.adk.events.event import Event

from ...core.drafts import ExtraFact
from ...core.entries import Entry
from ...core.messages import Message, ToolCall
from ...core.state import State, merge_state
from ...core.tree import Leaf
from ...core.usage import Call, Usage
from ...errors import StaleLeaf
from ...log.log import Log
from ...models.prices import price
from ...session import Session
from ...wire.gemini import request as gemini
from .events import Placed, notes, place, recalled
from .read import Json, record_of
from .state import needs_present, patch_of, replacing


def write(session: Session, after: Leaf, event: Event, delta: State) -> tuple[Leaf, bool]:
    """The event behind `after`, durable on return, and `delta`, what it changes of the session's own state.

    Returns where that left the session, and whether it was done now: who did not hear of it asks again. `StaleLeaf` if
    the session stands elsewhere for another reason.
    """
    log = session.log
    if log.leaf != after:
        log.refresh()
    if log.leaf != after:
        return _written_before(session, after, event.id), False
    patch = patch_of(session.state if needs_present(delta) else {}, delta)
    if event.actions.rewind_before_invocation_id:
        patch = _rewound(session, event.actions.rewind_before_invocation_id, patch)
        after = log.leaf
    placed = place(event, log.cursor, patch, Path(session))
    told: dict[str, Any] = {"calls": _calls(event, placed, log), "facts": _started(placed, log)}
    return log.append(placed.drafts, after=after, key=event.id, **told).leaf, True


class Path:
    """What lies before an event that is to be appended. As a rule nothing of it is asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def call(self, call_id: str) -> ToolCall | None:
        return recalled(reversed(self._session.path()), call_id)

    def asker(self) -> Json:
        return record_of(self._since_asked[0]) or {}

    def noted(self) -> list[Json]:
        is_last = self._session.open_tool_calls[0].seq == self._session.leaf.seq
        return [] if is_last else notes(self._since_asked)

    @cached_property
    def _since_asked(self) -> list[Entry]:
        return self._session.path(since=self._session.open_tool_calls[0].seq - 1)


def _written_before(session: Session, leaf: Leaf, key: str) -> Leaf:
    """Where a change of that key left the session; if there is none, whoever asks is stale."""
    for fact in reversed(session.journal()):
        if fact.key == key:
            return Leaf(fact.data["branch"], fact.data["last"])
    raise StaleLeaf(session.session_id, leaf, session.leaf)


def _rewound(session: Session, invocation_id: str, patch: State) -> State:
    """Move the leaf before an invocation; returns what makes the state there the one ADK asks for."""
    wanted = merge_state(session.state, patch)
    for entry in session.path():
        record = record_of(entry) or {}
        if record.get("invocation_id") == invocation_id:
            session.rewind(entry.seq - record.get("n", 1))
            break
    return cast(State, replacing(session.state, wanted))


def _started(placed: Placed, log: Log) -> list[ExtraFact]:
    """ADK runs tools as soon as it has stored the answer that asks for them: after a crash they may have run."""
    answer = None if placed.answer is None else placed.drafts[placed.answer].payload
    if placed.answer is None or not isinstance(answer, Message) or not answer.calls:
        return []
    seq = log.leaf.seq + placed.answer + 1
    return [ExtraFact("calls_started", {"seq": seq, "indexes": list(range(len(answer.calls)))})]


def _calls(event: Event, placed: Placed, log: Log) -> list[Call]:
    """The model call behind an event, if ADK says what it took."""
    if event.usage_metadata is None:
        return []
    told = {"candidates": [{}], "usage_metadata": event.usage_metadata}
    usage = gemini.parse_reply(told).usage or Usage()
    model = event.model_version
    provider = gemini.NAME if model is not None and gemini.NAME in model else None
    after = log.leaf.seq + (placed.answer or 0)
    return [
        Call(
            call_id=log.runtime.new_id(""),
            branch=0,
            after_seq=after,
            answer_seq=None if placed.answer is None else after + 1,
            at=log.runtime.now(),
            usage=usage,
            provider=provider,
            model=model,
            price=price(usage, provider, model),
            failed=event.error_code is not None,
        )
    ]
