"""Fork a session: a new session from a position on another's path.

Copies no entry and does not touch the source.

The frozen agent, the policy and the workspace are copied, usually a few hundred bytes. Read through the
parent, the three would be lost at a purge of the parent, and missing in a bundle of the fork alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from oakleaf.core.context import check_tools_allowed
from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.entries import Settings
from oakleaf.core.ids import check_id
from oakleaf.errors import OakleafError, SessionTrashed
from oakleaf.log.changes import keyed_session_id, new_key
from oakleaf.log.log import Log
from oakleaf.log.new_session import check_names, find_keyed
from oakleaf.log.request import NOTHING_ASKED, Asked, Cut, Place
from oakleaf.stores.base import NewSession, Relation, SessionRow


def fork(
    log: Log,
    place: Place,
    settings: Settings,
    *,
    relation: Relation = "fork",
    agent: str | None = None,
    title: str | None = None,
    session_id: str | None = None,
    conversation_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    asked: Asked = NOTHING_ASKED,
) -> Log:
    """Create the fork at the place and return the log of the fork. Overridden settings are the first entry.

    Asked for under a key, the fork has an id made of the key, and is found again.

    A replay belongs to the store's owner, not to the owner of the source. A session in the trash can be read,
    but not forked: the deleted entries would stay for the fork's sake.
    """
    if asked.key is not None:
        session_id = keyed_session_id(log.session_id, asked.key)
    check_id(session_id)
    settings = log.fill(settings)
    log.runtime.redactor.check_name(agent, "agent")
    runtime, (source, detail) = log.runtime, log.store.session_with_detail(log.session_id)
    if source.trashed_at is not None:
        raise SessionTrashed(source.session_id)
    if settings.tools is not None:
        path = log.store.control_entries(log.session_id, leaf=place.leaf)
        check_tools_allowed(path, [settings], source.tool_names)
    row = SessionRow(
        session_id=session_id or runtime.new_id("ses"),
        space=source.space,
        owner=log.store.owner if relation == "replay" else source.owner,
        conversation_id=conversation_id or runtime.new_id("con"),
        agent=agent or source.agent,
        title=runtime.redactor.redact_json(title) or source.title,
        relation=relation,
        parent_session=source.session_id,
        model=settings.model or source.model,
        context_window=source.context_window,
        tool_names=source.tool_names if settings.tools is None else settings.tools,
        tags=dict(tags or {}),
        started_at=(now := runtime.now()),
        updated_at=now,
    )
    if source.leaf != log.leaf or place.at != log.leaf.seq:
        detail = replace(detail, state=None)  # folded when it is read
    check_names(runtime.redactor, {"conversation_id": row.conversation_id, "tags": row.tags})
    drafts = [] if settings == Settings() else [Draft(settings)]
    written = build_entries(place.cursor, drafts, row.started_at, redactor=runtime.redactor)
    new = NewSession(
        row=replace(row, parent_seq=place.at, seed_count=min(log.seed_count_on(log.ranges()), place.at)),
        key=new_key(runtime),
        digest=asked.digest,
        detail=detail,
        seeds=written.entries,
        fork_point=place.leaf,
        parent_facts=source.facts,
    )
    created, _ = log.store.create(new)
    return Log(log.store, created, runtime, written.cursor)


def fork_once(
    log: Log, asked: Asked, make: Callable[[], tuple[Log, Cut]], requested: int | None
) -> tuple[Log, Cut]:
    """Return the fork that was made under the key, or make it."""
    if (earlier := _find_fork(log, asked, requested)) is not None:
        return earlier
    try:
        return make()
    except OakleafError:
        if (earlier := _find_fork(log, asked, requested)) is not None:  # another process was first
            return earlier
        raise


def _find_fork(log: Log, asked: Asked, requested: int | None) -> tuple[Log, Cut] | None:
    row = find_keyed(log.store, log.session_id, asked)
    if row is None:
        return None
    at = row.parent_seq or 0
    return Log(log.store, row, log.runtime), Cut(at, at if requested is None else requested)
