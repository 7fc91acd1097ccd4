"""Export a session as minutes: who said what, one line each."""

from __future__ import annotations

from typing import BinaryIO

from msgspec import Struct

from oakleaf import Session
from oakleaf.ext import Exporter, read


class Options(Struct, frozen=True, kw_only=True):
    redact: bool = True
    """Hide what is known to be secret now."""


def write(session: Session, to: BinaryIO, options: Options) -> None:
    for entry in read(session).shared_entries(redact=options.redact):
        if entry.message is not None and entry.message.text:
            to.write(f"{entry.seq}. {entry.message.role}: {' '.join(entry.message.text.split())}\n".encode())


EXPORTER = Exporter(suffix=".txt", write=write, options=Options)
