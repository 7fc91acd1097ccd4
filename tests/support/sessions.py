"""What tests ask of a session and a plugin would ask of its store."""

from __future__ import annotations

from oakleaf import Session
from oakleaf.ext import store_of


def tasks_of(session: Session) -> list[Session]:
    """Return the tasks of a session, newest first."""
    store = store_of(session)
    rows = store.all_sessions(parent_session=session.session_id, relation="task")
    return [store.session(row.session_id) for row in rows]
