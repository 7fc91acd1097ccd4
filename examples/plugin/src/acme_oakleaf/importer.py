"""Read the chats of Acme's support: a file of JSON lines for each, `{"from": "customer", "text": "…", "at": 1767225600}`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import DecodeError, Struct, json

from oakleaf import assistant, user
from oakleaf.errors import InvalidSource
from oakleaf.ingest.importers import Importer
from oakleaf.ingest.records import EntryRecord, LossReport, SessionRecord

SUFFIX = ".acme"


class Line(Struct, rename={"sender": "from"}):
    sender: Literal["customer", "agent"]
    text: str
    at: int
    """Seconds since 1970."""


def read_sessions(source: str) -> Iterator[SessionRecord]:
    place = Path(source)
    files = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
    if not files or not all(file.is_file() and file.suffix == SUFFIX for file in files):
        raise InvalidSource(source, "acme", f"it is no folder of {SUFFIX} files and no such file")
    return map(read_session, files)


def read_session(file: Path) -> SessionRecord:
    losses = LossReport()
    entries = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        try:
            line = json.decode(text, type=Line)
        except DecodeError as error:
            losses.add("a line that is no message", f"{file.name}:{number}: {error}")
            continue
        message = user(line.text) if line.sender == "customer" else assistant(line.text)
        entries.append(EntryRecord(message, at=line.at * 1_000_000))
    return SessionRecord("acme", file.stem, tuple(entries), agent="acme-support", losses=losses)


IMPORTER = Importer(source=f"a folder of {SUFFIX} files, or one of them", sessions=read_sessions)
