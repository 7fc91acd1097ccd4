"""Draw a session's tree as text: the path in the first column, abandoned branches beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from oakleaf.core.codec import to_json
from oakleaf.core.entries import (
    INTERRUPTED,
    PARTIAL,
    BranchSummary,
    Compaction,
    Entry,
    Note,
    Settings,
    Uncompaction,
)
from oakleaf.core.messages import Message, ProviderBlock, Reasoning, Text, ToolCall, ToolResult
from oakleaf.core.tree import Branch, Leaf
from oakleaf.errors import shorten

Point = tuple[int, int]
MAX_COLUMNS = 16
"""Drawn columns of branches; deeper branches are shown as a number."""
MAX_TEXT_LENGTH = 2_000  # no line shows more of a text


class TreeLine(Struct, frozen=True):
    text: str
    leaf: Leaf | None
    """The line's entry; None for the heading of a branch."""
    is_leaf: bool = False
    label: str | None = None

    def fit(self, width: int) -> str:
        """Return the line with its label and mark; the text is cut to a width."""
        room = width if self.label is None else max(width - len(self.label) - 4, width // 2)
        label = "" if self.label is None else f"  ⚑ {self.label}"
        return shorten(self.text, room) + label + ("   ◀ leaf" if self.is_leaf and self.leaf else "")


def tree_lines(
    entries: Iterable[Entry],
    branches: Sequence[Branch],
    leaf: Leaf,
    *,
    labels: Mapping[Leaf, str] | None = None,
) -> Iterator[TreeLine]:
    """Yield a line per entry; `●` marks the leaf, `├╮` a branch with a number, `⚑` a label.

    Hidden notes have no line, unless labelled; if the leaf is one, the entry before it is marked.
    """
    return _Drawing(entries, branches, leaf, labels or {}).lines()


class _Drawing:
    def __init__(
        self,
        entries: Iterable[Entry],
        branches: Sequence[Branch],
        leaf: Leaf,
        labels: Mapping[Leaf, str],
    ) -> None:
        self.entries = {(entry.branch, entry.seq): entry for entry in entries}
        self.branches = {branch.branch: branch for branch in branches}
        self.labels = labels
        self.leaf = self._owner((leaf.branch, leaf.seq))
        self.children: dict[Point, list[Point]] = {}
        for branch, seq in sorted(self.entries):
            self.children.setdefault(self._before(branch, seq), []).append((branch, seq))
        self.path = self._path()
        self.marked = self._mark_entry()
        self.drawn_branches = {branch for branch, seq in self.entries if self._is_drawn((branch, seq))}

    def _before(self, branch: int, seq: int) -> Point:
        before = (branch, seq - 1)
        return before if before in self.entries else self._owner(before)

    def _owner(self, point: Point) -> Point:
        """Return the point on the storing branch: a branch shares the first points with the parent."""
        branch, seq = point
        while branch in self.branches and seq <= self.branches[branch].parent_seq:
            parent = self.branches[branch].parent
            if parent is None:
                break
            branch = parent
        return (branch, seq) if seq else (0, 0)

    def _path(self) -> set[Point]:
        path, point = set(), self.leaf
        while point in self.entries:
            path.add(point)
            point = self._before(*point)
        return path

    def _is_drawn(self, point: Point) -> bool:
        payload = self.entries[point].payload
        return not (isinstance(payload, Note) and payload.hidden) or Leaf(*point) in self.labels

    def _mark_entry(self) -> Point:
        """Return the last drawn entry on the path, in place of the leaf."""
        point = self.leaf
        while point in self.entries and not self._is_drawn(point):
            point = self._before(*point)
        return point

    def lines(self) -> Iterator[TreeLine]:
        if self.marked == (0, 0):
            yield TreeLine("● (empty)", None, is_leaf=True)
        # Each branch grows downwards; what branches off is drawn first, one column to the right. A stack instead of
        # recursion: branches may be nested a thousand deep.
        stack = self._following((0, 0), 0, 0)
        while stack:
            point, depth, turn, is_side = stack.pop()
            entry = self.entries[point]
            turn += entry.is_input
            if is_side and point[0] in self.drawn_branches:
                yield TreeLine(f"{_margin(depth - 1)}├╮ branch {point[0]}", None)
            if self._is_drawn(point):
                name = f"turn {turn}" if entry.is_input else entry.role or entry.kind
                mark = "●" if point == self.marked else "│"
                text = f"{_margin(depth)}{mark} {entry.seq:>3} {name:<10} {describe_entry(entry)}"
                label = self.labels.get(Leaf(*point)) if self.labels else None
                yield TreeLine(text, Leaf(*point), is_leaf=point == self.marked, label=label)
            stack += self._following(point, depth, turn)

    def _following(self, point: Point, depth: int, turn: int) -> list[tuple[Point, int, int, bool]]:
        """Return the children of a point after so many turns, the last to be drawn first."""
        children = self.children.get(point, [])
        if len(children) < 2:
            return [(child, depth, turn, False) for child in children]
        main = next((child for child in children if child in self.path), children[0])
        sides = [(child, depth + 1, turn, True) for child in children if child != main]
        return [(main, depth, turn, False), *reversed(sides)]


def _margin(depth: int) -> str:
    return "│" * depth if depth <= MAX_COLUMNS else f"{'│' * (MAX_COLUMNS - 1)}⋯{depth}⋯"


def describe_entry(entry: Entry) -> str:
    """Return an entry's content in a line."""
    match entry.payload:
        case Message() as message:
            mark = "[interrupted]" if entry.finish in (INTERRUPTED, PARTIAL) else ""
            text = " ".join(filter(None, [mark, describe_message(message)]))
        case Compaction(summary="", shortened=shortened):
            text = f"results shortened at {', '.join(str(seq) for seq, _ in shortened)}"
        case Compaction(summary=summary, first_kept=first):
            text = f"summary of all before {first}: {summary}"
        case Uncompaction(cancels=seq):
            text = f"cancels the compaction at {seq}"
        case BranchSummary(summary=summary, leaf_seq=seq):
            text = f"left a branch at {seq}: {summary}"
        case Settings() as settings:
            text = " · ".join(settings_words(settings))
        case Note() as note:
            text = to_json(_fields(note), "entry").decode()
        case unknown:
            text = f"of a newer kind, {len(unknown.body)} bytes"
    return _printable(" ".join(text.split()))


def settings_words(settings: Settings) -> Iterator[str]:
    """Yield a phrase for each setting that is set."""
    if settings.model is not None:
        yield f"model {settings.model}"
    for name, value in (settings.options or {}).items():
        yield f"no {name}" if value is None else f"{name} {_words(value)}"
    if settings.tools is not None:
        yield f"only the tools {', '.join(settings.tools)}" if settings.tools else "none of the tools"
    if settings.tool_definitions is not None:
        yield f"tools: {', '.join(settings.tool_definitions.names) or 'none'}"
    if settings.limits is not None:
        yield f"limits: {_words(settings.limits) or 'none'}"
    if settings.max_messages is not None:
        yield f"at most {settings.max_messages} messages" if settings.max_messages else "all messages"
    if settings.effects is not None:
        yield f"effects {settings.effects}"
    for name, window in (settings.windows or {}).items():
        yield f"{name} has a window of {window:,} tokens"
    for name, endpoint in (settings.endpoints or {}).items():
        yield f"{name} is served by {endpoint.host or 'the vendor'}"
    if settings.prompt is not None:
        yield f"prompt: {settings.prompt}"
    if settings.prompt_patch is not None:
        yield f"prompt, added: {settings.prompt_patch}"


def _words(value: Any) -> str:
    """Return a JSON value as words: the names and values in it, without quotes and brackets."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(item)}" for name, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return value if isinstance(value, str) else to_json(value, "entry").decode()


def describe_message(message: Message) -> str:
    return " ".join(filter(None, map(_part, message.parts)))


def one_line(text: str, limit: int = 200) -> str:
    """Return the beginning of a text as a printable line."""
    return shorten(_printable(" ".join(text[: limit * 4].split())), limit)


JOINERS = "\u200c\u200d"
"""They join or separate letters and pictures: Persian and Hindi words and emoji of several people fall apart without."""


def _printable(line: str) -> str:
    """Return the line with a dot for each control character or invisible character."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or c in JOINERS else "·" for c in line)


def _fields(note: Note) -> dict[str, Any]:
    """Return a note's set fields, as JSON values."""
    fields: dict[str, Any] = to_builtins(note)
    return {name: value for name, value in fields.items() if value}


def _part(part: object) -> str:
    match part:
        case Text(text=text):
            return text[:MAX_TEXT_LENGTH]
        case Reasoning():
            return ""
        case ProviderBlock(stub=stub):
            return stub[:MAX_TEXT_LENGTH]
        case ToolCall(name=name, arguments=arguments):
            return f"→ {name}({', '.join(f'{k}={to_json(v, k).decode()}' for k, v in arguments.items())})"
        case ToolResult(content=content, outcome=outcome):
            marker = "" if outcome == "done" else f"[{outcome}] "
            return f"← {marker}{' '.join(map(_part, content))}"
    return f"[{getattr(part, 'mime', '?')}]"
