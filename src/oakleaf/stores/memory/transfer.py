"""Exporting and importing whole sessions in memory: dictionaries in place of statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.usage import Call
from oakleaf.stores.base import Fact, QueuedInput, SessionDetail, SessionRow
from oakleaf.stores.memory.tables import SessionData
from oakleaf.stores.transfer import BlobStream, SessionExporter, SessionImporter

if TYPE_CHECKING:
    from oakleaf.stores.memory.store import MemoryStore


class MemoryExporter(SessionExporter):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.space, store.owner, store.url)
        self.store, self.tables = store, store.tables

    def find(self, session_id: str) -> tuple[str, SessionRow]:
        return session_id, self.store.session(session_id)

    def detail(self, key: str) -> SessionDetail:
        return self.tables.sessions[key].detail

    def branch_tree(self, session_id: str, key: str) -> list[Branch]:
        return self.store.branches(session_id)

    def tasks(self, session_id: str) -> list[tuple[int, str]]:
        rows = [data.row for data in self.tables.sessions.values()]
        return [
            (row.started_at, row.session_id)
            for row in rows
            if row.parent_session == session_id and row.relation == "task" and row.space == self.space
            if self.owner in (None, row.owner)
        ]

    def branch_entries(self, branch: int, first: int, last: int) -> list[NewEntry]:
        entries = self.tables.entries
        return [replace(entries[branch, seq], media=()) for seq in range(first, last + 1)]

    def branch_owners(self, branches: Sequence[int]) -> list[str]:
        owners = dict.fromkeys(self.tables.branches[branch].session_id for branch in branches)
        return [owner for owner in owners if owner is not None]

    def calls(self, key: str) -> list[Call]:
        return list(self.tables.data(key).calls)

    def facts(self, key: str) -> list[Fact]:
        return list(self.tables.data(key).journal)

    limit_facts = facts

    def inbox(self, key: str) -> list[QueuedInput]:
        return list(self.tables.data(key).inbox)

    def blob(self, digest: str) -> tuple[int, Iterable[bytes]] | None:
        blob = self.tables.blobs.get((self.space, digest))
        return None if blob is None else (len(blob[0].data), (blob[0].data,))


class MemoryImporter(SessionImporter):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(MemoryExporter(store))
        self.tables = store.tables

    def has_session(self, session_id: str) -> bool:
        return session_id in self.tables.sessions

    def insert_session(self, row: SessionRow, detail: SessionDetail) -> str:
        self.tables.sessions[row.session_id] = SessionData(
            self.tables.next_number("session"), row, detail, row.updated_at
        )
        return row.session_id

    def reserve_key(self) -> str:
        number = self.tables.next_number("session")
        key = f"purged {number}"
        row = SessionRow(session_id=key, space=self.space, conversation_id="", started_at=0, updated_at=0)
        self.tables.purged[key] = SessionData(number, row, SessionDetail(), 0)
        return key

    def insert_branch(self, key: str, parent: Leaf | None) -> int:
        return self.tables.insert_branch(key, parent)

    def set_leaf(self, key: str, leaf: Leaf) -> None:
        data = self.tables.sessions[key]
        data.row = replace(data.row, leaf=leaf)

    def insert_entries(self, entries: Iterator[tuple[int, NewEntry]], owner: str | None) -> None:
        for branch, entry in entries:
            self.tables.entries[branch, entry.seq] = replace(entry, media=())

    def insert_calls(self, key: str, calls: Iterable[Call], owner: str | None) -> None:
        self.tables.data(key).calls += calls

    def insert_facts(self, key: str, facts: Iterable[Fact], owner: str | None) -> None:
        self.tables.data(key).journal += facts

    def insert_inbox(self, key: str, inputs: Iterable[QueuedInput], owner: str | None) -> None:
        self.tables.data(key).inbox += inputs

    def has_blob(self, digest: str) -> bool:
        return (self.space, digest) in self.tables.blobs

    def insert_blob(self, blob: BlobStream, at: int) -> None:
        data = Blob(blob.hash, blob.mime, b"".join(blob.pieces))
        self.tables.blobs[self.space, blob.hash] = (data, at)

    def link_blobs(self, places: Iterable[tuple[int, int, str]]) -> None:
        for branch, seq, digest in places:
            if self.has_blob(digest):
                entry = self.tables.entries[branch, seq]
                self.tables.entries[branch, seq] = replace(entry, media=tuple(sorted({*entry.media, digest})))
