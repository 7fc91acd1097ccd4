"""Append what a source added since its session was imported, after the same entries as in the source.

Equal entry ids mean equal histories, so an entry is found by its id on any branch. What follows it only in the source is
appended, on a new branch if something else follows it here. A session that was continued on both
sides is not touched: that is `IdConflict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from oakleaf.core.codec import decode, decode_evidence
from oakleaf.core.drafts import Draft, NewEntry
from oakleaf.core.facts import Appended, Imported, ModelCallRecorded, Moved
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.usage import Call
from oakleaf.errors import IdConflict, NotFound, StaleLeaf
from oakleaf.log.log import Log
from oakleaf.log.runtime import Runtime
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.transfer import blob_references

MAX_ATTEMPTS = 20
"""How often a session is read again because another import of it was faster."""


def append_new_entries(
    store: StoreBackend, runtime: Runtime, staging: StoreBackend, session_id: str, call_ids: frozenset[str]
) -> int:
    """Run a `SessionUpdate`, and again if another import of the same source was faster."""
    for _ in range(MAX_ATTEMPTS - 1):
        with suppress(StaleLeaf):
            return SessionUpdate(store, runtime, staging, session_id, call_ids).run()
    return SessionUpdate(store, runtime, staging, session_id, call_ids).run()


class SessionUpdate:
    """Appends the new entries of `staging`, the source's present version of the session.

    `call_ids` are those that the source gave: a call is counted once, at its last answer and with its last usage.
    """

    def __init__(
        self,
        store: StoreBackend,
        runtime: Runtime,
        staging: StoreBackend,
        session_id: str,
        call_ids: frozenset[str],
    ) -> None:
        self.staging, self.source_row = staging, staging.session(session_id)
        try:
            self.row = store.session(session_id)
        except NotFound:
            raise IdConflict(session_id) from None
        self.now = self.source_row.started_at
        clock = Runtime(lambda: self.now, runtime.new_id, runtime.holder, runtime.is_gone, runtime.redactor)
        self.log = Log(store, self.row, clock)
        self.positions = {b"": Leaf(_root(store, session_id), 0)}
        self.positions |= {s.entry.entry_id: Leaf(s.branch, s.entry.seq) for s in store.entries(session_id)}
        self.calls = {(call.branch, call.after_seq + 1): call for call in staging.calls(session_id)}
        present = store.calls(session_id)
        self.has_usage = {(call.branch, call.after_seq + 1) for call in present}
        self.call_ids = call_ids
        self.present_calls = {call.call_id: call for call in present if call.call_id in call_ids}

    def run(self) -> int:
        """Append the new entries and return the number of entries."""
        source_entries = list(_entries_with_parents(self.staging, self.row.session_id))
        has_moved = self._has_moved()
        self._refuse_conflict([entry for _, _, entry in source_entries], has_moved)
        added = 0
        for place, before, entry in source_entries:
            self.now = entry.at
            call = self.calls.get((place.branch, place.seq))
            if entry.entry_id in self.positions:
                self._add_usage(entry.entry_id, call, has_moved=has_moved)
                continue
            self._move_to(before)
            self._append(entry, call)
            added += 1
        leaf = _id_at(self.staging, self.source_row.leaf, self.row.session_id)
        is_left = added > 0 or (self.log.leaf != self.positions[leaf] and not has_moved)
        if is_left:
            self._move_to(leaf)
        if is_left or self._new_title() is not None:
            self._end()
        return added

    def _has_moved(self) -> bool:
        """Whether a user or an interrupted update has written or moved the session since the import."""
        for stored in reversed(self.log.store.journal(self.row.session_id)):
            match stored.fact:
                case Imported():
                    return False
                case Appended() | Moved():
                    return True
        return False

    def _refuse_conflict(self, source_entries: list[NewEntry], has_moved: bool) -> None:
        """Raise `IdConflict` unless the session here is a prefix of the source, or if both were continued."""
        ids = {entry.entry_id for entry in source_entries}
        is_beginning = (
            not source_entries or len(self.positions) == 1 or source_entries[0].entry_id in self.positions
        )
        is_ours = has_moved and self.log.leaf.seq > 0 and self.log.cursor.entry_id not in ids
        if (
            self.row.seed_count != self.source_row.seed_count
            or not is_beginning
            or (is_ours and not ids <= self.positions.keys())
        ):
            raise IdConflict(self.row.session_id)

    def _move_to(self, entry_id: bytes) -> None:
        if self.log.leaf != self.positions[entry_id]:
            self.log.move(self.positions[entry_id])

    def _append(self, entry: NewEntry, call: Call | None) -> None:
        payload = decode(entry.kind, entry.body)
        for digest in blob_references(entry.kind, entry.body):
            blob = self.staging.blob(digest)
            if blob is not None:
                self.log.store.put_blob(blob, self.now)
        draft = Draft(payload, entry.model, entry.finish, decode_evidence(entry.evidence))
        is_present = call is not None and call.call_id in self.present_calls
        self.log.append([draft], calls=self._new_calls(call), replaces_call=is_present)
        self.positions[entry.entry_id] = self.log.leaf

    def _add_usage(self, entry_id: bytes, call: Call | None, *, has_moved: bool) -> None:
        """Add the usage of an answer that an earlier import found without usage or incomplete."""
        if call is None:
            return
        place, present = self.positions[entry_id], self.present_calls.get(call.call_id)
        is_known = (
            (place.branch, place.seq) in self.has_usage if present is None else present.usage == call.usage
        )
        if is_known or (has_moved and place.branch != self.log.leaf.branch):
            return
        if place.branch != self.log.leaf.branch:  # a row belongs to the branch that the session is on
            self._move_to(entry_id)
        self.log.record(ModelCallRecorded(), calls=self._new_calls(call), replaces_call=present is not None)

    def _new_calls(self, call: Call | None) -> list[Call]:
        """Return the ledger row, under the source's id or a new id: generated ids are unique within an import only."""
        if call is None:
            return []
        call_id = call.call_id if call.call_id in self.call_ids else self.log.runtime.new_id("")
        return [replace(call, call_id=call_id, branch=0)]

    def _new_title(self) -> str | None:
        """Return a new title of the source, if the session has no title of the user's."""
        imports = _imports(self.log.store, self.row.session_id)
        imported = imports[-1].title if imports else None
        title, present = self.source_row.title, self.row.title
        return title if title != present and present in (None, imported) else None

    def _end(self) -> None:
        imported = _imports(self.staging, self.row.session_id)[-1]
        row: dict[str, Any] = {"status": self.source_row.status, "holder": None, "lease_until": None}
        row["imported_facts"] = self.log.store.session(self.row.session_id).facts + 1  # this one included
        if self.source_row.model is not None:
            row["model"] = self.source_row.model
        if (title := self._new_title()) is not None:
            row["title"] = title
        self.log.record(imported, row=row)


def _imports(store: StoreBackend, session_id: str) -> list[Imported]:
    """Return the ends of the imports of a session, oldest first."""
    facts = (stored.fact for stored in store.facts_of(session_id, Imported))
    return [fact for fact in facts if isinstance(fact, Imported)]


def _entries_with_parents(staging: StoreBackend, session_id: str) -> Iterator[tuple[Leaf, bytes, NewEntry]]:
    """Yield every entry with the position and the previous entry's id, oldest first."""
    branches = {branch.branch: branch for branch in staging.branches(session_id)}
    ids: dict[Leaf, bytes] = {}
    for stored in staging.entries(session_id):
        place = Leaf(stored.branch, stored.entry.seq)
        before = _owner_position(branches, Leaf(stored.branch, stored.entry.seq - 1))
        ids[place] = stored.entry.entry_id
        yield place, ids.get(before, b""), stored.entry


def _owner_position(branches: Mapping[int, Branch], place: Leaf) -> Leaf:
    """Return the same position on the branch of the entry."""
    number = place.branch
    while place.seq <= branches[number].parent_seq and (parent := branches[number].parent) is not None:
        number = parent
    return Leaf(number, place.seq)


def _id_at(staging: StoreBackend, leaf: Leaf, session_id: str) -> bytes:
    last = staging.path(session_id, leaf=leaf, newest=1).entries
    return last[-1].entry_id if last else b""


def _root(store: StoreBackend, session_id: str) -> int:
    return min(branch.branch for branch in store.branches(session_id) if branch.session_id == session_id)
