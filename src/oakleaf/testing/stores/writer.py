"""Helpers of the suite: a writer that only uses the methods of a store, and functions to compare what was read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import sha256
from typing import Any

import pytest

from oakleaf.core.drafts import Blob, Draft, build_entries
from oakleaf.core.entries import Payload
from oakleaf.core.facts import Moved
from oakleaf.core.messages import Media
from oakleaf.core.tree import Leaf
from oakleaf.core.turns import Cursor
from oakleaf.core.usage import Call, Price, Usage
from oakleaf.errors import OakleafError, StoreLacks
from oakleaf.stores.base import Change, CommitResult, NewSession, SessionDetail, SessionRow, StoreBackend
from oakleaf.testing.stores.report import LawReport


def assert_raises(kind: type[OakleafError], action: Callable[[], Any]) -> OakleafError:
    """Return the error of `action`; fail unless the error is of the expected kind."""
    try:
        result = action()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {result!r}")


class SessionWriter:
    """Writes a session through a store's methods and remembers the leaf."""

    def __init__(self, store: StoreBackend, session_id: str = "ses_a", **row: Any) -> None:
        self.store, self.session_id, self.at = store, session_id, 100
        seeds: Sequence[Payload] = row.pop("seeds", ())
        fork_point: tuple[Leaf, Cursor] = row.pop("fork_point", (None, Cursor()))
        built = build_entries(fork_point[1], [Draft(seed) for seed in seeds], 100, seed=fork_point[0] is None)
        row.setdefault("conversation_id", f"con_{session_id}")
        row = {"space": store.space, "owner": store.owner, "started_at": 100, "updated_at": 100, **row}
        self.new = NewSession(
            SessionRow(session_id=session_id, seed_count=0 if fork_point[0] else len(seeds), **row),
            f"~start {session_id}",
            SessionDetail(),
            built.entries,
            built.blobs,
            fork_point[0],
        )
        created, self.is_new = store.create(self.new)
        self.leaf, self.cursor = created.leaf, built.cursor

    def change(self, *payloads: Payload, **fields: Any) -> Change:
        self.at += 1
        built = build_entries(
            fields.pop("cursor", self.cursor), [Draft(payload) for payload in payloads], self.at
        )
        self.next_cursor = built.cursor
        fields = {"after": self.leaf, "key": f"~k{self.at}", "at": self.at, "blobs": built.blobs, **fields}
        return Change(session_id=self.session_id, entries=built.entries, **fields)

    def commit(self, **fields: Any) -> CommitResult:
        """Commit a change with the given fields. The writer stays at its leaf."""
        self.at += 1
        fields = {"key": f"~k{self.at}", "at": self.at, **fields}
        return self.store.commit(Change(session_id=self.session_id, **fields))

    def append(self, *payloads: Payload, **fields: Any) -> CommitResult:
        result = self.store.commit(self.change(*payloads, **fields))
        self.leaf, self.cursor = result.leaf, self.next_cursor
        return result

    def move(self, to: Leaf, cursor: Cursor, **fields: Any) -> CommitResult:
        moved = Moved((self.leaf.branch, self.leaf.seq))
        result = self.commit(fact=moved, after=self.leaf, move_to=to, **fields)
        self.leaf, self.cursor = result.leaf, cursor
        return result

    def fork(self, session_id: str, at: tuple[Leaf, Cursor] | None = None, **row: Any) -> SessionWriter:
        """Create a fork of the session at a leaf with a cursor, or at the writer's leaf."""
        leaf, cursor = at or (self.leaf, self.cursor)
        row = {"relation": "fork", "parent_session": self.session_id, "parent_seq": leaf.seq, **row}
        return SessionWriter(self.store, session_id, fork_point=(leaf, cursor), **row)

    def texts(self) -> list[str]:
        return [entry.message.text for entry in self.store.path(self.session_id).entries if entry.message]

    @property
    def row(self) -> SessionRow:
        return self.store.session(self.session_id)


def call(name: str, after: int, answer: int | None, tokens: int | None = 10, cost: int | None = 5) -> Call:
    usage = Usage() if tokens is None else Usage(tokens, 1, 2, 3)
    price = None if cost is None else Price(cost, "v1")
    return Call(name, 0, after, answer, 100, usage, provider="p", model="m", price=price)


def read_everything(store: StoreBackend, session_id: str) -> tuple[Any, ...]:
    """Return a store's whole data of a session; equal before and after means nothing was built."""
    return (
        store.session(session_id),
        store.detail(session_id),
        store.entries(session_id),
        store.branches(session_id),
        store.journal(session_id),
        store.calls(session_id),
        store.inherited_calls(session_id),
        store.tool_calls(session_id),
    )


def delete(store: StoreBackend, *session_ids: str) -> None:
    """Trash and purge sessions in order."""
    for session_id in session_ids:
        store.trash(session_id, 500)
        store.purge(session_id)


def make_blob(data: bytes) -> Blob:
    return Blob(sha256(data).hexdigest(), "text/plain", data)


def media_of(blob: Blob) -> Media:
    return Media(blob.hash, blob.mime, len(blob.data))


def claims(store: StoreBackend, method: str) -> bool:
    """Whether a store has a capability: the store's class has a method beyond the contract's default."""
    return getattr(type(store), method) is not getattr(StoreBackend, method)


def require(store: StoreBackend, method: str, deed: str) -> None:
    """Raise StoreLacks, so that the law stays unchecked, unless the store has the capability."""
    if not claims(store, method):
        raise StoreLacks(store.url, deed)


class StoreFactory(ABC):
    """The needs of each part of the suite from a subclass."""

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("oakleaf.testing."):
            laws = [name for name in vars(cls) if name.startswith("test_")]
            for name in laws:
                setattr(cls, name, _law(vars(cls)[name]))

    @abstractmethod
    def open_store(self, space: str = "default", owner: str | None = None) -> StoreBackend:
        """Return a store over the data of the test, opened for a space and an owner."""

    @pytest.fixture(autouse=True)
    def _laws(self, request: pytest.FixtureRequest) -> None:
        self.laws = LawReport.of(request.config).laws_of(type(self).__name__)


def _law(test: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the test of a law. It is skipped if the store lacks what the law is about, and says what that is."""
    name = test.__qualname__.partition(".")[0].removesuffix("Conformance")
    part = re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower()

    @wraps(test)
    def check(self: Any) -> None:
        try:
            test(self)
        except StoreLacks as lack:
            self.laws.unclaimed[lack.deed] += 1
            pytest.skip(f"not claimed: the store cannot {lack.deed}")
        self.laws.parts[part] += 1

    return check
