"""Entries of a path as the ADK events they came from, equal to what was handed in.

Messages are rendered as `google.genai` writes a content, in JSON. Bytes are named by their digest and filled in at the
end, so that a content can be rendered and compared without reading one. What others wrote on the path, `bough chat` or a
loop of one's own, is told as events too, for the next run is to know of it. Pure: blobs are asked for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from google.adk.events.event import Event
from google.genai.types import Content
from msgspec import DecodeError

from ...core.codec import from_json
from ...core.entries import Entry, Note
from ...core.media import digest
from ...core.messages import Attachment, Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ...core.state import state_updates
from ...wire import Blobs
from ...wire.gemini import request as gemini
from ..json_edits import edited

Json = dict[str, Any]

NAME = "adk"
"""Under which key of `details`, and of a note's data, lies what is ours."""
USER = "user"
USUAL = str.maketrans("-_", "+/")
"""pydantic writes bytes in the other alphabet of base64."""
MISSING = "[media whose bytes are not in this store]"

BLOB = "bough-blob:"
"""How the log names the bytes of a data: URL that stood in JSON."""
_BLOB = re.compile(BLOB + r"([0-9a-f]{64});([\w.+-]+/[\w.+-]+);\d+")


# -- events ----------------------------------------------------------------------------------------


def record_of(entry: Entry) -> Json | None:
    """What this adapter wrote beside an entry; None if another wrote the entry."""
    payload = entry.payload
    beside = (
        payload.details
        if isinstance(payload, Message)
        else payload.data
        if isinstance(payload, Note)
        else None
    )
    found = (beside or {}).get(NAME)
    return found if isinstance(found, dict) else None


def events(entries: Iterable[Entry], blobs: Blobs) -> Iterator[Event]:
    """The events of a path, or of the end of one, oldest first."""
    others: list[Entry] = []
    for entry in entries:
        record = record_of(entry)
        if record is None:
            others.append(entry)
        elif "id" in record:
            own = record.get("n", 1) - 1
            if own <= len(others):  # else a part of it lies before what was read
                yield from _foreign(others[: len(others) - own], blobs)
                yield _event(record, [*others[len(others) - own :], entry], blobs)
            others = []
    yield from _foreign(others, blobs)


def told_at(entries: Sequence[Entry]) -> float | None:
    """When the latest event of these says it happened."""
    for entry in reversed(entries):
        record = record_of(entry)
        if record is None and entry.message is not None:
            return entry.at / 1e6
        if record is not None and "timestamp" in record:
            return float(record["timestamp"])
    return None


def _event(record: Json, members: Sequence[Entry], blobs: Blobs) -> Event:
    fields: Json = {key: value for key, value in record.items() if key not in ("n", "names", "edits")}
    patches = [patch for entry in members for patch in state_updates(entry.payload)]
    if patches and "state_delta" not in fields.get("actions", {}):
        fields["actions"] = {**fields.get("actions", {}), "state_delta": patches[0]}
    messages = [entry.message for entry in members if entry.message is not None]
    if messages and "content" not in record:
        fields["content"] = _content(record, messages)
    for entry in members:
        fields |= {} if entry.model is None else {"model_version": entry.model}
        fields |= {} if entry.finish is None else {"finish_reason": entry.finish}
    if BLOB in str(fields):  # one look instead of a walk: few hold any
        fields = inlined(fields, blobs)
    if messages and "content" not in record:
        fields["content"] = filled(fields["content"], blobs)
    signatures = _signatures(members)
    if signatures:
        fields["content"] = _signed(fields["content"], signatures)
    return Event.model_validate(fields)


def _content(record: Json, messages: Sequence[Message]) -> Json:
    made = rendered(messages, record.get("names", ()))
    try:
        return cast(Json, edited(made, record.get("edits", [])))
    except (
        LookupError,
        TypeError,
    ):  # a secret was hidden where the difference lay: what is left is told as it is
        return made


def _signatures(members: Sequence[Entry]) -> dict[str, str]:
    for entry in members:
        if entry.evidence is not None and entry.evidence.issuer == gemini.NAME:
            parts = entry.evidence.parts
            signed = {index: proof["signature"] for index, proof in parts.items() if "signature" in proof}
            return parts.get(NAME) or signed
    return {}


def _signed(content: Json, signatures: Json) -> Json:
    parts = [dict(part) for part in content["parts"]]
    for index, part in enumerate(parts):
        if str(index) in signatures:
            part["thought_signature"] = base64.b64decode(signatures[str(index)])
    return {**content, "parts": parts}


def _foreign(entries: Sequence[Entry], blobs: Blobs) -> Iterator[Event]:
    """What another wrote, with ids that stay the same. What is no message, and system prompts, are not ADK's."""
    names: dict[str, str] = {}
    for entry in entries:
        message = entry.message
        if message is None or message.role == "system":
            continue
        names |= {call.id: call.name for call in message.calls}
        called: list[Any] = [names.get(result.call_id, "unknown") for result in message.results]
        content = filled(rendered([message], called), blobs)
        yield Event(
            id=entry.entry_id.hex(),
            invocation_id=f"bough-{entry.turn}",
            author=USER if message.role == "user" else "bough",
            timestamp=entry.at / 1e6,
            model_version=entry.model,
            content=Content.model_validate(content),
        )


# -- contents --------------------------------------------------------------------------------------


def by_digests(content: Json) -> Json:
    """A content with a digest in place of all bytes."""
    return (
        {**content, "parts": [by_digest(part) for part in content["parts"]]}
        if content.get("parts")
        else content
    )


def digests(content: Json) -> set[str]:
    """Those that stand in a content in place of bytes."""
    parts = content.get("parts") or ()
    inner = [one for part in parts for one in (part.get("function_response") or {}).get("parts") or ()]
    found = {(part.get("inline_data") or {}).get("data") for part in (*parts, *inner)}
    return {name for name in found if name}


def by_digest(part: Json) -> Json:
    """The part with a digest in place of its bytes, and of those of the function response it may be."""
    if (part.get("inline_data") or {}).get("data"):
        data = base64.urlsafe_b64decode(part["inline_data"]["data"])
        return {**part, "inline_data": {**part["inline_data"], "data": digest(data)}}
    if (part.get("function_response") or {}).get("parts"):
        response = part["function_response"]
        return {
            **part,
            "function_response": {**response, "parts": [by_digest(one) for one in response["parts"]]},
        }
    return part


def rendered(messages: Sequence[Message], names: Sequence[str | None]) -> Json:
    """The content these messages most likely were. `names` are those of the tools that returned."""
    called = iter(names)
    parts = [_rendered(part, called) for message in messages for part in message.parts]
    return {"parts": parts, "role": "model" if messages[-1].role == "assistant" else "user"}


def _rendered(part: Part, names: Iterator[str | None]) -> Json:
    match part:
        case Text(text=text):
            return {"text": text}
        case Reasoning(text=text):
            return {"text": text, "thought": True}
        case ToolCall():
            return {"function_call": {"id": part.id, "args": part.arguments, "name": part.name}}
        case ToolResult():
            name = next(names, None)
            return {"function_response": {"id": part.call_id, "name": name, "response": _response(part)}}
        case Media(name=name):
            named = {} if name is None else {"display_name": name}
            return {"inline_data": {"data": part.hash, "mime_type": part.mime} | named}
        case Attachment():
            raise TypeError("bytes that were not lifted")


def _response(result: ToolResult) -> Json:
    """What the wire format made text of: a dict as it is, anything else under its usual key."""
    text = "".join(piece.text for piece in result.content if isinstance(piece, Text))
    try:
        value = from_json(text)
    except (DecodeError, UnicodeEncodeError, RecursionError):
        value = text
    if isinstance(value, dict) and not result.error:
        return value
    return {"error" if result.error else "output": value}


def filled(content: Json, blobs: Blobs) -> Json:
    """A content with its bytes, for pydantic to read."""
    return (
        {**content, "parts": [_filled(part, blobs) for part in content["parts"]]}
        if content.get("parts")
        else content
    )


def _filled(part: Json, blobs: Blobs) -> Json:
    if "inline_data" in part and part["inline_data"].get("data"):
        data = blobs(part["inline_data"]["data"])
        return (
            {"text": MISSING}
            if data is None
            else {**part, "inline_data": {**part["inline_data"], "data": data}}
        )
    if "function_response" in part and part["function_response"].get("parts"):
        response = part["function_response"]
        inner = [_filled(one, blobs) for one in response["parts"]]
        return {
            **part,
            "function_response": {**response, "parts": [one for one in inner if "text" not in one]},
        }
    return dict(part)


def inlined(value: Any, blobs: Blobs) -> Any:
    """JSON with its data: URLs again, which the log keeps as blobs."""
    if isinstance(value, dict):
        return {key: inlined(item, blobs) for key, item in value.items()}
    if isinstance(value, list):
        return [inlined(item, blobs) for item in value]
    if isinstance(value, str) and BLOB in value:
        return _BLOB.sub(lambda found: _url(found, blobs), value)
    return value


def _url(found: re.Match[str], blobs: Blobs) -> str:
    data = blobs(found[1])
    return found[0] if data is None else f"data:{found[2]};base64,{base64.b64encode(data).decode()}"
