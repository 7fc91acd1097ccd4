"""Forking: a new session that stands on a place of another's path. No entry is copied, the source is untouched."""

from __future__ import annotations

from .changes import Cut
from .core.entries import Settings
from .log import Log
from .stores.store import Relation, SessionRow


def fork(
    log: Log, cut: Cut, settings: Settings, *, relation: Relation = "fork", title: str | None = None
) -> Log:
    """The log of a session from `cut` on; what `settings` override is its first entry.

    A replay belongs to whoever makes it and not to the person whose session it is made of.
    """
    world, source = log.world, log.store.session(log.session_id)
    row = SessionRow(
        session_id=world.new_id("ses"),
        space=source.space,
        owner=log.store.owner if relation == "replay" else source.owner,
        conversation_id=world.new_id("con"),
        agent=source.agent,
        title=world.redactor.json(title) or source.title,
        relation=relation,
        parent_session=source.session_id,
        model=settings.model or source.model,
        context_window=source.context_window,
        tool_names=source.tool_names if settings.tools is None else settings.tools,
        started_at=(now := world.now()),
        updated_at=now,
    )
    made, cursor = log.fork(cut, row, None if settings == Settings() else settings)
    return Log(log.store, made, world, cursor)
