"""The ledger row of a model call by the host itself: a title, a summary."""

from __future__ import annotations

from oakleaf import wire
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import InvalidArgument
from oakleaf.log.log import Log
from oakleaf.models.prices import price


def host_call(log: Log, usage: object, model: str | None, purpose: str, *, failed: bool = False) -> Call:
    """Return the row of a call after the leaf. `usage` is a `Usage` or an SDK's reply, which names its model
    too."""
    units = None
    provider, name = wire.split_name(model or "")
    if not isinstance(usage, Usage):
        reply = wire.parse_reply(usage)
        if reply.usage is None:
            raise InvalidArgument("usage", usage, "an oakleaf.Usage, or a reply that says what it used")
        usage, units = reply.usage, reply.units
        provider, name = provider or reply.provider or "", name or reply.model or ""
    return Call(
        call_id=log.runtime.new_id(""),
        branch=0,
        after_seq=log.leaf.seq,
        answer_seq=None,
        at=log.runtime.now(),
        usage=usage,
        purpose=purpose,
        provider=provider or None,
        model=name or None,
        price=price(usage, provider or None, name or None, units),
        failed=failed,
    )
