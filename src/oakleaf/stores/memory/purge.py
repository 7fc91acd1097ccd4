"""Deleting in memory: what a purge removes, what a fork keeps, and blobs without a reference."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from oakleaf.core.tree import Leaf, reachable_seqs
from oakleaf.stores.base import PurgeResult
from oakleaf.stores.memory.tables import SessionData, Tables
from oakleaf.stores.message_limits import retained_limit_facts
from oakleaf.stores.transfer import blob_references


def descendants(tables: Tables, session_id: str, *, forks: bool, trashed: bool = False) -> list[str]:
    """Return its tasks and theirs, with `forks` the forks too, deepest first; with `trashed` only those in the trash."""
    session_ids = [session_id]
    for parent in session_ids:
        for name, data in sorted(tables.sessions.items(), key=lambda item: item[1].number):
            row = data.row
            is_child = row.parent_session == parent and (forks or row.relation == "task")
            if is_child and name not in session_ids and not (trashed and row.trashed_at is None):
                session_ids.append(name)
    return session_ids[:0:-1]


def purge(tables: Tables, space: str, session_ids: list[str]) -> PurgeResult:
    queued: set[str] = set()
    for session_id in session_ids:
        data = tables.sessions.pop(session_id)
        queued |= _queued_blobs(data)
        tables.purged[session_id] = replace(data, inbox=[])
        tables.drafts.pop(session_id, None)
    candidates = {n: branch for n, branch in tables.branches.items() if branch.session_id in session_ids}
    for branch in list(candidates.values()):
        while branch.parent is not None and tables.branches[branch.parent].session_id not in tables.sessions:
            branch = candidates.setdefault(branch.parent, tables.branches[branch.parent])
    surviving = [branch for n, branch in tables.branches.items() if n not in candidates]
    fork_points = [
        Leaf(b.parent, b.parent_seq) for b in surviving if b.parent is not None and b.parent in candidates
    ]
    keep = reachable_seqs(candidates, fork_points)
    keys = [key for key in tables.entries if key[0] in candidates and key[1] > keep.get(key[0], -1)]
    blobs = queued.union(digest for key in keys for digest in tables.entries[key].media)
    for key in keys:
        del tables.entries[key]
    for number in candidates:
        if number not in keep:
            del tables.branches[number]
    for name in {*session_ids, *(branch.session_id or "" for branch in candidates.values())}:

        def stays(place: Leaf, name: str = name) -> bool:
            # Of a session that was purged earlier, other forks may need branches that are not candidates now.
            is_elsewhere = name not in session_ids and place.branch not in candidates
            return is_elsewhere or place.seq <= keep.get(place.branch, -1)

        data = tables.purged[name]
        data.calls = [call for call in data.calls if stays(Leaf(call.branch, call.seq))]
        data.journal = retained_limit_facts(data.journal, stays)
    remaining = sum(1 for branch, _ in tables.entries if branch in candidates)
    return PurgeResult(tuple(session_ids), len(keys), remaining, delete_blobs(tables, space, blobs))


def _queued_blobs(data: SessionData) -> set[str]:
    """Return the digests of the blobs that queued inputs use."""
    return {digest for queued in data.inbox for digest in blob_references("message", queued.body)}


def unreferenced(
    tables: Tables, space: str, digests: Iterable[str] | None = None, before: int | None = None
) -> list[tuple[str, str]]:
    """Return the keys of those blobs of a space, put before a time, that no entry and no queued input uses."""
    used = {digest for entry in tables.entries.values() for digest in entry.media}
    used = used.union(*map(_queued_blobs, tables.sessions.values()))
    return [
        key
        for key, (_, at) in tables.blobs.items()
        if key[0] == space and key[1] not in used and (digests is None or key[1] in digests)
        if before is None or at < before
    ]


def delete_blobs(
    tables: Tables, space: str, digests: Iterable[str] | None = None, before: int | None = None
) -> int:
    keys = unreferenced(tables, space, digests, before)
    for key in keys:
        del tables.blobs[key]
    return len(keys)
