"""Facts: what the journal of a session records, one type for each kind.

A change adds one fact of its own, and further ones behind it. A store keeps the kind and the body, the fields as JSON
bytes, and a type is only read from them. So kinds and fields of a newer format pass through exports, imports, copies and
backups unchanged. Knows no store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from oakleaf.core.tree import Leaf
from oakleaf.core.typed_json import converter, json_decoder
from oakleaf.core.usage import MAX_COUNT

Number = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Decision = Literal["approved", "denied"]
Status = Literal["idle", "running", "waiting", "completed", "failed", "cancelled", "interrupted"]
"""Waiting: the turn is open and needs a person, to decide on a call or, after that, to resume it."""
TurnStatus = Literal["completed", "failed", "cancelled", "interrupted"]
LeftStatus = Literal["failed", "cancelled", "interrupted", "waiting"]


class Fact(Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that a change records. The name of the type, in snake case, is the kind."""


class Started(Fact, frozen=True):
    """The session was created: the first fact of each journal."""

    relation: str | None = None
    parent: str | None = None
    """The session it comes from."""
    parent_facts: Number | None = None
    """How many facts the parent had."""
    nth: Number | None = None
    """Of a task: on which of the parent's own branches the call is."""
    digest: str | None = None
    """Of the request, if its caller gave a key."""


class Appended(Fact, frozen=True):
    """Entries were appended at the leaf."""

    digest: str | None = None
    """Of the request, if its caller gave a key."""


class Moved(Fact, frozen=True, rename={"origin": "from"}):
    """The leaf moved, and entries may follow there."""

    origin: tuple[Number, Number]
    """The branch and the seq that the leaf had before."""
    requested: Number | None = None
    """The seq that was asked for, if no leaf may stand there."""
    is_redo: bool = False
    host: dict[str, Any] = {}
    """Further values of the host that moved the leaf."""
    digest: str | None = None
    """Of the request, if its caller gave a key."""


class Trigger(Struct, frozen=True, omit_defaults=True, gc=False):
    """The cause of a turn, such as an e-mail."""

    type: str
    id: str | None = None


class TurnStarted(Fact, frozen=True):
    """An input opened a turn."""

    turn: Number
    """The seq of the input. The log sets it."""
    trigger: Trigger | None = None
    context_window: Number | None = None
    policy: Any = None
    model: str | None = None
    tool_names: tuple[str, ...] = ()
    options: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    """The limits that the sender of the input set."""
    one_shot: bool = False
    trace: str | None = None
    """The `traceparent` of the sender: the turn is a part of that trace."""


class TurnResumed(Fact, frozen=True):
    """A runner continues the open turn."""

    turn: Number
    model: str | None = None
    options: dict[str, Any] | None = None


class TurnEnded(Fact, frozen=True):
    """The turn on the path ended: always right behind the append that ended it."""

    turn: Number
    """The log sets it, and the status."""
    status: TurnStatus
    error: str | None = None


class TurnLeft(Fact, frozen=True):
    """The runner left an open turn."""

    turn: Number
    status: LeftStatus
    error: str | None = None
    queue: str | None = None
    """The queue whose task waits for a person."""


class Refusal(Struct, frozen=True, omit_defaults=True, gc=False):
    """The limit that refused an input."""

    code: str
    limit: str
    message: str
    command_message: str = ""


class TurnRefused(Fact, frozen=True):
    """A limit refused an input, which is not on the path."""

    error: Refusal
    turn: Number | None = None
    """The turn that was withdrawn, if the input had opened one."""


class RunnerEnded(Fact, frozen=True):
    """Somebody else ended the run of a session."""

    holder: str | None = None


class ModelCallStarted(Fact, frozen=True):
    """A model is called, and the commit before does not say so."""

    call_id: str | None = None
    reserved: Number | None = None
    """The most that the call may cost, in microcents, if a budget was asked."""


class ModelCallFailed(Fact, frozen=True):
    """A model call has no answer."""

    why: str | None = None
    raw: str | None = None
    refused: str | None = None
    """The id of the call, if the provider refused it: it was not charged."""


class ModelCallDropped(Fact, frozen=True):
    """An announced model call was not made."""

    call_id: str


class ModelCallRecorded(Fact, frozen=True):
    """The host made a model call of its own."""

    purpose: str | None = None
    call_id: str | None = None


class ToolCallsStarted(Fact, frozen=True):
    """Tool calls of one answer start now."""

    seq: Number
    indexes: tuple[Number, ...]


class CallReference(Struct, frozen=True, gc=False):
    """A tool call on a path that was left."""

    session: str
    seq: Number
    index: Number
    entry: str
    """The id of the answer, in hex."""


class ApprovalRequested(Fact, frozen=True):
    """A person is asked about a tool call."""

    seq: Number
    index: Number
    earlier: CallReference | None = None
    """The same call on a path that was left, if that is why."""
    named: bool = False
    """Whether only a person with a name may decide."""


class Approved(Fact, frozen=True):
    """A person allowed a tool call."""

    seq: Number
    index: Number
    by: str | None = None
    """The person who decided."""
    reason: str | None = None
    surface: str | None = None
    """The way by which the decision came: Python, command line, HTTP, or a host's own."""


class Denied(Fact, frozen=True):
    """A person refused a tool call."""

    seq: Number
    index: Number
    by: str | None = None
    """The person who decided."""
    reason: str | None = None
    surface: str | None = None
    """The way by which the decision came: Python, command line, HTTP, or a host's own."""


class CallKey(Struct, frozen=True, gc=False):
    """A tool call of another session."""

    seq: Number
    index: Number
    call_id: str = ""
    name: str = ""


class TaskWaits(Fact, frozen=True):
    """A task of a tool call waits for a person."""

    seq: Number
    index: Number
    session: str
    """The session of the call that waits, at whatever depth."""
    call: CallKey


class TaskDecided(Fact, frozen=True):
    """A person decided about a call of a task."""

    seq: Number
    index: Number
    session: str
    decision: Decision


class TaskStarted(Fact, frozen=True):
    """A tool call starts a task."""

    child: str
    seq: Number
    task: str | None = None
    """The part of the task's key that is the same in a copy of the session."""


class CancelRequested(Fact, frozen=True):
    """A person asks to cancel the turn."""

    turn: Number


class Enqueued(Fact, frozen=True):
    """A task of a queue will run the turn."""

    queue: str


class Titled(Fact, frozen=True):
    """The title was set or removed."""

    title: str | None = None


class Tagged(Fact, frozen=True):
    """Tags were set; None removes one."""

    tags: dict[str, str | None]


class Labelled(Fact, frozen=True):
    """An entry was labelled, or its label removed."""

    nth: Number
    """On which of the session's own branches the entry is."""
    seq: Number
    label: str | None


class Bound(Fact, frozen=True):
    """The session was bound to an agent."""

    agent: str
    before: str | None = None


class Imported(Fact, frozen=True):
    """The last fact of an import from another tool."""

    tool: str
    source: str
    losses: Any = None
    title: str | None = None


class ImportAccepted(Fact, frozen=True):
    """Somebody here accepted what an import left open."""

    facts: Number


class SessionEnded(Fact, frozen=True):
    """The session was marked as ended."""

    status: Status
    error: str | None = None
    missed_call: bool = False
    """Whether a replay came to a call that was not recorded."""


class PluginFact(Fact, frozen=True):
    """A fact of a plugin."""

    plugin: str
    name: str
    data: dict[str, Any] = {}


class UnknownFact(Struct, frozen=True, gc=False):
    """A fact of a newer format. It is kept, and never written by this version."""

    kind: str
    body: bytes


Signal = Approved | Denied | TaskDecided | CancelRequested
"""What a turn that waits for a person waits for."""
KnownFact = (
    Started
    | Appended
    | Moved
    | TurnStarted
    | TurnResumed
    | TurnEnded
    | TurnLeft
    | TurnRefused
    | RunnerEnded
    | ModelCallStarted
    | ModelCallFailed
    | ModelCallDropped
    | ModelCallRecorded
    | ToolCallsStarted
    | ApprovalRequested
    | Approved
    | Denied
    | TaskWaits
    | TaskDecided
    | TaskStarted
    | CancelRequested
    | Enqueued
    | Titled
    | Tagged
    | Labelled
    | Bound
    | Imported
    | ImportAccepted
    | SessionEnded
    | PluginFact
)
AnyFact = KnownFact | UnknownFact
_KINDS: dict[type[Fact], str] = {
    type_: re.sub(r"(?<!^)(?=[A-Z])", "_", type_.__name__).lower() for type_ in get_args(KnownFact)
}
# Made once: a decoder for each call would cost 100 times as much as the decoding.
_DECODERS: dict[str, Callable[[bytes], Any]] = {kind: json_decoder(type_) for type_, kind in _KINDS.items()}
_CONVERTERS = {type_: converter(type_) for type_ in _KINDS}
_encode = msgspec.json.Encoder().encode
NO_FIELDS = b"{}"
"""The body of a fact that says no more than its kind."""


def kind_of(fact: Fact | type[Fact]) -> str:
    """Return the kind under which facts of a type are stored."""
    return _KINDS[fact if isinstance(fact, type) else type(fact)]


def encode_fact(fact: Fact) -> tuple[str, bytes]:
    """Return the kind and the body of a fact."""
    type_ = type(fact)
    return _KINDS[type_], _encode(fact) if type_.__struct_fields__ else NO_FIELDS


def decode_fact(kind: str, body: bytes) -> AnyFact:
    """Read a fact; raise `msgspec.ValidationError` if the body lacks a field of the kind or has one of another type."""
    decode = _DECODERS.get(kind)
    if decode is None:
        return UnknownFact(kind, body)
    fact: KnownFact = decode(body)
    return fact


def to_fact(type_: type[Fact], values: dict[str, Any]) -> Fact:
    """Build a fact of JSON values."""
    return _CONVERTERS[type_](values)


class StoredFact(Struct, frozen=True, gc=False):
    """One numbered fact of a session's journal, as a store keeps it."""

    number: int
    kind: str
    key: str | None
    """The key of the change; None for the further facts of a change."""
    at: int
    body: bytes = NO_FIELDS
    """The fields as JSON, as they were stored."""
    leaf: Leaf | None = None
    """The leaf after the change, if the change depends on the leaf."""
    first: int | None = None
    """The seq of the first entry that the change appended."""

    @property
    def fact(self) -> AnyFact:
        """The fact itself, decoded on access."""
        return decode_fact(self.kind, self.body)

    @property
    def data(self) -> dict[str, Any]:
        """The fields as JSON values, those of a newer format too."""
        values: dict[str, Any] = msgspec.json.decode(self.body)
        return values

    @property
    def view(self) -> dict[str, Any]:
        """The place and the fields as JSON values, for events and for people."""
        place = {} if self.leaf is None else {"branch": self.leaf.branch, "last": self.leaf.seq}
        return ({} if self.first is None else {"first": self.first}) | place | self.data

    def appended(self, leaf: Leaf) -> bool:
        """Whether the change appended this entry."""
        at = self.leaf
        return (
            at is not None
            and self.first is not None
            and at.branch == leaf.branch
            and self.first <= leaf.seq <= at.seq
        )
