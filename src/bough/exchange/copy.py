"""Copy sessions between stores without a file: deep copies, and conversations imported from an older store.

Whoever opens two stores and copies from one to the other trusts both: what was decided in one counts in the other, and
what had come to it from elsewhere is still from elsewhere. A file is not trusted: `as_imported`.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..errors import IdConflict, SessionTrashed
from ..log.runtime import Runtime
from ..stores.base import SessionQuery, StoreBackend
from ..stores.transfer import ImportResult, SessionExport, SessionExports
from .bundle.rename import with_new_ids


def import_exports(
    store: StoreBackend, runtime: Runtime, exports: SessionExports, *, new_id: bool
) -> ImportResult:
    if new_id:
        exports = SessionExports(with_new_ids(exports.sessions, runtime.new_id), exports.blobs)
    return store.import_sessions(exports, runtime.now())


def as_imported(exports: SessionExports) -> SessionExports:
    """Mark all that comes in as done elsewhere: its decisions do not count here, and what it left open runs only if a
    person accepts it."""

    def mark(export: SessionExport) -> SessionExport:
        row = replace(export.row, imported_facts=export.row.facts)
        inbox = (replace(queued, is_imported=True) for queued in export.inbox)
        return replace(export, row=row, inbox=inbox)

    return SessionExports(map(mark, exports.sessions), exports.blobs)


def copy_session(
    source: StoreBackend, session_id: str, target: StoreBackend, runtime: Runtime, *, new_id: bool
) -> str:
    """Copy a session and its tasks, with blobs and evidence, into another store or space; return its id there."""
    if source.session(session_id).trashed_at is not None:
        raise SessionTrashed(session_id)
    with source.export_sessions(session_id, children=True) as exports:
        result = import_exports(target, runtime, exports, new_id=new_id)
    return result.added[0] if new_id else session_id


def import_conversation(
    older: StoreBackend, store: StoreBackend, runtime: Runtime, conversation_id: str, owner: str | None
) -> None:
    """Import a conversation that is not here yet from an older store, its sessions oldest first; with an owner, that one's.

    If two processes do so at once, the second import adds nothing; if the first has already continued the
    conversation, its version wins.
    """
    if _has_conversation(store, conversation_id, owner):
        return
    rows = older.all_sessions(SessionQuery(conversation_id=conversation_id, owner=owner))  # newest first
    session_ids = [row.session_id for row in rows][::-1]
    try:
        with older.export_sessions(*session_ids, children=True) as exports:
            store.import_sessions(exports, runtime.now())
    except IdConflict:
        if not _has_conversation(store, conversation_id, owner):
            raise


def _has_conversation(store: StoreBackend, conversation_id: str, owner: str | None) -> bool:
    """Count trashed sessions too: what was deleted here must not come back from the older store."""
    queries = (
        SessionQuery(conversation_id=conversation_id, owner=owner, trashed=trashed, limit=1)
        for trashed in (False, True)
    )
    return any(store.sessions(query).sessions for query in queries)
