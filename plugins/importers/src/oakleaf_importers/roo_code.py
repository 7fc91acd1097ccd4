"""Import Roo Code: task folders as Cline wrote them before version 4, with Roo Code's own metadata."""

from __future__ import annotations

from collections.abc import Iterator

from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import SessionRecord
from oakleaf_importers.cline import read_tasks, task_source
from oakleaf_importers.formats.source_files import config_folders

NAME = "roo-code"


def read_sessions(source: str) -> Iterator[SessionRecord]:
    yield from read_tasks(source, NAME)


IMPORTER = Importer(
    source="the extension's folder in globalStorage, or one api_conversation_history.json in it",
    sessions=read_sessions,
    default_paths=config_folders("Code/User/globalStorage/rooveterinaryinc.roo-cline"),
    source_of=task_source,
    versions="3.52",
)
