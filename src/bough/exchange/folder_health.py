"""The health of another tool's session folder: JSON lines, one file per session. Reads only, and only lines.

Knows how calls and their results look in the lines of the tools people use (`tool_use` / `tool_result`,
`function_call` / `function_call_output`, `tool_calls` / `tool_call_id`) and nothing else of their formats: what makes
a provider refuse a history is a call without its result, a result without its call, and a line cut in half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ..stores.sqlite.health import Finding

SHOWN = 3


class FileSummary(Struct):
    """What one file holds."""

    lines: int = 0
    broken: list[int] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)
    parents: set[str] = field(default_factory=set)
    ends_whole: bool = True


def folder_health(folder: str, on_file: Callable[[], None] = lambda: None) -> list[Finding]:
    """Every `.jsonl` file below the folder, looked at line by line."""
    files = sorted(Path(folder).rglob("*.jsonl"))
    if not files:
        return [Finding("problem", f"{folder} holds no .jsonl file; name a tool's session folder or a store")]
    findings: list[Finding] = []
    lines = 0
    for place in files:
        on_file()
        try:
            seen = scan_file(place)
        except OSError as error:
            findings.append(Finding("problem", f"{place.name} cannot be read: {error.strerror}"))
            continue
        lines += seen.lines
        findings += [Finding("problem", f"{place.name}: {what}") for what in file_problems(seen)]
    return [Finding("ok", f"{len(files):,} files, {lines:,} lines"), *findings]


def scan_file(place: Path) -> FileSummary:
    seen = FileSummary()
    with place.open("rb") as file:
        for number, line in enumerate(file, 1):
            seen.lines = number
            seen.ends_whole = line.endswith(b"\n")
            if not line.strip():
                continue
            try:
                _take(seen, msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                seen.broken.append(number)
    return seen


def _take(seen: FileSummary, line: Any) -> None:
    if isinstance(line, dict):
        if isinstance(line.get("uuid"), str):
            seen.ids[line["uuid"]] += 1
        if isinstance(line.get("parentUuid"), str):
            seen.parents.add(line["parentUuid"])
    for kind, name in _calls(line):
        (seen.calls if kind == "call" else seen.results)[name] += 1


def _calls(value: Any) -> Iterator[tuple[str, str]]:
    """Calls and results anywhere in a line, by their ids."""
    if isinstance(value, list):
        for one in value:
            yield from _calls(one)
    if not isinstance(value, dict):
        return
    match value:
        case {"type": "tool_use", "id": str(name)}:
            yield "call", name
        case {"type": "tool_result", "tool_use_id": str(name)}:
            yield "result", name
        case {"type": "function_call" | "custom_tool_call" | "local_shell_call", "call_id": str(name)}:
            yield "call", name
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(name)}:
            yield "result", name
        case {"role": "tool", "tool_call_id": str(name)}:
            yield "result", name
        case {"role": "assistant", "tool_calls": list(calls)}:
            yield from (
                ("call", one["id"])
                for one in calls
                if isinstance(one, dict) and isinstance(one.get("id"), str)
            )
    for inner in value.values():
        if isinstance(inner, dict | list):
            yield from _calls(inner)


def file_problems(seen: FileSummary) -> Iterator[str]:
    if seen.broken:
        cut = not seen.ends_whole and seen.broken == [seen.lines]
        yield (
            "its last line is cut in half"
            if cut
            else f"lines that are no JSON: {_some(map(str, seen.broken))}"
        )
    unanswered = [name for name in seen.calls if name not in seen.results]
    if unanswered:
        yield f"{len(unanswered)} tool calls without a result ({_some(unanswered)}): a provider refuses this history"
    orphans = [name for name in seen.results if name not in seen.calls]
    if orphans:
        yield f"{len(orphans)} results without a call ({_some(orphans)}): a provider refuses this history"
    twice = [name for name, count in seen.results.items() if count > 1]
    if twice:
        yield f"{len(twice)} calls answered more than once ({_some(twice)})"
    lost = [name for name in seen.parents if name not in seen.ids]
    if seen.ids and lost:
        yield f"{len(lost)} entries hang on a parent that is not in the file ({_some(lost)})"


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")
