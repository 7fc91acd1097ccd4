"""A model that answers from a script: for demos and for your own tests. No network, no clock.

    ScriptedModel(["Hello."])                                  one text per call
    ScriptedModel([assistant(ToolCall("c1", "lookup", {"order": 41})), "It is lost."])
    ScriptedModel(lambda request: …)                           a function of the request
    ScriptedModel([Overloaded("m", "529"), "Now it works.", Broken("half a sen")])

Tokens are counted by the same estimate `fit` uses, so usage is the same everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.fit import measure
from oakleaf.core.messages import Message, ToolCall, assistant
from oakleaf.core.typed_json import converter
from oakleaf.core.usage import Usage
from oakleaf.errors import ModelError, ModelUnavailable, TruncatedReply, plural
from oakleaf.install import install_line
from oakleaf.models.base import Delta, Request
from oakleaf.models.prices import Rates
from oakleaf.wire import Answer

MAX_SCRIPT_BYTES = 10_000_000


class Broken(Struct, frozen=True):
    """Streams the text, then the connection breaks."""

    text: str


class Slow(Struct, frozen=True):
    """Waits before the answer; for tests of cancellation."""

    seconds: float
    answer: str | Message = ""


ScriptLine = (
    str | Message | Answer | Broken | Slow | ModelError | Callable[[Request], "str | Message | Answer"]
)


class ScriptedModel:
    """Answers from a list, a line per call, or from a function of the request."""

    provider = "scripted"

    def __init__(
        self,
        script: Iterable[ScriptLine] | Callable[[Request], ScriptLine],
        *,
        model: str = "scripted",
        rates: Rates | None = None,
    ) -> None:
        self.model = self.name = model
        self.rates = rates
        self.requests: list[Request] = []
        """Every request so far, for a test to check."""
        self._function = script if callable(script) else None
        self._lines = [] if callable(script) else list(script)

    async def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        self.requests.append(request)
        line = self._next_line(request)
        if isinstance(line, Slow):
            await asyncio.sleep(line.seconds)
            line = line.answer
        if isinstance(line, ModelError):
            raise line
        if isinstance(line, Broken):
            yield Delta(line.text)
            raise TruncatedReply(self.model, "the script broke the connection")
        answer = self._answer(line, request)
        for part in answer.message.text.split(" "):
            yield Delta(part + " ")
        yield answer

    def _next_line(self, request: Request) -> ScriptLine:
        if self._function is not None:
            return self._function(request)
        if not self._lines:
            raise ModelError(self.model, "its script has no more lines", "add one line per model call")
        line = self._lines.pop(0)
        return line(request) if callable(line) else line

    def _answer(self, line: ScriptLine, request: Request) -> Answer:
        if isinstance(line, Answer):
            return line
        message = assistant(line) if isinstance(line, str) else line
        assert isinstance(message, Message)
        input_tokens = sum(measure(message).tokens for message in request.messages)
        usage = Usage(
            input_tokens + sum(len(text) // 4 for text in request.context.system),
            measure(message).tokens,
            0,
            0,
        )
        answer = Answer(message, usage, None, self.provider, self.model, "stop")
        return replace(answer, finish="tool_use") if message.calls else answer


def load_script(path: str) -> ScriptedModel:
    """Load a script from a JSON or YAML file: a list of texts, or of `{text, calls: [{id, name, arguments}]}`.

    With `{lines: […], rates: {input, output}}` it has a price, in dollars per million tokens. The number of answers
    in the history selects the next line, so that a new process continues where the last one stopped.
    """
    script = _read_script(path)
    lines = [_line_message(line) for line in script.lines]

    def line(request: Request) -> ScriptLine:
        answers = sum(message.role == "assistant" for message in request.messages)
        if answers >= len(lines):
            raise ModelError(
                f"scripted:{path}",
                f"its script has {plural(len(lines), 'line')}, one for each answer of the session from its start, and the "
                f"session has {plural(answers, 'answer')}",
                "add a line for each answer, those of an import or a fork included",
            )
        return lines[answers]

    return ScriptedModel(line, model=f"scripted:{path}", rates=script.rates)


def _read_script(path: str) -> _ScriptFile:
    try:
        text = _read_regular(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnavailable(
            f"scripted:{path}", f"the script cannot be read ({error})", "pass a JSON or YAML file in UTF-8"
        ) from None
    try:
        content = msgspec.json.decode(text) if path.endswith(".json") else msgspec.yaml.decode(text)
        return _to_script({"lines": content} if isinstance(content, list) else content)
    except ImportError:
        raise ModelUnavailable(
            f"scripted:{path}", "YAML support is not installed", f"{install_line('yaml')}, or use .json"
        ) from None
    except msgspec.MsgspecError as error:
        raise ModelUnavailable(
            f"scripted:{path}", f"the script has the wrong shape ({error})", "see docs/running.md"
        ) from None


def _read_regular(path: str) -> str:
    """Read a regular file: a device or a pipe may have no end, and reading may change a pipe."""
    place = Path(path)
    if not place.is_file():
        place.stat()  # raises the error that says what is missing
        raise OSError("it is not a regular file")
    with place.open("rb") as file:
        content = file.read(MAX_SCRIPT_BYTES + 1)
    if len(content) > MAX_SCRIPT_BYTES:
        raise OSError(f"it has more than {MAX_SCRIPT_BYTES:,} bytes")
    return content.decode("utf-8")


class _ScriptFile(Struct, frozen=True, forbid_unknown_fields=True):
    lines: list[str | _LineSpec]
    rates: Rates | None = None


class _LineSpec(Struct, frozen=True, forbid_unknown_fields=True):
    text: str = ""
    calls: list[_CallSpec] = []


class _CallSpec(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}
    id: str | None = None


def _line_message(line: str | _LineSpec) -> Message:
    if isinstance(line, str):
        return assistant(line)
    calls = [ToolCall(c.id or f"call_{n}", c.name, c.arguments) for n, c in enumerate(line.calls)]
    return assistant(*([line.text] if line.text else []), *calls)


_to_script = converter(_ScriptFile)
