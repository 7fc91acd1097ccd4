"""What the suite writes with: a pen that knows only the verbs of a store, and how to compare two readings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from ...core.drafts import Blob, Draft, build_entries
from ...core.entries import Payload
from ...core.messages import Media
from ...core.tree import Leaf
from ...core.turns import Cursor
from ...core.usage import Call, Price, Usage
from ...errors import BoughError
from ..base import Change, CommitResult, NewSession, SessionDetail, SessionRow, StoreBackend


def refused(kind: type[BoughError], do: Callable[[], Any]) -> BoughError:
    """The error `do` raises, which must be of that kind."""
    try:
        outcome = do()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {outcome!r}")


class Pen:
    """Writes a session through a store's verbs and remembers where it stands."""

    def __init__(self, store: StoreBackend, session_id: str = "ses_a", **row: Any) -> None:
        self.store, self.session_id, self.at = store, session_id, 100
        seeds: Sequence[Payload] = row.pop("seeds", ())
        under: tuple[Leaf, Cursor] = row.pop("fork_point", (None, Cursor()))
        written = build_entries(under[1], [Draft(seed) for seed in seeds], 100, seed=under[0] is None)
        row.setdefault("conversation_id", f"con_{session_id}")
        row = {"space": store.space, "owner": store.owner, "started_at": 100, "updated_at": 100, **row}
        self.new = NewSession(
            SessionRow(session_id=session_id, seed_count=0 if under[0] else len(seeds), **row),
            f"start {session_id}",
            SessionDetail(),
            written.entries,
            written.blobs,
            under[0],
        )
        made, self.is_new = store.create(self.new)
        self.leaf, self.cursor = made.leaf, written.cursor

    def change(self, *payloads: Payload, **how: Any) -> Change:
        self.at += 1
        written = build_entries(
            how.pop("cursor", self.cursor), [Draft(payload) for payload in payloads], self.at
        )
        self.next_cursor = written.cursor
        how = {"after": self.leaf, "key": f"k{self.at}", "at": self.at, "blobs": written.blobs, **how}
        return Change(session_id=self.session_id, entries=written.entries, **how)

    def append(self, *payloads: Payload, **how: Any) -> CommitResult:
        done = self.store.commit(self.change(*payloads, **how))
        self.leaf, self.cursor = done.leaf, self.next_cursor
        return done

    def move(self, to: Leaf, cursor: Cursor, **how: Any) -> CommitResult:
        self.at += 1
        done = self.store.commit(
            Change(
                session_id=self.session_id,
                key=f"k{self.at}",
                at=self.at,
                kind="moved",
                after=self.leaf,
                move_to=to,
                **how,
            )
        )
        self.leaf, self.cursor = done.leaf, cursor
        return done

    def texts(self) -> list[str]:
        return [entry.message.text for entry in self.store.path(self.session_id).entries if entry.message]

    @property
    def row(self) -> SessionRow:
        return self.store.session(self.session_id)


def call(name: str, after: int, answer: int | None, tokens: int | None = 10, cost: int | None = 5) -> Call:
    usage = Usage() if tokens is None else Usage(tokens, 1, 2, 3)
    price = None if cost is None else Price(cost, "v1")
    return Call(name, 0, after, answer, 100, usage, provider="p", model="m", price=price)


def everything(store: StoreBackend, session_id: str) -> tuple[Any, ...]:
    """All that a store tells of a session; equal before and after means nothing was written."""
    return (
        store.session(session_id),
        store.detail(session_id),
        store.entries(session_id),
        store.branches(session_id),
        store.journal(session_id),
        store.calls(session_id),
        store.inherited_calls(session_id),
    )


def make_blob(data: bytes) -> Blob:
    return Blob(sha256(data).hexdigest(), "text/plain", data)


def handle_of(blob: Blob) -> Media:
    return Media(blob.hash, blob.mime, len(blob.data))


class Opening:
    """What each part of the suite asks of its subclass."""

    @abstractmethod
    def opened(self, space: str = "default", owner: str | None = None) -> StoreBackend:
        """A store over the data of this test, opened for that space and owner."""
