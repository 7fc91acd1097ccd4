"""Forking: a new session that stands on a place of another's path. No entry is copied, the source is untouched.

The agent as frozen, the policy and the workspace are copied, a few hundred bytes as a rule: read through the parent
they would be gone when that is purged, and a bundle of the fork alone would lack them.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..core.context import check_tools_allowed
from ..core.entries import Settings
from ..stores.base import Relation, SessionRow
from .changes import Cut
from .log import Log


def fork(
    log: Log, cut: Cut, settings: Settings, *, relation: Relation = "fork", title: str | None = None
) -> Log:
    """The log of a session from `cut` on; what `settings` override is its first entry.

    A replay belongs to whoever makes it and not to the person whose session it is made of.
    """
    if settings.tools is not None:
        check_tools_allowed(
            log.store.non_message_entries(log.session_id, leaf=log.leaf_at(cut.at)), [settings]
        )
    runtime, (source, detail) = log.runtime, log.store.session_with_detail(log.session_id)
    row = SessionRow(
        session_id=runtime.new_id("ses"),
        space=source.space,
        owner=log.store.owner if relation == "replay" else source.owner,
        conversation_id=runtime.new_id("con"),
        agent=source.agent,
        title=runtime.redactor.redact_json(title) or source.title,
        relation=relation,
        parent_session=source.session_id,
        model=settings.model or source.model,
        context_window=source.context_window,
        tool_names=source.tool_names if settings.tools is None else settings.tools,
        started_at=(now := runtime.now()),
        updated_at=now,
    )
    kept = replace(detail, state=None)  # folded when it is asked for
    made, cursor = log.fork(cut, row, kept, None if settings == Settings() else settings)
    return Log(log.store, made, runtime, cursor)
