"""Search in SQLite: a search as an FTS5 expression and a few conditions.

Every word that reaches FTS5 is letters and digits within quotes, so nothing a user types is syntax. Snippets are cut
from the entries themselves: the index holds no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oakleaf.core.search import Term
from oakleaf.core.tree import Leaf, Range
from oakleaf.stores.sql.database_search import Candidate, DatabaseSearch
from oakleaf.stores.sqlite.search_index import tenant_words
from oakleaf.stores.sqlite.transfer import SqliteExporter

SELECT_KEYS = """
select rowid from search where search match :match and rowid >= :first and rowid < :end order by rowid desc limit :limit
"""
SELECT_CANDIDATES = """
select search_entry.id, search_entry.at, session.number, session.id, session.title, session.relation, session.branch, session.seq, entry.turn,
       entry.kind, entry.role, entry.model, entry.finish, entry.body
from {source}
cross join session on session.number = {session_number}
left join entry on entry.id = search_entry.id
where {conditions}
"""
BY_KEYS = "json_each(:keys) as hit cross join search_entry on search_entry.id = hit.value"
BY_WORDS = "search cross join search_entry on search_entry.id = search.rowid"
MATCHES = """
 and search match :match and search.rowid >= :first and search.rowid < :end order by search.rowid desc limit :limit
"""


class SqliteSearch(DatabaseSearch):
    exporter: SqliteExporter
    index_is_exact = True
    parameter = ":{}"
    indexed_at = "search_entry.at"
    is_own = (
        "exists (select 1 from branch where id = search_entry.id >> 32 and session_number = session.number)"
    )
    has_tag = "exists (select 1 from json_each(session.tags) where key = :tag and value = coalesce(:tag_value, value))"

    def candidates(self, first: int, end: int, session_number: int | None) -> Iterator[Candidate]:
        conditions, bindings = self._conditions()
        listed_under = "search_entry.session_number" if session_number is None else str(session_number)
        limit = self.search.limit + 1

        def read(source: str, more: str, **values: Any) -> Iterator[Candidate]:
            query = SELECT_CANDIDATES.format(
                source=source, session_number=listed_under, conditions=conditions + more
            )
            return (Candidate(*row) for row in self.reader.execute(query, {**bindings, **values}))

        words = match_expression(self.search.terms, ())
        if words is not None:
            # A page for the words alone: every entry has the words of its tenant, and a search for a rare word need not look
            # them up in every segment. The conditions refuse the entries of others.
            span = {"match": words, "first": first, "end": end, "limit": limit}
            keys = [key for (key,) in self.reader.execute(SELECT_KEYS, span)]
            if keys:
                yield from read(BY_KEYS, " order by hit.key", keys=str(keys))
            if len(keys) < limit:
                return
            end = keys[-1]
        # What a fork shares may be listed under another owner's session; who may read the fork may read it all.
        tenant = tenant_words(self.space, self.owner if session_number is None else None)
        match = match_expression(self.search.terms, tenant)
        yield from read(BY_WORDS, MATCHES, match=match, first=first, end=end, limit=limit)

    def lineage(self, leaf: Leaf) -> list[Range]:
        return self.exporter.lineage(leaf)


def match_expression(terms: Sequence[Term], tenant: Sequence[str]) -> str | None:
    """Return the terms in the language of FTS5; None without a required term, because FTS5 needs one."""
    required = [Term("marker", (word,)) for word in tenant] + [term for term in terms if not term.is_excluded]
    excluded = [term for term in terms if term.is_excluded]
    if not required:
        return None
    expression = " AND ".join(map(_quote, required))
    return f"({expression}) NOT ({' OR '.join(map(_quote, excluded))})" if excluded else expression


def _quote(term: Term) -> str:
    return f'{term.column} : "{" ".join(term.words)}"{" *" if term.is_prefix else ""}'
