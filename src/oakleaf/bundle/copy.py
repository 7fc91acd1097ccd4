"""Copy sessions between stores without a file.

Whoever opens two stores and copies from one to the other trusts both: what was decided in one counts in the other, and
what had come to it from elsewhere is still from elsewhere. A file is not trusted: `as_imported`.
"""

from __future__ import annotations

from msgspec.structs import replace

from oakleaf.bundle.rename import with_new_ids
from oakleaf.core.ids import check_id
from oakleaf.errors import SessionTrashed
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.transfer import ImportResult, SessionExport, SessionExports


def import_exports(
    store: StoreBackend, runtime: Runtime, exports: SessionExports, *, new_id: bool
) -> ImportResult:
    if new_id:
        exports = SessionExports(with_new_ids(exports.sessions, runtime.new_id), exports.blobs)
    return store.import_sessions(with_checked_ids(exports), runtime.now())


def with_checked_ids(exports: SessionExports) -> SessionExports:
    """Return the same sessions; raise `InvalidId` at the first illegal id."""

    def check(export: SessionExport) -> SessionExport:
        check_id(export.row.session_id)
        return export

    return SessionExports(map(check, exports.sessions), exports.blobs)


def as_imported(exports: SessionExports) -> SessionExports:
    """Mark incoming decisions and open calls as done elsewhere: decisions do not count here, and open calls run only
    if a person accepts.
    """

    def mark(export: SessionExport) -> SessionExport:
        row = replace(export.row, imported_facts=export.row.facts)
        inbox = (replace(queued, is_imported=True) for queued in export.inbox)
        return replace(export, row=row, inbox=inbox)

    return SessionExports(map(mark, exports.sessions), exports.blobs)


def copy_session(
    source: StoreBackend, session_id: str, target: StoreBackend, runtime: Runtime, *, new_id: bool
) -> str:
    """Copy a session and all tasks, with blobs and evidence, into another store or space; return the new id."""
    if source.session(session_id).trashed_at is not None:
        raise SessionTrashed(session_id)
    with source.export_sessions(session_id, children=True) as exports:
        result = import_exports(target, runtime, exports, new_id=new_id)
    return result.added[0] if new_id else session_id
