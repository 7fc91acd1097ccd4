"""The lines of a bundle, one JSON object each; docs/format.md describes them in prose.

Bodies are spliced in as they were stored, so that the bytes that were hashed come back unchanged. Does not know files.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from oakleaf.core.drafts import NewEntry
from oakleaf.core.facts import NO_FIELDS, StoredFact
from oakleaf.core.messages import Role
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Call
from oakleaf.stores.base import QueuedInput, SessionDetail, SessionRow, StoredEntry

_to_row = converter(SessionRow)

MAJOR, MINOR = 1, 0
FORMAT = f"{MAJOR}.{MINOR}"
NOTHING = Raw(b"")
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding untrusted JSON may raise, also for endless numbers and endless nesting."""


class Line(Struct, frozen=True, tag_field="line", omit_defaults=True, forbid_unknown_fields=True):
    """A newer minor version may add kinds of entries and facts. Unknown fields are refused, so that none is lost."""


class Header(Line, frozen=True, tag="oakleaf"):
    format: str
    session: str
    """The session behind the bundle, always first."""
    children: bool = False
    blobs: bool = False
    redacted: bool = False


class SessionLine(Line, frozen=True, tag="session"):
    row: dict[str, Any]
    spec: Raw = NOTHING
    policy: Raw = NOTHING
    workspace: Raw = NOTHING
    state: Raw = NOTHING


class BranchLine(Line, frozen=True, tag="branch"):
    number: int
    tail: int
    parent: int | None = None
    parent_seq: int = 0
    inherited: bool = False
    """Whether the session is inherited: a fork starts from the session."""


class EntryLine(Line, frozen=True, tag="entry"):
    branch: int
    seq: int
    id: str
    turn: int
    step: int
    at: int
    body: Raw
    kind: str = "message"
    internal: bool = False
    model: str | None = None
    finish: str | None = None


class CallLine(Line, frozen=True, tag="call"):
    call: Call
    inherited: bool = False


class FactLine(Line, frozen=True, tag="fact"):
    number: int
    kind: str
    at: int
    key: str | None = None
    leaf: Leaf | None = None
    first: int | None = None
    body: Raw = NOTHING


class QueuedLine(Line, frozen=True, tag="queued"):
    number: int
    at: int
    body: Raw


class BlobLine(Line, frozen=True, tag="blob"):
    hash: str
    mime: str
    size: int


class PieceLine(Line, frozen=True, tag="piece"):
    data: bytes


class Counts(Struct, forbid_unknown_fields=True):
    sessions: int = 0
    entries: int = 0
    calls: int = 0
    facts: int = 0
    blobs: int = 0


class EndLine(Line, frozen=True, tag="end"):
    counts: Counts
    sha256: str
    """Over all bytes before the line."""


AnyLine = (
    Header
    | SessionLine
    | BranchLine
    | EntryLine
    | CallLine
    | FactLine
    | QueuedLine
    | BlobLine
    | PieceLine
    | EndLine
)
decode_line = msgspec.json.Decoder(AnyLine).decode
encode_line = msgspec.json.Encoder().encode

# Where a session is stored, who runs it and where it came from is not part of it.
_OMITTED = ("space", "fence", "holder", "lease_until", "imported_facts")
_EXPORTED = frozenset(SessionRow.__struct_fields__) - frozenset(_OMITTED)


def session_line(row: SessionRow, detail: SessionDetail) -> SessionLine:
    columns = {name: value for name, value in asdict(row).items() if name in _EXPORTED and value is not None}
    details = {name: Raw(text) for name, text in asdict(detail).items() if text is not None}
    return SessionLine(columns, **details)


def session_of(line: SessionLine) -> tuple[SessionRow, SessionDetail]:
    unknown = sorted(line.row.keys() - _EXPORTED)
    if unknown:
        raise msgspec.ValidationError(
            f"the row has columns this Oakleaf does not know ({', '.join(unknown)})"
        )
    row = _to_row({**line.row, "space": ""})
    details = (line.spec, line.policy, line.workspace, line.state)
    return row, SessionDetail(*(bytes(text) or None for text in details))


def branch_line(branch: Branch) -> BranchLine:
    inherited = branch.session_id is None
    return BranchLine(branch.branch, branch.tail, branch.parent, branch.parent_seq, inherited)


def branch_of(line: BranchLine, session_id: str) -> Branch:
    return Branch(
        line.number, None if line.inherited else session_id, line.parent, line.parent_seq, line.tail
    )


def entry_line(stored: StoredEntry) -> EntryLine:
    e = stored.entry
    return EntryLine(
        stored.branch,
        e.seq,
        e.entry_id.hex(),
        e.turn,
        e.step,
        e.at,
        Raw(e.body),
        e.kind,
        e.internal,
        e.model,
        e.finish,
    )


class _Role(Struct, frozen=True):
    """The role of a message; the integrity check decodes the rest."""

    role: Role


_role_decoder = msgspec.json.Decoder(_Role)


def entry_of(line: EntryLine) -> StoredEntry:
    body = bytes(line.body)
    role = _role_decoder.decode(body).role if line.kind == "message" else None
    entry = NewEntry(
        line.seq,
        bytes.fromhex(line.id),
        line.turn,
        line.step,
        line.kind,
        role,
        line.internal,
        line.at,
        body,
        line.model,
        line.finish,
    )
    return StoredEntry(line.branch, entry)


def fact_line(fact: StoredFact) -> FactLine:
    body = NOTHING if fact.body == NO_FIELDS else Raw(fact.body)
    return FactLine(fact.number, fact.kind, fact.at, fact.key, fact.leaf, fact.first, body)


def fact_of(line: FactLine) -> StoredFact:
    body = bytes(line.body) or NO_FIELDS
    return StoredFact(line.number, line.kind, line.key, line.at, body, line.leaf, line.first)


def queued_line(queued: QueuedInput) -> QueuedLine:
    return QueuedLine(queued.number, queued.at, Raw(queued.body))


def queued_of(line: QueuedLine) -> QueuedInput:
    return QueuedInput(line.number, bytes(line.body), line.at)
