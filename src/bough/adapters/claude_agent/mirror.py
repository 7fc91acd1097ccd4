"""One transcript of Claude Code in a log: which lines are there, what each was told as, and where.

Knows units: an answer with its results, whose lines come in any order, or one line that somebody said. Derived from the
entries alone, so another process knows the same. How lines are written `claude_agent_writing` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ...core.entries import Note, Settings
from ...core.tree import Leaf
from ...formats.claude_code import (
    TITLES,
    TranscriptLine,
    answer_id,
    clean_text,
    content_blocks,
    is_boundary,
    line_kind,
    line_message,
    parent_uuid,
)
from ...log.log import Log
from ...wire import Blobs
from .notes import THINKING, about, held, named, uuid_of

ROOT = ""
"""The unit of what follows nothing."""
STRAY = "stray"
"""No unit: where the log stands if not behind one."""


class Numbered(Struct, frozen=True):
    """A line, by its place in the transcript."""

    n: int
    line: TranscriptLine
    is_kept: bool = False
    """It lies in a note already."""


class Piece(Struct):
    """Lines that are told together, or wait together until they can be."""

    unit: str
    lines: list[Numbered]
    has_waited: bool = False

    @property
    def kind(self) -> str:
        return line_kind(self.lines[0].line)

    @property
    def is_complete(self) -> bool:
        """An answer is when its model has said why it stopped, and what it stopped for is there; others are at once."""
        if self.kind != "assistant":
            return True
        stops = {str(stop) for one in self.lines if (stop := line_message(one.line).get("stop_reason"))}
        blocks = [block for one in self.lines for block in content_blocks(one.line)]
        kinds = [block.get("type") for block in blocks if isinstance(block, dict)]
        if not stops or not kinds or kinds[-1] in THINKING:
            return False
        return "tool_use" not in stops or "tool_use" in kinds


class Mirror:
    """What of a transcript is in the log. It stands where the log stood when it was made: then one writer adds."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.next = 0
        self.units: dict[str, str] = {}
        """By uuid of a line the unit it belongs to; of one that is not told, that of the nearest above that is."""
        self.calls: dict[str, str] = {}
        self.starts: dict[str, int] = {}
        self.ends: dict[str, Leaf] = {}
        self.told: set[str] = set()
        self.waiting: list[Piece] = []
        self.boundary: TranscriptLine | None = None
        self.prompt: str | None = None
        self.title: str | None = None
        self.tip: str | None = None
        """The unit the log stands behind."""
        self._rank = 0
        self._recall()

    def unknown(self, coming: Iterable[TranscriptLine]) -> list[TranscriptLine]:
        """Those that are not here, each once. A line without a uuid is always new."""
        fresh: dict[str | int, TranscriptLine] = {}
        for line in coming:
            uuid = uuid_of(line)
            if uuid is None or uuid not in self.units:
                fresh.setdefault(len(fresh) if uuid is None else uuid, line)
        return list(fresh.values())

    def numbered(self, fresh: Iterable[TranscriptLine]) -> list[Numbered]:
        found = [Numbered(n, line) for n, line in enumerate(fresh, self.next)]
        self.next += len(found)
        return found

    def pieces(self, numbered: Iterable[Numbered]) -> list[Piece]:
        """What waits and what came, the lines of each answer together."""
        found, self.waiting = self.waiting, []
        answers = {piece.unit: piece for piece in found if piece.kind == "assistant"}
        for one in numbered:
            unit = self._unit(one.n, one.line)
            self.calls |= dict.fromkeys(named(one.line, "tool_use", "id"), unit)
            if unit in answers and line_kind(one.line) == "assistant":
                answers[unit].lines.append(one)
                continue
            piece = Piece(unit, [one])
            found.append(piece)
            if piece.kind == "assistant":
                answers[unit] = piece
        return found

    def above(self, line: TranscriptLine) -> str | None:
        """The unit a line hangs on; None if it does not say, or says one that is not here."""
        parent = parent_uuid(line)
        if parent is None:
            return ROOT if "parentUuid" in line else None
        return self.units.get(parent)

    def is_on_path(self, unit: str) -> bool:
        end = self.ends.get(unit)
        ranges = self.log.ranges() if end is not None else ()
        return any(end and r.branch == end.branch and r.first <= end.seq <= r.last for r in ranges)

    # -- what is known of lines --------------------------------------------------------------------

    def belongs(self, unit: str, line: TranscriptLine) -> None:
        uuid = uuid_of(line)
        if uuid is not None:
            self.units[uuid] = unit

    def place(self, unit: str, place: Leaf) -> None:
        self.told.add(unit)
        self.starts.setdefault(unit, place.seq)
        if unit not in self.ends or self.ends[unit].seq < place.seq:
            self.ends[unit] = place
        self.tip = unit

    def pass_over(self, line: TranscriptLine) -> None:
        """A line that is not told: what hangs on it hangs on what it hangs on."""
        above = self.above(line)
        self.belongs((self.tip or ROOT) if above is None else above, line)
        self.boundary = line if is_boundary(line) else self.boundary
        kind = line_kind(line)
        name = clean_text(line.get(TITLES[kind])) if kind in TITLES else None
        rank = list(TITLES).index(kind) if kind in TITLES else 0
        if name and rank >= self._rank:
            self.title, self._rank = name, rank

    def _unit(self, n: int, line: TranscriptLine) -> str:
        """The unit a line belongs to if it is told."""
        if line_kind(line) == "assistant":
            return f"answer {answer_id(line) or uuid_of(line) or n}"
        answered = (self.calls.get(call_id) for call_id in named(line, "tool_result", "tool_use_id"))
        return next((unit for unit in answered if unit), uuid_of(line) or f"line {n}")

    # -- what is here ------------------------------------------------------------------------------

    def _recall(self) -> None:
        rows: dict[int, tuple[TranscriptLine, bool]] = {}
        places: dict[int, list[Leaf]] = {}
        tails: dict[Leaf, Leaf] = {}
        last = Leaf(0, 0)
        for stored in self.log.store.entries(self.log.session_id):
            entry = stored.entry.to_entry(stored.branch)
            found, here = about(entry), Leaf(stored.branch, entry.seq)
            last = last if isinstance(entry.payload, Note) and last.branch == here.branch else here
            tails[last] = here  # notes behind it are a part of where it ends
            rows |= {n: (line, "waits" in found) for n, line in held(entry, _no_blobs)}
            told = [found["tells"]] if "tells" in found else found.get("of", found.get("n", ()))
            is_note = isinstance(entry.payload, Note)
            for n in told if "tells" in found or not is_note else ():
                places.setdefault(n, []).append(Leaf(entry.branch, entry.seq + is_note))
            if isinstance(entry.payload, Settings):
                self.prompt = entry.payload.prompt
        self._replay(rows, places)
        self.next = max(rows, default=-1) + 1
        on_path = [(end.seq, unit) for unit, end in self.ends.items() if self.is_on_path(unit)]
        self.ends |= {unit: tails.get(end, end) for unit, end in self.ends.items()}
        self.tip = max(on_path)[1] if on_path else None
        if self.ends and (self.tip is None or self.ends[self.tip] != self.log.leaf):
            self.tip = STRAY  # somebody has moved the leaf by hand, or gone on

    def _replay(self, rows: dict[int, tuple[TranscriptLine, bool]], places: dict[int, list[Leaf]]) -> None:
        waiting: list[Numbered] = []
        for n in sorted(rows):
            line, waits = rows[n]
            unit = self._unit(n, line)
            self.calls |= dict.fromkeys(named(line, "tool_use", "id"), unit)
            for place in places.get(n, ()):
                self.place(unit, place)
            if n in places or waits:
                self.belongs(unit, line)
            else:
                self.pass_over(line)
            if waits and n not in places:
                waiting.append(Numbered(n, line, is_kept=True))
        self.waiting = self.pieces(waiting)
        for piece in self.waiting:
            piece.has_waited = True


def lines_of(log: Log, blobs: Blobs) -> list[TranscriptLine]:
    """Every line as it came, in the order they came."""
    return [line for _, line in sorted(_held(log, blobs), key=lambda one: one[0])]


def _held(log: Log, blobs: Blobs) -> Iterator[tuple[int, TranscriptLine]]:
    for stored in log.store.entries(log.session_id):
        yield from held(stored.entry.to_entry(stored.branch), blobs)


def _no_blobs(_: str) -> None:
    """To know a line its pictures need not be read."""
