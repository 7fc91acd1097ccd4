"""Compare two sessions turn by turn: diff."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from msgspec import Struct

import oakleaf
from oakleaf import Diff as Whole
from oakleaf import Divergence
from oakleaf.core.turn_comparison import DiffRow, Kind
from oakleaf.core.usage import Totals, format_cost
from oakleaf.errors import ExitCode, InvalidArgument, shorten
from oakleaf.ext import DiffCursor, DiffSide, DiffWindow, SetupChange, diff_window
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Count, Help, Ref
from oakleaf.verbs.screen import Line, Screen, Table, clip, safe, style
from oakleaf.verbs.views import next_page

TURNS = 50
"""The turns of a page that names no number."""
_CURSOR = re.compile(r"(\d{1,10})-(\d{1,10})")
_COLOURS: dict[Kind, str] = {"same": "dim", "reworded": "yellow"}
_HEAD = ("A", "B", "CHANGE", "TOKENS", "COST", "INPUT")
_NUMBERS = ("A", "B", "TOKENS", "COST")


class Compared(Struct, frozen=True, kw_only=True):
    """Turns of both sides, from the first that they do not share."""

    same: bool | None
    """Null: no difference so far, and there are further pages."""
    incomplete: str | None
    """Why the comparison tells nothing: one side is a replay with unanswered inputs."""
    shared: int
    """The number of entries at the start that both sides have."""
    is_state_same: bool | None
    """Null: not compared, it would take too long."""
    counts: dict[str, int]
    """The turns of this page by how they differ."""
    a: DiffSide
    b: DiffSide
    setup: list[SetupChange]
    """What differs around the turns: prompt, model, options, tools, limits."""
    rows: list[DiffRow]
    first_divergence: Divergence | None
    next: str | None
    """The `page` that goes on; null on the last page."""


class Diff(Verb, frozen=True):
    """Compare two sessions or entries turn by turn.

    Each side is a session, or an entry such as ses_3f@7: the path up to it. Exit code 0 same, 1 different, 4 unknown: one
    of them is an incomplete replay.
    """

    section = "Compare"
    callers = frozenset({"operator", "service", "agent"})
    examples = ("oakleaf diff ses_3f ses_9c", "oakleaf diff latest@7 latest")

    a: Ref
    b: Ref
    markdown: Annotated[bool, Help("Print Markdown.")] = False
    limit: Annotated[Count | None, Help("Compare at most N turns.", remote=True)] = None
    page: Annotated[str | None, Help("Go on after a page before.", remote=True)] = None

    def run(self, caller: Caller) -> Compared:
        a, b = (caller.position(one).session_at() for one in (self.a, self.b))
        limit = self.limit or caller.most
        if limit is None and self.page is None:
            return _compared(oakleaf.diff(a, b), None)
        window = diff_window(a, b, self._cursor, limit or TURNS)
        return _compared(window, window.next)

    @property
    def _cursor(self) -> DiffCursor | None:
        if self.page is None:
            return None
        match = _CURSOR.fullmatch(self.page)
        if match is None:
            raise InvalidArgument("page", self.page, "the `next` of the page before")
        return DiffCursor(*map(int, match.groups()))

    def exit_code(self, result: Compared) -> int:
        if result.incomplete is not None:
            return ExitCode.UNANSWERABLE
        return int(result.same is False)

    def lines(self, result: Compared, screen: Screen) -> Iterator[Line]:
        whole = _whole(result)
        if self.markdown:
            yield from whole.markdown().splitlines()
            return
        yield from (_side_line(*side, screen) for side in (("a", result.a), ("b", result.b)))
        yield f"shared: {result.shared:,} {'entry' if result.shared == 1 else 'entries'}"
        for change in result.setup:
            yield screen.fit(f"{safe(change.name)}: {_short(change.a)} → {_short(change.b)}")
        if result.rows:
            yield ""
            yield Table(
                _HEAD,
                [_row(row, screen) for row in result.rows],
                drop_first=("COST", "TOKENS"),
                right=_NUMBERS,
            )
            yield ""
        if result.is_state_same is False:
            yield style("state differs", "red")
        named = {
            "first divergence": whole.first_divergence,
            "first beyond wording": whole.first_action_divergence,
        }
        if named["first divergence"] == named["first beyond wording"]:
            del named["first beyond wording"]
        for name, divergence in named.items():
            if divergence is not None:
                yield from _divergence(name, divergence, whole, screen)
        a, b = result.a.totals, result.b.totals
        yield f"tokens {_tokens(a, b)}, cost {_cost(a, b)}"
        yield _verdict(result)

    def notes(self, result: Compared, screen: Screen) -> Iterator[str]:
        if result.incomplete is not None:
            yield f"a replay is incomplete: {safe(result.incomplete)}; replay again, then compare"
        yield from next_page(self, result.next)


def _compared(found: Whole | DiffWindow, following: DiffCursor | None) -> Compared:
    kinds = Counter[str](row.kind for row in found.rows)
    is_same = found.is_state_same is not False and not kinds.keys() - {"same"}
    return Compared(
        same=False if not is_same else None if following else True,
        incomplete=found.a.incomplete or found.b.incomplete,
        shared=found.shared,
        is_state_same=found.is_state_same,
        counts=dict(kinds),
        a=found.a,
        b=found.b,
        setup=list(found.setup),
        rows=list(found.rows),
        first_divergence=next((one for row in found.rows for one in row.differences), None),
        next=None if following is None else f"{following.a}-{following.b}",
    )


def _whole(result: Compared) -> Whole:
    is_state_same = result.is_state_same is not False
    return Whole(result.a, result.b, result.shared, tuple(result.rows), tuple(result.setup), is_state_same)


def _side_line(name: str, side: DiffSide, screen: Screen) -> str:
    models = ", ".join(side.models) or "unknown model"
    return f"{name}  {side.session_id}@{side.seq}  {style(screen.fit(safe(models), 30), 'dim')}"


def _row(row: DiffRow, screen: Screen) -> tuple[str, ...]:
    return (
        _number(row.number_a),
        _number(row.number_b),
        style(row.kind, _COLOURS.get(row.kind, "red")),
        _tokens(row.a, row.b),
        _cost(row.a, row.b),
        safe(clip(row.input, 200)),
    )


def _number(turn: int | None) -> str:
    return "–" if turn is None else str(turn)


def _divergence(name: str, found: Divergence, whole: Whole, screen: Screen) -> Iterator[str]:
    """Yield where a divergence is, and both texts."""
    row = next(row for row in whole.rows if found in row.differences)
    seq = found.seq_a if found.seq_a is not None else found.seq_b
    turn = f"turn {row.number_a or row.number_b}, entry {seq}"
    yield f"{name}: {turn}, {found.kind} ({safe(found.subject)})"
    for side, text, colour in (("a", found.expected, "red"), ("b", found.actual, "green")):
        shown = screen.fit(safe(shorten(text, 400)), 5) or "(nothing)"
        yield style(f"  {side}  {shown}", colour)


def _verdict(result: Compared) -> str:
    if result.incomplete is not None:
        return style(f"unknown: {safe(clip(result.incomplete, 200))}", "yellow")
    if result.same is None:
        return "no difference so far"
    return style("same", "green") if result.same else style("different", "red")


def _short(text: str) -> str:
    return safe(shorten(" ".join(text.split()), 60)) or "(none)"


def _tokens(a: Totals, b: Totals) -> str:
    return f"{a.input_tokens + a.output_tokens:,} → {b.input_tokens + b.output_tokens:,}"


def _cost(a: Totals, b: Totals) -> str:
    return f"{format_cost(a)} → {format_cost(b)}"
