"""Draws a turn in a terminal: answers as Markdown, block by block, one line per tool, and a status line.

Printed text is never redrawn, so a narrow terminal, a resize or a long answer cannot garble it; only the status line
changes. Text of models and tools passes `safe`, and rich interprets no markup in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self

from oakleaf.cli.rendering.output import safe
from oakleaf.cli.rendering.turn_events import Watcher
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.session import Session
from oakleaf.verbs.call_text import call_text, mark, preview

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown
    from rich.segment import Segment, SegmentLines
    from rich.status import Status

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_ITEM = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_STYLES = {"✓": "green", "✗": "red", "?": "yellow", "⊘": "yellow", "‖": "yellow", "~": "cyan"}


class MarkdownBlocks:
    """Splits streamed Markdown into separately printable blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line = ""
        self._fence: str | None = None

    def add(self, text: str) -> list[str]:
        """Add text; return the complete blocks: a block is complete when the next block begins."""
        *lines, self._line = (self._line + text).split("\n")
        return [block for line in lines if (block := self._add_line(line))]

    def rest(self) -> list[str]:
        """Return the rest at the end of the stream."""
        begun = self._add_line(self._line)
        tail = "\n".join(self._lines).strip("\n")
        self._lines, self._line, self._fence = [], "", None
        return [block for block in (begun, tail) if block]

    @property
    def tail(self) -> str:
        """The end of the unfinished block, for the status line."""
        return " ".join([*self._lines[-3:], self._line]).strip()

    def _add_line(self, line: str) -> str | None:
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
        """Whether a line after a blank line starts a new block; indented text and further list items do not."""
        if not self._lines or self._lines[-1].strip() or line[0] in " \t":
            return False
        first = next((text for text in self._lines if text.strip()), "")
        return not (_ITEM.match(first) and _ITEM.match(line))


class TerminalWatcher(Watcher):
    """Draws a turn in a terminal."""

    def __init__(self, session: Session, console: Console) -> None:
        super().__init__(session)
        self._console = console
        self._blocks = MarkdownBlocks()
        self._streamed_text = ""
        self._running: dict[str, str] = {}
        self._is_below_tools = False
        self._status: Status | None = None

    def __enter__(self) -> Self:
        self._status = self._console.status("", spinner="dots")
        self._status.start()
        self._show_status("thinking")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._status is not None
        self._print(*self._blocks.rest())
        self._status.stop()
        self._status = None

    def on_delta(self, text: str) -> None:
        self._streamed_text += text
        self._print(*self._blocks.add(safe(text)))
        self._show_status(self._blocks.tail or "thinking")

    def on_answer(self, message: Message) -> None:
        self._print(*(self._blocks.rest() if self._streamed_text.strip() else [safe(message.text)]))
        self._streamed_text = ""
        self._running = {call.id: call_text(call) for call in message.calls}
        self._show_status(", ".join(self._running.values()))

    def on_result(self, call: ToolCall, result: ToolResult) -> None:
        self._console.print(tool_line(call, result, self._console.width), no_wrap=True, crop=True)
        self._is_below_tools = True
        self._running.pop(call.id, None)
        self._show_status(", ".join(self._running.values()) or "thinking")

    def on_notice(self, text: str) -> None:
        self._print(*self._blocks.rest())
        self._streamed_text = ""
        self._console.print(f"  {safe(text)}", style="dim", markup=False)

    def _print(self, *blocks: str) -> None:
        for block in filter(str.strip, blocks):
            if self._is_below_tools:
                self._console.print()
                self._is_below_tools = False
            self._console.print(render_markdown(block, self._console))
            self._console.print()

    def _show_status(self, text: str) -> None:
        """Show the end of the text in one status line: not every terminal can erase a second line."""
        from rich.text import Text

        if self._status is None:
            return
        room = max(self._console.width - 4, 8)
        line = Text(
            text if len(text) <= room else "…" + text[1 - room :], style="dim", no_wrap=True, overflow="crop"
        )
        line.truncate(room)
        self._status.update(line)


def tool_line(call: ToolCall, result: ToolResult, width: int) -> object:
    """Return a call and the result as a line fit for the terminal."""
    from rich.text import Text

    sign = mark(result)
    line = Text.assemble(
        ("  " + sign + " ", _STYLES[sign]), call_text(call), ("  " + preview(result), "dim"), no_wrap=True
    )
    line.truncate(width, overflow="ellipsis")
    return line


def render_markdown(text: str, console: Console) -> SegmentLines:
    """Render Markdown, without rich's empty lines around some blocks."""
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
    """Parse Markdown: links show the target, HTML is printed as text, headings are left-aligned."""
    from markdown_it import MarkdownIt
    from rich.markdown import Heading, Markdown
    from rich.text import Text

    class LeftHeading(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(self.text.plain, style="bold underline" if self.tag == "h1" else "bold")

    class PlainMarkdown(Markdown):
        elements = {**Markdown.elements, "heading_open": LeftHeading}

    markdown = PlainMarkdown(text, hyperlinks=False, code_theme="ansi_dark")
    markdown.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(text)
    return markdown
