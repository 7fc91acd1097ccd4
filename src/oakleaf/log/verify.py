"""Verify a session in a store: the laws of the log, the blobs, and acceptance by every provider.

Reports problems and changes nothing. Reads through the store's contract only, so it works with any store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from oakleaf.core.call_hash import call_hashes
from oakleaf.core.context import build_context
from oakleaf.core.drafts import NewEntry
from oakleaf.core.entries import Entry, Note, Payload, Settings
from oakleaf.core.media import digest
from oakleaf.core.messages import Message
from oakleaf.core.state import fold_state
from oakleaf.core.tool_definitions import decode_tools
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import cursor_after
from oakleaf.errors import InvalidOperation, InvalidPosition, OakleafError, StoreDamaged
from oakleaf.log.integrity import Anchor, SessionWalker
from oakleaf.stores.base import StoreBackend, StoredEntry
from oakleaf.wire import PROVIDERS, find_provider

MAX_RETRIES = 4


class Problem(Struct, frozen=True):
    """One problem of a session: the place and the fault."""

    session_id: str
    """"store" for a problem outside of any session."""
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.session_id} {self.where}: {self.what}"


def verify(store: StoreBackend, session_id: str) -> list[Problem]:
    """Return all problems of one session in the order of the log; empty for a sound session.

    A concurrent writer can make reads disagree, so a session that changed is verified again. A real problem shows up
    every time.
    """
    try:
        facts = store.session(session_id).facts
        problems = _Verification(store, session_id).run()
    except StoreDamaged as error:
        return [Problem(session_id, "row", _unreadable(error))]
    for _ in range(MAX_RETRIES):
        facts_now = store.session(session_id).facts
        if not problems or facts_now == facts:
            break
        facts = facts_now
        again = _Verification(store, session_id).run()
        problems = [problem for problem in problems if problem in again]
    return problems


def verify_branches(store: StoreBackend) -> list[Problem]:
    """Return the problems outside of any session: branches of sessions removed without a purge."""
    if store.owner is not None:  # other owners' sessions may be hidden from it
        return []
    what = "its session is gone, and no fork inherits it: the session's row was removed"
    try:
        return [Problem("store", f"branch {branch}", what) for branch in store.lost_branches()]
    except StoreDamaged as error:
        return [Problem("store", "branches", _unreadable(error))]


def _unreadable(error: Exception) -> str:
    return f"it cannot be read: {error.problem if isinstance(error, OakleafError) else error}"


class _Verification:
    """One pass over a session."""

    def __init__(self, store: StoreBackend, session_id: str) -> None:
        self.store, self.session_id = store, session_id
        self.problems: list[Problem] = []
        self.row = store.session(session_id)
        self.state: bytes | None = None
        self.path: list[Entry] = []
        self.blob_sizes: dict[str, int] = {}

    def run(self) -> list[Problem]:
        self._try("path", self._read_path)
        walker: list[SessionWalker] = []
        self._try("tree", lambda: walker.append(self._check_entries()))
        self._try(
            "journal",
            lambda: _exhaust(walker[0].facts(self.store.journal(self.session_id))) if walker else None,
        )
        if not self.problems:  # checks of derived values would only repeat the problems of a broken log
            self._try("calls", lambda: _exhaust(walker[0].calls(self.store.calls(self.session_id))))
            self._try("caches", lambda: walker[0].check_caches(self.state))
            self._try("path", self._check_projections)
            self._try("blobs", self._check_size)
        return self.problems

    def report(self, where: str, problem: str) -> None:
        self.problems.append(Problem(self.session_id, where, problem))

    def _try(self, where: str, check: Callable[[], None]) -> None:
        try:
            check()
        except (StoreDamaged, InvalidPosition, msgspec.MsgspecError, TypeError) as error:
            self.report(where, _unreadable(error))

    def _read_path(self) -> None:
        """Read row, state and path in one snapshot, so concurrent writes cannot make the parts disagree."""
        snapshot = self.store.path(self.session_id, detail=True)
        self.row, self.path = snapshot.row, snapshot.entries
        self.state = None if snapshot.detail is None else snapshot.detail.state

    def _check_entries(self) -> SessionWalker:
        branches = self.store.branches(self.session_id)
        walker = SessionWalker(self.row, branches, self.report, self._find_anchor, self._check_blobs)
        walker.check_types()
        walker.check_branches()
        entries = self.store.entries(self.session_id)
        _exhaust(walker.entries(entries))
        self._check_tool_calls(entries)
        return walker

    def _check_tool_calls(self, entries: Iterable[StoredEntry]) -> None:
        """Compare the index of tool calls with the answers.

        A call missing in the index would be repeated without a question.
        """
        calls = {
            (Leaf(stored.branch, stored.entry.seq), call_hash)
            for stored in entries
            for call_hash in call_hashes(stored.entry.role, stored.entry.body)
        }
        known = self.store.tool_calls(self.session_id)
        for leaf in sorted({leaf for leaf, _ in calls ^ known}):
            self.report(f"entry {leaf}", "its tool calls are not those that the index of tool calls has")

    def _find_anchor(self, branch: int, seq: int) -> Anchor | None:
        """Fold the path to an entry of another session; the other session has a verification of its own."""
        try:
            entries = self.store.path(self.session_id, leaf=Leaf(branch, seq)).entries
            cursor = cursor_after(entries)
        except (InvalidOperation, InvalidPosition, StoreDamaged):
            return None
        return (cursor, fold_state(entries)) if cursor.seq == seq else None

    def _check_blobs(self, where: str, payload: Message | Note | Settings, entry: NewEntry) -> None:
        handles = _named_blobs(payload)
        for hash in sorted(handles.union(entry.media)):  # linked without a handle: base64 within JSON
            name, blob = f"blob {hash[:12]}…", self.store.blob(hash)
            if blob is None:
                self.report(where, f"{name} is missing")
                continue
            if digest(blob.data) != hash:
                self.report(where, f"{name} has other bytes than its hash says")
            elif isinstance(payload, Settings) and payload.tool_definitions is not None:
                tools = decode_tools(blob.data)
                if tools is None or tuple(tool.name for tool in tools) != payload.tool_definitions.names:
                    self.report(where, f"{name} does not hold the definitions of the tools it names")
            if hash not in entry.media:
                self.report(where, f"{name} is not linked to the entry, so garbage collection may delete it")
            self.blob_sizes[hash] = len(blob.data)

    def _check_size(self) -> None:
        size = self.store.storage_size(self.session_id)
        blobs = (len(self.blob_sizes), sum(self.blob_sizes.values()))
        if (size.blobs, size.blob_bytes) != blobs:
            says = f"{size.blobs} with {size.blob_bytes} bytes"
            self.report("blobs", f"the store counts {says}, its entries use {blobs[0]} with {blobs[1]} bytes")

    def _check_projections(self) -> None:
        blobs: dict[str, bytes | None] = {}
        for entry in self.path:
            for hash in _named_blobs(entry.payload):
                blob = self.store.blob(hash)
                blobs[hash] = None if blob is None else blob.data
        context = build_context(self.path)
        for name in PROVIDERS:
            provider = find_provider(name)
            for violation in provider.violations(provider.project(context, blobs.get)):
                self.report(f"request for {name}", violation)


def _named_blobs(payload: Payload) -> set[str]:
    """Return the digests of the blobs named by a payload: media, or the definitions of tools."""
    if isinstance(payload, Settings):
        return set() if payload.tool_definitions is None else {payload.tool_definitions.hash}
    return {media.hash for media in payload.media} if isinstance(payload, Message) else set()


def _exhaust(records: Iterable[object]) -> None:
    for _ in records:
        pass
