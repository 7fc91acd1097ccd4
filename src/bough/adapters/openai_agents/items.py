"""Responses items, as the OpenAI Agents SDK hands them to a session, as entries of a path, and back again.

What the model made in a row is one answer, because Bough's law is one batch of calls at a time. Each item is rendered
from the parts it became; what the rendering lacks is kept beside the message as edits, and what OpenAI alone may have
back (ids, encrypted reasoning) as evidence. Pure: knows no session, no thread and nothing of the SDK's own types.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...core.codec import from_json, to_json
from ...core.context import active_compactions, context_item, summary_item
from ...core.drafts import Draft
from ...core.entries import Entry, Evidence, Note
from ...core.messages import (
    Attachment,
    Media,
    Message,
    Outcome,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ...errors import UnrecognizedReply
from ...wire import Blobs, find_provider
from ...wire.shapes import content_blocks, to_dict
from ..json_diff import apply_edits, diff

Item = dict[str, Any]
Rest = dict[str, Any]
"""What an item is beside its parts: `form` (how it is written), `parts` (how many, if not one), `edits`."""

NAME = "openai_agents"
ISSUER = "openai"
SEALED = ("id", "encrypted_content")
NO_RESULT = "[no result was handed in before the conversation went on]"
CUT_OFF = "[the run was cut off before this call returned: it may or may not have happened]"
_CALL_FIELDS = {"type", "call_id", "name", *SEALED}


class Piece(Struct, frozen=True):
    """One item, read."""

    item: Item
    role: Role
    parts: tuple[Part, ...]
    proofs: tuple[Item, ...] = ()
    """Of each part what OpenAI wants back with it."""
    form: str | None = None
    is_read: bool = True
    """False: of a type we have no words for; it is kept whole."""

    def rest(self) -> Rest:
        bare = {key: value for key, value in self.item.items() if key not in self.sealed()}
        made = diff(_render(self.role, self.parts, self.form, _no_blob), bare)
        has_own_count = self.role in ("assistant", "tool") and len(self.parts) != 1
        found = {
            "form": self.form,
            "parts": len(self.parts) if has_own_count else None,
            "edits": made or None,
        }
        return {key: value for key, value in found.items() if value is not None}

    def sealed(self) -> Item:
        """What never leaves with an export; an item without a part has no place for it."""
        return _sealed(self.item) if self.parts else {}

    def evidence(self, first: int) -> dict[str, Item]:
        proofs = [dict(proof) for proof in self.proofs or ({},) * len(self.parts)]
        if proofs:
            proofs[0] |= self.sealed()
        return {str(first + index): proof for index, proof in enumerate(proofs) if proof}


# -- reading items ---------------------------------------------------------------------------------


def read(value: object) -> Piece:
    """An item as parts; whatever it is, it can be rendered again."""
    item = to_dict(value)
    kind = str(item.get("type") or "message")
    has_call_id = isinstance(item.get("call_id"), str)
    try:
        if kind.endswith("_output") and has_call_id:
            return _read_output(kind, item)
        if kind.endswith("_call") and has_call_id and kind != "function_call":
            return _read_other_call(kind, item)
        if kind in ("message", "function_call", "reasoning"):
            return _read_said(item) if kind != "message" or _is_assistant(item) else _read_input(item)
    except UnrecognizedReply:
        pass
    return Piece(item, "assistant", (Reasoning(f"[{kind}]"),), form=kind, is_read=False)


def _is_assistant(item: Item) -> bool:
    return item.get("role") == "assistant"


def _read_said(item: Item) -> Piece:
    """What the model said, thought or asked for."""
    answer = find_provider(ISSUER).parse_reply(_understood(item))
    parts = answer.message.parts
    found = answer.evidence.parts if answer.evidence is not None else {}
    proofs = tuple(found.get(str(index), {}) for index in range(len(parts)))
    form = "text" if isinstance(item.get("content"), str) else None
    if parts and isinstance(parts[0], ToolCall):
        written = item.get("arguments")
        is_spaced = written != _compact(parts[0]) and written == json.dumps(parts[0].arguments)
        form = "spaced" if is_spaced else None
    return Piece(item, "assistant", parts, proofs, form)


def _read_input(item: Item) -> Piece:
    (message,) = find_provider(ISSUER).parse_messages([_understood(item)])
    return Piece(item, message.role, message.parts, form=_content_form(message.parts, item.get("content")))


def _read_output(kind: str, item: Item) -> Piece:
    if kind == "function_call_output" and isinstance(item.get("output"), str | list):
        (message,) = find_provider(ISSUER).parse_messages([_understood(item, "output")])
        (result,) = message.results
        return Piece(item, "tool", message.parts, form=_content_form(result.content, item["output"]))
    form = "json" if kind == "function_call_output" else kind
    said = (Text(to_json(item["output"], "output").decode()),) if "output" in item else ()
    return Piece(item, "tool", (ToolResult(item["call_id"], said),), form=form)


def _read_other_call(kind: str, item: Item) -> Piece:
    """A call of the computer, a shell, a patch, a custom tool: named by its type, its fields the arguments."""
    named = item.get("name")
    name = named if isinstance(named, str) and named else kind.removesuffix("_call")
    arguments = {key: value for key, value in item.items() if key not in _CALL_FIELDS}
    return Piece(item, "assistant", (ToolCall(item["call_id"], name, arguments),), form=kind)


def _understood(item: Item, key: str = "content") -> Item:
    """The item with words in place of what no message can hold: its type, in brackets."""
    if not isinstance(item.get(key), list | tuple):
        return item
    return {**item, key: [_understood_block(block) for block in content_blocks(item[key])]}


def _understood_block(block: Item) -> Item:
    try:
        find_provider(ISSUER).parse_messages([{"role": "user", "content": [block]}])
    except UnrecognizedReply:
        return {"type": "text", "text": f"[{block.get('type')}]"}
    return block


def _content_form(parts: Sequence[Part], written: object) -> str | None:
    """None if it is written as content of these parts mostly is: one text as text, all else in blocks."""
    form = "text" if isinstance(written, str) else "blocks"
    return None if form == _usual(parts) else form


def _usual(parts: Sequence[Part]) -> str:
    return "text" if len(parts) == 1 and isinstance(parts[0], Text) else "blocks"


def _sealed(item: Mapping[str, Any]) -> Item:
    return {key: item[key] for key in SEALED if isinstance(item.get(key), str)}


# -- items as drafts -------------------------------------------------------------------------------


class Plan:
    """Items on their way to a path that stands where calls `waiting` are open."""

    def __init__(
        self, waiting: Iterable[str] = (), *, model: str | None = None, is_ahead: bool = False
    ) -> None:
        self.drafts: list[Draft] = []
        self.closing = NO_RESULT
        self.hides_closing = True
        """Whether the SDK, which did not hand these results in, is not to get them either."""
        self._waiting = list(waiting)
        self._model = model
        self._mark: Item = {"ahead": True} if is_ahead else {}
        self._said: list[Piece] = []

    def add(self, items: Iterable[object]) -> list[Draft]:
        for piece in map(read, items):
            if piece.role == "assistant":
                self._said.append(piece)
                continue
            self._answer()
            if piece.role == "tool":
                self._result(piece)
            else:
                self._close()
                self._append([piece], piece.role)
        self._answer()
        return self.drafts

    def _answer(self) -> None:
        said, self._said = self._said, []
        if not any(piece.is_read for piece in said):  # no answer of its own: it must not end the turn
            self.drafts.extend(_note(piece.item) for piece in said)
            return
        self._close()
        self._append(said, "assistant")
        self._waiting = [part.id for piece in said for part in piece.parts if isinstance(part, ToolCall)]

    def _result(self, piece: Piece) -> None:
        (result,) = piece.parts
        assert isinstance(result, ToolResult)
        if result.call_id in self._waiting:
            self._waiting.remove(result.call_id)
            self._append([piece], "tool")
        else:  # no open call has this id; kept, so that it comes back
            self.drafts.append(_note(piece.item))

    def _close(self) -> None:
        """Only results may follow open calls: whatever was left open gets one that says so."""
        details = {NAME: {"made": True}} if self.hides_closing else None
        outcome: Outcome = "interrupted" if self.hides_closing else "unknown"
        for call_id in self._waiting:
            result = ToolResult(call_id, (Text(self.closing),), error=True, outcome=outcome)
            self.drafts.append(Draft(Message("tool", (result,), details=details)))
        self._waiting = []

    def _append(self, pieces: Sequence[Piece], role: Role) -> None:
        parts: list[Part] = []
        evidence: dict[str, Item] = {}
        for piece in pieces:
            evidence |= piece.evidence(len(parts))
            parts.extend(piece.parts)
        rests = [piece.rest() for piece in pieces]
        kept = {**({"items": rests} if any(rests) else {}), **self._mark}
        message = Message(role, tuple(parts), details={NAME: kept} if kept else None)
        model = self._model if role == "assistant" else None
        self.drafts.append(Draft(message, model, evidence=Evidence(ISSUER, evidence) if evidence else None))


def _note(item: Item) -> Draft:
    return Draft(Note({NAME: {"item": item}}))


# -- entries as items ------------------------------------------------------------------------------


def told(path: Sequence[Entry], blobs: Blobs) -> list[tuple[Entry, list[Item]]]:
    """The items a path stands for, by the entry that holds them: summaries in place of what they replaced."""
    compactions = active_compactions(path)
    shown = {seq: summary_item(seq, compaction).message for seq, compaction in compactions}
    first_kept = compactions[-1][1].first_kept if compactions else 0
    first = [(entry, _items(shown[entry.seq], None, blobs)) for entry in path if entry.seq in shown]
    kept = [
        (entry, items_of(entry, blobs))
        for entry in path
        if entry.seq >= first_kept and entry.seq not in shown
    ]
    return [*first, *_in_call_order(found for found in kept if found[1])]


def items_of(entry: Entry, blobs: Blobs) -> list[Item]:
    """The items of one entry; none if it is nothing to the SDK."""
    if isinstance(entry.payload, Note):
        held = _kept(entry.payload.data)
        return [held["item"]] if "item" in held else []
    message = entry.message
    if message is None:
        seen = context_item(entry)
        return [] if seen is None else _items(seen.message, None, blobs)
    return _items(message, entry.evidence, blobs)


def is_ahead(entry: Entry) -> bool:
    """Whether it was written as it happened, before the SDK handed it in."""
    return entry.message is not None and bool(_kept(entry.message.details).get("ahead"))


def _in_call_order(found: Iterable[tuple[Entry, list[Item]]]) -> Iterator[tuple[Entry, list[Item]]]:
    """Results written as they landed stand in the order of time; the SDK puts them in the order of their calls."""
    order: dict[str, int] = {}
    landed: list[tuple[Entry, list[Item]]] = []
    for entry, items in found:
        message = entry.message
        if message is not None and message.role == "tool" and is_ahead(entry):
            landed.append((entry, items))
            continue
        yield from sorted(landed, key=lambda pair: order.get(pair[1][0].get("call_id", ""), 0))
        landed = []
        if message is not None and message.role == "assistant":
            order = {call.id: index for index, call in enumerate(message.calls)}
        yield entry, items
    yield from sorted(landed, key=lambda pair: order.get(pair[1][0].get("call_id", ""), 0))


def _kept(details: Mapping[str, Any] | None) -> Item:
    found = (details or {}).get(NAME)
    return found if isinstance(found, dict) else {}


def _items(message: Message, evidence: Evidence | None, blobs: Blobs) -> list[Item]:
    kept = _kept(message.details)
    if kept.get("made"):
        return []
    is_one = message.role in ("user", "system")
    rests: list[Rest] = kept.get("items") or [{}] * (1 if is_one else len(message.parts))
    proofs = evidence.parts if evidence is not None and evidence.issuer == ISSUER else {}
    items: list[Item] = []
    first = 0
    for rest in rests:
        last = len(message.parts) if is_one else first + rest.get("parts", 1)
        item = _render(message.role, message.parts[first:last], rest.get("form"), blobs)
        item |= _sealed(proofs.get(str(first), {})) if last > first else {}
        items.append(apply_edits(item, rest["edits"]) if "edits" in rest else item)
        first = last
    return items


def _render(role: str, parts: Sequence[Part], form: str | None, blobs: Blobs) -> Item:
    """An item as the SDK mostly writes it, without what is sealed."""
    match list(parts):
        case [ToolResult() as result]:
            return _render_output(result, form, blobs)
        case [ToolCall() as call]:
            return _render_call(call, form)
        case [Reasoning(text=text)]:
            summary = [{"text": text, "type": "summary_text"}] if text else []
            return {"type": form} if form else {"summary": summary, "type": "reasoning"}
        case _ if role != "assistant":
            return {"content": _content(parts, form, blobs), "role": role}
        case [Text(text=text)] if form == "text":
            return {"content": text, "role": "assistant"}
        case []:
            return {}
    said = [{"annotations": [], "text": _words(p), "type": "output_text", "logprobs": []} for p in parts]
    return {"content": said, "role": "assistant", "status": "completed", "type": "message"}


def _render_call(call: ToolCall, form: str | None) -> Item:
    if form not in (None, "spaced"):
        return {"call_id": call.id, **call.arguments, "type": form}
    written = json.dumps(call.arguments) if form else _compact(call)
    return {"arguments": written, "call_id": call.id, "name": call.name, "type": "function_call"}


def _compact(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else msgspec.json.encode(call.arguments).decode()


def _render_output(result: ToolResult, form: str | None, blobs: Blobs) -> Item:
    if form in (None, "text", "blocks"):
        output = _content(result.content, form, blobs)
        return {"call_id": result.call_id, "output": output, "type": "function_call_output"}
    item = {"call_id": result.call_id, "type": "function_call_output" if form == "json" else form}
    return {**item, "output": from_json(_words(result.content[0]))} if result.content else item


def _content(parts: Sequence[Part], form: str | None, blobs: Blobs) -> str | list[Item]:
    if (form or _usual(parts)) == "text":
        return _words(parts[0])
    return [_block(part, blobs) for part in parts]


def _words(part: Part) -> str:
    return part.text if isinstance(part, Text | Reasoning) else ""


def _block(part: Part, blobs: Blobs) -> Item:
    if not isinstance(part, Media | Attachment):
        return {"text": _words(part), "type": "input_text"}
    data = part.data if isinstance(part, Attachment) else blobs(part.hash) or b""
    url = f"data:{part.mime};base64,{b64encode(data).decode()}"
    if part.mime.startswith("image/"):
        return {"detail": "auto", "image_url": url, "type": "input_image"}
    return {"file_data": url, "filename": part.name, "type": "input_file"}


def _no_blob(_: str) -> None:
    """Bytes on their way in are still with their part."""
