"""Export a session as one line of OpenAI's chat fine-tuning format, complete turns only.

The line is the conversation a model would get at the leaf, as `wire.openai_chat` writes it, and ends with an answer; the
trainer learns from every answer in it. Turns that are bad examples are left out and reported. Media are named but not
included: the format takes no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Session, Tool, tool
from oakleaf.core import context as contexts
from oakleaf.core.context import Item
from oakleaf.core.entries import CUT_OFF_FINISHES, INTERRUPTED, PARTIAL, Entry
from oakleaf.core.messages import Media, Message, Text, ToolResult
from oakleaf.core.turns import ENDED_BY_TOOL, group_by_turn, is_completed
from oakleaf.exports.values import PathOptions
from oakleaf.ext import Exporter, read
from oakleaf.wire import Blobs, render
from oakleaf.wire.media import media_stub
from oakleaf.wire.openai_chat import request as openai_chat
from oakleaf.wire.tool_pairs import legal_name

_FATES = {
    "unknown": "the outcome of a call is unknown",
    "interrupted": "a call was interrupted",
    "not_recorded": "a call of this replay was never made",
}
_CUT_OFF = frozenset([INTERRUPTED, PARTIAL, "cancelled", "error", *CUT_OFF_FINISHES])


class Skipped(Struct, frozen=True):
    """A turn, or an entry outside of turns, left out of the line."""

    seq: int
    why: str


class FineTuning(Struct, frozen=True):
    """The number of turns in the line, and the turns left out."""

    turns: int
    skipped: tuple[Skipped, ...]
    is_empty: bool
    """Whether nothing remained, so that no line was written."""

    def lines(self) -> Iterator[str]:
        """Yield the warnings for people."""
        for skipped in self.skipped:
            yield f"skipped at {skipped.seq}: {skipped.why}"
        if self.is_empty:
            yield "no turn is complete, so the export is empty"


class Options(PathOptions, frozen=True, kw_only=True):
    """The content of the line besides messages."""

    tools: Any = ()
    """Tools or functions, whose definitions replace the recorded ones."""


def write(session: Session, to: BinaryIO, options: Options) -> FineTuning:
    """Write the completed turns of the path as a line; nothing without a complete turn."""
    reader = read(session)
    text, report = finetune(list(reader.shared_entries(redact=options.redact)), options.tools, reader.blob)
    to.write(text.encode())
    return report


EXPORTER = Exporter(suffix=".jsonl", write=write, options=Options)


def finetune(
    path: Sequence[Entry], tools: Iterable[Tool | Callable[..., Any]] = (), blobs: Blobs = lambda digest: None
) -> tuple[str, FineTuning]:
    """Return the line with the line break, and the report. Its tools are `tools`, or else those that were
    recorded last.
    """
    context = contexts.whole_context(path)
    entry_at = {entry.seq: entry for entry in path}
    visible = {item.seq for item in context.items}
    kept_turns: list[list[Item]] = []
    skipped = _summarised_turns(path, visible)
    for unit in group_by_turn(context.items):
        if unit[0].turn and unit[0].turn not in visible:
            continue  # the rest of a turn whose beginning is summarised
        why = None if unit[0].pinned else _fault([entry_at[item.seq] for item in unit])
        if why is None:
            kept_turns.append(unit)
        else:
            skipped.append(Skipped(unit[0].seq, why))
    while kept_turns and not _is_answer(kept_turns[-1][-1].message):
        skipped.append(Skipped(kept_turns.pop()[0].seq, "no answer follows it"))
    items = tuple(_without_media(item) for unit in kept_turns for item in unit)
    context = replace(context, items=items, settings=replace(context.settings, options=None))
    recorded = context.settings.tool_definitions
    request = openai_chat.project(
        context, lambda digest: blobs(digest) if recorded and digest == recorded.hash else None
    )
    request.pop("tool_choice", None)  # an example has none
    if defined := [_definition(tool) for tool in tools]:
        request["tools"] = defined
    text = render(request).decode() + "\n" if kept_turns else ""
    turns = sum(1 for unit in kept_turns if unit[0].turn)
    return text, FineTuning(turns, tuple(sorted(skipped, key=lambda one: one.seq)), not text)


def _summarised_turns(path: Sequence[Entry], visible: set[int]) -> list[Skipped]:
    inputs = [entry.seq for entry in path if entry.turn == entry.seq]
    return [
        Skipped(seq, "it, or its beginning, is replaced by a summary") for seq in inputs if seq not in visible
    ]


def _fault(unit: Sequence[Entry]) -> str | None:
    """Return the reason for leaving out a turn; None for a complete turn."""
    messages = [entry.message for entry in unit if entry.message is not None]
    results = [result for message in messages for result in message.results]
    if unit[0].turn and not is_completed(unit):
        return "it has no final answer"
    if len(results) < sum(len(message.calls) for message in messages):
        return "a call has no result"
    for result in results:
        if result.outcome in _FATES:
            return _FATES[result.outcome]
    if any(entry.finish in _CUT_OFF for entry in unit):
        return "an answer was cut off"
    if any(entry.finish == ENDED_BY_TOOL for entry in unit):
        return "a tool ended it"
    if unit[0].turn and not _is_answer(messages[-1]):
        return "its last answer is empty"
    return None


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.calls and bool(message.text.strip())


def _without_media(item: Item) -> Item:
    message = item.message
    if message.role == "assistant" or next(iter(message.media), None) is None:
        return item
    parts = tuple(_name_media(part) for part in message.parts)
    return replace(item, message=replace(message, parts=parts))


def _name_media(part: Any) -> Any:
    if isinstance(part, Media):
        return Text(media_stub(part, "not included"))
    if isinstance(part, ToolResult):
        return replace(part, content=tuple(_name_media(piece) for piece in part.content))
    return part


def _definition(callable_tool: Tool | Callable[..., Any]) -> dict[str, Any]:
    spec = callable_tool.spec if isinstance(callable_tool, Tool) else tool(callable_tool).spec
    function = {
        "name": legal_name(spec.name, openai_chat.NAME_LENGTH),
        "description": spec.description,
        "parameters": msgspec.to_builtins(spec.parameters),
    }
    return {"type": "function", "function": function}
