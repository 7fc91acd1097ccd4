"""Export a session as a bundle, one file that any store can import. docs/format.md describes the format.

Export streams one consistent read of the store into the file. Import reads the file twice: first to check everything,
then to write it in one transaction. Evidence, which providers signed for this store, is never exported.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.bundle.copy import as_imported, import_exports
from oakleaf.bundle.lines import FORMAT, Header
from oakleaf.bundle.model_addresses import ModelAddresses
from oakleaf.bundle.read import BundleReader, check_bundle, open_twice
from oakleaf.bundle.redaction import MARK, Redaction
from oakleaf.bundle.write import BundleExportResult, BundleWriter, OnProgress, open_target
from oakleaf.core.codec import from_json
from oakleaf.errors import InvalidArgument, InvalidBundle, SecretInName
from oakleaf.log.log import Log
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.transfer import SessionExports

PathOrFile = str | os.PathLike[str] | BinaryIO


class BundleImportResult(Struct, frozen=True):
    """The result of importing a bundle."""

    session_id: str
    """The session behind the bundle, by the id in this store."""
    added: tuple[str, ...]
    """The written sessions: the session and all tasks."""
    existing: tuple[str, ...]
    """The sessions present before with the same content; nothing was written for them."""
    entries: int
    blobs: int
    missing_blobs: int
    """Referenced blobs missing in the bundle and in the store; shown as placeholders."""
    redacted: bool = False
    foreign_addresses: tuple[str, ...] = ()
    """Addresses of models in the import, without any requests unless allowed here on purpose."""


def export(
    log: Log,
    to: PathOrFile,
    *,
    blobs: bool = False,
    children: bool = True,
    redact: bool = False,
    hide: Sequence[str] = (),
    progress: OnProgress | None = None,
) -> BundleExportResult:
    """Write a session and all tasks as a bundle. The same session gives the same bytes from any store.

    `hide` are words to redact beside secrets. SecretInName if one is left where nothing can be redacted: in the id of a call.
    """
    if isinstance(hide, str):
        raise InvalidArgument("hide", hide, "a list of words")
    if blobs and (redact or hide):
        raise InvalidArgument("blobs", blobs, "False with redact=True: blobs cannot be searched for secrets")
    redactor = log.runtime.redactor.hiding(hide) if hide else log.runtime.redactor
    redaction = Redaction(redactor) if redact or hide else None

    def check(line: bytes) -> None:
        if hide and redactor.may_contain_secret(line):
            kind = from_json(line)["line"]
            raise SecretInName(f"a name in the {kind} of the bundle", "a hidden word")

    with log.store.export_sessions(log.session_id, children=children) as source:
        sessions = iter(source.sessions if redaction is None else redaction.dumps(source.sessions))
        first = next(sessions)
        header = Header(FORMAT, first.row.session_id, children, blobs, MARK in first.row.tags)
        blobs_of = source.blobs if redaction is None else redaction.blobs(source.blobs)
        dumps = SessionExports(chain([first], sessions), blobs_of)
        with open_target(to, "the bundle") as file:
            exported = BundleWriter(file, log.store.url, progress, check).bundle(header, dumps)
    return exported if redaction is None else replace(exported, redactions=dict(redaction.redactor.counts))


class CheckedBundle:
    """A bundle after a complete check, before anything is written."""

    def __init__(self, file: BinaryIO, name: str, progress: OnProgress | None) -> None:
        start = file.tell()
        self._inherited_hashes = check_bundle(file, name, progress)
        file.seek(start)
        self._reader = BundleReader(file, name, "importing", progress)

    def import_into(
        self, store: StoreBackend, runtime: Runtime, *, new_id: bool = False
    ) -> BundleImportResult:
        """Import the bundle in a single transaction, all or nothing; callable once."""
        addresses = ModelAddresses()
        dumps = addresses.watch(as_imported(self._reader.dumps(self._inherited_hashes)))
        result = import_exports(store, runtime, dumps, new_id=new_id)
        header = self._reader.header
        return BundleImportResult(
            result.added[0] if new_id else header.session,
            result.added,
            result.known,
            result.entries,
            result.blobs,
            result.missing,
            header.redacted,
            addresses.addresses,
        )


@contextmanager
def open_bundle(source: PathOrFile, progress: OnProgress | None = None) -> Iterator[CheckedBundle]:
    """Open a bundle and check all contents; raise InvalidBundle at the first problem."""
    if isinstance(source, io.TextIOBase):
        raise InvalidBundle(
            str(getattr(source, "name", "the bundle")), 0, 'it was opened as text; open it with "rb"'
        )
    with open_twice(source) as (file, name):
        yield CheckedBundle(file, name, progress)


def import_bundle(
    store: StoreBackend,
    runtime: Runtime,
    source: PathOrFile,
    *,
    new_id: bool = False,
    progress: OnProgress | None = None,
) -> BundleImportResult:
    """Import a bundle in a single transaction, all or nothing. Importing it again adds nothing.

    `new_id` gives it and its tasks new ids, so that it can exist beside the original.
    """
    with open_bundle(source, progress) as bundle:
        return bundle.import_into(store, runtime, new_id=new_id)
