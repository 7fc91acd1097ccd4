"""The file of a regression case: which recorded session is replayed, and what its turns must do.

TOML next to its bundle, made to be read and edited by people. A call is written as reports print it:

    lookup({"order": 41})         these arguments and no others
    lookup({"order": 41, ...})    these arguments, whatever the others are
    lookup                        any arguments

Knows the format; does not know how a case runs. docs/testing.md describes every key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from oakleaf.core.messages import ToolCall
from oakleaf.core.turn_reader import arguments_text
from oakleaf.core.typed_json import converter
from oakleaf_lab.case_scorers import CaseScorer
from oakleaf_lab.errors import InvalidCase

SUFFIX = ".case.toml"
FORMAT = 1
_CALL = re.compile(r"(?P<name>[^\s(]+)(?:\((?P<arguments>.*)\))?", re.DOTALL)


class ExpectedCall(Struct, frozen=True):
    """An expected tool call of a turn."""

    name: str
    arguments: dict[str, Any] | None = None
    """None: any."""
    is_open: bool = False
    """Whether other arguments may be there too."""

    @classmethod
    def parse(cls, text: str) -> ExpectedCall:
        """Read `name`, `name({…})` or `name({…, ...})`; raise ValueError with the fault."""
        match = _CALL.fullmatch(text.strip())
        if match is None:
            raise ValueError(f'{text!r} is not a call; write it as lookup or lookup({{"order": 41}})')
        if match["arguments"] is None:
            return cls(match["name"])
        body = match["arguments"].strip()
        closed = _without_open_end(body)
        try:
            arguments = msgspec.json.decode(closed or "{}", type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ValueError(f"the arguments of {text!r} are not a JSON object ({error})") from None
        return cls(match["name"], arguments, closed != body)

    def matches(self, call: ToolCall) -> bool:
        if call.name != self.name:
            return False
        if self.arguments is None:
            return True
        if call.malformed is not None:
            return False
        if self.is_open:
            return all(
                name in call.arguments and call.arguments[name] == value
                for name, value in self.arguments.items()
            )
        return call.arguments == self.arguments

    def __str__(self) -> str:
        if self.arguments is None:
            return self.name
        text = msgspec.json.encode(self.arguments, order="sorted").decode()
        if self.is_open:
            text = "{...}" if text == "{}" else f"{text[:-1]}, ...}}"
        return f"{self.name}({text})"


class ExpectedTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """The expectations of one turn of the replay."""

    seq: int
    """The entry of its input in the bundle."""
    input: str = ""
    """For the reader."""
    tools: tuple[str, ...] | None = None
    """The calls it makes, in order; None: not checked."""
    match: Literal["exact", "include"] = "exact"
    """exact: these calls and no others. include: these in this order, others may come between."""
    never_calls: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    """Texts its answer contains, whatever their case and spaces; /…/ is a regular expression."""
    never_says: tuple[str, ...] = ()
    """Texts that it says nowhere."""
    scorers: tuple[str, ...] = ()
    """`FILE.py:NAME` or `FILE.py:NAME >= 0.8`, relative to the case, or `judge:NAME >= 0.8`."""

    @property
    def has_expectations(self) -> bool:
        return self.tools is not None or bool(
            self.never_calls or self.says or self.never_says or self.scorers
        )

    @property
    def expected_calls(self) -> tuple[ExpectedCall, ...]:
        return tuple(map(ExpectedCall.parse, self.tools or ()))

    @property
    def case_scorers(self) -> tuple[CaseScorer, ...]:
        return tuple(map(CaseScorer.parse, self.scorers))

    @property
    def forbidden_calls(self) -> tuple[ExpectedCall, ...]:
        return tuple(map(ExpectedCall.parse, self.never_calls))


class CaseReplay(Struct, frozen=True, forbid_unknown_fields=True):
    """How the case is replayed, unless the command line says otherwise. Empty: strictly, with the recorded answers."""

    model: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    """A file with the prompt, relative to the case: tests the prompt that you have now."""
    options: dict[str, Any] | None = None
    on_miss: Literal["stop", "next", "continue"] = "stop"
    repeat: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How often the case is run with a live model or judge."""
    pass_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """The share of these runs that must pass."""


class CaseJudge(Struct, frozen=True, forbid_unknown_fields=True):
    """A scoring model, for the scorer `judge:NAME >= 0.8`."""

    model: str
    prompt: str | None = None
    """What it is to look at. Default: correct by the results, complete, polite."""
    prompt_file: str | None = None
    """A file with it, relative to the case."""


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """A regression case as in the file."""

    format: int
    bundle: str
    start: int = 0
    """The replay keeps entries 1 to `start` and sends every later input."""
    replay: CaseReplay = CaseReplay()
    turn: tuple[ExpectedTurn, ...] = ()
    judge: dict[str, CaseJudge] = {}
    """Its judges by name."""


_to_case = converter(Case)


def read_case(path: Path) -> Case:
    """Read and check a case; raise `InvalidCase` with the file and the fault."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidCase(str(path), "there is no such file") from None
    except OSError as error:
        raise InvalidCase(str(path), f"it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidCase(str(path), "it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidCase(str(path), f"it is not TOML: {error}") from None
    if isinstance(version := data.get("format"), int) and version > FORMAT:
        raise InvalidCase(str(path), f"it has format {version}, and this Oakleaf reads up to {FORMAT}")
    try:
        case = _to_case(data)
    except msgspec.ValidationError as error:
        raise InvalidCase(str(path), str(error)) from None
    _check(path, case)
    return case


def _check(path: Path, case: Case) -> None:
    if not case.turn:
        raise InvalidCase(str(path), "it has no [[turn]], so it checks nothing")
    if case.replay.prompt is not None and case.replay.prompt_file is not None:
        raise InvalidCase(str(path), "[replay] has prompt and prompt_file; use one")
    prompts = {"replay": case.replay.prompt, **{f"judge.{n}": one.prompt for n, one in case.judge.items()}}
    for place, prompt in prompts.items():
        if prompt is not None and isfile(path.parent / prompt):
            raise InvalidCase(str(path), f"prompt of [{place}] is the name of a file; use prompt_file")
    for name, judge in case.judge.items():
        if judge.prompt is not None and judge.prompt_file is not None:
            raise InvalidCase(str(path), f"[judge.{name}] has prompt and prompt_file; use one")
    for turn in case.turn:
        try:
            assert turn.expected_calls is not None
            assert turn.forbidden_calls is not None
            for scorer in turn.case_scorers:
                if scorer.is_judge and scorer.name not in case.judge:
                    raise ValueError(f"{scorer} needs a table [judge.{scorer.name}] with a model")
            for text in (*turn.says, *turn.never_says):
                text_pattern(text)
        except ValueError as error:
            raise InvalidCase(str(path), f"turn {turn.seq}: {error}") from None


def text_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of an expected text: /…/ verbatim, else the words with any space between."""
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        try:
            return re.compile(text[1:-1], re.IGNORECASE | re.DOTALL)
        except re.error as error:
            raise ValueError(f"{text} is not a regular expression ({error})") from None
    if not text.strip():
        raise ValueError("an empty text is in every answer")
    return re.compile(r"\s+".join(map(re.escape, text.split())), re.IGNORECASE)


def _without_open_end(body: str) -> str:
    """Return the arguments without the final dots, which allow further arguments."""
    inner = body.removesuffix("}").rstrip()
    listed = inner.removesuffix("...").removesuffix("…")
    if inner == body or listed == inner:
        return body
    return listed.rstrip().removesuffix(",") + "}"


def call_text(call: ToolCall) -> str:
    """Write a call in the notation of a case. One with malformed arguments is only named: they are not JSON."""
    return call.name if call.malformed is not None else f"{call.name}({arguments_text(call)})"


# -- write -------------------------------------------------------------------------------------------------------


def write_case(case: Case, *, origin: str, answers: Mapping[int, str]) -> str:
    """Return the text of a case's file. `answers` are the recorded ones by turn, as comments for the reader.

    A turn that is not in them has none.
    """
    lines = [
        f"# {_comment(origin)}",
        "# Run it with: oakleaf test FOLDER. docs/testing.md explains each key; edit what you expect.",
        f"format = {case.format}",
        f"bundle = {_string(case.bundle)}",
        f"start = {case.start}",
    ]
    replay = {name: value for name, value in msgspec.to_builtins(case.replay).items() if value is not None}
    if case.replay != CaseReplay():
        lines += ["", "[replay]", *(f"{name} = {_value(value)}" for name, value in replay.items())]
    for name, judge in case.judge.items():
        keys = {key: value for key, value in msgspec.to_builtins(judge).items() if value is not None}
        lines += ["", f"[judge.{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())]
    for turn in case.turn:
        lines += ["", "[[turn]]", *_turn_lines(turn, answers.get(turn.seq))]
    return "\n".join(lines) + "\n"


def _turn_lines(turn: ExpectedTurn, answer: str | None) -> list[str]:
    lines = [f"seq = {turn.seq}", f"input = {_string(turn.input)}"]
    if turn.tools is not None:
        lines += [f"tools = {_strings(turn.tools)}", f"match = {_string(turn.match)}"]
    lines += [f"never_calls = {_strings(turn.never_calls)}"]
    lines += [f"says = {_strings(turn.says)}", f"never_says = {_strings(turn.never_says)}"]
    if turn.scorers:
        lines += [f"scorers = {_strings(turn.scorers)}"]
    if answer is None:
        lines += ["# The recording has no answer to this input, so its calls are not expected."]
    elif answer:
        lines += ["# The recorded answer:", *(f"#   {_comment(line)}" for line in answer.splitlines()[:12])]
    return lines


def _comment(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:300]


def _strings(texts: Sequence[str]) -> str:
    if len(texts) < 2:
        return f"[{''.join(map(_string, texts))}]"
    return "[\n" + "".join(f"  {_string(text)},\n" for text in texts) + "]"


def _string(text: str) -> str:
    """Write a TOML string: literal to save escaped quotes if possible, else basic."""
    is_plain = all(character.isprintable() for character in text)
    if is_plain and '"' in text and "'" not in text:
        return f"'{text}'"
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    code = ord(character)
    return short.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_string(name)} = {_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return msgspec.json.encode(value).decode()


def find_cases(places: Iterable[Path]) -> list[Path]:
    """Return the case files of folders, at any depth, and the named files, in order of paths."""
    cases: set[Path] = set()
    for place in places:
        if place.is_dir():
            cases.update(path for path in place.rglob(f"*{SUFFIX}") if path.is_file())
        else:
            cases.add(place)
    return sorted(cases)
