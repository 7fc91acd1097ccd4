"""Sessions from store to store, without a file between: deep copies, and conversations taken over from an older store."""

from __future__ import annotations

from ..errors import IdConflict
from ..log.runtime import Runtime
from ..stores.base import SessionQuery, StoreBackend
from ..stores.transfer import ImportResult, SessionExports
from .bundle.rename import beside


def import_dumps(
    store: StoreBackend, runtime: Runtime, dumps: SessionExports, *, new_id: bool
) -> ImportResult:
    if new_id:
        dumps = SessionExports(beside(dumps.sessions, runtime.new_id), dumps.blobs)
    return store.import_sessions(dumps, runtime.now())


def copy_session(
    source: StoreBackend, session_id: str, target: StoreBackend, runtime: Runtime, *, new_id: bool
) -> str:
    """A session and its tasks into another store or space, blobs and evidence too; returns its id there."""
    with source.export_sessions(session_id, children=True) as dumps:
        taken = import_dumps(target, runtime, dumps, new_id=new_id)
    return taken.added[0] if new_id else session_id


def import_conversation(
    older: StoreBackend, store: StoreBackend, runtime: Runtime, conversation_id: str
) -> None:
    """Bring a conversation that is not here yet from an older store, its sessions oldest first.

    Two processes may do so at once: what the other has taken in is the same, and adds nothing; if the other
    has gone on with it meanwhile, that is what counts.
    """
    if _is_here(store, conversation_id):
        return
    names = _sessions(older, conversation_id)
    try:
        with older.export_sessions(*names, children=True) as dumps:
            store.import_sessions(dumps, runtime.now())
    except IdConflict:
        if not _is_here(store, conversation_id):
            raise


def _is_here(store: StoreBackend, conversation_id: str) -> bool:
    """In the trash counts: what was deleted here is not to come back from there."""
    queries = (
        SessionQuery(conversation_id=conversation_id, trashed=trashed, limit=1) for trashed in (False, True)
    )
    return any(store.sessions(query).sessions for query in queries)


def _sessions(store: StoreBackend, conversation_id: str) -> list[str]:
    query = SessionQuery(conversation_id=conversation_id, limit=100_000)
    return [row.session_id for row in reversed(store.sessions(query).sessions)]
