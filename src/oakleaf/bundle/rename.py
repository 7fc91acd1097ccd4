"""Give exported sessions other ids, and rename the links between parents and tasks accordingly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from oakleaf.core.codec import to_json
from oakleaf.core.facts import Started, StoredFact, TaskDecided, TaskStarted, TaskWaits, kind_of
from oakleaf.stores.transfer import SessionExport

LINKS = {
    kind_of(Started): "parent",
    kind_of(TaskStarted): "child",
    kind_of(TaskWaits): "session",
    kind_of(TaskDecided): "session",
}
"""The facts with another session's id, and the field of the id."""


class IdMap(dict[str, str]):
    """New ids by old ids, created on first use."""

    def __init__(self, make: Callable[[str], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, old: str) -> str:
        self[old] = new = self._make(old)
        return new


def with_new_ids(dumps: Iterable[SessionExport], new_id: Callable[[str], str]) -> Iterator[SessionExport]:
    """Give every session a new id, so that the copy can exist beside the original.

    The first session becomes an import whose parent is its old id. Conversations get new ids too, so that none is
    continued in a copy by mistake.
    """
    names = IdMap(lambda old: new_id("ses"))
    conversation_ids = IdMap(lambda old: new_id("con"))
    for n, dump in enumerate(dumps):
        old = dump.row
        row = replace(
            old,
            session_id=names[old.session_id],
            conversation_id=conversation_ids[old.conversation_id],
            parent_session=names[old.parent_session] if n and old.parent_session else old.session_id,
            parent_seq=old.parent_seq if n else old.leaf.seq,
            relation=old.relation if n else "import",
        )
        renamed = replace(dump, row=row, facts=rename_links(dump.facts, names, is_root=not n))
        yield with_owner(renamed, row.session_id)


def with_owner(dump: SessionExport, session_id: str) -> SessionExport:
    """Assign the session's own branches to `session_id`."""
    branches = tuple(
        branch if branch.session_id is None else replace(branch, session_id=session_id)
        for branch in dump.branches
    )
    return replace(dump, branches=branches)


def rename_links(facts: Iterable[StoredFact], names: IdMap, *, is_root: bool) -> Iterator[StoredFact]:
    """Rename the sessions in facts, except the origin of a root. Fields of a newer format stay."""
    for fact in facts:
        link = LINKS.get(fact.kind)
        if link is not None and not (is_root and fact.number == 1):
            values = fact.data
            if isinstance(values.get(link), str):
                fact = replace(fact, body=to_json({**values, link: names[values[link]]}, "a fact"))
        yield fact
