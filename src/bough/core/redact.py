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

from ..errors import SecretTooShort
from .entries import BranchSummary, Compaction, Note, Payload, Settings
from .messages import Attachment, Media, Message, Reasoning, Text, ToolCall, ToolResult

MIN_SECRET_LENGTH = 8  # a shorter secret is a word; hiding it would hide ordinary text
_SHAPES = (
    r"sk-(?:ant-[A-Za-z0-9_-]{20,}|(?:proj-)?[A-Za-z0-9_-]{32,})",
    r"g(?:h[pousr]_[A-Za-z0-9]{36,}|ithub_pat_[A-Za-z0-9_]{40,})",
    r"A(?:KIA[A-Z0-9]{16}|Iza[A-Za-z0-9_-]{35})",
    r"xox[abprs]-[A-Za-z0-9-]{20,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
)
_PATTERNS = re.compile("|".join(_SHAPES), re.DOTALL)
# JSON escapes no character a shape consists of, so what the text holds the bytes hold too. One search for each:
# a pattern that begins with letters is searched by them, an alternation is tried at every byte. Measured on
# 1.9 kB: 4.6 µs, one for each kind of key 6.0, `in` for the same beginnings 8, one alternation of all 20.
_LOOKS = tuple(re.compile(shape.encode(), re.DOTALL).search for shape in _SHAPES)
REDACTED = "[redacted]"
MAX_KEY_LENGTH = 16_384  # more text behind its first line, and it was only spoken of
# A key of many lines that has begun and not ended yet, or the first letters of one.
_BEGUN = re.compile(
    r"-----BEGIN [A-Z ]*(?:-{0,4}\Z|(?<=PRIVATE KEY)-----(?!.*-----END [A-Z ]*PRIVATE KEY-----))", re.DOTALL
)
_KEY_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


def is_key_text(text: str) -> bool:
    """Whether it may stand in the middle of a key as a whole."""
    return not text.strip(_KEY_LETTERS)


class Redactor:
    def __init__(self, secrets: Mapping[str, str] | Iterable[str] = ()) -> None:
        named = secrets if isinstance(secrets, Mapping) else dict.fromkeys(secrets, "")
        pairs = (
            named.items()
            if isinstance(secrets, Mapping)
            else ((name, value) for value, name in named.items())
        )
        self._known: dict[str, str] = {}
        for name, value in pairs:
            if len(value) < MIN_SECRET_LENGTH:
                raise SecretTooShort(name, len(value), MIN_SECRET_LENGTH)
            self._known[value] = f"[redacted {name}]" if name else REDACTED
        written = (re.escape(msgspec.json.encode(value)[1:-1]) for value in self._known)
        self._looks = (*_LOOKS, *(re.compile(known).search for known in written))

    def may_contain_secret(self, body: bytes) -> bool:
        """Whether there is anything to hide in these bytes of JSON. Every append asks."""
        for look in self._looks:  # noqa: SIM110 - `any` costs a generator
            if look(body):
                return True
        return False

    def redact_text(self, text: str) -> str:
        for value, hidden in self._known.items():
            text = text.replace(value, hidden)
        return _PATTERNS.sub(REDACTED, text)

    def safe_length(self, text: str) -> int:
        """Up to where nothing that may still follow can make a secret of it: so much of a stream may be shown.

        The last word may become a key; a key of many lines may have begun, and so may a known secret.
        """
        end = len(text.rstrip(_KEY_LETTERS))
        begun = _BEGUN.search(text) if end else None
        if begun is not None and len(text) - begun.start() <= MAX_KEY_LENGTH:
            end = min(end, begun.start())
        if not end:
            return 0  # a long word, or a key of many lines: no need to look through it again and again
        for value in self._known:
            start = text.find(value[0], max(0, end - len(value) + 1), end)
            while start >= 0 and not value.startswith(text[start : start + len(value)]):
                start = text.find(value[0], start + 1, end)
            end = end if start < 0 else start
        for found in _PATTERNS.finditer(text):
            if found.start() < end < found.end():
                end = found.start()
        return end

    def redact_json(self, value: Any) -> Any:
        """Every string within, keys too: a secret hides anywhere."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {self.redact_json(key): self.redact_json(item) for key, item in value.items()}
        return [self.redact_json(item) for item in value] if isinstance(value, list | tuple) else value

    def redact_payload(self, payload: Payload) -> Payload:
        match payload:
            case Message(parts=parts, details=details):
                return replace(
                    payload, parts=tuple(map(self._part, parts)), details=self.redact_json(details)
                )
            case Note(data=data, state=state):
                return Note(self.redact_json(data), self.redact_json(state))
            case Settings():
                fields = {name: getattr(payload, name) for name in ("prompt", "prompt_patch", "limits")}
                return replace(payload, **self.redact_json(fields))
            case Compaction(files_read=read, files_changed=changed):
                files = {
                    "files_read": tuple(self.redact_json(read)),
                    "files_changed": tuple(self.redact_json(changed)),
                }
                return replace(payload, summary=self.redact_text(payload.summary), **files)
            case BranchSummary():
                return replace(payload, summary=self.redact_text(payload.summary))
        return payload

    def _part(self, part: Any) -> Any:
        match part:
            case Text(text=text) | Reasoning(text=text):
                return replace(part, text=self.redact_text(text))
            case ToolCall(arguments=arguments, malformed=malformed):
                return replace(
                    part, arguments=self.redact_json(arguments), malformed=self.redact_json(malformed)
                )
            case ToolResult(content=content, details=details):
                return replace(
                    part, content=tuple(map(self._part, content)), details=self.redact_json(details)
                )
            case Media(name=name) | Attachment(name=name):
                return replace(part, name=self.redact_json(name))
        return part
