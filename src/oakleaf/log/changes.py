"""The parts of a change beside its entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from oakleaf.core.codec import MAX_KEY_BYTES, check_length, check_text, to_json
from oakleaf.core.drafts import ExtraFact, NewEntry
from oakleaf.core.entries import Payload, Settings
from oakleaf.core.redact import Redactor
from oakleaf.core.usage import MAX_COUNT, Call, check_call_text, with_known_counts
from oakleaf.errors import InvalidArgument, InvalidCount
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import MADE_KEY, STATUSES, is_callers_key


def check(key: str | None, data: Mapping[str, Any] | None, row: Mapping[str, Any] | None) -> None:
    """Raise for a key, journal data or row values that not every store could keep."""
    if key is not None:
        check_text(key, "key")
        check_length(key, "key", 2 * MAX_KEY_BYTES)  # that of a step is longer than the one it is made from
    if data:
        to_json(dict(data), "journal data")
    for name, value in row.items() if row else ():
        if name == "status" and value not in STATUSES:
            raise InvalidArgument(name, value, f"one of {', '.join(STATUSES)}")
        if isinstance(value, str):
            check_text(value, name)
        elif isinstance(value, int) and not 0 <= value <= MAX_COUNT:
            raise InvalidCount(name, value)


def storable_call(call: Call, redactor: Redactor) -> Call:
    """Return the call without what a provider may have misreported: bad counts are unknown, and secrets in names redacted."""
    call = with_known_counts(call)
    check_call_text(call)
    model, provider = redactor.redact_word(call.model), redactor.redact_word(call.provider)
    is_same = model == call.model and provider == call.provider
    return call if is_same else replace(call, model=model, provider=provider)


def check_callers_key(key: str | None) -> None:
    """Raise for a key that a caller may not give: what begins with `MADE_KEY` is not looked up."""
    check_text(key, "key")
    check_length(key, "key", MAX_KEY_BYTES)
    if key is not None and not (key and is_callers_key(key)):
        raise InvalidArgument("key", key, f"a text that does not begin with {MADE_KEY}")


def new_key(runtime: Runtime) -> str:
    """Return a key for a change that the caller gave none."""
    return MADE_KEY + runtime.new_id("")


def with_data(facts: tuple[ExtraFact, ...], data: Mapping[str, Any] | None) -> tuple[ExtraFact, ...]:
    """Add data to the fact that the turn started or ended."""
    if not data:
        return facts
    return tuple(
        ExtraFact(fact.kind, {**fact.data, **data}) if fact.kind in ("turn_started", "turn_ended") else fact
        for fact in facts
    )


def started_calls(entries: Sequence[NewEntry], indexes: Sequence[int]) -> list[ExtraFact]:
    """The fact that these tool calls of the last entry start with its commit."""
    return [ExtraFact("calls_started", {"seq": entries[-1].seq, "indexes": list(indexes)})] if indexes else []


def later_call(call: Call, count: int) -> Call:
    """The call, recorded `count` entries later on the path."""
    answer_seq = None if call.answer_seq is None else call.answer_seq + count
    return replace(call, after_seq=call.after_seq + count, answer_seq=answer_seq)


def turn_status(facts: Sequence[ExtraFact]) -> dict[str, Any]:
    """The row's status after these facts: running after an input, failed or cancelled after a turn that ended so, else idle."""
    if not facts:
        return {}
    last = facts[-1]
    status = "running" if last.kind == "turn_started" else last.data["status"]
    row = {
        "status": status if status in ("running", "failed", "cancelled") else "idle",
        "error": last.data.get("error"),
    }
    for fact in facts:
        if fact.kind == "turn_started":
            row["completed_at"] = None
    return row


def latest_model(payloads: Iterable[Payload]) -> dict[str, Any]:
    """The row's model after settings that name one."""
    row = {}
    for payload in payloads:
        if type(payload) is Settings and payload.model is not None:
            row["model"] = payload.model.replace("\0", "")  # a column cannot hold NUL, a payload can
    return row
