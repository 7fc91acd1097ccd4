"""The lines of a bundle: one JSON value each, and what they look like.

Knows how a dumped session is written as lines and read back; docs/format.md is the same in prose. Bodies are
spliced in as they were stored, so that the very bytes that were hashed come back. Does not know files.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from ...core.drafts import NewEntry
from ...core.messages import Role
from ...core.tree import Branch
from ...core.usage import Call
from ...stores.base import Fact, QueuedInput, SessionDetail, SessionRow, StoredEntry
from ...stores.message_limits import MessageLimit

MAJOR, MINOR = 1, 0
FORMAT = f"{MAJOR}.{MINOR}"
NOTHING = Raw(b"")
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading JSON of a stranger's making may raise: numbers without end and nesting without end too."""


class Line(Struct, frozen=True, tag_field="line", omit_defaults=True, forbid_unknown_fields=True):
    """What a newer minor may add are kinds of entry and of fact; a field it does not know it refuses to lose."""


class Header(Line, frozen=True, tag="bundle"):
    format: str
    session: str
    """The session it was made for: the first one in it."""
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
    n: int
    tail: int
    parent: int | None = None
    parent_seq: int = 0
    below: bool = False
    """Not its own: a fork stands on it."""


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
    below: bool = False


class GivenLine(Line, frozen=True, tag="given"):
    """Of a turn that it stands on: how many messages its calls were given at the most."""

    given: MessageLimit


class FactLine(Line, frozen=True, tag="fact"):
    n: int
    kind: str
    at: int
    key: str | None = None
    data: dict[str, Any] = {}


class QueuedLine(Line, frozen=True, tag="queued"):
    n: int
    at: int
    body: Raw


class BlobLine(Line, frozen=True, tag="blob"):
    hash: str
    mime: str
    size: int


class PieceLine(Line, frozen=True, tag="piece"):
    data: bytes


class Counts(Struct, frozen=True):
    sessions: int = 0
    entries: int = 0
    calls: int = 0
    facts: int = 0
    blobs: int = 0


class EndLine(Line, frozen=True, tag="end"):
    counts: Counts
    sha256: str
    """Over every byte before this line."""


AnyLine = (
    Header
    | SessionLine
    | BranchLine
    | EntryLine
    | CallLine
    | GivenLine
    | FactLine
    | QueuedLine
    | BlobLine
    | PieceLine
    | EndLine
)
decode_line = msgspec.json.Decoder(AnyLine).decode
encode_line = msgspec.json.Encoder().encode

# Where a session lies and who drives it now is not what it is.
_UNTOLD = ("space", "fence", "holder", "lease_until")
_TOLD = frozenset(SessionRow.__struct_fields__) - frozenset(_UNTOLD)


def session_line(row: SessionRow, detail: SessionDetail) -> SessionLine:
    told = {name: value for name, value in asdict(row).items() if name in _TOLD and value is not None}
    wide = {name: Raw(text) for name, text in asdict(detail).items() if text is not None}
    return SessionLine(told, **wide)


def session_of(line: SessionLine) -> tuple[SessionRow, SessionDetail]:
    unknown = sorted(line.row.keys() - _TOLD)
    if unknown:
        raise msgspec.ValidationError(f"the row has columns this Bough does not know ({', '.join(unknown)})")
    row = msgspec.convert({**line.row, "space": ""}, SessionRow)
    wide = (line.spec, line.policy, line.workspace, line.state)
    return row, SessionDetail(*(bytes(text) or None for text in wide))


def branch_line(branch: Branch) -> BranchLine:
    below = branch.session_id is None
    return BranchLine(branch.branch, branch.tail, branch.parent, branch.parent_seq, below)


def branch_of(line: BranchLine, session_id: str) -> Branch:
    return Branch(line.n, None if line.below else session_id, line.parent, line.parent_seq, line.tail)


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


class _Spoken(Struct, frozen=True):
    """As much of a message as tells who speaks; whether the rest is one is for the check to say."""

    role: Role


_spoken = msgspec.json.Decoder(_Spoken)


def entry_of(line: EntryLine) -> StoredEntry:
    body = bytes(line.body)
    role = _spoken.decode(body).role if line.kind == "message" else None
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


def fact_line(fact: Fact) -> FactLine:
    return FactLine(fact.number, fact.kind, fact.at, fact.key, fact.data)


def fact_of(line: FactLine) -> Fact:
    return Fact(line.n, line.kind, line.key, line.data, line.at)


def queued_line(queued: QueuedInput) -> QueuedLine:
    return QueuedLine(queued.number, queued.at, Raw(queued.body))


def queued_of(line: QueuedLine) -> QueuedInput:
    return QueuedInput(line.n, bytes(line.body), line.at)
