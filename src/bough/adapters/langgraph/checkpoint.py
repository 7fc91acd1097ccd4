"""A checkpoint on its way in, on its way out, and as what is known of it meanwhile. Values, and the note one becomes.

Knows which values a note holds and which it names. Does not know sessions or places but by their numbers.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage
from msgspec import Struct

from ...core.codec import from_json, to_json
from ...core.tree import Leaf
from .index import Kept
from .page import Said
from .values import Values


class Coming(Struct, frozen=True):
    """A checkpoint to put."""

    checkpoint: dict[str, Any]
    """Without its channels' values."""
    parent: str | None
    metadata: dict[str, Any]
    held: dict[str, Any]
    """The values, without the messages."""
    changed: frozenset[str]
    """The channels whose values are new."""
    messages: list[BaseMessage] | None
    channel: str
    """The one the messages are of."""

    @property
    def checkpoint_id(self) -> str:
        return str(self.checkpoint["id"])


class Found(Struct, frozen=True):
    """A checkpoint as it was put, with its pending writes."""

    kept: Kept
    checkpoint: dict[str, Any]
    """Without its channels' values."""
    metadata: dict[str, Any]
    held: dict[str, Any]
    writes: list[tuple[str, str, Any]]


class Known(Struct, frozen=True):
    """What the path to a checkpoint holds, so that it need not be read again."""

    of: str | None = None
    place: Leaf = Leaf(0, 0)
    said: list[Said] = []
    checkpoint: bytes = b""
    """As its note holds it: who put it may change it meanwhile."""
    seqs: dict[str, int] = {}
    """Which note holds the value of a channel."""

    def held(self, values: Values) -> dict[str, tuple[Any, int]]:
        """By channel: the version, and the seq of the note that holds its value."""
        if not self.checkpoint:
            return {}
        versions = values.decode(from_json(self.checkpoint))["channel_versions"]
        return {name: (versions.get(name), seq) for name, seq in self.seqs.items()}


def known_by(kept: Kept, said: list[Said], told: dict[str, Any]) -> Known:
    seqs = told["at"] | dict.fromkeys(told["values"], kept.place.seq)
    return Known(kept.checkpoint_id, kept.place, said, to_json(told["checkpoint"], "checkpoint"), seqs)


def told_of(coming: Coming, held: dict[str, tuple[Any, int]], values: Values) -> dict[str, Any]:
    """What the note of a checkpoint says, if the path before it holds these values."""
    versions = coming.checkpoint["channel_versions"]
    fresh: dict[str, Any] = {}
    at: dict[str, int] = {}
    for name, value in coming.held.items():
        version, seq = held.get(name, (None, 0))
        if name in coming.changed or version is None or version != versions.get(name):
            fresh[name] = values.encode(value)
        else:
            at[name] = seq
    run = {"run_id": str(coming.metadata["run_id"])} if "run_id" in coming.metadata else {}
    return {
        "source": coming.metadata.get("source"),
        "id": coming.checkpoint_id,
        "parent": coming.parent,
        **run,
        "checkpoint": values.encode(coming.checkpoint),
        "metadata": values.encode(coming.metadata),
        "values": fresh,
        "at": at,
        "said": coming.channel if coming.messages is not None else None,
    }
