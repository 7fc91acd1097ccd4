"""Build a new session, the row and the seeds, and check all values for every store. Knows no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec
from msgspec.structs import replace

from oakleaf.core.codec import check_json, check_length, check_text, decode_or_refuse, to_json
from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Note, Payload, Settings
from oakleaf.core.facts import Started
from oakleaf.core.ids import check_id
from oakleaf.core.messages import Message
from oakleaf.core.redact import Redactor
from oakleaf.core.state import State, merge_state, state_updates
from oakleaf.core.turns import Cursor
from oakleaf.core.usage import MAX_COUNT
from oakleaf.errors import InvalidArgument, InvalidCount, KeyReused, SecretInWorkspace, shorten
from oakleaf.log.changes import keyed_session_id, new_key
from oakleaf.log.request import Asked
from oakleaf.log.runtime import Runtime
from oakleaf.log.workspace import Workspace
from oakleaf.stores.base import NewSession, Relation, SessionDetail, SessionRow, StoreBackend

_rows = msgspec.json.Decoder(SessionRow)
TEXT_COLUMNS = (
    *("session_id", "space", "owner", "conversation_id", "agent", "title", "status", "relation"),
    *("parent_session", "trigger_type", "trigger_id", "model", "holder", "error"),
)

INDEXED_COLUMNS = ("session_id", "space", "owner", "conversation_id", "agent", "parent_session")

ID_COLUMNS = (*INDEXED_COLUMNS, "trigger_type", "trigger_id", "model")


class SessionOptions(TypedDict, total=False):
    """The options of a new session beside agent and seeds. `Store.start` explains each."""

    owner: str | None
    title: str | None
    tags: Mapping[str, str]
    model: str | None
    context_window: int | None
    trigger_type: str | None
    trigger_id: str | None
    tool_names: Sequence[str]
    spec: Any
    policy: Any
    state: dict[str, Any] | None
    workspace: Workspace | None
    relation: Relation | None
    parent_session: str | None
    parent_seq: int | None


def new_session(
    runtime: Runtime,
    space: str,
    agent: str | None,
    seeds: Sequence[Draft],
    session_id: str | None,
    conversation_id: str | None,
    options: SessionOptions,
) -> tuple[NewSession, Cursor]:
    """Return the session to create, and the cursor after the seeds."""
    columns: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    workspace: Workspace | None = columns.pop("workspace", None)
    if workspace is not None and not isinstance(workspace, Workspace):
        raise InvalidArgument("workspace", workspace, "a Workspace")
    _check_workspace(runtime.redactor, workspace)
    for name in ("spec", "policy", "state"):
        check_json(columns.get(name), name)
    if isinstance(columns.get("tool_names"), str):
        raise InvalidArgument("tool_names", columns["tool_names"], "a list of names")
    names = {**columns, "session_id": session_id, "conversation_id": conversation_id}
    check_names(runtime.redactor, {**names, "space": space, "agent": agent})
    text = ("title", "spec", "policy", "state")
    columns |= runtime.redactor.redact_json({name: columns[name] for name in text if name in columns})
    spec, policy, state = (columns.pop(name, None) for name in ("spec", "policy", "state"))
    drafts = [_fill(draft, workspace) for draft in seeds]
    if state is not None:
        drafts.append(Draft(Note(state=state)))
    now = runtime.now()
    written = build_entries(Cursor(), drafts, now, seed=True, redactor=runtime.redactor)
    if isinstance(columns.get("tool_names"), list | tuple):
        columns["tool_names"] = tuple(columns["tool_names"])
    row = SessionRow(
        session_id=session_id or runtime.new_id("ses"),
        space=space,
        conversation_id=conversation_id or runtime.new_id("con"),
        agent=agent,
        seed_count=len(seeds),  # the note that holds the state is none: no model sees it
        started_at=now,
        updated_at=now,
        **columns,
    )
    check_row(row)
    detail = SessionDetail(
        spec=None if spec is None else to_json(spec, "spec"),
        policy=None if policy is None else to_json(policy, "policy"),
        workspace=None if workspace is None else workspace.to_json(),
        state=to_json(_fold(written.payloads), "state"),
    )
    return NewSession(row, new_key(runtime), detail, written.entries, written.blobs), written.cursor


def find_keyed(store: StoreBackend, scope: str, asked: Asked) -> SessionRow | None:
    """Return the session that was made under a key; None if there is none. `KeyReused` if another was asked for."""
    if asked.key is None:
        return None
    row = store.find_session(keyed_session_id(scope, asked.key))
    if row is not None:
        started = store.journal(row.session_id, 0, 1)[0].fact
        if not isinstance(started, Started) or started.digest != asked.digest:
            raise KeyReused(row.session_id, asked.key)
    return row


def _fold(seeds: Sequence[Payload]) -> State:
    state: State = {}
    for seed in seeds:
        for update in state_updates(seed):
            state = merge_state(state, update)
    return state


def check_names(redactor: Redactor, columns: Mapping[str, Any]) -> None:
    """Raise SecretInName if an id, a name or a tag holds a secret. The other columns are text, and redacted."""
    for name in ID_COLUMNS:
        redactor.check_name(columns.get(name), name.replace("_", " "))
    for tag, value in dict(columns.get("tags") or {}).items():
        redactor.check_name(tag, "tag")
        redactor.check_name(value, f"tag {tag}")
    for tool in columns.get("tool_names") or ():
        redactor.check_name(tool, "tool name")


def _check_workspace(redactor: Redactor, workspace: Workspace | None) -> None:
    """Raise SecretInWorkspace if a workspace holds a secret.

    A workspace is echoed in plain text, and prompts are filled from the workspace.
    """
    if workspace is None:
        return
    fields = msgspec.to_builtins(workspace)
    variables = fields.pop("variables", {})
    for name, value in variables.items():
        if redactor.redact_text(name) != name or redactor.redact_text(value) != value:
            raise SecretInWorkspace(f"variable {shorten(redactor.redact_text(name))!r}")
    for name, value in fields.items():
        if redactor.redact_json(value) != value:
            raise SecretInWorkspace(name)


def _fill(draft: Draft, workspace: Workspace | None) -> Draft:
    if workspace is None:
        return draft
    if isinstance(draft.payload, Settings):
        return replace(draft, payload=workspace.fill_settings(draft.payload))
    return (
        replace(draft, payload=workspace.fill(draft.payload)) if isinstance(draft.payload, Message) else draft
    )


def check_row(row: SessionRow) -> None:
    """Raise for a row unfit for some store: types first, then text."""
    for name in TEXT_COLUMNS:
        check_text(getattr(row, name), name)
    for name in INDEXED_COLUMNS:
        check_length(getattr(row, name), name)
    decode_or_refuse(_rows, to_json(msgspec.to_builtins(row), "session"), "session")
    check_id(row.session_id)
    for text in (*row.tags, *row.tags.values(), *row.tool_names):
        check_text(text, "a tag or tool name")
    if row.context_window is not None and not 0 <= row.context_window <= MAX_COUNT:
        raise InvalidCount("context_window", row.context_window)
