"""A model that answers by script: for demos, and for users' own tests. No network, no clock.

    ScriptedModel(["Hello."])                                  one text per call
    ScriptedModel([assistant(ToolCall("c1", "lookup", {"order": 41})), "It is lost."])
    ScriptedModel(lambda request: …)                           a function of what the model sees
    ScriptedModel([Overloaded("m", "529"), "Now it works.", Broken("half a sen")])

Tokens are counted by the same estimate `fit` uses, so usage is the same everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from ..core.fit import measure
from ..core.messages import Message, assistant
from ..core.usage import Usage
from ..errors import CutOff, ModelError
from ..wire import Answer
from .model import Delta, Request


class Broken(Struct, frozen=True):
    """Says so much, and then the line goes dead."""

    text: str


class Slow(Struct, frozen=True):
    """Waits before it answers; for tests of cancelling."""

    seconds: float
    answer: str | Message = ""


Line = str | Message | Answer | Broken | Slow | ModelError | Callable[[Request], "str | Message | Answer"]


class ScriptedModel:
    provider = "scripted"

    def __init__(
        self, script: Iterable[Line] | Callable[[Request], Line], *, model: str = "scripted"
    ) -> None:
        self.model = model
        self.requests: list[Request] = []
        """Every request it was given, for a test to look at."""
        self._script = script if callable(script) else None
        self._lines = [] if callable(script) else list(script)

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        self.requests.append(request)
        line = self._next(request)
        if isinstance(line, Slow):
            await asyncio.sleep(line.seconds)
            line = line.answer
        if isinstance(line, ModelError):
            raise line
        if isinstance(line, Broken):
            yield Delta(line.text)
            raise CutOff(self.model, "the script cut the line")
        answer = self._answer(line, request)
        for part in answer.message.text.split(" "):
            yield Delta(part + " ")
        yield answer

    def _next(self, request: Request) -> Line:
        if self._script is not None:
            return self._script(request)
        if not self._lines:
            raise ModelError(self.model, "its script has no more lines", "add one per model call")
        line = self._lines.pop(0)
        return line(request) if callable(line) else line

    def _answer(self, line: Line, request: Request) -> Answer:
        if isinstance(line, Answer):
            return line
        message = assistant(line) if isinstance(line, str) else line
        assert isinstance(message, Message)
        read = sum(measure(item.message).tokens for item in request.context.items)
        usage = Usage(
            read + sum(len(text) // 4 for text in request.context.system), measure(message).tokens, 0, 0
        )
        answer = Answer(message, usage, None, self.provider, self.model, "stop")
        return replace(answer, finish="tool_use") if message.calls else answer
