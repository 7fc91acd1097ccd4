"""Pydantic AI's messages, as its own type adapter dumps them, as entries of a path, and back.

A response is one answer. A request is one entry for each of its parts (system prompts, inputs, results); its other fields
are stored with the last of them. Each part is rendered from its entry, and what the rendering lacks is stored as edits;
what only its issuer may get back (ids, signatures) is evidence. Instructions are the prompt in force, so they are not
repeated with every request. Pure: knows dumped messages, no session and no store.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Evidence, Note, Payload, Settings
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
from oakleaf.ext import UNKNOWN_OUTCOME
from oakleaf.wire import Blobs
from oakleaf.wire.media import with_reasoning
from oakleaf.wire.parsing import parse_tool_call
from oakleaf_frameworks.json_diff import apply_edits, diff
from oakleaf_frameworks.shared import (
    NO_RESULT,
    UNKNOWN_RESULT,
    arguments_text,
    is_spaced,
    no_blob,
    stored_record,
)

Dumped = dict[str, Any]

KEY = "pydantic_ai"
EVIDENCE_FIELDS = ("id", "signature", "provider_details")

_OUTCOMES: dict[str, Outcome] = {"denied": "denied", "interrupted": "interrupted"}


def _templates() -> dict[str, Dumped]:
    """Return messages and parts, by kind, as the framework dumps them with default values."""
    request = ModelRequest([SystemPromptPart(""), UserPromptPart(""), ToolReturnPart("", "", "")])
    response = ModelResponse([TextPart(""), ThinkingPart(""), ToolCallPart("", "", "")])
    dumped = ModelMessagesTypeAdapter.dump_python([request, response], mode="json")
    templates: dict[str, Dumped] = {}
    for message in dumped:
        templates |= {
            part["part_kind"]: part | ({"timestamp": None} if "timestamp" in part else {})
            for part in message["parts"]
        }
        templates[message["kind"]] = message | {"parts": [], "timestamp": None}
    return templates


TEMPLATES = _templates()


class PathMessage(Struct, frozen=True):
    """A message of the framework, read from a path."""

    message: Dumped
    seq: int
    """The seq of its last entry."""
    branch: int
    entry_id: str
    """The framework's id of it; derived from branch and seq if the framework did not store it."""
    is_closed: bool = True
    """False if the request's other fields were not stored, and it may have more parts."""
    is_results_only: bool = False
    """Whether it consists of results that were written as they arrived."""


# -- messages as drafts ----------------------------------------------------------------------------


class MessageDraftBuilder:
    """Turns messages into drafts for a path with the prompt `prompt` and the open calls `open_calls`.

    `last` is the last message of the path: results in it may belong to the request that is added first. The calls
    `started` may have run.
    """

    def __init__(
        self,
        open_calls: Iterable[str] = (),
        prompt: str | None = None,
        last: PathMessage | None = None,
        started: Container[str] = (),
    ) -> None:
        self.drafts: list[Draft] = []
        self.answers: list[tuple[int, Dumped]] = []
        """The responses, by the index of their drafts."""
        self._open_calls = list(open_calls)
        self._started = started
        self._prompt = prompt
        self._unclosed = None if last is None or last.is_closed else last

    def add(self, message: Dumped, entry_id: str) -> None:
        parts = self._written_results(message)
        if message["kind"] == "response":
            self._add_answer(message, entry_id)
            return
        first = len(self.drafts)
        written = {part["tool_call_id"] for part in parts}
        for part in message["parts"]:
            if part.get("part_kind") != "tool-return" or part["tool_call_id"] not in written:
                self._add_part(part)
                parts.append(part)
        self._add_instructions(first, message.get("instructions"))
        edits = diff(_request(parts, [], self._prompt), message)
        self._close_message(first, {"edits": edits, "id": entry_id} if edits else {"id": entry_id})

    def _written_results(self, message: Dumped) -> list[Dumped]:
        """Return the results at the end of the path that belong to the request; close any other results
        separately.
        """
        last, self._unclosed = self._unclosed, None
        if last is None:
            return []
        parts: list[Dumped] = list(last.message["parts"])
        result_ids = {p["tool_call_id"] for p in message["parts"] if p.get("part_kind") == "tool-return"}
        if last.is_results_only and {part["tool_call_id"] for part in parts} <= result_ids:
            return parts
        self.drafts.append(Draft(Note({KEY: {"id": last.entry_id}})))
        return []

    def add_result(self, part: Dumped) -> None:
        """Add a result on arrival; the other fields of the request are added later."""
        self._add_part(part)
        self._close_message(0, {"ahead": True})

    def _add_instructions(self, first: int, instructions: str | None) -> None:
        """Set new instructions: before the request, or after the request's results."""
        if instructions is None or instructions == self._prompt or self._open_calls:
            return
        has_results = any(
            isinstance(d.payload, Message) and d.payload.role == "tool" for d in self.drafts[first:]
        )
        self.drafts.insert(len(self.drafts) if has_results else first, Draft(Settings(prompt=instructions)))
        self._prompt = instructions

    def add_record(self, record: Dumped) -> None:
        """Store the conversation's record with the last entry, or in a separate note."""
        self._close_message(len(self.drafts) - 1 if self.drafts else 0, {"record": record})

    def _close_message(self, first: int, fields: Dumped) -> None:
        """Store fields of the message with the message's last entry."""
        last = self.drafts[-1].payload if len(self.drafts) > first else None
        if isinstance(last, Message):
            details = {**(last.details or {}), KEY: {**_fields(last), **fields}}
            self.drafts[-1] = replace(self.drafts[-1], payload=replace(last, details=details))
        elif isinstance(last, Note):
            self.drafts[-1] = Draft(Note({KEY: {**_fields(last), **fields}}))
        else:
            self.drafts.append(Draft(Note({KEY: fields})))

    def _add_part(self, part: Dumped) -> None:
        role, content, form = _parse_request_part(part)
        call_id = str(part.get("tool_call_id"))
        if role is None or (role == "tool" and call_id not in self._open_calls):
            self.drafts.append(Draft(Note({KEY: {"part": part}})))
            return
        if role == "tool":
            self._open_calls.remove(call_id)
        else:
            self._close_calls()
        message = Message(role, content)
        if has_inline_bytes(message):  # the log takes its text apart
            fields = {"part": part}
        else:
            edits = diff(_render_request_part(role, content, form, no_blob), part)
            fields = _non_empty(form=form, part_edits=edits)
        self.drafts.append(Draft(replace(message, details={KEY: fields})))

    def _add_answer(self, message: Dumped, entry_id: str) -> None:
        self._close_calls()
        issuer = message.get("provider_name")
        parsed = [_parse_response_part(part) for part in message["parts"]]
        proofs = [
            {key: part[key] for key in EVIDENCE_FIELDS if part.get(key) is not None}
            for part in message["parts"]
        ]
        layouts = [
            _response_layout(part, form, {**dumped, **dict.fromkeys(proof)})
            for (part, form), dumped, proof in zip(parsed, message["parts"], proofs, strict=True)
        ]
        model, finish = message.get("model_name"), message.get("finish_reason")
        base = _without_parts(TEMPLATES["response"]) | {"model_name": model, "finish_reason": finish}
        edits = diff(base, _without_parts(message))
        details = {KEY: _non_empty(parts=layouts if any(layouts) else None, edits=edits, id=entry_id)}
        evidence = {str(index): proof for index, proof in enumerate(proofs) if proof}
        answer = Message("assistant", tuple(part for part, _ in parsed), details=details)
        self.answers.append((len(self.drafts), message))
        self.drafts.append(
            Draft(answer, model, finish, Evidence(issuer or KEY, evidence) if evidence else None)
        )
        self._open_calls = [call.id for call in answer.calls]

    def _close_calls(self) -> None:
        """Give every open call a result, hidden from the framework: only results may follow open calls."""
        for call_id in self._open_calls:
            result = ToolResult(call_id, (Text(NO_RESULT),), error=True, outcome="interrupted")
            if call_id in self._started:
                result = replace(result, content=(Text(UNKNOWN_RESULT),), outcome="unknown")
            self.drafts.append(Draft(Message("tool", (result,), details={KEY: {"hidden": True}})))
        self._open_calls = []


def _response_layout(part: Part, form: str | None, dumped: Dumped) -> Dumped:
    """Return a part's difference from the usual rendering: all of the part, if the log splits the text."""
    message = Message("assistant", (part,))
    if has_inline_bytes(message):
        return {"part": dumped, "count": len(extract_blobs(message)[0].parts)}
    return _non_empty(form=form, edits=diff(_render_response_part(part, form, no_blob), dumped))


def _without_parts(message: Mapping[str, Any]) -> Dumped:
    return {key: value for key, value in message.items() if key != "parts"}


def _non_empty(**fields: Any) -> Dumped:
    return {key: value for key, value in fields.items() if value}


def _fields(payload: Payload) -> Dumped:
    return stored_record(payload, KEY) or {}


# -- entries as messages ---------------------------------------------------------------------------


def path_messages(path: Sequence[Entry], blobs: Blobs, prompt: str | None = None) -> Iterator[PathMessage]:
    """Yield the messages of a path, or of the last section of a path after the prompt `prompt`.

    A part of a path may begin inside a message, so the first message that ends in it is left out.
    """
    request, is_complete = RequestReader(), not path or path[0].seq == 1
    for entry in path:
        payload, fields = entry.payload, restore_json(_fields(entry.payload), blobs)
        if isinstance(payload, Settings):
            prompt = prompt if payload.prompt is None else payload.prompt
        elif isinstance(payload, Message) and payload.role == "assistant":
            if request.last is not None and is_complete:  # the request's other fields were never stored
                message = _request(request.parts(), [], prompt)
                yield replace(_path_message(message, request.last), is_closed=False)
            if is_complete:
                yield _path_message(_response(payload, fields, entry, blobs), entry)
            request, is_complete = RequestReader(payload), True
        elif request.add(entry, fields, blobs) and "id" in fields:
            if is_complete:
                yield _path_message(_request(request.parts(), fields.get("edits", []), prompt), entry)
            request, is_complete = RequestReader(), True
    if request.last is not None and is_complete:
        last = _path_message(_request(request.parts(), [], prompt), request.last)
        yield replace(last, is_closed=False, is_results_only=request.is_results_only)


class RequestReader:
    """Collects the parts of a request from the entries after `answer`."""

    def __init__(self, answer: Message | None = None) -> None:
        self.last: Entry | None = None
        calls = answer.calls if answer is not None else ()
        self._order = {call.id: index for index, call in enumerate(calls)}
        self._tool_names = {call.id: call.name for call in calls}
        self._early_results: list[Dumped] = []
        self._parts: list[Dumped] = []

    def add(self, entry: Entry, fields: Dumped, blobs: Blobs) -> bool:
        """Add an entry's parts; return False without a counterpart in the framework."""
        payload = entry.payload
        if isinstance(payload, Message) and not fields.get("hidden"):
            parts = [self._with_tool_name(part) for part in _message_parts(payload, fields, entry, blobs)]
            (self._early_results if fields.get("ahead") else self._parts).extend(parts)
        elif isinstance(payload, Note) and fields.keys() & {"part", "id"}:
            self._parts.extend([fields["part"]] if "part" in fields else [])
        else:
            return False
        self.last = entry
        return True

    def _with_tool_name(self, part: Dumped) -> Dumped:
        """Set the tool name of a result from outside the framework."""
        if part.get("tool_name") != "":
            return part
        return part | {"tool_name": self._tool_names.get(part["tool_call_id"], "")}

    @property
    def is_results_only(self) -> bool:
        return bool(self._early_results) and not self._parts

    def parts(self) -> list[Dumped]:
        """Return early results first, in call order instead of arrival order."""
        results = sorted(self._early_results, key=lambda part: self._order.get(part["tool_call_id"], 0))
        return [*results, *self._parts]


def entry_id_of(entry: Entry) -> str:
    """Return the framework's id of a message that ends with this entry."""
    entry_id = _fields(entry.payload).get("id")
    return entry_id if isinstance(entry_id, str) else f"{entry.branch}:{entry.seq}"


def record_of(entry: Entry) -> Dumped | None:
    """Return the conversation's record as the framework wrote the record at this entry."""
    record = _fields(entry.payload).get("record")
    return record if isinstance(record, dict) else None


def _path_message(message: Dumped, entry: Entry) -> PathMessage:
    return PathMessage(message, entry.seq, entry.branch, entry_id_of(entry))


def _request(parts: list[Dumped], edits: list[Any], prompt: str | None) -> Dumped:
    request: Dumped = apply_edits({**TEMPLATES["request"], "parts": parts, "instructions": prompt}, edits)
    return request


def _response(message: Message, fields: Dumped, entry: Entry, blobs: Blobs) -> Dumped:
    proofs = entry.evidence.parts if entry.evidence is not None else {}
    message = with_reasoning(message, blobs) or message
    layouts = fields.get("parts") or [{}] * len(message.parts)
    parts: list[Dumped] = []
    index = 0
    for layout in layouts:
        if "part" in layout:
            dumped = layout["part"]
        else:
            dumped = _render_response_part(message.parts[index], layout.get("form"), blobs)
            dumped = apply_edits(dumped, layout.get("edits", []))
        proof = proofs.get(str(index), {})
        parts.append(dumped | {key: proof[key] for key in EVIDENCE_FIELDS if key in proof})
        index += layout.get("count", 1)
    base = _without_parts(TEMPLATES["response"]) | {"model_name": entry.model, "finish_reason": entry.finish}
    base["timestamp"] = _timestamp(entry)
    if not fields:  # not written by the framework: its finish reasons are others
        base["finish_reason"] = None
    return {"parts": parts, **apply_edits(base, fields.get("edits", []))}


def _message_parts(message: Message, fields: Dumped, entry: Entry, blobs: Blobs) -> list[Dumped]:
    if "part" in fields:
        return [fields["part"]]
    form, edits = fields.get("form"), fields.get("part_edits", [])
    groups = [(part,) for part in message.parts] if message.role == "tool" else [message.parts]
    rendered = [_render_request_part(message.role, parts, form, blobs) for parts in groups]
    return [apply_edits(part | {"timestamp": _timestamp(entry)}, edits) for part in rendered]


def _timestamp(entry: Entry) -> str:
    """Return the time of an entry, for messages from outside the framework."""
    return datetime.fromtimestamp(entry.at / 1e6, UTC).isoformat().replace("+00:00", "Z")


# -- parsing parts ---------------------------------------------------------------------------


def _parse_request_part(part: Dumped) -> tuple[Role | None, tuple[Part, ...], str | None]:
    """Parse a request part: return role, parts, and any unusual form. Without a role the part is stored as it is."""
    content = part.get("content")
    match part.get("part_kind"):
        case "system-prompt" if isinstance(content, str):
            return "system", (Text(content),), None
        case "user-prompt" if isinstance(content, str):
            return "user", (Text(content),), None
        case "user-prompt" if isinstance(content, list):
            pieces = tuple(_parse_content(piece) for piece in content)
            return "user", pieces, "list" if len(pieces) == 1 and isinstance(pieces[0], Text) else None
        case "retry-feedback":
            text = content if isinstance(content, str) else to_json(content, "feedback").decode()
            return "user", (Text(text),), "retry-feedback"
        case "tool-return":
            is_text = isinstance(content, str)
            text = content if isinstance(content, str) else to_json(content, "tool return").decode()
            outcome = str(part.get("outcome"))
            result = ToolResult(
                str(part.get("tool_call_id")),
                (Text(text),),
                error=outcome in ("failed", "retried", "denied", "interrupted"),
                outcome="unknown" if text == UNKNOWN_OUTCOME else _OUTCOMES.get(outcome, "done"),
            )
            return "tool", (result,), None if is_text else "json"
    return None, (), None


def _parse_content(piece: object) -> Text | Attachment:
    if isinstance(piece, str):
        return Text(piece)
    assert isinstance(piece, dict)
    match piece:
        case {"kind": "binary", "data": str() as data, "media_type": str() as mime}:
            return Attachment(urlsafe_b64decode(data), mime)
        case {"kind": kind, "url": url}:
            return Text(f"[{kind}: {url}]")
        case {"kind": "text-content", "content": str() as text}:
            return Text(text)
    return Text(f"[{piece.get('kind')}]")


def _parse_response_part(part: Dumped) -> tuple[Part, str | None]:
    match part.get("part_kind"):
        case "text":
            return Text(part["content"]), None
        case "thinking":
            return Reasoning(part["content"]), None
        case "tool-call":
            args = part.get("args")
            call = parse_tool_call(part["tool_call_id"], part["tool_name"], {} if args is None else args)
            return call, _call_form(call, args)
        case "file" if part["content"].get("data"):
            content = part["content"]
            return Attachment(urlsafe_b64decode(content["data"]), content["media_type"]), None
    return Reasoning(f"[{part.get('part_kind')}]"), "unknown"


def _call_form(call: ToolCall, args: object) -> str | None:
    if isinstance(args, dict):
        return "object"
    return "spaced" if is_spaced(call, args) else None


# -- rendering parts ---------------------------------------------------------------------------


def _render_request_part(role: str, parts: Sequence[Part], form: str | None, blobs: Blobs) -> Dumped:
    match list(parts):
        case [ToolResult() as result]:
            text = result.text
            content = from_json(text) if form == "json" else text
            return TEMPLATES["tool-return"] | {"tool_call_id": result.call_id, "content": content}
        case [Text(text=text)] if form == "retry-feedback":
            return {"part_kind": form, "content": text}
        case [Text(text=text)] if form != "list":
            kind = "system-prompt" if role == "system" else "user-prompt"
            return TEMPLATES[kind] | {"content": text}
    return TEMPLATES["user-prompt"] | {"content": [_content(part, blobs) for part in parts]}


def _content(part: Part, blobs: Blobs) -> str | Dumped:
    if not isinstance(part, Media | Attachment):
        return part.text if isinstance(part, Text) else ""
    data = part.data if isinstance(part, Attachment) else blobs(part.hash) or b""
    encoded = urlsafe_b64encode(data).decode()
    return {"data": encoded, "media_type": part.mime, "vendor_metadata": None, "kind": "binary"}


def _render_response_part(part: Part, form: str | None, blobs: Blobs) -> Dumped:
    match part:
        case Text(text=text):
            return TEMPLATES["text"] | {"content": text}
        case Reasoning(text=text) if form != "unknown":
            return TEMPLATES["thinking"] | {"content": text}
        case ToolCall(arguments=arguments):
            args = arguments if form == "object" else arguments_text(part, spaced=form == "spaced")
            return TEMPLATES["tool-call"] | {"tool_name": part.name, "tool_call_id": part.id, "args": args}
        case Media() | Attachment():
            fields = {"id": None, "provider_name": None, "provider_details": None, "part_kind": "file"}
            return {"content": _content(part, blobs), **fields}
    return {}
