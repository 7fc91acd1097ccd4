"""Keeping a search index up to date: finding what is new and indexing it batch by batch, on every database.

Appending never touches the index. What is new is found by comparing each session's count of facts with the count
at which it was last indexed, and each branch's entries with the last one indexed; no clock is involved. A batch is
read and split into words in a snapshot, then written in a short transaction of its own. Several processes may do
this at once, and a purge may come between reading and writing: an entry is only indexed if it is present and not
indexed yet, and progress is only saved if it is as it was read.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import DecodeError, Struct, field

from oakleaf.core.codec import decode
from oakleaf.core.entries import Payload
from oakleaf.core.messages import Message
from oakleaf.core.search import TITLE, Column, index_columns
from oakleaf.core.search_text import is_error, searchable_text, tool_names
from oakleaf.core.tree import Branch, Leaf, reachable_seqs
from oakleaf.errors import IndexBehind, StoreFull, StoreReadOnly
from oakleaf.stores.search import IndexProgress

R = TypeVar("R")
BATCH_ROWS = 250


class IndexConnections(Protocol):
    """The part of a database used by the index."""

    def read_snapshot(self, work: Callable[[Any], R]) -> R: ...

    def write(self, work: Callable[[Any], R]) -> R: ...


class StaleSession(Struct, frozen=True):
    """A session with more facts than were indexed."""

    number: int
    facts: int
    title: str | None
    owner: str | None
    started_at: int
    indexed_facts: int | None
    """The progress when the session was read; a change before the write means another indexer, or a purge."""
    indexed_title: str | None


class IndexedBranch(Struct, frozen=True):
    number: int
    is_own: bool
    parent: int | None
    parent_seq: int
    indexed_seq: int | None


class IndexRow(Struct, frozen=True):
    """An entry, or a title at seq 0 of the first branch, to be indexed."""

    leaf: Leaf
    session_number: int
    document: Any
    """The words as the database stores them."""

    @property
    def key(self) -> int:
        return self.leaf.branch << 32 | self.leaf.seq


class IndexedSession(Struct, frozen=True):
    """A session read to the end."""

    session: StaleSession
    title_row: IndexRow


class IndexBatch(Struct):
    rows: list[IndexRow] = field(default_factory=list)
    sessions: list[IndexedSession] = field(default_factory=list)
    characters: int = 0
    next_session: int | None = None
    """The session to continue with; None: nothing is left."""


class SearchIndex(ABC):
    """The index of a space; the databases provide the statements."""

    batch_characters: int

    def __init__(self, connections: IndexConnections, space: str, owner: str | None, url: str) -> None:
        self._connections, self.space, self.owner, self.url = connections, space, owner, url

    @abstractmethod
    def count_stale(self, reader: Any) -> int:
        """Return the number of sessions with facts not indexed yet."""

    @abstractmethod
    def stale_sessions(self, reader: Any, first: int) -> Iterable[StaleSession]:
        """Return stale sessions by number, from `first` on."""

    @abstractmethod
    def branches(self, reader: Any, session_number: int) -> Iterable[IndexedBranch]:
        """Return the session's own branches, and the ancestors of purged sessions.

        The oldest heir lists the entries of such an ancestor.
        """

    @abstractmethod
    def new_entries(self, reader: Any, branch: int, first: int, last: int) -> Iterable[tuple[Any, ...]]:
        """Return seq, kind, role, model, finish and body of the entries of a branch."""

    @abstractmethod
    def last_answer(self, reader: Any, branch: int, seq: int) -> bytes | None:
        """Return the body of the last answer on a branch up to a seq."""

    @abstractmethod
    def parent(self, reader: Any, branch: int) -> tuple[int | None, int] | None: ...

    @abstractmethod
    def document(self, columns: Mapping[Column, str], session: StaleSession) -> Any: ...

    @abstractmethod
    def write_rows(self, writer: Any, rows: list[IndexRow], titles: list[IndexedSession]) -> int:
        """Index the entries still present and not indexed yet, and replace titles; return the number of entries."""

    @abstractmethod
    def save_progress(self, writer: Any, session: StaleSession) -> bool:
        """Record a session as indexed, unless the progress differs from the progress read; return whether recorded."""

    def tidy(self, writer: Any, *, is_alone: bool) -> bool:
        """Make searches faster after new rows, as much as a short transaction can; return whether there is more to do.

        `is_alone`: nothing else was done in the transaction.
        """
        return False

    def catch_up(self, progress: IndexProgress | None = None) -> int:
        """Index everything new; return the number of entries."""
        try:
            return self._catch_up(progress)
        except (StoreReadOnly, StoreFull) as error:
            stale = self._connections.read_snapshot(self.count_stale)
            raise IndexBehind(self.url, stale, error) from error

    def _catch_up(self, progress: IndexProgress | None) -> int:
        entries, first = 0, 0
        for count in itertools.count():
            batch = self._connections.read_snapshot(partial(self.read_batch, first=first))
            if not batch.rows and not batch.sessions:
                break
            entries += self._connections.write(partial(self.write_batch, batch=batch))
            if progress is not None:
                progress(entries, self._connections.read_snapshot(self.count_stale))
            if batch.next_session is None:
                self._tidy(count)
                break
            first = batch.next_session
        return entries

    def _tidy(self, most: int) -> None:
        """Tidy the index after so many batches; on a full disk the index is complete without tidying."""
        with suppress(StoreFull):
            for _ in range(most):
                if not self._connections.write(partial(self.tidy, is_alone=True)):
                    return

    def _is_full(self, batch: IndexBatch) -> bool:
        return (
            len(batch.rows) + len(batch.sessions) >= BATCH_ROWS or batch.characters >= self.batch_characters
        )

    def read_batch(self, reader: Any, first: int) -> IndexBatch:
        batch = IndexBatch()
        for session in self.stale_sessions(reader, first):
            if self._is_full(batch):
                batch.next_session = session.number
                break
            branches = list(self.branches(reader, session.number))
            for row, characters in self._new_rows(reader, branches, session):
                if self._is_full(batch):
                    batch.next_session = session.number
                    return batch
                batch.rows.append(row)
                batch.characters += characters
            root = Leaf(min((branch.number for branch in branches if branch.is_own), default=0), 0)
            document = self.document(index_columns(session.title or "", kind=TITLE), session)
            batch.sessions.append(IndexedSession(session, IndexRow(root, session.number, document)))
        return batch

    def _new_rows(
        self, reader: Any, branches: list[IndexedBranch], session: StaleSession
    ) -> Iterator[tuple[IndexRow, int]]:
        """Yield the new entries of the branches, each with the length of its text."""
        orphaned = {
            b.number: Branch(b.number, None, b.parent, b.parent_seq) for b in branches if not b.is_own
        }
        fork_points = [Leaf(b.parent, b.parent_seq) for b in branches if b.is_own and b.parent is not None]
        last_seqs = reachable_seqs(orphaned, fork_points)
        for branch in branches:
            first = max(branch.indexed_seq or 0, branch.parent_seq) + 1
            last = last_seqs.get(branch.number, 0xFFFFFFFF)
            names: dict[str, str] | None = None
            for seq, kind, role, model, finish, body in self.new_entries(reader, branch.number, first, last):
                payload = decode_or_none(kind, body)
                if payload is None:  # damaged: `verify` names it, and a search does without it
                    continue
                if role == "tool" and names is None:
                    names = self.call_names(reader, Leaf(branch.number, seq))
                elif role == "assistant" and isinstance(payload, Message):
                    names = {call.id: call.name for call in payload.calls}
                columns = entry_columns(payload, kind, role, model, finish, names or {})
                row = IndexRow(Leaf(branch.number, seq), session.number, self.document(columns, session))
                yield row, len(columns["text"])

    def call_names(self, reader: Any, leaf: Leaf) -> dict[str, str]:
        """Return the names, by id, of the calls of the last answer before an entry, on any branch of the path."""
        branch: int | None = leaf.branch
        seq = leaf.seq - 1
        while branch is not None:
            body = self.last_answer(reader, branch, seq)
            payload = None if body is None else decode_or_none(None, body)
            if isinstance(payload, Message):
                return {call.id: call.name for call in payload.calls}
            branch, seq = self.parent(reader, branch) or (None, 0)
        return {}

    def write_batch(self, writer: Any, batch: IndexBatch) -> int:
        saved = [indexed for indexed in batch.sessions if self.save_progress(writer, indexed.session)]
        titles = [indexed for indexed in saved if indexed.session.title != indexed.session.indexed_title]
        entries = self.write_rows(writer, batch.rows, titles)
        if batch.next_session is None:
            self.tidy(writer, is_alone=False)
        return entries


def decode_or_none(kind: str | None, body: bytes) -> Payload | None:
    try:
        return decode(kind or "message", body)
    except (DecodeError, TypeError):
        return None


def entry_columns(
    payload: Payload,
    kind: str | None,
    role: str | None,
    model: str | None,
    finish: str | None,
    names: Mapping[str, str],
) -> dict[Column, str]:
    """Return the content of each index column for an entry; `names` are the names of the calls that a result answers."""
    return index_columns(
        searchable_text(payload),
        tools=tool_names(payload, names),
        model=model,
        role=role,
        kind=kind or "message",
        error=is_error(payload, finish),
    )
