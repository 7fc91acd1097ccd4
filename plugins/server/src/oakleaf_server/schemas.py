"""Response types of the API, as published in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from oakleaf_server.json_views import SCHEMA_VERSION

Json = dict[str, Any]
Position = Annotated[str, Meta(description="branch:seq", examples=["1:7"])]
SessionJson = Annotated[
    Json, Meta(description="A session's row: id, heading, title, status, leaf, totals, …")
]
EntryJson = Annotated[
    Json,
    Meta(
        description="An entry: branch, seq, kind, role, payload, …; `omitted_chars` counts what was truncated"
    ),
]
TotalsJson = Annotated[Json, Meta(description="Sums of model calls: calls, tokens, cost_microcents, …")]


class ApiResponse(Struct, kw_only=True):
    schema_version: int = SCHEMA_VERSION


class PageLink(Struct, kw_only=True):
    """A page of the viewer that a plugin adds."""

    name: Annotated[str, Meta(description="The page is at /NAME and /NAME/ID; it reads /api/NAME")]
    title: str
    script: Annotated[str, Meta(description="The address of its script")]


class ServerInfo(ApiResponse, kw_only=True):
    """The server, and what the caller may do."""

    name: str = "oakleaf"
    version: str
    level: Annotated[str, Meta(description="service or client")]
    owner: str | None
    space: str
    models: list[str]
    tools: list[Json]
    can_send: bool
    can_import: Annotated[
        bool, Meta(description="Whether sessions of other tools on the server's computer can be imported")
    ]
    can_export: bool
    providers: list[str]
    pages: list[PageLink]


class LoginInfo(ApiResponse, kw_only=True):
    level: str | None
    owner: str | None = None


class Facets(ApiResponse, kw_only=True):
    total: Annotated[int, Meta(description="1,000 at most")]
    is_partial: Annotated[
        bool,
        Meta(
            description="There are 1,000 or more: the last active ones are counted, and up to 1,000 of each status"
        ),
    ] = False
    facets: Annotated[
        dict[str, dict[str, int]],
        Meta(
            description='Counts by status, agent, model and relation; "" is: none',
            examples=[{"status": {"idle": 3}}],
        ),
    ]


class WaitingSession(Struct, kw_only=True):
    session: SessionJson
    approvals: Annotated[list[Json], Meta(description="As `pending_approvals` of the session")]


class QueueView(Struct, kw_only=True):
    """A queue of the Absurd engine, and its workers."""

    queue: str
    waiting: Annotated[
        int, Meta(description="Tasks that a worker could run now, up to 10,000, of all spaces")
    ]
    waiting_seconds: Annotated[float, Meta(description="How long the first of them has been waiting")]
    running: int
    workers: Annotated[int, Meta(description="Workers that live")]
    slots: Annotated[int, Meta(description="How many tasks they can run at once")]
    dead_workers: Annotated[int, Meta(description="Workers that died in the last 15 minutes")]
    suspects: Annotated[
        list[str], Meta(description="Sessions of this space whose workers died, and are not answered")
    ]
    problem: Annotated[str | None, Meta(description="What is wrong, as oakleaf doctor says it")] = None
    hint: str | None = None


class Overview(ApiResponse, kw_only=True):
    """What needs attention. Each list has the last active sessions first, at most twelve."""

    counts: Annotated[
        dict[str, int],
        Meta(
            description="Number of sessions that are waiting, failed, interrupted and running; 1,000 means that many or more"
        ),
    ]
    total: Annotated[int, Meta(description="Number of all sessions, up to 1,000 of each status")]
    waiting: list[WaitingSession]
    failed: list[SessionJson]
    interrupted: list[SessionJson]
    running: list[SessionJson]
    cost_today: TotalsJson
    cost_week: TotalsJson
    days: Annotated[list[Json], Meta(description="name and totals of each of the seven days, UTC")]
    queues: Annotated[list[QueueView], Meta(description="Of the engine's workers; empty without them")] = []


class SessionResult(ApiResponse, kw_only=True):
    session: SessionJson


class Responder(Struct, kw_only=True):
    """Who answers a message sent through this server."""

    model: str | None
    tools: list[str]
    problem: Annotated[str | None, Meta(description="Why no model can answer")] = None
    hint: str | None = None


class Figures(Struct, kw_only=True):
    """The figures of the newest entries of the current path."""

    calls: Annotated[list[Json], Meta(description="As of `/calls`")]
    facts: Annotated[list[Json], Meta(description="As of `/calls`")]
    turns: Annotated[list[Json], Meta(description="The latest turn, as of `/turns`, unless it runs")]


class SessionResponse(ApiResponse, kw_only=True):
    """A session and its next action. A client gets `session` only."""

    session: SessionJson
    settings: Json | UnsetType = UNSET
    next_action: Annotated[str, Meta(description="CallModel, RunTools or Rest")] | UnsetType = UNSET
    open_tool_calls: (
        Annotated[list[Json], Meta(description="Tool calls without results, with their `state`")] | UnsetType
    ) = UNSET
    pending_approvals: (
        Annotated[
            list[Json],
            Meta(
                description="Calls that wait for approval, in this session and its tasks: `call` of an approval is "
                "SESSION_ID@SEQ.INDEX. `parent_call` is the call of this session that started the task; null for its own calls"
            ),
        ]
        | UnsetType
    ) = UNSET
    queued: int | UnsetType = UNSET
    draft: str | UnsetType | None = UNSET
    is_running_here: bool | UnsetType = UNSET
    figures: Figures | UnsetType = UNSET
    is_held: (
        Annotated[
            bool,
            Meta(
                description="Whether a run holds the session; false with status `running`: its process is gone"
            ),
        ]
        | UnsetType
    ) = UNSET
    active_compaction: (
        Annotated[int | None, Meta(description="The seq of the compaction that `uncompact` cancels")]
        | UnsetType
    ) = UNSET
    responder: Responder | UnsetType = UNSET
    parent: Json | UnsetType | None = UNSET
    related: list[SessionJson] | UnsetType = UNSET
    related_next: str | UnsetType | None = UNSET


class PathWindow(ApiResponse, kw_only=True):
    session_id: str
    leaf: Position
    total: Annotated[int, Meta(description="Number of entries of the path")]
    facts: Annotated[
        int, Meta(description="Number of facts that this response reflects: ask for events after it")
    ]
    first: Annotated[int, Meta(description="The first seq covered by this response")]
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


class CallList(ApiResponse, kw_only=True):
    leaf: Position
    calls: Annotated[list[Json], Meta(description="Model calls whose answers are in the range")]
    facts: Annotated[
        list[Json],
        Meta(
            description="kind, at, seq, index: approvals requested, granted and denied, turns paused and resumed, and starts of calls that waited; `failed`: a model call failed behind the entry, `why`, and whether that `ended` the run"
        ),
    ]


class BranchList(ApiResponse, kw_only=True):
    leaf: Position
    columns: list[str]
    branches: Annotated[
        list[list[int | None]], Meta(description="One row per branch, as `columns` names them")
    ]
    path: Annotated[list[list[int]], Meta(description="[branch, first, last] from root to leaf")]
    related: list[Json]
    related_next: str | None = None


class LabelList(ApiResponse, kw_only=True):
    labels: Annotated[list[Json], Meta(description="position and label, newest last")]
    total: int


class Outline(ApiResponse, kw_only=True):
    first: int
    last: int
    has_after: bool
    lines: list[Json]


class RequestView(ApiResponse, kw_only=True):
    """The exact request behind an answer: its newest messages, or those before a cursor."""

    at: Position
    after: Position
    provider: str
    model: str | None
    request: Json
    messages_key: Annotated[str, Meta(description="The key of the message list in `request`")]
    start: Annotated[
        int, Meta(description="The seq from which on the model is given the entries of the path")
    ]
    first: Annotated[int, Meta(description="The seq of the first entry whose message is in this response")]
    last: int
    earlier: Annotated[int | None, Meta(description="The `before` of the page before; null: there is none")]
    omitted_chars: int
    call: Json | None
    previous: Position | None
    tokens_from: Annotated[
        int | None, Meta(description="The seq from which on `tokens` counts; only the first page has it")
    ] = None
    tokens: list[Json] = []
    window: Annotated[int | None, Meta(description="The model's window in tokens, if it is known")] = None
    difference: Json | None = None


class StateSnapshot(ApiResponse, kw_only=True):
    leaf: Position
    state: Json
    omitted_chars: int


LeftBehind = Annotated[
    list[Json],
    Meta(
        description="Calls of unsafe tools that are not on the path any more and took effect, or may have: the newest first, at "
        "most 50. Nothing undoes them; the same call waits for approval"
    ),
]


class SendResponse(ApiResponse, kw_only=True):
    last_fact: Annotated[int, Meta(description="Watch the events after this number")]
    queued: int | None = None
    left_behind: LeftBehind = []


class JobResult(ApiResponse, kw_only=True):
    job: Json


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
    sessions: Annotated[int, Meta(description="Number of sessions included")]
    largest: list[Json]
    next: str | None


class ImportResponse(ApiResponse, kw_only=True):
    session_id: str
    added: list[str]
    known: list[str]
    entries: int
    blobs: int
    missing_blobs: int
    redacted: bool
    foreign_addresses: Annotated[
        list[str], Meta(description="Addresses of models in the sessions; this server asks none of them")
    ]
