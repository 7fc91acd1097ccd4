"""The query language: parse a typed query into a value every store can answer.

    lost parcel "order 41" ship* -refund tool:track error:true after:7d

All words must match, in any order; a quoted phrase matches literally; `*` ends a prefix; `-` excludes. Knows words
and filters, not how they are looked up. Every query is either valid or refused with the reason; nothing in it is
passed on as syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct

from oakleaf.core.entries import KINDS
from oakleaf.core.messages import ROLES
from oakleaf.core.search_text import (
    Token,
    find_phrase,
    find_spans,
    normalize_for_index,
    tokenize,
    tokenize_indexed,
)
from oakleaf.core.time_text import TIME_FORMATS, parse_time
from oakleaf.errors import InvalidArgument, InvalidSearch

Column = Literal["text", "tool", "model", "marker"]
COLUMNS: tuple[Column, ...] = get_args(Column)
_OF_ENTRIES = ("role", "kind", "tool", "model", "error")
FILTERS = (*_OF_ENTRIES, "agent", "tag", "session", "before", "after", "is")
TITLE = "title"
"""The kind of a hit in a session's title, which has seq 0, before the first entry."""
MAX_QUERY_LENGTH = 2_000
EXCERPT_LENGTH = 160
# A filter has no blank after its colon; `std::vector` and `http://host` are not filters.
_TERM = re.compile(r'(-(?!-))?(?:([a-z_]+):(?=[^\s:/]))?("[^"]*"?\*?|[^\s"]+)')


class Term(Struct, frozen=True):
    """Consecutive words, in a single column of an entry."""

    column: Column
    words: tuple[str, ...]
    is_prefix: bool = False
    is_excluded: bool = False


class Search(Struct, frozen=True, kw_only=True):
    terms: tuple[Term, ...] = ()
    agent: str | None = None
    tag: tuple[str, str | None] | None = None
    """A set tag; with a value, a tag set to the value."""
    session_id: str | None = None
    """Only the session's path, including shared history."""
    since: int | None = None
    until: int | None = None
    """Microseconds; `until` is exclusive."""
    trashed: bool = False
    replays: bool | None = False
    """Only what replays have written, or only the rest; None: both."""
    before: str | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        is_cursor = isinstance(self.before, str) and re.fullmatch("[0-9]{1,18}", self.before)
        if self.before is not None and not is_cursor:
            raise InvalidArgument("before", self.before, "the `next` of a page")
        if type(self.limit) is not int or not 0 < self.limit <= 1_000:
            raise InvalidArgument("limit", self.limit, "a number from 1 to 1,000")


class Part(Struct, frozen=True):
    """A part of a query: a word or a phrase, or a filter with its value."""

    name: str
    """The filter's name; empty for a word."""
    value: str
    is_excluded: bool = False

    @property
    def typed(self) -> str:
        return f"{'-' * self.is_excluded}{self.name}:{self.value}" if self.name else self.value

    @property
    def bare(self) -> str:
        """The value without quotes."""
        return self.value.strip('"')

    def refused(self, reason: str) -> InvalidSearch:
        return InvalidSearch(self.typed, reason)

    def one_of(self, allowed: Sequence[str]) -> str:
        """Return the value; raise InvalidSearch if it is not one of these."""
        if self.bare not in allowed:
            raise self.refused(f"{self.name}: accepts {', '.join(allowed)}")
        return self.bare

    def time(self, now: int) -> int:
        """Return the value as a time in microseconds since 1970."""
        try:
            return parse_time("", self.bare, now)
        except InvalidArgument:
            raise self.refused(f"expected {TIME_FORMATS}") from None


def split_query(query: str, filters: Sequence[str], excludable: Sequence[str] = ()) -> list[Part]:
    """Return the parts of a query that has these filters, of which some can be excluded.

    Every query is read here: that of a search, and that of a list of sessions.
    """
    if not isinstance(query, str) or len(query) > MAX_QUERY_LENGTH:
        raise InvalidSearch(query, f"expected text of at most {MAX_QUERY_LENGTH:,} characters")
    if any("\ud800" <= letter <= "\udfff" for letter in query):
        raise InvalidSearch(query, "it contains a lone surrogate; type it again")
    parts = [Part(name, value, bool(minus)) for minus, name, value in _TERM.findall(query)]
    for part in parts:
        if part.name:
            _check_filter(part, filters, excludable)
    return parts


def _check_filter(part: Part, filters: Sequence[str], excludable: Sequence[str]) -> None:
    name = part.name
    if name not in filters:
        names = " ".join(f"{names}:" for names in filters)
        raise part.refused(
            f'there is no filter {name}:; filters are {names}. Write "{name}:…" in quotes to find the words'
        )
    if part.is_excluded and name not in excludable:
        names = ", ".join(["words", *(f"{one}:" for one in excludable)])
        raise part.refused(f"{name}: cannot be excluded; only {names} can")
    if not part.bare:
        raise part.refused(f"{name}: needs a value")


def parse_query(query: str, now: int) -> Search:
    """Parse a query. `now` is what `after:7d` counts from."""
    filters: dict[str, object] = {}
    terms: list[Term] = []
    for part in split_query(query, FILTERS, _OF_ENTRIES):
        if part.name in ("", *_OF_ENTRIES):
            terms += _terms(part)
        else:
            filters |= _filter(part, now)
    if not terms and not filters:
        raise InvalidSearch(
            query, "it contains no letter or digit; type a word, or a filter such as role:tool"
        )
    if "session_id" in filters:
        filters.setdefault("replays", None)  # a session that was named is meant
    return Search(terms=tuple(dict.fromkeys(terms)), **filters)  # type: ignore[arg-type]  # _filter names fields


def _terms(part: Part) -> list[Term]:
    name, is_excluded = part.name, part.is_excluded
    if name in _ALLOWED:
        return [Term("marker", (marker_word(name, part.one_of(_ALLOWED[name])),), is_excluded=is_excluded)]
    words = tuple(word for word, *_ in tokenize(part.value.strip('*"')))
    if not words:
        if name:
            raise part.refused(f"{name}: needs a name")
        return []  # a lone dash or bracket contains no word
    column: Column = "tool" if name == "tool" else "model" if name == "model" else "text"
    return [Term(column, words, part.value.endswith("*"), is_excluded)]


_ALLOWED: dict[str, tuple[str, ...]] = {
    "role": ROLES,
    "kind": (*KINDS, TITLE),
    "error": ("true", "false"),
}


_KINDS: dict[str, dict[str, object]] = {
    "trashed": {"trashed": True},
    "replay": {"replays": True},
    "all": {"replays": None},
}


def _filter(part: Part, now: int) -> dict[str, object]:
    match part.name:
        case "before":
            return {"until": part.time(now)}
        case "after":
            return {"since": part.time(now)}
        case "is":
            return _KINDS[part.one_of(list(_KINDS))]
        case "tag":
            key, equals, value = part.bare.partition("=")
            return {"tag": (key, value if equals else None)}
    return {"session_id" if part.name == "session" else part.name: part.bare}


def marker_word(name: str, value: str) -> str:
    """Return a filter's value as a single word, unique within the column."""
    return name + value.replace("_", "")


def index_columns(
    text: str,
    *,
    kind: str,
    role: str | None = None,
    tools: Sequence[str] = (),
    model: str | None = None,
    error: bool = False,
) -> dict[Column, str]:
    """Return the indexed text of an entry by column."""
    marks = [marker_word("kind", kind), marker_word("error", str(error).lower())]
    if role is not None:
        marks.append(marker_word("role", role))
    return {
        "text": normalize_for_index(text),
        "tool": normalize_for_index("\n".join(tools)),
        "model": normalize_for_index(model or ""),
        "marker": " ".join(marks),
    }


def matches(terms: Sequence[Term], columns: Mapping[Column, str]) -> bool:
    """Return whether an entry with the columns matches all terms."""
    tokens: dict[Column, list[Token]] = {}
    for term in terms:
        if term.column not in tokens:
            tokens[term.column] = tokenize_indexed(columns[term.column])
        has_match = bool(find_spans(tokens[term.column], term.words, is_prefix=term.is_prefix))
        if has_match == term.is_excluded:
            return False
    return True


def excerpt(text: str, terms: Sequence[Term]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return a line of the text around the first match, and the spans of the matches."""
    shown_terms = [term for term in terms if term.column == "text" and not term.is_excluded]
    offsets = [find_phrase(text, term.words, is_prefix=term.is_prefix) for term in shown_terms]
    at = min((offset for offset in offsets if offset >= 0), default=0)
    begin = (
        0
        if at < EXCERPT_LENGTH // 2
        else text.rfind(" ", at - EXCERPT_LENGTH // 2, at - EXCERPT_LENGTH // 8) + 1
        or at - EXCERPT_LENGTH // 4
    )
    end = begin + EXCERPT_LENGTH
    line = " ".join(text[begin:end].split())
    line = f"{'…' if begin else ''}{line}{'…' if end < len(text) else ''}"
    tokens = list(tokenize(line))
    marks = {
        span for term in shown_terms for span in find_spans(tokens, term.words, is_prefix=term.is_prefix)
    }
    return line, tuple(_merge_overlaps(sorted(marks)))


def _merge_overlaps(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in spans:
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
