"""A session before it exists: its row, its seeds and what is frozen with it, checked so that every store can keep it.

Pure but for the clock and the ids of the world it is given. Does not know stores; whoever made it hands it to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ..core.codec import check_json, check_text, decode_or_refuse, to_json
from ..core.drafts import Draft, build_entries
from ..core.entries import Note
from ..core.messages import Message
from ..core.state import merge_state
from ..core.turns import Cursor
from ..core.usage import MAX_COUNT
from ..errors import InvalidCount, InvalidText
from ..stores.base import NewSession, SessionDetail, SessionRow
from .runtime import Runtime
from .workspace import Workspace

_rows = msgspec.json.Decoder(SessionRow)
TEXT_COLUMNS = (
    *("session_id", "space", "owner", "conversation_id", "agent", "title", "status", "relation"),
    *("parent_session", "trigger_type", "trigger_id", "model", "holder", "error"),
)


def new_session(
    runtime: Runtime,
    space: str,
    agent: str | None,
    seeds: Sequence[Draft],
    session_id: str | None,
    about: dict[str, Any],
) -> tuple[NewSession, Cursor]:
    """The session, and the cursor behind its seeds. `about` it: see `Store.start`."""
    workspace = cast(Workspace | None, about.pop("workspace", None))
    for name in ("spec", "policy", "state"):
        check_json(about.get(name), name)
    about = runtime.redactor.redact_json(about)
    wide = {name: about.pop(name, None) for name in ("spec", "policy", "state")}
    opening = list(seeds) if workspace is None else [_filled(draft, workspace) for draft in seeds]
    if wide["state"] is not None:
        opening.append(Draft(Note(state=wide["state"])))
    now = runtime.now()
    written = build_entries(Cursor(), opening, now, seed=True, redactor=runtime.redactor)
    names = about.get("tool_names", ())
    if isinstance(names, list | tuple):
        about["tool_names"] = tuple(names)
    row = SessionRow(
        session_id=session_id or runtime.new_id("ses"),
        space=space,
        conversation_id=about.pop("conversation_id", None) or runtime.new_id("con"),
        agent=agent,
        seed_count=len(written.entries),
        started_at=now,
        updated_at=now,
        **about,
    )
    check_row(row)
    detail = SessionDetail(
        spec=None if wide["spec"] is None else to_json(wide["spec"], "spec"),
        policy=None if wide["policy"] is None else to_json(wide["policy"], "policy"),
        workspace=None if workspace is None else to_json(msgspec.to_builtins(workspace), "workspace"),
        state=None if wide["state"] is None else to_json(merge_state({}, wide["state"]), "state"),
    )
    return NewSession(row, runtime.new_id(""), detail, written.entries, written.blobs), written.cursor


def _filled(draft: Draft, workspace: Workspace) -> Draft:
    return Draft(workspace.fill(draft.payload)) if isinstance(draft.payload, Message) else draft


def check_row(row: SessionRow) -> None:
    """Refuse a row that not every store could keep: types first, then text for plain columns."""
    for name in TEXT_COLUMNS:
        check_text(getattr(row, name), name)
    decode_or_refuse(_rows, to_json(msgspec.to_builtins(row), "session"), "session")
    if not row.session_id.isprintable() or row.session_id != row.session_id.strip() or not row.session_id:
        raise InvalidText("session id", "nothing, a blank at its ends, or what cannot be printed")
    for text in (*row.tags, *row.tags.values(), *row.tool_names):
        check_text(text, "a tag or tool name")
    if row.context_window is not None and not 0 <= row.context_window <= MAX_COUNT:
        raise InvalidCount("context_window", row.context_window)
