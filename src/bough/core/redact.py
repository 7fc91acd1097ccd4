"""Redaction: known secrets and what looks like one for certain, before anything becomes durable.

Happens before the id is computed, so the log is honest about what it holds. Ids of calls, names of tools and
evidence are left alone: a history with broken ids is worth nothing. One look at the bytes decides whether
there is anything to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from .entries import BranchSummary, Compaction, Note, Payload, Settings
from .messages import Message, Reasoning, Text, ToolCall, ToolResult

LEAST = 8  # a shorter secret is a word; hiding it would hide ordinary text
_PATTERNS = re.compile(
    r"sk-ant-[A-Za-z0-9_-]{20,}|sk-(?:proj-)?[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,}"
    r"|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|xox[abprs]-[A-Za-z0-9-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_MARKS = (b"sk-", b"gh", b"AKIA", b"AIza", b"xox", b"PRIVATE KEY-----")
HIDDEN = "[redacted]"


class Redactor:
    def __init__(self, secrets: Mapping[str, str] | Iterable[str] = ()) -> None:
        named = secrets if isinstance(secrets, Mapping) else dict.fromkeys(secrets, "")
        pairs = (
            named.items()
            if isinstance(secrets, Mapping)
            else ((name, value) for value, name in named.items())
        )
        self._known = {
            value: f"[redacted {name}]" if name else HIDDEN for name, value in pairs if len(value) >= LEAST
        }
        self._marks = (*_MARKS, *(msgspec.json.encode(value)[1:-1] for value in self._known))

    def may_concern(self, body: bytes) -> bool:
        return any(mark in body for mark in self._marks)

    def text(self, text: str) -> str:
        for value, hidden in self._known.items():
            text = text.replace(value, hidden)
        return _PATTERNS.sub(HIDDEN, text)

    def json(self, value: Any) -> Any:
        """Every string within, keys too: a secret hides anywhere."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.json(key): self.json(item) for key, item in value.items()}
        return [self.json(item) for item in value] if isinstance(value, list | tuple) else value

    def payload(self, payload: Payload) -> Payload:
        match payload:
            case Message(parts=parts, details=details):
                return replace(payload, parts=tuple(map(self._part, parts)), details=self.json(details))
            case Note(data=data, state=state):
                return Note(self.json(data), self.json(state))
            case Settings():
                fields = {name: getattr(payload, name) for name in ("prompt", "prompt_patch", "limits")}
                return replace(payload, **self.json(fields))
            case Compaction() | BranchSummary():
                return replace(payload, summary=self.text(payload.summary))
        return payload

    def _part(self, part: Any) -> Any:
        match part:
            case Text(text=text) | Reasoning(text=text):
                return replace(part, text=self.text(text))
            case ToolCall(arguments=arguments, malformed=malformed):
                return replace(part, arguments=self.json(arguments), malformed=self.json(malformed))
            case ToolResult(content=content, details=details):
                return replace(part, content=tuple(map(self._part, content)), details=self.json(details))
        return part
