"""Keep what an importer does not know: formats grow, and an item of a new kind is stored as a note and counted."""

from __future__ import annotations

from ..core.codec import to_json
from ..core.entries import Note
from ..errors import BoughError
from .records import LossReport

UNKNOWN_KIND = "an item of unknown kind, kept as a note"


def unknown_note(tool: str, kind: object, data: object, losses: LossReport) -> Note:
    """Return a note with the item as it is, or with its text if no store could keep it, and count it."""
    losses.add(UNKNOWN_KIND, str(kind))
    try:
        to_json(data, "an item")
    except (BoughError, RecursionError):
        data = repr(data).encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return Note({tool: "unknown", "kind": str(kind).replace("\0", "\ufffd"), "data": data})
