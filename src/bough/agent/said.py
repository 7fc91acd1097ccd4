"""The text of an answer in flight. What reached the caller is made durable, by size and by time."""

from __future__ import annotations

from collections.abc import Callable

from ..models.model import Delta

FLUSH_CHARACTERS = 400
FLUSH_MICROSECONDS = 500_000


class Said:
    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._raw = ""
        self._saved = 0
        self._since: int | None = None

    @property
    def text(self) -> str:
        return self._hide(self._raw).encode("utf-8", "replace").decode().replace("\0", "")

    def add(self, piece: Delta) -> dict[str, str]:
        self._raw += piece.text
        return {"text": self._hide(piece.text), "reasoning": self._hide(piece.reasoning)}

    def is_due(self, now: int) -> bool:
        self._since = now if self._since is None else self._since
        is_due = len(self._raw) - self._saved >= FLUSH_CHARACTERS or now - self._since >= FLUSH_MICROSECONDS
        if is_due and len(self._raw) > self._saved:
            self._saved, self._since = len(self._raw), now
            return True
        return False
