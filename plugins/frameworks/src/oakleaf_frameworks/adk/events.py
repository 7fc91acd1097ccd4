"""Google ADK's events as entries of a path, and entries as events equal to the ones that were appended.

The content becomes messages by Gemini's wire format, which is ADK's own. The rest of the event is stored in
`details["adk"]` of the last message (or in the data of a note), without what the entry already holds. If rendering the
messages does not give back the original content, the difference is stored too. Signatures are stored as evidence, never
in details. Bytes are named by their digest and filled in last, so contents are rendered and compared without reading
any. Pure: knows no session, store or thread; blobs are read through a function.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

from google.adk.events.event import Event
from google.genai.types import Content
from msgspec import DecodeError, Struct
from msgspec.structs import replace

from oakleaf.core.codec import from_json, to_json
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Entry, Evidence, Note, Payload
from oakleaf.core.media import BLOB_REFERENCE, digest, extract_blobs, restore_json
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    Part,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.core.state import State, state_updates
from oakleaf.core.turns import Cursor, advance
from oakleaf.errors import InvalidOperation, UnrecognizedReply
from oakleaf.wire import PROVIDERS, Blobs
from oakleaf.wire.gemini import NAME as GEMINI
from oakleaf.wire.gemini import parse as gemini
from oakleaf.wire.parsing import parse_base64
from oakleaf_frameworks.json_diff import apply_edits, diff
from oakleaf_frameworks.shared import MISSING_MEDIA, UNKNOWN_RESULT, stored_record
from oakleaf_importers.formats.adk import gemini_evidence

Json = dict[str, Any]

KEY = "adk"
"""The key in `details`, and in a note's data, under which this adapter stores its record of an event."""
USER = "user"
REQUEST_PREFIX = "adk_request_"
"""Prefix of the calls by which ADK itself asks a person for an approval or a credential."""
LATE_RESULT = "The result of {}, a tool call that was already answered or is recorded in a note:"
STANDARD_BASE64 = str.maketrans("-_", "+/")
"""pydantic writes bytes in the URL-safe alphabet."""

_PART_KINDS = ("text", "function_call", "function_response", "inline_data", "file_data")


def record_of(entry: Entry) -> Json | None:
    """Return the adapter's record in an entry; None for a foreign entry."""
    return stored_record(entry.payload, KEY)


# -- an event as entries ---------------------------------------------------------------------------


class EventHistory(Protocol):
    """The path before an event, read only when needed."""

    def call(self, call_id: str) -> ToolCall | None:
        """Return the latest call with this id."""

    def calling_event(self) -> Json:
        """Return the event whose calls are open."""

    def noted_events(self) -> Sequence[Json]:
        """Return the events stored as notes since then."""


class EventDrafts(Struct, frozen=True):
    """The drafts of one event's entries."""

    drafts: tuple[Draft, ...]
    answer_index: int | None = None
    """Which draft is a model's answer, if any."""


class ParsedContent(Struct, frozen=True):
    """The content of an event as messages."""

    content: Json | None = None
    """The original, without signatures."""
    messages: tuple[Message, ...] = ()
    proofs: dict[str, Json] = {}
    """What Gemini wants back with the parts of the only message."""
    signatures: dict[str, str] = {}
    """By the index of the part in the content."""

    @property
    def tool_names(self) -> list[str | None]:
        """The names of the tools with results in the message."""
        parts = (self.content or {}).get("parts") or ()
        return [part["function_response"].get("name") for part in parts if "function_response" in part]

    def evidence(self, messages: Sequence[Message]) -> Evidence | None:
        """Return proofs by message part; signatures without a part, by index in the content."""
        proofs = self.proofs if messages == self.messages else {}
        by_part = {index: proof["signature"] for index, proof in proofs.items() if "signature" in proof}
        by_content = {} if by_part == self.signatures else {KEY: dict(self.signatures)}
        return Evidence(GEMINI, {**proofs, **by_content}) if proofs or by_content else None


def event_drafts(event: Event, cursor: Cursor, patch: State, history: EventHistory) -> EventDrafts:
    """Return the entries an event becomes after `cursor`. `patch` is its change of the session's own state.

    Events that became notes because calls were open are shown as messages as soon as those calls are closed.
    """
    record = event_json(event)
    parsed = parse_content(record.pop("content", None), is_users=event.author == USER)
    messages = _allowed_messages(event, parsed, cursor, history)
    record |= _content_record(parsed, messages)
    if patch:  # the entry holds it, unless the event's delta differs from it
        actions = record.pop("actions", {})
        delta = actions.pop("state_delta", {})
        actions |= {} if delta == patch else {"state_delta": delta}
        record |= {"actions": actions} if actions else {}
    closing = [] if not messages or _fits(cursor, messages) else _closing_results(event, cursor, history)
    before = [*closing, *_shown_notes(event, _advance(cursor, closing), history)] if closing else []
    answer = model = finish = None
    if len(messages) == 1 and messages[0].role == "assistant":
        answer = len(before)
        model, finish = record.pop("model_version", None), record.pop("finish_reason", None)
    first, *others = _payloads(messages, record, patch)
    if cursor.open_calls and not closing:
        others += _shown_notes(event, _advance(cursor, [first, *others]), history)
    own = Draft(first, model, finish, parsed.evidence(messages))
    return EventDrafts((*map(Draft, before), own, *map(Draft, others)), answer)


def event_json(event: Event) -> Json:
    """Return the event as JSON, without default values."""
    record: Json = event.model_dump(mode="json", exclude_defaults=True)
    actions = {key: value for key, value in record.pop("actions", {}).items() if value is not None}
    record = {key: value for key, value in record.items() if value is not None}
    return record | {"actions": actions} if actions else record


def _payloads(messages: Sequence[Message], record: Json, patch: State) -> list[Payload]:
    """Return the payloads of the event: the last one holds the record, and a tool's result its state update."""
    *before, last = messages or (None,)
    if patch and last is not None and last.role == "tool":
        *others, result = last.results
        last = replace(last, parts=(*others, replace(result, details={"state": patch})))
    if last is None or (patch and last.role != "tool"):
        record = {**record, "entry_count": len(messages) + 1} if messages else record
        return [*messages, Note({KEY: record}, patch or None)]
    record = {**record, "entry_count": len(messages)} if before else record
    return [*before, replace(last, details={KEY: record})]


def _content_record(parsed: ParsedContent, messages: Sequence[Message]) -> Json:
    """Return the details, beside the messages, for restoring the content."""
    if parsed.content is None:
        return {}
    lifted = [extract_blobs(message) for message in messages]
    content = with_digests(parsed.content)
    if not messages or not _digests(content) <= {name for _, blobs, _ in lifted for name in blobs}:
        return {"content": parsed.content}  # neither a note nor text can refer to blobs: store all of it
    names = {"tool_names": parsed.tool_names} if parsed.tool_names else {}
    edits = diff(render_content([message for message, *_ in lifted], parsed.tool_names), content)
    return {**names, "edits": edits} if edits else names


# -- parsing a content -----------------------------------------------------------------------------


def parse_content(content: Json | None, *, is_users: bool) -> ParsedContent:
    """Parse a content into messages. Parts that Gemini's wire format cannot express become JSON text."""
    parts: list[Json] = [dict(part) for part in (content or {}).get("parts") or ()]
    signatures: dict[str, str] = {}
    for index, part in enumerate(parts):
        if "thought_signature" in part:
            part["thought_signature"] = part["thought_signature"].translate(STANDARD_BASE64)
            signatures[str(index)] = part["thought_signature"]
    if content is None or not parts:
        return ParsedContent(content)
    messages, proofs = _parse_parts(parts, is_users=is_users)
    if len(messages) == 1 and len(messages[0].parts) == len(parts):
        # The wire format does not send thoughts; ADK does.
        for index, parsed_part in enumerate(messages[0].parts):
            if isinstance(parsed_part, Reasoning) and str(index) in signatures:
                proofs[str(index)] = {"signature": signatures[str(index)]}
    bare = [{key: part[key] for key in part if key != "thought_signature"} for part in parts]
    return ParsedContent({**content, "parts": bare}, messages, proofs, signatures)


def _parse_parts(parts: Sequence[Json], *, is_users: bool) -> tuple[tuple[Message, ...], dict[str, Json]]:
    readable = [_readable_part(part) for part in parts]
    try:
        if is_users or any("function_response" in part for part in readable):
            return _parse_input(readable, is_users=is_users), {}
        answer = gemini.parse_reply({"role": "model", "parts": readable})
    except UnrecognizedReply:
        return (Message("user" if is_users else "assistant", tuple(_plain_part(part) for part in parts)),), {}
    evidence = None if answer.evidence is None else gemini_evidence(answer.evidence)
    return (answer.message,), {} if evidence is None else evidence.parts


def _parse_input(parts: Sequence[Json], *, is_users: bool) -> tuple[Message, ...]:
    """Parse the input of a model: the results of calls in one message, then the user's text."""
    messages = PROVIDERS[GEMINI].parse_messages([{"role": USER, "parts": parts}])
    results = tuple(result for message in messages for result in message.results)
    inputs = tuple(message for message in messages if message.role == USER)
    if results and inputs and not is_users:
        raise UnrecognizedReply("an agent's text beside the results of its calls")
    return (Message("tool", results), *inputs) if results else inputs


def _readable_part(part: Json) -> Json:
    """Return the part if readable in Gemini's wire format, else the part as text."""
    response = part.get("function_response")
    if response is not None:
        return {"function_response": {"response": {}, **response}}
    blob = part.get("inline_data")
    if blob is not None:
        is_readable = bool(blob.get("data") and blob.get("mime_type"))
    else:
        is_readable = any(part.get(kind) is not None for kind in _PART_KINDS)
    return part if is_readable else {"text": _part_text(part)}


def _plain_part(part: Json) -> Text | Attachment:
    blob = part.get("inline_data")
    if blob is not None and blob.get("data") and blob.get("mime_type"):
        return parse_base64(
            blob["data"].translate(STANDARD_BASE64), blob["mime_type"], blob.get("display_name")
        )
    return Text(part["text"] if part.get("text") else _part_text(part))


def _part_text(part: Json) -> str:
    bare = {key: value for key, value in part.items() if key not in ("thought", "thought_signature")}
    return to_json(_part_with_digest(bare), "part of a content").decode()


# -- what the order of the log allows --------------------------------------------------------------


def _allowed_messages(
    event: Event, parsed: ParsedContent, cursor: Cursor, history: EventHistory
) -> tuple[Message, ...]:
    """Return the messages allowed after `cursor`; none if the event must become a note.

    A user's input is always accepted, and so is the agent whose calls are open: it continued without their results.
    What another agent says meanwhile becomes a note. A result that comes again, or whose call is in such a note, is
    stored together with its call.
    """
    messages = parsed.messages
    if _fits(cursor, messages):
        return messages
    if messages[0].role == "tool":
        return _late_results(parsed) if event.author == USER else _with_calls(parsed, cursor, history)
    return messages if event.author == USER or _continues(event, history.calling_event()) else ()


def _late_results(parsed: ParsedContent) -> tuple[Message, ...]:
    """Return results from outside, whose calls are closed, as a user's message."""
    parts: list[Part] = []
    for result, name in zip(parsed.messages[0].results, parsed.tool_names, strict=True):
        parts += [Text(LATE_RESULT.format(name)), *result.content]
    rest = [part for message in parsed.messages[1:] for part in message.parts]
    return (Message("user", (*parts, *rest)),)


def _with_calls(parsed: ParsedContent, cursor: Cursor, history: EventHistory) -> tuple[Message, ...]:
    """Return results after a message with the repeated calls."""
    if cursor.open_calls:
        return ()
    pairs = zip(parsed.messages[0].results, parsed.tool_names, strict=True)
    calls = [history.call(result.call_id) or ToolCall(result.call_id, name or "") for result, name in pairs]
    return (Message("assistant", tuple(calls)), *parsed.messages)


def _continues(event: Event, calling_event: Json) -> bool:
    """Whether the same agent speaks again. What ADK asks a person before a tool runs comes before the result."""
    is_same = (event.author, event.branch) == (calling_event.get("author"), calling_event.get("branch"))
    return is_same and not any(
        (call.name or "").startswith(REQUEST_PREFIX) for call in event.get_function_calls()
    )


def _fits(cursor: Cursor, messages: Sequence[Message]) -> bool:
    try:
        _advance(cursor, messages)
    except InvalidOperation:
        return False
    return True


def _advance(cursor: Cursor, payloads: Sequence[Payload]) -> Cursor:
    for payload in payloads:
        cursor = advance(cursor, payload).cursor
    return cursor


def _closing_results(event: Event, cursor: Cursor, history: EventHistory) -> list[Payload]:
    """Return an explicit result for every open call.

    A call that a person leaves behind was running when its process ended, unless it runs long by intention. ADK would not
    show such a call to the model, which would make it again: so its result is an event that ADK sees.
    """
    calling = history.calling_event()
    long_running = calling.get("long_running_tool_ids") or ()
    lost_calls: list[ToolCall] = []
    waiting: list[ToolCall] = []
    for call in cursor.open_calls:
        is_lost = event.author == USER and "id" in calling and call.call.id not in long_running
        (lost_calls if is_lost else waiting).append(call.call)
    payloads: list[Payload] = []
    if lost_calls:
        fields = ("author", "invocation_id", "branch")
        record: Json = {key: value for key, value in calling.items() if key in fields}
        names = [call.name for call in lost_calls]
        record |= {"id": closing_event_id(event), "timestamp": event.timestamp, "tool_names": names}
        payloads.append(_unknown_results(lost_calls, record))
    return [*payloads, _unknown_results(waiting, {"closes": True})] if waiting else payloads


def _unknown_results(calls: Sequence[ToolCall], record: Json) -> Message:
    results = (ToolResult(call.id, (Text(UNKNOWN_RESULT),), True, "unknown") for call in calls)
    return Message("tool", tuple(results), details={KEY: record})


def change_key(event: Event) -> str:
    """Return the key under which an event is appended. Two different events may have one id: a host that fixes its ids,
    as tests do, would otherwise lose the second as a repetition of the first."""
    return f"{event.id}/{digest(to_json(event_json(event), 'event'))[:16]}"


def share_key(event: Event) -> str:
    """Return the key of an event's changes of shared state, from the fields that redaction leaves equal."""
    fields = event.author, event.invocation_id, event.timestamp
    return f"{event.id}/{digest(to_json(fields, 'event'))[:16]}"


def closing_event_id(event: Event) -> str:
    """Return the id of the event with the results of calls lost before `event`."""
    return f"lost-before-{event.id}"


def _shown_notes(event: Event, cursor: Cursor, history: EventHistory) -> list[Payload]:
    """Return noted events as messages. One with calls is shown with its results, when they come."""
    messages: list[Payload] = []
    for record in history.noted_events() if not cursor.open_calls else ():
        parsed = parse_content(record["content"], is_users=False)
        if parsed.messages and not any(message.calls for message in parsed.messages):
            details = {KEY: {"shows": record["id"], "timestamp": event.timestamp}}
            is_result = parsed.messages[0].role == "tool"
            visible = _with_calls(parsed, cursor, history) if is_result else parsed.messages
            messages += [replace(message, details=details) for message in visible]
    return messages


def noted_events(entries: Iterable[Entry]) -> list[Json]:
    """Return the events among the entries that are notes with a content."""
    records = [record_of(entry) for entry in entries if isinstance(entry.payload, Note)]
    return [record for record in records if record is not None and record.get("content")]


def find_call(entries: Iterable[Entry], call_id: str) -> ToolCall | None:
    """Return the first call with the id, in a message or in a noted event."""
    for entry in entries:
        for call in entry.message.calls if entry.message is not None else ():
            if call.id == call_id:
                return call
        for part in ((record_of(entry) or {}).get("content") or {}).get("parts") or ():
            noted = part.get("function_call") or {}
            if noted.get("id") == call_id:
                return ToolCall(call_id, noted.get("name") or "", noted.get("args") or {})
    return None


# -- entries as events -----------------------------------------------------------------------------


def events(entries: Iterable[Entry], blobs: Blobs) -> Iterator[Event]:
    """Yield the events of a path or of the end of a path, oldest first.

    Messages that others wrote on the path (`oakleaf chat`, a loop of your own) are events too, so the next run knows them.
    """
    pending: list[Entry] = []
    for entry in entries:
        record = record_of(entry)
        if record is None:
            pending.append(entry)
        elif "id" in record:
            own = record.get("entry_count", 1) - 1
            if own <= len(pending):  # else it begins before the first entry that was read
                yield from _foreign_events(pending[: len(pending) - own], blobs)
                yield _event(record, [*pending[len(pending) - own :], entry], blobs)
            pending = []
    yield from _foreign_events(pending, blobs)


def last_timestamp(entries: Sequence[Entry]) -> float | None:
    """Return the time of the latest event among these entries, in seconds."""
    for entry in reversed(entries):
        record = record_of(entry)
        if record is None and entry.message is not None:
            return entry.at / 1e6
        if record is not None and "timestamp" in record:
            return float(record["timestamp"])
    return None


def _event(record: Json, entries: Sequence[Entry], blobs: Blobs) -> Event:
    own_keys = ("entry_count", "tool_names", "edits")
    fields: Json = {key: value for key, value in record.items() if key not in own_keys}
    patches = [patch for entry in entries for patch in state_updates(entry.payload)]
    if patches and "state_delta" not in fields.get("actions", {}):
        fields["actions"] = {**fields.get("actions", {}), "state_delta": patches[0]}
    messages = [entry.message for entry in entries if entry.message is not None]
    if messages and "content" not in record:
        fields["content"] = _restored_content(record, messages)
    for entry in entries:
        fields |= {} if entry.model is None else {"model_version": entry.model}
        fields |= {} if entry.finish is None else {"finish_reason": entry.finish}
    if BLOB_REFERENCE in str(fields):  # one search instead of a walk: few events hold any
        fields = restore_json(fields, blobs)
    if messages and "content" not in record:
        fields["content"] = _content_with_bytes(fields["content"], blobs)
    signatures = _signatures(entries)
    if signatures:
        fields["content"] = _signed_content(fields["content"], signatures)
    return Event.model_validate(fields)


def _restored_content(record: Json, messages: Sequence[Message]) -> Json:
    content = render_content(messages, record.get("tool_names", ()))
    try:
        return cast(Json, apply_edits(content, record.get("edits", [])))
    except (LookupError, TypeError):  # a secret was redacted where the difference was: show what is left
        return content


def _signatures(entries: Sequence[Entry]) -> dict[str, str]:
    for entry in entries:
        if entry.evidence is not None and entry.evidence.issuer == GEMINI:
            parts = entry.evidence.parts
            by_part = {index: proof["signature"] for index, proof in parts.items() if "signature" in proof}
            return parts.get(KEY) or by_part
    return {}


def _signed_content(content: Json, signatures: Json) -> Json:
    parts = [dict(part) for part in content["parts"]]
    for index, part in enumerate(parts):
        if str(index) in signatures:
            part["thought_signature"] = base64.b64decode(signatures[str(index)])
    return {**content, "parts": parts}


def _foreign_events(entries: Sequence[Entry], blobs: Blobs) -> Iterator[Event]:
    """Yield foreign messages as events with stable ids. System prompts and other entries have no event."""
    names: dict[str, str] = {}
    for entry in entries:
        message = entry.message
        if message is None or message.role == "system":
            continue
        names |= {call.id: call.name for call in message.calls}
        tool_names: list[Any] = [names.get(result.call_id, "unknown") for result in message.results]
        content = _content_with_bytes(render_content([message], tool_names), blobs)
        yield Event(
            id=entry.entry_id.hex(),
            invocation_id=f"oakleaf-{entry.turn}",
            author=USER if message.role == "user" else "oakleaf",
            timestamp=entry.at / 1e6,
            model_version=entry.model,
            content=Content.model_validate(content),
        )


# -- rendering a content ---------------------------------------------------------------------------


def render_content(messages: Sequence[Message], tool_names: Sequence[str | None]) -> Json:
    """Return the most likely content of the messages, as google.genai writes JSON."""
    names = iter(tool_names)
    parts = [_render_part(part, names) for message in messages for part in message.parts]
    return {"parts": parts, "role": "model" if messages[-1].role == "assistant" else "user"}


def _render_part(part: Part, tool_names: Iterator[str | None]) -> Json:
    match part:
        case Text(text=text):
            return {"text": text}
        case Reasoning(text=text):
            return {"text": text, "thought": True}
        case ProviderBlock(stub=stub):
            return {"text": stub}
        case ToolCall():
            return {"function_call": {"id": part.id, "args": part.arguments, "name": part.name}}
        case ToolResult():
            name = next(tool_names, None)
            return {"function_response": {"id": part.call_id, "name": name, "response": _response(part)}}
        case Media(name=name):
            display_name = {} if name is None else {"display_name": name}
            return {"inline_data": {"data": part.hash, "mime_type": part.mime} | display_name}
        case Attachment():
            raise TypeError("attachment bytes must be lifted into blobs before rendering")


def _response(result: ToolResult) -> Json:
    """Return the value behind a response's text: a dict unchanged, anything else under the usual key."""
    text = result.text
    try:
        value = from_json(text)
    except (DecodeError, UnicodeEncodeError, RecursionError):
        value = text
    if isinstance(value, dict) and not result.error:
        return value
    return {"error" if result.error else "output": value}


def with_digests(content: Json) -> Json:
    """Return a content with digests in place of bytes."""
    if not content.get("parts"):
        return content
    return {**content, "parts": [_part_with_digest(part) for part in content["parts"]]}


def _part_with_digest(part: Json) -> Json:
    """Replace the bytes of a part, and of the parts of a function response, by their digests."""
    if (part.get("inline_data") or {}).get("data"):
        data = base64.urlsafe_b64decode(part["inline_data"]["data"])
        return {**part, "inline_data": {**part["inline_data"], "data": digest(data)}}
    if (part.get("function_response") or {}).get("parts"):
        response = part["function_response"]
        parts = [_part_with_digest(inner) for inner in response["parts"]]
        return {**part, "function_response": {**response, "parts": parts}}
    return part


def _digests(content: Json) -> set[str]:
    """Return the digests in a content."""
    parts = content.get("parts") or ()
    inner = [piece for part in parts for piece in (part.get("function_response") or {}).get("parts") or ()]
    digests = {(part.get("inline_data") or {}).get("data") for part in (*parts, *inner)}
    return {name for name in digests if name}


def _content_with_bytes(content: Json, blobs: Blobs) -> Json:
    """Return a content with its bytes, for pydantic to read."""
    if not content.get("parts"):
        return content
    return {**content, "parts": [_part_with_bytes(part, blobs) for part in content["parts"]]}


def _part_with_bytes(part: Json, blobs: Blobs) -> Json:
    if "inline_data" in part and part["inline_data"].get("data"):
        data = blobs(part["inline_data"]["data"])
        if data is None:
            return {"text": MISSING_MEDIA}
        return {**part, "inline_data": {**part["inline_data"], "data": data}}
    if "function_response" in part and part["function_response"].get("parts"):
        response = part["function_response"]
        inner = [_part_with_bytes(piece, blobs) for piece in response["parts"]]
        parts = [piece for piece in inner if "text" not in piece]
        return {**part, "function_response": {**response, "parts": parts}}
    return dict(part)
