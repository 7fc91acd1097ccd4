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
        self._shown = 0
        self._saved = 0
        self._since: int | None = None

    @property
    def text(self) -> str:
        return self._hide(self._raw).encode("utf-8", "replace").decode().replace("\0", "")

    def add(self, piece: Delta) -> dict[str, str]:
        """What may be shown now. The last word is held back until it is whole: a secret may come in pieces."""
        self._raw += piece.text
        end = max(self._raw.rfind(" "), self._raw.rfind("\n")) + 1
        shown = self._hide(self._raw[self._shown : end]) if end > self._shown else ""
        self._shown = max(self._shown, end)
        return {"text": shown, "reasoning": self._hide(piece.reasoning)}

    def rest(self) -> str:
        """What was held back, once the stream has ended."""
        shown, self._shown = self._hide(self._raw[self._shown :]), len(self._raw)
        return shown

    def is_due(self, now: int) -> bool:
        self._since = now if self._since is None else self._since
        is_due = len(self._raw) - self._saved >= FLUSH_CHARACTERS or now - self._since >= FLUSH_MICROSECONDS
        if is_due and len(self._raw) > self._saved:
            self._saved, self._since = len(self._raw), now
            return True
        return False
