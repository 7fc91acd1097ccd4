"""Render what the model received for each answer of a bundle, for a page that cannot do so itself.

Rendered from the bundle alone, so redacted text stays hidden, evidence is absent, and media show as missing. Requests
share most messages: each message is stored once, each request as its difference to the one before. The newest requests
are rendered first until the budget is used up; the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any

import msgspec
from msgspec import Raw, Struct

from oakleaf import wire
from oakleaf.core.context import Context, build_context
from oakleaf.core.entries import Entry
from oakleaf.core.fit import MEDIA_TOKENS, measure_item, measure_system, measure_tools
from oakleaf.core.tree import Leaf, lineage
from oakleaf.core.usage import Call
from oakleaf.ext import BundleReader
from oakleaf.stores.transfer import BlobReferences, SessionExport

MOST_WORK = 200_000
"""Entries to read for all requests together: some seconds. A request reads its whole path."""
MOST_BYTES = 4_000_000
PARTS = ("system", "tools", "summary", "user", "assistant", "tool results", "media")
ENCODE = msgspec.json.encode


class RequestRecord(Struct, frozen=True):
    """A model request."""

    at: str
    """The position of the answer."""
    after: str
    """The position of the last entry the model received."""
    provider: str
    history: str
    """The key of the list of messages."""
    rest: int
    """The rest of the request, as an index of the pool."""
    shared_messages: int
    """How many messages it shares with the request before it in this list."""
    added_messages: tuple[int, ...]
    """The other messages, as indexes of the pool."""
    tokens: tuple[tuple[str, int], ...]


class Requests(Struct, frozen=True):
    """The requests of a session, oldest first."""

    requests: list[RequestRecord]
    pool: list[Raw]
    omitted: int
    """Answers whose requests exceeded the budget."""


class SizeBudget(Struct):
    """The remaining render budget, for all sessions of a bundle."""

    work: int = MOST_WORK
    bytes: int = MOST_BYTES


def requests(bundle: memoryview, budget: SizeBudget | None = None) -> dict[str, Requests]:
    """Return the requests of each session in a bundle, by session id."""
    reader, budget = BundleReader(BytesIO(bundle), "the bundle", "reading", None), budget or SizeBudget()
    definitions = _definitions(bundle)
    return {
        dump.row.session_id: _session_requests(dump, definitions, budget) for dump in reader.dumps().sessions
    }


def _definitions(bundle: memoryview) -> dict[str, bytes]:
    """Return the definitions of tools in a bundle, stored after the sessions. Media are not read."""
    dumps, references = BundleReader(BytesIO(bundle), "the bundle", "reading", None).dumps(), BlobReferences()
    for dump in dumps.sessions:
        for stored in dump.entries:
            references.add(stored.entry.kind, stored.entry.body)
        for facts in (dump.calls, dump.facts, references.inbox(dump.inbox)):
            for _ in facts:
                pass
    blobs = (blob for blob in dumps.blobs(references.mimes) if blob.hash in references.definitions)
    return {blob.hash: b"".join(blob.pieces) for blob in blobs}


def token_shares(context: Context, provider: str) -> list[tuple[str, int]]:
    """Estimate the tokens of each part of a context; the call's usage is the billed amount."""
    tokens = dict.fromkeys(PARTS, 0)
    tokens["system"] = measure_system(context).tokens
    tokens["tools"] = measure_tools(context.settings).tokens
    for item in context.items:
        size = measure_item(item, provider)
        media = size.media * MEDIA_TOKENS
        part = (
            "summary" if item.pinned else "tool results" if item.message.role == "tool" else item.message.role
        )
        tokens[part] += size.tokens - media
        tokens["media"] += media
    return list(tokens.items())


def provider_of(call: Call | None) -> str:
    """Return the provider of a call's format; for a model without a provider, the first provider."""
    return call.provider if call is not None and call.provider in wire.PROVIDERS else "anthropic"


class _Tree(Struct, frozen=True):
    """The entries of a session in a bundle, by position."""

    dump: SessionExport
    entries: dict[tuple[int, int], Entry]
    calls: dict[tuple[int, int], Call]
    definitions: Mapping[str, bytes]

    def path(self, leaf: Leaf) -> Iterator[Entry]:
        branches = {branch.branch: branch for branch in self.dump.branches}
        for part in lineage(branches, leaf):
            for seq in range(part.first, part.last + 1):
                yield self.entries[part.branch, seq]

    def answers(self) -> Iterator[tuple[Entry, Call | None]]:
        """Yield answers, newest first."""
        for place in sorted(self.entries, key=lambda place: (place[1], place[0]), reverse=True):
            if self.entries[place].role == "assistant":
                yield self.entries[place], self.calls.get(place)


def _tree(dump: SessionExport, definitions: Mapping[str, bytes]) -> _Tree:
    """Read an export as a stream, in the order of the fields."""
    entries = {(one.branch, one.entry.seq): one.entry.to_entry(one.branch) for one in dump.entries}
    calls = {
        (call.branch, call.answer_seq): call
        for call in (*dump.inherited_calls, *dump.calls)
        if call.answer_seq is not None and call.purpose == "answer"
    }
    for rest in (dump.facts, dump.inbox):
        for _ in rest:
            pass
    return _Tree(dump, entries, calls, definitions)


def _session_requests(dump: SessionExport, definitions: Mapping[str, bytes], budget: SizeBudget) -> Requests:
    tree = _tree(dump, definitions)
    pool: dict[bytes, int] = {}
    requests = [_render(tree, answer, call, pool, budget) for answer, call in tree.answers()]
    rendered = [request for request in reversed(requests) if request is not None]
    omitted = len(requests) - len(rendered)
    return Requests(list(_differences(rendered)), [Raw(piece) for piece in pool], omitted)


def _render(
    tree: _Tree, answer: Entry, call: Call | None, pool: dict[bytes, int], budget: SizeBudget
) -> RequestRecord | None:
    """Return a request with all messages, adding the places in the pool; None beyond the budget."""
    leaf = Leaf(answer.branch, answer.seq - 1 if call is None else call.after_seq)
    budget.work -= leaf.seq
    if budget.work < 0:
        return None
    path = list(tree.path(leaf))
    provider, context = wire.find_provider(provider_of(call)), build_context(path)
    full: dict[str, Any] = provider.project(context, tree.definitions.get)
    messages = [ENCODE(message) for message in full.pop(provider.history)]
    pieces = [ENCODE(full), *messages]
    added_bytes = sum(len(piece) for piece in set(pieces) if piece not in pool)
    if added_bytes > budget.bytes:
        return None
    budget.bytes -= added_bytes
    first, *others = (pool.setdefault(piece, len(pool)) for piece in pieces)
    return RequestRecord(
        at=f"{answer.branch}:{answer.seq}",
        after=f"{path[-1].branch}:{path[-1].seq}" if path else "0:0",
        provider=provider.name,
        history=provider.history,
        rest=first,
        shared_messages=0,
        added_messages=tuple(others),
        tokens=tuple(token_shares(context, provider.name)),
    )


def _differences(rendered: Iterable[RequestRecord]) -> Iterator[RequestRecord]:
    """Yield each request as the difference from the request before."""
    before: tuple[int, ...] = ()
    for request in rendered:
        messages = request.added_messages
        shortest = min(len(before), len(messages))
        pairs = zip(before, messages, strict=False)
        shared = next((n for n, (a, b) in enumerate(pairs) if a != b), shortest)
        yield msgspec.structs.replace(request, shared_messages=shared, added_messages=messages[shared:])
        before = messages
