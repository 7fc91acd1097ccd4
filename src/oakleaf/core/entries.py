"""Entries: the immutable nodes of a session's tree, and the payload of each kind.

Knows the kinds and which entries are public. Does not know branches, files or providers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.errors import InvalidArgument


class Compaction(Struct, frozen=True, omit_defaults=True):
    """From here on the model sees `summary` in place of everything before `first_kept`, and long results shortened.

    An empty summary replaces nothing.
    """

    summary: str
    first_kept: int
    tokens_before: int = 0
    files_read: tuple[str, ...] = ()
    files_changed: tuple[str, ...] = ()
    replaces_earlier: bool = False
    """True if this summary includes the previous compaction's summary; otherwise both are shown."""
    kept_input: int = 0
    """The seq of a visible input before `first_kept`: the input of the turn with summarised first steps. 0: none."""
    shortened: tuple[tuple[int, int], ...] = ()
    """The seqs of tool messages, and how many characters of each of their results the model sees."""


class Uncompaction(Struct, frozen=True):
    """Cancels the compaction at `cancels`: restores the earlier projection, byte for byte."""

    cancels: int


class BranchSummary(Struct, frozen=True):
    """A summary of an abandoned branch, identified by the seq and id of the last entry."""

    summary: str
    leaf_seq: int
    leaf_id: str


class ToolDefinitions(Struct, frozen=True, omit_defaults=True):
    """A model's tools: the digest of the blob with the definitions, the names, and the size."""

    hash: str
    names: tuple[str, ...]
    size: int = 0
    """In bytes: the share of a window, known without reading the definitions."""
    repeatable: tuple[str, ...] = ()
    """The names of repeatable tools, with the effect `read` or `idempotent`. Other tools count as unsafe."""
    reads: tuple[str, ...] = ()
    """The names among them with the effect `read`."""
    is_callable: bool = True
    """False once no tools are in force: a model sees the tools if the history calls any, and may call none. Never stored."""


TokenLimit = Literal["max_tokens", "max_completion_tokens"]


class Endpoint(Struct, frozen=True, omit_defaults=True):
    """The server asked in a provider's format, and the server's own demands: servers of a format differ."""

    host: str | None = None
    """None: the vendor's own."""
    model: str | None = None
    """The model behind the demands below; None without demands."""
    token_limit: TokenLimit | None = None
    """The name of the accepted limit. None: the usual name."""
    reasoning: Literal["demanded", "refused"] | None = None
    """Whether reasoning must be in every answer that is sent back, or in none."""
    encrypts_reasoning: bool | None = None
    """Whether OpenAI is asked to store nothing and to return its reasoning encrypted, if the model can; None: neither."""


Effects = Literal["ask", "repeat", "reuse"]
"""An unsafe call already made on another path waits for a person, runs once more, or reuses the result."""


def check_effects(effects: object) -> None:
    """Raise InvalidArgument for a value outside `Effects`; None is fine."""
    if effects not in (None, *get_args(Effects)):
        raise InvalidArgument("effects", effects, "ask, repeat or reuse")


class Settings(Struct, frozen=True, omit_defaults=True):
    """Settings from here on. None: unchanged."""

    model: str | None = None
    prompt: str | None = None
    prompt_patch: str | None = None
    tools: tuple[str, ...] | None = None
    limits: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    """Options of the model's calls, such as `temperature`; a value of None removes an option."""
    tool_definitions: ToolDefinitions | None = None
    """The model's tools. None before any are recorded: the tools are unknown."""
    windows: dict[str, int] | None = None
    """The context windows of models in tokens, by name, from a person or from a server's error."""
    endpoints: dict[str, Endpoint] | None = None
    """The servers, by provider, if the server decides the form of a request."""
    effects: Effects | None = None
    """The rule for unsafe calls already made on another path. Ignored in an import."""
    max_messages: Annotated[int, Meta(ge=0)] | None = None
    """Maximum number of messages in a request: whole older turns are left out, never the newest. 0: no maximum."""


class Note(Struct, frozen=True, omit_defaults=True):
    """The host's own data, never shown to a model. `state` is a merge patch of the session's state."""

    data: dict[str, Any] = {}
    state: dict[str, Any] | None = None
    hidden: bool = False
    """True for bookkeeping, such as a framework's checkpoints: not searched, and not drawn in the tree."""


class Unknown(Struct, frozen=True):
    """An entry of a kind from a newer minor format: kept unchanged, never written by this version."""

    kind: str
    body: bytes


Payload = Message | Compaction | Uncompaction | BranchSummary | Settings | Note | Unknown

KINDS: dict[str, type[Payload]] = {
    "message": Message,
    "compaction": Compaction,
    "uncompaction": Uncompaction,
    "branch_summary": BranchSummary,
    "settings": Settings,
    "note": Note,
}
_NAMES: dict[type, str] = {kind: name for name, kind in KINDS.items()}


def kind_of(payload: Payload) -> str:
    return payload.kind if type(payload) is Unknown else _NAMES[type(payload)]


class Evidence(Struct, frozen=True, gc=False):
    """Data for the issuer (signatures, native ids), by index of the part."""

    issuer: str
    parts: dict[str, dict[str, Any]]


class Entry(Struct, frozen=True, gc=False):
    """An immutable node of the tree: a position, a payload, and a hash over the whole history."""

    branch: int
    seq: int
    entry_id: bytes
    turn: int
    """The seq of the input it answers; 0 for seeds and entries between turns."""
    step: int
    """The number of the model call within the turn; 0 for the input."""
    payload: Payload
    internal: bool
    at: int
    """Microseconds since 1970, UTC. For display; no order depends on the time."""
    model: str | None = None
    finish: str | None = None
    evidence: Evidence | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.payload)

    @property
    def role(self) -> str | None:
        return self.payload.role if isinstance(self.payload, Message) else None

    @property
    def is_input(self) -> bool:
        """Whether the entry is the input of a turn."""
        return self.turn == self.seq

    @property
    def message(self) -> Message | None:
        return self.payload if isinstance(self.payload, Message) else None

    @property
    def text(self) -> str:
        """The text of the message; empty for an entry without a message."""
        return "" if self.message is None else self.message.text

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the message; empty for an entry without a message."""
        return () if self.message is None else self.message.calls

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results of the message; empty for an entry without a message."""
        return () if self.message is None else self.message.results

    def __repr__(self) -> str:
        """Omits evidence, meant for the issuer only."""
        return (
            f"Entry({self.branch}:{self.seq} {self.entry_id.hex()[:8]} {self.kind}"
            f"{'/' + self.role if self.role else ''} turn={self.turn} step={self.step})"
        )


INTERRUPTED = "interrupted"
"""The finish of an answer that broke off. The turn stays open, and the model is asked again without the answer."""
PARTIAL = "partial"
"""The finish of an answer that broke off and ended the turn. The model sees the answer, marked as interrupted."""


PAUSED = "pause_turn"
"""The finish of a paused answer: the turn stays open, and the provider is asked to continue."""
OPEN_FINISHES = (INTERRUPTED, PAUSED)
CUT_OFF_FINISHES = (
    *("length", "max_tokens", "MAX_TOKENS", "max_output_tokens"),
    "model_context_window_exceeded",
)
"""Providers' names for the end of an answer without room."""


def is_internal(payload: Payload, *, seed: bool, finish: str | None = None) -> bool:
    """Return False for inputs and for final answers without tool calls: public; fixed at append."""
    if seed or type(payload) is not Message:
        return True
    if payload.role == "user":
        return False
    return payload.role != "assistant" or finish in OPEN_FINISHES or bool(payload.calls)
