"""The parts of a change beside its entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from oakleaf.core.codec import MAX_KEY_BYTES, check_json, check_length, check_text, to_json
from oakleaf.core.drafts import NewEntry
from oakleaf.core.entries import Payload, Settings
from oakleaf.core.facts import Fact, ToolCallsStarted, TurnEnded, TurnStarted, encode_fact, to_fact
from oakleaf.core.media import digest
from oakleaf.core.redact import Redactor
from oakleaf.core.usage import MAX_COUNT, Call, check_call_text, with_known_counts
from oakleaf.errors import InvalidArgument, InvalidCount
from oakleaf.log.request import NOTHING_ASKED, Asked
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import MADE_KEY, STATUSES, is_callers_key

FactType = TypeVar("FactType", bound=Fact)
TurnFact = TurnStarted | TurnEnded
CLOSED = ("status", "decision")
"""The fields of facts with a few words as values."""


def check(key: str | None, facts: Iterable[Fact | None], row: Mapping[str, Any] | None) -> None:
    """Raise for a key, facts or row values unfit for some store."""
    if key is not None:
        check_text(key, "key")
        check_length(key, "key", 2 * MAX_KEY_BYTES)  # a key of a step is longer than the key of the turn
    for fact in facts:
        if fact is not None:
            _check_fact(fact)
    for name, value in row.items() if row else ():
        if name == "status" and value not in STATUSES:
            raise InvalidArgument(name, value, f"one of {', '.join(STATUSES)}")
        if isinstance(value, str):
            check_text(value, name)
        elif isinstance(value, int) and not 0 <= value <= MAX_COUNT:
            raise InvalidCount(name, value)


def _check_fact(fact: Fact) -> None:
    if not isinstance(fact, Fact):  # read from a newer format
        raise InvalidArgument("fact", fact, "a fact of this version")
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        check_json(asdict(value) if isinstance(value, Struct) else value, name)
    if fact.__struct_fields__:
        to_json(msgspec.to_builtins(fact), "a fact")


def redacted_fact(fact: FactType, redactor: Redactor) -> FactType:
    """Return the fact without secrets."""
    if not fact.__struct_fields__ or not redactor.may_contain_secret(encode_fact(fact)[1]):
        return fact
    values = msgspec.to_builtins(fact)
    hidden = {
        name: value if name in CLOSED else redactor.redact_json(value) for name, value in values.items()
    }
    redacted = to_fact(type(fact), hidden)
    assert isinstance(redacted, type(fact))
    return redacted


def storable_call(call: Call, redactor: Redactor) -> Call:
    """Return the call with misreported counts as unknown, and with secrets in names redacted."""
    call = with_known_counts(call)
    check_call_text(call)
    model, provider = redactor.redact_word(call.model), redactor.redact_word(call.provider)
    is_same = model == call.model and provider == call.provider
    return call if is_same else replace(call, model=model, provider=provider)


def check_callers_key(key: str | None) -> None:
    """Raise for an invalid key of a caller. A key with the prefix `MADE_KEY` is never looked up."""
    check_text(key, "key")
    check_length(key, "key", MAX_KEY_BYTES)
    if key is not None and not (key and is_callers_key(key)):
        raise InvalidArgument("key", key, f"a text that does not begin with {MADE_KEY}")


def new_key(runtime: Runtime) -> str:
    """Return a key for a change without a key of the caller."""
    return MADE_KEY + runtime.new_id("")


def ask(runtime: Runtime, key: str | None, name: str, *values: Any) -> Asked:
    """Return what is asked for under a caller's key. Its digest is made without secrets."""
    if key is None:
        return NOTHING_ASKED
    check_callers_key(key)
    runtime.redactor.check_name(key, "key")
    request = msgspec.to_builtins([name, *values])
    return Asked(key, digest(to_json(runtime.redactor.redact_json(request), "the request"))[:32])


def keyed_session_id(scope: str, key: str) -> str:
    """Return the id of the session that a caller's key makes: the same whenever it is asked for."""
    return f"ses_{digest(to_json([scope, key], 'key'))[:20]}"


def turn_facts(facts: Iterable[TurnFact], about: TurnFact | None) -> list[TurnFact]:
    """Return the turn facts of a batch with the known fields of the turn."""
    return [_with_fields(fact, about) for fact in facts]


def _with_fields(fact: TurnFact, about: TurnFact | None) -> TurnFact:
    if isinstance(about, TurnStarted) and isinstance(fact, TurnStarted):
        return replace(about, turn=fact.turn)
    if isinstance(about, TurnEnded) and isinstance(fact, TurnEnded):
        return replace(about, turn=fact.turn, status=fact.status)
    return fact


def started_calls(entries: Sequence[NewEntry], indexes: Sequence[int]) -> list[ToolCallsStarted]:
    """Return the fact about the tool calls of the last entry started by the commit."""
    return [ToolCallsStarted(entries[-1].seq, tuple(indexes))] if indexes else []


def later_call(call: Call, count: int) -> Call:
    """The call, recorded `count` entries later on the path."""
    answer_seq = None if call.answer_seq is None else call.answer_seq + count
    return replace(call, after_seq=call.after_seq + count, answer_seq=answer_seq)


def turn_status(facts: Sequence[TurnFact]) -> dict[str, Any]:
    """Return the row's status after these facts.

    Running after an input, failed or cancelled after a turn with such an end, else idle.
    """
    row: dict[str, Any] = {}
    for fact in facts:
        if isinstance(fact, TurnStarted):
            row |= {"status": "running", "error": None, "completed_at": None}
        else:
            status = fact.status if fact.status in ("failed", "cancelled") else "idle"
            row |= {"status": status, "error": fact.error}
    return row


def latest_model(payloads: Iterable[Payload]) -> dict[str, Any]:
    """Return the row's model after settings with a model."""
    row = {}
    for payload in payloads:
        if type(payload) is Settings and payload.model is not None:
            row["model"] = payload.model.replace("\0", "")  # a column cannot hold NUL, a payload can
    return row
