"""The query language: what a person types, as a value every store can answer.

    lost parcel "order 41" ship* -refund tool:track error:true after:7d

Words are looked for together, in any order; a phrase in quotes as it stands; `*` ends the beginning of a
word; `-` leaves out. Knows words and filters, not how they are looked up. Whatever is typed either means
something or is refused with the reason; nothing in it is handed on as syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct

from ..errors import InvalidArgument, InvalidSearch
from .entries import KINDS
from .messages import ROLES
from .search_text import Token, find_phrase, find_spans, normalize_for_index, tokenize, tokenize_indexed
from .time_text import TIME_FORMATS, parse_time

Column = Literal["text", "tool", "model", "mark"]
COLUMNS: tuple[Column, ...] = get_args(Column)
FILTERS = ("role", "kind", "tool", "model", "error", "agent", "tag", "session", "before", "after")
TITLE = "title"
"""The kind of a hit in a session's title; it stands at seq 0, before the first entry."""
MAX_QUERY_LENGTH = 2_000
EXCERPT_LENGTH = 160
# A filter has no blank behind its colon, and neither `std::vector` nor `http://host` is one.
_TYPED = re.compile(r'(-(?!-))?(?:([a-z_]+):(?=[^\s:/]))?("[^"]*"?\*?|[^\s"]+)')


class Term(Struct, frozen=True):
    """Words in a row, in one column of an entry."""

    column: Column
    words: tuple[str, ...]
    is_prefix: bool = False
    is_excluded: bool = False


class Search(Struct, frozen=True, kw_only=True):
    terms: tuple[Term, ...] = ()
    agent: str | None = None
    tag: tuple[str, str | None] | None = None
    """A tag that is set; with a value, to that."""
    session_id: str | None = None
    """Everything this session stands on, shared history included, and told as its own."""
    since: int | None = None
    until: int | None = None
    """Microseconds; the latter is not included."""
    trashed: bool = False
    before: str | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        is_place = isinstance(self.before, str) and re.fullmatch("[0-9]{1,18}", self.before)
        if self.before is not None and not is_place:
            raise InvalidArgument("before", self.before, "the `next` of a page")
        if type(self.limit) is not int or not 0 < self.limit <= 1_000:
            raise InvalidArgument("limit", self.limit, "a number from 1 to 1,000")


def parse_query(query: str, now: int) -> Search:
    """What was typed, as a search. `now` is what `after:7d` counts from."""
    if not isinstance(query, str) or len(query) > MAX_QUERY_LENGTH:
        raise InvalidSearch(query, f"a search is text of at most {MAX_QUERY_LENGTH:,} characters")
    if any("\ud800" <= letter <= "\udfff" for letter in query):
        raise InvalidSearch(query, "it holds half a character; type it again")
    found: dict[str, object] = {}
    terms: list[Term] = []
    for minus, name, value in _TYPED.findall(query):
        if name in ("", "role", "kind", "tool", "model", "error"):
            terms += _terms(name, value, is_excluded=bool(minus))
        else:
            found |= _filter(f"{minus}{name}:{value}", name, value, now)
    if not terms and not found:
        raise InvalidSearch(
            query, "it holds no letter or digit to look for; type a word, or a filter such as role:tool"
        )
    return Search(terms=tuple(dict.fromkeys(terms)), **found)  # type: ignore[arg-type]  # _filter names fields


def _terms(name: str, value: str, *, is_excluded: bool) -> list[Term]:
    is_prefix, bare = value.endswith("*"), value.strip('*"')
    if name in _ALLOWED:
        if bare not in _ALLOWED[name]:
            raise InvalidSearch(f"{name}:{value}", f"{name}: takes {', '.join(_ALLOWED[name])}")
        return [Term("mark", (marker_word(name, bare),), is_excluded=is_excluded)]
    looked_for = tuple(word for word, *_ in tokenize(bare))
    if not looked_for:
        if name:
            raise InvalidSearch(f"{name}:{value}", f"{name}: takes a name")
        return []  # a lone dash or bracket: there is no such word
    column: Column = "tool" if name == "tool" else "model" if name == "model" else "text"
    return [Term(column, looked_for, is_prefix, is_excluded)]


_ALLOWED: dict[str, tuple[str, ...]] = {
    "role": ROLES,
    "kind": (*KINDS, TITLE),
    "error": ("true", "false"),
}


def _filter(typed: str, name: str, value: str, now: int) -> dict[str, object]:
    if name not in FILTERS:
        known = " ".join(f"{known}:" for known in FILTERS)
        raise InvalidSearch(
            typed,
            f'there is no filter {name}:; filters are {known}. Write "{name}:…" in quotes to find the words',
        )
    if typed.startswith("-"):
        raise InvalidSearch(
            typed, f"{name}: cannot be left out; only words, role:, kind:, tool:, model: and error: can"
        )
    bare = value.strip('"')
    if not bare:
        raise InvalidSearch(typed, f"{name}: takes a value")
    match name:
        case "before":
            return {"until": _moment(typed, bare, now)}
        case "after":
            return {"since": _moment(typed, bare, now)}
        case "tag":
            key, equals, wanted = bare.partition("=")
            return {"tag": (key, wanted if equals else None)}
    return {"session_id" if name == "session" else name: bare}


def _moment(typed: str, value: str, now: int) -> int:
    try:
        return parse_time("", value, now)
    except InvalidArgument:
        raise InvalidSearch(typed, f"it takes {TIME_FORMATS}") from None


def marker_word(name: str, value: str) -> str:
    """A filter's value as one word, which no text can be mistaken for within its column."""
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
    """What of an entry each column holds, cut into words."""
    marks = [marker_word("kind", kind), marker_word("error", str(error).lower())]
    if role is not None:
        marks.append(marker_word("role", role))
    return {
        "text": normalize_for_index(text),
        "tool": normalize_for_index("\n".join(tools)),
        "model": normalize_for_index(model or ""),
        "mark": " ".join(marks),
    }


def matches(terms: Sequence[Term], columns: Mapping[Column, str]) -> bool:
    """Whether an entry with these columns is meant."""
    cut: dict[Column, list[Token]] = {}
    for term in terms:
        if term.column not in cut:
            cut[term.column] = tokenize_indexed(columns[term.column])
        is_there = bool(find_spans(cut[term.column], term.words, is_prefix=term.is_prefix))
        if is_there == term.is_excluded:
            return False
    return True


def excerpt(text: str, terms: Sequence[Term]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A line of the text about where it matches, and where in that line the words stand."""
    wanted = [term for term in terms if term.column == "text" and not term.is_excluded]
    places = [find_phrase(text, term.words, is_prefix=term.is_prefix) for term in wanted]
    at = min((place for place in places if place >= 0), default=0)
    begin = (
        0
        if at < EXCERPT_LENGTH // 2
        else text.rfind(" ", at - EXCERPT_LENGTH // 2, at - EXCERPT_LENGTH // 8) + 1
        or at - EXCERPT_LENGTH // 4
    )
    end = begin + EXCERPT_LENGTH
    shown = " ".join(text[begin:end].split())
    shown = f"{'…' if begin else ''}{shown}{'…' if end < len(text) else ''}"
    cut = list(tokenize(shown))
    marks = {span for term in wanted for span in find_spans(cut, term.words, is_prefix=term.is_prefix)}
    return shown, tuple(_apart(sorted(marks)))


def _apart(marks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Marks that overlap, as one."""
    apart: list[tuple[int, int]] = []
    for begin, end in marks:
        if apart and begin < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((begin, end))
    return apart
