"""An event of Google's ADK as entries of a path.

The content becomes messages by the wire format of Gemini, which is ADK's own; the rest of the event lies beside the last
of them as `details["adk"]`, without what the entry tells already. Where a rendering of the messages is not the content
that came in, the difference is kept too. Signatures are evidence and never lie in details. Pure: knows no session, no
store and no thread. The way back is `adk_reading`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from google.adk.events.event import Event
from msgspec import Struct
from msgspec.structs import replace

from ...core.codec import to_json
from ...core.drafts import Draft
from ...core.entries import Entry, Evidence, Note, Payload
from ...core.media import extract_blobs
from ...core.messages import Attachment, Message, Part, Reasoning, Text, ToolCall, ToolResult
from ...core.state import State
from ...core.turns import Cursor, advance
from ...errors import InvalidOperation, UnrecognizedReply
from ...wire.gemini import request as gemini
from ...wire.shapes import parse_base64
from ..json_edits import edits
from .read import NAME, USER, USUAL, Json, by_digest, by_digests, digests, record_of, rendered

ASKS = "adk_request_"
"""How the calls begin by which ADK itself asks a person: for an approval, for a credential."""
OWN_ID = "adk-"
"""How the ids begin that ADK gives to calls its model gave none. It takes them off again before a model sees them."""
CUT_OFF = "[no result was recorded before the conversation went on: this call may or may not have happened]"
LATE = "The result of {}, a tool call that was answered before or stands in a note:"


class Before(Protocol):
    """What lies before an event, read only if it is asked for."""

    def call(self, call_id: str) -> ToolCall | None:
        """The latest call of an id."""

    def asker(self) -> Json:
        """The event whose calls are open."""

    def noted(self) -> Sequence[Json]:
        """The events that became notes since."""


_READ = ("text", "function_call", "function_response", "inline_data", "file_data")


class Placed(Struct, frozen=True):
    """An event on its way into the log."""

    drafts: tuple[Draft, ...]
    answer: int | None = None
    """Which of them is a model's answer."""


class Said(Struct, frozen=True):
    """The content of an event, read."""

    content: Json | None = None
    """As it came, without signatures."""
    messages: tuple[Message, ...] = ()
    proofs: dict[str, Json] = {}
    """What Gemini wants back with the parts of the only message."""
    signatures: dict[str, str] = {}
    """By the index of the part in the content."""

    @property
    def names(self) -> list[str | None]:
        """The tools it brings results of."""
        parts = (self.content or {}).get("parts") or ()
        return [part["function_response"].get("name") for part in parts if "function_response" in part]

    def evidence(self, messages: Sequence[Message]) -> Evidence | None:
        """What is kept for its issuer; where the parts do not tell whose a signature is, by the content's own count."""
        proofs = self.proofs if messages == self.messages else {}
        signed = {index: proof["signature"] for index, proof in proofs.items() if "signature" in proof}
        counted = {} if signed == self.signatures else {NAME: dict(self.signatures)}
        return Evidence(gemini.NAME, {**proofs, **counted}) if proofs or counted else None


def place(event: Event, cursor: Cursor, patch: State, before: Before) -> Placed:
    """The entries an event becomes behind `cursor`. `patch` is what it does to the session's own state.

    What became a note because calls waited is shown as messages as soon as these are closed.
    """
    record = dumped(event)
    said = read(record.pop("content", None), is_users=event.author == USER)
    messages = _standing(event, said, cursor, before)
    record |= _beside(said, messages)
    if patch:  # the entry tells it, unless it is something else
        actions = record.pop("actions", {})
        delta = actions.pop("state_delta", {})
        actions |= {} if delta == patch else {"state_delta": delta}
        record |= {"actions": actions} if actions else {}
    closing = _closing(cursor, messages)
    ahead = [*closing, *_shown(event, _behind(cursor, closing), before)] if closing else []
    answer = len(ahead) if len(messages) == 1 and messages[0].role == "assistant" else None
    about = _told_by_entry(record) if answer is not None else {}
    first, *others = _recorded(messages, record, patch)
    others += (
        _shown(event, _behind(cursor, [first, *others]), before) if cursor.open_calls and not closing else []
    )
    own = Draft(first, **about, evidence=said.evidence(messages))
    return Placed((*map(Draft, ahead), own, *map(Draft, others)), answer)


def _told_by_entry(record: Json) -> Json:
    return {"model": record.pop("model_version", None), "finish": record.pop("finish_reason", None)}


def dumped(event: Event) -> Json:
    """The event as JSON, without what it has by default."""
    record: Json = event.model_dump(mode="json", exclude_defaults=True)
    actions = {key: value for key, value in record.pop("actions", {}).items() if value is not None}
    record = {key: value for key, value in record.items() if value is not None}
    return record | {"actions": actions} if actions else record


# -- reading a content -----------------------------------------------------------------------------


def read(content: Json | None, *, is_users: bool) -> Said:
    """A content in our words. What Gemini's wire format has no words for is told as JSON."""
    parts: list[Json] = [dict(part) for part in (content or {}).get("parts") or ()]
    signatures: dict[str, str] = {}
    for index, part in enumerate(parts):
        if "thought_signature" in part:
            part["thought_signature"] = part["thought_signature"].translate(USUAL)
            signatures[str(index)] = part["thought_signature"]
    if content is None or not parts:
        return Said(content)
    messages, proofs = _read_parts(parts, is_users=is_users)
    if len(messages) == 1 and len(messages[0].parts) == len(parts):
        for index, ours in enumerate(messages[0].parts):  # the wire format does not send a thought: ADK does
            if isinstance(ours, Reasoning) and str(index) in signatures:
                proofs[str(index)] = {"signature": signatures[str(index)]}
    bare = [{key: part[key] for key in part if key != "thought_signature"} for part in parts]
    return Said({**content, "parts": bare}, messages, proofs, signatures)


def _read_parts(parts: Sequence[Json], *, is_users: bool) -> tuple[tuple[Message, ...], dict[str, Json]]:
    readable = [_readable(part) for part in parts]
    try:
        if is_users or any("function_response" in part for part in readable):
            return _read_given(readable, is_users=is_users), {}
        answer = gemini.parse_reply({"role": "model", "parts": readable})
    except UnrecognizedReply:
        return (Message("user" if is_users else "assistant", tuple(_told(part) for part in parts)),), {}
    proofs = answer.evidence.parts if answer.evidence is not None else {}
    kept = {index: _without_own_id(proof) for index, proof in proofs.items()}
    return (answer.message,), {index: proof for index, proof in kept.items() if proof}


def _read_given(parts: Sequence[Json], *, is_users: bool) -> tuple[Message, ...]:
    """What is given to a model: the results of its calls in one message, then what a person says."""
    found = gemini.parse_messages([{"role": USER, "parts": parts}])
    results = tuple(result for message in found for result in message.results)
    words = tuple(message for message in found if message.role == USER)
    if results and words and not is_users:
        raise UnrecognizedReply("an agent's words beside the results of its calls")
    return (Message("tool", results), *words) if results else words


def _readable(part: Json) -> Json:
    """The part if Gemini's wire format reads it, else as text."""
    response = part.get("function_response")
    if response is not None:
        return {"function_response": {"response": {}, **response}}
    blob = part.get("inline_data")
    is_read = (
        bool(blob.get("data") and blob.get("mime_type"))
        if blob is not None
        else any(part.get(kind) is not None for kind in _READ)
    )
    return part if is_read else {"text": _words(part)}


def _told(part: Json) -> Text | Attachment:
    blob = part.get("inline_data")
    if blob is not None and blob.get("data") and blob.get("mime_type"):
        return parse_base64(blob["data"].translate(USUAL), blob["mime_type"], blob.get("display_name"))
    return Text(part["text"] if part.get("text") else _words(part))


def _words(part: Json) -> str:
    bare = by_digest(
        {key: value for key, value in part.items() if key not in ("thought", "thought_signature")}
    )
    return to_json(bare, "part of a content").decode()


def _without_own_id(proof: Json) -> Json:
    """An id of ADK's making is not Gemini's, and is not sent to it."""
    return {key: value for key, value in proof.items() if key != "id" or not value.startswith(OWN_ID)}


# -- where it may stand ----------------------------------------------------------------------------


def _standing(event: Event, said: Said, cursor: Cursor, before: Before) -> tuple[Message, ...]:
    """The messages that may stand behind `cursor`; none if the event is to be a note there.

    A person is heard at once, and so is the agent that asked for what is open: it has gone on without. What another
    says meanwhile is kept as a note. A result that comes again, or whose call is such a note, brings its call along.
    """
    messages = said.messages
    if _fits(cursor, messages):
        return messages
    if messages[0].role == "tool":
        return _late(said) if event.author == USER else _asked_again(said, cursor, before)
    return messages if event.author == USER or _goes_on(event, before.asker()) else ()


def _late(said: Said) -> tuple[Message, ...]:
    """Results from outside whose calls are closed, as what a person says."""
    told: list[Part] = []
    for result, name in zip(said.messages[0].results, said.names, strict=True):
        told += [Text(LATE.format(name)), *result.content]
    words = [part for message in said.messages[1:] for part in message.parts]
    return (Message("user", (*told, *words)),)


def _asked_again(said: Said, cursor: Cursor, before: Before) -> tuple[Message, ...]:
    """Results with their calls."""
    if cursor.open_calls:
        return ()
    pairs = zip(said.messages[0].results, said.names, strict=True)
    calls = [before.call(result.call_id) or ToolCall(result.call_id, name or "") for result, name in pairs]
    return (Message("assistant", tuple(calls)), *said.messages)


def _goes_on(event: Event, asker: Json) -> bool:
    """Whether the same agent speaks again; what it asks of a person before a tool may run comes before the result."""
    is_same = (event.author, event.branch) == (asker.get("author"), asker.get("branch"))
    return is_same and not any((call.name or "").startswith(ASKS) for call in event.get_function_calls())


def _fits(cursor: Cursor, messages: Sequence[Message]) -> bool:
    try:
        for message in messages:
            cursor = advance(cursor, message).cursor
    except InvalidOperation:
        return False
    return True


def _closing(cursor: Cursor, messages: Sequence[Message]) -> list[Payload]:
    """An explicit result for every open call, where something else is to follow."""
    if not messages or _fits(cursor, messages):
        return []
    results = [ToolResult(call.call.id, (Text(CUT_OFF),), True, "unknown") for call in cursor.open_calls]
    return [Message("tool", tuple(results), details={NAME: {"closes": True}})]


def _behind(cursor: Cursor, payloads: Sequence[Payload]) -> Cursor:
    for payload in payloads:
        cursor = advance(cursor, payload).cursor
    return cursor


def _shown(event: Event, cursor: Cursor, before: Before) -> list[Payload]:
    """Events that are notes, as messages. One that asks for something is shown with its results, when they come."""
    found: list[Payload] = []
    for record in before.noted() if not cursor.open_calls else ():
        said = read(record["content"], is_users=False)
        if said.messages and not any(message.calls for message in said.messages):
            details = {NAME: {"shows": record["id"], "timestamp": event.timestamp}}
            is_result = said.messages[0].role == "tool"
            messages = _asked_again(said, cursor, before) if is_result else said.messages
            found += [replace(message, details=details) for message in messages]
    return found


def notes(entries: Iterable[Entry]) -> list[Json]:
    """The events among these that are notes and have something to say."""
    records = [record_of(entry) for entry in entries if isinstance(entry.payload, Note)]
    return [record for record in records if record is not None and record.get("content")]


def recalled(entries: Iterable[Entry], call_id: str) -> ToolCall | None:
    """The latest call of that id, in a message or in an event that is a note."""
    for entry in entries:
        for call in entry.message.calls if entry.message is not None else ():
            if call.id == call_id:
                return call
        for part in ((record_of(entry) or {}).get("content") or {}).get("parts") or ():
            found = part.get("function_call") or {}
            if found.get("id") == call_id:
                return ToolCall(call_id, found.get("name") or "", found.get("args") or {})
    return None


# -- what lies beside ------------------------------------------------------------------------------


def _beside(said: Said, messages: Sequence[Message]) -> Json:
    """What has to be known to make the content again."""
    if said.content is None:
        return {}
    lifted = [extract_blobs(message) for message in messages]
    named = by_digests(said.content)
    if not messages or not digests(named) <= {name for _, found in lifted for name in found}:
        return {"content": said.content}  # a note, or words, name no blobs: then it is held whole
    names = {"names": said.names} if said.names else {}
    made = edits(rendered([message for message, _ in lifted], said.names), named)
    return {**names, "edits": made} if made else names


def _recorded(messages: Sequence[Message], record: Json, patch: State) -> list[Payload]:
    """The payloads of the event; the last one holds the record, and a tool's result its update of the state."""
    *before, last = messages or (None,)
    if patch and last is not None and last.role == "tool":
        *others, result = last.results
        last = replace(last, parts=(*others, replace(result, details={"state": patch})))
    if last is None or (patch and last.role != "tool"):
        record = {**record, "n": len(messages) + 1} if messages else record
        return [*messages, Note({NAME: record}, patch or None)]
    record = {**record, "n": len(messages)} if before else record
    return [*before, replace(last, details={NAME: record})]
