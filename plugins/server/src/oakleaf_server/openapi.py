"""The OpenAPI document, complete enough to generate a client: what sessions, entries, hits, jobs, totals and events contain,
and the header that changes require.

Handlers build these values as plain JSON, because long strings in them are truncated; their shapes are described here, and
a test compares every response with them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from oakleaf.core.usage import Totals, Usage
from oakleaf.verbs.views import NamedTotals, SessionView
from oakleaf_server import verb_routes

REF = "#/components/schemas/{name}"
Json = dict[str, Any]


class WindowEntry(Struct, kw_only=True):
    """An entry of a path. A client's token shows seq, role, at and text only."""

    seq: int
    role: str | None
    at: int
    text: str | UnsetType = UNSET
    branch: int | UnsetType = UNSET
    entry_id: str | UnsetType = UNSET
    turn: int | UnsetType = UNSET
    step: int | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    internal: bool | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    finish: str | UnsetType | None = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    """A message has `role` and `parts`: text, reasoning, tool_call, tool_result, media."""
    omitted_chars: int | UnsetType = UNSET


class JobView(Struct, kw_only=True):
    """A background job, such as a replay."""

    id: str
    kind: str
    session_id: str
    status: Literal["running", "done", "failed", "cancelled"]
    done: int
    total: int
    report: dict[str, Any] | None
    problem: dict[str, Any] | None


class ModelCallView(Struct, kw_only=True):
    """A model call. Money is in units of 1e-8 dollars."""

    call_id: str
    provider: str | None
    model: str | None
    purpose: str
    bucket: str
    after_seq: int
    answer_seq: int | None
    usage: Usage
    cost_microcents: int | None
    failed: bool
    at: int


class ToolCallView(Struct, kw_only=True):
    """A tool call without a result. One that waits for approval has the session and the call that started its task."""

    seq: int
    index: int
    id: str
    name: str
    arguments: Any
    state: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    parent_call: dict[str, int] | UnsetType | None = UNSET
    decided_elsewhere: str | UnsetType | None = UNSET
    omitted_chars: int | UnsetType = UNSET


class FactEvent(Struct, kw_only=True):
    """The data of a durable event (`session:input`, `session:answer`, …). Its `id` is the fact's number."""

    number: int
    kind: str
    at: int
    data: Any = None
    entries: list[WindowEntry] | UnsetType = UNSET
    session: dict[str, Any] | UnsetType = UNSET
    omitted_entries: int | UnsetType = UNSET


class DraftEvent(Struct, kw_only=True):
    """The data of `session:delta` (a piece) and `session:draft` (the whole) of an answer in progress."""

    text: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ResyncEvent(Struct):
    """The data of `session:resync`: too much was missed, read the session again."""

    last_fact: int


class TrashedEvent(Struct):
    """The data of `session:trashed`: the session was moved to the trash, and `session:restored` ends that."""

    trashed_at: int


EVENTS = (FactEvent, DraftEvent, ResyncEvent, TrashedEvent)
VIEWS = (
    SessionView,
    WindowEntry,
    JobView,
    ModelCallView,
    ToolCallView,
    NamedTotals,
    *EVENTS,
)
FIELDS: dict[type[Struct], tuple[str, ...]] = {
    SessionView: (
        "SessionResult.session",
        "SessionResponse.session",
        "SessionResponse.related",
        "WaitingSession.session",
        "Overview.failed",
        "Overview.interrupted",
        "Overview.running",
    ),
    WindowEntry: ("PathWindow.entries", "EntryDetail.entry"),
    JobView: ("JobResult.job",),
    ModelCallView: ("CallList.calls",),
    ToolCallView: (
        "SessionResponse.open_tool_calls",
        "SessionResponse.pending_approvals",
        "WaitingSession.approvals",
    ),
    NamedTotals: (
        "SpaceUsage.days",
        "SpaceUsage.models",
        "SpaceUsage.agents",
        "SpaceUsage.buckets",
        "Overview.days",
    ),
    Totals: ("SpaceUsage.total", "Overview.cost_today", "Overview.cost_week"),
}
"""The fields of the responses that hold each of them, one or a list."""
CHANGE_HEADER = {
    "name": "X-Oakleaf",
    "in": "header",
    "required": True,
    "schema": {"type": "string", "default": "1"},
    "description": "Proves that the request is no cross-site form",
}


def complete(schema: Json) -> Json:
    """Complete the document with the shapes and the header missing in the handlers' types."""
    components = schema["components"]["schemas"]
    _, views = msgspec.json.schema_components([*VIEWS, Totals], ref_template=REF)
    components.update(views)
    for view, fields in FIELDS.items():
        for field in fields:
            name, _, property_name = field.partition(".")
            _refer(components[name]["properties"], property_name, REF.format(name=view.__name__))
    verb_routes.describe(schema, REF)
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if method in ("post", "patch", "put", "delete") and path.startswith("/api/"):
                operation.setdefault("parameters", []).append(CHANGE_HEADER)
            for response in operation["responses"].values():
                _describe_content(response.get("content", {}))
    return schema


def _refer(properties: Json, name: str, ref: str) -> None:
    """Replace the object in a property, or in the property's list, by a reference."""
    described = {key: value for key, value in properties[name].items() if key == "description"}
    choices = [
        properties[name],
        *properties[name].get("oneOf", ()),
    ]  # an optional field has its type in a list of one
    is_list = any(choice.get("type") == "array" for choice in choices)
    properties[name] = {**described, "type": "array", "items": {"$ref": ref}} if is_list else {"$ref": ref}


def _describe_content(content: Json) -> None:
    if "text/event-stream" in content:
        content["text/event-stream"] = {
            "schema": {"type": "string"},
            "x-event-data": {"oneOf": [{"$ref": REF.format(name=event.__name__)} for event in EVENTS]},
        }
    if "application/octet-stream" in content:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
