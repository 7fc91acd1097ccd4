"""A caller's values for one turn: the trigger and the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oakleaf.core.codec import check_json, check_text
from oakleaf.core.facts import Trigger, TurnStarted
from oakleaf.core.ids import is_traceparent
from oakleaf.core.redact import Redactor
from oakleaf.errors import InvalidArgument


def turn_about(
    trigger: str | Mapping[str, str] | None,
    policy: Mapping[str, Any] | None,
    redactor: Redactor,
    trace: str | None = None,
) -> TurnStarted:
    """Return the turn's fact for the record; raise before any write for an invalid value.

    A trigger is a name of the row: a trigger with a secret is refused.
    """
    cause = None if trigger is None else _trigger(trigger, redactor)
    if trace is not None and not is_traceparent(trace):
        raise InvalidArgument("trace", trace, "a traceparent such as 00-<32 hex digits>-<16 hex digits>-01")
    if policy is None:
        return TurnStarted(0, cause, trace=trace)
    if not isinstance(policy, Mapping):
        raise InvalidArgument("policy", policy, "a dict of JSON values")
    check_json(dict(policy), "policy")
    return TurnStarted(0, cause, policy=dict(policy), trace=trace)


def _trigger(trigger: object, redactor: Redactor) -> Trigger:
    fields = {"type": trigger} if isinstance(trigger, str) else trigger
    is_good = (
        isinstance(fields, Mapping)
        and {"type"} <= fields.keys() <= {"type", "id"}
        and all(isinstance(value, str) and value for value in fields.values())
    )
    if not is_good or not isinstance(fields, Mapping):
        raise InvalidArgument("trigger", trigger, 'a name such as "email", or a dict with type and id')
    for name, value in fields.items():
        check_text(value, f"trigger {name}")
        redactor.check_name(value, f"trigger {name}")
    return Trigger(fields["type"], fields.get("id"))


def trigger_columns(about: TurnStarted) -> dict[str, str | None]:
    """Return the row's columns with the latest trigger."""
    trigger = about.trigger
    return {} if trigger is None else {"trigger_type": trigger.type, "trigger_id": trigger.id}
