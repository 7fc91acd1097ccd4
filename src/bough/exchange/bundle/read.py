"""Reading a bundle: lines back into dumps, each in its place, the hash held against the last line.

A bundle is read twice: once to know that it is whole, once to take it in. What is wrong is told with the number
of its line. Nothing is kept in memory but the line at hand.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from ...core.usage import MAX_COUNT, Call
from ...errors import InvalidBundle, NewerFormat
from ...log.integrity import IntegrityError, check_export
from ...stores.base import Fact, StoredEntry
from ...stores.transfer import BlobReferences, BlobStream, SessionExport, SessionExports, hash_inherited
from .lines import (
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
    GivenLine,
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
from .write import PROGRESS_INTERVAL, OnProgress, TransferProgress, write_error

LONGEST_HEADER = 64 * 1024
COPIED = 1 << 20
LONGEST = 1 << 30  # of a line; what a body can be at most, and a bound against files that are none of ours

L = TypeVar("L", bound=AnyLine)


class _Loose(Struct, frozen=True, tag_field="line", tag="bundle"):
    """As much of a header as any version has."""

    format: Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,5}\.[0-9]{1,6}$")]


class Checked(Struct, frozen=True):
    """What the first reading found."""

    header: Header
    counts: Counts
    stands_on: list[bytes]
    """By session: the hash of what it stands on."""


class BundleReader:
    """One pass over a bundle."""

    def __init__(self, file: BinaryIO, where: str, doing: str, tell: OnProgress | None) -> None:
        self.file, self.where, self.doing, self.tell = file, where, doing, tell
        self.n = self.bytes = 0
        self.hash, self._last = sha256(), b""
        self.sessions = self.entries = self.calls = self.facts = self.blobs = 0
        self.line: AnyLine | None = None
        self.header = self._header()
        self._next()

    def wrong(self, why: str) -> InvalidBundle:
        return InvalidBundle(self.where, self.n, why)

    @property
    def counts(self) -> Counts:
        return Counts(self.sessions, self.entries, self.calls, self.facts, self.blobs)

    # -- lines -------------------------------------------------------------------------------------

    def _header(self) -> Header:
        data = self._data(LONGEST_HEADER)
        try:
            loose = msgspec.json.decode(data, type=_Loose)
        except UNREADABLE:
            raise self.wrong("this is no bundle; bough export makes one") from None
        if int(loose.format.partition(".")[0]) > MAJOR:
            raise NewerFormat(self.where, loose.format, FORMAT)
        header = self._decoded(data)
        if not isinstance(header, Header):
            raise self.wrong("the first line is not a header")
        return header

    def _data(self, most: int = LONGEST) -> bytes:
        data = self.file.readline(most)
        self.n += 1
        self.bytes += len(data)
        if not data.endswith(b"\n"):
            raise self.wrong(
                "the file ends here, in the middle" if len(data) < most else "the line has no end"
            )
        self.hash.update(self._last)  # a line late: what the last line tells is the hash of all before it
        self._last = data
        if self.tell is not None and self.n % PROGRESS_INTERVAL == 0:
            self.tell(TransferProgress(self.doing, self.n, self.bytes))
        return data

    def _decoded(self, data: bytes) -> AnyLine:
        try:
            line: AnyLine = decode_line(data)
        except UNREADABLE as error:
            raise self.wrong(f"it cannot be read ({error})") from None
        return line

    def _next(self) -> None:
        self.line = self._decoded(self._data())

    def _run(self, kind: type[L]) -> Iterator[L]:
        while isinstance(self.line, kind):
            yield self.line
            self._next()

    # -- sessions ----------------------------------------------------------------------------------

    def dumps(self, stands_on: list[bytes] | None = None) -> SessionExports:
        """Everything in it, to be read in order; `stands_on` from an earlier reading."""
        return SessionExports(self._sessions(stands_on or []), self._blobs)

    def _sessions(self, stands_on: list[bytes]) -> Iterator[SessionExport]:
        while isinstance(self.line, SessionLine):
            dump = self._session(self.line, stands_on[self.sessions] if stands_on else b"")
            self.sessions += 1
            yield dump
        if not self.sessions:
            raise self.wrong("a session belongs here")

    def _session(self, line: SessionLine, stands_on: bytes) -> SessionExport:
        try:
            row, detail = session_of(line)
        except UNREADABLE as error:
            raise self.wrong(f"the row cannot be read ({error})") from None
        if self.sessions == 0 and row.session_id != self.header.session:
            raise self.wrong(f"session {row.session_id} stands first, the header names {self.header.session}")
        self._next()
        branches = tuple(branch_of(line, row.session_id) for line in self._run(BranchLine))
        below: list[Call] = []
        while isinstance(self.line, CallLine) and self.line.below:
            below.append(self.line.call)
            self._next()
        given = tuple(line.given for line in self._run(GivenLine))
        return SessionExport(
            row=row,
            detail=detail,
            branches=branches,
            inherited_calls=tuple(below),
            inherited_limits=given,
            entries=self._entries(),
            calls=self._calls(),
            facts=self._facts(),
            inbox=(queued_of(line) for line in self._run(QueuedLine)),
            inherited_hash=lambda: stands_on,
        )

    def _entries(self) -> Iterator[StoredEntry]:
        for line in self._run(EntryLine):
            self.entries += 1
            try:
                stored = entry_of(line)
            except UNREADABLE as error:
                raise self.wrong(f"the entry cannot be read ({error})") from None
            yield stored

    def _calls(self) -> Iterator[Call]:
        for line in self._run(CallLine):
            if line.below:
                raise self.wrong("a call of what is stood on belongs before the entries")
            self.calls += 1
            yield line.call

    def _facts(self) -> Iterator[Fact]:
        for line in self._run(FactLine):
            self.facts += 1
            yield fact_of(line)

    # -- blobs and the end -------------------------------------------------------------------------

    def _blobs(self, mimes: Mapping[str, str]) -> Iterator[BlobStream]:
        before = ""
        while isinstance(self.line, BlobLine):
            line = self.line
            if line.hash <= before or line.hash not in mimes or not self.header.blobs:
                raise self.wrong(
                    f"blob {line.hash} does not belong here: nothing names it, or its place is another"
                )
            if not 0 <= line.size <= MAX_COUNT or "\0" in line.mime:
                raise self.wrong(f"blob {line.hash} has a size or a type that cannot be")
            before = line.hash
            self.blobs += 1
            pieces = self._pieces(line)
            yield BlobStream(line.hash, line.mime, line.size, pieces)
            for _ in pieces:  # whoever has the blob already reads none of it
                pass
        self._end()

    def _pieces(self, line: BlobLine) -> Iterator[bytes]:
        digest, size = sha256(), 0
        self._next()
        for piece in self._run(PieceLine):
            size += len(piece.data)
            if not piece.data or size > line.size:
                raise self.wrong(f"blob {line.hash} has an empty piece, or more bytes than it says")
            digest.update(piece.data)
            yield piece.data
        if (digest.hexdigest(), size) != (line.hash, line.size):
            raise self.wrong(f"blob {line.hash} does not hold the bytes it is named after")

    def _end(self) -> None:
        line = self.line
        if not isinstance(line, EndLine):
            raise self.wrong(f"a {type(line).__name__} does not belong here")
        if line.sha256 != self.hash.hexdigest():
            raise self.wrong("the hash over all lines is not the one it says: the file was altered")
        if line.counts != self.counts:
            raise self.wrong(f"it says {line.counts}, there are {self.counts}")
        if self.file.read(1):
            raise self.wrong("there is more behind the end")


def check(file: BinaryIO, where: str, tell: OnProgress | None) -> Checked:
    """Read all of it and keep nothing: raises `InvalidBundle` at the first thing that is wrong."""
    reader = BundleReader(file, where, "checking", tell)
    dumps, naming = reader.dumps(), BlobReferences()
    try:
        hashes = [_drained(check_export(dump), naming) for dump in dumps.sessions]
    except IntegrityError as error:
        raise reader.wrong(str(error)) from None
    for _ in dumps.blobs(naming.mimes):
        pass
    return Checked(reader.header, reader.counts, hashes)


def _drained(dump: SessionExport, naming: BlobReferences) -> bytes:
    """Reads the dump to its end; returns the hash of what it stands on."""
    foreign = {branch.branch for branch in dump.branches if branch.session_id is None}

    def stood_on() -> Iterator[StoredEntry]:
        for stored in dump.entries:
            naming.add(stored.entry.kind, stored.entry.body)
            if stored.branch in foreign:
                yield stored

    found = hash_inherited(stood_on(), dump.inherited_calls, dump.inherited_limits)
    for part in (dump.calls, dump.facts, naming.inbox(dump.inbox)):
        for _ in part:
            pass
    return found


@contextlib.contextmanager
def opened(source: str | os.PathLike[str] | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    """A file that can be read twice, and what to call it. A pipe is copied to a file of its own first."""
    if not isinstance(source, str | os.PathLike):
        with _twice(source) as file:
            yield file, str(getattr(source, "name", "the bundle"))
        return
    where = os.fspath(source)
    with contextlib.ExitStack() as stack:
        try:
            given = stack.enter_context(open(where, "rb"))
        except OSError as error:
            raise InvalidBundle(where, 0, f"it cannot be opened ({error.strerror})") from None
        yield stack.enter_context(_twice(given)), where


@contextlib.contextmanager
def _twice(given: BinaryIO) -> Iterator[BinaryIO]:
    if given.seekable():
        yield given
        return
    import tempfile  # late: it loads half a library, and few import from a pipe

    with tempfile.TemporaryFile() as spool:
        try:
            while data := given.read(COPIED):
                spool.write(data)
        except OSError as error:
            raise write_error(tempfile.gettempdir(), error) from None
        spool.seek(0)
        yield spool
