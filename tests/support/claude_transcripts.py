"""Transcripts as Claude Code writes them; the parent of each line is the previous one unless given."""

from __future__ import annotations

import json
import os
import time
from itertools import count
from pathlib import Path
from typing import Any

Line = dict[str, Any]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 7,
}
MODEL = "claude-sonnet-4-5"


def text(content: str) -> Line:
    return {"type": "text", "text": content}


def thinking(content: str, signature: str = "c2lnbmVk") -> Line:
    return {"type": "thinking", "thinking": content, "signature": signature}


def tool_use(name: str, tool: str = "Bash", **arguments: Any) -> Line:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def result(name: str, content: Any = "done", **more: Any) -> Line:
    return {"tool_use_id": name, "type": "tool_result", "content": content, **more}


class Transcript:
    """The lines of one session; each method returns the lines it adds."""

    def __init__(self, session_id: str = "11111111-2222-4333-8444-555555555555", mark: str = "u") -> None:
        self.session_id, self.lines = session_id, list[Line]()
        self._mark, self._ids, self._answers = mark, count(1), count(1)
        self._tip: str | None = None

    def line(self, kind: str, parent: str | bool | None = True, **more: Any) -> Line:
        uuid = f"{self._mark}-{next(self._ids)}"
        at = f"2026-03-01T10:00:{len(self.lines) % 60:02d}.250Z"
        above = self._tip if parent is True else parent
        context = {"cwd": "/home/ann/shop", "gitBranch": "main", "version": "2.1.300", "userType": "external"}
        header = {"parentUuid": above, "isSidechain": False, "type": kind, "uuid": uuid, "timestamp": at}
        self.lines.append({**header, "sessionId": self.session_id, **context, **more})
        self._tip = uuid
        return self.lines[-1]

    def detached_line(self, kind: str, **more: Any) -> Line:
        """Add a line without parent and uuid."""
        self.lines.append({"type": kind, "sessionId": self.session_id, **more})
        return self.lines[-1]

    def user(self, content: Any, **more: Any) -> Line:
        return self.line("user", message={"role": "user", "content": content}, **more)

    def answer(
        self, *blocks: Line, name: str | None = None, stop: str | None = "end_turn", **more: Any
    ) -> list[Line]:
        """Add a line for each block, all with the same id and usage."""
        message_id = name or f"msg_{self._mark}{next(self._answers)}"
        header = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "stop_sequence": None,
        }
        stop_reason = (
            "tool_use" if stop == "end_turn" and any(b["type"] == "tool_use" for b in blocks) else stop
        )
        outcome = {"stop_reason": stop_reason, "usage": USAGE}
        return [
            self.line(
                "assistant", message={**header, "content": [block], **outcome}, requestId="req_1", **more
            )
            for block in blocks
        ]

    def results(self, *blocks: Line, **more: Any) -> list[Line]:
        return [self.user([block], toolUseResult={"stdout": "done"}, **more) for block in blocks]

    def compact(self, summary: str, *, keeps: str | None = None, **more: Any) -> Line:
        before = self._tip
        preserved = {"preservedSegment": {"headUuid": keeps}} if keeps else {}
        metadata = {"trigger": "auto", "preTokens": 9_000, **preserved}
        fields = {"subtype": "compact_boundary", "logicalParentUuid": before, "compactMetadata": metadata}
        self.line("system", None, content="Conversation compacted", **fields)
        return self.user(summary, isCompactSummary=True, isVisibleInTranscriptOnly=True, **more)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        a_minute_ago = time.time() - 60  # not so short ago that more lines of the same answer are expected
        os.utime(path, (a_minute_ago, a_minute_ago))
        return path


def shop_transcript() -> Transcript:
    """A turn with reasoning and two calls at once, and one with a picture."""
    transcript = Transcript()
    transcript.detached_line(
        "queue-operation", operation="enqueue", timestamp="2026-03-01T10:00:00.000Z", content="Fix the shop"
    )
    transcript.user("Fix the shop", permissionMode="default")
    transcript.line(
        "attachment",
        attachment={"type": "date"},
        rendered=[{"content": "It is March."}],
        renderedRole="system",
    )
    transcript.detached_line("file-history-snapshot", messageId="u-1", snapshot={"trackedFileBackups": {}})
    transcript.answer(
        thinking("two files"),
        text("I look."),
        tool_use("toolu_1", command="ls"),
        tool_use("toolu_2", "Read", path="a"),
    )
    transcript.results(result("toolu_1", "a b"), result("toolu_2", [text("x = 1")], is_error=False))
    transcript.answer(text("Fixed."))
    transcript.user([text("And this?"), PICTURE])
    transcript.answer(text("A dot."))
    transcript.detached_line("ai-title", aiTitle="Fixing the shop")
    return transcript
