"""The dictionaries of the memory store, shared by the stores of all tenants."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from oakleaf.core.drafts import Blob, NewEntry
from oakleaf.core.tree import Branch, Leaf
from oakleaf.core.usage import Call
from oakleaf.errors import NotFound
from oakleaf.stores.base import Fact, QueuedInput, SessionDetail, SessionQuery, SessionRow, is_callers_key


class SessionData(Struct):
    """All that belongs to one session."""

    number: int
    row: SessionRow
    detail: SessionDetail
    active_at: int
    journal: list[Fact] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    inbox: list[QueuedInput] = field(default_factory=list)

    def position(self, query: SessionQuery) -> tuple[int, ...]:
        """Its position in a list of this order."""
        return (self.number,) if query.order == "created" else (self.active_at, self.number)

    def copy(self) -> SessionData:
        return replace(self, journal=list(self.journal), calls=list(self.calls), inbox=list(self.inbox))


class Tables(Struct):
    sessions: dict[str, SessionData] = {}
    purged: dict[str, SessionData] = {}
    """Of purged sessions: the calls whose answers a fork inherits, and the facts that hold their message limits."""
    branches: dict[int, Branch] = {}
    entries: dict[tuple[int, int], NewEntry] = {}
    blobs: dict[tuple[str, str], tuple[Blob, int]] = {}
    drafts: dict[str, tuple[Leaf, str]] = {}
    numbers: dict[str, int] = field(default_factory=lambda: {"session": 0, "branch": 0})

    def copy(self) -> Tables:
        tables = Tables(*map(dict, astuple(self)))
        for sessions in (tables.sessions, tables.purged):
            sessions.update({name: data.copy() for name, data in sessions.items()})
        return tables

    def restore(self, before: Tables) -> None:
        """Become `before` again, in place: the stores of other tenants share these tables."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(before, name))

    def find(self, session_id: str, space: str, owner: str | None) -> SessionData:
        """Return what belongs to a tenant's session; `NotFound` if there is none."""
        data = self.sessions.get(session_id)
        if data is None or data.row.space != space or owner not in (None, data.row.owner):
            raise NotFound(session_id)
        return data

    def data(self, session_id: str) -> SessionData:
        """Return what belongs to a session, also of a purged one."""
        return self.sessions[session_id] if session_id in self.sessions else self.purged[session_id]

    def next_number(self, table: str) -> int:
        self.numbers[table] += 1
        return self.numbers[table]

    def insert_branch(self, session_id: str, parent: Leaf | None) -> int:
        number = self.next_number("branch")
        branch, seq = (None, 0) if parent is None else (parent.branch, parent.seq)
        self.branches[number] = Branch(number, session_id, branch, seq)
        return number

    def insert_entries(self, space: str, branch: int, entries: Iterable[NewEntry]) -> None:
        for entry in entries:
            assert (branch, entry.seq) not in self.entries
            if entry.media or entry.references:
                references = [digest for digest in entry.references if (space, digest) in self.blobs]
                media = tuple(sorted({*entry.media, *references}))
                entry = replace(entry, media=media, references=())
            self.entries[branch, entry.seq] = entry


def matches(data: SessionData, query: SessionQuery, space: str, owner: str | None) -> bool:
    row = data.row
    conditions = [
        (space, row.space),
        (owner, row.owner),
        (query.owner, row.owner),
        (query.agent, row.agent),
        (query.model, row.model),
        (query.conversation_id, row.conversation_id),
        (query.relation, row.relation),
        (query.parent_session, row.parent_session),
        (query.title, row.title),
    ]
    return (
        all(expected is None or expected == value for expected, value in conditions)
        and (query.status in (None, row.status) or (query.or_running and row.status == "running"))
        and query.trashed == (row.trashed_at is not None)
        and (query.tag is None or row.tags.get(query.tag[0]) == query.tag[1])
        and (query.key is None or _has_key(data, query.key))
        and (query.id_prefix is None or row.session_id.startswith(query.id_prefix))
        and (query.include_children or row.relation not in ("task", "replay"))
        and (query.started_from is None or row.started_at >= query.started_from)
        and (query.started_before is None or row.started_at < query.started_before)
        and (query.position is None or data.position(query) < query.position)
    )


def _has_key(data: SessionData, key: str) -> bool:
    return is_callers_key(key) and any(fact.key == key for fact in data.journal)
