"""An answer in flight: what may be shown of it now. What reached the caller is made durable, by size and by time."""

from __future__ import annotations

from ..core.redact import Redactor, is_key_text
from ..models.model import Delta

FLUSH_CHARACTERS = 400
FLUSH_MICROSECONDS = 500_000


class StreamBuffer:
    def __init__(self, redactor: Redactor) -> None:
        self._text, self._reasoning = _Flow(redactor), _Flow(redactor)
        self._saved = 0
        self._since: int | None = None

    @property
    def text(self) -> str:
        """What was shown. What is held back may be half a secret, and reached nobody."""
        return self._text.shown.encode("utf-8", "replace").decode().replace("\0", "")

    @property
    def is_saved(self) -> bool:
        """Whether nothing was shown that is not kept. Blanks alone are nothing: an answer of them says nothing."""
        return len(self._text.shown) == self._saved or not self._text.shown.strip()

    def add(self, piece: Delta) -> dict[str, str]:
        """What may be shown now."""
        return {"text": self._text.add(piece.text), "reasoning": self._reasoning.add(piece.reasoning)}

    def rest(self) -> dict[str, str]:
        """What was held back, once the stream has ended."""
        return {"text": self._text.rest(), "reasoning": self._reasoning.rest()}

    def is_due(self, now: int) -> bool:
        self._since = now if self._since is None else self._since
        is_much = len(self._text.shown) - self._saved >= FLUSH_CHARACTERS
        return not self.is_saved and (is_much or now - self._since >= FLUSH_MICROSECONDS)

    def saved(self, now: int) -> str:
        """What is to be kept, which is taken to be kept from now on."""
        self._saved, self._since = len(self._text.shown), now
        return self.text


class _Flow:
    """Text that comes in pieces. Its end is held back until it is certain: a secret may come in pieces too."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._is_word = True
        self.shown = ""

    def add(self, piece: str) -> str:
        self._held += piece
        if self._is_word and is_key_text(piece):
            return ""  # a long word goes on: it need not be looked through again for every letter
        shown = self._show(self._redactor.safe_length(self._held))
        self._is_word = is_key_text(self._held)
        return shown

    def rest(self) -> str:
        return self._show(len(self._held))

    def _show(self, end: int) -> str:
        shown, self._held = self._redactor.redact_text(self._held[:end]), self._held[end:]
        self.shown += shown
        return shown
