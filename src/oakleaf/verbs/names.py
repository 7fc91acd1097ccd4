"""What people call a session and its entries: title, tag, label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Struct

from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help, Pairs, Ref, Words
from oakleaf.verbs.screen import Screen, safe


class SessionTitle(Struct, frozen=True):
    session: str
    title: str | None


class Title(Verb, frozen=True):
    """Set or print a session's title.

    Without TEXT the title is printed; an empty TEXT ('') removes it.
    """

    section = "Move"
    effect = "write"

    session: Ref
    text: Annotated[Words | None, Help("The title; empty removes it.", metavar="TEXT…")] = None

    def run(self, caller: Caller) -> SessionTitle:
        if self.text is None:
            session = caller.session(self.session)
        else:
            session = caller.stored_session(self.session)
            session.title(self.text or None)
        return SessionTitle(session.session_id, session.row.title)

    def lines(self, result: SessionTitle, screen: Screen) -> Iterator[str]:
        if self.text is None:
            yield safe(result.title or "")


class Tags(Struct, frozen=True):
    session: str
    tags: dict[str, str]


class Tag(Verb, frozen=True):
    """Set, remove or print a session's tags.

    NAME= removes a tag; without tags they are printed.
    """

    section = "Move"
    effect = "write"

    session: Ref
    tags: Annotated[
        Pairs | None, Help("Values of tags by their names; null removes one.", metavar="NAME=VALUE…")
    ] = None

    def run(self, caller: Caller) -> Tags:
        if not self.tags:
            session = caller.session(self.session)
            return Tags(session.session_id, session.row.tags)
        session = caller.stored_session(self.session)
        return Tags(session.session_id, session.tag(**self.tags))

    def lines(self, result: Tags, screen: Screen) -> Iterator[str]:
        yield from (f"{safe(name)}={safe(value)}" for name, value in sorted(result.tags.items()))


class Labels(Struct, frozen=True):
    session: str
    labels: dict[str, str]
    """By position, such as 1:7; the newest last."""


class Label(Verb, frozen=True):
    """Label an entry of a session.

    `oakleaf label latest@7 the good one` labels entry 7; an empty TEXT ('') removes the label; without TEXT the labels are
    listed. oakleaf tree and the viewer show labels; models do not receive them.
    """

    section = "Move"
    effect = "write"
    http = "POST /api/sessions/{session}/labels"

    session: Ref
    text: Annotated[
        Words | None, Help("The label, at most 100 characters; empty removes it.", metavar="TEXT…")
    ] = None

    def run(self, caller: Caller) -> Labels:
        if self.text is None:
            position = caller.position(self.session)
        else:
            position = caller.stored_position(self.session)
            session = position.session
            session.label(session.leaf if position.leaf is None else position.leaf, self.text)
        labels = position.session.labels()
        if self.text is None and position.leaf is not None:
            labels = {leaf: label for leaf, label in labels.items() if leaf == position.leaf}
        return Labels(position.session.session_id, {str(leaf): label for leaf, label in labels.items()})

    def lines(self, result: Labels, screen: Screen) -> Iterator[str]:
        if self.text is None:
            yield from (f"{result.session}@{leaf}  {safe(label)}" for leaf, label in result.labels.items())
