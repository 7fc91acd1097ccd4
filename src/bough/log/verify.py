"""Verifying a session: chains, numbers, pairs, anchors, blobs, and every cache against a fresh fold.

Names what is wrong and changes nothing. Reads through the store's contract only, so it holds for any store.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core import context
from ..core.codec import chain_id, decode, from_json
from ..core.drafts import NewEntry
from ..core.entries import Entry, Unknown, is_internal
from ..core.media import BASE64_MARK, digest, extract_blobs
from ..core.messages import Message
from ..core.state import fold_state
from ..core.tree import Branch, Leaf
from ..core.turns import Cursor, advance, cursor_after, cursor_from_tail
from ..core.usage import total
from ..errors import BoughError, InvalidOperation, StoreDamaged
from ..stores.base import PathSnapshot, SessionRow, StoreBackend, StoredEntry
from ..wire import PROVIDERS, find_provider
from .changes import STATUSES


class Problem(Struct, frozen=True):
    """One thing that is wrong with a session: where, and what."""

    session_id: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.session_id} {self.where}: {self.what}"


TRIES = 4


def verify(store: StoreBackend, session_id: str) -> list[Problem]:
    """Everything wrong with one session, in the order of its log; empty if nothing is.

    Somebody may write meanwhile: then what is read first and what is read later do not fit, and it is looked at
    again. What is really wrong is wrong each time.
    """
    row = store.session(session_id)
    problems = _audited(store, row)
    for _ in range(TRIES):
        now = store.session(session_id)
        if not problems or now.facts == row.facts:
            break
        row = now
        again = _audited(store, row)
        problems = [problem for problem in problems if problem in again]
    return problems


def _audited(store: StoreBackend, row: SessionRow) -> list[Problem]:
    audit = _Audit(store, row)
    audit.check("tree", audit.check_branches)
    audit.check("journal", audit.check_journal)
    if not audit.problems:  # what is derived from a broken chain would only repeat the news
        audit.check("calls", audit.check_calls)
        audit.check("caches", audit.check_caches)
        audit.check("path", audit.check_projections)
    return audit.problems


class _Audit:
    def __init__(self, store: StoreBackend, row: SessionRow) -> None:
        self.store, self.row = store, row
        self.problems: list[Problem] = []
        self.inputs = 0
        self.answers: set[tuple[int, int]] = set()

    def wrong(self, where: str, what: str) -> None:
        self.problems.append(Problem(self.row.session_id, where, what))

    def check(self, where: str, look: Callable[[], None]) -> None:
        """What cannot even be read is a problem with a name too."""
        try:
            look()
        except (StoreDamaged, msgspec.MsgspecError) as error:
            self.wrong(where, f"cannot be read: {error}")

    # -- the tree ----------------------------------------------------------------------------------

    def check_branches(self) -> None:
        branches = {branch.branch: branch for branch in self.store.branches(self.row.session_id)}
        own = [branch for branch in branches.values() if branch.session_id == self.row.session_id]
        if not own:
            self.wrong("tree", "the session has no branch of its own")
        by_branch: dict[int, list[StoredEntry]] = {branch.branch: [] for branch in own}
        for stored in self.store.entries(self.row.session_id):
            by_branch[stored.branch].append(stored)
        anchors = {(branch.parent, branch.parent_seq) for branch in own}
        cursors: dict[tuple[int | None, int], Cursor] = {(None, 0): Cursor()}
        for branch in own:
            start = cursors.get((branch.parent, branch.parent_seq))
            if start is None:
                start = self._anchor(branch)
            if start is None:
                continue
            self._walk(branch, start, by_branch[branch.branch], anchors, cursors)
        leaf = branches.get(self.row.leaf.branch)
        if leaf is None or not leaf.parent_seq <= self.row.leaf.seq <= leaf.tail:
            self.wrong("leaf", f"{self.row.leaf} is not a place of its tree")

    def _anchor(self, branch: Branch) -> Cursor | None:
        """The cursor where a branch hangs on another session's entries."""
        if branch.parent is None:
            self.wrong(f"branch {branch.branch}", f"begins behind entry {branch.parent_seq} of no branch")
            return None
        leaf, many = Leaf(branch.parent, branch.parent_seq), 16
        while True:
            try:
                entries = self.store.path(self.row.session_id, leaf=leaf, newest=many).entries
                cursor = cursor_from_tail(entries)
            except (InvalidOperation, StoreDamaged) as error:
                self.wrong(f"branch {branch.branch}", f"hangs on entries that are not in order: {error}")
                return None
            if branch.parent_seq and (not entries or entries[-1].seq != branch.parent_seq):
                self.wrong(f"branch {branch.branch}", f"hangs on {leaf}, which is gone")
                return None
            if cursor is not None:
                return cursor
            many *= 8

    def _walk(
        self,
        branch: Branch,
        cursor: Cursor,
        stored: list[StoredEntry],
        anchors: set[tuple[int | None, int]],
        cursors: dict[tuple[int | None, int], Cursor],
    ) -> None:
        cursors[branch.branch, cursor.seq] = cursor
        for entry in (item.entry for item in stored):
            where = f"entry {branch.branch}:{entry.seq}"
            if entry.seq != cursor.seq + 1:
                self.wrong(where, f"follows {cursor.seq}: entries between were removed")
                return
            is_seed = branch.parent is None and entry.seq <= self.row.seed_count
            after = self._step(where, cursor, entry, is_seed)
            if after is None:
                return
            self.inputs += entry.turn == entry.seq
            if entry.role == "assistant":
                self.answers.add((branch.branch, entry.seq))
            cursor = after
            if (branch.branch, cursor.seq) in anchors:
                cursors[branch.branch, cursor.seq] = cursor

    def _step(self, where: str, cursor: Cursor, entry: NewEntry, is_seed: bool) -> Cursor | None:
        if chain_id(cursor.entry_id, entry.kind, entry.turn, entry.step, entry.body) != entry.entry_id:
            self.wrong(where, "its id does not match its content and its parent: altered or reordered")
            return None
        try:
            payload = decode(entry.kind, entry.body)
            place = advance(cursor, payload, seed=is_seed)
        except (BoughError, msgspec.DecodeError) as error:
            self.wrong(where, str(error))
            return None
        if (place.turn, place.step) != (entry.turn, entry.step):
            self.wrong(
                where, f"stands in turn {entry.turn}.{entry.step}, by its path {place.turn}.{place.step}"
            )
        if not isinstance(payload, Unknown) and entry.internal != is_internal(payload, seed=is_seed):
            self.wrong(where, "its visibility is not what its kind gives it")
        if not isinstance(payload, Unknown):
            role = payload.role if isinstance(payload, Message) else None
            if entry.role != role:
                self.wrong(where, f"is filed as {entry.role}, its content is of {role}")
        if isinstance(payload, Message):
            self._check_media(where, payload, entry)
        return replace(place.cursor, entry_id=entry.entry_id)

    def _check_media(self, where: str, message: Message, entry: NewEntry) -> None:
        for media in message.media:
            found = self.store.blob(media.hash)
            if found is None:
                self.wrong(where, f"blob {media.hash[:12]}… is missing")
            elif digest(found.data) != media.hash:
                self.wrong(where, f"blob {media.hash[:12]}… does not hold the bytes it is named after")
            elif media.hash not in entry.media:
                self.wrong(where, f"blob {media.hash[:12]}… is not held for it, and may be collected")
        may_hold_bytes = b'"type":"attachment"' in entry.body or BASE64_MARK in entry.body
        if may_hold_bytes and extract_blobs(message)[1]:
            self.wrong(where, "holds inline bytes where a handle belongs")

    # -- the journal and the caches ----------------------------------------------------------------

    def check_journal(self) -> None:
        facts = self.store.journal(self.row.session_id)
        for n, fact in enumerate(facts, 1):
            if fact.number != n:
                self.wrong("journal", f"fact {n} is missing")
                return
        if len(facts) != self.row.facts:
            self.wrong("journal", f"holds {len(facts)} facts, the row says {self.row.facts}")

    def check_calls(self) -> None:
        """Every call on its own branches stands behind an entry, and its answer is one."""
        tails = {
            branch.branch: branch.tail
            for branch in self.store.branches(self.row.session_id)
            if branch.session_id == self.row.session_id
        }
        for call in self.store.calls(self.row.session_id):
            if call.branch not in tails:
                continue  # made while it stood on another's entries, which may be gone
            if not 0 <= call.after_seq <= tails[call.branch]:
                self.wrong(
                    f"call {call.call_id}", f"was made behind {call.branch}:{call.after_seq}, which is gone"
                )
            elif call.answer_seq is not None and (call.branch, call.answer_seq) not in self.answers:
                self.wrong(f"call {call.call_id}", f"its answer {call.branch}:{call.answer_seq} is none")

    def check_caches(self) -> None:
        reading = self.store.path(self.row.session_id, detail=True)
        fresh = total(self.store.calls(self.row.session_id))
        if fresh != self.row.totals:
            self.wrong("totals", f"are {self.row.totals}, the calls sum to {fresh}")
        if self.inputs != self.row.turns:
            self.wrong("turns", f"are {self.row.turns}, the log holds {self.inputs} inputs")
        cached = reading.detail.state if reading.detail is not None else None
        if cached is not None and from_json(cached) != fold_state(reading.entries):
            self.wrong("state", "differs from the fold of the path")
        self._check_status(reading)

    def _check_status(self, reading: PathSnapshot) -> None:
        cursor = cursor_after(reading.entries)
        if reading.row.status not in STATUSES:
            self.wrong("status", f"is {reading.row.status!r}, which is none")
        if reading.row.status in ("running", "waiting") and not cursor.turn:
            self.wrong("status", f"is {reading.row.status}, but no turn is open")

    def check_projections(self) -> None:
        entries: list[Entry] = self.store.path(self.row.session_id).entries
        blobs = {}
        for entry in entries:
            for media in entry.message.media if entry.message is not None else ():
                found = self.store.blob(media.hash)
                blobs[media.hash] = None if found is None else found.data
        built = context.build_context(entries)
        for name in PROVIDERS:
            provider = find_provider(name)
            for violation in provider.violations(provider.project(built, blobs.get)):
                self.wrong(f"projection for {name}", violation)
