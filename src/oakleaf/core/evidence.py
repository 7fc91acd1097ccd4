"""Keep evidence with the part it belongs to while a message is made durable.

An issuer refuses a signature whose part was altered, and every later request with it. So a part that is stored other
than its issuer wrote it (redacted, or taken apart) loses what is checked against its content. A provider accepts the
reasoning of an answer whole or not at all: if one part loses its signature, all of it is sent without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oakleaf.core.codec import to_json
from oakleaf.core.entries import Evidence, Payload
from oakleaf.core.messages import Attachment, Message, Part, ProviderBlock, Reasoning, ToolResult
from oakleaf.core.redact import Redactor

CONTENT = ("block", "item", "annotations", "metadata", "raw", "shape", "pieces")
"""Keys with content in the issuer's form: whole blocks, what stands beside a part, and references to its text."""
CHECKED = ("signature", "data", "encrypted_content", "id", *CONTENT)
"""Keys that issuers compare with a part's content; other keys describe the part and stay true."""


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
        # Bytes may be taken out of the text of a provider's block: the block itself is in the evidence, unchanged.
        is_intact = origins is not None and isinstance(part, ProviderBlock)
        if not is_intact and not _is_same(before.parts[origin], part):
            has_lost_reasoning |= isinstance(part, Reasoning) and proof != _without_checked(proof)
            proof = _without_checked(proof)
        parts[str(index)] = proof
    if has_lost_reasoning:
        for index, part in enumerate(after.parts):
            if isinstance(part, Reasoning):
                parts[str(index)] = _without_checked(parts[str(index)])
    if origins is not None:
        parts |= {name: proof for name, proof in evidence.parts.items() if not name.isdecimal()}
    parts = {index: proof for index, proof in parts.items() if proof}
    return Evidence(evidence.issuer, parts) if parts else None


def redact_evidence(evidence: Evidence, redactor: Redactor) -> Evidence | None:
    """Return the evidence without secret content: the issuer would not accept altered evidence."""
    parts: dict[str, dict[str, Any]] = {}
    for name, proof in evidence.parts.items():
        content = [proof[key] for key in CONTENT if key in proof]
        if content and redactor.may_contain_secret(to_json(content, "evidence")):
            proof = proof if redactor.redact_json(content) == content else _without_checked(proof)
        if proof:
            parts[name] = proof
    return Evidence(evidence.issuer, parts) if parts else None


def _is_same(before: Part, after: Part) -> bool:
    if isinstance(before, Attachment):
        return True  # its handle names the same bytes
    if isinstance(before, ToolResult) and isinstance(after, ToolResult):
        pieces = len(before.content) == len(after.content) and zip(before.content, after.content, strict=True)
        return bool(pieces) and all(_is_same(*pair) for pair in pieces or ())
    if isinstance(before, Reasoning) and isinstance(after, Reasoning) and not before.placeholders:
        return before == after or bool(after.placeholders)  # it is restored to the letter
    return before == after


def _without_checked(proof: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in proof.items() if key not in CHECKED}
