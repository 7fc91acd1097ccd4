"""Read a bundle: lines back into sessions, and the hash against the last line.

A bundle is read twice: once to check it, once to import it. Errors name the line. Only the current line is kept in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from oakleaf.bundle.lines import (
    FORMAT,
    MAJOR,
    UNREADABLE,
    AnyLine,
    BlobLine,
    BranchLine,
    CallLine,
    Counts,
    EndLine,
    EntryLine,
    FactLine,
    Header,
    PieceLine,
    QueuedLine,
    SessionLine,
    branch_of,
    decode_line,
    entry_of,
    fact_of,
    queued_of,
    session_of,
)
from oakleaf.bundle.write import PROGRESS_INTERVAL, OnProgress, TransferProgress, write_error
from oakleaf.core.facts import StoredFact
from oakleaf.core.tool_definitions import MIME as TOOLS_MIME
from oakleaf.core.typed_json import json_decoder
from oakleaf.core.usage import MAX_COUNT, Call
from oakleaf.errors import InvalidBundle, NewerFormat, PrereleaseFormat
from oakleaf.log.integrity import IntegrityError, check_export
from oakleaf.stores.base import StoredEntry
from oakleaf.stores.transfer import BlobReferences, BlobStream, SessionExport, SessionExports, hash_inherited

MAX_HEADER = 64 * 1024
PRERELEASE = b'{"line":"bundle","format":"1'  # how a bundle of the product's former name begins
COPY_BYTES = 1 << 20
MAX_LINE = 1 << 30  # of a line: the largest body, and a bound against files that are not bundles

L = TypeVar("L", bound=AnyLine)


class _AnyHeader(Struct, frozen=True, tag_field="line", tag="oakleaf"):
    """The part of the header common to all versions."""

    format: Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,5}\.[0-9]{1,6}$")]


_decode_header = json_decoder(_AnyHeader)


class BundleReader:
    """A single pass over a bundle."""

    def __init__(self, file: BinaryIO, name: str, phase: str, progress: OnProgress | None) -> None:
        self.file, self.name, self.phase, self.progress = file, name, phase, progress
        self.n = self.bytes = 0
        self.hash, self._last = sha256(), b""
        self.counts = Counts()
        self.line: AnyLine | None = None
        self.header = self._header()
        self._next()

    def wrong(self, why: str) -> InvalidBundle:
        return InvalidBundle(self.name, self.n, why)

    # -- lines -------------------------------------------------------------------------------------

    def _header(self) -> Header:
        data = self._read_line(MAX_HEADER)
        try:
            any_header = _decode_header(data)
        except UNREADABLE:
            if data.startswith(PRERELEASE):
                raise PrereleaseFormat(self.name) from None
            raise self.wrong("this is not a bundle; oakleaf export writes one") from None
        if int(any_header.format.partition(".")[0]) > MAJOR:
            raise NewerFormat(self.name, any_header.format, FORMAT)
        header = self._decode(data)
        if not isinstance(header, Header):
            raise self.wrong("the first line is not a header")
        return header

    def _read_line(self, limit: int = MAX_LINE) -> bytes:
        data = self.file.readline(limit)
        self.n += 1
        self.bytes += len(data)
        if not data.endswith(b"\n"):
            raise self.wrong(
                "the file ends in the middle of this line" if len(data) < limit else "the line is too long"
            )
        self.hash.update(self._last)  # one line late: the last line holds the hash of all lines before it
        self._last = data
        if self.progress is not None and self.n % PROGRESS_INTERVAL == 0:
            self.progress(TransferProgress(self.phase, self.n, self.bytes))
        return data

    def _decode(self, data: bytes) -> AnyLine:
        try:
            line: AnyLine = decode_line(data)
        except UNREADABLE as error:
            raise self.wrong(f"it cannot be read ({error})") from None
        return line

    def _next(self) -> None:
        self.line = self._decode(self._read_line())

    def _lines_of(self, kind: type[L]) -> Iterator[L]:
        while isinstance(self.line, kind):
            yield self.line
            self._next()

    # -- sessions ----------------------------------------------------------------------------------

    def dumps(self, inherited_hashes: list[bytes] | None = None) -> SessionExports:
        """Return all sessions, to be read in order; `inherited_hashes` come from the first pass."""
        return SessionExports(self._sessions(inherited_hashes or []), self._blobs)

    def _sessions(self, inherited_hashes: list[bytes]) -> Iterator[SessionExport]:
        while isinstance(self.line, SessionLine):
            dump = self._session(
                self.line, inherited_hashes[self.counts.sessions] if inherited_hashes else b""
            )
            self.counts.sessions += 1
            yield dump
        if not self.counts.sessions:
            raise self.wrong("expected a session")

    def _session(self, line: SessionLine, inherited_hash: bytes) -> SessionExport:
        try:
            row, detail = session_of(line)
        except UNREADABLE as error:
            raise self.wrong(f"the row cannot be read ({error})") from None
        if not self.counts.sessions and row.session_id != self.header.session:
            raise self.wrong(
                f"session {row.session_id} comes first, but the header names {self.header.session}"
            )
        self._next()
        branches = tuple(branch_of(line, row.session_id) for line in self._lines_of(BranchLine))
        inherited_calls: list[Call] = []
        while isinstance(self.line, CallLine) and self.line.inherited:
            inherited_calls.append(self.line.call)
            self._next()
        return SessionExport(
            row=row,
            detail=detail,
            branches=branches,
            inherited_calls=tuple(inherited_calls),
            entries=self._entries(),
            calls=self._calls(),
            facts=self._facts(),
            inbox=(queued_of(line) for line in self._lines_of(QueuedLine)),
            inherited_hash=lambda: inherited_hash,
        )

    def _entries(self) -> Iterator[StoredEntry]:
        for line in self._lines_of(EntryLine):
            self.counts.entries += 1
            try:
                stored = entry_of(line)
            except UNREADABLE as error:
                raise self.wrong(f"the entry cannot be read ({error})") from None
            yield stored

    def _calls(self) -> Iterator[Call]:
        for line in self._lines_of(CallLine):
            if line.inherited:
                raise self.wrong("an inherited call must come before the entries")
            self.counts.calls += 1
            yield line.call

    def _facts(self) -> Iterator[StoredFact]:
        for line in self._lines_of(FactLine):
            self.counts.facts += 1
            yield fact_of(line)

    # -- blobs and the end -------------------------------------------------------------------------

    def _blobs(self, mimes: Mapping[str, str]) -> Iterator[BlobStream]:
        last_hash = ""
        while isinstance(self.line, BlobLine):
            line = self.line
            is_named = line.hash in mimes and (self.header.blobs or mimes[line.hash] == TOOLS_MIME)
            if line.hash <= last_hash or not is_named:
                raise self.wrong(
                    f"blob {line.hash} is unexpected: nothing refers to it, or it is out of order"
                )
            if not 0 <= line.size <= MAX_COUNT or "\0" in line.mime:
                raise self.wrong(f"blob {line.hash} has an invalid size or type")
            last_hash = line.hash
            self.counts.blobs += 1
            pieces = self._pieces(line)
            yield BlobStream(line.hash, line.mime, line.size, pieces)
            for _ in pieces:  # a store that has the blob reads none of it
                pass
        self._end()

    def _pieces(self, line: BlobLine) -> Iterator[bytes]:
        digest, size = sha256(), 0
        self._next()
        for piece in self._lines_of(PieceLine):
            size += len(piece.data)
            if not piece.data or size > line.size:
                raise self.wrong(f"blob {line.hash} has an empty piece, or more bytes than announced")
            digest.update(piece.data)
            yield piece.data
        if (digest.hexdigest(), size) != (line.hash, line.size):
            raise self.wrong(f"blob {line.hash} does not match its hash")

    def _end(self) -> None:
        line = self.line
        if not isinstance(line, EndLine):
            raise self.wrong(f"unexpected {type(line).__name__}")
        if line.sha256 != self.hash.hexdigest():
            raise self.wrong("the hash over all lines does not match: the file was altered")
        if line.counts != self.counts:
            raise self.wrong(f"it announces {line.counts}, but has {self.counts}")
        if self.file.read(1):
            raise self.wrong("there is more after the end")


def check_bundle(file: BinaryIO, name: str, progress: OnProgress | None) -> list[bytes]:
    """Read the whole bundle without keeping anything; raise `InvalidBundle` at the first problem.

    Returns by session the hash of the entries it inherits.
    """
    reader = BundleReader(file, name, "checking", progress)
    dumps, references = reader.dumps(), BlobReferences()
    try:
        hashes = [_read_to_end(check_export(dump), references) for dump in dumps.sessions]
    except IntegrityError as error:
        raise reader.wrong(str(error)) from None
    for _ in dumps.blobs(references.mimes):
        pass
    return hashes


def _read_to_end(dump: SessionExport, references: BlobReferences) -> bytes:
    """Read an export to the end; return the hash of the inherited part."""
    inherited = {branch.branch for branch in dump.branches if branch.session_id is None}

    def inherited_entries() -> Iterator[StoredEntry]:
        for stored in dump.entries:
            references.add(stored.entry.kind, stored.entry.body)
            if stored.branch in inherited:
                yield stored

    inherited_hash = hash_inherited(inherited_entries(), dump.inherited_calls)
    for part in (dump.calls, dump.facts, references.inbox(dump.inbox)):
        for _ in part:
            pass
    return inherited_hash


@contextlib.contextmanager
def open_twice(source: str | os.PathLike[str] | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file for two passes, and return a name for messages. A pipe is first copied to a temporary file."""
    if not isinstance(source, str | os.PathLike):
        with _seekable(source) as file:
            yield file, str(getattr(source, "name", "the bundle"))
        return
    name = os.fspath(source)
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(open(name, "rb"))
        except OSError as error:
            raise InvalidBundle(name, 0, f"it cannot be opened ({error.strerror})") from None
        yield stack.enter_context(_seekable(stream)), name


@contextlib.contextmanager
def _seekable(stream: BinaryIO) -> Iterator[BinaryIO]:
    if stream.seekable():
        yield stream
        return
    import tempfile  # late: it loads many modules, and few imports read from a pipe

    with tempfile.TemporaryFile() as spool:
        try:
            while data := stream.read(COPY_BYTES):
                spool.write(data)
        except OSError as error:
            raise write_error(tempfile.gettempdir(), error) from None
        spool.seek(0)
        yield spool
