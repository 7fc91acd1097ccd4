"""Pair every tool call with its result, under an id the provider accepts, with texts for missing results.

Pairs as the log does: a result answers the first open call with its id. Knows contexts; does not know how a provider
writes a pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct

from ..core.context import Item
from ..core.messages import Attachment, Media, Text, ToolCall, ToolResult, user

NO_RESULT = "[no result was recorded: the run was cut off and the outcome of this call is unknown]"
NO_OUTPUT = "(no output)"
EMPTY_MESSAGE = "(empty message)"
MEDIA_HEADING = "Media of the tool results above:"
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


class ToolPair(Struct, frozen=True):
    call: ToolCall
    wire_id: str
    result: ToolResult | None = None
    """None: the history ends before the result."""

    @property
    def is_error(self) -> bool:
        return self.result is None or self.result.error


class PairedMessage(Struct, frozen=True):
    """A message that is not a tool result, with the calls it makes and their results."""

    item: Item
    pairs: tuple[ToolPair, ...] = ()


def pair_results(items: Iterable[Item], max_id_length: int) -> list[PairedMessage]:
    """Return the messages of a context in order, results moved to their calls."""
    paired: list[PairedMessage] = []
    used: set[str] = set()
    for item in items:
        if item.message.role == "tool":
            for result in item.message.results:
                _attach_result(paired, item, result)
        else:
            calls = enumerate(item.message.calls)
            pairs = [ToolPair(call, legal_id(call.id, item.seq, n, max_id_length, used)) for n, call in calls]
            paired.append(PairedMessage(item, tuple(pairs)))
    return paired


def _attach_result(paired: list[PairedMessage], item: Item, result: ToolResult) -> None:
    """Attach a result to its call; without its call it becomes text, so that it is never lost."""
    last = paired[-1] if paired else None
    for index, pair in enumerate(last.pairs if last else ()):
        if last and pair.result is None and pair.call.id == result.call_id:
            pairs = list(last.pairs)
            pairs[index] = ToolPair(pair.call, pair.wire_id, result)
            paired[-1] = PairedMessage(last.item, tuple(pairs))
            return
    orphan = Item(user(Text(ORPHAN_HEADING), *result_content(result)), item.seq, item.turn)
    # More results of the open batch may follow: the orphan must not close it.
    paired.insert(len(paired) - 1 if last and last.pairs else len(paired), PairedMessage(orphan))


def legal_id(raw: str, seq: int, index: int, max_length: int, used: set[str]) -> str:
    """Return `raw` if it is legal and new, else an id derived from its position, which never changes."""
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
    """Return what the model sees of a result: its content, after a marker unless its outcome is done."""
    if result is None:
        return (Text(NO_RESULT),)
    marker = MARKERS.get(result.outcome)
    content = tuple(piece for piece in result.content if not is_blank(piece))
    return ((Text(marker),) if marker else ()) + content or (Text(NO_OUTPUT),)


def is_blank(part: object) -> bool:
    return isinstance(part, Text) and not part.text.strip()
