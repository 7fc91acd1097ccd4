"""What several formats share: the option of redacting, the row of a session for others, and small conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Session
from oakleaf.core.messages import Text, ToolResult
from oakleaf.core.redact import Redactor
from oakleaf.ext import read
from oakleaf.stores.base import SessionRow


class PathOptions(Struct, frozen=True, kw_only=True):
    """Of a format for others: secrets known by now are hidden."""

    redact: bool = True


def redactor_of(session: Session, options: PathOptions) -> Redactor | None:
    return read(session).redactor if options.redact else None


def shared_row(session: Session, options: PathOptions) -> SessionRow:
    """Return the session's row for sharing."""
    row, redactor = session.row, redactor_of(session, options)
    if redactor is None:
        return row
    hide = redactor.redact_json
    return replace(row, title=hide(row.title), error=hide(row.error), agent=hide(row.agent))


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def result_text(result: ToolResult) -> str:
    return "\n".join(piece.text for piece in result.content if isinstance(piece, Text))
