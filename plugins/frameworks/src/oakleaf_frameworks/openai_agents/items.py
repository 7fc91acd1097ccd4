"""Responses items of the OpenAI Agents SDK as entries of a path, and back.

Consecutive items of the model become one answer, because an Oakleaf log has one batch of open calls at a time. Each item is
rendered from its parts; what the rendering lacks is stored beside the message as edits, and what only OpenAI may get
back (ids, encrypted reasoning) as evidence. Pure: knows no session, no thread and none of the SDK's types.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.context import Replacement, context_item, read_replacement
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Evidence, Note
from oakleaf.core.media import extract_blobs, has_inline_bytes, restore_json
from oakleaf.core.messages import (
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
from oakleaf.errors import UnrecognizedReply
from oakleaf.wire import Blobs, find_provider
from oakleaf.wire.media import with_reasoning
from oakleaf.wire.parsing import content_blocks, to_dict
from oakleaf_frameworks.json_diff import apply_edits, diff
from oakleaf_frameworks.shared import NO_RESULT, arguments_text, is_spaced, no_blob, stored_record

Item = dict[str, Any]
Layout = dict[str, Any]
"""How an item differs from its usual rendering: `form` (its notation), `parts` (their number, if not one), `edits`; or
`item`, all of it."""

KEY = "openai_agents"
ISSUER = "openai"
EVIDENCE_FIELDS = ("id", "encrypted_content")
_CALL_FIELDS = {"type", "call_id", "name", *EVIDENCE_FIELDS}


class ParsedItem(Struct, frozen=True):
    """One item as parts of a message."""

    item: Item
    role: Role
    parts: tuple[Part, ...]
    proofs: tuple[Item, ...] = ()
    """For each part, what OpenAI wants back with it."""
    form: str | None = None
    is_known: bool = True
    """False for a type that no part represents: its fields are stored as edits."""

    def layout(self) -> Layout:
        bare = {key: value for key, value in self.item.items() if key not in self.evidence_fields()}
        message = Message(self.role, self.parts)
        if has_inline_bytes(message):  # the log takes its text apart, and its id is evidence for that no more
            own_id = {"id": self.item["id"]} if "id" in self.item else {}
            return {"item": bare | own_id, "parts": len(extract_blobs(message)[0].parts)}
        edits = diff(_render(self.role, self.parts, self.form, no_blob), bare)
        has_own_count = self.role in ("assistant", "tool") and len(self.parts) != 1
        fields = {
            "form": self.form,
            "parts": len(self.parts) if has_own_count else None,
            "edits": edits or None,
        }
        return {key: value for key, value in fields.items() if value is not None}

    def evidence_fields(self) -> Item:
        """Return the fields never to be exported. Evidence belongs to a part, so an item without parts has none."""
        return _evidence_fields(self.item) if self.parts else {}

    def evidence(self, first: int) -> dict[str, Item]:
        proofs = [dict(proof) for proof in self.proofs or ({},) * len(self.parts)]
        if proofs:
            proofs[0] |= self.evidence_fields()
        return {str(first + index): proof for index, proof in enumerate(proofs) if proof}


# -- parsing items ---------------------------------------------------------------------------------


def parse_item(value: object) -> ParsedItem:
    """Parse an item of any type for later rendering."""
    item = to_dict(value)
    kind = str(item.get("type") or "message")
    has_call_id = isinstance(item.get("call_id"), str)
    try:
        if kind.endswith("_output") and has_call_id:
            return _parse_output(kind, item)
        if kind.endswith("_call") and has_call_id and kind != "function_call":
            return _parse_other_call(kind, item)
        if kind in ("message", "function_call", "reasoning"):
            is_input = kind == "message" and item.get("role") != "assistant"
            return _parse_input(item) if is_input else _parse_model_item(item)
    except UnrecognizedReply:
        pass
    return ParsedItem(item, "assistant", (Reasoning(f"[{kind}]"),), form=kind, is_known=False)


def _parse_model_item(item: Item) -> ParsedItem:
    """Parse the model's text, reasoning or function call."""
    answer = find_provider(ISSUER).parse_reply(_readable_item(item))
    parts = answer.message.parts
    evidence = answer.evidence.parts if answer.evidence is not None else {}
    proofs = tuple(evidence.get(str(index), {}) for index in range(len(parts)))
    form = "text" if isinstance(item.get("content"), str) else None
    if parts and isinstance(parts[0], ToolCall):
        form = "spaced" if is_spaced(parts[0], item.get("arguments")) else None
    return ParsedItem(item, "assistant", parts, proofs, form)


def _parse_input(item: Item) -> ParsedItem:
    (message,) = find_provider(ISSUER).parse_messages([_readable_item(item)])
    form = _content_form(message.parts, item.get("content"))
    return ParsedItem(item, message.role, message.parts, form=form)


def _parse_output(kind: str, item: Item) -> ParsedItem:
    if kind == "function_call_output" and isinstance(item.get("output"), str | list):
        (message,) = find_provider(ISSUER).parse_messages([_readable_item(item, "output")])
        (result,) = message.results
        return ParsedItem(item, "tool", message.parts, form=_content_form(result.content, item["output"]))
    form = "json" if kind == "function_call_output" else kind
    content = (Text(to_json(item["output"], "output").decode()),) if "output" in item else ()
    return ParsedItem(item, "tool", (ToolResult(item["call_id"], content),), form=form)


def _parse_other_call(kind: str, item: Item) -> ParsedItem:
    """Parse a computer, shell, patch or custom tool call: the type is the name, the fields are the arguments."""
    own_name = item.get("name")
    name = own_name if isinstance(own_name, str) and own_name else kind.removesuffix("_call")
    arguments = {key: value for key, value in item.items() if key not in _CALL_FIELDS}
    return ParsedItem(item, "assistant", (ToolCall(item["call_id"], name, arguments),), form=kind)


def _readable_item(item: Item, key: str = "content") -> Item:
    """Replace each block no message can hold by the type in brackets."""
    if not isinstance(item.get(key), list | tuple):
        return item
    return {**item, key: [_readable_block(block) for block in content_blocks(item[key])]}


def _readable_block(block: Item) -> Item:
    try:
        find_provider(ISSUER).parse_messages([{"role": "user", "content": [block]}])
    except UnrecognizedReply:
        return {"type": "text", "text": f"[{block.get('type')}]"}
    return block


def _content_form(parts: Sequence[Part], content: object) -> str | None:
    """Return the notation of a content; None for the usual notation of the parts."""
    form = "text" if isinstance(content, str) else "blocks"
    return None if form == _usual_form(parts) else form


def _usual_form(parts: Sequence[Part]) -> str:
    return "text" if len(parts) == 1 and isinstance(parts[0], Text) else "blocks"


def _evidence_fields(item: Mapping[str, Any]) -> Item:
    return {key: item[key] for key in EVIDENCE_FIELDS if isinstance(item.get(key), str)}


# -- items as drafts -------------------------------------------------------------------------------


class ItemDraftBuilder:
    """Turns items into drafts for a path with the open calls `open_calls`."""

    def __init__(
        self, open_calls: Iterable[str] = (), *, model: str | None = None, is_ahead: bool = False
    ) -> None:
        self.drafts: list[Draft] = []
        self.closing_text = NO_RESULT
        self.hides_closing = True
        """Whether results that close open calls are hidden from the SDK, which did not add them."""
        self._open_calls = list(open_calls)
        self._model = model
        self._marker: Item = {"ahead": True} if is_ahead else {}
        self._answer_items: list[ParsedItem] = []

    def add(self, items: Iterable[object]) -> list[Draft]:
        for parsed in map(parse_item, items):
            if parsed.role == "assistant":
                self._answer_items.append(parsed)
                continue
            self._add_answer()
            if parsed.role == "tool":
                self._add_result(parsed)
            else:
                self._close_calls()
                self._append([parsed], parsed.role)
        self._add_answer()
        return self.drafts

    def _add_answer(self) -> None:
        items, self._answer_items = self._answer_items, []
        if not any(parsed.is_known for parsed in items):  # not an answer: it must not end the turn
            self.drafts.extend(_note(parsed.item) for parsed in items)
            return
        self._close_calls()
        self._append(items, "assistant")
        self._open_calls = [
            part.id for parsed in items for part in parsed.parts if isinstance(part, ToolCall)
        ]

    def _add_result(self, parsed: ParsedItem) -> None:
        (result,) = parsed.parts
        assert isinstance(result, ToolResult)
        if result.call_id in self._open_calls:
            self._open_calls.remove(result.call_id)
            self._append([parsed], "tool")
        else:  # no open call has this id; stored in a note so that the SDK gets it back
            self.drafts.append(_note(parsed.item))

    def _close_calls(self) -> None:
        """Give every open call a result: only results may follow open calls."""
        details = {KEY: {"hidden": True}} if self.hides_closing else None
        outcome: Outcome = "interrupted" if self.hides_closing else "unknown"
        for call_id in self._open_calls:
            result = ToolResult(call_id, (Text(self.closing_text),), error=True, outcome=outcome)
            self.drafts.append(Draft(Message("tool", (result,), details=details)))
        self._open_calls = []

    def _append(self, items: Sequence[ParsedItem], role: Role) -> None:
        parts: list[Part] = []
        evidence: dict[str, Item] = {}
        for parsed in items:
            evidence |= parsed.evidence(len(parts))
            parts.extend(parsed.parts)
        layouts = [parsed.layout() for parsed in items]
        record = {**({"items": layouts} if any(layouts) else {}), **self._marker}
        message = Message(role, tuple(parts), details={KEY: record} if record else None)
        model = self._model if role == "assistant" else None
        self.drafts.append(Draft(message, model, evidence=Evidence(ISSUER, evidence) if evidence else None))


def _note(item: Item) -> Draft:
    return Draft(Note({KEY: {"item": item}}))


# -- entries as items ------------------------------------------------------------------------------


def path_items(path: Sequence[Entry], blobs: Blobs) -> list[tuple[Entry, list[Item]]]:
    """Return the items of a path by entry, with summaries in place of the replaced items."""
    replacement = read_replacement(path)
    summaries = {item.seq: item.message for item in replacement.summaries}
    replaced = [
        (entry, _message_items(summaries[entry.seq], None, blobs)) for entry in path if entry.seq in summaries
    ]
    rest = [
        (entry, entry_items(_replaced_entry(entry, replacement), blobs))
        for entry in path
        if (not summaries or replacement.keeps(entry.seq, entry.turn)) and entry.seq not in summaries
    ]
    return [*replaced, *_in_call_order(pair for pair in rest if pair[1])]


def _replaced_entry(entry: Entry, replacement: Replacement) -> Entry:
    """Return the entry with the results shortened by a compaction."""
    item = replacement.item(entry)
    return replace(entry, payload=item.message) if item is not None and item.shortened else entry


def entry_items(entry: Entry, blobs: Blobs) -> list[Item]:
    """Return the items of one entry; none without a counterpart in the SDK."""
    if isinstance(entry.payload, Note):
        record = restore_json(stored_record(entry.payload, KEY) or {}, blobs)
        return [record["item"]] if "item" in record else []
    message = entry.message
    if message is None:
        context = context_item(entry)
        return [] if context is None else _message_items(context.message, None, blobs)
    return _message_items(message, entry.evidence, blobs)


def is_ahead(entry: Entry) -> bool:
    """Whether the entry was written live, before the SDK added the item."""
    return entry.message is not None and bool((stored_record(entry.message, KEY) or {}).get("ahead"))


def _in_call_order(pairs: Iterable[tuple[Entry, list[Item]]]) -> Iterator[tuple[Entry, list[Item]]]:
    """Sort results written on arrival by the order of the calls, as the SDK does."""
    order: dict[str, int] = {}
    results: list[tuple[Entry, list[Item]]] = []
    for entry, items in pairs:
        message = entry.message
        if message is not None and message.role == "tool" and is_ahead(entry):
            results.append((entry, items))
            continue
        yield from sorted(results, key=lambda pair: order.get(pair[1][0].get("call_id", ""), 0))
        results = []
        if message is not None and message.role == "assistant":
            order = {call.id: index for index, call in enumerate(message.calls)}
        yield entry, items
    yield from sorted(results, key=lambda pair: order.get(pair[1][0].get("call_id", ""), 0))


def _message_items(message: Message, evidence: Evidence | None, blobs: Blobs) -> list[Item]:
    message = with_reasoning(message, blobs) or message
    record = restore_json(stored_record(message, KEY) or {}, blobs)
    if record.get("hidden"):
        return []
    is_single = message.role in ("user", "system")
    layouts: list[Layout] = record.get("items") or [{}] * (1 if is_single else len(message.parts))
    proofs = evidence.parts if evidence is not None and evidence.issuer == ISSUER else {}
    items: list[Item] = []
    first = 0
    for layout in layouts:
        last = len(message.parts) if is_single else first + layout.get("parts", 1)
        if "item" in layout:
            item = dict(layout["item"])
        else:
            item = _render(message.role, message.parts[first:last], layout.get("form"), blobs)
        item |= _evidence_fields(proofs.get(str(first), {})) if last > first else {}
        items.append(apply_edits(item, layout["edits"]) if "edits" in layout else item)
        first = last
    return items


def _render(role: str, parts: Sequence[Part], form: str | None, blobs: Blobs) -> Item:
    """Render an item in the SDK's usual form, without evidence."""
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
    content = [
        {"annotations": [], "text": _text(part), "type": "output_text", "logprobs": []} for part in parts
    ]
    return {"content": content, "role": "assistant", "status": "completed", "type": "message"}


def _render_call(call: ToolCall, form: str | None) -> Item:
    if form not in (None, "spaced"):
        return {"call_id": call.id, **call.arguments, "type": form}
    arguments = arguments_text(call, spaced=form == "spaced")
    return {"arguments": arguments, "call_id": call.id, "name": call.name, "type": "function_call"}


def _render_output(result: ToolResult, form: str | None, blobs: Blobs) -> Item:
    if form in (None, "text", "blocks"):
        output = _content(result.content, form, blobs)
        return {"call_id": result.call_id, "output": output, "type": "function_call_output"}
    item = {"call_id": result.call_id, "type": "function_call_output" if form == "json" else form}
    return {**item, "output": from_json(_text(result.content[0]))} if result.content else item


def _content(parts: Sequence[Part], form: str | None, blobs: Blobs) -> str | list[Item]:
    if (form or _usual_form(parts)) == "text":
        return _text(parts[0])
    return [_block(part, blobs) for part in parts]


def _text(part: Part) -> str:
    return part.text if isinstance(part, Text | Reasoning) else ""


def _block(part: Part, blobs: Blobs) -> Item:
    if not isinstance(part, Media | Attachment):
        return {"text": _text(part), "type": "input_text"}
    data = part.data if isinstance(part, Attachment) else blobs(part.hash) or b""
    url = f"data:{part.mime};base64,{b64encode(data).decode()}"
    if part.mime.startswith("image/"):
        return {"detail": "auto", "image_url": url, "type": "input_image"}
    return {"file_data": url, "filename": part.name, "type": "input_file"}
