"""Seal sessions: a digest of each, and what was altered or removed since.

The id of an entry is a hash over content and history, and free of time. A seal covers what an auditor asks besides: the
time, model, finish and visibility of each entry, each fact of the journal with decisions and reasons, each model call, and
the owner, agent and origin of the session. It is read from the store when it is made, so an append pays nothing for it.

A session goes on after a seal. So a head says how much it covers (facts, tails of branches, calls), and the same part is
read again later. Nothing that moves by itself is covered: leases, drafts, queued inputs, the trash, evidence.

Does not know files.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.facts import Bound, StoredFact, kind_of
from oakleaf.core.tree import Branch
from oakleaf.core.usage import Call, Usage
from oakleaf.errors import InvalidPosition, NotFound, OakleafError, SealRefused, StoreDamaged
from oakleaf.log.verify import Problem
from oakleaf.stores.address import display_url
from oakleaf.stores.base import SessionQuery, StoreBackend, StoredEntry
from oakleaf.stores.transfer import SessionExport

VERSION = 1
BOUND = kind_of(Bound)
MIN_KEY_BYTES = 16
MARK_BYTES = 3
"""Of the hash of a record, to find the record that differs. Whether any differs is said by the whole digest."""
MARK_CHARACTERS = 4
ALTERED, REMOVED = "it was altered since the seal", "it was removed since the seal"
SHOWN_PLACES = 20
"""How many places of one session are reported."""
FIXED_FIELDS = (
    *("owner", "conversation_id", "relation", "parent_session", "parent_seq", "seed_count", "started_at"),
    *("spec", "policy", "workspace"),
)
CHANGING_FIELDS = (
    *("title", "status", "tags", "model", "context_window", "tool_names", "trigger_type", "trigger_id"),
    *("leaf", "turns", "totals", "facts", "updated_at", "completed_at", "error"),
)
"""Fields of the row that a change may set. They are compared while the session has no later fact."""


class Digest(Struct, frozen=True):
    """A digest of records in order."""

    sha256: str
    marks: str
    """Four characters of each record's own hash."""


class BranchExtent(Struct, frozen=True):
    parent: int | None
    parent_seq: int
    tail: int


class Extent(Struct, frozen=True):
    """The part of a session that a seal covers."""

    facts: int
    branches: list[BranchExtent]
    """Numbered from 1 in the order of growth."""
    calls: int
    open_calls: list[str]
    """Calls without an outcome, which are not covered: the outcome will replace the row."""

    def places(self) -> Iterator[str]:
        """Yield the place of each record, in the order of the digest."""
        for number, branch in enumerate(self.branches, 1):
            yield f"branch {number}"
            yield from (f"entry {number}:{seq}" for seq in range(branch.parent_seq + 1, branch.tail + 1))
        yield from (f"call {number}" for number in range(1, self.calls + 1))
        yield from (f"fact {number}" for number in range(1, self.facts + 1))
        yield from (f"row {name}" for name in FIXED_FIELDS)


class Head(Struct, frozen=True):
    """A session in a seal."""

    session: str
    extent: Extent
    log: Digest
    """Of branches, entries, calls, facts, and the fields that no change sets."""
    row: Digest
    """Of the fields that a change may set."""
    agent: str
    """Of the agent's name, which only a fact of its own changes."""


class Seal(Struct, frozen=True, kw_only=True):
    """The heads of all sessions of a space."""

    oakleaf_seal: int = VERSION
    made_at: int
    """Microseconds since 1970, UTC, by the clock of whoever sealed."""
    store: str
    space: str
    owner: str | None = None
    heads: list[Head]
    sha256: str
    """A digest of the heads."""
    signature: str | None = None
    """HMAC-SHA256 under a key of the user's, over the seal without the signature."""

    def sign(self, key: bytes) -> Seal:
        """Return the seal signed. Only who has the key can make or check the signature."""
        if len(key) < MIN_KEY_BYTES:
            raise SealRefused(
                f"the key has {len(key)} bytes; at least {MIN_KEY_BYTES} are needed",
                "openssl rand -hex 32 > seal.key makes one",
            )
        return replace(self, signature=self._signature(key))

    def check(self, key: bytes | None) -> None:
        """Raise SealRefused unless the seal is whole, and signed under the key if there is one."""
        if self.oakleaf_seal != VERSION:
            raise SealRefused(f"the seal has version {self.oakleaf_seal}; this is a reader of {VERSION}")
        if self.sha256 != _digest_of_heads(self.heads):
            raise SealRefused("the seal was altered: its heads do not match its digest")
        if key is None and self.signature is not None:
            raise SealRefused("the seal is signed", "name the key: --key FILE")
        if key is not None and self.signature is None:
            raise SealRefused(
                "the seal is not signed, and a key was given: the signature may have been removed"
            )
        if key is not None and not hmac.compare_digest(self._signature(key), self.signature or ""):
            raise SealRefused("the signature of the seal is not of this key: another key, or an altered seal")

    def _signature(self, key: bytes) -> str:
        return hmac.new(key, msgspec.json.encode(replace(self, signature=None)), "sha256").hexdigest()


class SealCheck(Struct, frozen=True):
    """A store compared with a seal."""

    made_at: int
    sealed: int
    """How many sessions were compared."""
    grown: int
    """How many of them have later changes, which the seal does not cover."""
    purged: list[str]
    """Sealed sessions that are gone, and whose purge a receipt confirms."""
    removed: list[str]
    """Sealed sessions that are gone without a receipt."""
    problems: list[Problem]

    def is_gone(self, session_id: str) -> bool:
        return session_id in self.purged or session_id in self.removed


def seal(
    store: StoreBackend, at: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Seal:
    """Return a seal of all sessions that the store shows, also of the trash."""
    rows = (row for trashed in (False, True) for row in store.all_sessions(SessionQuery(trashed=trashed)))
    names = [row.session_id for row in rows]
    heads = []
    for done, name in enumerate(names, 1):
        try:
            heads.append(read_session(store, name).head())
        except NotFound:  # purged meanwhile
            continue
        progress(done, len(names))
    return Seal(
        made_at=at,
        store=display_url(store.url),
        space=store.space,
        owner=store.owner,
        heads=heads,
        sha256=_digest_of_heads(heads),
    )


def check_seal(
    store: StoreBackend,
    seal: Seal,
    *,
    only: str | None = None,
    purged: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SealCheck:
    """Compare the sessions with a seal; `purged` are those that receipts name. Raises SealRefused for another store."""
    _check_tenant(store, seal)
    heads = [head for head in seal.heads if only in (None, head.session)]
    if only is not None and not heads:
        raise SealRefused(f"the seal has no session {only}", "the session is younger than the seal")
    problems: list[Problem] = []
    removed: list[str] = []
    grown = 0
    for done, head in enumerate(heads, 1):
        try:
            now = read_session(store, head.session, head.extent)
            grown += now.facts > head.extent.facts
            problems += now.differences(head)
        except NotFound:
            removed.append(head.session)
        except (StoreDamaged, InvalidPosition, msgspec.MsgspecError, ValueError, TypeError) as error:
            what = error.problem if isinstance(error, OakleafError) else str(error)
            problems.append(Problem(head.session, "seal", f"it cannot be read: {what}"))
        progress(done, len(heads))
    if only is None and heads and len(removed) == len(heads) and not set(removed).intersection(purged):
        raise SealRefused(
            f"the seal is of another store, or every session was removed: none of its {len(heads)} sessions is here",
            f"it was made of {seal.store}, space {seal.space}",
        )
    confirmed = [name for name in removed if name in purged]
    removed = [name for name in removed if name not in purged]
    problems += [Problem(name, "session", REMOVED) for name in removed]
    return SealCheck(seal.made_at, len(heads), grown, confirmed, removed, problems)


def _check_tenant(store: StoreBackend, seal: Seal) -> None:
    if seal.space != store.space:
        raise SealRefused(
            f"the seal is of the space {seal.space}, and the store was opened for the space {store.space}",
            f"open it for that space: --space {seal.space}",
        )
    if store.owner not in (None, seal.owner):
        raise SealRefused(
            f"the seal covers {seal.owner or 'all owners'}, and the store was opened for {store.owner}",
            "open the store as when it was sealed",
        )


# -- one session -----------------------------------------------------------------------------------------


class SealedPart(Struct, frozen=True):
    """The hashes of a session's records by place, of the part that an extent covers."""

    session: str
    facts: int
    """How many facts the journal has, with later ones."""
    extent: Extent
    log: dict[str, bytes]
    row: dict[str, bytes]
    agent: bytes
    is_bound_later: bool
    """Whether a fact that the extent does not cover changed the agent."""

    def head(self) -> Head:
        return Head(
            self.session,
            self.extent,
            _digest(self.log.get(place, b"") for place in self.extent.places()),
            _digest(self.row.values()),
            self.agent.hex(),
        )

    def differences(self, sealed: Head) -> list[Problem]:
        """Return what differs from the sealed head, at most some of it."""
        now, places = self.head(), list(self.extent.places())
        found = _compare(places, sealed.log, now.log, self.log)
        if sealed.agent != now.agent and not self.is_bound_later:
            found.append(("row agent", ALTERED))
        if self.facts == sealed.extent.facts:
            found += _compare(list(self.row), sealed.row, now.row, self.row)
        shown = [Problem(self.session, place, what) for place, what in found[:SHOWN_PLACES]]
        if len(found) > SHOWN_PLACES:
            more = f"{len(found) - SHOWN_PLACES} more records were altered or removed since the seal"
            shown.append(Problem(self.session, "seal", more))
        return shown


def read_session(store: StoreBackend, session_id: str, extent: Extent | None = None) -> SealedPart:
    """Read a session, in one snapshot; with `extent` the part that a seal covers."""
    with store.export_sessions(session_id) as exports:
        (part,) = [_read(export, extent) for export in exports.sessions]
    return part


def _read(export: SessionExport, extent: Extent | None) -> SealedPart:
    """Hash the records of an export. They are read once, in the order of the fields."""
    row, detail = export.row, export.detail
    branches = _branches(export.branches, extent)
    log = {f"branch {n}": _hash((one.parent, one.parent_seq)) for n, one in enumerate(branches, 1)}
    log |= _entry_hashes(export.entries, {n: one.tail for n, one in enumerate(branches, 1)})
    calls, open_calls = _settled_calls(export, extent)
    log |= {f"call {n}": _hash(call) for n, call in enumerate(calls, 1)}
    covered = row.facts if extent is None else extent.facts
    count, is_bound_later = 0, False
    for fact in export.facts:
        count += 1
        if fact.number <= covered:
            log[f"fact {fact.number}"] = _hash(_fact_record(fact))
        is_bound_later |= fact.number > covered and fact.kind == BOUND
    fixed = {**msgspec.structs.asdict(row), **msgspec.structs.asdict(detail)}
    log |= {f"row {name}": _hash(fixed[name]) for name in FIXED_FIELDS}
    return SealedPart(
        row.session_id,
        count,
        extent or Extent(row.facts, branches, len(calls), open_calls),
        log,
        {f"row {name}": _hash(getattr(row, name)) for name in CHANGING_FIELDS},
        _hash(row.agent),
        is_bound_later,
    )


def _branches(branches: Sequence[Branch], extent: Extent | None) -> list[BranchExtent]:
    """Return the branches as they are now, of an extent only those that it covers and as far as it does."""
    found = [BranchExtent(branch.parent, branch.parent_seq, branch.tail) for branch in branches]
    if extent is None:
        return found
    pairs = zip(found, extent.branches, strict=False)
    return [replace(one, tail=min(one.tail, sealed.tail)) for one, sealed in pairs]


def _entry_hashes(entries: Iterable[StoredEntry], tails: Mapping[int, int]) -> dict[str, bytes]:
    hashes = {}
    for stored in entries:
        entry = stored.entry
        if entry.seq <= tails.get(stored.branch, -1):
            place = (entry.entry_id, entry.turn, entry.step, entry.kind, entry.role, bool(entry.internal))
            hashes[f"entry {stored.branch}:{entry.seq}"] = _hash(
                (place, entry.at, entry.model, entry.finish, entry.body)
            )
    return hashes


def _settled_calls(export: SessionExport, extent: Extent | None) -> tuple[list[Call], list[str]]:
    """Return the calls that are covered, and the ids of those without an outcome.

    A later import from another tool may complete the usage that an earlier one found: so no call of an import is covered.
    """
    calls = list(export.calls) if export.row.relation != "import" else []
    if extent is not None:
        return [call for call in calls if call.call_id not in extent.open_calls][: extent.calls], []
    settled = [call for call in calls if _is_settled(call)]
    return settled, [call.call_id for call in calls if not _is_settled(call)]


def _is_settled(call: Call) -> bool:
    return call.answer_seq is not None or call.failed or call.usage != Usage() or call.price is not None


def _fact_record(fact: StoredFact) -> object:
    """Return the content of a fact. Another kind of store may keep the fields in another order."""
    return fact.kind, fact.key, fact.at, to_sorted_json(fact.body), fact.leaf, fact.first


def to_sorted_json(body: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(body), order="sorted")
    except msgspec.MsgspecError:
        return body


# -- digests ---------------------------------------------------------------------------------------------


def _hash(record: object) -> bytes:
    return sha256(msgspec.msgpack.encode(record)).digest()


def _digest(hashes: Iterable[bytes]) -> Digest:
    whole, marks = sha256(), []
    for each in hashes:
        whole.update(each)
        marks.append(b64encode(each[:MARK_BYTES]).decode() or " " * MARK_CHARACTERS)
    return Digest(whole.hexdigest(), "".join(marks))


def _digest_of_heads(heads: list[Head]) -> str:
    return sha256(msgspec.json.encode(heads)).hexdigest()


def _compare(
    places: Sequence[str], sealed: Digest, now: Digest, present: Collection[str]
) -> list[tuple[str, str]]:
    """Return the places where two digests of the same places differ, each with what happened there."""
    if sealed.sha256 == now.sha256:
        return []
    found = []
    for number, place in enumerate(places):
        span = slice(number * MARK_CHARACTERS, (number + 1) * MARK_CHARACTERS)
        if place not in present:
            found.append((place, REMOVED))
        elif sealed.marks[span] != now.marks[span]:
            found.append((place, ALTERED))
    return found or [("seal", "a record was altered since the seal")]
