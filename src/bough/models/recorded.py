"""A model that says what was said before: the answers of a recorded path, by their place in it.

A request that was not made then is a miss, never a guess.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from ..core.entries import Entry
from ..core.usage import Usage
from ..errors import ModelError
from ..wire import Answer
from .model import Delta, Request


class RecordedModel:
    provider = "recorded"

    def __init__(self, path: Iterable[Entry], *, model: str = "recorded") -> None:
        self.model = model
        self._said: dict[tuple[str, ...], Entry] = {}
        before: tuple[str, ...] = ()
        for entry in path:
            message = entry.message
            if message is None:
                continue
            if message.role == "assistant" and entry.turn:
                self._said[before] = entry
            if message.role != "system":
                before = (*before, _told(message.role, message.text, len(message.calls)))

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        asked = tuple(
            _told(item.message.role, item.message.text, len(item.message.calls))
            for item in request.context.items
        )
        found = self._said.get(asked)
        if found is None or found.message is None:
            raise ModelError(
                self.model, "this was not asked when it was recorded", "replay it with a real model"
            )
        if found.message.text:
            yield Delta(found.message.text)
        yield Answer(
            found.message, Usage(0, 0, 0, 0), None, self.provider, found.model, found.finish or "stop"
        )


def _told(role: str, text: str, calls: int) -> str:
    """What tells one message from another here. Results may differ in their words; inputs and answers may not."""
    return f"{role} {calls} {text if role != 'tool' else ''}"
