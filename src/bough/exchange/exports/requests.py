"""What the model was given for each answer of a bundle, for a page that cannot render it itself.

Rendered from the bundle alone, so nothing is told that is not in it: what was redacted is hidden here too, evidence
is absent, and media show as missing. Requests share most of their messages: each message is kept once, each request
as what it adds to the one before. The newest come first into the room there is, and what had no room is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from ... import wire
from ...agent.prompt_window import MessageLimits, prompt_context
from ...core.context import Context
from ...core.entries import Entry
from ...core.fit import BYTES_PER_TOKEN, MEDIA_TOKENS, measure
from ...core.tree import Leaf, lineage
from ...core.usage import Call
from ...stores.message_limits import message_limits
from ...stores.transfer import SessionExport
from ..bundle.read import BundleReader

MOST_WORK = 200_000
"""Entries that are looked at for all requests together: some seconds. A request looks at its whole path."""
MOST_BYTES = 4_000_000
PARTS = ("system", "summary", "user", "assistant", "tool results", "media")
ENCODE = msgspec.json.encode


class Told(Struct, frozen=True):
    """One request."""

    at: str
    """The answer's place."""
    behind: str
    provider: str
    history: str
    """The name of the list of messages."""
    rest: int
    """All of the request but that list: which of the pool."""
    same: int
    """So many messages are those of the request before it in this list."""
    more: tuple[int, ...]
    """The others: which of the pool."""
    tokens: tuple[tuple[str, int], ...]


class Requests(Struct, frozen=True):
    """Those of one session, oldest first."""

    told: list[Told]
    pool: list[Raw]
    left: int
    """Answers whose requests had no room."""


class Room(Struct):
    """What is left of it for all sessions of a bundle."""

    work: int = MOST_WORK
    bytes: int = MOST_BYTES


def requests(bundle: memoryview, room: Room | None = None) -> dict[str, Requests]:
    """The requests of each session in a bundle, by its id."""
    reader, room = BundleReader(BytesIO(bundle), "the bundle", "reading", None), room or Room()
    return {dump.row.session_id: _of_session(dump, room) for dump in reader.dumps().sessions}


def token_shares(context: Context) -> list[tuple[str, int]]:
    """An estimate, part by part; the call's own usage is what was billed."""
    found = dict.fromkeys(PARTS, 0)
    found["system"] = sum(len(text) for text in context.system) // BYTES_PER_TOKEN
    for item in context.items:
        size = measure(item.message)
        media = size.media * MEDIA_TOKENS
        part = (
            "summary" if item.pinned else "tool results" if item.message.role == "tool" else item.message.role
        )
        found[part] += size.tokens - media
        found["media"] += media
    return list(found.items())


def provider_of(call: Call | None) -> str:
    """Whose format a call was made in; that of a model without one is told in the first there is."""
    return call.provider if call is not None and call.provider in wire.PROVIDERS else "anthropic"


class _Tree(Struct, frozen=True):
    """The entries of a bundle's session by their places."""

    dump: SessionExport
    entries: dict[tuple[int, int], Entry]
    calls: dict[tuple[int, int], Call]
    most: MessageLimits

    def path(self, leaf: Leaf) -> Iterator[Entry]:
        branches = {branch.branch: branch for branch in self.dump.branches}
        for part in lineage(branches, leaf):
            for seq in range(part.first, part.last + 1):
                yield self.entries[part.branch, seq]

    def answers(self) -> Iterator[tuple[Entry, Call | None]]:
        """Newest first."""
        for place in sorted(self.entries, key=lambda place: (place[1], place[0]), reverse=True):
            if self.entries[place].role == "assistant":
                yield self.entries[place], self.calls.get(place)


def _tree(dump: SessionExport) -> _Tree:
    """In the order of a dump's fields: it streams."""
    entries = {(one.branch, one.entry.seq): one.entry.to_entry(one.branch) for one in dump.entries}
    calls = _answered([*dump.inherited_calls, *dump.calls])
    below = {Leaf(one.branch, one.turn): one.max_messages for one in dump.inherited_limits}
    most = {**below, **message_limits(dump.facts)}
    for _ in dump.inbox:
        pass
    return _Tree(dump, entries, calls, most)


def _answered(calls: Iterable[Call]) -> dict[tuple[int, int], Call]:
    return {
        (call.branch, call.answer_seq): call
        for call in calls
        if call.answer_seq is not None and call.purpose == "answer"
    }


class _Pool(Struct):
    """Pieces of requests, each once."""

    known: dict[bytes, int] = field(default_factory=dict)

    def new(self, pieces: Iterable[bytes]) -> int:
        """How many bytes these would add."""
        return sum(len(piece) for piece in set(pieces) if piece not in self.known)

    def places(self, pieces: Iterable[bytes]) -> list[int]:
        return [self.known.setdefault(piece, len(self.known)) for piece in pieces]


class _Rendered(Struct, frozen=True):
    told: Told
    messages: list[int]


def _of_session(dump: SessionExport, room: Room) -> Requests:
    tree, pool = _tree(dump), _Pool()
    found: list[_Rendered] = []
    left = 0
    for answer, call in tree.answers():
        rendered = _rendered(tree, answer, call, pool, room)
        if rendered is None:
            left += 1
        else:
            found.append(rendered)
    return Requests(list(_shortened(found[::-1])), [Raw(piece) for piece in pool.known], left)


def _rendered(tree: _Tree, answer: Entry, call: Call | None, pool: _Pool, room: Room) -> _Rendered | None:
    """None if there is no room for it."""
    behind = Leaf(answer.branch, answer.seq - 1 if call is None else call.after_seq)
    room.work -= behind.seq
    if room.work < 0:
        return None
    path = list(tree.path(behind))
    speaking, context = wire.find_provider(provider_of(call)), prompt_context(path, tree.most)
    full: dict[str, Any] = speaking.project(context, lambda _: None)
    messages = [ENCODE(message) for message in full.pop(speaking.history)]
    rest = ENCODE(full)
    more = pool.new([rest, *messages])
    if more > room.bytes:
        return None
    room.bytes -= more
    (first, *others) = pool.places([rest, *messages])
    told = Told(
        at=f"{answer.branch}:{answer.seq}",
        behind=f"{path[-1].branch}:{path[-1].seq}" if path else "0:0",
        provider=speaking.name,
        history=speaking.history,
        rest=first,
        same=0,
        more=(),
        tokens=tuple(token_shares(context)),
    )
    return _Rendered(told, others)


def _shortened(found: Iterable[_Rendered]) -> Iterator[Told]:
    """Each as what it adds to the one before."""
    before: list[int] = []
    for one in found:
        pairs = zip(before, one.messages, strict=False)
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(one.messages)))
        yield msgspec.structs.replace(one.told, same=same, more=tuple(one.messages[same:]))
        before = one.messages
