"""Every regular expression of the package, how it is used, and text that makes a slow one slow.

The patterns are found in the source: a call of `re`, or of a method of a name that `re.compile` was assigned to. Text is made
from a pattern's own parts: what leads to a part, then that part again and again, and an end that does not match.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]  # the only parser there is
from typing import Any, NamedTuple

from support.paths import SOURCES, relative

FUNCTIONS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
ENDS = ("", "\0", "\n")
MANY = 1_000
"""A repeat that may go on for longer is one without a bound."""
SAMPLES = "a0 _-/.:;=,@#\n\"'<>[](){}A!%é"
"""Characters to try for one of a set."""


class Use(NamedTuple):
    """A regular expression, and a function that searches with it."""

    place: str
    pattern: str | bytes
    flags: int
    function: str

    def run(self) -> Callable[[Any], object]:
        compiled = re.compile(self.pattern, self.flags)
        if self.function in ("sub", "subn"):
            return lambda text: getattr(compiled, self.function)(text[:0], text)
        if self.function == "finditer":
            return lambda text: list(compiled.finditer(text))
        return getattr(compiled, self.function)  # type: ignore[no-any-return]


def uses() -> tuple[set[Use], set[str]]:
    """Return every use of a constant pattern, and the places of those whose pattern depends on what the program is given."""
    trees = {path: ast.parse(path.read_text()) for root in SOURCES for path in sorted(root.rglob("*.py"))}
    methods: dict[str, set[str]] = {}
    for tree in trees.values():
        aliases = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(ast.Name(name), attribute) if attribute in FUNCTIONS:
                    methods.setdefault(aliases.get(name, name), set()).add(attribute)
    result: set[Use] = set()
    dynamic: set[str] = set()
    for path, tree in trees.items():
        for name, call in _calls(tree):
            function = call.func.attr  # type: ignore[attr-defined]
            place = f"{relative(path)}:{name}"
            value = _evaluate(path, call)
            if value is None:
                dynamic.add(place)
                continue
            pattern, flags = value
            functions = (
                [function] if function != "compile" else sorted(methods.get(name, ())) or FUNCTIONS[:1]
            )
            result |= {Use(place, pattern, flags, each) for each in functions}
    return result, dynamic


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of `re`, with the name its result is assigned to, or the function it is in."""

    def visit(node: ast.AST, name: str) -> Iterator[tuple[str, ast.Call]]:
        match node:
            case ast.FunctionDef(name=inner) | ast.AsyncFunctionDef(name=inner) | ast.ClassDef(name=inner):
                name = inner
            case ast.Assign(targets=[ast.Name(target)]) | ast.AnnAssign(target=ast.Name(target)):
                name = target
            case ast.Call(ast.Attribute(ast.Name("re"), attribute)) if attribute in ("compile", *FUNCTIONS):
                yield name, node
        for child in ast.iter_child_nodes(node):
            yield from visit(child, name)

    yield from visit(tree, "")


def _evaluate(path: Path, call: ast.Call) -> tuple[str | bytes, int] | None:
    """Return the pattern and its flags, as the module sees them; None if they are not constants of the module."""
    wanted = {"compile": 1, "sub": 3, "subn": 3}.get(call.func.attr, 2)  # type: ignore[attr-defined]
    flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"] or call.args[wanted:][:1]
    expression = compile(
        ast.fix_missing_locations(ast.Expression(ast.Tuple([call.args[0], *flags], ast.Load()))),
        str(path),
        "eval",
    )
    try:
        pattern, *values = eval(expression, {"re": re})
    except NameError:
        parts = relative(path).with_suffix("").parts
        module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        try:
            pattern, *values = eval(expression, {**vars(module)})
        except NameError:
            return None
    if isinstance(pattern, re.Pattern):
        return pattern.pattern, pattern.flags & ~re.UNICODE.value
    return (pattern, int(sum(values))) if isinstance(pattern, str | bytes) else None


def hostile_texts(use: Use) -> Iterator[Callable[[int], str | bytes]]:
    """Yield makers of texts of a length: each run of parts that has a repeat, again and again, after what leads to it."""
    pattern = use.pattern.decode("latin-1") if isinstance(use.pattern, bytes) else use.pattern
    runs = {(before, run) for before, run in _runs(_parser.parse(pattern, use.flags)) if 0 < len(run) < 200}
    for before, run in sorted(runs | {("", run) for _, run in runs}):
        for end in ENDS:
            yield partial(_text, before, run, end, isinstance(use.pattern, bytes))


def _text(before: str, run: str, end: str, is_bytes: bool, length: int) -> str | bytes:
    text = before + run * (length // len(run)) + end
    return text.encode("utf-8", "replace") if is_bytes else text


def _runs(parsed: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield what leads to a run of parts, and texts that the run matches, for every run that ends in an unbounded repeat."""
    items = list(parsed)
    for last, item in enumerate(items):
        lead = before + "".join(map(_sample, items[:last]))
        yield from _inner(item, lead)
        if not _is_unbounded(item):
            continue
        for first in {0, *range(max(0, last - 3), last + 1)}:
            start = before + "".join(map(_sample, items[:first]))
            run = items[first : last + 1]
            for more in (0, 1):
                yield start, "".join(_sample(each, more) for each in run)
                yield start, "".join(_sample(each, more) for each in (*run, *items[last + 1 : last + 2]))


def _is_unbounded(item: Any) -> bool:
    kind, value = item
    match str(kind):
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return value[1] > MANY or any(map(_is_unbounded, value[2]))
        case "SUBPATTERN":
            return any(map(_is_unbounded, value[3]))
        case "ATOMIC_GROUP":
            return any(map(_is_unbounded, value))
        case "BRANCH":
            return any(_is_unbounded(each) for branch in value[1] for each in branch)
        case "ASSERT" | "ASSERT_NOT":
            return any(map(_is_unbounded, value[1]))
        case _:
            return False


def _inner(item: Any, lead: str) -> Iterator[tuple[str, str]]:
    kind, value = item
    match str(kind):
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            if value[1] > MANY:
                yield from ((lead, character) for character in _characters(value[2]))
            yield from _runs(value[2], lead)
        case "SUBPATTERN":
            yield from _runs(value[3], lead)
        case "ATOMIC_GROUP":
            yield from _runs(value, lead)
        case "BRANCH":
            for branch in value[1]:
                yield from _runs(branch, lead)
        case "ASSERT" | "ASSERT_NOT":
            yield from _runs(value[1], lead)


def _characters(parsed: Any) -> list[str]:
    """Return a few characters that a set matches, if that is all there is."""
    if len(parsed) != 1 or str(parsed[0][0]) not in ("IN", "ANY", "NOT_LITERAL"):
        return []
    return [each for each in SAMPLES if _matches(parsed[0], each)][:4]


def _matches(item: Any, character: str) -> bool:
    state = _parser.State()
    state.str = ""
    parsed = _parser.SubPattern(state, [item])
    return re._compiler.compile(parsed).fullmatch(character) is not None  # type: ignore[attr-defined]


def _sample(item: Any, more: int = 0) -> str:
    """Return a text that a part matches: the shortest, or with `more` one with its repeats."""
    kind, value = item
    match str(kind):
        case "LITERAL":
            return chr(value)
        case "IN" | "ANY" | "NOT_LITERAL":
            return next((each for each in SAMPLES if _matches(item, each)), "a")
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return "".join(_sample(each, more) for each in value[2]) * min(max(value[0], more), 100)
        case "SUBPATTERN":
            return "".join(_sample(each, more) for each in value[3])
        case "ATOMIC_GROUP":
            return "".join(_sample(each, more) for each in value)
        case "BRANCH":
            return "".join(_sample(each, more) for each in value[1][0])
        case _:
            return ""
