"""What tests ask of a session and a plugin would ask of its store."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from oakleaf import Session
from oakleaf.ext import store_of


def tasks_of(session: Session) -> list[Session]:
    """Return the tasks of a session, newest first."""
    store = store_of(session)
    rows = store.all_sessions(parent_session=session.session_id, relation="task")
    return [store.session(row.session_id) for row in rows]


def exported(session: Session, format: str, **options: Any) -> str:
    """Return what an export writes, as text."""
    file = io.BytesIO()
    session.export(file, format, **options)
    return file.getvalue().decode()


def exported_lines(session: Session, format: str, **options: Any) -> list[str]:
    """Return what an export writes, line by line, with the line ends."""
    return [line.decode() for line in exported(session, format, **options).encode().splitlines(keepends=True)]


def exported_pieces(session: Session, format: str, **options: Any) -> list[str]:
    """Return what an export writes, one text per write."""
    pieces: list[str] = []

    class File(io.RawIOBase):
        def write(self, data: Any, /) -> int:
            pieces.append(bytes(data).decode())
            return len(data)

    session.export(cast(BinaryIO, File()), format, **options)
    return pieces
