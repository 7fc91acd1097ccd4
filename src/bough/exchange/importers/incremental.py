"""What a source told since its session was taken in, appended where it belongs: behind the same entry as there.

Equal ids are equal histories, so an entry that is here is found by its id, on whichever branch. What follows it there
and not here is appended, on a branch of its own if something else follows it here. A session that was gone on with on both
sides is not touched: that is `IdConflict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ...core.codec import decode, decode_evidence
from ...core.drafts import Draft, NewEntry
from ...core.messages import Message
from ...core.tree import Branch, Leaf
from ...core.usage import Call
from ...errors import IdConflict, NotFound
from ...log.log import Log
from ...log.runtime import Runtime
from ...stores.base import StoreBackend

FINAL = "imported"
"""The fact a session that was taken in ends with."""
MOVES = ("appended", "moved")


def grow(store: StoreBackend, runtime: Runtime, shelf: StoreBackend, session_id: str) -> int:
    """How many entries were appended. `shelf` holds the session as its source tells it now."""
    return Growing(store, runtime, shelf, session_id).run()


class Growing:
    def __init__(self, store: StoreBackend, runtime: Runtime, shelf: StoreBackend, session_id: str) -> None:
        self.shelf, self.told = shelf, shelf.session(session_id)
        try:
            self.row = store.session(session_id)
        except NotFound:
            raise IdConflict(session_id) from None
        self.now = self.told.started_at
        clock = Runtime(lambda: self.now, runtime.new_id, runtime.holder, runtime.is_gone, runtime.redactor)
        self.here = Log(store, self.row, clock)
        self.places = {b"": Leaf(_root(store, session_id), 0)}
        self.places |= {s.entry.entry_id: Leaf(s.branch, s.entry.seq) for s in store.entries(session_id)}
        self.calls = {(call.branch, call.after_seq + 1): call for call in shelf.calls(session_id)}
        self.paid = {(call.branch, call.after_seq + 1) for call in store.calls(session_id)}

    def run(self) -> int:
        coming = list(_chained(self.shelf, self.row.session_id))
        has_moved = self._has_moved()
        self._refuse_other([entry for _, _, entry in coming], has_moved)
        added = 0
        for place, before, entry in coming:
            self.now = entry.at
            call = self.calls.get((place.branch, place.seq))
            if entry.entry_id in self.places:
                self._pay(self.places[entry.entry_id], call)
                continue
            self._stand_at(before)
            self._append(entry, call)
            added += 1
        leaf = _id_at(self.shelf, self.told.leaf, self.row.session_id)
        if added or (self.here.leaf != self.places[leaf] and not has_moved):
            self._stand_at(leaf)
            self._end()
        return added

    def _has_moved(self) -> bool:
        """Whether it was written to or moved since it was taken in, by somebody here or by a growth that broke off."""
        facts = [fact.kind for fact in self.here.store.journal(self.row.session_id)]
        since = facts[len(facts) - facts[::-1].index(FINAL) :] if FINAL in facts else facts
        return any(kind in MOVES for kind in since)

    def _refuse_other(self, coming: list[NewEntry], has_moved: bool) -> None:
        """`IdConflict` unless what is here is a beginning of what is told; and if both have gone on since."""
        ids = {entry.entry_id for entry in coming}
        is_beginning = not coming or len(self.places) == 1 or coming[0].entry_id in self.places
        is_ours = has_moved and self.here.leaf.seq > 0 and self.here.cursor.entry_id not in ids
        if (
            self.row.seed_count != self.told.seed_count
            or not is_beginning
            or (is_ours and not ids <= self.places.keys())
        ):
            raise IdConflict(self.row.session_id)

    def _stand_at(self, entry_id: bytes) -> None:
        if self.here.leaf != self.places[entry_id]:
            self.here.move(self.places[entry_id])

    def _append(self, entry: NewEntry, call: Call | None) -> None:
        payload = decode(entry.kind, entry.body)
        for media in payload.media if isinstance(payload, Message) else ():
            blob = self.shelf.blob(media.hash)
            if blob is not None:
                self.here.store.put_blob(blob, self.now)
        draft = Draft(payload, entry.model, entry.finish, decode_evidence(entry.evidence))
        self.here.append([draft], calls=self._charged(call))
        self.places[entry.entry_id] = self.here.leaf

    def _pay(self, place: Leaf, call: Call | None) -> None:
        """An answer that was taken in before the source told what it had cost."""
        if (
            call is not None
            and (place.branch, place.seq) not in self.paid
            and place.branch == self.here.leaf.branch
        ):
            self.here.record("call_told", calls=self._charged(call))

    def _charged(self, call: Call | None) -> list[Call]:
        return [] if call is None else [replace(call, call_id=self.here.runtime.new_id(""), branch=0)]

    def _end(self) -> None:
        facts = self.shelf.journal(self.row.session_id)
        data = next(fact.data for fact in reversed(facts) if fact.kind == FINAL)
        row = {"status": self.told.status, "holder": None, "lease_until": None}
        self.here.record(FINAL, data=data, row=row if self.row.title else {**row, "title": self.told.title})


def _chained(shelf: StoreBackend, session_id: str) -> Iterator[tuple[Leaf, bytes, NewEntry]]:
    """Every entry as it grew: its place, the id of the one before it, and itself."""
    branches = {branch.branch: branch for branch in shelf.branches(session_id)}
    ids: dict[Leaf, bytes] = {}
    for stored in shelf.entries(session_id):
        place = Leaf(stored.branch, stored.entry.seq)
        before = _held(branches, Leaf(stored.branch, stored.entry.seq - 1))
        ids[place] = stored.entry.entry_id
        yield place, ids.get(before, b""), stored.entry


def _held(branches: Mapping[int, Branch], place: Leaf) -> Leaf:
    """The same place by the branch that holds its entry."""
    number = place.branch
    while place.seq <= branches[number].parent_seq and (parent := branches[number].parent) is not None:
        number = parent
    return Leaf(number, place.seq)


def _id_at(shelf: StoreBackend, leaf: Leaf, session_id: str) -> bytes:
    last = shelf.path(session_id, leaf=leaf, newest=1).entries
    return last[-1].entry_id if last else b""


def _root(store: StoreBackend, session_id: str) -> int:
    return min(branch.branch for branch in store.branches(session_id) if branch.session_id == session_id)
