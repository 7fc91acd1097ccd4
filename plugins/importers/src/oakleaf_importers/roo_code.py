"""Import Roo Code: task folders as Cline wrote them before version 4, with Roo Code's own metadata."""

from __future__ import annotations

from collections.abc import Iterator

from oakleaf.ingest.records import SessionRecord
from oakleaf_importers.cline import read_tasks

NAME = "roo-code"


def read_sessions(source: str) -> Iterator[SessionRecord]:
    yield from read_tasks(source, NAME)
