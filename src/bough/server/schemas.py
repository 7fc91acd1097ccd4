"""The shapes of answers, as far as they can be named: what OpenAPI tells a stranger."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from .json_views import SCHEMA_VERSION

Json = dict[str, Any]
Position = Annotated[str, Meta(description="branch:seq", examples=["1:7"])]
SessionJson = Annotated[
    Json, Meta(description="A session's row: id, heading, title, status, leaf, totals, …")
]
EntryJson = Annotated[
    Json, Meta(description="An entry: branch, seq, kind, role, payload, …; `cut` tells what was left out")
]
TotalsJson = Annotated[Json, Meta(description="Sums of model calls: calls, tokens, cost_microcents, …")]


class ApiResponse(Struct, kw_only=True):
    schema_version: int = SCHEMA_VERSION


class ServerInfo(ApiResponse, kw_only=True):
    """The server, and what whoever asks may do."""

    name: str = "bough"
    version: str
    level: Annotated[str, Meta(description="service or client")]
    owner: str | None
    space: str
    models: list[str]
    tools: list[Json]
    can_send: bool
    can_export: bool
    providers: list[str]


class LoginInfo(ApiResponse, kw_only=True):
    level: str | None
    owner: str | None = None


class SessionList(ApiResponse, kw_only=True):
    sessions: list[SessionJson]
    next: Annotated[str | None, Meta(description="Hand it in as `page` to read on; null: the last page")] = (
        None
    )


class Facets(ApiResponse, kw_only=True):
    total: int
    facets: Annotated[
        dict[str, dict[str, int]],
        Meta(
            description='Counts by status, agent, model and relation; "" is: none',
            examples=[{"status": {"idle": 3}}],
        ),
    ]


class SessionResult(ApiResponse, kw_only=True):
    session: SessionJson


class SessionDetail(ApiResponse, kw_only=True):
    """A session and what is to be done with it. A client gets its row only."""

    session: SessionJson
    settings: Json | UnsetType = UNSET
    next_action: Annotated[str, Meta(description="CallModel, RunTools or Rest")] | UnsetType = UNSET
    open_tool_calls: (
        Annotated[list[Json], Meta(description="Calls without results; `state` tells how far each is")]
        | UnsetType
    ) = UNSET
    pending_approvals: (
        Annotated[
            list[Json],
            Meta(
                description="What a person is asked about, here and in tasks: hand session_id, seq and index to "
                "`approve`. `parent_call` is the call of this session that had started the task; null: its own"
            ),
        ]
        | UnsetType
    ) = UNSET
    queued: int | UnsetType = UNSET
    draft: str | UnsetType | None = UNSET
    is_running_here: bool | UnsetType = UNSET
    parent: Json | UnsetType | None = UNSET
    related: list[SessionJson] | UnsetType = UNSET
    related_next: str | UnsetType | None = UNSET


class TrashResult(ApiResponse, kw_only=True):
    trashed: list[str]


class RestoreResult(ApiResponse, kw_only=True):
    restored: list[str]


class PathWindow(ApiResponse, kw_only=True):
    session_id: str
    leaf: Position
    total: Annotated[int, Meta(description="How many entries the path has")]
    first: Annotated[int, Meta(description="The first seq this answer covers")]
    last: int
    has_before: bool
    has_after: bool
    entries: list[EntryJson]


class EntryDetail(ApiResponse, kw_only=True):
    entry: EntryJson
    reference: Annotated[str, Meta(examples=["ses_3f@1:7"])]
    on_path: bool
    call: Json | None


class TurnList(ApiResponse, kw_only=True):
    leaf: Position
    turns: list[Json]
    next: int | None


class BranchList(ApiResponse, kw_only=True):
    leaf: Position
    columns: list[str]
    branches: Annotated[
        list[list[int | None]], Meta(description="One row per branch, as `columns` names them")
    ]
    path: Annotated[list[list[int]], Meta(description="[branch, first, last] from root to leaf")]
    related: list[Json]


class LabelList(ApiResponse, kw_only=True):
    labels: Annotated[list[Json], Meta(description="place and label, the newest last")]
    total: int


class LabelResult(ApiResponse, kw_only=True):
    position: Position
    label: str | None


class Outline(ApiResponse, kw_only=True):
    first: int
    last: int
    has_after: bool
    lines: list[Json]


class RequestView(ApiResponse, kw_only=True):
    """What the model was given."""

    at: Position
    after: Position
    provider: str
    model: str | None
    request: Json
    messages_key: Annotated[str, Meta(description="The name of the list of messages in `request`")]
    total: Annotated[int, Meta(description="How many messages that list has in full")]
    first: Annotated[int, Meta(description="Which of them is the first told here")]
    omitted_chars: int
    tokens: list[Json]
    call: Json | None
    previous: Position | None
    difference: Json | None


class StateSnapshot(ApiResponse, kw_only=True):
    leaf: Position
    state: Json
    omitted_chars: int


class JournalPage(ApiResponse, kw_only=True):
    facts: list[Json]
    total: int


class SendResult(ApiResponse, kw_only=True):
    last_fact: Annotated[int, Meta(description="Watch the events behind this number")]
    queued: int | None = None


class CancelResult(ApiResponse, kw_only=True):
    cancelled: bool


class ApprovalResult(ApiResponse, kw_only=True):
    pending: Annotated[int, Meta(description="Calls that still wait for a person, here and in tasks")]
    resumed: Annotated[
        bool, Meta(description="false: something waits, or whoever drives it takes the word up himself")
    ]


class ForkResult(ApiResponse, kw_only=True):
    session: SessionJson
    cut: Json


class MoveResult(ApiResponse, kw_only=True):
    leaf: Position
    cut: Json | None = None


class CompactResult(ApiResponse, kw_only=True):
    leaf: Position
    compaction: Json


class UncompactResult(ApiResponse, kw_only=True):
    leaf: Position
    cancels: int


class JobResult(ApiResponse, kw_only=True):
    job: Json


class DiffPage(ApiResponse, kw_only=True):
    same: bool
    shared: int
    shared_turns: int
    is_state_same: bool
    total: int
    first: int
    omitted_chars: int
    counts: dict[str, int]
    a: Json
    b: Json
    setup: list[Json]
    first_divergence: Json | None
    first_different_row: int | None
    rows: list[Json]


class SessionUsage(ApiResponse, kw_only=True):
    view: str
    total: TotalsJson
    models: list[Json]
    purposes: list[Json]
    buckets: list[Json]


class SpaceUsage(ApiResponse, kw_only=True):
    total: TotalsJson
    days: list[Json]
    models: list[Json]
    agents: list[Json]
    buckets: list[Json]
    rows: list[Json]


class Storage(ApiResponse, kw_only=True):
    entries: int
    bytes: int
    branches: int
    blobs: int
    blob_bytes: int


class SpaceStorage(Storage, kw_only=True):
    sessions: Annotated[int, Meta(description="How many were looked at")]
    largest: list[Json]
    next: str | None


class IndexingStatus(Struct, frozen=True):
    """How many of the sessions that lacked something when it began are whole by now."""

    done: int
    total: int


class SearchResults(ApiResponse, kw_only=True):
    hits: list[Json]
    next: str | None
    unindexed_sessions: Annotated[
        int, Meta(description="Sessions with something that is not in the index yet")
    ]
    indexing: Annotated[
        IndexingStatus | None, Meta(description="How far the index is; null: nothing is being indexed")
    ]
    index_error: Annotated[str | None, Meta(description="Why the index cannot be brought up to date")]


class ImportResult(ApiResponse, kw_only=True):
    session_id: str
    added: list[str]
    known: list[str]
    entries: int
    blobs: int
    missing_blobs: int
    redacted: bool
