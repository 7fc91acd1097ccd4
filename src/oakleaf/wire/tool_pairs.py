"""Pair every tool call with its result, under an id the provider accepts, with texts for missing results.

Pairs as the log does: a result answers the first open call with its id. Knows contexts; does not know how a provider
writes a pair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from oakleaf.core.context import Context, Item
from oakleaf.core.entries import Evidence
from oakleaf.core.messages import Attachment, Media, Text, ToolCall, ToolResult, user
from oakleaf.wire.base import HistoryPart

NO_RESULT = "[no result was recorded: the run was cut off and the outcome of this call is unknown]"
NO_OUTPUT = "(no output)"
EMPTY_MESSAGE = "(empty message)"
MEDIA_HEADING = "Media of the tool results above:"
CONTINUE = "(continue)"
ORPHAN_HEADING = "The result of a tool call that is no longer shown:"
MARKERS = {
    "unknown": "[outcome unknown: the run was cut off while this call ran; it may or may not have happened]",
    "denied": "[denied: this call was not allowed and did not run]",
    "interrupted": "[interrupted: this call was stopped before it finished]",
    "dry_run": "[dry run: this call was not really made]",
    "not_recorded": "[not recorded: in this replay nothing was done]",
}

ResultPart = Text | Media | Attachment

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


class ToolPair(Struct, frozen=True, gc=False):
    call: ToolCall
    wire_id: str
    result: ToolResult | None = None
    """None: the history ends before the result."""
    issuer: str | None = None
    proof: Mapping[str, Any] = {}
    """The issuer's evidence of the result."""

    @property
    def is_error(self) -> bool:
        return self.result is None or self.result.error

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments as an object: no provider is sent malformed text."""
        malformed = self.call.malformed
        return self.call.arguments if malformed is None else {"malformed_arguments": malformed}

    def proof_for(self, issuer: str) -> Mapping[str, Any]:
        """Return the evidence of the result for `issuer`."""
        return self.proof if self.issuer == issuer else {}

    def pieces(self, issuer: str) -> list[tuple[ResultPart, Mapping[str, Any]]]:
        """Return the pieces of the result for the model, each with the evidence for `issuer`."""
        proofs = self.proof_for(issuer).get("pieces", {})
        return [(piece, proofs.get(index, {})) for piece, index in _result_pieces(self.result)]


class PairedMessage(Struct, frozen=True, gc=False):
    """A message other than a tool result, with calls and results."""

    item: Item
    pairs: tuple[ToolPair, ...] = ()


def pair_results(
    items: Sequence[Item], max_id_length: int, part: HistoryPart, resumes: str | None = None
) -> list[PairedMessage]:
    """Return the messages of a context in order, results moved to the calls.

    An answer that its provider paused is continued by `resumes`, if that issued it; another is asked to continue.
    """
    paired: list[PairedMessage] = []
    for item in items:
        if item.message.role == "tool":
            proofs = {} if item.evidence is None else item.evidence.parts
            for index, result in enumerate(item.message.results):
                _attach_result(paired, item, result, proofs.get(str(index), {}))
        else:
            calls = enumerate(item.message.calls)
            pairs = [
                ToolPair(call, legal_id(call.id, item.seq, n, max_id_length, part.used_ids))
                for n, call in calls
            ]
            paired.append(PairedMessage(item, tuple(pairs)))
    last = items[-1] if items and part.is_end else None
    if last is not None and last.paused and (last.evidence is None or last.evidence.issuer != resumes):
        paired.append(PairedMessage(Item(user(Text(CONTINUE)), last.seq, last.turn)))
    return paired


def proofs_of(evidence: Evidence | None, issuer: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the evidence by index of the part; nothing if another provider issued the evidence."""
    return evidence.parts if evidence is not None and evidence.issuer == issuer else {}


def system_prompts(context: Context, issuer: str) -> list[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    """Return the system prompts that say something, each with the evidence for `issuer`."""
    pairs = zip_longest(context.system, context.system_evidence[: len(context.system)])
    return [(text, proofs_of(evidence, issuer)) for text, evidence in pairs if text.strip()]


def _attach_result(
    paired: list[PairedMessage], item: Item, result: ToolResult, proof: Mapping[str, Any]
) -> None:
    """Attach a result to the call; without a call the result becomes text and is never lost."""
    last = paired[-1] if paired else None
    for index, pair in enumerate(last.pairs if last else ()):
        if last and pair.result is None and pair.call.id == result.call_id:
            pairs = list(last.pairs)
            issuer = None if item.evidence is None else item.evidence.issuer
            pairs[index] = ToolPair(pair.call, pair.wire_id, result, issuer, proof)
            paired[-1] = PairedMessage(last.item, tuple(pairs))
            return
    orphan = Item(user(Text(ORPHAN_HEADING), *result_content(result)), item.seq, item.turn)
    # More results of the open batch may follow: the orphan must not close it.
    paired.insert(len(paired) - 1 if last and last.pairs else len(paired), PairedMessage(orphan))


def legal_id(raw: str, seq: int, index: int, max_length: int, used: set[str]) -> str:
    """Return `raw` if legal and new, else an id derived from the position, the same in every request."""
    legal = raw
    salt = 0
    while not 0 < len(legal) <= max_length or _ILLEGAL.search(legal) or legal in used:
        digest = sha256(f"{seq} {index} {salt} {raw}".encode(errors="surrogatepass"))
        legal, salt = "call_" + digest.hexdigest()[:24], salt + 1
    used.add(legal)
    return legal


def legal_name(raw: str, max_length: int, illegal: re.Pattern[str] = _ILLEGAL) -> str:
    return illegal.sub("_", raw)[:max_length] or "unnamed"


def result_content(result: ToolResult | None) -> tuple[ResultPart, ...]:
    """Return a result's content for the model, after a marker unless the outcome is done."""
    return tuple(piece for piece, _ in _result_pieces(result))


def _result_pieces(result: ToolResult | None) -> list[tuple[ResultPart, str]]:
    """Return `result_content`, each piece with an index in the result; "" for a text of ours."""
    if result is None:
        return [(Text(NO_RESULT), "")]
    marker = MARKERS.get(result.outcome)
    content = [(piece, str(n)) for n, piece in enumerate(result.content) if not is_blank(piece)]
    return [*([(Text(marker), "")] if marker else []), *content] or [(Text(NO_OUTPUT), "")]


def is_blank(part: object) -> bool:
    return isinstance(part, Text) and not part.text.strip()
