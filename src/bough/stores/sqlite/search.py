"""Search in SQLite: a search as an FTS5 expression and a few conditions.

Every word that reaches FTS5 is letters and digits within quotes, so nothing a user types is syntax. Snippets are cut
from the entries themselves: the index holds no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.search import Term
from ...core.tree import Leaf, Range
from ..database_search import Candidate, DatabaseSearch
from .search_index import tenant_words
from .transfer import SqliteExporter

SELECT_CANDIDATES = """
select search.rowid, search_entry.at, session.number, session.id, session.title, session.branch, session.seq, entry.turn,
       entry.kind, entry.role, entry.model, entry.finish, entry.body
from search
cross join search_entry on search_entry.id = search.rowid
cross join session on session.number = {session_number}
left join entry on entry.id = search.rowid
where search match :match and search.rowid >= :first and search.rowid < :end and {conditions}
order by search.rowid desc limit :limit
"""


class SqliteSearch(DatabaseSearch):
    exporter: SqliteExporter
    index_is_exact = True
    parameter = ":{}"
    indexed_at = "search_entry.at"
    has_tag = "exists (select 1 from json_each(session.tags) where key = :tag and value = coalesce(:tag_value, value))"

    def candidates(self, first: int, end: int, session_number: int | None) -> Iterator[Candidate]:
        conditions, bindings = self._conditions()
        listed_under = "search_entry.session_number" if session_number is None else str(session_number)
        query = SELECT_CANDIDATES.format(session_number=listed_under, conditions=conditions)
        # What a fork shares may be listed under another owner's session; who may read the fork may read it all.
        tenant = tenant_words(self.space, self.owner if session_number is None else None)
        bindings |= {"match": match_expression(self.search.terms, tenant), "limit": self.search.limit + 1}
        rows = self.reader.execute(query, {**bindings, "first": first, "end": end})
        return (Candidate(*row) for row in rows)

    def lineage(self, leaf: Leaf) -> list[Range]:
        return self.exporter.lineage(leaf)


def match_expression(terms: Sequence[Term], tenant: Sequence[str]) -> str:
    """Return the terms in the language of FTS5. The tenant is always required, so there is always a first one."""
    required = [Term("marker", (word,)) for word in tenant] + [term for term in terms if not term.is_excluded]
    excluded = [term for term in terms if term.is_excluded]
    expression = " AND ".join(map(_quote, required))
    return f"({expression}) NOT ({' OR '.join(map(_quote, excluded))})" if excluded else expression


def _quote(term: Term) -> str:
    return f'{term.column} : "{" ".join(term.words)}"{" *" if term.is_prefix else ""}'
