"""Export a session as Markdown for reading and sharing, one text per entry.

All content is untrusted and made inert by `escape`. The host's notes and details, and evidence, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from oakleaf import Session
from oakleaf.core.entries import (
    CUT_OFF_FINISHES,
    BranchSummary,
    Compaction,
    Entry,
    Note,
    Settings,
    Uncompaction,
    Unknown,
)
from oakleaf.core.messages import Media, Message, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.time_text import iso
from oakleaf.core.turns import is_completed
from oakleaf.core.usage import Totals
from oakleaf.errors import InvalidArgument
from oakleaf.exports.escape import code, cut, fence, inert, lines_of, quote
from oakleaf.exports.values import PathOptions, shared_row
from oakleaf.ext import Exporter, read
from oakleaf.stores.base import SessionRow

MOST_CHARACTERS = 4_000
SHORT = 80  # arguments up to this length stay on one line

UNANSWERED = "*This turn has no final answer.*\n\n"
OUTCOMES = {
    "unknown": "outcome unknown: it may or may not have happened",
    "denied": "denied: it did not run",
    "interrupted": "interrupted",
    "dry_run": "dry run: it did not run",
    "not_recorded": "not recorded: in this replay nothing was done",
}
_CUT_OFF = {
    "interrupted": "interrupted",
    "partial": "interrupted",
    "cancelled": "cancelled",
    "error": "stopped",
    **dict.fromkeys(CUT_OFF_FINISHES, "cut off by the token limit"),
    "refusal": "refused",
}


class Options(PathOptions, frozen=True, kw_only=True):
    """The parts of a session to show."""

    lines: int = 20
    """How many lines of a tool's result are shown."""

    def __post_init__(self) -> None:
        if self.lines < 1:
            raise InvalidArgument("lines", self.lines, "a number from 1")


def write(session: Session, to: BinaryIO, options: Options) -> None:
    """Write the path as Markdown, entry by entry."""
    row, path = shared_row(session, options), read(session).shared_entries(redact=options.redact)
    for text in markdown(row, path, session.usage("path"), options.lines):
        to.write(text.encode())


EXPORTER = Exporter(suffix=".md", write=write, options=Options)


def markdown(row: SessionRow, path: Iterable[Entry], totals: Totals, most_lines: int) -> Iterator[str]:
    """Yield the header, every entry of the path, calls without a result, and the usage."""
    yield _head(row)
    waiting: list[ToolCall] = []
    turn: list[Entry] = []
    for entry in path:
        if turn and entry.turn != turn[-1].turn:
            if not is_completed(turn):
                yield UNANSWERED
            turn = []
        if entry.turn:
            turn.append(entry)
        yield from _entry(entry, waiting, most_lines)
    for call in waiting:
        yield f"**No result** of {code(call.name)}.\n\n"
    if turn and not is_completed(turn):
        yield UNANSWERED
    yield _usage(totals)


def _head(row: SessionRow) -> str:
    title = " ".join(inert(line) for line in lines_of(row.title or "Session")).strip()
    about = {
        "Session": code(row.session_id),
        "Agent": row.agent and code(row.agent),
        "Model": row.model and code(row.model),
        "Status": row.status,
        "Started": iso(row.started_at),
        "From": row.parent_session and f"{row.relation} of {code(row.parent_session)} at {row.parent_seq}",
        "Error": row.error and code(row.error, 200),
    }
    return f"# {title}\n\n" + "".join(f"- {name}: {value}\n" for name, value in about.items() if value) + "\n"


def _entry(entry: Entry, waiting: list[ToolCall], most_lines: int) -> Iterator[str]:
    """Render an entry. `waiting` holds the calls without a result: an answer adds its own, a result removes the first of its id."""
    match entry.payload:
        case Message(role="tool", parts=parts):
            for part in parts:
                if isinstance(part, ToolResult):
                    call = next(call for call in waiting if call.id == part.call_id)
                    waiting.remove(call)
                    yield _result(entry.seq, part, call.name, most_lines)
        case Message() as message:
            yield _message(entry, message, most_lines)
            waiting.extend(message.calls)
        case Compaction(summary="", shortened=shortened):
            seqs = ", ".join(str(seq) for seq, _ in shortened)
            yield _section(entry.seq, f"From here on the model sees the results at {seqs} shortened")
        case Compaction(summary=summary, first_kept=first):
            yield _section(entry.seq, f"Summary of what lies before {first}", quote(summary))
        case Uncompaction(cancels=cancels):
            yield _section(entry.seq, f"The summary at {cancels} is cancelled")
        case BranchSummary(summary=summary, leaf_seq=leaf_seq):
            yield _section(entry.seq, f"What the branch left at {leaf_seq} had found", quote(summary))
        case Settings() as settings:
            yield _section(entry.seq, "Settings from here on", *_settings(settings))
        case Note():
            return
        case Unknown(kind=kind):
            yield _section(entry.seq, f"{code(kind)}, of a newer format")


def _section(seq: int, head: str, *blocks: str) -> str:
    return "\n\n".join([f"## {seq} · {head}", *blocks]) + "\n\n"


def _message(entry: Entry, message: Message, most_lines: int) -> str:
    marks = [message.role.capitalize()]
    if entry.model:
        marks.append(code(entry.model))
    if entry.finish in _CUT_OFF:
        marks.append(f"**{_CUT_OFF[entry.finish]}**")
    blocks: list[str] = []
    for part in message.parts:
        match part:
            case Text(text=text) if text.strip():
                blocks.append(quote(text))
            case Reasoning(text=text) if text.strip():
                blocks.append(f"*Thought:*\n\n{quote(text)}")
            case ProviderBlock(kind=kind, text=text):
                blocks.append(_block(f"**By the provider** {code(kind)}", text, "text", most_lines))
            case ToolCall():
                blocks.append(_call(part, most_lines))
            case Media():
                blocks.append(_media(part))
    return _section(entry.seq, " · ".join(marks), *(blocks or ["*(empty)*"]))


def _call(call: ToolCall, most_lines: int) -> str:
    if call.malformed is not None:
        return _block(f"**Call** {code(call.name)} · **malformed**", call.malformed, "text", most_lines)
    written = msgspec.json.encode(call.arguments)
    short = len(written) <= SHORT
    text = (written if short else msgspec.json.format(written, indent=2)).decode()
    return _block(f"**Call** {code(call.name)}", text, "json", most_lines)


def _result(seq: int, result: ToolResult, name: str, most_lines: int) -> str:
    marks = [f"Result of {code(name)}"]
    if result.outcome in OUTCOMES:
        marks.append(f"**{OUTCOMES[result.outcome]}**")
    if result.error:
        marks.append("**error**")
    texts = [piece.text for piece in result.content if isinstance(piece, Text) and piece.text]
    blocks = [_block("", text, "text", most_lines) for text in texts]
    blocks += [_media(piece) for piece in result.content if isinstance(piece, Media)]
    return _section(seq, " · ".join(marks), *(blocks or ["*(no output)*"]))


def _block(head: str, text: str, info: str, most_lines: int) -> str:
    lines, rest = cut(text, most_lines, MOST_CHARACTERS)
    fenced = "\n".join(fence(lines, info))
    return "\n\n".join(piece for piece in (head, fenced, rest) if piece)


def _media(media: Media) -> str:
    named = f" {code(media.name)}" if media.name else ""
    return f"*Media:*{named} {code(media.mime or 'unknown type')}, {media.size:,} bytes, sha256 {code(media.hash)}"


def _settings(settings: Settings) -> Iterator[str]:
    if settings.model is not None:
        yield f"Model: {code(settings.model)}"
    if settings.tools is not None:
        yield f"Tools allowed: {', '.join(map(code, settings.tools)) or 'none'}"
    if settings.tool_definitions is not None:
        yield f"Tools: {', '.join(map(code, settings.tool_definitions.names)) or 'none'}"
    for values in (settings.options, settings.limits):
        if values is not None:
            yield "\n".join(fence(lines_of(msgspec.json.encode(values).decode()), "json"))
    if settings.max_messages is not None:
        yield f"Maximum of messages: {settings.max_messages or 'none'}"
    for model, tokens in (settings.windows or {}).items():
        yield f"Window of {code(model)}: {tokens:,} tokens"
    for provider, endpoint in (settings.endpoints or {}).items():
        yield f"Server of {code(provider)}: {code(endpoint.host or 'the vendor')}"
    if settings.effects is not None:
        yield f"Effects of other paths: {settings.effects}"
    if settings.prompt is not None:
        yield f"Prompt:\n\n{quote(settings.prompt)}"
    if settings.prompt_patch is not None:
        yield f"Added to the prompt:\n\n{quote(settings.prompt_patch)}"


def _usage(totals: Totals) -> str:
    counts = (
        f"{totals.input_tokens:,} in ({totals.cache_read_tokens:,} from the cache, "
        f"{totals.cache_write_tokens:,} into it), {totals.output_tokens:,} out"
    )
    parts = [
        f"- Model calls: {totals.calls:,}",
        f"- Tokens: {'unknown' if totals.is_unknown else counts}",
        f"- Cost: ${totals.cost_microcents / 1e8:,.4f}",
    ]
    if totals.unpriced_calls:
        parts.append(f"- Without a price: {totals.unpriced_calls:,} calls")
    if totals.unknown_calls:
        parts.append(f"- Tokens unknown: {totals.unknown_calls:,} calls")
    return "## Usage\n\n" + "\n".join(parts) + "\n"
