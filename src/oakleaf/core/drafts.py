"""Drafts: what to append, turned into entries and their bytes.

`build_entries` checks each draft against the cursor, extracts its media into blobs, encodes its body once and chains
it to the previous entry. Pure; the log passes the result to a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence

from msgspec import Struct

from oakleaf.core.codec import (
    chain_id,
    check_text,
    decode,
    decode_evidence,
    encode,
    encode_evidence,
    round_trip,
)
from oakleaf.core.entries import PARTIAL, Entry, Evidence, Note, Payload, Settings, is_internal, kind_of
from oakleaf.core.evidence import move_evidence, redact_evidence
from oakleaf.core.facts import TurnEnded, TurnStarted, TurnStatus
from oakleaf.core.media import (
    MEDIA_MARK,
    digests_in,
    extract_blobs,
    extract_from_note,
    may_hold_bytes,
)
from oakleaf.core.messages import Attachment, Message, assistant
from oakleaf.core.redact import Redactor
from oakleaf.core.turns import ENDED_BY_TOOL, Cursor, advance

# The status of a turn by the finish of its closing answer, where the model did not write that answer.
_STATUS_BY_FINISH: dict[str, TurnStatus] = {
    "cancelled": "cancelled",
    PARTIAL: "interrupted",
    "error": "failed",
}


class Blob(Struct, frozen=True, gc=False):
    hash: str
    mime: str
    data: bytes


class Draft(Struct, frozen=True, gc=False):
    """A payload to append, and facts about the origin."""

    payload: Payload
    model: str | None = None
    finish: str | None = None
    evidence: Evidence | None = None
    blobs: tuple[Blob, ...] = ()
    """The payload's blobs, unless stored already."""
    at: int | None = None
    """The time of the payload, if not the time of the append: several entries of a past session are appended at once."""


class NewEntry(Struct, frozen=True, gc=False):
    """An entry ready for a store; the body is canonical bytes."""

    seq: int
    entry_id: bytes
    turn: int
    step: int
    kind: str
    role: str | None
    internal: bool
    at: int
    body: bytes
    model: str | None = None
    finish: str | None = None
    evidence: bytes | None = None
    media: tuple[str, ...] = ()
    """Digests of the entry's blobs: media, tool definitions."""
    references: tuple[str, ...] = ()
    """Digests of blobs named in text already, as in a repeated result; tied to the entry if stored."""

    def to_entry(self, branch: int) -> Entry:
        """Decode the entry."""
        return Entry(
            branch,
            self.seq,
            self.entry_id,
            self.turn,
            self.step,
            decode(self.kind, self.body),
            self.internal,
            self.at,
            self.model,
            self.finish,
            decode_evidence(self.evidence),
        )


class EntryBatch(Struct, frozen=True, gc=False):
    """Entries ready for a store: with blobs, facts and the cursor after the entries."""

    entries: tuple[NewEntry, ...]
    payloads: tuple[Payload, ...]
    blobs: tuple[Blob, ...]
    cursor: Cursor
    facts: tuple[TurnStarted | TurnEnded, ...]


CLOSING = Draft(assistant("(ended by a tool)"), finish=ENDED_BY_TOOL)
"""The public closing answer of a turn ended by a tool, so that no client waits for an answer."""


def build_entries(
    cursor: Cursor, drafts: Sequence[Draft], at: int, *, seed: bool = False, redactor: Redactor | None = None
) -> EntryBatch:
    """Chain drafts after a cursor; raise if a draft may not follow or cannot be stored unchanged."""
    entries: list[NewEntry] = []
    payloads: list[Payload] = []
    blobs: dict[str, Blob] = {}
    facts: list[TurnStarted | TurnEnded] = []
    waiting = deque(drafts)
    while waiting or (entries and cursor.ends_turn and cursor.is_ended_by_tool):
        if cursor.ends_turn and cursor.is_ended_by_tool and (not waiting or _is_input(waiting[0])):
            draft = CLOSING
        else:
            draft = waiting.popleft()
        finish = draft.finish
        stored = _canonical(draft, blobs, redactor)
        payload, body, evidence = stored.payload, stored.body, stored.evidence
        position = advance(cursor, payload, seed=seed, finish=finish)
        turn, step, after = position.turn, position.step, position.cursor
        kind, role = ("message", payload.role) if isinstance(payload, Message) else (kind_of(payload), None)
        entry_id = chain_id(cursor.entry_id, kind, turn, step, body)
        entries.append(
            NewEntry(
                after.seq,
                entry_id,
                turn,
                step,
                kind,
                role,
                is_internal(payload, seed=seed, finish=finish),
                at if draft.at is None else draft.at,
                body,
                None if draft.model is None else _word(draft.model, "model", redactor),
                None if finish is None else _word(finish, "finish", redactor),
                None if evidence is None else encode_evidence(evidence),
                stored.media,
                stored.references,
            )
        )
        payloads.append(payload)
        if turn == after.seq:
            facts.append(TurnStarted(turn))
        if cursor.turn and not after.turn:
            facts.append(TurnEnded(cursor.turn, _STATUS_BY_FINISH.get(finish or "", "completed")))
        cursor = after.with_id(entry_id)
    return EntryBatch(tuple(entries), tuple(payloads), tuple(blobs.values()), cursor, tuple(facts))


def _is_input(draft: Draft) -> bool:
    return isinstance(draft.payload, Message) and draft.payload.role == "user"


def _word(text: str, field: str, redactor: Redactor | None) -> str | None:
    check_text(text, field)
    return text if redactor is None else redactor.redact_word(text)


class _Canonical(Struct, frozen=True, gc=False):
    """A payload in the readers' form, the bytes, the evidence still valid, and the digests of blobs."""

    payload: Payload
    body: bytes
    evidence: Evidence | None
    media: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


def _canonical(draft: Draft, blobs: dict[str, Blob], redactor: Redactor | None) -> _Canonical:
    payload, evidence = draft.payload, draft.evidence
    body = encode(payload)
    if redactor is not None and evidence is not None:
        evidence = redact_evidence(evidence, redactor)
    if redactor is not None and (isinstance(payload, Settings) or redactor.may_contain_secret(body)):
        original = round_trip(payload, body)
        payload = redactor.redact_payload(original)
        if isinstance(payload, Settings):
            for name, field in (
                (payload.model, "model"),
                *((tool, "tool name") for tool in payload.tools or ()),
            ):
                redactor.check_name(name, field)
        body = encode(payload)
        evidence = move_evidence(evidence, original, payload)
    own = tuple(blob.hash for blob in draft.blobs)
    blobs |= {blob.hash: blob for blob in draft.blobs}
    if isinstance(payload, Settings):
        tools = payload.tool_definitions
        own = () if tools is None else (tools.hash,)
        return _Canonical(round_trip(payload, body), body, evidence, own, _references(body, own))
    has_bytes = may_hold_bytes(body)
    attachments: dict[str, Attachment] = {}
    if has_bytes and isinstance(payload, Message):
        extracted, attachments, origins = extract_blobs(payload)
        evidence = move_evidence(evidence, payload, extracted, origins)
        payload, body = extracted, encode(extracted)
    elif has_bytes and isinstance(payload, Note):
        payload, attachments = extract_from_note(payload)
        body = encode(payload)
    for digest, attachment in attachments.items():
        blobs[digest] = Blob(digest, check_text(attachment.mime, "mime type"), attachment.data)
    stored = round_trip(payload, body)
    handles = []
    if isinstance(stored, Message) and body.find(MEDIA_MARK) >= 0:
        handles = [media.hash for media in stored.media]
    media = tuple(dict.fromkeys([*handles, *attachments, *own]))
    return _Canonical(stored, body, evidence, media, _references(body, media))


def _references(body: bytes, media: Container[str]) -> tuple[str, ...]:
    return tuple([digest for digest in digests_in(body) if digest not in media])
