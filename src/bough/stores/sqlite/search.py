"""Search in SQLite: a search as an FTS5 expression and a few conditions.

Every word that reaches FTS5 is letters and digits within quotes, so nothing a user types is syntax. Snippets are cut
from the entries themselves: the index holds no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.search import Term
from ...core.tree import Leaf, Range
from ..database_search import Candidate, DatabaseSearch
from .read import TREE, SessionReader
from .search_index import tenant_words

SELECT_CANDIDATES = """
select search.rowid, search_entry.at, session.number, session.id, session.title, session.branch, session.seq, entry.turn,
       entry.kind, entry.role, entry.model, entry.finish, entry.body
from search
cross join search_entry on search_entry.id = search.rowid
cross join session on session.number = {session_number}
left join entry on entry.id = search.rowid
where search match ? and search.rowid >= ? and search.rowid < ? and {conditions}
order by search.rowid desc limit ?
"""
SELECT_NUMBER = "select number from session where id = ? and space = ? and (?3 is null or owner = ?3)"
SELECT_BRANCHES = f"""
{TREE}
select branch.id, branch.session_number = :number, branch.parent, branch.parent_seq from line join branch using (id)
"""


class SqliteSearch(DatabaseSearch):
    index_is_exact = True

    def session_number(self, session_id: str) -> int | None:
        row = self.reader.execute(SELECT_NUMBER, (session_id, self.space, self.owner)).fetchone()
        return None if row is None else row[0]

    def branch_tree(self, session_number: int) -> list[tuple[int, bool, int | None, int]]:
        rows: list[Any] = self.reader.execute(SELECT_BRANCHES, {"number": session_number}).fetchall()
        return rows

    def candidates(self, first: int, end: int, session_number: int | None) -> Iterator[Candidate]:
        conditions, bindings = self._conditions()
        listed_under = "search_entry.session_number" if session_number is None else str(session_number)
        query = SELECT_CANDIDATES.format(session_number=listed_under, conditions=conditions)
        # What a fork shares may be listed under another owner's session; who may read the fork may read it all.
        tenant = tenant_words(self.space, self.owner if session_number is None else None)
        match = match_expression(self.search.terms, tenant)
        rows = self.reader.execute(query, (match, first, end, *bindings, self.search.limit + 1))
        return (Candidate(*row) for row in rows)

    def _conditions(self) -> tuple[str, list[Any]]:
        """Return conditions on session and time. The tenant is one of them although it is also a word of the index."""
        search = self.search
        optional: list[tuple[str, Any]] = [
            ("session.space = ?", self.space),
            ("session.owner = ?", self.owner),
            ("session.agent = ?", search.agent),
            ("search_entry.at >= ?", search.since),
            ("search_entry.at < ?", search.until),
        ]
        texts = [text for text, value in optional if value is not None]
        bindings = [value for _, value in optional if value is not None]
        texts.append(f"session.trashed_at is {'not' if search.trashed else ''} null")
        if search.tag is not None:
            texts.append(
                "exists (select 1 from json_each(session.tags) where key = ? and value = coalesce(?, value))"
            )
            bindings += search.tag
        return " and ".join(texts), bindings

    def lineage(self, leaf: Leaf) -> list[Range]:
        return SessionReader(self.reader, self.space, self.owner, self.index.url).lineage(leaf)


def match_expression(terms: Sequence[Term], tenant: Sequence[str]) -> str:
    """Return the terms in the language of FTS5. The tenant is always required, so there is always a first one."""
    required = [Term("marker", (word,)) for word in tenant] + [term for term in terms if not term.is_excluded]
    excluded = [term for term in terms if term.is_excluded]
    expression = " AND ".join(map(_quote, required))
    return f"({expression}) NOT ({' OR '.join(map(_quote, excluded))})" if excluded else expression


def _quote(term: Term) -> str:
    return f'{term.column} : "{" ".join(term.words)}"{" *" if term.is_prefix else ""}'
