"""A dumped session under another id: the links between a parent and its tasks go along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from ...stores.base import Fact
from ...stores.transfer import SessionExport

LINKS = {
    "started": "parent",
    "task_started": "child",
    "task_waits": "session",
    "task_decided": "session",
}
"""The facts that name other sessions, and where."""


class Names(dict[str, str]):
    """Old ids to new ones, made when they are first met."""

    def __init__(self, make: Callable[[str], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, old: str) -> str:
        self[old] = new = self._make(old)
        return new


def beside(dumps: Iterable[SessionExport], new_id: Callable[[str], str]) -> Iterator[SessionExport]:
    """Everything under new ids, to lie beside what it is a copy of.

    The first session becomes an import, and says of what: its parent is the id it had. Conversations get
    ids of their own, so that none goes on in a copy by mistake.
    """
    names = Names(lambda old: new_id("ses"))
    conversations = Names(lambda old: new_id("con"))
    for n, dump in enumerate(dumps):
        old = dump.row
        row = replace(
            old,
            session_id=names[old.session_id],
            conversation_id=conversations[old.conversation_id],
            parent_session=names[old.parent_session] if n and old.parent_session else old.session_id,
            parent_seq=old.parent_seq if n else old.leaf.seq,
            relation=old.relation if n else "import",
        )
        renamed = replace(dump, row=row, facts=relinked(dump.facts, names, is_root=not n))
        yield owned(renamed, row.session_id)


def owned(dump: SessionExport, session_id: str) -> SessionExport:
    """Its own branches name it."""
    branches = tuple(
        branch if branch.session_id is None else replace(branch, session_id=session_id)
        for branch in dump.branches
    )
    return replace(dump, branches=branches)


def relinked(facts: Iterable[Fact], names: Names, *, is_root: bool) -> Iterator[Fact]:
    """The facts that name other sessions, by their new names. Who a root came from is none of them."""
    for fact in facts:
        data = fact.data
        link = LINKS.get(fact.kind, "")
        if isinstance(data.get(link), str) and not (is_root and fact.kind == "started"):
            data = {**data, link: names[data[link]]}
        yield fact if data is fact.data else replace(fact, data=data)
