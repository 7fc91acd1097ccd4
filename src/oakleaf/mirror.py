"""A mirror: writes the session of a program that Oakleaf does not run, such as a framework or a recorded client.

The program decides what happens; a mirror stores the entries, the model calls and the moves. Takes no lease: two writers
of one session meet in `StaleLeaf`. Does not know any framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oakleaf.core.drafts import Draft
from oakleaf.core.facts import Fact, Moved
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call
from oakleaf.errors import InvalidOperation
from oakleaf.log.request import Committed, Request
from oakleaf.session import Session


class Mirror:
    """Writes one session at the leaf of a handle, each call in one commit."""

    def __init__(self, session: Session, *, follows_notes: bool = False) -> None:
        """With `follows_notes` a write goes behind notes that others added meanwhile; else `StaleLeaf`."""
        self.session = session
        self._log, self._follows_notes = session.log, follows_notes

    def append(
        self,
        drafts: Sequence[Draft],
        *,
        after: Leaf | None = None,
        key: str | None = None,
        calls: Sequence[Call] = (),
        replaces_call: bool = False,
        starts: Sequence[int] = (),
        facts: Sequence[Fact] = (),
        row: Mapping[str, Any] | None = None,
    ) -> Committed:
        """Append all drafts after the leaf, or none, with the model calls that made them.

        `replaces_call`: the calls replace the announced ones of the same ids. `starts` are the indexes of the last draft's
        tool calls that start at once. `row` has columns of the session. A known `key` returns what it recorded.
        """
        if not drafts:
            raise InvalidOperation("nothing to append; pass at least one draft")
        return self._write(
            drafts=tuple(drafts),
            after=after,
            key=key,
            calls=tuple(calls),
            replaces_call=replaces_call,
            starts=tuple(starts),
            facts=tuple(facts),
            row=row or {},
        )

    def record(
        self,
        fact: Fact,
        *,
        at_leaf: bool = False,
        key: str | None = None,
        calls: Sequence[Call] = (),
        replaces_call: bool = False,
        row: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a fact without entries. With model calls, or `at_leaf`, `StaleLeaf` if the leaf has moved."""
        self._write(
            fact=fact,
            at_leaf=at_leaf or bool(calls),
            key=key,
            calls=tuple(calls),
            replaces_call=replaces_call,
            row=row or {},
        )

    def move(self, to: Leaf, *, drafts: Sequence[Draft] = (), host: Mapping[str, Any] | None = None) -> None:
        """Move the leaf anywhere in the session's tree, and append the drafts there. The fact keeps the values of `host`."""
        moved = None if host is None else Moved((0, 0), host=dict(host))
        self._write(move_to=to, drafts=tuple(drafts), fact=moved)

    def _write(self, **values: Any) -> Committed:
        return self._log.commit(Request(follows_notes=self._follows_notes, **values))
