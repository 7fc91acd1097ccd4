"""Give exported sessions other ids, and rename the links between parents and tasks accordingly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from oakleaf.stores.base import Fact
from oakleaf.stores.transfer import SessionExport

LINKS = {
    "started": "parent",
    "task_started": "child",
    "task_waits": "session",
    "task_decided": "session",
}
"""The facts that name another session, and the field that does."""


class IdMap(dict[str, str]):
    """New ids by old ones, created on first use."""

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
    """Assign its own branches to `session_id`."""
    branches = tuple(
        branch if branch.session_id is None else replace(branch, session_id=session_id)
        for branch in dump.branches
    )
    return replace(dump, branches=branches)


def rename_links(facts: Iterable[Fact], names: IdMap, *, is_root: bool) -> Iterator[Fact]:
    """Rename the sessions in facts, except the origin of a root."""
    for fact in facts:
        data = fact.data
        link = LINKS.get(fact.kind, "")
        if isinstance(data.get(link), str) and not (is_root and fact.kind == "started"):
            data = {**data, link: names[data[link]]}
        yield fact if data is fact.data else replace(fact, data=data)
