"""Bundles: a session, whole, in one file that any store takes in again. docs/format.md says what is in it.

Export streams one consistent read of the store into the file; import reads the file twice, first to check
everything and then to write it in one transaction. No evidence ever leaves: what a provider signed is between
it and us.
"""

from __future__ import annotations

import io
import os
from itertools import chain
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from ...errors import InvalidArgument, InvalidBundle
from ...log.runtime import Runtime
from ...stores.base import StoreBackend
from ...stores.transfer import SessionExports
from ..copy import import_dumps
from .lines import FORMAT, Header
from .read import BundleReader, check, opened
from .redaction import MARK, Redaction
from .write import BundleExportResult, BundleWriter, OnProgress, atomic_file, write_error

PathOrFile = str | os.PathLike[str] | BinaryIO


class BundleImportResult(Struct, frozen=True):
    """What a bundle brought here: what is new, and what was known."""

    session_id: str
    """The session the bundle was made for, by the id it has here."""
    added: tuple[str, ...]
    """The sessions written now, it and its tasks."""
    existing: tuple[str, ...]
    """Those that were here before with the same content: of them nothing was written."""
    entries: int
    blobs: int
    missing_blobs: int
    """Blobs that are named and neither in the bundle nor here; they show as stubs."""
    redacted: bool = False


def export(
    store: StoreBackend,
    runtime: Runtime,
    session_id: str,
    to: PathOrFile,
    *,
    blobs: bool = False,
    children: bool = True,
    redact: bool = False,
    progress: OnProgress | None = None,
) -> BundleExportResult:
    """Write one session, and its tasks, as a bundle. The same session makes the same bytes, wherever it lies."""
    if blobs and redact:
        raise InvalidArgument(
            "blobs", blobs, "False where redact=True: the bytes of blobs cannot be looked through"
        )
    redaction = Redaction(runtime.redactor) if redact else None
    with store.export_sessions(session_id, children=children) as found:
        sessions = iter(found.sessions if redaction is None else redaction.dumps(found.sessions))
        first = next(sessions)
        header = Header(FORMAT, first.row.session_id, children, blobs, first.row.tags.get(MARK) == "true")
        dumps = SessionExports(chain([first], sessions), found.blobs)
        exported = _written(to, header, dumps, store.url, progress)
    return exported if redaction is None else replace(exported, redactions=dict(redaction.tally.masked))


def _written(
    to: PathOrFile, header: Header, dumps: SessionExports, where: str, tell: OnProgress | None
) -> BundleExportResult:
    if isinstance(to, str | os.PathLike):
        with atomic_file(to) as file:
            return BundleWriter(file, where, tell).bundle(header, dumps)
    try:
        return BundleWriter(to, where, tell).bundle(header, dumps)
    except BrokenPipeError:
        raise  # whoever reads went away; that is for the owner of the stream to judge
    except OSError as error:
        raise write_error(str(getattr(to, "name", "the bundle")), error) from None


def import_bundle(
    store: StoreBackend,
    runtime: Runtime,
    source: PathOrFile,
    *,
    new_id: bool = False,
    progress: OnProgress | None = None,
) -> BundleImportResult:
    """Take a bundle in: all of it, in one transaction, or nothing. Twice adds nothing.

    `new_id` gives it and its tasks fresh ids, to lie beside what has theirs.
    """
    if isinstance(source, io.TextIOBase):
        raise InvalidBundle(
            str(getattr(source, "name", "the bundle")), 0, 'it was opened as text; open it with "rb"'
        )
    with opened(source) as (file, where):
        begin = file.tell()
        found = check(file, where, progress)
        file.seek(begin)
        reader = BundleReader(file, where, "taking in", progress)
        taken = import_dumps(store, runtime, reader.dumps(found.stands_on), new_id=new_id)
    first = taken.added[0] if new_id else found.header.session
    return BundleImportResult(
        first, taken.added, taken.known, taken.entries, taken.blobs, taken.missing, found.header.redacted
    )
