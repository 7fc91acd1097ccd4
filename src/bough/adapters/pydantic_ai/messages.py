"""Pydantic AI's messages, as its own type adapter dumps them, as entries of a path, and back again.

A response is one answer. A request is an entry for each of its parts: system prompts, inputs, results; what it says
beside them stands with the last. Each part is rendered from the entry it became, and what the rendering lacks is kept
as edits; what only its issuer may have back (ids, signatures) is evidence. Instructions are the prompt in force, so
they are not repeated with every request. Pure: knows dumped messages, no session and no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...core.drafts import Draft
from ...core.entries import Entry, Evidence, Note, Payload, Settings
from ...core.messages import Message, Text, ToolResult
from ...wire import Blobs
from ..json_diff import apply_edits, diff
from .parts import TEMPLATES, Dumped, no_blob, read_request, read_said, render_request, render_said

NAME = "pydantic_ai"
SEALED = ("id", "signature", "provider_details")
NO_RESULT = "[no result was handed in before the conversation went on]"


class Placed(Struct, frozen=True):
    """A message of a path."""

    message: Dumped
    seq: int
    """Of its last entry."""
    branch: int
    name: str
    """The id of the framework's entry; of a message the framework did not store, one by its place."""
    is_closed: bool = True
    """False: nobody said what the request is beside its parts, nor that it ends here."""
    has_landed: bool = False
    """It is of results alone that were written as they came."""


# -- messages as drafts ----------------------------------------------------------------------------


class Plan:
    """Messages on their way to a path, where `prompt` is in force, calls are open and results have landed already."""

    def __init__(
        self, waiting: Iterable[str] = (), prompt: str | None = None, last: Placed | None = None
    ) -> None:
        self.drafts: list[Draft] = []
        self.answers: list[tuple[int, Dumped]] = []
        """The responses, by the index of their drafts."""
        self._waiting = list(waiting)
        self._prompt = prompt
        self._unclosed = None if last is None or last.is_closed else last

    def add(self, message: Dumped, name: str) -> None:
        landed = self._landed(message)
        if message["kind"] == "response":
            self._answer(message, name)
            return
        first, parts = len(self.drafts), landed
        known = {part["tool_call_id"] for part in landed}
        for part in message["parts"]:
            if part.get("part_kind") != "tool-return" or part["tool_call_id"] not in known:
                self._request(part)
                parts.append(part)
        self._instruct(first, message.get("instructions"))
        made = diff(_requested(parts, [], self._prompt), message)
        self._close_message(first, {"rest": made, "id": name} if made else {"id": name})

    def _landed(self, message: Dumped) -> list[Dumped]:
        """The results at the end of the path, if it is this request that brings them; else they are one of their own."""
        last, self._unclosed = self._unclosed, None
        if last is None:
            return []
        found: list[Dumped] = list(last.message["parts"])
        returned = {p["tool_call_id"] for p in message["parts"] if p.get("part_kind") == "tool-return"}
        if last.has_landed and {part["tool_call_id"] for part in found} <= returned:
            return found
        self.drafts.append(Draft(Note({NAME: {"id": last.name}})))
        return []

    def land(self, part: Dumped) -> None:
        """A result at the moment it came; what its request says of it beside comes later."""
        self._request(part)
        self._close_message(0, {"landed": True})

    def _instruct(self, first: int, said: str | None) -> None:
        """Instructions that are new hold from here on: before the request, or behind the results it brings."""
        if said is None or said == self._prompt or self._waiting:
            return
        has_results = any(
            isinstance(d.payload, Message) and d.payload.role == "tool" for d in self.drafts[first:]
        )
        self.drafts.insert(len(self.drafts) if has_results else first, Draft(Settings(prompt=said)))
        self._prompt = said

    def mark(self, record: Dumped) -> None:
        """Hang a record of the conversation on the last entry, or on one of its own."""
        self._close_message(len(self.drafts) - 1 if self.drafts else 0, {"record": record})

    def _close_message(self, first: int, kept: Dumped) -> None:
        """What is said of the message beside its parts stands with the last of its entries."""
        last = self.drafts[-1].payload if len(self.drafts) > first else None
        if isinstance(last, Message):
            details = {**(last.details or {}), NAME: {**_kept(last.details), **kept}}
            self.drafts[-1] = replace(self.drafts[-1], payload=replace(last, details=details))
        elif isinstance(last, Note):
            self.drafts[-1] = Draft(Note({NAME: {**_kept(last.data), **kept}}))
        else:
            self.drafts.append(Draft(Note({NAME: kept})))

    def _request(self, part: Dumped) -> None:
        role, content, form = read_request(part)
        call_id = str(part.get("tool_call_id"))
        if role is None or (role == "tool" and call_id not in self._waiting):
            self.drafts.append(Draft(Note({NAME: {"part": part}})))
            return
        if role == "tool":
            self._waiting.remove(call_id)
        else:
            self._close_batch()
        made = diff(render_request(role, content, form, no_blob), part)
        self.drafts.append(Draft(Message(role, content, details=_details(form=form, edits=made))))

    def _answer(self, message: Dumped, name: str) -> None:
        self._close_batch()
        issuer = message.get("provider_name")
        pieces = [read_said(part) for part in message["parts"]]
        sealed = [
            {key: part[key] for key in SEALED if part.get(key) is not None} for part in message["parts"]
        ]
        rests = [
            _rest(form, diff(render_said(part, form, no_blob), {**dumped, **dict.fromkeys(seal)}))
            for (part, form), dumped, seal in zip(pieces, message["parts"], sealed, strict=True)
        ]
        model, finish = message.get("model_name"), message.get("finish_reason")
        base = _bare(TEMPLATES["response"]) | {"model_name": model, "finish_reason": finish}
        details = _details(parts=rests if any(rests) else None, rest=diff(base, _bare(message)), id=name)
        proofs = {str(index): seal for index, seal in enumerate(sealed) if seal}
        answer = Message("assistant", tuple(part for part, _ in pieces), details=details)
        evidence = Evidence(issuer or NAME, proofs) if proofs else None
        self.answers.append((len(self.drafts), message))
        self.drafts.append(Draft(answer, model, finish, evidence))
        self._waiting = [call.id for call in answer.calls]

    def _close_batch(self) -> None:
        """Only results may follow open calls: what was left open gets one, which is not the framework's."""
        for call_id in self._waiting:
            result = ToolResult(call_id, (Text(NO_RESULT),), error=True, outcome="interrupted")
            self.drafts.append(Draft(Message("tool", (result,), details={NAME: {"made": True}})))
        self._waiting = []


def _bare(message: Mapping[str, Any]) -> Dumped:
    return {key: value for key, value in message.items() if key != "parts"}


def _rest(form: str | None, made: list[Any]) -> Dumped:
    return {**({"form": form} if form else {}), **({"edits": made} if made else {})}


def _details(**kept: Any) -> Dumped:
    return {NAME: {key: value for key, value in kept.items() if value}}


def _kept(details: Mapping[str, Any] | None) -> Dumped:
    found = (details or {}).get(NAME)
    return found if isinstance(found, dict) else {}


# -- entries as messages ---------------------------------------------------------------------------


def placed(path: Sequence[Entry], blobs: Blobs, prompt: str | None = None) -> Iterator[Placed]:
    """The messages of a path, or of the last part of one, before which `prompt` was in force.

    Where such a part begins is not known to be the beginning of a message: the first that ends in it is left out.
    """
    asked, is_whole = Asked(), not path or path[0].seq == 1
    for entry in path:
        payload, kept = entry.payload, _kept(_held(entry.payload))
        if isinstance(payload, Settings):
            prompt = prompt if payload.prompt is None else payload.prompt
        elif isinstance(payload, Message) and payload.role == "assistant":
            if asked.last is not None and is_whole:  # nobody said what the request was beside its parts
                yield replace(_placed(_requested(asked.taken(), [], prompt), asked.last), is_closed=False)
            if is_whole:
                yield _placed(_responded(payload, kept, entry, blobs), entry)
            asked, is_whole = Asked(payload), True
        elif asked.takes(entry, kept, blobs) and "id" in kept:
            if is_whole:
                yield _placed(_requested(asked.taken(), kept.get("rest", []), prompt), entry)
            asked, is_whole = Asked(), True
    if asked.last is not None and is_whole:
        found = _placed(_requested(asked.taken(), [], prompt), asked.last)
        yield replace(found, is_closed=False, has_landed=asked.has_landed)


class Asked:
    """A request on its way out: the parts of the entries since the last message."""

    def __init__(self, answer: Message | None = None) -> None:
        self.last: Entry | None = None
        calls = answer.calls if answer is not None else ()
        self._order = {call.id: n for n, call in enumerate(calls)}
        self._tools = {call.id: call.name for call in calls}
        self._landed: list[Dumped] = []
        self._parts: list[Dumped] = []

    def takes(self, entry: Entry, kept: Dumped, blobs: Blobs) -> bool:
        """False: it is nothing to the framework."""
        payload = entry.payload
        if isinstance(payload, Message) and not kept.get("made"):
            parts = [self._named(part) for part in _parts_of(payload, kept, entry, blobs)]
            (self._landed if kept.get("landed") else self._parts).extend(parts)
        elif isinstance(payload, Note) and kept.keys() & {"part", "id"}:
            self._parts.extend([kept["part"]] if "part" in kept else [])
        else:
            return False
        self.last = entry
        return True

    def _named(self, part: Dumped) -> Dumped:
        """A result of another's making does not say which tool it is of."""
        if part.get("tool_name") != "":
            return part
        return part | {"tool_name": self._tools.get(part["tool_call_id"], "")}

    @property
    def has_landed(self) -> bool:
        return bool(self._landed) and not self._parts

    def taken(self) -> list[Dumped]:
        """Results that landed first, in the order of their calls and not of time."""
        landed = sorted(self._landed, key=lambda part: self._order.get(part["tool_call_id"], 0))
        return [*landed, *self._parts]


def name_of(entry: Entry) -> str:
    """What the framework calls a message that ends with this entry."""
    found = _kept(_held(entry.payload)).get("id")
    return found if isinstance(found, str) else f"{entry.branch}:{entry.seq}"


def record_of(entry: Entry) -> Dumped | None:
    """What the framework had written of the conversation when this entry was its last."""
    found = _kept(_held(entry.payload)).get("record")
    return found if isinstance(found, dict) else None


def _held(payload: Payload) -> Dumped | None:
    if isinstance(payload, Note):
        return payload.data
    return payload.details if isinstance(payload, Message) else None


def _placed(message: Dumped, entry: Entry) -> Placed:
    return Placed(message, entry.seq, entry.branch, name_of(entry))


def _requested(parts: list[Dumped], rest: list[Any], prompt: str | None) -> Dumped:
    base = {**TEMPLATES["request"], "parts": parts, "instructions": prompt}
    asked: Dumped = apply_edits(base, rest)
    return asked


def _responded(message: Message, kept: Dumped, entry: Entry, blobs: Blobs) -> Dumped:
    proofs = entry.evidence.parts if entry.evidence is not None else {}
    rests = kept.get("parts") or [{}] * len(message.parts)
    parts = []
    for index, (part, rest) in enumerate(zip(message.parts, rests, strict=True)):
        dumped = apply_edits(render_said(part, rest.get("form"), blobs), rest.get("edits", []))
        proof = proofs.get(str(index), {})
        parts.append(dumped | {key: proof[key] for key in SEALED if key in proof})
    base = _bare(TEMPLATES["response"]) | {"model_name": entry.model, "finish_reason": entry.finish}
    base["timestamp"] = _time(entry)
    if not kept:  # of another's making: its words for a finish are not the framework's
        base["finish_reason"] = None
    return {"parts": parts, **apply_edits(base, kept.get("rest", []))}


def _parts_of(message: Message, kept: Dumped, entry: Entry, blobs: Blobs) -> list[Dumped]:
    form, made = kept.get("form"), kept.get("edits", [])
    split = [(part,) for part in message.parts] if message.role == "tool" else [message.parts]
    rendered = [render_request(message.role, one, form, blobs) | {"timestamp": _time(entry)} for one in split]
    return [apply_edits(one, made) for one in rendered]


def _time(entry: Entry) -> str:
    """Of what the framework did not make: when it was appended."""
    return datetime.fromtimestamp(entry.at / 1e6, UTC).isoformat().replace("+00:00", "Z")
