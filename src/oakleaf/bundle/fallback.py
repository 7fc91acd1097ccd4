"""Find a conversation that is not here yet in an older store or in a Redis, and import it."""

from __future__ import annotations

from oakleaf.bundle.copy import import_exports
from oakleaf.errors import IdConflict, InvalidSource
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import SessionQuery, StoreBackend


def import_conversation(
    older: StoreBackend | str, store: StoreBackend, runtime: Runtime, conversation_id: str, owner: str | None
) -> None:
    """Import a missing conversation; with an owner, only the owner's. An older store's sessions come oldest first.

    If two processes do so at once, the second import adds nothing; if the first has already continued the
    conversation, its version wins.
    """
    if _has_conversation(store, conversation_id, owner):
        return
    if isinstance(older, str):
        _import_chat(older, store, runtime, conversation_id, owner)
        return
    rows = older.all_sessions(SessionQuery(conversation_id=conversation_id, owner=owner))  # newest first
    session_ids = [row.session_id for row in rows][::-1]
    try:
        with older.export_sessions(*session_ids, children=True) as exports:
            import_exports(store, runtime, exports, new_id=False)
    except IdConflict:
        if not _has_conversation(store, conversation_id, owner):
            raise


def _has_conversation(store: StoreBackend, conversation_id: str, owner: str | None) -> bool:
    """Count trashed sessions too: a session deleted here must not come back from the older store."""
    queries = (
        SessionQuery(conversation_id=conversation_id, owner=owner, trashed=trashed, limit=1)
        for trashed in (False, True)
    )
    return any(store.sessions(query) for query in queries)


def _import_chat(
    address: str, store: StoreBackend, runtime: Runtime, conversation_id: str, owner: str | None
) -> None:
    """Import a chat from a Redis. One that is away, or that cannot be imported, is an error: starting anew would hide it."""
    from oakleaf.ingest.importers import read_conversation
    from oakleaf.ingest.ingest import import_session

    record = read_conversation("redis", address, conversation_id)
    result = None if record is None else import_session(store, runtime, record, owner=owner)
    if result is not None and result.error is not None:
        raise InvalidSource(f"conversation {conversation_id}", "redis", result.error)
