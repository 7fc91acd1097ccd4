"""Watchers print a turn's events: `Watcher` maps events to entries, `PlainWatcher` prints text, `JsonWatcher` JSON lines.

Does not know how the turn runs, nor how the chat draws it.
"""

from __future__ import annotations

import sys
from typing import Self

import click

from oakleaf import Event
from oakleaf.cli.rendering.output import clip, dim, echo, encode_line, notify, safe, width
from oakleaf.core.messages import Message, ToolCall, ToolResult
from oakleaf.ext import is_whole_answer
from oakleaf.session import Session
from oakleaf.verbs.call_text import call_text, mark, preview


class Watcher:
    """Receives a run's events and calls a method for each kind; subclasses print the events."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def watch(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "session:delta":
                self.on_delta(data["text"])
            case "session:answer" if is_whole_answer(event):
                self.on_answer(self._message(data["seq"]))
            case "session:tool_result" if "index" in data:  # else it closes a call that broke off
                self.on_result(*self._call_and_result(data["seq"], data["index"], data["call_id"]))
            case "session:retry":
                self.on_notice(f"{data['model']}: {data['why']}; retrying in {data['seconds']:g} s")
            case "session:compacted":
                how = f"a summary replaces everything before entry {data['first_kept']}"
                if not data["summary"]:
                    how = "the newest results are shortened"
                self.on_notice(f"the history was too long for {data['limit']:,} tokens; {how}")
            case "session:limit_passed" | "session:warning":
                self.on_notice(data.get("command_message", data["message"]))

    def _message(self, seq: int) -> Message:
        message = self.session.path(since=seq - 1)[0].message
        assert message is not None
        return message

    def _call_and_result(self, seq: int, index: int, call_id: str) -> tuple[ToolCall, ToolResult]:
        answer, *after = (entry.message for entry in self.session.path(since=seq - 1))
        assert answer is not None
        results = (result for message in after if message for result in message.results)
        return answer.calls[index], next(result for result in results if result.call_id == call_id)

    def on_delta(self, text: str) -> None: ...

    def on_answer(self, message: Message) -> None: ...

    def on_result(self, call: ToolCall, result: ToolResult) -> None: ...

    def on_notice(self, text: str) -> None: ...


class PlainWatcher(Watcher):
    """Prints the answer to stdout and everything else to stderr.

    A terminal shows text as it streams. A pipe gets only the final answer, as `$(oakleaf run …)` expects.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._is_terminal = sys.stdout.isatty()
        self._streamed = ""

    def on_delta(self, text: str) -> None:
        if self._is_terminal:
            piece = safe(text) if self._streamed else safe(text).lstrip()
            self._streamed += piece
            echo(piece, nl=False)

    def on_answer(self, message: Message) -> None:
        text, on_delta = message.text, self._streamed
        self._streamed = ""
        if self._is_terminal:
            echo("" if on_delta else safe(text), nl=bool(text))
        elif not message.calls:
            # Unchanged, since a pipe gets data; except for what UTF-8 cannot encode.
            click.echo(text.encode("utf-8", "replace").decode(), color=True)
        elif text:
            notify(dim(safe(text)))

    def on_result(self, call: ToolCall, result: ToolResult) -> None:
        line = f"{mark(result)} {call_text(call)} → {preview(result)}"
        notify(dim("  " + clip(line, width() - 2)))

    def on_notice(self, text: str) -> None:
        if self._streamed:
            echo()
            self._streamed = ""
        notify(dim(f"  {safe(text)}"))


class JsonWatcher(Watcher):
    """Prints every event as a line of JSON to stdout, deltas too."""

    def watch(self, event: Event) -> None:
        echo(encode_line(event))
