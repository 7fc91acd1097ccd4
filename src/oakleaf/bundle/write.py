"""Write a bundle: sessions as lines, a hash over all of them at the end, and a file that is complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, field

from oakleaf.bundle.lines import (
    BlobLine,
    CallLine,
    Counts,
    EndLine,
    Header,
    Line,
    PieceLine,
    branch_line,
    encode_line,
    entry_line,
    fact_line,
    queued_line,
    session_line,
)
from oakleaf.errors import StoreDamaged, StoreError, StoreFull, StoreReadOnly
from oakleaf.log.integrity import IntegrityError, check_export
from oakleaf.stores.transfer import PIECE_BYTES, BlobReferences, BlobStream, SessionExport, SessionExports

PROGRESS_INTERVAL = 1_000


class TransferProgress(Struct, frozen=True):
    """Progress, reported every thousand lines."""

    phase: str
    """writing, checking or importing"""
    lines: int
    bytes: int


OnProgress = Callable[[TransferProgress], None]


class BundleExportResult(Struct, frozen=True):
    """The written and the omitted parts of a bundle."""

    counts: Counts
    bytes: int
    omitted_blobs: int
    """Referenced blobs outside the bundle: not requested, or missing in the store."""
    redactions: dict[str, int] = field(default_factory=dict)
    """In a redacted bundle: how often each secret was hidden, by its name."""


class BundleWriter:
    """Writes lines to a file, with hash and count."""

    def __init__(
        self,
        file: BinaryIO,
        where: str,
        progress: OnProgress | None,
        check: Callable[[bytes], None] = lambda line: None,
    ) -> None:
        self.file, self.where, self.progress, self.check = file, where, progress, check
        self.hash = sha256()
        self.bytes = self.lines = 0
        self.counts = Counts()
        self.references = BlobReferences()

    def put(self, line: Line) -> None:
        data = encode_line(line) + b"\n"
        self.check(data)
        self.hash.update(data)
        self.file.write(data)
        self.bytes += len(data)
        self.lines += 1
        if self.progress is not None and self.lines % PROGRESS_INTERVAL == 0:
            self.progress(TransferProgress("writing", self.lines, self.bytes))

    def bundle(self, header: Header, dumps: SessionExports) -> BundleExportResult:
        self.put(header)
        for dump in dumps.sessions:
            try:
                self._session(dump)
            except IntegrityError as error:
                why = f"session {dump.row.session_id}: {error}"
                raise StoreDamaged(self.where, why) from None
        mimes, definitions = self.references.mimes, self.references.definitions
        for blob in dumps.blobs(mimes if header.blobs else {name: mimes[name] for name in definitions}):
            self._blob(blob)
        self.put(EndLine(self.counts, self.hash.hexdigest()))
        return BundleExportResult(self.counts, self.bytes, len(mimes) - self.counts.blobs)

    def _session(self, dump: SessionExport) -> None:
        dump = check_export(dump)
        self.counts.sessions += 1
        self.put(session_line(dump.row, dump.detail))
        for branch in dump.branches:
            self.put(branch_line(branch))
        for call in dump.inherited_calls:
            self.put(CallLine(call, inherited=True))
        for stored in dump.entries:
            self.references.add(stored.entry.kind, stored.entry.body)
            self.put(entry_line(stored))
            self.counts.entries += 1
        for call in dump.calls:
            self.put(CallLine(call))
            self.counts.calls += 1
        for fact in dump.facts:
            self.put(fact_line(fact))
            self.counts.facts += 1
        for queued in self.references.inbox(dump.inbox):
            self.put(queued_line(queued))

    def _blob(self, blob: BlobStream) -> None:
        self.put(BlobLine(blob.hash, blob.mime, blob.size))
        self.counts.blobs += 1
        digest, size = sha256(), 0
        for piece in _split(blob):
            digest.update(piece)
            size += len(piece)
            self.put(PieceLine(piece))
        if (digest.hexdigest(), size) != (blob.hash, blob.size):
            raise StoreDamaged(self.where, f"blob {blob.hash} does not match its hash")


def _split(blob: BlobStream) -> Iterator[bytes]:
    """Cut pieces to the same size, so that bundles from different stores are equal."""
    for piece in blob.pieces:
        for begin in range(0, len(piece), PIECE_BYTES):
            yield piece[begin : begin + PIECE_BYTES]


@contextlib.contextmanager
def open_target(to: str | os.PathLike[str] | BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Open a path as `atomic_file` does, or write to an open file; `name` is the name in errors."""
    if isinstance(to, str | os.PathLike):
        with atomic_file(to) as file:
            yield file
        return
    try:
        yield to
    except BrokenPipeError:
        raise  # the reader closed the stream; its owner decides what that means
    except OSError as error:
        raise write_error(str(getattr(to, "name", name)), error) from None


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that appears under the final name once complete and on disk; a failure leaves no file behind."""
    target = Path(os.path.realpath(path))  # write through a symbolic link
    if target.exists() and not target.is_file():
        with _open_stream(target) as file:
            yield file
        return
    partial = target.with_name(f".{target.name}.{os.urandom(6).hex()}.part")
    try:
        handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        raise write_error(str(target), error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise write_error(str(target), error) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


@contextlib.contextmanager
def _open_stream(target: Path) -> Iterator[BinaryIO]:
    """Write to a pipe or device directly: a replacement file would break other readers."""
    try:
        with open(target, "wb") as file:
            yield file
    except OSError as error:
        raise write_error(str(target), error) from None


def write_error(where: str, error: OSError) -> StoreError:
    """Return the store error for an error of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(where)
    if isinstance(error, PermissionError):
        return StoreReadOnly(where)
    return StoreError(f"{where} cannot be written ({error}); name another path")
