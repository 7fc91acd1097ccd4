"""Keep evidence with the part it belongs to while a message is made durable.

An issuer refuses a signature whose part was altered, and every later request with it. So a part that is stored other
than its issuer wrote it (redacted, or taken apart) loses what is checked against its content. A provider accepts the
reasoning of an answer whole or not at all: if one part loses its signature, all of it is sent without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .entries import Evidence, Payload
from .messages import Attachment, Message, Part, Reasoning

CHECKED = ("signature", "data", "encrypted_content", "id")
"""What issuers compare with the content of a part; anything else describes it and stays true."""


def move_evidence(
    evidence: Evidence | None, before: Payload, after: Payload, origins: Sequence[int] | None = None
) -> Evidence | None:
    """Return the evidence of `before` by the parts of `after`; `origins` has the index in `before` of each.

    Without origins the message was redacted. What an adapter keeps under a name of its own, for the message as its
    framework writes it, holds until then.
    """
    if evidence is None or not isinstance(before, Message) or not isinstance(after, Message):
        return evidence
    parts: dict[str, dict[str, Any]] = {}
    has_lost_reasoning = False
    for index, part in enumerate(after.parts):
        origin = index if origins is None else origins[index]
        proof = evidence.parts.get(str(origin), {})
        if not _is_same(before.parts[origin], part):
            has_lost_reasoning |= isinstance(part, Reasoning) and proof != _unchecked(proof)
            proof = _unchecked(proof)
        parts[str(index)] = proof
    if has_lost_reasoning:
        for index, part in enumerate(after.parts):
            if isinstance(part, Reasoning):
                parts[str(index)] = _unchecked(parts[str(index)])
    if origins is not None:
        parts |= {name: proof for name, proof in evidence.parts.items() if not name.isdecimal()}
    parts = {index: proof for index, proof in parts.items() if proof}
    return Evidence(evidence.issuer, parts) if parts else None


def _is_same(before: Part, after: Part) -> bool:
    if isinstance(before, Attachment):
        return True  # its handle names the same bytes
    if isinstance(before, Reasoning) and isinstance(after, Reasoning) and not before.placeholders:
        return before == after or bool(after.placeholders)  # it is restored to the letter
    return before == after


def _unchecked(proof: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in proof.items() if key not in CHECKED}
