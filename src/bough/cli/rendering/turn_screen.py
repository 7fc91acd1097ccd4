"""How a turn looks in a terminal: answers as Markdown, block by block, one line per tool, a quiet line of what goes on.

Nothing that was printed is ever drawn again, so a narrow terminal, a resize or a long answer cannot spoil it: only
the line at the bottom lives. What models and tools say passes `safe`; rich sees no markup of theirs.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...core.messages import Message, ToolCall, ToolResult
from ...session import Session
from .output import safe
from .turn_events import Watcher, call_text, mark, preview

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown
    from rich.segment import Segment, SegmentLines
    from rich.status import Status

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_ITEM = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_STYLES = {"✓": "green", "✗": "red", "?": "yellow", "⊘": "yellow", "‖": "yellow", "~": "cyan"}


class MarkdownBlocks:
    """Cuts Markdown that arrives in pieces into blocks that can be shown by themselves."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line = ""
        self._fence: str | None = None

    def add(self, text: str) -> list[str]:
        """The blocks that are whole now. A block is whole when the next one begins."""
        *lines, self._line = (self._line + text).split("\n")
        return [block for line in lines if (block := self._take(line))]

    def rest(self) -> list[str]:
        """What is left when no more comes."""
        begun = self._take(self._line)
        left = "\n".join(self._lines).strip("\n")
        self._lines, self._line, self._fence = [], "", None
        return [block for block in (begun, left) if block]

    @property
    def tail(self) -> str:
        """The end of what is still being said, for the line that lives."""
        return " ".join([*self._lines[-3:], self._line]).strip()

    def _take(self, line: str) -> str | None:
        block = None
        if self._fence is None and line.strip() and self._begins(line):
            block = "\n".join(self._lines).strip("\n")
            self._lines = []
        match = _FENCE.match(line)
        if match is not None:
            self._fence = None if self._fence == match[1] else self._fence or match[1]
        self._lines.append(line)
        return block

    def _begins(self, line: str) -> bool:
        """Whether a line after a blank one opens a new block: what is indented, or the next item, goes on."""
        if not self._lines or self._lines[-1].strip() or line[0] in " \t":
            return False
        first = next((held for held in self._lines if held.strip()), "")
        return not (_ITEM.match(first) and _ITEM.match(line))


class TerminalWatcher(Watcher):
    """One turn in a terminal."""

    def __init__(self, session: Session, console: Console) -> None:
        super().__init__(session)
        self._console = console
        self._blocks = MarkdownBlocks()
        self._said = ""
        self._running: dict[str, str] = {}
        self._is_below_tools = False
        self._status: Status | None = None

    def __enter__(self) -> Self:
        self._status = self._console.status("", spinner="dots")
        self._status.start()
        self._show("thinking")
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._status is not None
        self._print(*self._blocks.rest())
        self._status.stop()
        self._status = None

    def on_delta(self, text: str) -> None:
        self._said += text
        self._print(*self._blocks.add(safe(text)))
        self._show(self._blocks.tail or "thinking")

    def on_answer(self, message: Message) -> None:
        self._print(*(self._blocks.rest() if self._said.strip() else [safe(message.text)]))
        self._said = ""
        self._running = {call.id: call_text(call) for call in message.calls}
        self._show(", ".join(self._running.values()))

    def on_result(self, call: ToolCall, result: ToolResult) -> None:
        self._console.print(tool_line(call, result, self._console.width), no_wrap=True, crop=True)
        self._is_below_tools = True
        self._running.pop(call.id, None)
        self._show(", ".join(self._running.values()) or "thinking")

    def on_notice(self, text: str) -> None:
        self._print(*self._blocks.rest())
        self._said = ""
        self._console.print(f"  {safe(text)}", style="dim", markup=False)

    def _print(self, *blocks: str) -> None:
        for block in filter(str.strip, blocks):
            if self._is_below_tools:
                self._console.print()
                self._is_below_tools = False
            self._console.print(render_markdown(block, self._console))
            self._console.print()

    def _show(self, what: str) -> None:
        """The last words of it, as much as one line holds: a second line could not be taken back everywhere."""
        from rich.text import Text

        if self._status is None:
            return
        room = max(self._console.width - 4, 8)
        line = Text(
            what if len(what) <= room else "…" + what[1 - room :], style="dim", no_wrap=True, overflow="crop"
        )
        line.truncate(room)
        self._status.update(line)


def tool_line(call: ToolCall, result: ToolResult, width: int) -> object:
    """What was called and what came of it, on one line however narrow."""
    from rich.text import Text

    sign = mark(result)
    line = Text.assemble(
        ("  " + sign + " ", _STYLES[sign]), call_text(call), ("  " + preview(result), "dim"), no_wrap=True
    )
    line.truncate(width, overflow="ellipsis")
    return line


def render_markdown(text: str, console: Console) -> SegmentLines:
    """Text as Markdown, without the empty lines rich puts before and after some kinds of block."""
    from rich.segment import SegmentLines

    lines = console.render_lines(_markdown(text), pad=False)
    while lines and _is_blank(lines[0]):
        lines.pop(0)
    while lines and _is_blank(lines[-1]):
        lines.pop()
    return SegmentLines(lines, new_lines=True)


def _is_blank(line: list[Segment]) -> bool:
    return not any(segment.text.strip() for segment in line)


def _markdown(text: str) -> Markdown:
    """Links show where they lead, HTML is shown and not swallowed, and headings keep to the left."""
    from markdown_it import MarkdownIt
    from rich.markdown import Heading, Markdown
    from rich.text import Text

    class Left(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(self.text.plain, style="bold underline" if self.tag == "h1" else "bold")

    class Calm(Markdown):
        elements = {**Markdown.elements, "heading_open": Left}

    made = Calm(text, hyperlinks=False, code_theme="ansi_dark")
    made.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(text)
    return made
